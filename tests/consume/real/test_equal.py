"""Everything that an official client stores in a real Kafka is read equal to what an official consumer reads."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from brokers.kafka import KafkaCluster
from tests.consume.real.comparing import LIMIT_S, check_order, in_order, reads
from tests.consume.real.conftest import Connect
from tests.produce.real.reading import create, grow, read_all

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PARTITIONS = 3
FIRST_MS = 1_600_000_000_000


def store(bootstrap: str, topic: str, count: int = 1000, seed: int = 0) -> None:
    """Messages of all codecs and shapes: keys, values and headers null, empty and large, times in no order."""
    chance = random.Random(seed)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5})
        for i in range(count):
            value = chance.choice([None, b"", b"x", b"%d" % i, chance.randbytes(chance.choice([10, 300, 20_000]))])
            key = chance.choice([None, None, b"", b"k%d" % (i % 7)])
            headers: list[Any] = [
                (chance.choice(["a", "b", "ü", ""]), chance.choice([None, b"", b"v", chance.randbytes(20)]))
                for _ in range(chance.choice([0, 0, 1, 3]))
            ]
            time_ms = FIRST_MS + chance.choice([i, -i, chance.randrange(10**9)])
            producer.produce(topic, value, key, chance.randrange(PARTITIONS), timestamp=time_ms, headers=headers)
            producer.poll(0)
        assert producer.flush(LIMIT_S) == 0


@pytest.fixture(scope="module")
def stored(real_kafka: KafkaCluster) -> str:
    topic = create(real_kafka.bootstrap, PARTITIONS)
    store(real_kafka.bootstrap, topic)
    return topic


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition_bytes_max": 1},
        {"partition_bytes_max": 30_000, "fetch_bytes_max": 50_000, "prefetch_bytes_max": 64 << 10},
        {"verify_checksums": False, "isolation": "uncommitted"},
    ],
    ids=["default", "one entry at a time", "small", "unverified"],
)
def test_a_topic_is_read_equal_to_an_official_consumer(
    real_kafka: KafkaCluster, connect: Connect, stored: str, options: dict[str, Any]
) -> None:
    expected = read_all(real_kafka.bootstrap, stored)
    found = reads(connect(real_kafka.url).reader(stored, end="latest", **options))
    check_order(found)
    assert in_order(found) == in_order(expected)
    assert len(found) == 5 * 1000


def test_unopened_entries_cover_the_topic(real_kafka: KafkaCluster, connect: Connect, stored: str) -> None:
    reader = connect(real_kafka.url).reader(stored, end="latest", unit="batch")
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for entry in reader:
        assert entry.begin == ends[entry.partition]
        ends[entry.partition] = entry.end
    assert ends == reader.positions()
    assert sum(ends.values()) == 5000


def test_ranges_are_exact(real_kafka: KafkaCluster, connect: Connect, stored: str) -> None:
    everything = in_order(read_all(real_kafka.bootstrap, stored))
    client, chance = connect(real_kafka.url), random.Random(5)
    sizes = [sum(read.partition == number for read in everything) for number in range(PARTITIONS)]
    for _ in range(20):
        start = {number: chance.randrange(sizes[number] + 1) for number in range(PARTITIONS)}
        end = {number: chance.randrange(first, sizes[number] + 1) for number, first in start.items()}
        found = reads(client.reader(stored, start, end))
        wanted = [read for read in everything if start[read.partition] <= read.offset < end[read.partition]]
        assert in_order(found) == wanted


def test_times_are_found_as_an_official_consumer_finds_them(
    real_kafka: KafkaCluster, connect: Connect, stored: str
) -> None:
    consumer = Consumer({"bootstrap.servers": real_kafka.bootstrap, "group.id": "times"})
    client, chance = connect(real_kafka.url), random.Random(6)
    try:
        for time_ms in (0, FIRST_MS, FIRST_MS + 10**10, *(FIRST_MS + chance.randrange(10**9) for _ in range(5))):
            asked = [TopicPartition(stored, number, time_ms) for number in range(PARTITIONS)]
            told = {found.partition: found.offset for found in consumer.offsets_for_times(asked, timeout=LIMIT_S)}
            reader = client.reader(stored, datetime.fromtimestamp(time_ms / 1000, UTC))
            reader.ready(LIMIT_S)
            latest = client.reader(stored, "latest")
            latest.ready(LIMIT_S)
            ends = latest.positions()
            assert reader.positions() == {n: ends[n] if offset < 0 else offset for n, offset in told.items()}
            reader.close()
            latest.close()
    finally:
        consumer.close()


def test_log_append_time_is_shown_as_such(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, PARTITIONS, message_timestamp_type="LogAppendTime")
    store(real_kafka.bootstrap, topic, 50)
    table = connect(real_kafka.url).reader(topic, end="latest").read_all(LIMIT_S)
    assert set(table.column("log_time").to_pylist()) == {True}
    assert in_order(reads([table])) == in_order(read_all(real_kafka.bootstrap, topic))


def test_a_topic_that_the_broker_compresses_anew_is_read(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, PARTITIONS, compression_type="zstd")
    store(real_kafka.bootstrap, topic, 50)
    found = reads(connect(real_kafka.url).reader(topic, end="latest"))
    assert in_order(found) == in_order(read_all(real_kafka.bootstrap, topic))


def test_partitions_that_come_later_are_followed(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    client = connect(real_kafka.url, metadata_age_max_ms=500)
    with client.reader(topic, "latest") as reader:
        reader.ready(LIMIT_S)
        grow(real_kafka.bootstrap, topic, PARTITIONS)
        store(real_kafka.bootstrap, topic, 20)
        items: list[Any] = []
        while sum(item.num_rows for item in items) < 100:
            items.append(reader.read(LIMIT_S))
    assert in_order(reads(items)) == in_order(read_all(real_kafka.bootstrap, topic))
