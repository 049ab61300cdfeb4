"""Transactions on a real Kafka, committed and aborted, interleaved: read as official consumers read them."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from brokers.kafka import KafkaCluster
from tests.consume.real.comparing import LIMIT_S, check_order, in_order, reads
from tests.consume.real.conftest import Connect
from tests.produce.real.reading import create, read_all

PARTITIONS = 2
COMMITTED: dict[str, Any] = {"isolation.level": "read_committed"}
UNCOMMITTED: dict[str, Any] = {"isolation.level": "read_uncommitted"}
SIZES = [1, 2000, 4000, 1 << 20]


class Interleaved:
    """Several transactional producers and a plain one, which take turns."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.topic = topic
        self.chance = random.Random(seed)
        self.producers = [self._producer(bootstrap, f"id-{uuid.uuid4().hex}") for _ in range(3)]
        self.plain = self._producer(bootstrap, None)
        self.open: set[Producer] = set()
        self.ends = {"commit": 0, "abort": 0}
        self.count = 0

    def _producer(self, bootstrap: str, transactional_id: str | None) -> Producer:
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 1, "compression.type": "lz4"}
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        producer = Producer(settings)
        if transactional_id is not None:
            producer.init_transactions(LIMIT_S)
        return producer

    def step(self) -> None:
        producer = self.chance.choice([*self.producers, self.plain])
        if producer is not self.plain and producer not in self.open:
            producer.begin_transaction()
            self.open.add(producer)
        for _ in range(self.chance.choice([1, 3, 20])):
            self.count += 1
            producer.produce(self.topic, b"%d" % self.count, partition=self.chance.randrange(PARTITIONS))
        assert producer.flush(LIMIT_S) == 0
        if producer in self.open and self.chance.random() < 0.5:
            self.end(producer)

    def end(self, producer: Producer) -> None:
        self.open.discard(producer)
        if self.chance.random() < 0.5:
            producer.commit_transaction(LIMIT_S)
            self.ends["commit"] += 1
        else:
            producer.abort_transaction(LIMIT_S)
            self.ends["abort"] += 1


@pytest.fixture(scope="module")
def interleaved(real_kafka: KafkaCluster) -> Interleaved:
    made = Interleaved(real_kafka.bootstrap, create(real_kafka.bootstrap, PARTITIONS), 7)
    for _ in range(150):
        made.step()
    for producer in list(made.open):
        made.end(producer)
    assert min(made.ends.values()) > 20
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("isolation", ["committed", "uncommitted"])
def test_transactions_are_read_equal_to_an_official_consumer(
    real_kafka: KafkaCluster, connect: Connect, interleaved: Interleaved, size: int, isolation: str
) -> None:
    expected = read_all(
        real_kafka.bootstrap, interleaved.topic, **(COMMITTED if isolation == "committed" else UNCOMMITTED)
    )
    reader = connect(real_kafka.url).reader(
        interleaved.topic, end="latest", isolation=isolation, partition_bytes_max=size, fetch_bytes_max=max(size, 4000)
    )
    found = reads(reader)
    check_order(found)
    assert in_order(found) == in_order(expected)
    stats = reader.stats()
    assert stats.entries_control > 0
    assert (stats.entries_aborted > 0) is (isolation == "committed")
    assert stats.messages_read + stats.messages_aborted == interleaved.count


@pytest.mark.parametrize("size", SIZES)
def test_ranges_of_transactions_are_exact_wherever_they_are_cut(
    real_kafka: KafkaCluster, connect: Connect, interleaved: Interleaved, size: int
) -> None:
    everything = read_all(real_kafka.bootstrap, interleaved.topic, **COMMITTED)
    client, chance = connect(real_kafka.url), random.Random(size)
    end = client.reader(interleaved.topic, "latest")
    end.ready(LIMIT_S)
    lasts = end.positions()
    for _ in range(15):
        start = {number: chance.randrange(last + 1) for number, last in lasts.items()}
        stop = {number: chance.randrange(first, lasts[number] + 1) for number, first in start.items()}
        reader = client.reader(interleaved.topic, start, stop, partition_bytes_max=size)
        wanted = [read for read in everything if start[read.partition] <= read.offset < stop[read.partition]]
        assert in_order(reads(reader)) == in_order(wanted)
        assert reader.positions() == stop


def test_unopened_entries_are_those_that_count(
    real_kafka: KafkaCluster, connect: Connect, interleaved: Interleaved
) -> None:
    everything = read_all(real_kafka.bootstrap, interleaved.topic, **COMMITTED)
    reader = connect(real_kafka.url).reader(interleaved.topic, end="latest", unit="batch")
    found = [(entry.partition, position) for entry in reader for position in range(entry.begin, entry.end)]
    assert sorted(found) == [(read.partition, read.offset) for read in in_order(everything)]


def test_an_open_transaction_holds_readers_back_until_it_ends(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    client = connect(real_kafka.url)
    plain, within = client.producer(topic), client.producer(topic, transactional_id=f"id-{uuid.uuid4().hex}")
    plain.send(b"before").result(LIMIT_S)
    with client.reader(topic) as committed, client.reader(topic, isolation="uncommitted") as everything:
        with within.transaction():
            within.send(b"within").result(LIMIT_S)
            plain.send(b"after").result(LIMIT_S)
            seen: list[Any] = []
            while sum(item.num_rows for item in seen) < 3:
                seen.append(everything.read(LIMIT_S))
            first = committed.read(LIMIT_S)
            with pytest.raises(TimeoutError):
                committed.read(0.3)
        rest: list[Any] = [first]
        while sum(item.num_rows for item in rest) < 3:
            rest.append(committed.read(LIMIT_S))
    assert [read.value for read in reads(rest)] == [b"before", b"within", b"after"]
