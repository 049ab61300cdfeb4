"""Kafka's names for the broker's settings: one row for each, and how its values are spelt in both worlds.

| kind  | what it is                                                                                             |
|-------|--------------------------------------------------------------------------------------------------------|
| a row | a setting that the broker has, under Kafka's name for topics and, where there is one, for brokers      |
| fixed | what cannot be otherwise here: shown, and taken only with the value it has anyway                      |
| kept  | what tunes something that does not exist here (compaction, index files, replicas), or that readers of  |
|       | the topic cannot tell (how it is compressed): taken, remembered and shown, without effect              |

Settings of Penstock's own begin with `penstock.`. Limits that Kafka spells -1 or the largest number are None here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.broker.refusals import Refusal, Refused

LONG_MAX: Final = (1 << 63) - 1
FOREIGN: Final = "foreign"
BOOLEAN, STRING, INT, LONG, LIST, DOUBLE = 1, 2, 3, 5, 7, 6  # config types of DescribeConfigs


class ConfigName(NamedTuple):
    """A setting of the broker's under Kafka's names."""

    setting: str
    topic_name: str
    broker_name: str
    kind: int
    no_limit: int | None = None
    """The number that Kafka writes for no limit."""
    words: tuple[tuple[str, str], ...] = ()
    """Kafka's word and ours, for a choice."""
    below: bool = False
    """Whether every number below zero means no limit."""

    def read(self, text: str) -> object:
        """Kafka's text as the setting's value; what the number or word may be is for the setting to judge."""
        text = text.strip()
        if self.no_limit is not None and text == str(self.no_limit):
            return None
        if self.below and text.startswith("-") and text[1:].isdecimal():
            return None
        for theirs, ours in self.words:
            if text.lower() == theirs.lower():
                return ours
        return text

    def show(self, value: object) -> str:
        """The value in Kafka's spelling."""
        if value is None:
            return "" if self.no_limit is None else str(self.no_limit)
        for theirs, ours in self.words:
            if value == ours:
                return theirs
        return str(value).lower() if isinstance(value, bool) else str(value)


TABLE: Final = (
    ConfigName("cleanup", "cleanup.policy", "log.cleanup.policy", LIST),
    ConfigName("retention_ms", "retention.ms", "log.retention.ms", LONG, no_limit=-1),
    ConfigName("retention_bytes", "retention.bytes", "log.retention.bytes", LONG, no_limit=-1, below=True),
    ConfigName("segment_bytes", "segment.bytes", "log.segment.bytes", INT),
    ConfigName("segment_ms", "segment.ms", "log.roll.ms", LONG),
    ConfigName("entry_bytes_max", "max.message.bytes", "message.max.bytes", INT),
    ConfigName(
        *("time_type", "message.timestamp.type", "log.message.timestamp.type", STRING),
        words=(("CreateTime", "sender"), ("LogAppendTime", "log")),
    ),
    ConfigName(
        *("time_before_max_ms", "message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", LONG),
        no_limit=LONG_MAX,
    ),
    ConfigName(
        *("time_after_max_ms", "message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", LONG),
        no_limit=LONG_MAX,
    ),
    ConfigName("keep_unread", "penstock.keep.unread", "penstock.keep.unread", BOOLEAN),
    ConfigName("entry_filters", "penstock.entry.filters", "penstock.entry.filters", STRING),
    ConfigName("producers_max", "penstock.producers.max", "penstock.producers.max", INT),
    ConfigName(
        *("partition_producers_max", "penstock.partition.producers.max", "penstock.partition.producers.max", INT),
    ),
)

FIXED: Final[dict[str, tuple[str, int]]] = {
    "min.insync.replicas": ("1", INT),
    "remote.storage.enable": ("false", BOOLEAN),
}


