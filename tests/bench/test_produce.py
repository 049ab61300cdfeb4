"""The producer's benchmarks: equal terms, honest arithmetic, and a small run of every job on a real Kafka."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from bench import __main__ as command
from bench.peers import python_peers
from bench.peers.load import DISTINCT, Load
from bench.peers.measure import Figures
from bench.peers.python_jobs import BATCH, POLL_EVERY, WARMUP, Job, Terms, mails, parts
from bench.produce import asyncio_jobs, awaited, busy_job, gate, latency, send
from bench.produce.contest import CPU, RATE, Found, Ground, contest
from bench.results import Bar, Row, Section
from bench.timing import Ratio
from brokers.jvm import BENCHMARK
from brokers.kafka import KafkaCluster


def figures(rate: float = 1000.0, cpu_s: float = 1.0, **more: float) -> Figures:
    """Of a run of a second; the CPU seconds are those of a million messages."""
    messages = int(rate)
    return Figures("peer", "job", messages, 1.0, {"client": cpu_s * messages / 1e6, "broker": 0.1}, more)


def job(messages: int = 100, partitions: int = 4, **settings: Any) -> Job:
    return Job("client", "action", "", "", "topic", "", Load(messages, 100, partitions), {}, Terms(settings=settings))


def verdicts(rows: list[Row]) -> dict[str, str]:
    return {f"{row.case} / {row.beside}": row.verdict() for row in rows if row.bar}


# What is sent


def test_parts_are_the_pool_again_and_again() -> None:
    assert list(map(list, parts("abcd", 7, 2))) == [["a", "b"], ["c", "d"], ["a", "b"], ["c"]]
    assert list(parts([1, 2], 2, 2)) == [[1, 2]]
    assert list(parts([1, 2], 0, 2)) == []


@pytest.mark.parametrize("messages", [1, POLL_EVERY, BATCH + 1, 25_000])
def test_parts_add_up_to_the_load(messages: int) -> None:
    for pool, size in ((range(DISTINCT), POLL_EVERY), (range(BATCH), BATCH)):
        assert sum(len(part) for part in parts(pool, messages, size)) == messages


def test_keyed_messages_have_a_key_of_their_own_and_two_properties() -> None:
    made = mails(100)
    assert len({mail.key for mail in made}) == len(made) == DISTINCT
    assert {tuple(mail.properties) for mail in made} == {("region", "version")}
    assert {len(mail.value) for mail in made} == {100}


def test_every_partition_is_sent_to_before_the_clock_starts() -> None:
    first = list(job(partitions=16).first_messages())
    assert len(first) == WARMUP
    assert {partition for _, partition in first} == set(range(16))


# Arithmetic


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    found = Found(
        {"a": [figures(2000), figures(9000), figures(400)], "b": [figures(1000), figures(1000), figures(100)]}
    )
    assert found.ratio("a", "b", RATE) == Ratio(4.0, 2.0, 9.0)
    assert found.median("a", RATE) == 2000
    assert found.shown("a", RATE) == "2.0 k/s"
    assert RATE.show(2_345_678) == "2,346 k/s"


def test_cpu_is_told_for_a_million_messages() -> None:
    found = Found({"a": [figures(250_000, 0.5)], "b": [figures(1_000_000, 2.0)]})
    assert found.shown("a", CPU) == "0.50 s/M"
    assert found.ratio("a", "b", CPU) == Ratio(0.25, 0.25, 0.25)
    assert found.row("case", "a", "b", CPU, Bar("≤", 0.25)).cells() == (
        *("case, CPU", "0.50 s/M", "b", "2.00 s/M", "0.25x", "0.25 to 0.25", "≤ 0.25x", "met"),
    )


def test_contestants_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    turns: list[str] = []

    def run(name: str) -> Figures:
        turns.append(name)
        return figures(len(turns))

    found = contest({name: partial(run, name) for name in "abc"}, 3)
    assert "".join(turns) == "abcabcabc"
    assert [each.rate for each in found.figures["b"]] == [2, 5, 8]
    assert "round 3, c: peer job" in capsys.readouterr().err


def test_percentiles_are_values_that_occurred() -> None:
    assert asyncio_jobs.percentiles([3.0, 1.0, 2.0]) == {"p50_ms": 2.0, "p99_ms": 3.0}
    assert asyncio_jobs.percentiles([float(n) for n in range(1000)]) == {"p50_ms": 500.0, "p99_ms": 990.0}


# Bars


def everybody(ours: float, plain: float, bulk: float, cpu_s: float) -> Found:
    return Found(
        {
            "send": [figures(ours, cpu_s)],
            send.PLAIN: [figures(plain, 1.0)],
            "send_many": [figures(bulk, cpu_s)],
            "send_table": [figures(bulk, cpu_s)],
            send.CONFLUENT: [figures(1000, 1.0)],
            send.BATCH: [figures(1000, 1.0)],
            send.JAVA: [figures(2000, 1.0)],
            **{slow: [figures(100, 10.0)] for slow in send.SLOW_MESSAGES},
        }
    )


def test_the_bars_of_sending_are_met_by_what_just_reaches_them() -> None:
    met = verdicts(send.told("100 B", everybody(3500, 800, 4000, 0.2)))
    assert set(met.values()) == {"met"}
    assert list(met) == [
        "100 B: send, rate / confluent-kafka",
        "100 B: send, CPU / confluent-kafka",
        "100 B: send, plain kernel, rate / confluent-kafka",
        *(f"100 B: {way}, {what}" for way in ("send_many", "send_table") for what in BULK),
    ]
    missed = verdicts(send.told("100 B", everybody(3490, 790, 3990, 0.26)))
    assert set(missed.values()) == {"MISSED"}


BULK = ("rate / its produce_batch", "CPU / its produce_batch", "rate / Java producer")


@pytest.mark.parametrize(
    ("size", "codec", "bars"),
    [(100, "lz4", ["≥ 3.5x", "≤ 0.25x"]), (1000, "lz4", ["≥ 1.3x", "≤ 0.6x"]), (100, "none", []), (1000, "none", [])],
)
def test_the_grid_has_bars_where_batches_are_compressed(
    size: int, codec: str, bars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "contest", lambda them, _: Found({name: [figures()] for name in them}))
    rows = send.beside_confluent(KafkaCluster(), Load(1, size, 16, codec), keyed=True, rounds=1)
    assert [str(row.bar) for row in rows if row.bar] == bars
    assert rows[0].case == f"{'100 B' if size == 100 else '1 KB'}, keyed, {codec}, 16 partitions: send, rate"


def test_waits_are_beside_what_is_allowed() -> None:
    waits = {"p50_ms": 1.5, "p99_ms": 30.0, "sealed_p50_ms": 1.0, "sealed_p99_ms": 9.0}
    rows = latency.rows_of("64 KB", Found({"64 KB": [figures(**waits)]}))
    assert rows[0].cells() == (
        *("64 KB, seal to write, p50", "1.50 ms", "allowed", "3 ms", "0.5x", "0.5 to 0.5", "≤ 1x", "met"),
    )
    assert [row.verdict() for row in rows] == ["met", "MISSED", "", "", ""]


def test_a_benchmark_says_how_many_rounds_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Section] = []
    monkeypatch.setattr("bench.results.write", written.append)
    monkeypatch.setattr(send, "run", lambda rounds: Section(send.NAME, "", [], rounds))
    command.main(["produce.send"])
    command.main(["produce.send", "--rounds", "2"])
    assert [section.rounds for section in written] == [send.ROUNDS, 2]


def test_work_is_measured_by_what_the_loop_itself_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    call_s, turn_s = 50e-9, 10e-9
    monkeypatch.setattr(busy_job, "_seconds", lambda part, turns: len(part) * (call_s + turns * turn_s))
    assert (busy_job.turns_of(1.0), busy_job.turns_of(4.0)) == (100, 400)


# The shapes of asyncio, with a client that needs no broker


class Instant:
    """Takes messages and settles them in the next turn of the loop."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.pushed = 0

    async def send(self, value: bytes, partition: int | None = None) -> asyncio.Future[None]:
        self.sent.append(value)
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[None] = loop.create_future()
        loop.call_soon(settled.set_result, None)
        return settled

    async def send_and_wait(self, value: bytes) -> None:
        await (await self.send(value))

    async def push(self) -> None:
        self.pushed += 1

    def client(self) -> asyncio_jobs.Client:
        return asyncio_jobs.Client("instant", self.send, self.send_and_wait, self.push)


