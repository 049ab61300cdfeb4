"""Transactions on the whole broker, whose power goes or which is killed after any single thing that it does.

Logs are on a disk that loses what was not synced, in whatever order; the store is SQLite's, which commits or does not.
Before: every operation on the disk, every statement; behind: every round, before anybody was told.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from penstock.broker.groups.questions import Moment, Offset
from penstock.broker.refusals import Refused
from penstock.broker.store import Done, Store, Work
from penstock.broker.transactions import State
from penstock.wire.entry import EntryFlag
from penstock.wire.protocol import NO_MEMBER, Identity, Partition
from tests.broker.batches import batch
from tests.broker.log.crash_disk import CrashDisk, PowerLoss
from tests.broker.rig import ROUNDS_MAX, Rig

Where = Literal["disk", "statement", "round"]
A, B, C = (Partition("orders", number) for number in range(3))
TIMEOUT_MS = 60_000
WORST = 400
"""Moments at which a story can be stopped; it has fewer."""


def disk_with(folder: Path) -> CrashDisk:
    """A disk that has this folder."""
    disk = CrashDisk()
    for parent in reversed(folder.parents[:-1]):
        disk.make_folder(parent)
        disk.sync_folder(parent.parent)
    disk.make_folder(folder)
    disk.sync_folder(folder.parent)
    return disk


class Doomed(Rig):
    """A broker that stops after some number of operations, statements or rounds."""

    def __init__(self, folder: Path, fsync: str) -> None:
        self.rounds_left: int | None = None
        folder.mkdir()
        super().__init__(folder, disk=disk_with(folder), fsync=fsync)
        self.create("orders", 3)

    def settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            self.turn()
            if not self.broker.committer.run_round():
                break
            if self.rounds_left is not None:
                self.rounds_left -= 1
                if self.rounds_left < 0:
                    raise PowerLoss
            self.broker.finish()
        self.turn()

    def reopened(self, disk: CrashDisk) -> None:
        """The next process, on what is left."""
        self.rounds_left = None
        self.broker.committer.abandon()
        self.broker.store.close()
        self.disk = disk
        self.open()


class Client:
    """Does one transaction, and what a client does when it was interrupted."""

    def __init__(self, rig: Rig, commit: bool, renews: bool) -> None:
        self.rig = rig
        self.commit = commit
        self.renews = renews
        self.identity: Identity | None = None
        self.told: list[Any] = []
        """What the end was answered."""

    def ask(self, ask: Callable[..., None], *arguments: Any) -> Any:
        told: list[Any] = []
        clock = self.rig.clock
        ask(*arguments, clock.monotonic(), clock.wall_ms(), told.append)
        self.rig.settle()
        (answer,) = told
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self) -> None:
        """The whole of it; may be called again after it was interrupted."""
        transactions = self.rig.broker.transactions
        if self.identity is None:
            self.identity = self.ask(transactions.identify, "t", TIMEOUT_MS, None)
        if not self.renews:
            self.ask(transactions.enlist, "t", self.identity, [A, B])
            self.ask(transactions.enlist_group, "t", self.identity, "g")
        for partition, time_ms in ((A, 1), (B, 2)):
            self.send(partition, time_ms)
        self.commit_offset()
        self.rig.settle()
        self.told.append(self.ask(transactions.end, "t", self.identity, self.commit, self.renews))

    def send(self, partition: Partition, time_ms: int) -> None:
        identity = self.identity
        assert identity is not None
        entry = batch(1, identity.producer, identity.epoch, 0, transactional=True, time_ms=time_ms)
        self.rig.send(entry, None, *partition, transactional_id="t", enlists=self.renews)

    def commit_offset(self) -> None:
        broker, clock = self.rig.broker, self.rig.clock
        assert self.identity is not None
        times = clock.monotonic(), clock.wall_ms()
        broker.transactions.admit_group("t", self.identity, "g", self.renews, *times)
        broker.groups.commit_pending(
            "g", NO_MEMBER, self.identity.producer, {C: Offset(7)}, lambda _told: None, Moment(*times)
        )


def values(rig: Rig, partition: Partition, *, all_of_them: bool = False) -> list[int]:
    """The times of the entries that a reader sees."""
    state = rig.state(*partition)
    end = state.log.visible if all_of_them else state.readable_end(committed_only=True)
    aborted = [] if all_of_them else state.producers.aborted(0, end)
    return [
        at.header.max_time_ms
        for at in state.log.entries(0, end)
        if not at.header.flags & EntryFlag.CONTROL
        and not any(
            it.producer == at.header.producer and it.first <= int(str(at.header.first)) <= it.last for it in aborted
        )
    ]


def seen(rig: Rig) -> tuple[list[int], list[int], int | None]:
    offset = rig.broker.groups.offsets.of("g").get(C)
    return values(rig, A), values(rig, B), None if offset is None else offset.position


ALL = ([1], [2], 7)
NOTHING: tuple[list[int], list[int], None] = ([], [], None)


def state_of(rig: Rig) -> State | None:
    try:
        return rig.broker.transactions.page("t").state
    except Refused:
        return None


def stopping(rig: Doomed, where: Where, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it stop after this many things."""
    if where == "disk":
        assert isinstance(rig.disk, CrashDisk)
        rig.disk.fuse = number
    elif where == "round":
        rig.rounds_left = number
    else:
        left = iter(range(number))

        def write(self: Store, work: Work, done: Done | None = None) -> int:
            def counted(db: Any) -> None:
                if next(left, None) is None:
                    raise PowerLoss
                work(db)

            return real(self, counted, done)

        real = Store.write
        monkeypatch.setattr(Store, "write", write)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store commits as ever, but nobody pulls this machine's plug."""
    connect = Store.connect

    def quick(self: Store) -> sqlite3.Connection:
        db = connect(self)
        db.execute("PRAGMA synchronous = OFF")
        return db

    monkeypatch.setattr(Store, "connect", quick)


