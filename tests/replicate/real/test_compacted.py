"""Compacted topics: thinned and emptied batches, tombstones, horizons of deletion; the copy is equal, without holes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from brokers.kafka import KafkaCluster
from penstock.consume.opening import Entry
from penstock.replicate.consignment import Reason
from penstock.wire.entry import EntryFlag
from tests.consume.real.test_compacted import settled, store, wait_until_compacted
from tests.produce.real.reading import LIMIT_S, Read, create
from tests.replicate.pair import End, Pair
from tests.replicate.real.conftest import paired
from tests.replicate.real.equality import DELIVERIES, check_equal, contents, sorted_out

COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": "1048576",
    "min_cleanable_dirty_ratio": "0.0",
    "segment_ms": "1000",
}


@pytest.fixture(scope="module")
def pair(cleaning_kafka: KafkaCluster, second_kafka: KafkaCluster) -> Iterator[Pair]:
    yield from paired(cleaning_kafka.url, second_kafka.url)


@pytest.fixture(scope="module")
def compacted(cleaning_kafka: KafkaCluster) -> tuple[str, list[Read]]:
    """A topic that was compacted, and what it holds then."""
    topic = create(cleaning_kafka.bootstrap, 1, **COMPACTED)
    bury(cleaning_kafka.bootstrap, topic)
    store(cleaning_kafka.bootstrap, topic, 15, 8)
    empty_some(cleaning_kafka.bootstrap, topic)
    wait_until_compacted(cleaning_kafka.bootstrap, topic)
    return topic, settled(cleaning_kafka.bootstrap, topic)


def bury(bootstrap: str, topic: str) -> None:
    """Tombstones that nothing overwrites: their batch stays whole, and is noted when they may be dropped."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 200, "compression.type": "lz4"})
    for number in range(30):
        producer.produce(topic, None, b"buried %d" % number, 0)
    assert producer.flush(LIMIT_S) == 0


def empty_some(bootstrap: str, topic: str) -> None:
    """Transactions whose messages are all overwritten: of some batches nothing is left but who wrote them."""
    chance = random.Random(4)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(LIMIT_S)
    for number in range(10):
        producer.begin_transaction()
        for key in range(5):
            producer.produce(topic, chance.randbytes(2000), b"t%d" % key, 0)
        assert producer.flush(LIMIT_S) == 0
        producer.abort_transaction(LIMIT_S) if number % 3 == 2 else producer.commit_transaction(LIMIT_S)
    last = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for _ in range(800):
        last.produce(topic, chance.randbytes(3000), b"t%d" % chance.randrange(5), 0)
    assert last.flush(LIMIT_S) == 0


def entries(end: End, topic: str) -> list[Entry]:
    with end.client.reader(topic, end="latest", unit="batch") as reader:
        return [item for item in reader if isinstance(item, Entry)]


def flagged(end: End, topic: str, flag: EntryFlag) -> set[int]:
    return {entry.begin for entry in entries(end, topic) if entry.header.flags & flag}


@pytest.mark.parametrize("repack", ["auto", "never"])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_compacted_topic_is_copied_equal(
    pair: Pair, compacted: tuple[str, list[Read]], delivery: str, repack: str
) -> None:
    topic, found = compacted
    name = f"{delivery}-{repack}"
    rules = {"rename": "{cluster}.{topic}", "cluster": name}
    copying = pair.copy_all(topic, name=name, delivery=delivery, repack=repack, **rules)
    copy = f"{name}.{topic}"
    check_equal(contents(pair.target, copy), sorted_out(found))
    assert any(read.value is None for read in found), "there are tombstones"
    thinned = flagged(pair.source, topic, EntryFlag.THINNED)
    stats = copying.stats()
    assert stats.total.opened[Reason.THINNED] == len(thinned) > 0
    assert stats.total.messages_copied == len(found)
    dated = flagged(pair.source, topic, EntryFlag.PURGE_DATED)
    assert dated - thinned, "some of the entries that leave unopened say when their tombstones may be dropped"
    assert not flagged(pair.target, copy, EntryFlag.PURGE_DATED | EntryFlag.THINNED)
    labels = {"pipeline": name, "topic": topic}
    snapshot: Any = copying.metrics.snapshot()
    assert snapshot.value("penstock_copy_entries_total", **labels, outcome="empty") > 0
    assert snapshot.value("penstock_copy_entries_total", **labels, outcome="thinned") == len(thinned)