@pytest.mark.parametrize("shape", [asyncio_jobs.tasks, asyncio_jobs.together, asyncio_jobs.single])
@pytest.mark.parametrize("messages", [1, 100, 1234])
def test_every_shape_sends_the_whole_load(shape: Callable[..., Any], messages: int) -> None:
    instant = Instant()
    found = asyncio.run(shape(job(messages, tasks=100), instant.client()))
    assert found.messages == len(instant.sent) == messages


def test_sends_that_are_awaited_together_are_pushed_once() -> None:
    instant = Instant()
    asyncio.run(asyncio_jobs.together(job(25_000), instant.client()))
    assert instant.pushed == 3


# Each job once, small, on a real Kafka


@pytest.fixture(scope="module")
def kafka(kafka_parts: None) -> Iterator[KafkaCluster]:
    with KafkaCluster(profile=BENCHMARK) as cluster:
        yield cluster


PEERS: dict[str, Callable[[Ground], Callable[[], Figures]]] = {
    "confluent-kafka produce": lambda ground: ground.peer("confluent-kafka", "produce"),
    "confluent-kafka produce_batch": lambda ground: ground.peer("confluent-kafka", "produce_batch"),
    "kafka-python produce": lambda ground: ground.peer("kafka-python", "produce"),
    "aiokafka produce": lambda ground: ground.peer("aiokafka", "produce"),
    **{
        f"{client} {shape}": partial(lambda client, shape, ground: ground.job(client, shape), client, shape)
        for client, shape in itertools.product(("aiokafka", "confluent-kafka", "penstock"), awaited.MESSAGES)
    },
    **{
        f"penstock {way}": partial(lambda way, ground: ground.job("penstock", way), way)
        for way in ("send", "send_many", "send_table")
    },
    "penstock send, plain": lambda ground: ground.job("penstock", "send", kernel="plain"),
}
TINY = Load(2_000)


