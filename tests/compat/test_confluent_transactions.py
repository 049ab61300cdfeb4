"""Transactions with confluent-kafka: committed, aborted, half open, with offsets, fenced, timed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition

from tests.compat.confluent import (
    SPEC,
    admin,
    consumer,
    create,
    outcome,
    outcomes,
    positions,
    producer,
    read,
    send,
    take,
    values,
)
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides, until

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def transactional(side: Side, name: str = "tx", **settings: Any) -> Producer:
    """A producer that has taken its transactional id."""
    source = producer(side, transactional_id=side.name(name), **settings)
    source.init_transactions(LIMIT_S)
    return source


def step(call: Callable[..., Any], *arguments: Any) -> Any:
    """Done, or the error with what it allows."""
    try:
        call(*arguments)
    except KafkaException as failure:
        error = failure.args[0]
        return [error.name(), *(word for word, holds in _allows(error).items() if holds)]
    return "done"


def _allows(error: Any) -> dict[str, bool]:
    return {"retriable": error.retriable(), "must abort": error.txn_requires_abort(), "fatal": error.fatal()}


def seen(side: Side, topic: str, partitions: int = 1) -> Outcome:
    """What readers of both kinds see, with the offsets."""
    found = {
        level: [[message.partition(), message.offset(), *values([message])] for message in messages]
        for level in (COMMITTED, UNCOMMITTED)
        for messages in [read(side, topic, partitions, isolation_level=level)]
    }
    return {**found, "ends": ends(side, topic, partitions)}


def ends(side: Side, topic: str, partitions: int = 1) -> Outcome:
    """High watermark and last stable offset."""
    asked = {TopicPartition(topic, number): SPEC.latest() for number in range(partitions)}
    return {
        level.name: outcomes(
            {
                str(key.partition): value
                for key, value in admin(side).list_offsets(asked, isolation_level=level).items()
            },
            lambda info: info.offset,
        )
        for level in IsolationLevel
    }


def test_a_committed_and_an_aborted_transaction(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        source = transactional(side)
        source.begin_transaction()
        sent = send(source, topic, [b"a", b"b"], partition=0) + send(source, topic, [b"c"], partition=1)
        source.commit_transaction(LIMIT_S)
        source.begin_transaction()
        send(source, topic, [b"d"], partition=0)
        source.abort_transaction(LIMIT_S)
        source.begin_transaction()
        send(source, topic, [b"e"], partition=0)
        source.commit_transaction(LIMIT_S)
        return {"sent": sent, "seen": seen(side, topic, 2)}

    told = sides.alike(script)
    assert told["seen"][COMMITTED] == [[0, 0, "a"], [0, 1, "b"], [0, 5, "e"], [1, 0, "c"]]
    assert told["seen"][UNCOMMITTED] == [[0, 0, "a"], [0, 1, "b"], [0, 3, "d"], [0, 5, "e"], [1, 0, "c"]]


def test_an_open_transaction_holds_readers_of_committed_back(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        plain, source = producer(side), transactional(side)
        send(plain, topic, [b"before"])
        source.begin_transaction()
        send(source, topic, [b"inside"])
        send(plain, topic, [b"after"])
        told = {"open": seen(side, topic)}
        source.commit_transaction(LIMIT_S)
        told["committed"] = seen(side, topic)
        return told

    told = sides.alike(script)
    assert [value for *_, value in told["open"][COMMITTED]] == ["before"]
    assert [value for *_, value in told["committed"][COMMITTED]] == ["before", "inside", "after"]


def test_a_reader_of_committed_waits_for_the_commit(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        source = transactional(side)
        with consumer(side, isolation_level=COMMITTED, fetch_wait_max_ms=20_000) as reader:
            reader.assign([TopicPartition(topic, 0, 0)])
            source.begin_transaction()
            send(source, topic, [b"a", b"b"])
            before = reader.poll(0.5)
            source.commit_transaction(LIMIT_S)
            return {"before": before, "read": values(take(reader, 2))}

    assert sides.alike(script) == {"before": None, "read": ["a", "b"]}


def test_interleaved_transactions_are_told_apart(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        one, two = transactional(side, "one"), transactional(side, "two")
        for source in (one, two):
            source.begin_transaction()
        for n in range(6):
            send(one if n % 2 else two, topic, [b"%d" % n])
        told = {"both open": seen(side, topic)}
        two.abort_transaction(LIMIT_S)
        told["two aborted"] = seen(side, topic)
        one.commit_transaction(LIMIT_S)
        told["one committed"] = seen(side, topic)
        return told

    told = sides.alike(script)
    assert [value for *_, value in told["one committed"][COMMITTED]] == ["1", "3", "5"]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_offsets_are_part_of_a_transaction(sides: Sides, commit: bool) -> None:
    def script(side: Side) -> Outcome:
        source_topic, target = create(side, "source"), create(side, "target")
        send(producer(side), source_topic, [b"%d" % n for n in range(10)])
        place = [TopicPartition(source_topic, 0)]
        told: Outcome = {}
        with consumer(side) as reader:
            reader.subscribe([source_topic])
            found = take(reader, 10)
            source = transactional(side)
            source.begin_transaction()
            send(source, target, [value.encode() for value in values(found) if value])
            told["send"] = step(
                source.send_offsets_to_transaction,
                [TopicPartition(source_topic, 0, 10)],
                reader.consumer_group_metadata(),
                LIMIT_S,
            )
            with consumer(side, isolation_level=UNCOMMITTED) as other:
                told["open"] = outcome(lambda: positions(other.committed(place, 2)))
            source.commit_transaction(LIMIT_S) if commit else source.abort_transaction(LIMIT_S)
            told["after"] = positions(reader.committed(place, LIMIT_S))
        told["seen"] = seen(side, target)
        return told

    told = sides.alike(script)
    assert told["after"] == {"0": 10 if commit else -1001}
    assert len(told["seen"][COMMITTED]) == (10 if commit else 0)


def test_the_next_with_the_same_id_ends_what_the_last_left_and_fences_it(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        old = transactional(side)
        old.begin_transaction()
        send(old, topic, [b"left behind"])
        new = transactional(side)
        told: Outcome = {"left": seen(side, topic)}
        new.begin_transaction()
        send(new, topic, [b"new"])
        told["old sends"] = send(old, topic, [b"too late"])
        told["old commits"] = step(old.commit_transaction, LIMIT_S)
        told["old again"] = step(old.begin_transaction)
        told["new commits"] = step(new.commit_transaction, LIMIT_S)
        told["seen"] = seen(side, topic)
        return told

    told = sides.alike(script)
    assert [value for *_, value in told["seen"][COMMITTED]] == ["new"]
    assert told["new commits"] == "done"


def test_a_transaction_that_takes_too_long_is_aborted(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        source = transactional(side, transaction_timeout_ms=1000)
        source.begin_transaction()
        send(source, topic, [b"slow"])
        ended = until(lambda: ends(side, topic), lambda found: found["READ_COMMITTED"]["0"] == 2)
        told: Outcome = {"ended": ended}
        told["commit"] = step(source.commit_transaction, LIMIT_S)
        told["abort"] = step(source.abort_transaction, LIMIT_S)
        told["begin"] = step(source.begin_transaction)
        send(producer(side), topic, [b"after"])
        told["seen"] = seen(side, topic)
        return told

    told = sides.alike(script)
    assert [value for *_, value in told["seen"][COMMITTED]] == ["after"]


def test_limits_of_the_timeout(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        return {
            str(timeout_ms): step(
                producer(
                    side, transactional_id=side.name(str(timeout_ms)), transaction_timeout_ms=timeout_ms
                ).init_transactions,
                10,
            )
            for timeout_ms in (1000, 900_000, 900_001)
        }

    told = sides.alike(script)
    assert told["900000"] == "done"
    assert told["900001"] != "done"


def test_an_empty_transaction_and_one_that_only_has_offsets(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        source = transactional(side)
        told: Outcome = {}
        source.begin_transaction()
        told["empty commit"] = step(source.commit_transaction, LIMIT_S)
        source.begin_transaction()
        told["empty abort"] = step(source.abort_transaction, LIMIT_S)
        with consumer(side) as reader:
            metadata = reader.consumer_group_metadata()
            source.begin_transaction()
            told["offsets"] = step(source.send_offsets_to_transaction, [TopicPartition(topic, 0, 3)], metadata, LIMIT_S)
            told["commit"] = step(source.commit_transaction, LIMIT_S)
            told["committed"] = positions(reader.committed([TopicPartition(topic, 0)], LIMIT_S))
        told["seen"] = seen(side, topic)
        return told

    assert sides.alike(script)["committed"] == {"0": 3}


def test_offsets_of_a_member_that_is_none_any_more_are_refused(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        send(producer(side), topic, [b"a"])
        with consumer(side) as reader:
            reader.subscribe([topic])
            take(reader, 1)
            stale = reader.consumer_group_metadata()
        source = transactional(side)
        source.begin_transaction()
        told = {"offsets": step(source.send_offsets_to_transaction, [TopicPartition(topic, 0, 1)], stale, LIMIT_S)}
        told["commit"] = step(source.commit_transaction, LIMIT_S)
        told["abort"] = step(source.abort_transaction, LIMIT_S)
        return told

    told = sides.alike(script)
    assert told["offsets"] != "done"
    assert told["abort"] == "done"


def test_many_transactions_one_after_another(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 3)
        source = transactional(side, linger_ms=0)
        for n in range(20):
            source.begin_transaction()
            for number in range(3):
                source.produce(topic, b"%d" % n, partition=number)
            source.abort_transaction(LIMIT_S) if n % 3 == 2 else source.commit_transaction(LIMIT_S)
        found = read(side, topic, 3, isolation_level=COMMITTED)
        return {"committed": [[message.partition(), *values([message])] for message in found]}

    expected = [[number, str(n)] for number in range(3) for n in range(20) if n % 3 != 2]
    assert sides.alike(script)["committed"] == expected
