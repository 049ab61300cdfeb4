"""Other disasters, end to end with official clients: full and read-only disks, spoilt files, clocks, crowds.

What must happen is told in `docs/compatibility.md`, under "When things go wrong".
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import penstock
from brokers.penstock import COMMAND, PenstockBroker
from tests.broker.kill.disks import small_disk
from tests.broker.kill.load import LIMIT_S, QUICK, read
from tests.broker.kill.raid import served
from tests.compat.raw import Batch, Wire, api, fetch, produce, produce_request, record, settle

KB = 1000
POLICIES = ["group", "system"]


def create(bootstrap: str, *names: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({**QUICK, "bootstrap.servers": bootstrap})
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    made = [NewTopic(name, partitions, 1, config=settings) for name in names]
    for future in admin.create_topics(made, operation_timeout=60, request_timeout=120).values():
        future.result(2 * LIMIT_S)


def send(bootstrap: str, topic: str, values: Sequence[bytes], **settings: Any) -> list[Any]:
    """Send one after another; the offset of each, or the name of its error."""
    told: list[Any] = []
    producer = Producer({**QUICK, "bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, message: told.append(error or message.offset())
        )
        assert producer.flush(LIMIT_S) == 0
    return [each.name() if isinstance(each, KafkaError) else each for each in told]


def values_of(bootstrap: str, topic: str) -> list[bytes]:
    (found,) = read(bootstrap, topic, "read_uncommitted", 1)
    return [value for _, value in found]


def large(number: int) -> bytes:
    return b"%06d" % number + os.urandom(100 * KB)


def batch_of(value: bytes) -> bytes:
    return Batch(record(value), 1).encode()


def fill(broker: PenstockBroker, topic: str) -> tuple[list[bytes], str]:
    """Store until the broker says no; what it took, and what it said."""
    settle(broker.address(), topic, 1)
    stored: list[bytes] = []
    with Wire(broker.address()) as wire:
        for number in range(10_000):
            value = large(number)
            answer = produce(wire, produce_request(topic, [batch_of(value)]))
            if answer.error_code.value:
                return stored, str(answer.error_code.name)
            stored.append(value)
    raise AssertionError("the disk never got full")


@pytest.mark.parametrize("fsync", POLICIES)
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path, fsync: str) -> None:
    with small_disk(tmp_path / "disk", 24) as disk, served(disk.folder / "data", fsync) as broker:
        create(broker.bootstrap, "t")
        ballast = disk.fill(leave=8_000_000)
        stored, said = fill(broker, "t")
        assert said == "kafka_storage_error"
        assert len(stored) > 10
        assert values_of(broker.bootstrap, "t") == stored, "reading goes on"
        assert send(broker.bootstrap, "t", [large(0)], **{"message.timeout.ms": 2000}) == ["_MSG_TIMED_OUT"]
        ballast.unlink()
        more = [large(number) for number in range(5)]
        offsets = send(broker.bootstrap, "t", more)
        assert offsets == list(range(len(stored), len(stored) + 5)), "and so does storing, without a gap"
        assert values_of(broker.bootstrap, "t") == stored + more
        broker.kill()
        broker.restart()
        assert values_of(broker.bootstrap, "t") == stored + more


@pytest.mark.parametrize("fsync", POLICIES)
def test_a_broker_killed_on_a_full_disk_comes_back(tmp_path: Path, fsync: str) -> None:
    with small_disk(tmp_path / "disk", 24) as disk, served(disk.folder / "data", fsync) as broker:
        create(broker.bootstrap, "t")
        ballast = disk.fill(leave=8_000_000)
        stored, _ = fill(broker, "t")
        broker.kill()
        ballast.unlink()
        broker.restart()
        assert values_of(broker.bootstrap, "t") == stored
        assert send(broker.bootstrap, "t", [b"after"]) == [len(stored)]


def test_a_sender_that_waits_gets_through_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk, served(disk.folder / "data", "group") as broker:
        create(broker.bootstrap, "t")
        ballast = disk.fill(leave=4_000_000)
        stored, _ = fill(broker, "t")
        told: list[Any] = []
        sender = threading.Thread(target=lambda: told.extend(send(broker.bootstrap, "t", [large(7)])))
        sender.start()
        sender.join(0.5)
        ballast.unlink()
        sender.join(LIMIT_S)
        assert told == [len(stored)]


def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path: Path) -> None:
    with served(tmp_path / "data", "group") as broker:
        create(broker.bootstrap, "t")
        settle(broker.address(), "t", 1)
        resource.prlimit(broker.pid(), resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
        stored, said = fill(broker, "t")
        assert said == "kafka_storage_error"
        assert values_of(broker.bootstrap, "t") == stored
        resource.prlimit(broker.pid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert send(broker.bootstrap, "t", [b"after"]) == [len(stored)]


def test_a_read_only_folder_is_one_line_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        with served(disk.folder / "data", "group") as broker:
            create(broker.bootstrap, "t")
            assert send(broker.bootstrap, "t", [b"a"]) == [0]
            assert broker.shut_down() == 0
        disk.read_only()
        started = start(disk.folder / "data")
        assert started.returncode == 1
        assert len(started.stderr.splitlines()) == 1
        assert "read-only" in started.stderr.lower()


def start(data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--data", str(data), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_folder_is_had_by_one_broker(tmp_path: Path) -> None:
    with served(tmp_path / "data", "group") as broker:
        second = start(tmp_path / "data")
        assert second.returncode == 1
        assert len(second.stderr.splitlines()) == 1
        create(broker.bootstrap, "t")
        assert send(broker.bootstrap, "t", [b"a"]) == [0]


# Files that were spoilt


def segments(broker: PenstockBroker) -> list[Path]:
    return sorted(broker.data().glob("topics/*/0.*.log"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@contextmanager
def spoilt(folder: Path) -> Iterator[tuple[PenstockBroker, list[bytes]]]:
    """A broker that was stopped cleanly, and what its one topic holds, in several segments."""
    with served(folder / "data", "group") as broker:
        create(broker.bootstrap, "t", segment_bytes="20000")
        values = [b"%03d" % number + os.urandom(1 * KB) for number in range(60)]
        assert send(broker.bootstrap, "t", values) == list(range(60))
        assert broker.shut_down() == 0
        assert len(segments(broker)) >= 3
        yield broker, values


def readable(bootstrap: str, offset: int, count: int) -> list[bytes | str]:
    """What a consumer gets from there on: values, then the name of an error."""
    consumer = Consumer(
        {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "check.crcs": True,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, offset)])
        found: list[bytes | str] = []
        over = time.monotonic() + 10
        while len(found) < count and time.monotonic() < over:
            message = consumer.poll(0.5)
            if message is not None:
                error = message.error()
                found.append(message.value() or b"" if error is None else str(error.name()))
                if error is not None:
                    break
        return found
    finally:
        consumer.close()


def fetched(broker: PenstockBroker, offset: int) -> str:
    """What the broker says to who wants to read from there."""
    with Wire(broker.address()) as wire:
        (part,) = fetch(wire, "t", offset=offset)
    return str(part.error_code.name)


def test_a_spoilt_payload_is_found_by_its_reader_and_harms_no_other(tmp_path: Path) -> None:
    with spoilt(tmp_path) as (broker, values):
        flip(segments(broker)[0], 64 + 100)
        broker.restart()
        assert readable(broker.bootstrap, 0, 1) != values[:1]
        assert readable(broker.bootstrap, 1, 59) == values[1:]
        assert send(broker.bootstrap, "t", [b"after"]) == [60]


def test_a_spoilt_head_hides_what_is_behind_it_up_to_where_reading_can_go_on(tmp_path: Path) -> None:
    with spoilt(tmp_path) as (broker, values):
        second = int(segments(broker)[1].name.split(".")[1])
        flip(segments(broker)[0], 64 + 8)  # the length of the first entry
        broker.restart()
        assert fetched(broker, 1) == "kafka_storage_error"
        assert readable(broker.bootstrap, second, 60 - second) == values[second:]
        assert send(broker.bootstrap, "t", [b"after"]) == [60]


def test_a_lost_segment_hides_only_its_own(tmp_path: Path) -> None:
    with spoilt(tmp_path) as (broker, values):
        first, second, *_ = (int(path.name.split(".")[1]) for path in segments(broker)[1:])
        segments(broker)[1].unlink()
        broker.restart()
        assert readable(broker.bootstrap, 0, first) == values[:first]
        assert [fetched(broker, place) for place in (first, first + 1)] == ["kafka_storage_error"] * 2
        assert readable(broker.bootstrap, second, 60 - second) == values[second:]
        assert send(broker.bootstrap, "t", [b"after"]) == [60]


def test_spoilt_indexes_are_made_anew(tmp_path: Path) -> None:
    with spoilt(tmp_path) as (broker, values):
        for path in broker.data().glob("topics/*/*.index"):
            path.write_bytes(path.read_bytes()[:-7])
        broker.restart()
        assert readable(broker.bootstrap, 0, 60) == values


def test_a_torn_tail_is_cut_and_its_positions_are_given_again(tmp_path: Path) -> None:
    with served(tmp_path / "data", "system") as broker:
        create(broker.bootstrap, "t")
        values = [b"%03d" % number for number in range(20)]
        assert send(broker.bootstrap, "t", values) == list(range(20))
        broker.kill()
        (last,) = segments(broker)
        os.truncate(last, last.stat().st_size - 3)
        broker.restart()
        assert values_of(broker.bootstrap, "t") == values[:19]
        assert send(broker.bootstrap, "t", [b"again"]) == [19]


# Clocks


class TurnedClock:
    """The machine's clocks, of which the one on the wall can be turned."""

    def __init__(self) -> None:
        self.turned_ms = 0

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.turned_ms


