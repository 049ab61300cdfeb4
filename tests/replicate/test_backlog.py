"""Parts in, consignments out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.config import ReaderOptions
from penstock.consume.judge import Judge
from penstock.consume.stats import ReaderStats
from penstock.errors import ConfigError, DecodeError
from penstock.replicate import backlog as module
from penstock.replicate.backlog import Backlog
from penstock.replicate.consignment import Packer, Packing
from penstock.replicate.stats import Counts
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.protocol import Mark
from tests.consume.batches import values
from tests.replicate.strand_kit import TENS, HandSource, messages_in


class Rig:
    """A backlog, and a log of which parts are read into it."""

    def __init__(self, entries: int = 4, end: int | None = None) -> None:
        self.source = HandSource([values(10 * i, 10) for i in range(entries)], end)
        self.packer = Packer(KafkaWire(), KafkaEntries(), Packing(0, repack="never"))
        judge = Judge(KafkaEntries(), None, ReaderOptions(), ReaderStats(), claims=False)
        self.one = Backlog(0, self.source, judge, self.packer, Counts())
        self.one.begin(Mark(0))
        self.source.hold(0, False)

    def read(self, entries: int = 1) -> None:
        part = self.source.read(entries)
        assert part is not None
        self.one.offer(part)

    def left(self) -> list[list[int]]:
        """All that can leave, leaves."""
        left = []
        while (consignment := self.one.peek()) is not None:
            assert self.one.peek() is consignment
            left.append(messages_in(consignment))
            self.one.pop()
        return left


def test_entries_leave_in_order_and_parts_are_given_back_behind_them() -> None:
    rig = Rig(end=40)
    rig.read(2)
    rig.read(2)
    assert not rig.one.is_at_end
    assert rig.left() == TENS[:4]
    assert (rig.one.mark, rig.one.is_at_end, rig.source.out) == (Mark(40), True, [])


def test_what_was_only_looked_at_has_not_left() -> None:
    rig = Rig()
    rig.read()
    assert rig.one.peek() is not None
    assert rig.one.mark.position == 0


def test_reading_is_held_while_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(module, "AHEAD_BYTES", 2 * len(values(0, 10)))
    rig.read()
    assert not rig.source.is_held
    rig.read()
    assert rig.source.is_held
    rig.left()
    assert not rig.source.is_held
    rig.read()
    rig.one.drop()
    rig.source.hold(0, False)
    rig.read()
    assert not rig.source.is_held, "what was dropped is not counted any more"


def test_what_is_dropped_is_given_back_and_never_leaves() -> None:
    rig = Rig()
    rig.read(2)
    rig.read(1)
    rig.one.peek()
    rig.one.drop()
    assert (rig.source.out, rig.source.is_held, rig.left()) == ([], True, [])
    assert repr(rig.one) == "<Backlog of 0 parts, 0 bytes, from 0 on>"


def test_what_lies_before_an_entry_that_cannot_be_read_leaves_and_nothing_behind_it() -> None:
    rig = Rig(1)
    damaged = bytearray(values(10, 10))
    damaged[-1] ^= 1
    rig.source.entries.append((10, 20, memoryview(damaged)))
    rig.source.write(values(20, 10))
    rig.read(2)
    rig.read(1)
    assert rig.left() == TENS[:1]
    failure = rig.one.failure
    assert isinstance(failure, DecodeError)
    assert (rig.left(), rig.one.mark) == ([], Mark(10))
    rig.one.drop()
    assert (rig.one.failure, rig.source.out) == (None, [])


def test_a_part_that_cannot_be_packed_is_not_taken_for_one_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    error = ConfigError("cannot be told any more")

    def packed(wanted: Any) -> Iterator[Any]:
        raise error
        yield

    monkeypatch.setattr(rig.packer, "packed", packed)
    rig.read()
    assert (rig.left(), rig.left()) == ([], [])
    assert (rig.one.failure, rig.one.mark) == (error, Mark(0))


def test_the_mark_where_the_target_says_nothing_is_the_start_with_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(rig.source, "start", lambda number: Mark(20, "", 7))
    rig.one.begin(None)
    assert (rig.one.mark, rig.source.seeks) == (Mark(20, "", 7), [0, 20])
