"""What can be set for a broker and for its topics: two tables, each the one source of names, kinds, defaults and texts.

A topic's setting is looked for in four places, and the nearest wins: the topic, its namespace, the broker as it was
changed at run time, the broker as it was started (`BrokerSettings.topics`); else the default of the table holds. Names
are neutral; each door has a table from its system's names to these.

An *open* setting takes None, which means without a limit. Must never read a file or the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from penstock.broker.refusals import Refusal, Refused
from penstock.config.kinds import GIB, INT32_MAX, KIB, Choice, Flag, Kind, Text, count, size
from penstock.errors import ConfigError, UnknownOptionError

Fsync = Literal["always", "group", "system"]
TimeType = Literal["sender", "log"]
FilterDefault = Literal["accept", "reject"]

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_EVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Only:
    """One word, and why no other is taken."""

    word: str
    why: str

    label: ClassVar[str] = "choice"

    @property
    def allowed(self) -> str:
        """The word, and why no other."""
        return f"{self.word} only: {self.why}"

    def read(self, value: object) -> str:
        """The word."""
        if not isinstance(value, str) or value.strip().lower() != self.word:
            raise ValueError(value)
        return self.word

    def show(self, value: object) -> str:
        """The word."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table; an open one takes None, for no limit."""

    name: str
    kind: Kind
    default: object
    text: str
    open: bool = False

    @property
    def allowed(self) -> str:
        """All values that are taken, to end the sentence "takes ..."."""
        return f"{self.kind.allowed}, or none for no limit" if self.open else self.kind.allowed

    def read(self, value: object) -> object:
        """The canonical value; ValueError when it is not taken."""
        if value is None and self.open:
            return None
        try:
            return self.kind.read(value)
        except (TypeError, ValueError):
            raise ValueError(f"{self.name} takes {self.allowed}; not {value!r}") from None

    def show(self, value: object) -> str:
        """The value as documentation spells it."""
        return "none" if value is None else self.kind.show(value)


def _ms(low: int = 0, high: int = _EVER_MS) -> Kind:
    return count(low, high)


TOPIC_TABLE: Final[tuple[Setting, ...]] = (
    Setting("retention_ms", _ms(), 7 * _DAY_MS, "Entries older than this are dropped, a segment at a time.", open=True),
    Setting("retention_bytes", size(0, 1 << 62), None, "Of a partition no more than this is kept.", open=True),
    Setting("segment_bytes", size(KIB, 2 * GIB), GIB, "A segment that is this large gets a successor."),
    Setting("segment_ms", _ms(1), 7 * _DAY_MS, "A segment that is this old gets a successor."),
    Setting("entry_bytes_max", size(0, INT32_MAX), 1_048_588, "The largest entry that is taken."),
    Setting("time_type", Choice(("sender", "log")), "sender", "Whose time entries have: their sender's or the log's."),
    Setting("time_before_max_ms", _ms(), None, "How far an entry's time may lie behind the broker's.", open=True),
    Setting("time_after_max_ms", _ms(), _HOUR_MS, "How far an entry's time may lie ahead of the broker's.", open=True),
    Setting("cleanup", Only("delete", "logs are not compacted"), "delete", "What becomes of old entries."),
    Setting(
        "keep_unread", Flag(), False, "What a durable cursor has not acknowledged is kept, whatever retention says."
    ),
    Setting("entry_filters", Text(4 * KIB), None, "The entry filters that readers' entries go through.", open=True),
    Setting(
        "foreign", Text(4 * KIB), None, "What other systems' tools set and nothing here heeds, as JSON.", open=True
    ),
    Setting("producers_max", count(1, INT32_MAX), 100_000, "Producers of the topic at a time, by name and id."),
    Setting(
        "partition_producers_max", count(1, INT32_MAX), 20_000, "The same for each partition, and the ids it remembers."
    ),
)

