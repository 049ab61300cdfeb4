"""Positions that do not move are committed again before the target forgets them."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokers.kafka import KafkaCluster
from penstock.replicate.note import SourceNote, group_of
from tests.produce.real.reading import LIMIT_S, create, partitions_of, read_all
from tests.replicate.pair import End, Pair, until
from tests.replicate.real.conftest import paired
from tests.replicate.real.equality import COMMITTED, DELIVERIES, bootstrap, check_equal, contents
from tests.replicate.test_copying import numbered

BOOKS = "__consumer_offsets"
OFFSET_KEYS = (0, 1)


def commits(end: End, group: str) -> list[tuple[int, int]]:
    """What a group has committed, in the order in which the broker wrote it down: partitions and positions."""
    found = []
    for read in read_all(bootstrap(end), BOOKS, **COMMITTED):
        key, value = read.key or b"", read.value
        if value is None or struct.unpack_from(">h", key)[0] not in OFFSET_KEYS:
            continue
        texts, at = [], 2
        for _ in range(2):
            (size,) = struct.unpack_from(">h", key, at)
            texts.append(key[at + 2 : at + 2 + size].decode())
            at += 2 + size
        if texts[0] == group:
            found.append((struct.unpack_from(">i", key, at)[0], struct.unpack_from(">q", value, 2)[0]))
    return found


def ends_of(end: End, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap(end), "group.id": "ends"})
    try:
        places = [TopicPartition(topic, number) for number in partitions_of(bootstrap(end), topic)]
        return [consumer.get_watermark_offsets(place, LIMIT_S)[1] for place in places]
    finally:
        consumer.close()


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_positions_that_do_not_move_are_renewed(kafkas: Pair, delivery: str) -> None:
    topic = create(bootstrap(kafkas.source), 2)
    kafkas.source.send(topic, numbered(0, 50), partition=0)
    with kafkas.copying(topic, name=topic, delivery=delivery, renew_ms=100) as copying:
        until(lambda: copying.stats().total.messages_copied == 50, copying)
        until(lambda: copying.stats().delay_ms == 0, copying)
        before, stored = copying.stats().total.commits, ends_of(kafkas.target, topic)
        until(lambda: copying.stats().total.commits >= before + 8, copying)
        assert ends_of(kafkas.target, topic) == stored, "and nothing is written to the copy"
    written = commits(kafkas.target, group_of(topic))
    assert written.count((0, 50)) >= 4
    assert set(written[-2:]) <= {(0, 50), (1, 0)}
    marks = kafkas.target.client.cursor(topic, group_of(topic)).marks()
    assert marks[0].position == 50
    note = SourceNote.decode(marks[0].note)
    assert note is not None
    assert (note.topic, note.partition) == (topic, 0)


@pytest.mark.stress
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_positions_outlive_the_retention_of_the_target(real_kafka: KafkaCluster, delivery: str) -> None:
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with KafkaCluster(properties=settings) as forgetful:
        for pair in paired(real_kafka.url, forgetful.url):
            topic = create(bootstrap(pair.source), 2)
            pair.source.send(topic, numbered(0, 50), partition=0)
            pair.copy_all(topic, name="forgotten", rename="forgotten.{topic}", delivery=delivery)
            forgotten: Any = pair.target.client.cursor(f"forgotten.{topic}", group_of("forgotten"))
            assert forgotten.positions()[0] == 50
            with pair.copying(topic, name=topic, delivery=delivery, renew_ms=10_000) as copying:
                over = time.monotonic() + 4 * LIMIT_S
                while forgotten.positions():
                    assert time.monotonic() < over, "nothing is ever forgotten"
                    time.sleep(1)
                assert copying.stats().total.rewinds == 0
            assert pair.target.client.cursor(topic, group_of(topic)).positions()[0] == 50
            pair.source.send(topic, numbered(50, 60), partition=0)
            again = pair.copy_all(topic, name=topic, delivery=delivery)
            assert again.stats().total.messages_copied == 10
            check_equal(contents(pair.target, topic), contents(pair.source, topic))
