"""What a real Kafka does with batches that no official client sends: with a claim, or copied from another topic.

`docs/decisions/0002-claims-on-kafkas-wire.md` stands on these.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import aiokafka
import pytest

from brokers.kafka import KafkaCluster
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, UNSTAMPED, EntryFlag, PropertyClaim
from penstock.wire.kafka.claim import NAME
from penstock.wire.kafka.header import parse_header, peek, rewrite_header, split
from penstock.wire.kafka.layout import CLAIM, CODEC_NUMBERS, LENGTH_END, LOG_APPEND_TIME, MAGIC_AT
from penstock.wire.kafka.records import decode
from tests.kafka_raw import Produced, produce
from tests.vectors.kafka import topics
from tests.vectors.kafka.official import consume
from tests.vectors.kafka.topics import closing_time_ms, create_topics, segment_path, wait_cleaned
from tests.vectors.kafka.vector import Read as VectorRead
from tests.vectors.kafka.vector import Vector, load_all
from tests.wire.kafka.entries import read, with_fields, write
from tests.wire.kafka.messages import Read, Sent, expected

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
NOON_MS = 1_700_000_000_000
MESSAGES = [
    Sent(b"first " * 20, b"a", {"region": "eu", "city": "oslo", "other": b"\xff"}, NOON_MS),
    Sent(b"second " * 20, None, {"region": "eu"}, NOON_MS + 7),
    Sent(None, b"b", {"region": "eu", "city": None}, NOON_MS - 7),
]
SAME = PropertyClaim(same={"region": "eu"}, listed={"city": frozenset({"oslo", None})})
SAME_TEXT = b'{"same":{"region":"eu"},"listed":{"city":["oslo",null]}}'

each_codec = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.value)


def new_topic(kafka: KafkaCluster, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topics(kafka, {topic: {"retention.ms": "-1", **settings}})
    return topic


def store(kafka: KafkaCluster, topic: str, batch: bytes) -> Produced:
    """Send one batch, which must be taken."""
    produced = produce(kafka.address(1), topic, batch)
    assert produced.error == 0, produced
    return produced


def stored(kafka: KafkaCluster, topic: str) -> list[bytes]:
    """The batches of a topic as they are on the disk."""
    return [bytes(entry) for entry in split(segment_path(kafka, topic).read_bytes())]


def kept_part(batch: bytes) -> tuple[bytes, bytes]:
    """What a broker has no reason to change: all but base offset and leader epoch."""
    return batch[8:LENGTH_END], batch[MAGIC_AT:]


def shown(messages: list[Read]) -> list[Read]:
    """The same messages as one sees them who knows nothing of claims."""
    first = messages[0]
    return [first._replace(properties=((NAME, SAME_TEXT), *first.properties)), *messages[1:]]


def confluent_read(bootstrap: str, topic: str) -> list[Read]:
    return [Read(at, time, sent.key, sent.value, sent.headers) for at, time, sent in consume(bootstrap, topic)]


def aiokafka_read(bootstrap: str, topic: str) -> list[Read]:
    async def read_all() -> list[Read]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            found: list[Read] = []
            while await consumer.position(partition) < end:
                m = await asyncio.wait_for(consumer.getone(partition), 30)
                found.append(Read(m.offset, m.timestamp, m.key, m.value, tuple(m.headers)))
            return found

    return asyncio.run(read_all())


@each_codec
def test_a_claimed_batch_is_stored_as_it_is(real_kafka: KafkaCluster, codec: Codec) -> None:
    topic = new_topic(real_kafka)
    batch = write(MESSAGES, codec, claim=SAME)
    assert store(real_kafka, topic, batch).base_offset == 0
    assert store(real_kafka, topic, batch).base_offset == len(MESSAGES)
    found = stored(real_kafka, topic)
    assert [kept_part(each) for each in found] == [kept_part(batch)] * 2
    for at, each in enumerate(found):
        assert parse_header(each).attributes == CLAIM | CODEC_NUMBERS[codec]
        assert peek(each).claim == SAME
        assert read(decode(each)) == expected(MESSAGES, at * len(MESSAGES))


@pytest.mark.parametrize("consumer", [confluent_read, aiokafka_read])
@each_codec
def test_official_consumers_see_a_claim_as_one_more_header(
    real_kafka: KafkaCluster, codec: Codec, consumer: Callable[[str, str], list[Read]]
) -> None:
    topic = new_topic(real_kafka)
    store(real_kafka, topic, write(MESSAGES, codec, claim=SAME))
    assert consumer(real_kafka.bootstrap, topic) == shown(expected(MESSAGES))


@each_codec
def test_log_append_time_makes_a_claim_unknown(real_kafka: KafkaCluster, codec: Codec) -> None:
    topic = new_topic(real_kafka, topics.LOG_APPEND_TIME)
    produced = store(real_kafka, topic, write(MESSAGES, codec, claim=SAME))
    (found,) = stored(real_kafka, topic)
    assert parse_header(found).attributes == LOG_APPEND_TIME | CODEC_NUMBERS[codec]
    assert peek(found).claim == NO_CLAIM
    timed = [each._replace(time_ms=produced.log_append_time_ms) for each in expected(MESSAGES)]
    assert read(decode(found)) == shown(timed)


@pytest.mark.parametrize(
    ("sent", "topic_codec", "kept"),
    [
        (Codec.LZ4, "gzip", Codec.GZIP),
        (Codec.NONE, "zstd", Codec.ZSTD),
        (Codec.GZIP, "snappy", Codec.SNAPPY),
        (Codec.ZSTD, "lz4", Codec.LZ4),
        (Codec.SNAPPY, "uncompressed", Codec.NONE),
    ],
)
def test_another_codec_on_the_topic_makes_a_claim_unknown(
    real_kafka: KafkaCluster, sent: Codec, topic_codec: str, kept: Codec
) -> None:
    topic = new_topic(real_kafka, {"compression.type": topic_codec})
    store(real_kafka, topic, write(MESSAGES, sent, claim=SAME))
    (found,) = stored(real_kafka, topic)
    assert parse_header(found).attributes == CODEC_NUMBERS[kept]
    assert peek(found).claim == NO_CLAIM
    assert read(decode(found)) == shown(expected(MESSAGES))


@each_codec
def test_the_same_codec_on_the_topic_keeps_a_claim(real_kafka: KafkaCluster, codec: Codec) -> None:
    topic = new_topic(real_kafka, {"compression.type": "uncompressed" if codec is Codec.NONE else codec.value})
    batch = write(MESSAGES, codec, claim=SAME)
    store(real_kafka, topic, batch)
    (found,) = stored(real_kafka, topic)
    assert kept_part(found) == kept_part(batch)


def test_compaction_keeps_a_claim_only_with_all_its_messages(real_kafka: KafkaCluster) -> None:
    def message(value: bytes, key: bytes, time_ms: int = NOON_MS) -> Sent:
        return Sent(value, key, None, time_ms)

    by_topic: dict[str, bytes] = {}
    for codec in Codec:
        topic = new_topic(real_kafka, topics.COMPACTED)
        whole = by_topic[topic] = write([message(b"1", b"a"), message(b"2", b"b")], codec, claim=SAME)
        thinned = write([message(b"3", b"c"), message(b"4", b"d")], codec, claim=SAME)
        for batch in (whole, thinned, write([message(b"5", b"d")]), write([message(b"", b"", closing_time_ms())])):
            store(real_kafka, topic, batch)
    wait_cleaned(real_kafka, by_topic)
    for topic, whole in by_topic.items():
        first, second, _ = stored(real_kafka, topic)
        assert kept_part(first) == kept_part(whole)
        assert peek(first).claim == SAME
        assert peek(second).flags & EntryFlag.THINNED
        assert peek(second).claim == NO_CLAIM


def copies(captured: Vector) -> Iterator[tuple[bytes, list[Read]]]:
    """Every batch of messages as it is sent when it is copied unopened, and what was sent in it."""
    for entry, batch in zip(split(captured.segment), captured.batches, strict=True):
        if "control" not in batch.flags:
            header, payload = rewrite_header(entry, UNSTAMPED)
            messages = [each for each in captured.read if batch.base <= each.offset <= batch.last]
            yield header + bytes(payload), [as_sent(each) for each in messages]


def as_sent(each: VectorRead) -> Read:
    """A message of a vector with its sender's time, and no position yet."""
    sent = each.sent
    return Read(-1, each.time_ms if sent.time_ms is None else sent.time_ms, sent.key, sent.value, sent.headers)


