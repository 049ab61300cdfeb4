"""Groups of an official client on `penstock serve`: members share partitions, and go on after `kill -9`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from brokers.penstock import PenstockBroker

PARTITIONS = 4
LIMIT_S = 60.0
QUICK = ("group_session_min_ms=1000", "group_beat_interval_ms=200", "group_beat_session_ms=3000")
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"session.timeout.ms": 3000, "heartbeat.interval.ms": 200},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture(scope="module")
def broker() -> Iterator[PenstockBroker]:
    with PenstockBroker([word for setting in QUICK for word in ("--set", setting)]) as broker:
        yield broker


def make_topic(broker: PenstockBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(LIMIT_S)


def send(broker: PenstockBroker, topic: str, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for place, value in enumerate(values):
        producer.produce(topic, value, partition=place % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


@contextmanager
def member(broker: PenstockBroker, topic: str, protocol: str, **settings: Any) -> Iterator[Consumer]:
    usual = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    own = {"enable.auto.commit": False, "reconnect.backoff.max.ms": 200, **PROTOCOLS[protocol], **settings}
    consumer = Consumer({**usual, **own})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def poll_until(members: Sequence[Consumer], is_done: Callable[[], bool]) -> list[str]:
    """Let members read until something is so; what they read."""
    seen: list[str] = []
    over = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < over, [held(each) for each in members]
        for each in members:
            message = each.poll(0.05)
            if message is not None and message.error() is None:
                seen.append(message.value().decode())  # type: ignore[union-attr]
                each.commit(message=message, asynchronous=True)
    return seen


def held(consumer: Consumer) -> list[int]:
    return sorted(each.partition for each in consumer.assignment())


def shares(*members: Consumer) -> Callable[[], bool]:
    """Whether these members share all partitions, each with its part."""

    def look() -> bool:
        parts = [held(each) for each in members]
        return all(parts) and sorted(chain.from_iterable(parts)) == list(range(PARTITIONS))

    return look


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go_and_read_everything(broker: PenstockBroker, protocol: str) -> None:
    topic = f"come-and-go-{protocol}"
    make_topic(broker, topic)
    values = [f"{number}" for number in range(100)]
    send(broker, topic, values)
    seen: list[str] = []
    with ExitStack() as members:
        one = members.enter_context(member(broker, topic, protocol))
        seen += poll_until([one], shares(one))
        with member(broker, topic, protocol) as two:
            seen += poll_until([one, two], shares(one, two))
        seen += poll_until([one], shares(one))
        seen += poll_until([one], lambda: sum(at_end(one, topic)) == 100)
    assert set(seen) == set(values)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_and_offsets_survive_a_broker_that_is_killed(broker: PenstockBroker, protocol: str) -> None:
    topic = f"killed-{protocol}"
    make_topic(broker, topic)
    send(broker, topic, [f"before-{number}" for number in range(40)])
    with member(broker, topic, protocol) as one, member(broker, topic, protocol) as two:
        poll_until([one, two], shares(one, two))
        poll_until([one, two], lambda: sum(at_end(one, topic)) == 40)
        one.commit(offsets=[TopicPartition(topic, part, 10) for part in held(one)], asynchronous=False)
        two.commit(offsets=[TopicPartition(topic, part, 10) for part in held(two)], asynchronous=False)
        broker.kill()
        broker.restart()
        assert at_end(one, topic) == [10] * PARTITIONS
        send(broker, topic, [f"after-{number}" for number in range(40)])
        seen = poll_until([one, two], lambda: sum(at_end(one, topic)) == 80)
        poll_until([one, two], shares(one, two))
    assert {value for value in seen if value.startswith("after")} == {f"after-{number}" for number in range(40)}


def at_end(consumer: Consumer, topic: str) -> list[int]:
    """How far the group has come in each partition."""
    found = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], LIMIT_S)
    return [max(each.offset, 0) for each in found]


def test_a_pattern_is_matched_by_the_broker(broker: PenstockBroker) -> None:
    make_topic(broker, "pattern-1")
    with member(broker, "^pattern-[0-9]", "consumer", **{"group.id": "pattern"}) as one:
        poll_until([one], lambda: len(one.assignment()) == PARTITIONS)
        make_topic(broker, "pattern-2")
        poll_until([one], lambda: len(one.assignment()) == 2 * PARTITIONS)
        assert {each.topic for each in one.assignment()} == {"pattern-1", "pattern-2"}
