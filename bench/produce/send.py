"""Producing from a thread, one message at a time and in bulk, beside the peers that do the same."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.peers import java_perf
from bench.peers.load import Load
from bench.peers.measure import Figures
from bench.peers.python_jobs import Terms
from bench.produce.contest import BROKER_CPU, CPU, RATE, WARMUP, Contestant, Found, Ground, contest, warm_kafka
from bench.results import Bar, Row, Section
from brokers.kafka import KafkaCluster

NAME = "produce.send"
ROUNDS = 5
COMPARED = """\
One real Kafka of one node on this machine, everybody idempotent, acks=all, linger 5 ms. A clock runs from the first
message, the client connected and warm, until the outcome of every message was observed: each of our receipts was asked
with `result()`, confluent-kafka's delivery callback counted, others' futures were awaited or asked. Then the topic held
exactly what was sent. Rates are messages per second; CPU is the client process's, all its threads, in seconds per
million messages, also inside the clock. Values are text that lz4 halves; ours are batches of 1 MB, confluent-kafka's
of 1 MB or 10,000 messages and the pure Python clients' of 256 KB; confluent-kafka polls every 100 messages.
`send_many`, `send_table` and `produce_batch` take 10,000 messages at a time; the one receipt that the first two give
for them was asked with `result()`, which raises if one of them failed. The Java producer is Kafka's performance tool
with batches of 1 MB, counted after a warm-up; JVM start is not in its CPU. "keyed" is with a key and two properties
each. Client and broker share the cores, so a rate tells of both.
"""

PACKAGES = ("confluent-kafka", "aiokafka", "kafka-python", "cramjam")
CONFLUENT, BATCH, JAVA = "confluent-kafka", "its produce_batch", "Java producer"
PLAIN = "plain kernel"
SMALL, LARGE = 100, 1000
MESSAGES = {SMALL: 1_000_000, LARGE: 300_000}
FOCUS_MESSAGES = 2_000_000
SLOW_MESSAGES = {"aiokafka": 150_000, "kafka-python": 40_000}
JAVA_WARMUP = 2_000_000
BARS = {
    SMALL: {RATE: Bar("≥", 3.5), CPU: Bar("≤", 0.25)},
    LARGE: {RATE: Bar("≥", 1.3), CPU: Bar("≤", 0.6)},
}
BULK_BARS = {RATE: Bar("≥", 4), CPU: Bar("≤", 0.2)}
PLAIN_BAR = Bar("≥", 0.8)
JAVA_BAR = Bar("≥", 2)


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """All peers where the bars are, and the whole grid beside confluent-kafka in three rounds for five."""
    with warm_kafka(warmup) as cluster:
        rows = focus_rows(cluster, rounds, share)
        for size, codec, keyed, partitions in itertools.product(MESSAGES, ("lz4", "none"), (False, True), (1, 16)):
            load = Load(scaled(MESSAGES[size], share), size, partitions, codec)
            rows += beside_confluent(cluster, load, keyed, max(1, rounds * 3 // 5))
    return Section(NAME, COMPARED, rows, rounds, PACKAGES)


def scaled(messages: int, share: float) -> int:
    """So many of them, but some."""
    return max(1000, int(messages * share))


def focus_rows(cluster: KafkaCluster, rounds: int, share: float) -> list[Row]:
    """100 B, lz4, 4 partitions: everybody. 1 KB: confluent-kafka."""
    ground = Ground(cluster, Load(scaled(FOCUS_MESSAGES, share)), Terms())
    found = contest(everybody(ground, share), rounds)
    large = beside_confluent(cluster, Load(scaled(MESSAGES[LARGE], share), LARGE), False, rounds)
    return told(case_of(ground.load, keyed=False), found) + large


def everybody(ground: Ground, share: float) -> Mapping[str, Contestant]:
    """Ours first, then the peers, the quick ones with as many messages as ours."""
    slow = {peer: replace(ground.load, messages=scaled(count, share)) for peer, count in SLOW_MESSAGES.items()}
    return {
        "send": ground.job("penstock", "send"),
        PLAIN: ground.job("penstock", "send", kernel="plain"),
        CONFLUENT: ground.peer("confluent-kafka", "produce"),
        "send_many": ground.job("penstock", "send_many"),
        "send_table": ground.job("penstock", "send_table"),
        BATCH: ground.peer("confluent-kafka", "produce_batch"),
        JAVA: lambda: java(ground, scaled(JAVA_WARMUP, share)),
        "aiokafka": ground.job("aiokafka", "together", slow["aiokafka"]),
        "kafka-python": ground.peer("kafka-python", "produce", slow["kafka-python"]),
    }


def java(ground: Ground, warmup: int) -> Figures:
    """Kafka's own tool, warm and with large batches."""
    return java_perf.produce(ground.cluster, ground.load, warmup, batch_bytes=1 << 20)


def told(case: str, found: Found) -> list[Row]:
    """Each of our ways beside the peers that do the same."""
    rows = [
        found.row(f"{case}: send", "send", CONFLUENT, RATE, BARS[SMALL][RATE]),
        found.row(f"{case}: send", "send", CONFLUENT, CPU, BARS[SMALL][CPU]),
        broker_row(f"{case}: send", found),
        found.row(f"{case}: send, {PLAIN}", PLAIN, CONFLUENT, RATE, PLAIN_BAR),
        found.row(f"{case}: send, {PLAIN}", PLAIN, CONFLUENT, CPU),
    ]
    for other, measure in itertools.product((*SLOW_MESSAGES, JAVA), (RATE, CPU)):
        rows.append(found.row(f"{case}: send", "send", other, measure))
    for way in ("send_many", "send_table"):
        rows += [found.row(f"{case}: {way}", way, BATCH, measure, BULK_BARS[measure]) for measure in (RATE, CPU)]
        rows.append(found.row(f"{case}: {way}", way, JAVA, RATE, JAVA_BAR))
        rows.append(found.row(f"{case}: {way}", way, JAVA, CPU))
    return rows


def broker_row(case: str, found: Found) -> Row:
    """What the broker paid; ticks of its clock are too coarse for a ratio of short runs."""
    ours, theirs = found.shown("send", BROKER_CPU), found.shown(CONFLUENT, BROKER_CPU)
    return Row(f"{case}, {BROKER_CPU.name}", ours, CONFLUENT, theirs)


def beside_confluent(cluster: KafkaCluster, load: Load, keyed: bool, rounds: int) -> list[Row]:
    """One point of the grid; the bars hold where batches are compressed."""
    ground = Ground(cluster, load, Terms(keyed=keyed))
    contestants = {
        "send": ground.job("penstock", "send"),
        CONFLUENT: ground.peer("confluent-kafka", "produce"),
    }
    found = contest(contestants, rounds)
    bars = BARS[load.value_bytes] if load.compression == "lz4" else {}
    case = f"{case_of(load, keyed)}: send"
    return [found.row(case, "send", CONFLUENT, measure, bars.get(measure)) for measure in (RATE, CPU)]


def case_of(load: Load, keyed: bool) -> str:
    """As the table calls it."""
    size = "100 B" if load.value_bytes == SMALL else "1 KB"
    plural = "" if load.partitions == 1 else "s"
    return f"{size}{', keyed' if keyed else ''}, {load.compression}, {load.partitions} partition{plural}"
