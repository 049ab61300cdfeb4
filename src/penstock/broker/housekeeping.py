"""What a broker does when nobody asks: retention, checkpoints, forgetting, closing what is not used.

Every piece of work is bounded: a turn looks at a few partitions and says when it wants to go on, so that nobody waits
for housekeeping. When nothing is due, nothing runs.

| duty        | when                                          | a turn does                                         |
|-------------|-----------------------------------------------|-----------------------------------------------------|
| checkpoints | a partition has `checkpoint_entries` new      | writes down producers of at most `CHECKPOINTS`      |
|             | entries, or any for `checkpoint_ms`           | partitions                                          |
| retention   | each partition every `retention_check_ms`     | looks at `LOOKS` partitions; ages segments and      |
|             |                                               | producers on the way                                |
| closing     | more than `partitions_open_max` are open      | closes at most `CLOSINGS` that nobody uses          |

Retention wins over readers, as in Kafka: what is old or too much goes, read or not. Where a topic's `keep_unread` is
set, what a durable cursor has not acknowledged stays.

A partition that is not open is opened to look at it, and closed again; until when there can be nothing to do in it is
remembered, so that idle partitions are rarely opened. Runs on: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.cursor import Cursors
from penstock.broker.partition_state import PartitionState
from penstock.broker.partitions import Partitions
from penstock.broker.refusals import Refused
from penstock.broker.settings import BrokerSettings
from penstock.broker.topics import Topic, Topics
from penstock.errors import StorageError

if TYPE_CHECKING:
    from penstock.broker.log.store import LogStore

_log = logging.getLogger("penstock.broker")

LOOKS: Final = 16
SKIPS: Final = 1000
PAUSE_S: Final = 0.1
CHECKPOINTS: Final = 64
CHECKPOINT_LOOK_S: Final = 1.0
CLOSINGS: Final = 64
CLOSING_LOOK_S: Final = 10.0
UNUSED_S: Final = 60.0
NEVER_MS: Final = 1 << 63


class Housekeeping:
    """All duties of a broker."""

    def __init__(
        self, topics: Topics, partitions: Partitions, cursors: Cursors, logs: LogStore, settings: BrokerSettings
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._cursors = cursors
        self._logs = logs
        self._open_max = settings.partitions_open_max
        self._checkpoint_s = settings.checkpoint_ms / 1000
        self._checkpoint_entries = settings.checkpoint_entries
        self._retention_s = settings.retention_check_ms / 1000
        self._changed: dict[PartitionState, float | None] = {}
        self._checkpoint_at: float | None = None
        self._synced_at: float | None = None
        self._closing_at: float | None = None
        self._round: Iterator[tuple[Topic, int]] | None = None
        self._round_began = 0.0
        self._look_at: float | None = None
        self._nothing_before_ms: dict[tuple[UUID, int], int] = {}

    def __repr__(self) -> str:
        return f"<Housekeeping {len(self._changed)} partitions to be written down, next look at {self._look_at}>"

    def turn(self, now: float, now_ms: int) -> float | None:
        """Do what is due, a bounded piece of it; returns when to come back."""
        if self._look_at is None:
            self._look_at = now + self._retention_s
        if self._closing_at is None:
            self._closing_at = now + CLOSING_LOOK_S
        if self._changed and self._checkpoint_at is None:
            self._checkpoint_at = now + CHECKPOINT_LOOK_S
        if self._checkpoint_at is not None and now >= self._checkpoint_at:
            self._checkpoint_at = self._checkpoints(now)
        if now >= self._look_at:
            self._look_at = self._retention(now, now_ms)
        if now >= self._closing_at:
            self._closing_at = self._closings(now)
        due = min(self._look_at, self._closing_at) if len(self._partitions) > self._open_max else self._look_at
        return due if self._checkpoint_at is None else min(due, self._checkpoint_at)

    def changed(self, state: PartitionState) -> None:
        """A partition's producers are to be written down some time."""
        self._changed.setdefault(state, None)

    def settings_changed(self) -> None:
        """What was found out about partitions under other settings does not hold any more."""
        self._nothing_before_ms.clear()

    def drop_topic(self, topic: Topic) -> None:
        """The topic is deleted."""
        for number in range(topic.partitions):
            self._nothing_before_ms.pop((topic.id, number), None)

    # Checkpoints

    def _checkpoints(self, now: float) -> float | None:
        written = 0
        for state, since in list(self._changed.items()):
            if state.gone or not state.unsaved:
                del self._changed[state]
            elif since is None:
                self._changed[state] = now
            elif state.unsaved >= self._checkpoint_entries or now - since >= self._checkpoint_s:
                self._partitions.checkpoint(state)
                self._changed[state] = now
                written += 1
                if written == CHECKPOINTS:
                    break
        if written and (self._synced_at is None or now - self._synced_at >= self._checkpoint_s):
            self._synced_at = now
            self._logs.checkpoint()
            self._cursors.retry()
        if not self._changed:
            return None
        return now + (PAUSE_S if written == CHECKPOINTS else CHECKPOINT_LOOK_S)

    # Retention

    def _retention(self, now: float, now_ms: int) -> float:
        if self._round is None:
            self._round_began = now
            self._round = self._everything()
        looks = skips = 0
        for topic, number in self._round:
            if self._topics.by_id(topic.id) is not topic:
                continue
            if self._look(topic, number, now, now_ms):
                looks += 1
            else:
                skips += 1
            if looks >= LOOKS or skips >= SKIPS:
                return now + PAUSE_S
        self._round = None
        return max(self._round_began + self._retention_s, now + PAUSE_S)

    def _everything(self) -> Iterator[tuple[Topic, int]]:
        for topic in self._topics:
            for number in range(topic.partitions):
                yield topic, number

    def _look(self, topic: Topic, number: int, now: float, now_ms: int) -> bool:
        """See to one partition; whether that was any work."""
        state = self._partitions.find(topic.name, number)
        was_open = state is not None
        if state is None and now_ms < self._nothing_before_ms.get((topic.id, number), 0):
            return False
        try:
            if state is None:
                state = self._partitions.get(topic.name, number, now - UNUSED_S, now_ms)
            self._tidy(state, now, now_ms)
            if not was_open and self._partitions.is_idle(state):
                self._nothing_before_ms[topic.id, number] = _nothing_before_ms(state)
                self._partitions.close(state)
        except (Refused, StorageError) as error:
            _log.warning("%s-%d cannot be looked after: %s", topic.name, number, error)
        return True

    def _tidy(self, state: PartitionState, now: float, now_ms: int) -> None:
        self._nothing_before_ms.pop((state.topic.id, state.number), None)
        state.names.expire(now)
        if state.producers.expire(now_ms):
            state.note_change()
        keep_from = self._cursors.oldest(state.topic, state.number) if state.topic.settings.keep_unread else None
        dropped = state.enforce_retention(now_ms, keep_from)
        if dropped:
            _log.info("%s: retention dropped %d entries, it starts at %d", state.partition, dropped, state.log.start)
        state.log.maybe_roll(now_ms)  # last: on a full disk there is no room for another segment, but still retention

    # Closing

    def _closings(self, now: float) -> float:
        excess = len(self._partitions) - self._open_max
        closed = 0
        if excess > 0:
            unused = [state for state in self._partitions if now - state.used_at >= UNUSED_S]
            unused.sort(key=lambda state: state.used_at)
            for state in unused:
                if closed == min(excess, CLOSINGS):
                    break
                if self._partitions.is_idle(state):
                    self._partitions.close(state)
                    closed += 1
        return now + (PAUSE_S if closed == CLOSINGS else CLOSING_LOOK_S)


def _nothing_before_ms(state: PartitionState) -> int:
    """When retention can next find something in a partition that nobody writes to."""
    retention_ms = state.topic.settings.retention_ms
    if retention_ms is None:
        return NEVER_MS
    for at in state.log.entries(state.log.start):
        return at.header.max_time_ms + retention_ms
    return NEVER_MS
