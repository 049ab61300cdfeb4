"""Where messages of the source are in the copy, told by the points at which that changes.

Messages that follow each other on both sides are a run: the first one's two positions tell all others'. A new run
begins where the source has a hole, where something was left out, or where the target put something in between, as
the marker of a transaction. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.replicate.position_map import Point


class Stretches(NamedTuple):
    """The messages of a batch by their positions in the source: of each stretch without a hole the first position, and
    the index in the batch at which it begins."""

    positions: Sequence[int]
    indexes: Sequence[int]
    total: int
    """Messages in the batch."""

    @property
    def first(self) -> int:
        """The position of the first message."""
        return self.positions[0]

    @property
    def last(self) -> int:
        """The position of the last message."""
        return self.positions[-1] + self.total - 1 - self.indexes[-1]


class Runs:
    """The runs of one partition, in the order in which its batches were stored."""

    def __init__(self) -> None:
        self._next = Point(-1, -1)

    def __repr__(self) -> str:
        return f"<Runs, the next message at {self._next}>"

    def stored(self, stretches: Stretches, target: int) -> list[Point]:
        """A batch was stored from this position on: the points at which runs begin in it."""
        points = []
        ends = [*stretches.indexes[1:], stretches.total]
        for position, index, end in zip(stretches.positions, stretches.indexes, ends, strict=True):
            point = Point(position, target + index)
            if point != self._next:
                points.append(point)
            self._next = Point(position + end - index, target + end)
        return points

    def begin(self, point: Point) -> None:
        """Copying begins here: the next message of the source, and the end of the target."""
        self._next = point
