"""kafka-python: produce, consume, groups, transactions, and the widest administration of the Python clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, MemberToRemove, NewTopic
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.compat.confluent import TIME_MS, create
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides, shared_out, text, until

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
COMMITTED = "read_committed"


@contextmanager
def producer(side: Side, **settings: Any) -> Iterator[KafkaProducer]:
    source = KafkaProducer(bootstrap_servers=side.bootstrap, **settings)
    try:
        yield source
    finally:
        source.close(timeout=5)


@contextmanager
def consumer(side: Side, *topics: str, **settings: Any) -> Iterator[KafkaConsumer]:
    base = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, "enable_auto_commit": False, "group_id": None}
    source = KafkaConsumer(*topics, bootstrap_servers=side.bootstrap, **{**base, **settings})
    try:
        yield source
    finally:
        source.close()


@contextmanager
def admin(side: Side) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=side.bootstrap)
    try:
        yield client
    finally:
        client.close()


def send(source: KafkaProducer, topic: str, values: Sequence[bytes], **more: Any) -> list[Any]:
    receipts = [source.send(topic, value, **more) for value in values]
    return [attempt(partial(_offset, receipt)) for receipt in receipts]


def _offset(receipt: Any) -> int:
    offset: int = receipt.get(LIMIT_S).offset
    return offset


def take(source: KafkaConsumer, count: int, limit_s: float = LIMIT_S) -> list[Any]:
    taken: list[Any] = []
    over = time.monotonic() + limit_s
    while len(taken) < count and time.monotonic() < over:
        for records in source.poll(timeout_ms=200, max_records=count - len(taken)).values():
            taken += records
    return taken


def read(side: Side, topic: str, **settings: Any) -> list[Any]:
    """Partition 0 up to where it ended when asked, for readers of this kind."""
    with consumer(side, **settings) as source:
        place = TopicPartition(topic, 0)
        source.assign([place])
        source.seek(place, 0)
        end = source.end_offsets([place])[place]
        found: list[Any] = []
        over = time.monotonic() + LIMIT_S
        while source.position(place) < end:
            assert time.monotonic() < over, f"{topic} was not read to its end {end}"
            found += take(source, 1000, 0.1)
        return found


def attempt(call: Callable[[], Any]) -> Any:
    """What comes of it, or the name of its error."""
    try:
        return call()
    except KafkaError as error:
        return {"error": type(error).__name__}


def shown(record: Any) -> Outcome:
    return {
        "place": [record.partition, record.offset],
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
        "time": [record.timestamp_type, record.timestamp],
    }


def values(records: Sequence[Any]) -> list[str | None]:
    return [text(record.value) for record in records]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_kafka_python_reads_what_it_sent(sides: Sides, codec: str | None) -> None:
    messages: list[dict[str, Any]] = [
        {"value": b"plain"},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": b""},
        {"value": b"\x00\xff", "key": b"\x00", "headers": [("a", b"1"), ("a", b"2"), ("", b"")]},
        {"value": b"v" * 20_000, "key": b"k"},
    ]

    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        with producer(side, compression_type=codec) as source:
            sent = [
                source.send(topic, timestamp_ms=TIME_MS + number, partition=0, **message)
                for number, message in enumerate(messages)
            ]
            places = [each.get(LIMIT_S).offset for each in sent]
        return {"places": places, "read": [shown(record) for record in read(side, topic)]}

    told = sides.alike(script)
    assert told["places"] == list(range(len(messages)))
    assert [each["value"] for each in told["read"]][:4] == ["plain", None, "", "\x00\\xff"]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_kafka_python_acknowledgements(sides: Sides, acks: Any) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        with producer(side, acks=acks, enable_idempotence=False) as source:
            sent = send(source, topic, [b"%d" % n for n in range(20)])
        found = until(lambda: read(side, topic), lambda records: len(records) == 20)
        # With acks=0 no broker tells an offset: the client makes one up from the message's place in its batch.
        return {"sent": len(sent) if acks == 0 else sent, "read": values(found)}

    assert sides.alike(script)["read"] == [str(n) for n in range(20)]


def test_kafka_python_is_told_what_is_refused(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        small = create(side, "small", config={"max.message.bytes": "2000"})
        with producer(side) as source:
            return {
                "too large": send(source, small, [b"x" * 3000]),
                "after it": send(source, small, [b"x"]),
            }

    assert "error" in sides.alike(script)["too large"][0]


def test_kafka_python_finds_places(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, place = create(side, "t"), TopicPartition(side.name("t"), 0)
        with producer(side) as source:
            for n in range(30):
                source.send(topic, b"%d" % n, timestamp_ms=TIME_MS + 1000 * n).get(LIMIT_S)
        with consumer(side, max_partition_fetch_bytes=100) as reader:
            reader.assign([place])
            times = [0, TIME_MS + 500, TIME_MS + 12_000, TIME_MS + 29_001]
            found = [reader.offsets_for_times({place: time_ms})[place] for time_ms in times]
            told: Outcome = {
                "by time": [each and [each.offset, each.timestamp] for each in found],
                "first": list(reader.beginning_offsets([place]).values()),
                "end": list(reader.end_offsets([place]).values()),
            }
            reader.seek(place, 27)
            told["from 27"] = values(take(reader, 3))
            reader.seek_to_end(place)
            told["at the end"] = reader.position(place)
            reader.seek(place, 1000)
            told["beyond"] = values(take(reader, 1))
        return told

    told = sides.alike(script)
    assert told["by time"][:3] == [[0, TIME_MS], [1, TIME_MS + 1000], [12, TIME_MS + 12_000]]
    assert told["from 27"] == ["27", "28", "29"]


class Member:
    """A consumer of a group in a thread of its own: its joining blocks, and two of them wait for each other."""

    def __init__(self, side: Side, topic: str, **settings: Any) -> None:
        self.held: list[int] = []
        self._leave = threading.Event()
        self._run = partial(self._poll, side, topic, {**QUICK, "group_id": side.name("group"), **settings})
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _poll(self, side: Side, topic: str, settings: dict[str, Any]) -> None:
        with consumer(side, topic, **settings) as source:
            while not self._leave.is_set():
                source.poll(timeout_ms=100)
                self.held = [each.partition for each in source.assignment()]


def settle(members: Sequence[Member], partitions: int) -> list[int]:
    """How many each holds once they share all."""
    held = until(lambda: [member.held for member in members], lambda each: shared_out(each, partitions))
    return sorted(map(len, held))


# It may share partitions before it knows the topic, and looks again only when what it knows is too old.
QUICK: dict[str, Any] = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000, "metadata_max_age_ms": 500}


def test_kafka_python_groups(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 4)
        told: Outcome = {}
        with Member(side, topic) as one:
            told["alone"] = settle([one], 4)
            with Member(side, topic) as two:
                told["two"] = settle([one, two], 4)
            told["left"] = settle([one], 4)
        return told

    assert sides.alike(script) == {"alone": [4], "two": [2, 2], "left": [4]}


def test_kafka_python_commits(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 4)
        with producer(side) as source:
            send(source, topic, [b"a"], partition=0)
        with consumer(side, topic, group_id=side.name("group"), **QUICK) as one:
            read = len(take(one, 1))
            one.commit({TopicPartition(topic, 2): OffsetAndMetadata(7, "note", -1)})
            committed = [one.committed(TopicPartition(topic, number)) for number in range(4)]
        return {"read": read, "committed": committed}

    assert sides.alike(script) == {"read": 1, "committed": [None, None, 7, None]}


def test_kafka_python_static_members(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, group = create(side, "t", 2), side.name("group")
        told: Outcome = {}
        with admin(side) as client:
            with Member(side, topic, group_instance_id="a") as one:
                told["joined"] = settle([one], 2)
            described = client.describe_groups([group])[group]
            told["after it closed"] = [each["group_instance_id"] for each in described["members"]]
            removed = client.remove_group_members(group, [MemberToRemove(group_instance_id="a")])
            told["removed"] = [error.__name__ for error in removed.values()]
            told["again"] = attempt(
                lambda: [
                    error.__name__
                    for error in client.remove_group_members(group, [MemberToRemove(group_instance_id="a")]).values()
                ]
            )
            told["state"] = client.describe_groups([group])[group]["group_state"]
        return told

    sides.alike(script)


def test_kafka_python_transactions(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        with producer(side, transactional_id=side.name("tx")) as source:
            source.init_transactions()
            source.begin_transaction()
            send(source, topic, [b"a"])
            source.send_offsets_to_transaction(
                {TopicPartition(topic, 0): OffsetAndMetadata(5, "", -1)}, side.name("group")
            )
            source.commit_transaction()
            source.begin_transaction()
            send(source, topic, [b"b"])
            open_one = values(read(side, topic, isolation_level=COMMITTED))
            source.abort_transaction()
            source.begin_transaction()
            send(source, topic, [b"c"])
            source.commit_transaction()
        with consumer(side, group_id=side.name("group")) as reader:
            committed = reader.committed(TopicPartition(topic, 0))
        return {
            "open": open_one,
            "committed": values(read(side, topic, isolation_level=COMMITTED)),
            "all": values(read(side, topic)),
            "offset": committed,
        }

    assert sides.alike(script) == {"open": ["a"], "committed": ["a", "c"], "all": ["a", "b", "c"], "offset": 5}


def test_transactions_are_listed_and_described(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, name = create(side, "t", 2), side.name("tx")

        def states(client: KafkaAdminClient) -> list[Any]:
            listed = [each for found in client.list_transactions().values() for each in found]
            return [str(each.state) for each in listed if each.transactional_id == name]

        def described(client: KafkaAdminClient) -> Any:
            found = client.describe_transactions([name])[name]
            return [str(found.state), found.transaction_timeout_ms, sorted(map(str, found.topic_partitions))]

        def producers(client: KafkaAdminClient) -> Any:
            place = TopicPartition(topic, 0)
            return [
                [each.producer_epoch, each.last_sequence, each.current_transaction_start_offset]
                for each in client.describe_producers([place])[place].active_producers
            ]

        with admin(side) as client, producer(side, transactional_id=name, transaction_timeout_ms=30_000) as source:
            told: Outcome = {"unknown": attempt(lambda: described(client))}
            source.init_transactions()
            told["new"] = [states(client), attempt(lambda: described(client))]
            source.begin_transaction()
            send(source, topic, [b"a", b"b"], partition=0)
            told["open"] = [states(client), described(client), producers(client)]
            source.commit_transaction()
            told["done"] = until(
                lambda: [states(client), described(client), producers(client)],
                lambda found: "complete" in found[0][0].lower(),
            )
            told["hanging"] = client.find_hanging_transactions()
        return told

    told = sides.alike(script)
    assert told["open"][2][0][2] == 0


def test_kafka_python_administers_groups(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, group = create(side, "t", 3), side.name("group")
        places = [TopicPartition(topic, number) for number in range(3)]

        def offsets(client: KafkaAdminClient) -> Any:
            found = client.list_group_offsets({group: None})[group]
            return sorted([place.partition, each.offset, each.metadata] for place, each in found.items())

        with admin(side) as client:
            told: Outcome = {}
            altered = client.alter_group_offsets(group, {place: OffsetAndMetadata(3, "m", -1) for place in places})
            told["altered"] = sorted(error.__name__ for error in altered.values())
            told["offsets"] = offsets(client)
            deleted = client.delete_group_offsets(group, places[:1])
            told["deleted"] = [error.__name__ for error in deleted.values()]
            told["left"] = offsets(client)
            with Member(side, topic) as member:
                settle([member], 3)
                subscribed = client.delete_group_offsets(group, places[1:2])
                told["of a subscribed topic"] = [error.__name__ for error in subscribed.values()]
                told["listed"] = sorted(
                    [each["group_state"], each["protocol_type"]]
                    for each in client.list_groups()
                    if each["group_id"] == group
                )
                told["deleted too soon"] = [str(error) for error in client.delete_groups([group]).values()]
            told["deleted group"] = [str(error) for error in client.delete_groups([group]).values()]
        return told

    told = sides.alike(script)
    assert told["left"] == [[1, 3, "m"], [2, 3, "m"]]


def test_kafka_python_administers_topics(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = side.name("t")
        with admin(side) as client:
            made = client.create_topics([NewTopic(topic, 2, 1)], raise_errors=False)
            again = attempt(lambda: client.create_topics([NewTopic(topic, 2, 1)]))
            until(lambda: topic in client.list_topics(), bool)
            parts = client.describe_topic_partitions([topic])["topics"][0]
            (described,) = client.describe_topics([topic])
            return {
                "made": [
                    [each["name"], each["error_code"], each["num_partitions"], each["replication_factor"]]
                    for each in made["topics"]
                ],
                "again": again,
                "partitions": sorted(
                    [each["partition_index"], each["leader_id"], each["error_code"]] for each in parts["partitions"]
                ),
                "described": sorted([each["partition_index"], each["leader_id"]] for each in described["partitions"]),
                "cluster": sorted(client.describe_cluster()),
                "deleted": [each["error_code"] for each in client.delete_topics([topic])["topics"]],
            }

    assert sides.alike(script)["partitions"] == [[0, 1, 0], [1, 1, 0]]