@pytest.mark.stress
@pytest.mark.parametrize("name", PEERS)
def test_a_job_observes_every_outcome_and_the_topic_holds_as_many(
    name: str, kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tasks": 100} if "tasks" in name else {}
    ground = Ground(kafka, TINY, Terms(linger_ms=0 if "single" in name else 5, settings=settings))
    found = PEERS[name](ground)()
    with capsys.disabled():
        sys.stdout.write(f"\n{found} ")
    assert found.messages == TINY.messages
    assert found.cpu_s["client"] > 0
    assert ("p50_ms" in found.more) == ("single" in name)


@pytest.mark.stress
@pytest.mark.parametrize("client", ["penstock", "confluent-kafka"])
def test_keyed_messages_arrive_with_all_their_parts(
    client: str, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(python_peers, "delete_topic", lambda _, topic: kept.append(topic))
    ground = Ground(kafka, TINY, Terms(keyed=True))
    (ground.job(client, "send") if client == "penstock" else ground.peer(client, "produce"))()
    sent = Counter((mail.key, mail.value, *sorted(mail.properties.items())) for mail in mails(100) * 2)
    assert read_back(kafka, kept[0]) == sent


def read_back(cluster: KafkaCluster, topic: str) -> Counter[tuple[Any, ...]]:
    """What a topic holds that has a key."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    reader.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(TINY.partitions)])
    read: list[Any] = []
    while len(read) < TINY.messages + WARMUP:
        some = reader.consume(1000, 30)
        assert some, f"{len(read)} messages, then no more"
        read += some
    reader.close()
    return Counter(
        (each.key(), each.value(), *sorted((name, text.decode()) for name, text in each.headers()))
        for each in read
        if each.key() is not None
    )


@pytest.mark.stress
@pytest.mark.parametrize("benchmark", [send, awaited, gate, latency])
def test_a_whole_benchmark_runs(benchmark: Any) -> None:
    section = benchmark.run(rounds=1, share=0.001, warmup=())
    assert section.name in command.BENCHMARKS
    assert any(row.bar for row in section.rows)
    assert all(row.ratio for row in section.rows if row.bar)
