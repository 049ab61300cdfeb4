"""Transactions at the source, committed and aborted, interleaved: what is committed is copied, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from brokers.kafka import KafkaCluster
from tests.consume.real.test_transactional import PARTITIONS, Interleaved
from tests.produce.real.reading import LIMIT_S, create, read_all
from tests.replicate.pair import Pair, until
from tests.replicate.real.equality import DELIVERIES, UNCOMMITTED, bootstrap, check_equal, contents


@pytest.fixture(scope="module")
def interleaved(real_kafka: KafkaCluster) -> Interleaved:
    made = Interleaved(real_kafka.bootstrap, create(real_kafka.bootstrap, PARTITIONS), 11)
    for _ in range(120):
        made.step()
    for producer in list(made.open):
        made.end(producer)
    assert min(made.ends.values()) > 15
    return made


@pytest.mark.parametrize("size", [1, 2000, 1 << 20])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_what_is_committed_is_copied_and_what_is_aborted_is_not(
    kafkas: Pair, interleaved: Interleaved, delivery: str, size: int
) -> None:
    rule, cluster = "{cluster}.{topic}", f"{delivery}-{size}"
    copying = kafkas.copy_all(
        interleaved.topic,
        name=cluster,
        rename=rule,
        cluster=cluster,
        delivery=delivery,
        partition_bytes_max=size,
        fetch_bytes_max=max(size, 4000),
    )
    original = contents(kafkas.source, interleaved.topic)
    check_equal(contents(kafkas.target, f"{cluster}.{interleaved.topic}"), original)
    snapshot: Any = copying.metrics.snapshot()
    labels = {"pipeline": cluster, "topic": interleaved.topic}
    copied = sum(map(len, original.values()))
    assert copying.stats().total.messages_copied == copied
    assert snapshot.value("penstock_copy_messages_total", **labels, outcome="aborted") == interleaved.count - copied
    assert snapshot.value("penstock_copy_entries_total", **labels, outcome="aborted") > 0
    everything = read_all(bootstrap(kafkas.source), interleaved.topic, **UNCOMMITTED)
    assert len(everything) == interleaved.count
    markers = snapshot.value("penstock_copy_entries_total", **labels, outcome="control")
    assert markers == sum(ends_of(kafkas, interleaved.topic).values()) - interleaved.count


def ends_of(kafkas: Pair, topic: str) -> dict[int, int]:
    with kafkas.source.client.reader(topic, "latest") as reader:
        reader.ready(LIMIT_S)
        return reader.positions()


def test_an_open_transaction_is_copied_when_it_is_committed(kafkas: Pair) -> None:
    topic = create(bootstrap(kafkas.source), PARTITIONS)
    made = Interleaved(bootstrap(kafkas.source), topic, 5)
    with kafkas.copying(topic, name=topic) as copying:
        for _ in range(5):
            for _ in range(12):
                made.step()
            for producer in list(made.open):
                made.end(producer)
            wanted = contents(kafkas.source, topic)
            until(lambda: copying.stats().total.messages_copied == sum(map(len, wanted.values())), copying)  # noqa: B023
        until(lambda: copying.stats().delay_ms == 0, copying)
    check_equal(contents(kafkas.target, topic), wanted)
