"""Transactions in logs that lose their beginning, or are opened anew: what is stable or was aborted stays exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.aborted import Aborted
from penstock.broker.store import Scope
from penstock.wire.protocol import Identity, Partition
from tests.broker.batches import batch
from tests.broker.rig import Rig

WHERE = Partition("orders", 0)
ENTRY_BYTES = 400


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    rig.create("orders", 1, segment_bytes=1024, retention_bytes=None, retention_ms=None)
    yield rig
    rig.close()


class Client:
    """Somebody with a transactional id."""

    def __init__(self, rig: Rig, tid: str) -> None:
        self.rig = rig
        self.tid = tid
        self.identity = Identity(-1, -1)
        self.sequence = 0
        self.identity = self.ask(rig.broker.transactions.identify, tid, 60_000, None)

    def ask(self, ask: Any, *arguments: Any) -> Any:
        told: list[Any] = []
        ask(*arguments, self.rig.clock.monotonic(), self.rig.clock.wall_ms(), told.append)
        self.rig.settle()
        return told[0]

    def send(self) -> int:
        producer, epoch = self.identity.producer, self.identity.epoch
        entry = batch(1, producer, epoch, self.sequence, transactional=True, size=ENTRY_BYTES)
        self.sequence += 1
        return self.rig.sent(entry, *WHERE, transactional_id=self.tid, enlists=True).first

    def end(self, commit: bool) -> None:
        self.identity = self.ask(self.rig.broker.transactions.end, self.tid, self.identity, commit, True)
        self.sequence = 0


def picture(rig: Rig) -> tuple[int, int, list[Aborted]]:
    """Where the log starts, up to where all is decided, and what was aborted."""
    state = rig.state(*WHERE)
    stable = state.readable_end(committed_only=True)
    return state.log.start, stable, state.producers.aborted(state.log.start, stable)


def cut(rig: Rig, position: int) -> None:
    told: list[Any] = []
    rig.state(*WHERE).delete_before(position, told.append)
    rig.settle()
    assert told == [position]


def test_what_is_stable_survives_every_cut_and_every_start(rig: Rig) -> None:
    first, second = Client(rig, "first"), Client(rig, "second")
    first.send()  # 0
    second.send()  # 1
    first.end(commit=False)  # 2
    first.send()  # 3
    second.end(commit=False)  # 4
    lost, other = Aborted(first.identity.producer, 0, 2), Aborted(second.identity.producer, 1, 4)
    assert picture(rig) == (0, 3, [lost, other])
    for position, aborted in ((1, [lost, other]), (3, [other]), (4, [other])):
        cut(rig, position)
        for _ in range(2):
            assert picture(rig)[:2] == (position, max(3, position))
            assert rig.state(*WHERE).producers.aborted(position, 99) == aborted
            rig.again()
    first.end(commit=True)  # 5
    assert picture(rig) == (4, 6, [other])
    cut(rig, 6)
    assert picture(rig) == (6, 6, [])


def test_a_transaction_whose_beginning_is_gone_still_ends(rig: Rig) -> None:
    client = Client(rig, "t")
    for _ in range(3):
        client.send()
    cut(rig, 2)
    rig.again()
    assert picture(rig) == (2, 2, [])
    client.end(commit=True)
    assert picture(rig) == (2, 4, [])
    client.send()
    client.end(commit=False)
    assert picture(rig) == (2, 6, [Aborted(client.identity.producer, 4, 5)])


def test_retention_takes_segments_and_what_was_aborted_in_them(rig: Rig) -> None:
    client = Client(rig, "t")
    for _ in range(6):
        client.send()
        client.end(commit=False)
    everything = picture(rig)
    assert len(everything[2]) == 6
    told: list[Any] = []
    rig.broker.topics.change(Scope("topic", "orders"), {"retention_bytes": 1200}, done=told.append)
    rig.settle()
    rig.pass_time(400)
    start, stable, aborted = picture(rig)
    assert 0 < start < stable == 12
    assert aborted == [it for it in everything[2] if it.last >= start]
    rig.again()
    assert picture(rig) == (start, stable, aborted)


def test_producers_are_known_from_the_log_alone(rig: Rig) -> None:
    """Without the snapshot: as if the store had lost it."""
    client, other = Client(rig, "t"), Client(rig, "u")
    client.send()
    client.end(commit=False)
    client.send()
    other.send()
    other.end(commit=True)
    before = picture(rig), list(rig.state(*WHERE).producers.open_transactions())
    rig.broker.store.write(lambda db: db.execute("DELETE FROM producers"))
    rig.settle()
    rig.broker.committer.abandon()
    rig.broker.store.close()
    rig.broker.logs.close()
    rig.open()
    assert (picture(rig), list(rig.state(*WHERE).producers.open_transactions())) == before
    client.end(commit=True)
    assert picture(rig)[1] == rig.state(*WHERE).log.visible
