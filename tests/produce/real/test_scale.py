"""A topic of 10,000 partitions, 24 of which are used: 24 lanes, and memory as with 24 partitions.

On librdkafka's mock cluster, which has them in a moment; a real broker takes long over so many (see the stress test).
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator

import pytest

import penstock
from brokers.jvm import BENCHMARK
from brokers.kafka import KafkaCluster
from penstock.produce.lanes import ProducerLane
from penstock.wire.kafka.header import peek
from tests.produce.real.conftest import Connect
from tests.produce.real.footprint import Footprint
from tests.produce.real.librdkafka_mock import MockCluster
from tests.produce.real.raw_fetch import stored_batches
from tests.produce.real.reading import LIMIT_S, create, grow, new_topic, read_all

PARTITIONS = 10_000
USED = 24
ROUNDS = 40
LEADERS_BYTES_MAX = 400 * PARTITIONS
"""What may be remembered of the partitions that are not used: who leads them."""


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster(1) as cluster:
        yield cluster


def lanes_alive() -> int:
    return sum(isinstance(each, ProducerLane) for each in gc.get_objects())


def held_while_sending(connect: Connect, mock: MockCluster, partitions: int) -> tuple[int, int]:
    """Bytes held, and at most held, by a client that sends to 24 partitions of a topic with so many."""
    topic = new_topic()
    mock.create(topic, partitions)
    used = range(0, partitions, partitions // USED)[:USED]
    gc.collect()
    before = lanes_alive()
    tracemalloc.start()
    try:
        with connect(mock.url) as client, client.producer(topic) as producer:
            producer.ready(LIMIT_S)
            for _ in range(ROUNDS):
                receipts = [producer.send(b"v" * 100, partition=partition) for partition in used]
                producer.flush(LIMIT_S)
                assert [receipt.result(0).partition for receipt in receipts] == list(used)
            stats = producer.stats()
            assert (stats.partitions, stats.open_lanes, sorted(stats.lanes)) == (partitions, USED, list(used))
            del receipts, stats
            gc.collect()
            assert lanes_alive() - before == USED
            return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_lanes_and_memory_are_those_of_the_partitions_in_use(mock: MockCluster, connect: Connect) -> None:
    held_while_sending(connect, mock, USED)  # what is loaded at first use
    few, few_peak = held_while_sending(connect, mock, USED)
    many, many_peak = held_while_sending(connect, mock, PARTITIONS)
    assert many < few + LEADERS_BYTES_MAX
    assert many_peak < few_peak + 3 * LEADERS_BYTES_MAX, "one answer that names them all is read"


def test_keys_use_as_many_lanes_as_they_have_partitions(mock: MockCluster, connect: Connect) -> None:
    topic = new_topic()
    mock.create(topic, PARTITIONS)
    with connect(mock.url) as client, client.producer(topic) as producer:
        receipts = [producer.send(b"v", key=b"key %d" % (number % USED)) for number in range(USED * 10)]
        producer.flush(LIMIT_S)
        used = {receipt.result(0).partition for receipt in receipts}
        assert len(used) == USED, "none of these keys share a partition"
        assert set(producer.stats().lanes) == used


def test_a_limited_spread_opens_no_more_lanes_than_its_limit(mock: MockCluster, connect: Connect) -> None:
    topic = new_topic()
    mock.create(topic, PARTITIONS)
    policy = penstock.BatchPolicy(count_max=5)
    with (
        connect(mock.url) as client,
        client.producer(topic, batch=policy, router=penstock.PartialRoundRobin(USED)) as producer,
    ):
        producer.ready(LIMIT_S)
        for number in range(1000):
            producer.send(b"%d" % number)
        producer.flush(LIMIT_S)
        assert producer.stats().open_lanes == USED


def test_idle_lanes_are_dropped_and_go_on_with_their_numbers(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, USED)
    with connect(real_kafka.url, lane_idle_ms=20) as client, client.producer(topic) as producer:
        for number in range(5):
            receipts = [producer.send(b"v", partition=partition) for partition in range(USED)]
            assert [receipt.result(LIMIT_S).position for receipt in receipts] == [number] * USED
            over = time.monotonic() + LIMIT_S
            while producer.stats().open_lanes > 0 and time.monotonic() < over:
                time.sleep(0.01)
            assert producer.stats().open_lanes == 0
        assert producer.stats().total.messages == 5 * USED
    for partition in (0, USED - 1):
        batches = [peek(batch) for batch in stored_batches(real_kafka.address(1), topic, partition)]
        assert [batch.sequence for batch in batches] == list(range(5))
        assert len({batch.producer for batch in batches}) == 1


def test_clients_that_come_and_go_leave_nothing(mock: MockCluster, connect: Connect) -> None:
    topic = new_topic()
    mock.create(topic, USED)

    def come_and_go() -> None:
        with connect(mock.url) as client, client.producer(topic) as producer:
            producer.send_many([b"v"] * 100).result(LIMIT_S)

    come_and_go()
    gc.collect()
    before, lanes = Footprint.now(), lanes_alive()
    for _ in range(30):
        come_and_go()
    after = Footprint.now()
    assert (after.threads, after.descriptors) == (before.threads, before.descriptors)
    gc.collect()
    assert lanes_alive() == lanes


@pytest.mark.stress
def test_a_real_broker_with_as_many_partitions(kafka_parts: None, connect: Connect) -> None:
    with KafkaCluster(profile=BENCHMARK) as kafka:  # the smaller heap of tests is too small for so many
        topic = create(kafka.bootstrap, PARTITIONS // 2)
        grow(kafka.bootstrap, topic, PARTITIONS)  # more at once is refused
        with connect(kafka.url, metadata_age_max_ms=5000) as client, client.producer(topic) as producer:
            over = time.monotonic() + 300
            while client.partitions(topic) < PARTITIONS and time.monotonic() < over:
                time.sleep(0.5)
            while producer.stats().partitions != PARTITIONS and time.monotonic() < over:
                time.sleep(0.5)
            used = range(0, PARTITIONS, PARTITIONS // USED)[:USED]
            receipts = [producer.send(b"v", partition=partition) for _ in range(10) for partition in used]
            producer.flush(LIMIT_S)
            assert {receipt.result(0).partition for receipt in receipts} == set(used)
            assert producer.stats().open_lanes == USED
        assert len(read_all(kafka.bootstrap, topic, len(receipts))) == len(receipts)
