"""A broker's figures as Prometheus reads them, in pieces of bounded size.

By topic and by reader, never by partition or by producer: names that clients make up would be series without end. The
text is written by `prometheus-client`, which is loaded when first asked for: it is large, and many brokers are never
scraped. Counters begin anew with the broker, as Prometheus expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.filters import NamedFilter
from penstock.broker.report import TopicReport

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_PER_PIECE: Final = 250

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what it is called, what it means, and its samples of one topic."""

    name: str
    kind: str
    text: str
    samples: Callable[[TopicReport], Iterable[Sample]]


class Gauge(NamedTuple):
    """A figure of the broker itself."""

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = {}


def _by_topic(value: Callable[[TopicReport], float]) -> Callable[[TopicReport], Iterable[Sample]]:
    return lambda report: [({"topic": report.name}, value(report))]


def _stored(value: Callable[[TopicReport], float]) -> Callable[[TopicReport], Iterable[Sample]]:
    return lambda report: [({"topic": report.name}, value(report))] if report.open_partitions else []


def _flow(way: str, unit: str) -> Family:
    value = _by_topic(lambda report: getattr(getattr(report, way).total, unit))
    return Family(f"penstock_topic_{way}_{unit}", "counter", f"{unit.title()} {way} since the broker started.", value)


def _backlog(report: TopicReport, field: str) -> Iterator[Sample]:
    for reader in report.readers:
        yield {"topic": report.name, "kind": reader.kind, "reader": reader.name}, getattr(reader.backlog, field)


def _verdicts(report: TopicReport) -> Iterator[Sample]:
    for verdict in ("accepted", "rejected", "rescheduled", "failed"):
        yield {"topic": report.name, "verdict": verdict}, getattr(report.filters, verdict)


TOPIC_FAMILIES: Final[Sequence[Family]] = (
    *(_flow(way, unit) for way in ("published", "delivered") for unit in ("entries", "messages", "bytes")),
    Family(
        "penstock_topic_partitions", "gauge", "Partitions of the topic.", _by_topic(lambda report: report.partitions)
    ),
    Family(
        "penstock_topic_stored_messages",
        "gauge",
        "Messages in the open partitions of the topic.",
        _stored(lambda report: report.messages),
    ),
    Family(
        "penstock_topic_stored_bytes",
        "gauge",
        "Bytes in the open partitions of the topic.",
        _stored(lambda report: report.bytes),
    ),
    Family(
        "penstock_topic_producers",
        "gauge",
        "Producers of the topic that are connected, by name.",
        _by_topic(lambda report: sum(producer.connections > 0 for producer in report.producers)),
    ),
    Family(
        "penstock_reader_backlog_messages",
        "gauge",
        "Messages that a group or cursor has not read yet.",
        lambda report: _backlog(report, "messages"),
    ),
    Family(
        "penstock_reader_backlog_entries",
        "gauge",
        "Entries that a group or cursor has not read yet.",
        lambda report: _backlog(report, "entries"),
    ),
    Family(
        "penstock_topic_filtered_entries", "counter", "Verdicts of entry filters on entries of the topic.", _verdicts
    ),
)


def write_metrics(
    gauges: Iterable[Gauge], filters: Iterable[NamedFilter], topics: Sequence[TopicReport]
) -> Iterator[bytes]:
    """The page that is scraped, piece by piece."""
    from prometheus_client.process_collector import ProcessCollector

    yield b"".join(
        _text(_metric(gauge.name, gauge.text, "gauge", [(dict(gauge.labels), gauge.value)])) for gauge in gauges
    )
    yield _text(*ProcessCollector(registry=None).collect())
    yield _text(_filter_metric(filters))
    for family in TOPIC_FAMILIES:
        for at in range(0, max(len(topics), 1), TOPICS_PER_PIECE):
            part = topics[at : at + TOPICS_PER_PIECE]
            samples = [sample for report in part for sample in family.samples(report)]
            text = _text(_metric(family.name, family.text, family.kind, samples))
            yield text if at == 0 else _without_comments(text)


def _filter_metric(filters: Iterable[NamedFilter]) -> Metric:
    samples = [
        ({"filter": each.text, "verdict": verdict}, float(getattr(each.counts, verdict)))
        for each in filters
        for verdict in ("accepted", "rejected", "rescheduled", "failed")
    ]
    return _metric("penstock_filter_verdicts", "Verdicts of each entry filter.", "counter", samples)


def _metric(name: str, text: str, kind: str, samples: Iterable[Sample]) -> Metric:
    from prometheus_client import Metric

    metric = Metric(name, text, kind)
    sample_name = f"{name}_total" if kind == "counter" else name
    for labels, value in samples:
        metric.add_sample(sample_name, labels, value)
    return metric


class _Collected:
    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Any]:
        return self._metrics


def _text(*metrics: Any) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(_Collected(metrics))


def _without_comments(text: bytes) -> bytes:
    """The samples alone, of a metric whose first piece has named it."""
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