def has_holes(batch: bytes) -> bool:
    """Whether messages were taken out of it."""
    return bool(peek(batch).flags & EntryFlag.THINNED)


def test_copied_batches_are_taken_and_read_as_what_they_were(real_kafka: KafkaCluster) -> None:
    topic = new_topic(real_kafka)
    sent: list[Read] = []
    for captured in load_all():
        for batch, messages in copies(captured):
            if not has_holes(batch):
                assert store(real_kafka, topic, batch).base_offset == len(sent)
                sent += messages
    assert confluent_read(real_kafka.bootstrap, topic) == [
        each._replace(position=position) for position, each in enumerate(sent)
    ]


def test_a_copied_batch_with_holes_is_refused(real_kafka: KafkaCluster) -> None:
    """Messages that compaction left must be written anew."""
    topic = new_topic(real_kafka)
    holed = [batch for captured in load_all() for batch, _ in copies(captured) if has_holes(batch)]
    assert len(holed) > len(Codec)
    assert {produce(real_kafka.address(1), topic, batch).error for batch in holed} == {INVALID_RECORD}


@each_codec
def test_the_time_type_is_not_the_producers_to_choose(real_kafka: KafkaCluster, codec: Codec) -> None:
    """Where the topic's is another it is corrected, and senders' times show again; where it is the same: refused."""
    batch = write(MESSAGES, codec)
    logged = with_fields(batch, attributes=LOG_APPEND_TIME | CODEC_NUMBERS[codec], max_timestamp=NOON_MS + 1000)
    topic = new_topic(real_kafka)
    store(real_kafka, topic, logged)
    (found,) = stored(real_kafka, topic)
    assert parse_header(found).attributes == CODEC_NUMBERS[codec]
    assert read(decode(found)) == expected(MESSAGES)
    other = new_topic(real_kafka, topics.LOG_APPEND_TIME)
    assert produce(real_kafka.address(1), other, logged).error == INVALID_TIMESTAMP
    assert store(real_kafka, other, batch).log_append_time_ms > 0
