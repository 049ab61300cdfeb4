"""What a broker tells of itself: counts and logs, put together when somebody asks.

Values only, for JSON, tables and metrics. A topic's figures are the sums of its partitions'; its producers are merged
by name and its readers (groups and cursors) too, each with the partitions that it touches: one that uses two of a
hundred partitions is in the list once, with those two.

A partition that is not open tells what was counted since the broker started, and nothing of its log: opening it for
the sake of statistics is for the caller to decide. Runs on: the loop thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, Final, NamedTuple

from penstock.broker.filters import FilterCounts
from penstock.broker.log.partition import Backlog
from penstock.broker.stats import NO_COUNTS, Counts, Flow, PartitionStats

NO_BACKLOG: Final = Backlog(0, 0, 0)


class FlowReport(NamedTuple):
    """What passed since the broker started, and what passes each second."""

    total: Counts = NO_COUNTS
    rates: Counts = NO_COUNTS

    @classmethod
    def of(cls, flow: Flow | None, now: float) -> FlowReport:
        """What a flow tells at this time."""
        return NO_FLOW if flow is None else cls(flow.total, flow.rates(now))

    def plus(self, other: FlowReport) -> FlowReport:
        """Both together."""
        return FlowReport(self.total.plus(other.total), self.rates.plus(other.rates))

    def told(self) -> dict[str, Any]:
        """As JSON; averages of what is added up are weighted by themselves."""
        entries, messages, size = self.total
        return {
            "messages": messages,
            "bytes": size,
            "messages_per_s": round(self.rates.messages, 3),
            "bytes_per_s": round(self.rates.bytes, 3),
            "entries": entries,
            "entries_per_s": round(self.rates.entries, 3),
            "average_batch_messages": _ratio(messages, entries),
            "average_batch_bytes": _ratio(size, entries),
            "average_message_bytes": _ratio(size, messages),
        }


NO_FLOW: Final = FlowReport()


class LogReport(NamedTuple):
    """What a partition's log holds."""

    start: int
    end: int
    visible: int
    """Readers see positions below it."""
    stable: int
    """Readers that want committed messages only see positions below it."""
    bytes: int

    @property
    def messages(self) -> int:
        """Positions that are there."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """A producer, by its name."""

    name: str
    partitions: tuple[int, ...]
    connections: int
    published: FlowReport

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "connections": self.connections,
            "partitions": list(self.partitions),
            "published": self.published.told(),
        }


@dataclass(frozen=True, slots=True)
class ReaderReport:
    """A group or a durable cursor, by its name, and what is left for it to read."""

    kind: str
    """"group" or "cursor"."""
    name: str
    partitions: tuple[int, ...]
    backlog: Backlog
    position: int | None = None
    """How far it has come, where the report is about one partition."""

    def told(self) -> dict[str, Any]:
        """As JSON."""
        told: dict[str, Any] = {"kind": self.kind, "name": self.name, "partitions": list(self.partitions)}
        if self.position is not None:
            told["position"] = self.position
        return {**told, "backlog": self.backlog._asdict()}


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition."""

    number: int
    log: LogReport | None
    published: FlowReport
    delivered: FlowReport
    producers: tuple[ProducerReport, ...]
    readers: tuple[ReaderReport, ...]
    filters: FilterCounts

    def told(self) -> dict[str, Any]:
        """As JSON."""
        log = self.log
        return {
            "partition": self.number,
            "is_open": log is not None,
            "start": None if log is None else log.start,
            "end": None if log is None else log.end,
            "visible": None if log is None else log.visible,
            "stable": None if log is None else log.stable,
            "messages": None if log is None else log.messages,
            "bytes": None if log is None else log.bytes,
            **_told_traffic(self),
        }


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic: the sums of its partitions."""

    name: str
    partitions: int
    entry_filters: str | None
    open_partitions: int
    messages: int
    bytes: int
    published: FlowReport
    delivered: FlowReport
    producers: tuple[ProducerReport, ...]
    readers: tuple[ReaderReport, ...]
    filters: FilterCounts

    def told(self) -> dict[str, Any]:
        """As JSON. Where a partition is not open the sums are of the others."""
        return {
            "topic": self.name,
            "partitions": self.partitions,
            "open_partitions": self.open_partitions,
            "messages": self.messages if self.open_partitions else None,
            "bytes": self.bytes if self.open_partitions else None,
            "entry_filters": self.entry_filters,
            **_told_traffic(self),
        }


def report_partition(
    number: int,
    stats: PartitionStats | None,
    log: LogReport | None,
    readers: Iterable[ReaderReport],
    connections: Callable[[str], int],
    now: float,
) -> PartitionReport:
    """What is known of one partition; `connections` tells how many each client has."""
    if stats is None:
        return PartitionReport(number, log, NO_FLOW, NO_FLOW, (), tuple(readers), FilterCounts())
    producers = [
        ProducerReport(name, (number,), connections(name), FlowReport.of(flow, now))
        for name, flow in stats.producers.items()
    ]
    return PartitionReport(
        number,
        log,
        FlowReport.of(stats.published_flow, now),
        FlowReport.of(stats.delivered_flow, now),
        tuple(producers),
        tuple(readers),
        stats.filters if stats.has_filtered else FilterCounts(),
    )


def report_topic(name: str, entry_filters: str | None, partitions: Iterable[PartitionReport]) -> TopicReport:
    """A topic, out of reports of all its partitions."""
    sums = _Sums()
    for partition in partitions:
        sums.add(partition)
    return TopicReport(
        name,
        sums.partitions,
        entry_filters,
        sums.open_partitions,
        sums.messages,
        sums.bytes,
        sums.published,
        sums.delivered,
        tuple(merge_producers(sums.producers)),
        tuple(merge_readers(sums.readers)),
        sums.filters,
    )


def merge_producers(producers: Iterable[ProducerReport]) -> list[ProducerReport]:
    """One report for each name, with all partitions it touches, sorted by name."""
    by_name: defaultdict[str, list[ProducerReport]] = defaultdict(list)
    for producer in producers:
        by_name[producer.name].append(producer)
    return [
        ProducerReport(name, _touched(same), same[0].connections, sum_flows(each.published for each in same))
        for name, same in sorted(by_name.items())
    ]


def merge_readers(readers: Iterable[ReaderReport]) -> list[ReaderReport]:
    """One report for each kind and name, with all partitions it reads, sorted."""
    by_name: defaultdict[tuple[str, str], list[ReaderReport]] = defaultdict(list)
    for reader in readers:
        by_name[reader.kind, reader.name].append(reader)
    return [
        ReaderReport(kind, name, _touched(same), sum_backlogs(each.backlog for each in same))
        for (kind, name), same in sorted(by_name.items())
    ]


def sum_flows(flows: Iterable[FlowReport]) -> FlowReport:
    """All together."""
    return reduce(FlowReport.plus, flows, NO_FLOW)


def sum_backlogs(backlogs: Iterable[Backlog]) -> Backlog:
    """All together."""
    return Backlog(*map(sum, zip(*backlogs, strict=True)))


class _Sums:
    """What is added up over partitions."""

    def __init__(self) -> None:
        self.partitions = self.open_partitions = self.messages = self.bytes = 0
        self.published = self.delivered = NO_FLOW
        self.producers: list[ProducerReport] = []
        self.readers: list[ReaderReport] = []
        self.filters = FilterCounts()

    def add(self, one: PartitionReport) -> None:
        self.partitions += 1
        if one.log is not None:
            self.open_partitions += 1
            self.messages += one.log.messages
            self.bytes += one.log.bytes
        self.published = self.published.plus(one.published)
        self.delivered = self.delivered.plus(one.delivered)
        self.producers += one.producers
        self.readers += one.readers
        self.filters = add_counts(self.filters, one.filters)


def add_counts(one: FilterCounts, other: FilterCounts) -> FilterCounts:
    """Both together."""
    return FilterCounts(*(getattr(one, each.name) + getattr(other, each.name) for each in fields(FilterCounts)))


def told_counts(counts: FilterCounts) -> dict[str, int]:
    """As JSON."""
    return {each.name: getattr(counts, each.name) for each in fields(FilterCounts)}


def _told_traffic(report: PartitionReport | TopicReport) -> dict[str, Any]:
    return {
        "published": report.published.told(),
        "delivered": report.delivered.told(),
        "producers": [producer.told() for producer in report.producers],
        "readers": [reader.told() for reader in report.readers],
        "filters": told_counts(report.filters),
    }


def _touched(reports: Sequence[ProducerReport] | Sequence[ReaderReport]) -> tuple[int, ...]:
    return tuple(sorted({partition for report in reports for partition in report.partitions}))


def _ratio(total: float, number: float) -> float:
    return round(total / number, 1) if number else 0.0
