"""Asks a broker for what reports consist of, in pieces of bounded work.

What takes long is an iterator that does a bounded piece of work between two values, so that whoever drives it lets
others have their turn. What was looked at first may be some turns older than what was looked at last.

Partitions that are not open are opened for a topic that is asked for by name. For an overview no more than `OPENED_MAX`
are, and for metrics none: a broker with very many of them tells of its logs what is known without looking.
Runs on: the loop thread.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock import __version__
from penstock.broker.groups.questions import GroupPosition, GroupSeen
from penstock.broker.log.partition import Backlog
from penstock.broker.prometheus import Gauge, write_metrics
from penstock.broker.report import (
    NO_BACKLOG,
    LogReport,
    PartitionReport,
    ReaderReport,
    TopicReport,
    report_partition,
    report_topic,
    told_counts,
)
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.partition_state import PartitionState
    from penstock.broker.topics import Topic

OPENED_MAX: Final = 256
PARTITIONS_PER_PIECE: Final = 50


class Moment(Protocol):
    """What time it is: a loop tells."""

    @property
    def now(self) -> float:
        """Monotonic seconds."""

    @property
    def now_ms(self) -> int:
        """Milliseconds of the wall clock."""


class GroupsSeen(Protocol):
    """The groups of a broker, as far as reports tell of them."""

    def seen(self) -> Iterable[GroupSeen]:
        """All groups."""

    def positions(self) -> Iterable[GroupPosition]:
        """All positions that groups have committed."""


class Reporter:
    """What a broker tells of itself."""

    def __init__(self, broker: Broker, moment: Moment, groups: GroupsSeen, connections: Callable[[], int]) -> None:
        """`connections` tells how many there are, of all doors."""
        self._broker = broker
        self._moment = moment
        self._groups = groups
        self._connections = connections
        self._started_at = moment.now
        self._started_ms = moment.now_ms

    def broker(self) -> dict[str, Any]:
        """The broker itself, as JSON."""
        broker = self._broker
        return {
            "version": __version__,
            "node_id": broker.settings.node_id,
            "cluster_id": broker.cluster_id,
            "data": str(broker.settings.folder),
            "fsync": broker.settings.fsync,
            "started_ms": self._started_ms,
            "uptime_s": round(self._moment.now - self._started_at, 3),
            "connections": self._connections(),
            "topics": len(broker.topics),
            "partitions": broker.topics.partition_count,
            "open_partitions": len(broker.partitions),
        }

    def overview(self) -> Iterator[bytes]:
        """The broker, its topics, groups and filters, as a JSON text in pieces."""
        yield f'{{"broker": {json.dumps(self.broker())}, "topics": ['.encode()
        readers: list[tuple[str, ReaderReport]] = []
        first = True
        for report in self._topics(OPENED_MAX):
            if report is None:
                yield b""
                continue
            readers += ((report.name, reader) for reader in report.readers if reader.kind == "group")
            yield f"{'' if first else ', '}{json.dumps(report.told())}".encode()
            first = False
        groups = _told_groups(self._groups.seen(), readers)
        filters = [{"filter": each.text, **told_counts(each.counts)} for each in self._broker.filters.all()]
        yield f'], "groups": {json.dumps(groups)}, "filters": {json.dumps(filters)}}}\n'.encode()

    def topic(self, topic: Topic) -> Iterator[bytes]:
        """A topic with all its partitions, as a JSON text in pieces."""
        positions = self._positions(topic.name)
        reports: list[PartitionReport] = []
        for number in range(topic.partitions):
            reports.append(self._partition(topic, number, positions, self._opened(topic, number)))
            if len(reports) % PARTITIONS_PER_PIECE == 0:
                yield b""
        told = report_topic(topic.name, topic.settings.entry_filters, reports).told()
        yield f'{json.dumps(told)[:-1]}, "each_partition": ['.encode()
        for at in range(0, len(reports), PARTITIONS_PER_PIECE):
            part = ", ".join(json.dumps(report.told()) for report in reports[at : at + PARTITIONS_PER_PIECE])
            yield f"{', ' if at else ''}{part}".encode()
        yield b"]}\n"

    def metrics(self) -> Iterator[bytes]:
        """Everything that Prometheus is told, in pieces."""
        reports: list[TopicReport] = []
        for report in self._topics(0):
            if report is not None:
                reports.append(report)
            yield b""
        yield from write_metrics(self._gauges(), list(self._broker.filters.all()), reports)

    def _gauges(self) -> Iterator[Gauge]:
        told = self.broker()
        labels = {name: str(told[name]) for name in ("version", "node_id", "cluster_id", "fsync")}
        yield Gauge("penstock_broker_info", "The broker, with what it is as labels.", 1, labels)
        yield Gauge("penstock_uptime_seconds", "Seconds since the broker started.", told["uptime_s"])
        yield Gauge("penstock_connections", "Connections of all doors.", told["connections"])
        yield Gauge("penstock_topics", "Topics.", told["topics"])
        yield Gauge("penstock_partitions", "Partitions of all topics.", told["partitions"])
        yield Gauge("penstock_open_partitions", "Partitions that are open.", told["open_partitions"])
        yield Gauge("penstock_groups", "Groups of readers.", sum(1 for _ in self._groups.seen()))

    def _topics(self, opened_max: int) -> Iterator[TopicReport | None]:
        """A report for each topic, in the order of their names; None to let others have their turn."""
        positions = self._all_positions()
        left = opened_max
        looked = 0
        for topic in sorted(self._broker.topics, key=lambda topic: topic.name):
            reports: list[PartitionReport] = []
            for number in range(topic.partitions):
                state = self._broker.partitions.find(topic.name, number)
                if state is None and left > 0:
                    left -= 1
                    state = self._opened(topic, number)
                reports.append(self._partition(topic, number, positions[topic.name], state))
                looked += 1
                if looked % PARTITIONS_PER_PIECE == 0:
                    yield None
            yield report_topic(topic.name, topic.settings.entry_filters, reports)

    def _opened(self, topic: Topic, number: int) -> PartitionState | None:
        try:
            return self._broker.partition(topic.name, number)
        except PenstockError:  # deleted meanwhile, or its files cannot be read
            return None

    def _partition(
        self, topic: Topic, number: int, positions: Positions, state: PartitionState | None
    ) -> PartitionReport:
        stats = self._broker.stats
        counted = stats.topic(topic.name).get(number)
        log = None if state is None else log_report(state)
        readers = [] if state is None else self._readers(topic, number, positions.get(number, []), state)
        return report_partition(number, counted, log, readers, stats.connections, self._moment.now)

    def _readers(
        self, topic: Topic, number: int, positions: list[tuple[str, int]], state: PartitionState
    ) -> Iterator[ReaderReport]:
        for group, position in positions:
            yield ReaderReport("group", group, (number,), _backlog(state, position), position)
        for cursor in self._broker.cursors.of(topic, number):
            yield ReaderReport("cursor", cursor.name, (number,), cursor.backlog(state.log), cursor.position)

    def _all_positions(self) -> defaultdict[str, Positions]:
        found: defaultdict[str, Positions] = defaultdict(lambda: defaultdict(list))
        for group, topic, partition, position in self._groups.positions():
            found[topic][partition].append((group, position))
        return found

    def _positions(self, topic: str) -> Positions:
        return self._all_positions()[topic]


Positions = dict[int, list[tuple[str, int]]]
"""By partition: groups, and how far each has come."""


def _told_groups(groups: Iterable[GroupSeen], readers: Iterable[tuple[str, ReaderReport]]) -> list[dict[str, Any]]:
    """Each group with the topics it has committed in, and what is left for it to read there."""
    by_group: defaultdict[str, list[tuple[str, ReaderReport]]] = defaultdict(list)
    for topic, reader in readers:
        by_group[reader.name].append((topic, reader))
    return [
        {
            **group._asdict(),
            "topics": [topic for topic, _ in by_group[group.name]],
            "backlog_messages": sum(reader.backlog.messages for _, reader in by_group[group.name]),
        }
        for group in sorted(groups)
    ]


def log_report(state: PartitionState) -> LogReport:
    """What the log of an open partition holds."""
    log = state.log
    return LogReport(log.start, log.end, log.visible, state.readable_end(committed_only=True), log.size)


def _backlog(state: PartitionState, position: int) -> Backlog:
    log = state.log
    start = max(position, log.start)
    return NO_BACKLOG if start >= log.visible else log.backlog(start)