class Kept(NamedTuple):
    """A setting without effect: its value as long as nobody sets it, and what it may be set to."""

    default: str
    kind: int
    words: tuple[str, ...] = ()
    least: int = 0

    def read(self, text: str) -> str:
        """The value as it is kept; ValueError when it is not one."""
        text = text.strip()
        if self.kind == BOOLEAN and text.lower() not in ("true", "false"):
            raise ValueError(text)
        if self.words and text not in self.words:
            raise ValueError(text)
        if self.kind in (INT, LONG) and int(text) < self.least:
            raise ValueError(text)
        if self.kind == DOUBLE and not 0 <= float(text) <= 1:
            raise ValueError(text)
        return text.lower() if self.kind == BOOLEAN else text


CODECS: Final = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")

KEPT: Final[dict[str, Kept]] = {
    "compression.type": Kept("producer", STRING, CODECS),
    "delete.retention.ms": Kept("86400000", LONG),
    "file.delete.delay.ms": Kept("60000", LONG),
    "flush.messages": Kept(str(LONG_MAX), LONG, least=1),
    "flush.ms": Kept(str(LONG_MAX), LONG),
    "index.interval.bytes": Kept("4096", INT),
    "max.compaction.lag.ms": Kept(str(LONG_MAX), LONG),
    "min.cleanable.dirty.ratio": Kept("0.5", DOUBLE),
    "min.compaction.lag.ms": Kept("0", LONG),
    "preallocate": Kept("false", BOOLEAN),
    "segment.index.bytes": Kept("10485760", INT),
    "segment.jitter.ms": Kept("0", LONG),
    "unclean.leader.election.enable": Kept("false", BOOLEAN),
}
SYNCED: Final = frozenset({"flush.messages", "flush.ms"})
"""Kept only where every append is synced anyway; where syncing is left to the system they would promise too much."""

BY_TOPIC_NAME: Final = {row.topic_name: row for row in TABLE}
BY_BROKER_NAME: Final = {row.broker_name: row for row in TABLE}


class Change:
    """What is to be set and taken back, in our words, out of what is given in Kafka's."""

    def __init__(self, rows: dict[str, ConfigName], kept: Mapping[str, str], is_synced: bool) -> None:
        """`kept`: what is kept already. `is_synced`: whether appends are synced before they are told."""
        self.values: dict[str, object] = {}
        self.unset: list[str] = []
        self._rows = rows
        self._before = dict(kept)
        self._kept = dict(kept)
        self._is_synced = is_synced

    def set(self, name: str, text: str | None) -> None:
        """Set one; Refused when it is unknown or fixed, or not a value for it."""
        if text is None:
            raise Refused(Refusal.BAD_SETTING, f"{name} has no value")
        row = self._rows.get(name)
        if row is not None:
            self.values[row.setting] = row.read(text)
        elif name in FIXED:
            if text.strip().lower() != FIXED[name][0]:
                raise Refused(Refusal.BAD_SETTING, f"{name} can only be {FIXED[name][0]} here, not {text}")
        else:
            self._keep(name, text)

    def drop(self, name: str) -> None:
        """Take one back; Refused when it is unknown."""
        if name in self._rows:
            self.unset.append(self._rows[name].setting)
        elif name in KEPT:
            self._kept.pop(name, None)
        elif name not in FIXED:
            raise Refused(Refusal.BAD_SETTING, f"there is no setting {name}")

    def finish(self) -> tuple[dict[str, object], list[str]]:
        """Values to be set, and names to be taken back."""
        if self._kept != self._before:
            if self._kept:
                self.values[FOREIGN] = json.dumps(self._kept, sort_keys=True)
            else:
                self.unset.append(FOREIGN)
        return self.values, self.unset

    def _keep(self, name: str, text: str) -> None:
        known = KEPT.get(name)
        if known is None:
            raise Refused(Refusal.BAD_SETTING, f"there is no setting {name}")
        try:
            value = known.read(text)
        except ValueError:
            raise Refused(Refusal.BAD_SETTING, f"{name} does not take {text!r}") from None
        if name in SYNCED and value != known.default and not self._is_synced:
            raise Refused(Refusal.BAD_SETTING, f"{name} cannot be heeded: this broker leaves syncing to the system")
        self._kept[name] = value


def kept_of(values: Mapping[str, object]) -> dict[str, str]:
    """What is kept among a topic's own settings."""
    text = values.get(FOREIGN)
    return json.loads(text) if isinstance(text, str) else {}
