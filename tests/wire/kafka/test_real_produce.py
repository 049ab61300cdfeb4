"""Batches stored by a real Kafka, in every version, and what an official consumer reads back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from brokers.kafka import KafkaCluster
from penstock.errors import BatchTooLargeError, BusyError, FencedError, RefusedError, SequenceError, UnknownTopicError
from penstock.wire.compression import Codec
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.versions import INIT_PRODUCER_ID, PRODUCE
from penstock.wire.protocol import FindHome, Identify, Identity, LookUp, Outgoing, Partition, Publish, Spoilt, Stored
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.real import batch, damage, new_name, new_topic, publish, stamp, versions_of
from tests.wire.kafka.talk import Read, Talk, read_back, talk


@pytest.fixture(name="broker")
def newest(real_kafka: KafkaCluster) -> Iterator[Talk]:
    with talk(real_kafka.address(1)) as broker:
        yield broker


@pytest.mark.parametrize("version", versions_of(PRODUCE))
def test_batches_of_every_codec_are_stored_in_every_version(
    real_kafka: KafkaCluster, broker: Talk, version: int
) -> None:
    topic = new_topic(broker)
    codecs = [codec for codec in Codec if codec is not Codec.ZSTD or version >= 7]
    with talk(real_kafka.address(1), pinned(PRODUCE, version)) as old:
        identity = old.ask(Identify())
        for number, codec in enumerate(codecs):
            values = [b"%s %d" % (codec.value.encode() * 20, index) for index in range(2)]
            sent = batch(topic, *values, stamp=stamp(identity, 2 * number), codec=codec)
            assert publish(old, sent) == Stored(2 * number)
    assert read_back(real_kafka.bootstrap, topic) == [
        Read(2 * number + index, b"key", b"%s %d" % (codec.value.encode() * 20, index))
        for number, codec in enumerate(codecs)
        for index in range(2)
    ]


@pytest.mark.parametrize("version", [3, 9, 12])
def test_one_request_carries_batches_of_many_partitions(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topics = [new_topic(broker, 3), new_topic(broker, 3)]
    partitions = [Partition(topic, number) for number in range(3) for topic in topics]
    missing = Partition(new_name("missing"), 0)
    first = stamp(broker.ask(Identify()), 0)
    batches = [
        batch("", b"%d" % number, stamp=first)._replace(partition=partition)
        for number, partition in enumerate([*partitions, missing])
    ]
    with talk(real_kafka.address(1), pinned(PRODUCE, version)) as old:
        assert old.ask(Publish(batches[:-1])) == dict.fromkeys(partitions, Stored(0))
        told = old.ask_once(Publish(batches))
    assert isinstance(told.pop(missing), UnknownTopicError)
    assert told == dict.fromkeys(partitions, Stored(0))
    for number, partition in enumerate(partitions):
        assert [message.value for message in read_back(real_kafka.bootstrap, *partition)] == [b"%d" % number]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_without_acks_a_batch_is_stored_in_silence(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker)
    with talk(real_kafka.address(1), pinned(PRODUCE, version)) as old:
        old.send(Publish([batch(topic, b"quiet")], acks="none"))
        assert topic in old.ask(LookUp(None)).topics
        assert publish(old, batch(topic, b"loud")) == Stored(1)
    assert [message.value for message in read_back(real_kafka.bootstrap, topic)] == [b"quiet", b"loud"]


def test_many_requests_on_their_way_are_answered_in_order(broker: Talk) -> None:
    topic = new_topic(broker)
    identity = broker.ask(Identify())
    for number in range(5):
        broker.send(Publish([batch(topic, b"%d" % number, stamp=stamp(identity, number))]))
    assert len(broker.connection.unanswered()) == 5
    events = broker.events()
    while len(events) < 5:
        events += broker.events()
    assert [event.answer[Partition(topic, 0)] for event in events] == [Stored(number) for number in range(5)]  # type: ignore[union-attr]
    assert broker.connection.unanswered() == []


def test_log_append_time_is_told(broker: Talk) -> None:
    topic = new_topic(broker, settings={"message.timestamp.type": "LogAppendTime"})
    before = time.time_ns() // 1_000_000
    verdict = publish(broker, batch(topic, b"x"))
    assert isinstance(verdict, Stored)
    assert verdict.log_time_ms is not None
    assert before <= verdict.log_time_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("version", versions_of(INIT_PRODUCER_ID))
def test_an_identity_is_given_and_renewed_in_every_version(real_kafka: KafkaCluster, version: int) -> None:
    with talk(real_kafka.address(1), pinned(INIT_PRODUCER_ID, version)) as old:
        first = old.ask(Identify())
        assert isinstance(first, Identity)
        assert old.ask(Identify(current=first)).producer != first.producer
        name = new_name("id")
        old.ask(FindHome(name))
        first = old.ask(Identify(name))
        assert isinstance(first, Identity)
        if version < 3:
            with pytest.raises(RefusedError, match="only takes the id"):
                old.send(Identify(name, current=first))
        else:
            assert old.ask(Identify(name, current=first)) == Identity(first.producer, first.epoch + 1)


def test_a_batch_sent_again_is_stored_once_and_a_gap_is_an_error(real_kafka: KafkaCluster, broker: Talk) -> None:
    topic = new_topic(broker)
    identity = broker.ask(Identify())
    first = batch(topic, b"a", b"b", stamp=stamp(identity, 0))
    assert publish(broker, first) == Stored(0)
    assert publish(broker, first) == Stored(0)
    assert isinstance(publish(broker, batch(topic, b"d", stamp=stamp(identity, 3))), SequenceError)
    assert publish(broker, batch(topic, b"c", stamp=stamp(identity, 2))) == Stored(2)
    assert [message.value for message in read_back(real_kafka.bootstrap, topic)] == [b"a", b"b", b"c"]


def test_an_old_epoch_is_fenced(broker: Talk) -> None:
    topic = new_topic(broker)
    old = broker.ask(Identify())
    new = Identity(old.producer, old.epoch + 1)
    assert publish(broker, batch(topic, b"a", stamp=stamp(new, 0))) == Stored(0)
    assert isinstance(publish(broker, batch(topic, b"b", stamp=stamp(old, 0))), FencedError)


def test_a_batch_above_the_topics_limit_is_too_large(broker: Talk) -> None:
    topic = new_topic(broker, settings={"max.message.bytes": "1000"})
    assert isinstance(publish(broker, batch(topic, bytes(2000))), BatchTooLargeError)
    assert publish(broker, batch(topic, bytes(2000), codec=Codec.LZ4)) == Stored(0)


def test_a_damaged_batch_is_refused_and_may_be_sent_again(broker: Talk) -> None:
    topic = new_topic(broker)
    good = batch(topic, b"x")
    told = broker.ask_once(Publish([damage(good)]))[good.partition]
    assert isinstance(told, BusyError)
    assert told.code == "CORRUPT_MESSAGE"
    assert publish(broker, good) == Stored(0)


@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_messages_that_spoil_a_batch_are_named(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker, settings={"cleanup.policy": "compact"})
    buffer = BatchBuffer()
    for key in (b"key", None, b"key", None):
        buffer.append(b"value", key)
    buffer.seal()
    with talk(real_kafka.address(1), pinned(PRODUCE, version)) as old:
        verdict = publish(old, Outgoing(Partition(topic, 0), *buffer.stamp()))
    if version < 8:
        assert isinstance(verdict, RefusedError)
        return
    assert isinstance(verdict, Spoilt)
    assert verdict.error.code == "INVALID_RECORD"  # type: ignore[attr-defined]
    assert set(verdict.messages) == {1, 3}
    assert all("key" in text for text in verdict.messages.values())
