"""Durable cursors: what is acknowledged, what is left, and what survives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.cursor import Cursor, Cursors
from penstock.broker.log.partition import Backlog, PartitionLog
from penstock.broker.ranges import Ranges
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import CursorRow, Store
from penstock.broker.topics import Topic, Topics
from penstock.errors import StorageDamagedError, StorageFullError
from tests.broker.rounds import HandRounds

ENTRIES = (3, 1, 4, 2)
"""Messages of the entries in the log: positions 0-2, 3, 4-7, 8-9."""


class FakeSlice(NamedTuple):
    first: int
    log: FakeLog

    def release(self) -> None:
        self.log.out -= 1


class FakeLog:
    """Entries of so many messages; each message is a byte, each entry a second of time."""

    name = "public/default/orders-0"

    def __init__(self, entries: tuple[int, ...], start: int = 0) -> None:
        self.firsts = [sum(entries[:at]) for at in range(len(entries))]
        self.counts = entries
        self.start = start
        self.visible = self.end = sum(entries)
        self.out = 0

    def backlog(self, position: int) -> Backlog:
        left = [
            (first, count) for first, count in zip(self.firsts, self.counts, strict=True) if first + count > position
        ]
        return Backlog(len(left), self.visible - position, sum(count for _, count in left))

    def read(self, position: int, bytes_max: int) -> FakeSlice | None:
        holding = [first for first in self.firsts if first <= position]
        if position >= self.visible:
            return None
        self.out += 1
        return FakeSlice(holding[-1], self)

    def seek_time(self, time_ms: int) -> tuple[int, int] | None:
        at = -(-max(time_ms, 0) // 1000)
        return (self.firsts[at], at * 1000) if at < len(self.firsts) else None


class Desk:
    """Cursors of one topic, with rounds by hand."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.settings = BrokerSettings(folder, **options)
        self.fake = FakeLog(ENTRIES)
        self.told: list[object] = []
        self.open()
        self.topics.create("orders", 2, now_ms=0, done=lambda _: None)
        self.rounds.run()

    def open(self) -> None:
        self.store = Store(self.settings.folder)
        self.rounds = HandRounds(self.store)
        self.topics = Topics(self.store, self.settings)
        self.cursors = Cursors(self.store, self.topics, self.settings, lambda topic, number: self.log)

    @property
    def log(self) -> PartitionLog:
        return cast("PartitionLog", self.fake)

    @property
    def topic(self) -> Topic:
        return self.topics.get("orders")

    def close(self) -> None:
        self.store.close()
        self.rounds.close()

    def again(self) -> Cursor:
        self.close()
        self.open()
        return self.cursors.get(self.topic, 0, "reader")

    def settle(self) -> None:
        self.cursors.flush()
        self.rounds.run_all()

    def create(self, position: int | None = 0) -> Cursor:
        self.cursors.create(self.topic, 0, "reader", position, 7, self.told.append)
        self.rounds.run()
        return self.cursors.get(self.topic, 0, "reader")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def refused(reason: Refusal) -> pytest.RaisesExc[Refused]:
    return pytest.RaisesExc(Refused, check=lambda error: error.reason is reason)


def test_a_cursor_is_told_when_it_is_durable(desk: Desk) -> None:
    desk.cursors.create(desk.topic, 0, "reader", 4, 7, desk.told.append)
    assert desk.told == []
    desk.rounds.run()
    assert desk.told == [desk.cursors.get(desk.topic, 0, "reader")]
    assert (desk.again().position, desk.again().changed_ms) == (4, 7)


def test_a_cursor_begins_at_the_end_unless_told(desk: Desk) -> None:
    assert desk.create(None).position == 10