BROKER_TABLE: Final[tuple[Setting, ...]] = (
    Setting(
        *("fsync", Choice(("always", "group", "system")), "group"),
        "When what was written is synced: file by file, together with all that came meanwhile, or as the system likes.",
    ),
    Setting("node_id", count(0, INT32_MAX), 1, "The broker's number."),
    Setting("topics_auto_create", Flag(), True, "Whether a topic is created when it is first used."),
    Setting(
        "partitions_default", count(1, 10_000), 1, "Partitions of a topic that is created without saying how many."
    ),
    Setting("partitions_max", count(1, 100_000), 10_000, "Partitions of one topic."),
    Setting("partitions_total_max", count(1, 1_000_000), 200_000, "Partitions of all topics."),
    Setting("partitions_open_max", count(16, 1_000_000), 2_000, "Partitions kept open although nobody uses them."),
    Setting("producer_expiration_ms", _ms(1), _DAY_MS, "A producer id is forgotten by a partition after so long."),
    Setting("producer_idle_ms", _ms(1), 10 * _MINUTE_MS, "A producer counts as gone after so long without an entry."),
    Setting("transaction_timeout_max_ms", _ms(1, INT32_MAX), 15 * _MINUTE_MS, "The longest transaction."),
    Setting(
        "transactional_id_expiration_ms", _ms(1), 7 * _DAY_MS, "An unused transactional id is forgotten after this."
    ),
    Setting("retention_check_ms", _ms(1), 5 * _MINUTE_MS, "How often each partition's retention is looked at."),
    Setting("checkpoint_ms", _ms(1), _MINUTE_MS, "How often a busy partition's producers are written down."),
    Setting("checkpoint_entries", count(1, INT32_MAX), 20_000, "The same after so many entries."),
    Setting("cursors_max", count(0, 1_000_000), 1_000, "Durable cursors of one partition."),
    Setting("cursor_ranges_max", count(1, 1_000_000), 10_000, "Acknowledged ranges behind a cursor's position."),
    Setting(
        *("filter_default", Choice(("accept", "reject")), "accept"),
        "The verdict of an entry filter that fails, or that has rescheduled an entry often or long enough.",
    ),
    Setting(
        "filter_reschedules_max", count(0, INT32_MAX), 10, "How often filters may reschedule an entry for a reader."
    ),
    Setting(
        "filter_reschedule_max_ms", _ms(), 30 * _SECOND_MS, "How long filters may reschedule an entry for a reader."
    ),
    Setting("filter_reschedule_delay_ms", _ms(1), _SECOND_MS, "A rescheduled entry is judged again after this."),
)