@pytest.mark.parametrize(("fsync", "loss"), [("group", "power"), ("group", "process"), ("system", "process")])
@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("where", ["disk", "statement", "round"])
def test_a_broker_that_stops_anywhere(
    tmp_path: Path, where: Where, commit: bool, renews: bool, fsync: str, loss: str
) -> None:
    for number in range(WORST):
        rig = Doomed(tmp_path / str(number), fsync)
        client = Client(rig, commit, renews)
        disk = rig.disk
        assert isinstance(disk, CrashDisk)
        if runs_through(rig, client, where, number):
            disk.fuse = None
            rig.close()
            assert number > 5
            return
        rig.reopened(disk.crash(Random(number)) if loss == "power" else disk.kill())
        check_after(rig, client)
        rig.close()
    raise AssertionError("the story is longer than expected")


def runs_through(rig: Doomed, client: Client, where: Where, number: int) -> bool:
    with pytest.MonkeyPatch.context() as patches:
        stopping(rig, where, number, patches)
        try:
            client.run()
        except PowerLoss:
            return False
    rig.rounds_left = None
    return True


def check_after(rig: Doomed, client: Client) -> None:
    """What the next process shows; then the client goes on, and what it shows in the end."""
    complete = State.COMPLETE_COMMIT if client.commit else State.COMPLETE_ABORT
    state = state_of(rig)
    assert state in (None, State.EMPTY, State.ONGOING, complete)
    assert not client.told or state is complete
    assert seen(rig) == (ALL if state is State.COMPLETE_COMMIT else NOTHING)
    rig.settle()
    if state_of(rig) is not complete:
        client.run()
    assert state_of(rig) is complete
    assert seen(rig) == (ALL if client.commit else NOTHING)
    for partition, value in ((A, 1), (B, 2)):
        assert values(rig, partition, all_of_them=True) == [value]
        state_then = rig.state(*partition)
        assert state_then.readable_end(committed_only=True) == state_then.log.visible
    rig.again()
    assert seen(rig) == (ALL if client.commit else NOTHING)
