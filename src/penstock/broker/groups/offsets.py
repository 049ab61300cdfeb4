"""How far groups have come: offsets that are committed, and those whose transaction is still open.

What is here is durable: a commit is seen, and answered, when the store has it. Whoever asks for offsets while commits
of the same group are on their way is answered behind them, so that everybody reads what they wrote.

Offsets that were committed within a transaction wait for its end. An offset that is committed does away with all older
ones that wait in the same group and partition, since the newest counts. Runs on: the loop thread.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from penstock.broker.groups.ledger import drop_pending, end_pending, put_committed, put_pending
from penstock.broker.groups.questions import GroupPosition, Offset
from penstock.broker.store import Done, OffsetRow, Work, drop_group, drop_offsets, put_offsets
from penstock.wire.protocol import Partition

Key = TypeVar("Key", bound=Hashable)


class Writes(Protocol):
    """Who makes changes durable, in the order in which they are handed over; `Store` does."""

    def write(self, work: Work, done: Done | None = None) -> int:
        """Do the work in the next round, then tell."""


class Offsets:
    """All groups' offsets."""

    def __init__(self, store: Writes) -> None:
        self._store = store
        self._committed: dict[str, dict[Partition, Offset]] = {}
        self._pending: dict[str, dict[Partition, dict[int, Offset]]] = {}
        """By group and partition what each producer has waiting, the oldest first."""
        self._claims: dict[int, dict[tuple[str, Partition], None]] = {}
        """By producer where it has something waiting."""
        self._groups_in: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By topic who has offsets there, and how many."""
        self._writing: Counter[str] = Counter()
        self._promising: Counter[tuple[int, str]] = Counter()

    def __repr__(self) -> str:
        return f"<Offsets of {len(self._committed)} groups, {len(self._claims)} open transactions>"

    def load(self, committed: Iterable[OffsetRow], pending: Iterable[tuple[int, OffsetRow]]) -> None:
        """Take what the store remembers."""
        for row in committed:
            self._put(row.group, Partition(row.topic, row.partition), _offset(row))
        for producer, row in pending:
            self._wait(producer, row.group, Partition(row.topic, row.partition), _offset(row))

    # What there is

    def groups(self) -> set[str]:
        """Groups that have offsets, waiting ones included."""
        return {*self._committed, *self._pending}

    def of(self, group: str) -> Mapping[Partition, Offset]:
        """A group's offsets."""
        return self._committed.get(group, {})

    def pending_of(self, group: str) -> Collection[Partition]:
        """The partitions whose offset may change without anybody committing, when a transaction ends."""
        return self._pending.get(group, {}).keys()

    def is_writing(self, group: str) -> bool:
        """Whether a change is on its way to the store."""
        return group in self._writing

    def producers(self) -> set[int]:
        """Producers with an offset that waits for the end of their transaction."""
        return set(self._claims)

    def positions(self) -> Iterator[GroupPosition]:
        """All groups' positions."""
        for group, offsets in self._committed.items():
            for (topic, number), offset in offsets.items():
                yield GroupPosition(group, topic, number, offset.position)

    # What is changed

    def commit(self, group: str, offsets: Mapping[Partition, Offset], done: Done) -> None:
        """Commit offsets."""
        rows = _rows(group, offsets)
        put = put_committed if self._claims or self._promising else put_offsets
        self._write((group,), lambda db: put(db, rows), lambda: self._commit(group, offsets), done)

    def commit_pending(self, producer: int, group: str, offsets: Mapping[Partition, Offset], done: Done) -> None:
        """Commit offsets when the producer's transaction commits."""
        rows = _rows(group, offsets)
        self._promising[producer, group] += 1

        def wait() -> None:
            for partition, offset in offsets.items():
                self._wait(producer, group, partition, offset)

        def promised(error: Exception | None) -> None:
            _less(self._promising, (producer, group))
            done(error)

        self._write((group,), lambda db: put_pending(db, producer, rows), wait, promised)

    def end_transaction(self, producer: int, commit: bool, done: Done | None = None) -> None:
        """The producer's transaction has ended: its offsets are committed, or forgotten. May be said again."""
        groups = {group for group, _partition in self._claims.get(producer, ())}
        groups |= {group for who, group in self._promising if who == producer}
        if groups:
            end = end_pending
            self._write(groups, lambda db: end(db, producer, commit), lambda: self._end(producer, commit), done)
        elif done is not None:
            done(None)

    def drop(self, group: str, partitions: Collection[Partition], done: Done | None = None) -> None:
        """Forget a group's offsets in these partitions."""

        def work(db: sqlite3.Connection) -> None:
            drop_offsets(db, group, partitions)
            drop_pending(db, group, partitions)

        self._write((group,), work, lambda: self._drop(group, partitions), done)

    def drop_group(self, group: str, done: Done | None = None) -> None:
        """Forget a group, and all its offsets."""
        self._write((group,), lambda db: drop_group(db, group), lambda: self._drop(group, self._all(group)), done)

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone, from the store too."""
        for group in list(self._groups_in.get(topic, ())):
            self._drop(group, [partition for partition in self._all(group) if partition.topic == topic])

    def when_settled(self, group: str, then: Callable[[], None]) -> None:
        """Go on when all that was handed over for the group is durable: at once when there is nothing."""
        if self.is_writing(group):
            self._write((group,), lambda db: None, lambda: None, lambda _error: then())
        else:
            then()

    def _write(self, groups: Collection[str], work: Work, apply: Callable[[], None], done: Done | None = None) -> None:
        """Have work done, and the same in memory when it is durable."""
        for group in groups:
            self._writing[group] += 1

        def written(error: Exception | None) -> None:
            for group in groups:
                _less(self._writing, group)
            if error is None:
                apply()
            if done is not None:
                done(error)

        self._store.write(work, written)

    # Memory, as the store would be read

    def _all(self, group: str) -> set[Partition]:
        return {*self.of(group), *self.pending_of(group)}

    def _commit(self, group: str, offsets: Mapping[Partition, Offset]) -> None:
        for partition, offset in offsets.items():
            self._put(group, partition, offset)
            self._forget_all(group, partition)

    def _end(self, producer: int, commit: bool) -> None:
        for group, partition in list(self._claims.get(producer, ())):
            waiting = self._pending[group][partition]
            if commit:
                self._put(group, partition, waiting[producer])
                order = list(waiting)
                for older in order[: order.index(producer)]:
                    self._forget(older, group, partition)
            self._forget(producer, group, partition)

    def _put(self, group: str, partition: Partition, offset: Offset) -> None:
        offsets = self._committed.setdefault(group, {})
        if partition not in offsets:
            self._groups_in[partition.topic][group] += 1
        offsets[partition] = offset

    def _wait(self, producer: int, group: str, partition: Partition, offset: Offset) -> None:
        waiting = self._pending.setdefault(group, {}).setdefault(partition, {})
        if waiting.pop(producer, None) is None:
            self._groups_in[partition.topic][group] += 1
            self._claims.setdefault(producer, {})[group, partition] = None
        waiting[producer] = offset

    def _drop(self, group: str, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if partition in self.of(group):
                del self._committed[group][partition]
                self._uncount(group, partition.topic)
            self._forget_all(group, partition)
        if not self.of(group):
            self._committed.pop(group, None)

    def _forget_all(self, group: str, partition: Partition) -> None:
        for producer in list(self._pending.get(group, {}).get(partition, ())):
            self._forget(producer, group, partition)

    def _forget(self, producer: int, group: str, partition: Partition) -> None:
        waiting = self._pending[group][partition]
        del waiting[producer], self._claims[producer][group, partition]
        self._uncount(group, partition.topic)
        if not waiting:
            del self._pending[group][partition]
        if not self._pending[group]:
            del self._pending[group]
        if not self._claims[producer]:
            del self._claims[producer]

    def _uncount(self, group: str, topic: str) -> None:
        _less(self._groups_in[topic], group)
        if not self._groups_in[topic]:
            del self._groups_in[topic]


def _less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _rows(group: str, offsets: Mapping[Partition, Offset]) -> list[OffsetRow]:
    return [OffsetRow(group, topic, number, *offset) for (topic, number), offset in offsets.items()]


def _offset(row: OffsetRow) -> Offset:
    return Offset(row.position, row.epoch, row.metadata, row.committed_ms, row.expires_ms)
