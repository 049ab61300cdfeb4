from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.broker import filtered_read
from penstock.broker.filtered_read import LogEntry, Selection, Wanted, select
from penstock.broker.filters import FilterContext, FilterCounts, FilteredEntry, FilterLimits, Filters, Verdict
from penstock.broker.log.handles import Handle
from penstock.broker.log.partition import EntryAt, PartitionLog
from penstock.errors import PenstockError, StorageDamagedError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, EntryFlag, EntryHeader

ACCEPT, REJECT, RESCHEDULE = Verdict
WHO = FilterContext("public/default/orders", 0, None, "client")
ENTRY_MESSAGES, ENTRY_BYTES = 10, 100


class Pins:
    """Counts how often files are held."""

    def __init__(self) -> None:
        self.held = 0


class OneFile:
    """A file that can be held."""

    def __init__(self, path: Path, pins: Pins) -> None:
        self.file = path.open("w+b", buffering=0)
        self._pins = pins

    def pin(self) -> int:
        self._pins.held += 1
        return self.file.fileno()

    def unpin(self) -> None:
        self._pins.held -= 1


class Log:
    """Entries of ten messages and a hundred bytes, five in a file."""

    IN_A_FILE = 5

    def __init__(self, folder: Path, entries: int) -> None:
        self.pins = Pins()
        self.iterating = 0
        self.files = [OneFile(folder / str(number), self.pins) for number in range(-(-entries // self.IN_A_FILE))]
        for number in range(entries):
            self.files[number // self.IN_A_FILE].file.write(bytes([number]) * ENTRY_BYTES)
        self.visible = entries * ENTRY_MESSAGES

    def at(self, number: int) -> EntryAt:
        first = number * ENTRY_MESSAGES
        flags = EntryFlag.CONTROL if number == 7 else EntryFlag.NONE
        position = (first, first + ENTRY_MESSAGES - 1, None, 0, None, -1, -1, flags, NO_CLAIM)
        header = EntryHeader(ENTRY_MESSAGES, ENTRY_BYTES, Codec.NONE, *position)
        which, place = divmod(number, self.IN_A_FILE)
        held = self.files[which]
        return EntryAt(header, held.file.fileno(), place * ENTRY_BYTES, ENTRY_BYTES, cast(Handle, held))

    def entries(self, position: int, limit: int | None = None) -> Iterator[EntryAt]:
        end = self.visible if limit is None else min(limit, self.visible)
        self.iterating += 1
        try:
            for number in range(position // ENTRY_MESSAGES, end // ENTRY_MESSAGES):
                yield self.at(number)
        finally:
            self.iterating -= 1

    def close(self) -> None:
        for each in self.files:
            each.file.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, 12)
    yield made
    assert made.iterating == 0
    made.close()


class By:
    """Judges by the number of the entry."""

    def __init__(self, judge: Callable[[int], Verdict]) -> None:
        self.judge = judge

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        first = entry.header.first
        assert isinstance(first, int)
        return self.judge(first // ENTRY_MESSAGES)


def selected(
    log: Log, judge: Callable[[int], Verdict], wanted: Wanted, counts: FilterCounts | None = None, now: float = 0.0
) -> Selection:
    chain = Filters(FilterLimits(), {"by": By(judge)}).chain("by", None)
    assert chain is not None
    return select(chain, cast(PartitionLog, log), wanted, WHO, counts or FilterCounts(), now)


def numbers(selection: Selection) -> list[list[int]]:
    """The entries in each slice; lets go of them."""
    found = [list(range(each.first // ENTRY_MESSAGES, each.next // ENTRY_MESSAGES)) for each in selection.slices]
    for each, held in zip(selection.slices, found, strict=True):
        assert each.read() == b"".join(bytes([number]) * ENTRY_BYTES for number in held)
        assert each.entries == len(held)
        each.release()
    return found


ALL = Wanted(0, 1 << 20, 120)


def test_accepted_entries_that_lie_together_are_one_slice_for_each_file(log: Log) -> None:
    selection = selected(log, lambda number: ACCEPT, ALL)
    assert (selection.next, selection.again_at, selection.passed_over) == (120, None, False)
    assert log.pins.held == 3
    assert numbers(selection) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert log.pins.held == 0


def test_rejected_entries_are_left_out_and_count_as_read(log: Log) -> None:
    counts = FilterCounts()
    selection = selected(log, lambda number: REJECT if number in (0, 3, 4, 10, 11) else ACCEPT, ALL, counts)
    assert selection.next == 120
    assert selection.passed_over
    assert numbers(selection) == [[1, 2], [5, 6, 7, 8, 9]]
    assert (counts.accepted, counts.rejected, counts.rejected_messages) == (6, 5, 50)


def test_a_reader_that_is_given_nothing_goes_on_all_the_same(log: Log) -> None:
    selection = selected(log, lambda number: REJECT, Wanted(0, 1, 70))
    assert (selection.slices, selection.next, selection.passed_over) == ([], 70, True)


def test_control_entries_get_through(log: Log) -> None:
    selection = selected(log, lambda number: REJECT, ALL)
    assert selection.passed_over
    assert numbers(selection) == [[7]]


@pytest.mark.parametrize(
    ("bytes_max", "found", "next_"),
    [(1, [2], 30), (100, [2], 30), (250, [2, 4], 50), (10_000, [2, 4, 6, 7, 8, 10], 120)],
)
def test_no_more_is_accepted_than_is_wanted_but_at_least_one_entry(
    log: Log, bytes_max: int, found: list[int], next_: int
) -> None:
    selection = selected(log, lambda number: REJECT if number % 2 else ACCEPT, Wanted(20, bytes_max, 120))
    assert selection.next == next_
    assert [number for run in numbers(selection) for number in run] == found


def test_a_position_within_an_entry_gets_that_entry(log: Log) -> None:
    assert numbers(selected(log, lambda number: ACCEPT, Wanted(25, 1, 120))) == [[2]]


def test_nothing_is_judged_beyond_the_limit(log: Log) -> None:
    selection = selected(log, lambda number: ACCEPT, Wanted(0, 1 << 20, 30))
    assert selection.next == 30
    assert numbers(selection) == [[0, 1, 2]]
    empty = selected(log, lambda number: ACCEPT, Wanted(30, 1 << 20, 30))
    assert empty == Selection([], 30, None, passed_over=False)


def test_a_rescheduled_entry_ends_the_selection(log: Log) -> None:
    selection = selected(log, lambda number: RESCHEDULE if number == 2 else ACCEPT, ALL, now=5.0)
    assert (selection.next, selection.again_at, selection.passed_over) == (20, 6.0, False)
    assert numbers(selection) == [[0, 1]]
    at_once = selected(log, lambda number: RESCHEDULE, ALL, now=5.0)
    assert at_once == Selection([], 0, 6.0, passed_over=False)


def test_a_rescheduled_entry_behind_rejected_ones(log: Log) -> None:
    selection = selected(log, lambda number: RESCHEDULE if number == 2 else REJECT, ALL)
    assert selection == Selection([], 20, 1.0, passed_over=True)


def test_a_selection_judges_no_more_than_so_many_entries(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_read, "ENTRIES_MAX", 4)
    asked: list[int] = []

    def judge(number: int) -> Verdict:
        asked.append(number)
        return REJECT

    selection = selected(log, judge, ALL)
    assert asked == [0, 1, 2, 3]
    assert selection == Selection([], 40, None, passed_over=True)


def test_files_are_let_go_when_reading_fails(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = log.entries

    def fails_later(position: int, limit: int | None = None) -> Iterator[EntryAt]:
        for number, found in enumerate(entries(position, limit)):
            if number == 8:
                assert log.pins.held == 2
                raise PenstockError("the disk is gone")
            yield found

    monkeypatch.setattr(log, "entries", fails_later)
    with pytest.raises(PenstockError, match="the disk is gone"):
        selected(log, lambda number: ACCEPT, ALL)
    assert log.pins.held == 0


def test_an_entry_s_bytes_are_read_only_if_asked_for_and_only_while_it_is_judged(log: Log) -> None:
    kept: list[FilteredEntry] = []

    class Reads:
        def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
            kept.append(entry)
            return ACCEPT if entry.payload() == b"\x06" * ENTRY_BYTES else REJECT

    chain = Filters(given={"reads": Reads()}).chain("reads", None)
    assert chain is not None
    selection = select(chain, cast(PartitionLog, log), Wanted(0, 1 << 20, 70), WHO, FilterCounts(), 0.0)
    assert numbers(selection) == [[6]]
    with pytest.raises(PenstockError, match="only while it is being judged"):
        kept[0].payload()


def test_an_entry_that_nobody_asks_for_its_bytes_is_not_read(log: Log) -> None:
    entry = LogEntry(log.at(0)._replace(fd=-1))
    assert entry.header.count == ENTRY_MESSAGES
    with pytest.raises(StorageDamagedError, match="Bad file descriptor"):
        entry.payload()
