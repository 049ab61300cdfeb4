from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker import prometheus
from penstock.broker.filters import FilterCounts, NamedFilter, PropertyFilter
from penstock.broker.log.partition import Backlog
from penstock.broker.prometheus import TOPIC_FAMILIES, Gauge, write_metrics
from penstock.broker.report import FlowReport, ProducerReport, ReaderReport, TopicReport
from penstock.broker.stats import Counts

AWKWARD = 'a "quoted"\\group\nof two lines'


def report(name: str, open_partitions: int = 2) -> TopicReport:
    return TopicReport(
        name,
        partitions=4,
        entry_filters=None,
        open_partitions=open_partitions,
        messages=100,
        bytes=5000,
        published=FlowReport(Counts(10, 100, 5000), Counts(1, 10, 500)),
        delivered=FlowReport(Counts(20, 200, 10_000)),
        producers=(ProducerReport("here", (0,), 2, FlowReport()), ProducerReport("gone", (0,), 0, FlowReport())),
        readers=(ReaderReport("group", AWKWARD, (0, 1), Backlog(3, 30, 300)),),
        filters=FilterCounts(accepted=7, rejected=2),
    )


def scrape(topics: Sequence[TopicReport]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """What the official parser reads: values by name and labels."""
    mine = NamedFilter("property(region = eu)", PropertyFilter("region = eu"))
    mine.counts.rejected = 5
    gauges = [Gauge("penstock_broker_info", "The broker.", 1, {"version": "1"}), Gauge("penstock_topics", "Topics.", 3)]
    text = b"".join(write_metrics(gauges, [mine], topics)).decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in found
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            key = tuple(sorted(sample.labels.items()))
            assert key not in values
            values[key] = sample.value
    return found


def test_the_official_parser_reads_every_figure() -> None:
    found = scrape([report("orders")])
    topic = (("topic", "orders"),)
    assert found["penstock_broker_info"] == {(("version", "1"),): 1}
    assert found["penstock_topics"] == {(): 3}
    assert found["penstock_topic_published_messages_total"] == {topic: 100}
    assert found["penstock_topic_delivered_bytes_total"] == {topic: 10_000}
    assert found["penstock_topic_delivered_entries_total"] == {topic: 20}
    assert found["penstock_topic_stored_bytes"] == {topic: 5000}
    assert found["penstock_topic_producers"] == {topic: 1}
    reader = (("kind", "group"), ("reader", AWKWARD), ("topic", "orders"))
    assert found["penstock_reader_backlog_messages"] == {reader: 30}
    assert found["penstock_reader_backlog_entries"] == {reader: 3}
    verdicts = found["penstock_topic_filtered_entries_total"]
    assert verdicts[("topic", "orders"), ("verdict", "rejected")] == 2
    of_filter = found["penstock_filter_verdicts_total"]
    assert of_filter[("filter", "property(region = eu)"), ("verdict", "rejected")] == 5
    assert found["process_resident_memory_bytes"][()] > 0


def test_many_topics_are_written_in_pieces_that_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "TOPICS_PER_PIECE", 3)
    found = scrape([report(f"topic-{number}") for number in range(10)])
    assert len(found["penstock_topic_published_messages_total"]) == 10
    assert len(found["penstock_topic_filtered_entries_total"]) == 40
    pieces = list(write_metrics([], [], [report(f"topic-{number}") for number in range(10)]))
    assert max(piece.count(b"\n") for piece in pieces[3:]) <= 3 * 4 + 2


def test_a_topic_of_which_nothing_is_open_tells_nothing_of_its_logs() -> None:
    found = scrape([report("closed", open_partitions=0), report("open")])
    assert list(found["penstock_topic_stored_bytes"]) == [(("topic", "open"),)]
    assert len(found["penstock_topic_published_bytes_total"]) == 2


def test_a_broker_without_topics_can_be_scraped() -> None:
    text = b"".join(write_metrics([], [], [])).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {family.name for family in TOPIC_FAMILIES} <= names


def test_the_library_is_not_loaded_before_somebody_scrapes() -> None:
    code = "import sys, penstock.broker.prometheus; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
