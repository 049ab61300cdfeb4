"""The aborted transactions of one partition, for readers who skip what does not count.

Rows stand in the order of their markers. Each notes how far everything was decided once its marker was there: every
transaction that ended later begins there or behind, so that a question about a range looks at no row beyond the first
whose note lies behind that range. Four columns of integers, because a log may hold very many.

Runs on: the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple


class Aborted(NamedTuple):
    """A transaction whose entries do not count: those of its producer from its first one up to its marker."""

    producer: int
    first: int
    last: int


class AbortedTransactions:
    """All of one partition that the log still holds."""

    __slots__ = ("_decided", "_first", "_last", "_producer")

    def __init__(self, columns: Sequence[Sequence[int]] = ((), (), (), ())) -> None:
        """`columns`: as they were told."""
        self._producer, self._first, self._last, self._decided = (array("q", column) for column in columns)

    def __len__(self) -> int:
        return len(self._producer)

    def columns(self, rows: int) -> list[array[int]]:
        """The first so many rows: producers, first positions, positions of the markers, and the notes."""
        return [column[:rows] for column in (self._producer, self._first, self._last, self._decided)]

    def add(self, aborted: Aborted, decided: int) -> None:
        """One more, whose marker lies behind all others; `decided`: no transaction before this position is open."""
        for column, value in zip((self._producer, self._first, self._last), aborted, strict=True):
            column.append(value)
        self._decided.append(decided)

    def pop(self) -> None:
        """Take the last one back."""
        for column in (self._producer, self._first, self._last, self._decided):
            column.pop()

    def between(self, first: int, next_position: int) -> list[Aborted]:
        """Those with entries in this range."""
        begin = bisect_left(self._last, first)
        end = bisect_left(self._decided, next_position) + 1
        rows = zip(*(islice(column, begin, end) for column in (self._producer, self._first, self._last)), strict=True)
        return [Aborted(*row) for row in rows if row[1] < next_position]

    def delete_before(self, start: int) -> None:
        """Forget those whose markers are gone from the log."""
        gone = bisect_left(self._last, start)
        for column in (self._producer, self._first, self._last, self._decided):
            del column[:gone]
