from __future__ import annotations

import json

from penstock.broker.filters import FilterCounts
from penstock.broker.log.partition import Backlog
from penstock.broker.report import (
    NO_FLOW,
    FlowReport,
    LogReport,
    PartitionReport,
    ReaderReport,
    merge_producers,
    report_partition,
    report_topic,
)
from penstock.broker.stats import Counts, Stats


def no_connections(name: str) -> int:
    return 0


LOG = LogReport(start=10, end=110, visible=100, stable=90, bytes=5000)


def topic_of(stats: Stats, partitions: int, now: float) -> list[PartitionReport]:
    counted = stats.topic("orders")
    connections = {"busy": 3, "shy": 1}.get
    return [
        report_partition(number, counted.get(number), LOG, (), lambda name: connections(name, 0), now)
        for number in range(partitions)
    ]


def busy_and_shy() -> Stats:
    """`busy` writes to all four partitions in batches of ten, `shy` to the last one only and one at a time."""
    stats = Stats()
    for number in range(4):
        for second in range(4):
            stats.partition("orders", number).published("busy", 10, 1000, float(second))
    for second in range(4):
        stats.partition("orders", 3).published("shy", 1, 900, float(second))
    return stats


def test_producers_of_a_topic_are_merged_by_name_and_touch_only_some_partitions() -> None:
    report = report_topic("orders", None, topic_of(busy_and_shy(), 4, now=4.0))
    assert [(each.name, each.partitions, each.connections) for each in report.producers] == [
        ("busy", (0, 1, 2, 3), 3),
        ("shy", (3,), 1),
    ]
    busy, shy = report.producers
    assert busy.published == FlowReport(Counts(16, 160, 16_000), Counts(4.0, 40.0, 4000.0))
    assert shy.published == FlowReport(Counts(4, 4, 3600), Counts(1.0, 1.0, 900.0))


def test_a_topic_is_the_sum_of_its_partitions_and_averages_are_weighted() -> None:
    report = report_topic("orders", "mine", topic_of(busy_and_shy(), 5, now=4.0))
    assert (report.partitions, report.open_partitions, report.messages, report.bytes) == (5, 5, 500, 25_000)
    assert report.published == FlowReport(Counts(20, 164, 19_600), Counts(5.0, 41.0, 4900.0))
    told = report.told()
    assert told["published"]["average_batch_messages"] == 8.2
    assert told["published"]["average_message_bytes"] == 119.5
    assert told["producers"][0]["published"]["average_message_bytes"] == 100.0
    assert told["published"]["entries"] == 20
    assert set(told["delivered"]) == set(told["published"])
    assert set(told["delivered"].values()) == {0}
    assert told["entry_filters"] == "mine"
    json.dumps(told)


def test_the_order_in_which_partitions_are_met_does_not_matter() -> None:
    partitions = topic_of(busy_and_shy(), 4, now=4.0)
    producers = [producer for partition in partitions for producer in partition.producers]
    assert merge_producers(producers) == merge_producers(reversed(producers))


def test_readers_are_merged_by_kind_and_name_with_their_backlog() -> None:
    readers = [
        [ReaderReport("group", "billing", (0,), Backlog(2, 20, 200), 10)],
        [
            ReaderReport("group", "billing", (1,), Backlog(1, 5, 50), 95),
            ReaderReport("cursor", "billing", (1,), Backlog(0, 0, 0)),
        ],
    ]
    partitions = [report_partition(number, None, LOG, readers[number], no_connections, 0.0) for number in range(2)]
    report = report_topic("orders", None, partitions)
    assert report.readers == (
        ReaderReport("cursor", "billing", (1,), Backlog(0, 0, 0)),
        ReaderReport("group", "billing", (0, 1), Backlog(3, 25, 250)),
    )
    assert partitions[0].told()["readers"] == [
        {
            "kind": "group",
            "name": "billing",
            "partitions": [0],
            "position": 10,
            "backlog": {"entries": 2, "messages": 20, "bytes": 200},
        }
    ]


def test_a_partition_that_is_not_open_tells_nothing_of_its_log() -> None:
    stats = Stats()
    stats.partition("orders", 0).delivered(4, 10, 1000, 0.0)
    closed = report_partition(0, stats.topic("orders")[0], None, (), no_connections, 1.0)
    unused = report_partition(1, None, LOG, (), no_connections, 1.0)
    assert closed.told()["end"] is None
    assert closed.delivered.total == Counts(4, 10, 1000)
    assert closed.told()["delivered"]["entries"] == 4
    assert unused.published is NO_FLOW
    report = report_topic("orders", None, [closed, unused])
    assert (report.open_partitions, report.messages) == (1, 100)
    assert report_topic("orders", None, [closed]).told()["messages"] is None


def test_filter_counters_are_added_up() -> None:
    stats = Stats()
    for number in range(3):
        counts = stats.partition("orders", number).filters
        counts.accepted, counts.rejected, counts.failed = number, 10 * number, 100
    report = report_topic("orders", None, topic_of(stats, 4, 0.0))
    assert report.filters == FilterCounts(accepted=3, rejected=30, failed=300)
    assert report.told()["filters"]["rejected"] == 30