@pytest.mark.parametrize("turned_ms", [-86_400_000, 86_400_000], ids=["back", "ahead"])
def test_a_clock_that_is_turned_stops_nothing_and_loses_nothing(tmp_path: Path, turned_ms: int) -> None:
    clock = TurnedClock()
    with penstock.embedded(tmp_path / "data", clock=clock, fsync="group") as broker:
        create(broker.bootstrap, "t", retention_ms="604800000", message_timestamp_after_max_ms=str(2**63 - 1))
        create(broker.bootstrap, "stamped", message_timestamp_type="LogAppendTime")
        source = Producer({**QUICK, "bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
        source.init_transactions(LIMIT_S)
        source.begin_transaction()
        source.produce("t", b"inside")
        source.flush(LIMIT_S)
        assert send(broker.bootstrap, "stamped", [b"a"]) == [0]
        clock.turned_ms = turned_ms
        source.produce("t", b"still inside")
        source.commit_transaction(LIMIT_S)
        assert send(broker.bootstrap, "stamped", [b"b"]) == [1]
        with committing(broker.bootstrap) as member:
            member.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        clock.turned_ms = 0
        assert send(broker.bootstrap, "t", [b"after"], **{"enable.idempotence": True}) == [3]
        (found,) = read(broker.bootstrap, "t", "read_committed", 1)
        assert [value for _, value in found] == [b"inside", b"still inside", b"after"]
        assert values_of(broker.bootstrap, "stamped") == [b"a", b"b"]
        with committing(broker.bootstrap) as member:
            (place,) = member.committed([TopicPartition("t", 0)], LIMIT_S)
        assert place.offset == 2
    with penstock.embedded(tmp_path / "data", fsync="group") as broker:
        assert values_of(broker.bootstrap, "stamped") == [b"a", b"b"]


def test_a_clock_turned_back_far_refuses_what_seems_to_come_from_the_future(tmp_path: Path) -> None:
    clock = TurnedClock()
    with penstock.embedded(tmp_path / "data", clock=clock) as broker:
        create(broker.bootstrap, "t")
        clock.turned_ms = -2 * 3_600_000  # an hour is allowed
        assert send(broker.bootstrap, "t", [b"a"]) == ["INVALID_TIMESTAMP"]
        clock.turned_ms = -1_800_000
        assert send(broker.bootstrap, "t", [b"b"]) == [0]


@contextmanager
def committing(bootstrap: str) -> Iterator[Consumer]:
    member = Consumer({**QUICK, "bootstrap.servers": bootstrap, "group.id": "group"})
    try:
        yield member
    finally:
        member.close()


# Crowds


def open_files(pid: int) -> list[str]:
    """The files that a process has open."""
    found: list[str] = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


def test_ten_thousand_topics(tmp_path: Path) -> None:
    with served(tmp_path / "data", "group") as broker:
        names = [f"topic-{number:05}" for number in range(10_000)]
        for first in range(0, len(names), 500):
            create(broker.bootstrap, *names[first : first + 500])
        some = names[::2500]
        for name in some:
            assert send(broker.bootstrap, name, [name.encode()]) == [0]
        broker.kill()
        broker.restart()
        assert not [path for path in open_files(broker.pid()) if "/topics/" in path], "a start opens none of them"
        admin = AdminClient({**QUICK, "bootstrap.servers": broker.bootstrap})
        assert len(admin.list_topics(timeout=LIMIT_S).topics) == len(names)
        for name in some:
            assert values_of(broker.bootstrap, name) == [name.encode()]
            assert send(broker.bootstrap, name, [b"more"]) == [1]


def test_a_thousand_connections(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    module = api("api_versions", 0)
    try:
        with served(tmp_path / "data", "group") as broker, ExitStack() as opened:
            create(broker.bootstrap, "t")
            crowd = [opened.enter_context(Wire(broker.address())) for _ in range(1000)]
            for wire in crowd:
                assert wire.ask(module.ApiVersionsRequest()).error_code.value == 0
            assert send(broker.bootstrap, "t", [b"%d" % number for number in range(100)]) == list(range(100))
            assert len(values_of(broker.bootstrap, "t")) == 100
            for wire in crowd:
                wire.send(module.ApiVersionsRequest())
            for wire in crowd:
                assert wire.receive(), "everybody is still there, and answered"
            with socket.create_connection(broker.address(), LIMIT_S):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
