"""`verify` on embedded brokers: a topic and its copy, which is right, or wrong in one way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from penstock.client import Client
from penstock.consume.opening import Entry
from penstock.errors import ClosedError, ConfigError, GapError, UnknownTopicError
from penstock.replicate.verify import Verification, _written_by, verify
from penstock.wire.kafka.header import peek
from penstock.wire.property_filter import Match, PropertyCondition
from tests.broker.batches import batch
from tests.replicate.verify_kit import LIMIT_S, TIME_MS, Message, Topics, changed, cut, numbered, rows, send

ids = itertools.count()


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Topics, Topics]]:
    """Two brokers, and a client of each; they read in small pieces, which never align."""
    with (
        penstock.embedded() as here,
        penstock.embedded() as there,
        connect(here.url, partition_bytes_max=400) as source,
        connect(there.url, partition_bytes_max=900) as target,
    ):
        yield Topics(source), Topics(target)


@pytest.fixture
def source(sides: tuple[Topics, Topics]) -> Topics:
    return sides[0]


@pytest.fixture
def target(sides: tuple[Topics, Topics]) -> Topics:
    return sides[1]


def connect(url: str, **options: Any) -> Client:
    return penstock.connect(url, client_id=f"verify-{next(ids)}", **options)


def verified(source: Topics, target: Topics, topic: str, copy: str, **how: Any) -> Verification:
    return verify(source.client, target.client, topic, copy, timeout=LIMIT_S, **how)


def compared(source: Topics, target: Topics, first: list[Message], second: list[Message], **how: Any) -> Verification:
    """Two topics with these messages, in batches that never align."""
    return verified(source, target, source.filled(first, batch=7), target.filled(second, batch=5), **how)


def test_sides_are_read_in_pieces_that_do_not_align(source: Topics, target: Topics) -> None:
    messages = numbered(100)
    topics = (source, source.filled(messages, batch=7)), (target, target.filled(messages, batch=5))
    cuts = []
    for side, topic in topics:
        batches: Any = side.client.reader(topic, end="latest")
        cuts.append(set(itertools.accumulate(piece.num_rows for piece in batches)))
    assert min(map(len, cuts)) > 2
    assert cuts[0] & cuts[1] == {100}, "only their ends are at the same message"


def test_a_copy_in_other_batches_is_equal(source: Topics, target: Topics) -> None:
    topic = source.create(3)
    target.client.create_topic(topic, 3)
    messages = numbered(1000)
    for number in range(3):
        source.send(topic, messages[number:], number, batch_count_max=7)
        target.send(topic, messages[number:], number, batch_count_max=64, compression="zstd")
    found = verify(source.client, target.client, topic, timeout=LIMIT_S)
    assert found.equal
    assert found.difference is None
    assert [(each.partition, each.source_count, each.target_count) for each in found.partitions] == [
        (0, 1000, 1000),
        (1, 999, 999),
        (2, 998, 998),
    ]
    digests = [each.source_digest for each in found.partitions]
    assert digests == [each.target_digest for each in found.partitions]
    assert len(set(digests)) == 3
    names = f"{topic} at {source.client.url} and {topic} at {target.client.url}"
    assert str(found).splitlines() == [
        f"{names} are equal in 3 partitions: 2,997 messages",
        f"  partition 0: 1,000 messages, digest {digests[0]}",
        f"  partition 1: 999 messages, digest {digests[1]}",
        f"  partition 2: 998 messages, digest {digests[2]}",
    ]


CHANGES = [
    ("key", {"key": b"K70"}),
    ("key", {"key": None}),
    ("value", {"value": b"v7\x00"}),
    ("value", {"value": None}),
    ("properties", {"properties": (("n", b"71"),)}),
    ("properties", {"properties": (("N", b"70"),)}),
    ("properties", {"properties": (("n", None),)}),
    ("event_time", {"time_ms": TIME_MS + 71}),
]


@pytest.mark.parametrize(("field", "fields"), CHANGES)
def test_one_byte_is_found(source: Topics, target: Topics, field: str, fields: dict[str, Any]) -> None:
    messages = numbered(100)
    found = compared(source, target, messages, changed(messages, 70, **fields))
    assert not found.equal
    told = found.difference
    assert told is not None
    assert (told.partition, told.index, told.field) == (0, 70, field)
    assert (told.source_position, told.target_position) == (70, 70)
    assert told.source != told.target


@pytest.mark.parametrize("field", ["key", "value"])
def test_null_is_not_empty(source: Topics, target: Topics, field: str) -> None:
    messages = numbered(20)
    null, empty = changed(messages, 3, **{field: None}), changed(messages, 3, **{field: b""})
    told = compared(source, target, null, empty).difference
    assert told is not None
    assert (told.index, told.field, told.source, told.target) == (3, field, "null", "b''")
    assert compared(source, target, null, null).equal
    assert compared(source, target, empty, empty).equal


def test_properties_have_an_order(source: Topics, target: Topics) -> None:
    pairs = (("a", b"1"), ("b", b"2"))
    messages = numbered(10, properties=pairs)
    told = compared(source, target, messages, changed(messages, 6, properties=pairs[::-1])).difference
    assert told is not None
    assert (told.index, told.field) == (6, "properties")
    assert (told.source, told.target) == ("property 1, 'a' = b'1'", "property 1, 'b' = b'2'")


def test_messages_have_an_order(source: Topics, target: Topics) -> None:
    messages = numbered(50)
    told = compared(source, target, messages, [*messages[:30], messages[31], messages[30], *messages[32:]]).difference
    assert told is not None
    assert (told.index, told.field, told.source, told.target) == (30, "key", "b'k30'", "b'k31'")


def test_a_missing_tail_is_told(source: Topics, target: Topics) -> None:
    messages = numbered(50)
    found = compared(source, target, messages, messages[:30])
    assert (found.source_count, found.target_count) == (50, 30)
    assert "differ in 1 of 1 partition: 50 and 30 messages" in str(found)
    assert "after 30 equal messages the target ends, and the source has 20 more, from position 30" in str(found)


def test_what_is_too_much_is_told(source: Topics, target: Topics) -> None:
    messages = numbered(50)
    found = compared(source, target, messages, [*messages, messages[0]])
    assert "after 50 equal messages the source ends, and the target has 1 more, from position 50" in str(found)
    again = compared(source, target, messages, [*messages[:21], messages[20], *messages[21:]])
    assert again.difference is not None
    assert again.difference.index == 21


def test_empty_topics_are_equal(source: Topics, target: Topics) -> None:
    found = compared(source, target, [], [])
    assert found.equal
    assert found.source_count == found.target_count == 0
    assert not compared(source, target, [], numbered(1)).equal
    assert not compared(source, target, numbered(1), []).equal


def test_every_partition_that_differs_is_told(source: Topics, target: Topics) -> None:
    topic, copy = source.create(30), target.create(30)
    for number in range(30):
        source.send(topic, numbered(5), number)
        target.send(copy, numbered(4 if number >= 5 else 5), number)
    found = verified(source, target, topic, copy)
    lines = str(found).splitlines()
    assert "differ in 25 of 30 partitions: 150 and 125 messages" in lines[0]
    assert lines[1].startswith("  partition 5: 5 messages at the source")
    assert lines[-1] == "  and 5 more"
    assert len(lines) == 22
    assert found.difference is not None
    assert found.difference.partition == 5


@pytest.mark.parametrize("given", ["region in us, eu", PropertyCondition.parse("region in us, eu")])
def test_with_a_filter_the_target_has_what_matches(
    source: Topics, target: Topics, given: str | PropertyCondition
) -> None:
    regions = itertools.cycle(["us", "eu", "asia"])
    messages = [message._replace(properties=(("region", next(regions).encode()),)) for message in numbered(90)]
    matching = [message for message in messages if message.properties[0][1] != b"asia"]
    found = compared(source, target, messages, matching, filter=given)
    assert found.equal
    assert (found.source_count, found.target_count) == (60, 60)
    assert "are equal in 1 partition: 60 messages with region in eu, us" in str(found)
    assert not compared(source, target, messages, messages, filter=given).equal, "the target is not filtered"
    assert not compared(source, target, messages, matching[1:], filter=given).equal


def test_a_filter_that_nothing_matches_leaves_nothing(source: Topics, target: Topics) -> None:
    found = compared(source, target, numbered(500), [], filter="region = us")
    assert found.equal
    assert found.source_count == 0


def test_only_what_was_committed_is_compared(source: Topics, target: Topics) -> None:
    messages = numbered(60)
    topic, copy = source.create(), target.create()
    for start in range(0, 60, 20):
        transact(source, topic, messages[start : start + 20], gone=numbered(7))
        target.send(copy, messages[start : start + 20], batch_count_max=3)
    found = verified(source, target, topic, copy)
    assert found.equal
    assert found.source_count == 60
    transact(target, copy, [], gone=numbered(3))
    assert verified(source, target, topic, copy).equal
    source.send(topic, [messages[0]])
    transact(target, copy, [messages[1]], gone=numbered(3))
    told = verified(source, target, topic, copy).difference
    assert told is not None
    assert (told.index, told.source_position, told.target_position) == (60, 87, 68)


def transact(topics: Topics, topic: str, kept: list[Message], gone: list[Message]) -> None:
    """One transaction that is aborted, and one that is committed."""
    with topics.client.producer(topic, transactional_id=f"tx-{next(ids)}") as producer:
        with suppress(ZeroDivisionError), producer.transaction():
            for message in gone:
                send(producer.send, message)
            producer.flush(LIMIT_S)
            raise ZeroDivisionError
        with producer.transaction():
            for message in kept:
                send(producer.send, message)


def test_an_open_transaction_ends_what_is_compared(source: Topics, target: Topics) -> None:
    messages = numbered(30)
    topic, copy = source.filled(messages), target.filled(messages)
    with source.client.producer(topic, transactional_id=f"tx-{next(ids)}") as producer, producer.transaction():
        producer.send(b"not yet").result(LIMIT_S)
        assert verified(source, target, topic, copy).equal
    assert not verified(source, target, topic, copy).equal


def test_ranges_are_those_of_readers(source: Topics, target: Topics) -> None:
    messages = numbered(100)
    topic, copy = source.create(2), target.create(2)
    for number in range(2):
        source.send(topic, messages, number, batch_count_max=7)
        target.send(copy, messages[20:] if number else messages[10:], number, batch_count_max=9)
    assert not verified(source, target, topic, copy).equal
    starts = {0: 10, 1: 20}
    assert verified(source, target, topic, copy, source_start=starts).source_count == 90 + 80
    assert verified(source, target, topic, copy, source_start=starts).equal
    ends = {0: 33, 1: 34}
    found = verified(source, target, topic, copy, source_start=starts, source_end=ends, target_end={0: 23, 1: 14})
    assert found.equal
    assert [each.source_count for each in found.partitions] == [23, 14]
    only = verified(source, target, topic, copy, source_start={1: 25}, target_start=5)
    assert only.equal
    assert [each.partition for each in only.partitions] == [1]
    only = verified(source, target, topic, copy, partitions=iter([0]), source_start=50, target_start={0: 40})
    assert [(each.partition, each.source_count) for each in only.partitions] == [(0, 50)]
    assert verified(source, target, topic, copy, source_start="latest", target_start="latest").source_count == 0
    since = datetime.fromtimestamp(TIME_MS / 1000, UTC) + timedelta(milliseconds=60)
    timely = verified(source, target, topic, copy, source_start=since, target_start=since)
    assert timely.equal
    assert timely.source_count == 80


class Eventful(Client):
    """A client with which something happens to a topic whenever somebody begins to read its messages."""

    happens: Callable[[Topics, str], None]

    def reader(self, topic: str, *places: Any, **options: Any) -> Any:
        if options.get("unit") == "message":
            self.happens(Topics(self), topic)
        return super().reader(topic, *places, **options)


def eventful(topics: Topics, happens: Callable[[Topics, str], None]) -> Topics:
    client = Eventful(topics.client._core)
    client.happens = happens
    return Topics(client)


def test_what_comes_later_is_not_compared(source: Topics, target: Topics) -> None:
    def more(topics: Topics, topic: str) -> None:
        topics.send(topic, numbered(3, key=b"late"))

    messages = numbered(40)
    topic, copy = source.filled(messages), target.filled(messages)
    found = verified(eventful(source, more), eventful(target, more), topic, copy)
    assert found.equal
    assert found.source_count == 40
    assert verified(source, target, topic, copy, source_start=40, target_start=40).source_count == 3


def test_what_is_deleted_meanwhile_is_no_difference(source: Topics, target: Topics) -> None:
    def less(topics: Topics, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": topics.client.url.removeprefix("kafka://")})
        admin.delete_records([TopicPartition(topic, 0, 25)])[TopicPartition(topic, 0)].result(LIMIT_S)

    messages = numbered(40)
    topic, copy = source.filled(messages), target.filled(messages)
    with pytest.raises(GapError, match="positions 0 to 24 are missing"):
        verified(eventful(source, less), target, topic, copy)
    assert verified(source, target, topic, copy, target_start=25).equal


def test_times_of_a_log_are_not_compared(source: Topics, target: Topics) -> None:
    messages = numbered(50)
    topic = source.filled(messages, batch=7, message_timestamp_type="LogAppendTime")
    found = verified(source, target, topic, target.filled(messages, batch=9))
    assert found.equal
    assert found.partitions[0].untimed == 50
    assert str(found).endswith("event times of 50 messages were not compared: a log gave them, and no sender")
    assert not verified(source, target, topic, target.filled(changed(messages, 4, value=b"")), times="event").equal


def test_times_may_be_ignored(source: Topics, target: Topics) -> None:
    messages = numbered(50)
    assert compared(source, target, messages, numbered(50, time_ms=TIME_MS), times="ignore").equal
    assert not compared(source, target, messages, numbered(50, time_ms=TIME_MS)).equal


def test_the_latest_messages_of_keys_are_compared(source: Topics, target: Topics) -> None:
    messages = [message._replace(key=b"k%d" % (n % 9)) for n, message in enumerate(numbered(100))]
    messages += [Message(b"gone", b"v"), Message(b"k3", b"new"), Message(b"gone", None), Message(b"k4", b"")]
    compacted = [message for n, message in enumerate(messages) if n >= 91 and message.key != b"gone"]
    topic, copy = source.filled(compacted), target.filled(messages, batch=7)
    assert not verified(source, target, topic, copy).equal
    found = verified(source, target, topic, copy, by_key=True)
    assert found.equal
    assert found.source_count == found.target_count == 9
    assert "9 messages, the latest of each key" in str(found)
    target.send(copy, [Message(b"k5", None)])
    told = verified(source, target, topic, copy, by_key=True).difference
    assert told is not None
    assert (told.field, told.source) == ("key", "b'k5'")


def test_messages_without_a_key_have_no_later_one(source: Topics, target: Topics) -> None:
    messages = numbered(30, key=None)
    assert compared(source, target, messages, messages, by_key=True).source_count == 30
    assert not compared(source, target, messages, messages[1:], by_key=True).equal


def test_messages_of_some_producers_are_left_out(source: Topics, target: Topics) -> None:
    messages = numbered(60)
    topic, copy = source.create(), target.create()
    for start in range(0, 60, 10):
        source.send(topic, messages[start : start + 10], batch_count_max=3)
    target.send(copy, [*messages[:20], *messages[30:40], *messages[50:]], batch_count_max=4)
    target.send(copy, numbered(5, key=b"of others"))
    writers = producers_of(source, topic)
    assert len(writers) == 6
    skipped, only = {0: {writers[2], writers[4]}}, {0: producers_of(target, copy)[:1]}
    found = verified(source, target, topic, copy, skip_producers=skipped, only_producers=only)
    assert found.equal
    assert found.source_count == 40
    assert not verified(source, target, topic, copy, skip_producers=skipped).equal
    assert not verified(source, target, topic, copy, only_producers=only).equal
    nobody = verified(source, target, topic, copy, skip_producers={0: writers}, only_producers={0: ()})
    assert nobody.equal
    assert nobody.source_count == 0


def producers_of(topics: Topics, topic: str) -> list[int]:
    """The ids of those who wrote to a topic, in the order in which they began."""
    entries: Any = topics.client.reader(topic, end="latest", unit="batch")
    return list(dict.fromkeys(entry.header.producer for entry in entries))


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("kept", [True, False])
def test_messages_are_told_apart_by_who_wrote_them_wherever_they_are_cut(size: int, kept: bool) -> None:
    writers = {0: 7, 3: 8, 4: 7, 10: 9, 11: 8}
    entries = (entry(begin, end, writers[begin]) for begin, end in itertools.pairwise([*writers, 20]))
    found = _written_by({7, 9}, kept, cut(rows(numbered(20)), [size]), entries)
    theirs = {0, 1, 2, *range(4, 10), 10}
    expected = sorted(theirs) if kept else sorted(set(range(20)) - theirs)
    assert [position for piece in found for position in piece.column("position").to_pylist()] == expected


def entry(begin: int, end: int, producer: int) -> Entry:
    header = peek(batch(end - begin, producer))
    return Entry("t", 0, header, memoryview(b""), begin, end, Match.ALL)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"filter": "region =="}, "property filter, character 9"),
    ({"filter": b"region = us"}, "filter: expected text such as region in us, eu, found bytes"),
    ({"times": "log"}, "times: expected one of event, ignore, found 'log'"),
    ({"source_start": "first"}, "source_start: expected earliest, latest, a position"),
    ({"source_end": None}, "source_end: expected earliest, latest, a position"),
    ({"target_start": -1}, "target_start: a position is 0 or more, not -1"),
    ({"target_end": {}}, "target_end: expected at least one partition"),
    ({"source_start": {0: 1}, "target_start": {1: 1}}, r"name different partitions, \(0,\) and \(1,\): name the same"),
    ({"source_start": {0: 1}, "source_end": {1: 1}}, "name different partitions"),
    ({"partitions": []}, "partitions: expected at least one"),
    ({"partitions": 1}, "partitions: expected numbers, found 1"),
    ({"partitions": iter([0, 0])}, "partitions: each is named once"),
    ({"source_start": 9, "source_end": 3, "partitions": [0]}, "the end, 3, lies before the start, 9"),
    ({"target_topic": ""}, "target: expected the name of a topic, found ''"),
]


@pytest.mark.parametrize(("how", "told"), REFUSALS)
def test_what_cannot_be_compared_is_refused(source: Topics, target: Topics, how: dict[str, Any], told: str) -> None:
    topic = source.create(2)
    target.client.create_topic(topic, 2)
    with pytest.raises(ConfigError, match=told):
        verify(source.client, target.client, topic, **how)


def test_topics_with_different_partitions_are_refused(source: Topics, target: Topics) -> None:
    topic, copy = source.create(2), target.create(3)
    with pytest.raises(ConfigError, match=rf"{topic} at \S+ has 2 partitions and {copy} at \S+ has 3: a copy is"):
        verified(source, target, topic, copy)


def test_unknown_topics_and_partitions_are_named(source: Topics, target: Topics) -> None:
    topic, copy = source.create(2), target.create(2)
    with pytest.raises(UnknownTopicError, match="nowhere"):
        verified(source, target, "nowhere", copy)
    with pytest.raises(UnknownTopicError, match="nowhere"):
        verified(source, target, topic, "nowhere")
    with pytest.raises(UnknownTopicError, match="has 2 partitions, and no partition 5"):
        verified(source, target, topic, copy, partitions=[0, 5])


def test_readers_end_with_it(source: Topics, target: Topics) -> None:
    messages = numbered(20)
    topic, copy = source.filled(messages), target.filled(messages)
    with connect(source.client.url) as first, connect(target.client.url) as second:
        verify(first, second, topic, copy, by_key=True, skip_producers={0: {7}})
        with pytest.raises(TimeoutError):
            verify(first, second, topic, copy, target_end=21, timeout=0.05)
        assert "0 readers" in repr(first)
        assert "0 readers" in repr(second)
        second.close()
        with pytest.raises(ClosedError):
            verify(first, second, topic, copy)
        assert "0 readers" in repr(first)
