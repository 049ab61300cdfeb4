"""A small broker for transactions whose rounds are done by hand, and can end in a crash at any moment.

Its store is a real one; its logs are lists. A round makes logs durable, then the store, then tells: `round(crash=...)`
stops before, between or behind, and what comes back from `restarted` is what a new process would find. With `system`
logs are durable, as far as a process that ends is concerned, when they are written, and nobody waits for them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.broker.groups.ledger import read_pending
from penstock.broker.groups.offsets import Offsets
from penstock.broker.groups.questions import Offset
from penstock.broker.log.partition import Place
from penstock.broker.producers import PartitionProducers
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Done, Store, Work
from penstock.broker.transactions import Marker, State, Transactions
from penstock.errors import StorageFullError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, EntryFlag, EntryHeader
from penstock.wire.protocol import Identity, Partition

TIME_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
A, B, C = (Partition("topic", number) for number in range(3))

Crash = Literal["before", "between", "behind"]
CRASHES: tuple[Crash, ...] = ("before", "between", "behind")


def header(identity: Identity, sequence: int, *, within: bool = True, count: int = 1) -> EntryHeader:
    flags = EntryFlag.TRANSACTIONAL if within else EntryFlag.NONE
    producer, epoch = identity.producer, identity.epoch
    return EntryHeader(count, 100, Codec.NONE, 0, count - 1, None, 5, producer, epoch, sequence, flags, NO_CLAIM)


class Row(NamedTuple):
    """An entry in a log."""

    header: EntryHeader
    value: str
    committed: bool = False


@dataclass
class Disk:
    """What outlives a process."""

    folder: Path
    system: bool = False
    logs: dict[Partition, list[Row]] = field(default_factory=dict)


class FakePartition:
    """A partition as the broker has it, its log a list."""

    def __init__(self, world: World, where: Partition) -> None:
        self.where = where
        self.world = world
        self.rows = list(world.disk.logs.setdefault(where, []))
        self.durable = len(self.rows)
        self.producers = PartitionProducers(str(where))
        for position, row in enumerate(self.rows):
            self.producers.replay(row.header, Place(position, position), world.now_ms, row.committed)
        self.full = False

    def publish(
        self, entry: EntryHeader, value: str, tid: str | None, done: Callable[[Any], None], joins: bool
    ) -> Place:
        world = self.world
        enlisting = world.transactions.admit(entry, self.where, tid, joins, world.now, world.now_ms)
        if enlisting is not None:
            done = enlisting.gate(done)
        place = self.producers.check(entry, from_zero=joins)
        if place is not None:
            world.sync(lambda error: done(place if error is None else refusal_of(error)))
            return place
        place = self._append(Row(entry, value))
        self.producers.stored(entry, place, world.now_ms)
        world.sync(lambda error: done(place if error is None else refusal_of(error)))
        return place

    def mark(self, marker: Marker, now_ms: int, done: Callable[[Place | Exception], None] | None = None) -> None:
        if self.full:
            raise StorageFullError("no room")
        flags = EntryFlag.CONTROL | EntryFlag.TRANSACTIONAL
        entry = header(Identity(marker.producer, marker.epoch), -1)._replace(flags=flags)
        place = self._append(Row(entry, "commit" if marker.committed else "abort", marker.committed))
        self.producers.ended(entry, place, marker.committed, now_ms, held=True)
        self.world.sync(lambda error: done(error or place) if done is not None else None)

    def save(self, end: int) -> None:
        """All up to there is durable."""
        self.world.disk.logs[self.where] = self.rows[:end]
        self.durable = end
        self.producers.settle(end)

    def _append(self, row: Row) -> Place:
        self.rows.append(row)
        return Place(len(self.rows) - 1, len(self.rows) - 1)

    def release(self, producer: int) -> None:
        self.producers.release(producer)

    @property
    def stable(self) -> int:
        return self.producers.last_stable(self.durable)

    def decided(self) -> list[str]:
        """What counts for sure, although readers may be held back by transactions before it."""
        open_spans = self.producers._spans.values()
        return [
            value
            for position, value in self._counted(self.durable)
            if not any(
                span.producer == self.rows[position].header.producer
                and span.first <= position
                and (span.end is None or position <= span.end)
                for span in open_spans
            )
        ]

    def committed(self) -> list[str]:
        """What a reader sees who wants only what counts."""
        return [value for _position, value in self._counted(self.stable)]

    def _counted(self, end: int) -> list[tuple[int, str]]:
        aborted = self.producers.aborted(0, end)
        return [
            (position, row.value)
            for position, row in enumerate(self.rows[:end])
            if not row.header.flags & EntryFlag.CONTROL
            and not any(it.producer == row.header.producer and it.first <= position <= it.last for it in aborted)
        ]


class QuickStore(Store):
    """A store that commits as ever, on a machine whose plug nobody pulls."""

    def connect(self) -> sqlite3.Connection:
        db = super().connect()
        db.execute("PRAGMA synchronous = OFF")
        return db


class World:
    """One life of a process."""

    def __init__(self, disk: Disk, now: float = 1000.0, now_ms: int = TIME_MS, **settings: Any) -> None:
        self.disk = disk
        self.now, self.now_ms = now, now_ms
        self.settings = settings
        self.partitions: dict[Partition, FakePartition] = {}
        self.gone: set[Partition] = set()
        self.refuse_work: Exception | None = None
        self._queue: list[tuple[Work | None, Done | None]] = []
        self.store = QuickStore(disk.folder)
        self.store.attach(self)
        self._db = self.store.connect()
        self.offsets = Offsets(self.store)
        self.offsets.load(self.store.offsets(), read_pending(self.store))
        self.transactions = Transactions(self.store, self, BrokerSettings(folder=disk.folder, **settings), self.offsets)
        self.transactions.start(now, now_ms)

    # What the coordinator asks

    def partition(self, topic: str, number: int) -> FakePartition:
        where = Partition(topic, number)
        if where in self.gone or topic != "topic":
            raise Refused(Refusal.UNKNOWN_PARTITION)
        if where not in self.partitions:
            self.partitions[where] = opened = FakePartition(self, where)
            self.transactions.adopt(where, opened.producers, self.now, self.now_ms)
        return self.partitions[where]

    def submit(self, work: Work | None = None, done: Done | None = None) -> int:
        self._queue.append((work, done))
        return 0

    def sync(self, done: Done) -> None:
        """Tell when what was appended is durable."""
        if not self.disk.system:
            self.submit(None, done)
            return
        for partition in self.partitions.values():
            partition.save(len(partition.rows))
        done(None)

    # Rounds

    @property
    def is_quiet(self) -> bool:
        return not self._queue

    def round(self, crash: Crash | None = None, fail: Exception | None = None) -> None:
        """One round of the commit thread; a crash leaves what had become durable, a failure takes all back."""
        queue, self._queue = self._queue, []
        if crash == "before":
            return
        lengths = {where: len(partition.rows) for where, partition in self.partitions.items()}
        if fail is None:
            for where, partition in self.partitions.items():
                self.disk.logs[where] = partition.rows[: lengths[where]]
        if crash == "between":
            return
        failures = self._work(queue) if fail is None else [fail] * len(queue)
        if crash == "behind":
            return
        for where, partition in self.partitions.items():
            if fail is None:
                partition.save(lengths[where])
            else:
                del partition.rows[partition.durable :]
                assert partition.producers.revert(partition.durable)
        for (_work, done), failure in zip(queue, failures, strict=True):
            if done is not None:
                done(failure)

    def _work(self, queue: list[tuple[Work | None, Done | None]]) -> list[Exception | None]:
        failures: list[Exception | None] = []
        self._db.execute("BEGIN IMMEDIATE")
        for work, _done in queue:
            failures.append(None if work is None else self._one(work))
        self._db.execute("COMMIT")
        return failures

    def _one(self, work: Work) -> Exception | None:
        if self.refuse_work is not None:
            return self.refuse_work
        self._db.execute("SAVEPOINT one")
        try:
            work(self._db)
        except sqlite3.Error as error:
            self._db.execute("ROLLBACK TO one")
            return error
        return None

    def settle(self) -> None:
        """Rounds until nothing is left."""
        for _ in range(50):
            if self.is_quiet:
                return
            self.round()
        raise AssertionError("it never ends")

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.now_ms += int(seconds * 1000)
        self.transactions.turn(self.now, self.now_ms)

    def restarted(self) -> World:
        """What the next process makes of what is durable."""
        self.close()
        return World(self.disk, self.now + 1, self.now_ms + 1000, **self.settings)

    def close(self) -> None:
        self._db.close()
        self.store.close()

    # What clients ask; each returns what was told, filled in later

    def identify(self, tid: str | None, current: Identity | None = None, timeout_ms: int = TIMEOUT_MS) -> list[Any]:
        told: list[Any] = []
        self._ask(told, self.transactions.identify, tid, timeout_ms, current)
        return told

    def enlist(self, tid: str, identity: Identity, *partitions: Partition) -> list[Any]:
        told: list[Any] = []
        self._ask(told, self.transactions.enlist, tid, identity, partitions)
        return told

    def enlist_group(self, tid: str, identity: Identity, group: str) -> list[Any]:
        told: list[Any] = []
        self._ask(told, self.transactions.enlist_group, tid, identity, group)
        return told

    def end(self, tid: str, identity: Identity, commit: bool = True, renews: bool = True) -> list[Any]:
        told: list[Any] = []
        self._ask(told, self.transactions.end, tid, identity, commit, renews)
        return told

    def _ask(self, told: list[Any], ask: Callable[..., None], *arguments: Any) -> None:
        try:
            ask(*arguments, self.now, self.now_ms, told.append)
        except Refused as refused:
            told.append(refused)

    def publish(
        self,
        where: Partition,
        identity: Identity,
        sequence: int,
        value: str = "x",
        tid: str | None = "t",
        *,
        joins: bool = True,
        within: bool = True,
    ) -> list[Any]:
        told: list[Any] = []
        try:
            entry = header(identity, sequence, within=within)
            self.partition(*where).publish(entry, value, tid, told.append, joins)
        except Refused as refused:
            told.append(refused)
        return told

    def commit_offset(
        self, tid: str, identity: Identity, group: str, where: Partition, position: int, *, joins: bool = True
    ) -> list[Any]:
        told: list[Any] = []
        done: Callable[[Any], None] = told.append
        try:
            enlisting = self.transactions.admit_group(tid, identity, group, joins, self.now, self.now_ms)
        except Refused as refused:
            told.append(refused)
            return told
        if enlisting is not None:
            done = enlisting.gate(done)
        offsets = {where: Offset(position, -1, "", self.now_ms)}
        self.offsets.commit_pending(identity.producer, group, offsets, done)
        return told

    # What is seen

    def committed(self, where: Partition) -> list[str]:
        return self.partition(*where).committed()

    def offset(self, group: str, where: Partition) -> int | None:
        found = self.offsets.of(group).get(where)
        return None if found is None else found.position

    def state(self, tid: str = "t") -> State:
        return self.transactions.page(tid).state

    def given(self, tid: str | None = "t", **options: Any) -> Identity:
        """An identity, whatever it takes."""
        told = self.identify(tid, **options)
        self.settle()
        assert isinstance(told[0], Identity), told
        return told[0]


def reason(told: list[Any]) -> Refusal:
    assert len(told) == 1
    assert isinstance(told[0], Refused), told
    return told[0].reason