_TOPIC_ROWS = {row.name: row for row in TOPIC_TABLE}
_BROKER_ROWS = {row.name: row for row in BROKER_TABLE}
_TOPIC_DEFAULTS: dict[str, Any] = {row.name: row.default for row in TOPIC_TABLE}
_BROKER_DEFAULTS: dict[str, Any] = {row.name: row.default for row in BROKER_TABLE}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What holds for one topic. Made by `resolve`, which has read the values."""

    retention_ms: int | None = _TOPIC_DEFAULTS["retention_ms"]
    retention_bytes: int | None = _TOPIC_DEFAULTS["retention_bytes"]
    segment_bytes: int = _TOPIC_DEFAULTS["segment_bytes"]
    segment_ms: int = _TOPIC_DEFAULTS["segment_ms"]
    entry_bytes_max: int = _TOPIC_DEFAULTS["entry_bytes_max"]
    time_type: TimeType = _TOPIC_DEFAULTS["time_type"]
    time_before_max_ms: int | None = _TOPIC_DEFAULTS["time_before_max_ms"]
    time_after_max_ms: int | None = _TOPIC_DEFAULTS["time_after_max_ms"]
    cleanup: str = _TOPIC_DEFAULTS["cleanup"]
    keep_unread: bool = _TOPIC_DEFAULTS["keep_unread"]
    entry_filters: str | None = _TOPIC_DEFAULTS["entry_filters"]
    foreign: str | None = _TOPIC_DEFAULTS["foreign"]
    producers_max: int = _TOPIC_DEFAULTS["producers_max"]
    partition_producers_max: int = _TOPIC_DEFAULTS["partition_producers_max"]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What holds for one broker, from its start to its end. ConfigError when a value is not taken."""

    folder: Path
    fsync: Fsync = _BROKER_DEFAULTS["fsync"]
    node_id: int = _BROKER_DEFAULTS["node_id"]
    topics_auto_create: bool = _BROKER_DEFAULTS["topics_auto_create"]
    partitions_default: int = _BROKER_DEFAULTS["partitions_default"]
    partitions_max: int = _BROKER_DEFAULTS["partitions_max"]
    partitions_total_max: int = _BROKER_DEFAULTS["partitions_total_max"]
    partitions_open_max: int = _BROKER_DEFAULTS["partitions_open_max"]
    producer_expiration_ms: int = _BROKER_DEFAULTS["producer_expiration_ms"]
    producer_idle_ms: int = _BROKER_DEFAULTS["producer_idle_ms"]
    transaction_timeout_max_ms: int = _BROKER_DEFAULTS["transaction_timeout_max_ms"]
    transactional_id_expiration_ms: int = _BROKER_DEFAULTS["transactional_id_expiration_ms"]
    retention_check_ms: int = _BROKER_DEFAULTS["retention_check_ms"]
    checkpoint_ms: int = _BROKER_DEFAULTS["checkpoint_ms"]
    checkpoint_entries: int = _BROKER_DEFAULTS["checkpoint_entries"]
    cursors_max: int = _BROKER_DEFAULTS["cursors_max"]
    cursor_ranges_max: int = _BROKER_DEFAULTS["cursor_ranges_max"]
    filter_default: FilterDefault = _BROKER_DEFAULTS["filter_default"]
    filter_reschedules_max: int = _BROKER_DEFAULTS["filter_reschedules_max"]
    filter_reschedule_max_ms: int = _BROKER_DEFAULTS["filter_reschedule_max_ms"]
    filter_reschedule_delay_ms: int = _BROKER_DEFAULTS["filter_reschedule_delay_ms"]
    topics: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Settings of topics that hold unless something nearer says otherwise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        try:
            for name, row in _BROKER_ROWS.items():
                object.__setattr__(self, name, row.read(getattr(self, name)))
            object.__setattr__(self, "topics", {name: _row(name).read(value) for name, value in self.topics.items()})
        except UnknownOptionError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.partitions_default > self.partitions_max:
            raise ConfigError(
                f"partitions_default {self.partitions_default} is above partitions_max {self.partitions_max}"
            )


def read_topic_settings(given: Mapping[str, object]) -> dict[str, object]:
    """The values given for settings of topics, canonical; Refused when one is unknown or does not take its value."""
    try:
        return {name: _row(name).read(value) for name, value in given.items()}
    except ValueError as error:
        raise Refused(Refusal.BAD_SETTING, str(error)) from None


def resolve(*layers: Mapping[str, object]) -> TopicSettings:
    """What holds when these layers are looked through in turn, the nearest first. Unknown names are passed over."""
    found: dict[str, Any] = {}
    for layer in reversed(layers):
        found.update((name, value) for name, value in layer.items() if name in _TOPIC_ROWS)
    return TopicSettings(**found)


def topic_setting(name: str) -> Setting:
    """The row of a setting; Refused when there is none."""
    try:
        return _row(name)
    except UnknownOptionError as error:
        raise Refused(Refusal.BAD_SETTING, str(error)) from None


def table(rows: tuple[Setting, ...]) -> str:
    """The table for documents."""
    lines = ["| setting | takes | default | |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.allowed} | {row.show(row.default)} | {row.text} |" for row in rows]
    return "\n".join(lines)


def _row(name: str) -> Setting:
    row = _TOPIC_ROWS.get(name)
    if row is None:
        near = get_close_matches(name, _TOPIC_ROWS, 1)
        raise UnknownOptionError(f"there is no topic setting {name!r}" + (f"; {near[0]}?" if near else ""))
    return row


assert [f.name for f in dataclasses.fields(TopicSettings)] == list(_TOPIC_ROWS)
