"""The sparse index of a segment: where every so many bytes an entry begins, and what is before it.

Rows are in order of position, of offset and of the largest time before them, so one search serves all three. Old rows
stay on disk and are searched there, a few reads for a look-up: memory holds only those that are not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from penstock.broker.log.disk import Disk, opened
from penstock.broker.log.layout import (
    INDEX_MAGIC,
    ROW,
    ROW_BYTES,
    SIDE_HEAD_BYTES,
    SUMMARY_BYTES,
    Row,
    Summary,
    is_sealed,
)
from penstock.broker.log.side import SideFile, nothing_if_lost

Holds: TypeAlias = Callable[[Row], bool]


class SpoiltRowError(Exception):
    """A row of an index cannot be read: the index has to be made anew."""


class Index(SideFile):
    """The rows of one segment. Runs on: the loop thread."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: Path, partition: int, base: int) -> None:
        super().__init__(disk, path, INDEX_MAGIC, partition, base)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return (self.size - SIDE_HEAD_BYTES) // ROW_BYTES

    def last(self, holds: Holds) -> Row | None:
        """The last row for which this holds, if it holds for all rows before it and for none after."""
        return self._search(holds)[1]

    def next(self, holds: Holds) -> Row | None:
        """The first row for which this does not hold, if it holds for all rows before it and for none after."""
        place, _row = self._search(holds)
        return self._row(place) if place < self.rows else None

    def tail(self) -> Row | None:
        """The very last row."""
        return self._row(self.rows - 1) if self.rows else None

    def close(self, summary: Summary) -> None:
        """Write all rows, and what is to be known of the whole segment."""
        self.flush(summary.pack())

    def open(self, size: int) -> Summary | None:
        """Take up the file of a segment of this size; None when it does not say all that there is to be known."""
        self.restart()
        total, tail = self.ending(SUMMARY_BYTES)
        summary = Summary.parse(tail)
        rows = total - SIDE_HEAD_BYTES - SUMMARY_BYTES
        if summary is None or summary.size != size or rows < 0 or rows % ROW_BYTES:
            return None
        self.stored = SIDE_HEAD_BYTES + rows
        return summary

    def salvage(self) -> Iterator[Row]:
        """The rows of a file that may end anywhere, up to the first that is none."""
        data = self.load()
        for offset in range(SIDE_HEAD_BYTES, len(data) - ROW_BYTES + 1, ROW_BYTES):
            try:
                yield _parse(data, offset)
            except SpoiltRowError:
                return

    def _search(self, holds: Holds) -> tuple[int, Row | None]:
        """For how many rows it holds, and the last of them."""
        stored = max(self.stored - SIDE_HEAD_BYTES, 0) // ROW_BYTES
        pending = len(self.pending) // ROW_BYTES
        if pending and holds(first := _parse(self.pending, 0)):
            place, row = _bisect(lambda place: _parse(self.pending, place * ROW_BYTES), 1, pending, holds)
            return stored + place, row or first
        if not stored:
            return 0, None
        with nothing_if_lost(), opened(self._disk, self.path) as descriptor:
            return _bisect(lambda place: self._stored_row(descriptor, place), 0, stored, holds)
        raise SpoiltRowError

    def _row(self, place: int) -> Row:
        with nothing_if_lost():
            return _parse(self.read(ROW_BYTES, SIDE_HEAD_BYTES + place * ROW_BYTES), 0)
        raise SpoiltRowError

    def _stored_row(self, descriptor: int, place: int) -> Row:
        return _parse(self._disk.read(descriptor, ROW_BYTES, SIDE_HEAD_BYTES + place * ROW_BYTES), 0)


def _bisect(row_at: Callable[[int], Row], low: int, high: int, holds: Holds) -> tuple[int, Row | None]:
    """For how many rows before `high` it holds, which it does for all before `low`, and the last that was seen."""
    found = None
    while low < high:
        middle = (low + high) // 2
        row = row_at(middle)
        if holds(row):
            found, low = row, middle + 1
        else:
            high = middle
    return low, found


def _parse(data: bytes | bytearray, offset: int) -> Row:
    record = data[offset : offset + ROW_BYTES]
    if len(record) < ROW_BYTES or not is_sealed(record):
        raise SpoiltRowError
    return Row._make(ROW.unpack_from(record))