def test_what_was_acknowledged_comes_back(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.acknowledge(cursor, [(1, 2), (4, 6)], 8, desk.told.append)
    desk.cursors.acknowledge_before(cursor, 1, 9, desk.told.append)
    assert len(desk.told) == 1
    desk.settle()
    assert desk.told[1:] == [None, None]
    cursor = desk.again()
    assert (cursor.position, list(cursor.ranges), cursor.changed_ms) == (2, [(4, 6)], 9)


def test_the_position_moves_over_what_is_acknowledged_behind_it(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.acknowledge(cursor, [(3, 5)], 8)
    desk.cursors.acknowledge(cursor, [(1, 2)], 8)
    assert (cursor.position, list(cursor.ranges)) == (0, [(1, 2), (3, 5)])
    desk.cursors.acknowledge(cursor, [(0, 1)], 8)
    assert (cursor.position, list(cursor.ranges)) == (2, [(3, 5)])
    desk.cursors.acknowledge_before(cursor, 3, 8)
    assert (cursor.position, list(cursor.ranges)) == (5, [])
    desk.cursors.acknowledge_before(cursor, 10, 8)
    assert (cursor.position, list(cursor.ranges)) == (10, [])


def test_acknowledging_twice_changes_nothing(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.acknowledge_before(cursor, 5, 8)
    desk.cursors.acknowledge_before(cursor, 3, 8)
    desk.cursors.acknowledge(cursor, [(0, 4), (2, 7)], 8)
    assert (cursor.position, list(cursor.ranges)) == (7, [])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=12))
def test_it_is_a_set_of_positions(spans: list[tuple[int, int]]) -> None:
    topic = cast("Topic", None)
    cursor = Cursor(topic, CursorRow(None, 0, "reader", 0, b"", 0), Ranges())  # type: ignore[arg-type]
    model: set[int] = set()
    for first, count in spans:
        after = min(first + count, 10)
        cursor.ranges.add(first, after)
        cursor.position = cursor.ranges.drop_before(cursor.position)
        model |= set(range(first, after))
        assert {at for at in range(12) if cursor.is_acknowledged(at)} == model
        for at in range(12):
            assert cursor.next_unread(at) == next(free for free in range(at, 20) if free not in model)
        expected_messages = len(set(range(10)) - model)
        log = FakeLog(ENTRIES)
        unread = [
            first for first, count in zip(log.firsts, ENTRIES, strict=True) if set(range(first, first + count)) - model
        ]
        backlog = cursor.backlog(cast("PartitionLog", log))
        assert (backlog.entries, backlog.messages) == (len(unread), expected_messages)
        assert log.out == 0


def test_backlog_counts_from_the_logs_start(desk: Desk) -> None:
    cursor = desk.create()
    desk.fake.start = 4
    assert cursor.backlog(desk.log) == Backlog(2, 6, 6)
    desk.cursors.acknowledge(cursor, [(3, 9)], 8)
    assert cursor.backlog(desk.log)[:2] == (1, 1)
    desk.fake.start = 10
    assert cursor.backlog(desk.log) == Backlog(0, 0, 0)


def test_a_cursor_is_reset_by_position_and_by_time(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.acknowledge(cursor, [(0, 4), (6, 8)], 8)
    desk.cursors.reset(cursor, 3, 9, desk.told.append)
    assert (cursor.position, list(cursor.ranges)) == (3, [])
    desk.settle()
    assert desk.told[-1] is None
    assert desk.again().position == 3
    cursor = desk.cursors.get(desk.topic, 0, "reader")
    for time_ms, position in ((0, 0), (1, 3), (1000, 3), (2500, 8), (3000, 8), (3001, 10)):
        desk.cursors.reset_to_time(cursor, time_ms, 9)
        assert cursor.position == position
    desk.settle()
    assert desk.again().position == 10


@pytest.mark.parametrize("span", [(0, 11), (-1, 2), (3, 3), (5, 4), (10, 11)])
def test_nothing_outside_of_the_log_is_acknowledged(desk: Desk, span: tuple[int, int]) -> None:
    cursor = desk.create()
    with refused(Refusal.POSITION_OUT_OF_RANGE):
        desk.cursors.acknowledge(cursor, [(2, 3), span], 8)
    assert (cursor.position, list(cursor.ranges)) == (0, [])


def test_no_position_outside_of_the_log_is_taken(desk: Desk) -> None:
    cursor = desk.create()
    desk.fake.start = 2
    for position in (-1, 1, 11):
        with refused(Refusal.POSITION_OUT_OF_RANGE):
            desk.cursors.reset(cursor, position, 9)
        with refused(Refusal.POSITION_OUT_OF_RANGE):
            desk.cursors.create(desk.topic, 0, "other", position, 9, desk.told.append)
    with refused(Refusal.POSITION_OUT_OF_RANGE):
        desk.cursors.acknowledge_before(cursor, 11, 9)


def test_ranges_have_a_bound_and_an_acknowledgement_beyond_it_changes_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cursor_ranges_max=2)
    cursor = desk.create()
    desk.cursors.acknowledge(cursor, [(1, 2), (5, 6)], 8)
    with refused(Refusal.TOO_MANY_RANGES):
        desk.cursors.acknowledge(cursor, [(0, 1), (3, 4), (8, 9)], 8)
    assert (cursor.position, list(cursor.ranges)) == (0, [(1, 2), (5, 6)])
    desk.cursors.acknowledge(cursor, [(0, 1), (3, 4)], 8)
    assert (cursor.position, list(cursor.ranges)) == (2, [(3, 4), (5, 6)])
    desk.cursors.acknowledge(cursor, [(4, 5)], 8)
    assert list(cursor.ranges) == [(3, 6)]
    desk.close()


def test_cursors_have_a_bound(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cursors_max=1)
    desk.create()
    with refused(Refusal.NOT_ALLOWED):
        desk.cursors.create(desk.topic, 0, "other", 0, 7, desk.told.append)
    desk.cursors.create(desk.topic, 1, "other", 0, 7, desk.told.append)
    desk.close()


@pytest.mark.parametrize("name", ["", "x" * 513, "a\nb"])
def test_not_every_name_is_taken(desk: Desk, name: str) -> None:
    with refused(Refusal.BAD_CURSOR_NAME):
        desk.cursors.create(desk.topic, 0, name, 0, 7, desk.told.append)


def test_a_name_is_taken_once_in_a_partition(desk: Desk) -> None:
    desk.create()
    with refused(Refusal.CURSOR_EXISTS):
        desk.cursors.create(desk.topic, 0, "reader", 0, 7, desk.told.append)
    with refused(Refusal.UNKNOWN_CURSOR):
        desk.cursors.get(desk.topic, 1, "reader")
    assert desk.cursors.oldest(desk.topic, 0) == 0
    assert desk.cursors.oldest(desk.topic, 1) is None


def test_a_creation_that_is_undone_leaves_nothing(desk: Desk) -> None:
    desk.rounds.fail_with = StorageFullError("full")
    desk.cursors.create(desk.topic, 0, "reader", 0, 7, desk.told.append)
    cursor = desk.cursors.get(desk.topic, 0, "reader")
    desk.rounds.run()
    assert isinstance(desk.told[-1], Refused)
    with refused(Refusal.UNKNOWN_CURSOR):
        desk.cursors.get(desk.topic, 0, "reader")
    with refused(Refusal.UNKNOWN_CURSOR):
        desk.cursors.reset(cursor, 0, 8)


def test_an_acknowledgement_that_could_not_be_written_is_tried_again(desk: Desk) -> None:
    cursor = desk.create()
    desk.rounds.fail_with = StorageFullError("full")
    desk.cursors.acknowledge_before(cursor, 5, 8, desk.told.append)
    desk.settle()
    assert isinstance(desk.told[-1], Refused)
    assert desk.told[-1].reason is Refusal.STORAGE_FULL
    assert cursor.position == 5
    desk.settle()
    assert next(desk.store.cursors()).position == 0
    desk.cursors.retry()
    desk.rounds.run_all()
    desk.cursors.retry()
    assert desk.rounds._waiting == []
    assert desk.again().position == 5


def test_what_could_not_be_written_goes_with_the_next_that_is(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.create(desk.topic, 1, "x", 0, 7, desk.told.append)
    desk.rounds.run()
    other = desk.cursors.get(desk.topic, 1, "x")
    desk.rounds.fail_with = StorageFullError("full")
    desk.cursors.acknowledge_before(cursor, 5, 8)
    desk.settle()
    desk.cursors.acknowledge_before(other, 6, 8)
    desk.settle()
    assert sorted(row.position for row in desk.store.cursors()) == [5, 6]
    desk.cursors.retry()
    assert desk.rounds._waiting == []


def test_a_deleted_cursor_is_not_tried_again(desk: Desk) -> None:
    cursor = desk.create()
    desk.rounds.fail_with = StorageFullError("full")
    desk.cursors.acknowledge_before(cursor, 5, 8)
    desk.settle()
    desk.cursors.delete(cursor)
    desk.rounds.run()
    desk.cursors.retry()
    desk.rounds.run_all()
    assert list(desk.store.cursors()) == []


def test_a_deleted_cursor_is_gone(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.acknowledge_before(cursor, 5, 8)
    desk.cursors.delete(cursor, desk.told.append)
    for work in (desk.cursors.delete, lambda gone: desk.cursors.reset(gone, 0, 9)):
        with refused(Refusal.UNKNOWN_CURSOR):
            work(cursor)
    desk.settle()
    assert desk.told[-1] is None
    assert list(desk.store.cursors()) == []
    assert desk.create(3).position == 3


def test_a_deletion_that_is_undone_brings_the_cursor_back(desk: Desk) -> None:
    cursor = desk.create()
    desk.rounds.fail_with = StorageFullError("full")
    desk.cursors.delete(cursor, desk.told.append)
    desk.rounds.run()
    assert isinstance(desk.told[-1], Refused)
    assert desk.cursors.get(desk.topic, 0, "reader") is cursor
    desk.cursors.reset(cursor, 2, 9)


def test_cursors_go_with_their_topic(desk: Desk) -> None:
    cursor = desk.create()
    topic = desk.topic
    desk.cursors.acknowledge_before(cursor, 5, 8, desk.told.append)
    desk.topics.delete("orders", desk.told.append)
    desk.settle()
    desk.cursors.drop_topic(topic)
    assert cursor.gone
    assert list(desk.store.cursors()) == []
    desk.close()
    desk.open()


def test_cursors_of_one_turn_are_written_together(desk: Desk) -> None:
    cursor = desk.create()
    for position in range(1, 9):
        desk.cursors.acknowledge_before(cursor, position, 8, desk.told.append)
    desk.cursors.flush()
    assert len(desk.rounds._waiting) == 1
    desk.rounds.run()
    assert desk.told[1:] == [None] * 8
    desk.cursors.flush()
    assert desk.rounds._waiting == []


def test_a_cursor_that_cannot_be_read_is_damage(desk: Desk) -> None:
    desk.create()
    desk.rounds._db.execute("UPDATE cursors SET ranges = x'05'")
    desk.close()
    with pytest.raises(StorageDamagedError, match="the cursor reader cannot be read"):
        desk.open()


def test_things_tell_their_state(desk: Desk) -> None:
    cursor = desk.create()
    desk.cursors.acknowledge(cursor, [(3, 4)], 8)
    assert repr(cursor) == "<Cursor reader at 0, 1 ranges behind it>"
    assert repr(desk.cursors) == "<Cursors 1, 1 to be written>"
