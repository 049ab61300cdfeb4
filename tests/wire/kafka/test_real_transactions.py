"""Transactions on a real Kafka, as it enlists by itself (transaction.version 2) and as it did before."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from brokers.kafka import KafkaCluster
from penstock.errors import FencedError, RefusedError, TransactionError, UnknownTopicError
from penstock.wire.kafka.versions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    newest_enlisted,
)
from penstock.wire.protocol import (
    CommitMarks,
    Done,
    EndTransaction,
    Enlist,
    EnlistGroup,
    FindHome,
    Identify,
    Identity,
    Mark,
    Partition,
    Stored,
)
from tests.wire.kafka.ranges import KAFKA_4_3, Ranges
from tests.wire.kafka.real import batch, new_name, new_topic, publish, stamp
from tests.wire.kafka.talk import LIMIT_S, Talk, read_back, talk

TRANSACTIONAL = (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN)


@pytest.fixture(name="broker")
def newest(real_kafka: KafkaCluster) -> Iterator[Talk]:
    with talk(real_kafka.address(1)) as broker:
        yield broker


def begin(broker: Talk, name: str) -> Identity:
    broker.ask(FindHome(name))
    identity = broker.ask(Identify(name))
    assert isinstance(identity, Identity)
    return identity


def values_of(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    return [message.value for message in read_back(kafka.bootstrap, topic)]


def committed(kafka: KafkaCluster, group: str, partition: Partition) -> tuple[int, str | None]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(*partition)], timeout=LIMIT_S)
        return found.offset, found.metadata
    finally:
        consumer.close()


def test_a_transaction_that_the_broker_enlists_is_seen_when_committed_and_never_when_aborted(
    real_kafka: KafkaCluster, broker: Talk
) -> None:
    topic, name, group = new_topic(broker), new_name("id"), new_name("group")
    assert broker.ready is not None
    assert broker.ready.enlists
    first = begin(broker, name)
    assert publish(broker, batch(topic, b"a", b"b", stamp=stamp(first, 0, True)), name) == Stored(0)
    assert publish(broker, batch(topic, b"c", stamp=stamp(first, 2, True)), name) == Stored(2)
    marks = {Partition(topic, 0): Mark(42, "a note")}
    assert broker.ask(CommitMarks(name, first, group, marks)) == {}
    second = broker.ask(EndTransaction(name, first, commit=True))
    assert second == Identity(first.producer, first.epoch + 1)
    assert publish(broker, batch(topic, b"lost", stamp=stamp(second, 0, True)), name) == Stored(4)
    third = broker.ask(EndTransaction(name, second, commit=False))
    assert third == Identity(first.producer, first.epoch + 2)
    assert publish(broker, batch(topic, b"d", stamp=stamp(third, 0, True)), name) == Stored(6)
    assert isinstance(broker.ask(EndTransaction(name, third, commit=True)), Identity)
    assert values_of(real_kafka, topic) == [b"a", b"b", b"c", b"d"]
    assert committed(real_kafka, group, Partition(topic, 0)) == (42, "a note")


def old_ranges(step: int) -> Ranges:
    """A broker before transaction.version 2; the larger the step, the newer."""
    pins = {api.key: (v, v) for api in TRANSACTIONAL if (v := min(api.oldest + step, newest_enlisted(api))) >= 0}
    produce = min(PRODUCE.oldest + 2 * step, newest_enlisted(PRODUCE))
    return KAFKA_4_3 | pins | {PRODUCE.key: (produce, produce)}


@pytest.mark.parametrize("step", range(5))
def test_a_transaction_that_the_client_enlists_keeps_its_identity(
    real_kafka: KafkaCluster, broker: Talk, step: int
) -> None:
    topic, name, group = new_topic(broker), new_name("id"), new_name("group")
    partition = Partition(topic, 0)
    with talk(real_kafka.address(1), old_ranges(step), {}) as old:
        me = begin(old, name)
        assert old.ask(Enlist(name, me, [partition])) == {}
        assert publish(old, batch(topic, b"a", b"b", stamp=stamp(me, 0, True)), name) == Stored(0)
        assert old.ask(EnlistGroup(name, me, group)) == Done()
        assert old.ask(CommitMarks(name, me, group, {partition: Mark(42)})) == {}
        assert old.ask(EndTransaction(name, me, commit=True)) == me
        assert old.ask(Enlist(name, me, [partition])) == {}
        assert publish(old, batch(topic, b"lost", stamp=stamp(me, 2, True)), name) == Stored(3)
        assert old.ask(EndTransaction(name, me, commit=False)) == me
        assert old.ask(Enlist(name, me, [partition])) == {}
        assert publish(old, batch(topic, b"c", stamp=stamp(me, 3, True)), name) == Stored(5)
        assert old.ask(EndTransaction(name, me, commit=True)) == me
    assert values_of(real_kafka, topic) == [b"a", b"b", b"c"]
    assert committed(real_kafka, group, partition)[0] == 42


def test_the_newest_broker_without_the_feature_is_spoken_to_as_before_it(
    real_kafka: KafkaCluster, broker: Talk
) -> None:
    topic, name = new_topic(broker), new_name("id")
    with talk(real_kafka.address(1), KAFKA_4_3, {"transaction.version": 1}) as old:
        me = begin(old, name)
        assert old.ask(Enlist(name, me, [Partition(topic, 0)])) == {}
        assert publish(old, batch(topic, b"a", stamp=stamp(me, 0, True)), name) == Stored(0)
        assert old.ask(EndTransaction(name, me, commit=True)) == me
    assert values_of(real_kafka, topic) == [b"a"]


def test_a_partition_that_was_not_enlisted_fails_the_transaction(real_kafka: KafkaCluster, broker: Talk) -> None:
    topic, name = new_topic(broker), new_name("id")
    with talk(real_kafka.address(1), KAFKA_4_3, {}) as old:
        me = begin(old, name)
        told = publish(old, batch(topic, b"a", stamp=stamp(me, 0, True)), name)
        assert isinstance(told, TransactionError)


def test_partitions_that_cannot_be_enlisted_are_named(real_kafka: KafkaCluster, broker: Talk) -> None:
    topic, name, missing = new_topic(broker), new_name("id"), Partition(new_name("missing"), 0)
    with talk(real_kafka.address(1), KAFKA_4_3, {}) as old:
        me = begin(old, name)
        told = old.ask_once(Enlist(name, me, [Partition(topic, 0), missing]))
        assert isinstance(told[missing], UnknownTopicError)
        assert told[Partition(topic, 0)].code == "OPERATION_NOT_ATTEMPTED"
        assert told[Partition(topic, 0)].retriable


def test_marks_that_cannot_be_committed_are_named(broker: Talk) -> None:
    topic, name, missing = new_topic(broker), new_name("id"), Partition(new_name("missing"), 0)
    me = begin(broker, name)
    request = CommitMarks(name, me, new_name("group"), {Partition(topic, 0): Mark(1), missing: Mark(2)})
    told = broker.ask_once(request)
    while Partition(topic, 0) in told:
        told = broker.ask_once(request)
    assert list(told) == [missing]
    assert isinstance(told[missing], UnknownTopicError)
    note = CommitMarks(name, me, new_name("group"), {Partition(topic, 0): Mark(1, "x" * 5000)})
    told = broker.ask(note)
    assert isinstance(told[Partition(topic, 0)], RefusedError)


def test_an_instance_whose_place_was_taken_is_fenced_everywhere(real_kafka: KafkaCluster, broker: Talk) -> None:
    topic, name, group = new_topic(broker), new_name("id"), new_name("group")
    old = begin(broker, name)
    assert publish(broker, batch(topic, b"lost", stamp=stamp(old, 0, True)), name) == Stored(0)
    new = begin(broker, name)
    assert new.epoch > old.epoch
    assert isinstance(publish(broker, batch(topic, b"late", stamp=stamp(old, 1, True)), name), FencedError)
    told = broker.ask(CommitMarks(name, old, group, {Partition(topic, 0): Mark(1)}))
    assert isinstance(told[Partition(topic, 0)], FencedError)
    assert isinstance(broker.ask(EndTransaction(name, old, commit=True)), FencedError)
    assert isinstance(broker.ask(Identify(name, current=old)), FencedError)
    assert publish(broker, batch(topic, b"kept", stamp=stamp(new, 0, True)), name) == Stored(2)
    assert isinstance(broker.ask(EndTransaction(name, new, commit=True)), Identity)
    assert values_of(real_kafka, topic) == [b"kept"]


def test_an_empty_transaction_cannot_be_ended(broker: Talk) -> None:
    name = new_name("id")
    me = begin(broker, name)
    told = broker.ask(EndTransaction(name, me, commit=True))
    assert isinstance(told, TransactionError)
    assert told.code == "INVALID_TXN_STATE"


def test_a_transaction_timeout_above_the_brokers_limit_is_refused(broker: Talk) -> None:
    told = broker.ask(Identify(new_name("id"), transaction_timeout_ms=900_001))
    assert isinstance(told, RefusedError)
    assert told.code == "INVALID_TRANSACTION_TIMEOUT"
