"""The partitions that are open: found by name, opened when first asked for, closed when nobody uses them.

Opening a partition opens its log and rebuilds what is known of its producers: the snapshot that the store has, then the
headers of the entries behind it. Snapshots are written at checkpoints and when a partition is closed, so that few
headers are left to read. One that lies beyond the log's end (a machine that lost what was not synced) or cannot be read
is not used, and the whole log is gone through. What of the log is damaged is passed over: the rest can be read, and
written to.

Runs on: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.broker.log.partition import EntryAt, PartitionLog, Place
from penstock.broker.partition_state import Owner, PartitionState
from penstock.broker.producer_names import PartitionProducerNames, TopicProducers
from penstock.broker.producers import PartitionProducers
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import Stats
from penstock.broker.store import Store, put_producers
from penstock.broker.topics import Topic, Topics
from penstock.errors import DecodeError, StorageDamagedError, StorageError
from penstock.wire.entry import EntryFlag, EntryFormat, EntryHeader

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.broker.log.store import LogStore

_log = logging.getLogger("penstock.broker")


class Partitions:
    """The open partitions of a broker."""

    def __init__(
        self,
        topics: Topics,
        logs: LogStore,
        store: Store,
        stats: Stats,
        marker_format: EntryFormat,
        settings: BrokerSettings,
        owner: Owner,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._store = store
        self._stats = stats
        self._format = marker_format
        self._settings = settings
        self._owner = owner
        self._open: dict[tuple[str, int], PartitionState] = {}
        self._producers: dict[UUID, TopicProducers] = {}
        self.opened: Callable[[PartitionState], None] = lambda state: None
        """Told of a partition that was opened, before anybody gets it."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(list(self._open.values()))

    def find(self, topic: str, number: int) -> PartitionState | None:
        """A partition, if it is open."""
        state = self._open.get((topic, number))
        return None if state is None or state.topic.leaving else state

    def get(self, name: str, number: int, now: float, now_ms: int) -> PartitionState:
        """A partition, opened if it is not open; Refused when there is none, or it cannot be opened."""
        state = self._open.get((name, number))
        if state is None or state.topic.leaving:
            topic = self._topics.get(name)
            state = self._open.get((topic.name, number)) or self._opened(topic, number, now_ms)
        state.used_at = now
        return state

    def checkpoint(self, state: PartitionState) -> None:
        """Write down what is known of a partition's producers, as far as it is durable."""
        position, snapshot = state.producers.snapshot()
        state.unsaved = state.in_flight
        topic_id, number = state.topic.id, state.number
        self._store.write(lambda db: put_producers(db, topic_id, number, position, snapshot))

    def is_idle(self, state: PartitionState) -> bool:
        """Whether nobody would miss it if it were closed."""
        return not (
            state.in_flight
            or state.is_waited_for
            or len(state.names)
            or state.producers.last_stable(state.log.end) != state.log.end
        )

    def close(self, state: PartitionState) -> None:
        """Close one that is idle."""
        if state.unsaved:
            self.checkpoint(state)
        del self._open[state.partition]
        state.leave()
        state.log.close()

    def drop_topic(self, topic: Topic) -> None:
        """The topic is deleted: its files go, and who waits is told."""
        for number in range(topic.partitions):
            state = self._open.pop((topic.name, number), None)
            if state is not None:
                state.leave()
        self._producers.pop(topic.id, None)
        self._stats.drop_topic(topic.name)
        try:
            self._logs.delete(topic.id)
        except StorageError as error:
            _log.warning("the files of %s are left for the next start to sweep: %s", topic.name, error)

    def _opened(self, topic: Topic, number: int, now_ms: int) -> PartitionState:
        if not 0 <= number < topic.partitions:
            text = f"{topic.name} has the partitions 0 to {topic.partitions - 1}, not {number}"
            raise Refused(Refusal.UNKNOWN_PARTITION, text)
        name = f"{topic.where.full}-{number}"
        try:
            log = self._logs.open(topic.id, number, name)
            found = self._store.producers(topic.id, number)
            producers = self._restored(found, log, now_ms)
        except StorageError as error:
            raise refusal_of(error) from error
        of_topic = self._producers.setdefault(topic.id, TopicProducers())
        names = PartitionProducerNames(of_topic, self._settings.producer_idle_ms)
        stats = self._stats.partition(topic.name, number)
        state = PartitionState(topic, number, log, producers, names, stats, self._format, self._owner)
        state.take_settings()
        self._open[state.partition] = state
        if found is not None and found[0] > log.visible:
            self.checkpoint(state)  # at once, before the log is long enough for the old one to look right
        elif log.visible > (log.start if found is None else found[0]):
            state.note_change()
        self.opened(state)
        return state

    def _restored(self, found: tuple[int, bytes] | None, log: PartitionLog, now_ms: int) -> PartitionProducers:
        if found is not None and found[0] <= log.visible:
            producers = self._new_producers(log)
            try:
                producers.restore(*found)
            except DecodeError as error:
                _log.warning("%s: the snapshot of its producers cannot be read (%s); its log is read", log.name, error)
            else:
                self._replay(producers, log, max(found[0], log.start), now_ms)
                return producers
        producers = self._new_producers(log)
        self._replay(producers, log, log.start, now_ms)
        return producers

    def _new_producers(self, log: PartitionLog) -> PartitionProducers:
        return PartitionProducers(log.name, self._settings.producer_expiration_ms)

    def _replay(self, producers: PartitionProducers, log: PartitionLog, position: int, now_ms: int) -> None:
        producers.delete_before(log.start)
        resume: int | None = position
        while resume is not None and resume < log.visible:
            position, resume = resume, None
            try:
                self._replay_from(producers, log, position, now_ms)
            except StorageDamagedError as error:
                resume = error.resume
                _log.error("%s: producers are known as far as its log can be read: %s", log.name, error)
                if resume is not None and resume <= position:
                    break
        producers.settle(log.visible)

    def _replay_from(self, producers: PartitionProducers, log: PartitionLog, position: int, now_ms: int) -> None:
        for at in log.entries(position):
            header = at.header
            committed = False
            if header.flags & EntryFlag.CONTROL:
                committed = self._is_commit(at)
            producers.replay(header, place_of(header), now_ms, committed)

    def _is_commit(self, at: EntryAt) -> bool:
        try:
            entry = self._logs.volume.disk.read(at.fd, at.size, at.offset)
        except OSError as error:
            text = f"a marker cannot be read: {error.strerror or error}"
            raise StorageDamagedError(text, place_of(at.header).last + 1) from error
        return bool((at.format or self._format).marker_of(entry))


def place_of(header: EntryHeader) -> Place:
    """Where a stored entry is; in a log positions are numbers."""
    assert isinstance(header.first, int)
    assert isinstance(header.last, int)
    return Place(header.first, header.last)
