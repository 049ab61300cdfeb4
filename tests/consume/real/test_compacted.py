"""Compacted topics of a real Kafka: thinned and emptied batches, holes, tombstones, read as official consumers do."""

from __future__ import annotations

import random
import time

import pytest
from confluent_kafka import Producer

from brokers.kafka import KafkaCluster
from tests.consume.real.comparing import LIMIT_S, check_order, in_order, reads
from tests.consume.real.conftest import Connect
from tests.produce.real.reading import Read, create, read_all

KEYS = 40


def store(bootstrap: str, topic: str, rounds: int, seed: int) -> None:
    """Many values for few keys, tombstones among them, in batches of all codecs."""
    chance = random.Random(seed)
    for number in range(rounds):
        codec = ("none", "gzip", "snappy", "lz4", "zstd")[number % 5]
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for _ in range(300):
            value = None if chance.random() < 0.1 else chance.randbytes(chance.choice([5, 3000]))
            producer.produce(topic, value, b"k%d" % chance.randrange(KEYS), 0, headers=[("n", b"%d" % number)])
        assert producer.flush(LIMIT_S) == 0


def wait_until_compacted(bootstrap: str, topic: str) -> list[Read]:
    """What is left when most messages are gone."""
    over = time.monotonic() + LIMIT_S
    while time.monotonic() < over:
        found = read_all(bootstrap, topic)
        if len(found) < (found[-1].offset + 1) / 2:
            return found
        time.sleep(0.2)
    raise AssertionError("nothing was compacted")


@pytest.fixture(scope="module")
def compacted(cleaning_kafka: KafkaCluster) -> str:
    bootstrap = cleaning_kafka.bootstrap
    topic = create(
        bootstrap,
        1,
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.0",
        segment_ms="1000",
    )
    store(bootstrap, topic, 15, 3)
    wait_until_compacted(bootstrap, topic)
    return topic


def settled(bootstrap: str, topic: str) -> list[Read]:
    """What an official consumer finds, once it finds the same twice: nothing is being compacted."""
    before = read_all(bootstrap, topic)
    over = time.monotonic() + LIMIT_S
    while time.monotonic() < over:
        time.sleep(0.5)
        found = read_all(bootstrap, topic)
        if found == before:
            return found
        before = found
    raise AssertionError("compaction does not end")


@pytest.mark.parametrize("size", [1, 5000, 1 << 20])
def test_a_compacted_topic_is_read_equal_to_an_official_consumer(
    cleaning_kafka: KafkaCluster, connect: Connect, compacted: str, size: int
) -> None:
    expected = settled(cleaning_kafka.bootstrap, compacted)
    found = reads(connect(cleaning_kafka.url).reader(compacted, end="latest", partition_bytes_max=size))
    check_order(found)
    assert in_order(found) == in_order(expected)
    assert any(read.value is None for read in found)


def test_ranges_end_in_holes(cleaning_kafka: KafkaCluster, connect: Connect, compacted: str) -> None:
    expected = settled(cleaning_kafka.bootstrap, compacted)
    there = {read.offset for read in expected}
    client, chance = connect(cleaning_kafka.url), random.Random(9)
    holes = [position for position in range(expected[-1].offset) if position not in there]
    for _ in range(25):
        start, end = sorted(chance.sample(holes, 2))
        reader = client.reader(compacted, {0: start}, {0: end}, partition_bytes_max=chance.choice([1, 1 << 20]))
        assert [read.offset for read in reads(reader)] == [p for p in sorted(there) if start <= p < end]
        assert reader.positions() == {0: end}
