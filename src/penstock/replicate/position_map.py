"""Where the messages of a partition are in its copy: source positions and target positions, each from the other.

While it copies, a copier tells *points*: source position s is target position t, and what follows it is in step, one
position for one, until the next point. It tells one wherever the two sides get out of step: messages that were left
out, holes of compaction, markers of transactions, messages of others at the target.

    source   100 101 102 103      filtered      150 151 152        points (100, 0) and (150, 5)
    target     0   1   2   3  [4: a marker]       5   6   7

1. A point voids the points before it whose source position is not smaller: the copier was rewound, and what it had
   copied from there on was aborted, or is there twice.
2. It also voids those whose target position is larger: the target's log was made anew. Where all points are known to
   be of one log, a target position that falls means something else: the point is of a copier whose place another had
   taken, who came late to tell it. Then it is that point that is void.
3. Source position x, at or behind the point (s, t) and before the next one (s', t'), is target position t + (x - s),
   but at most t'. The other way round it is the same. Behind the last point the end of the log takes the place of t'.

For a position that was copied this is where its message is; for one that was not, a position from which on exactly the
messages behind it are read: the one before it is not, and the one after it is. Before the first point nothing is known.

A point on the line of the one before it says nothing new and is not kept, but for the last one: rule 2 needs it.

Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.wire.columns import Int64s

UNKNOWN: Final = -1
"""Among many positions, one that is not known."""
POSITION_MAX: Final = (1 << 63) - 1
NO_POSITIONS: Final[Int64s] = np.empty(0, np.int64)


class Point(NamedTuple):
    """A source position and the target position that belongs to it."""

    source: int
    target: int


class PositionMap:
    """One partition's points that hold, in order. Never changes: more points make another map."""

    __slots__ = ("_sources", "_targets")

    def __init__(self, sources: Int64s = NO_POSITIONS, targets: Int64s = NO_POSITIONS) -> None:
        """Points that hold, source positions rising and target positions not falling; others go through `then`."""
        self._sources = sources
        self._targets = targets

    def __len__(self) -> int:
        """How many points are kept."""
        return len(self._sources)

    def __repr__(self) -> str:
        if not len(self):
            return "<PositionMap, empty>"
        return f"<PositionMap, {len(self)} points from {self.first} to {self.last}>"

    @property
    def first(self) -> Point | None:
        """The first point: before it nothing is known."""
        return Point(int(self._sources[0]), int(self._targets[0])) if len(self) else None

    @property
    def last(self) -> Point | None:
        """The last point that was told and holds."""
        return Point(int(self._sources[-1]), int(self._targets[-1])) if len(self) else None

    @property
    def nbytes(self) -> int:
        """The bytes that the points take."""
        return self._sources.nbytes + self._targets.nbytes

    def then(self, sources: Int64s, targets: Int64s, *, one_log: bool = False) -> PositionMap:
        """The map after these points were told too, in this order; `one_log`: all are of one target log, as before."""
        if one_log:
            sources, targets = _without_late(sources, targets, int(self._targets[-1]) if len(self) else 0)
        sources = np.concatenate([self._sources, sources])
        targets = np.concatenate([self._targets, targets])
        holds = np.ones(len(sources), np.bool_)
        holds[:-1] = (sources[:-1] < _least_behind(sources)) & (targets[:-1] <= _least_behind(targets))
        sources, targets = sources[holds], targets[holds]
        tells = _tells_more(sources, targets)
        return PositionMap(sources[tells], targets[tells])

    def target_of(self, source: int, end: int = POSITION_MAX) -> int | None:
        """The target position of a source position, at most `end`; None where it is not known."""
        return _one(self.targets_of(np.array([source], np.int64), end))

    def source_of(self, target: int, end: int = POSITION_MAX) -> int | None:
        """The source position of a target position, at most `end`; None where it is not known."""
        return _one(self.sources_of(np.array([target], np.int64), end))

    def targets_of(self, sources: Int64s, end: int = POSITION_MAX) -> Int64s:
        """The target positions of many source positions, -1 where one is not known."""
        return _mapped(sources, self._sources, self._targets, end)

    def sources_of(self, targets: Int64s, end: int = POSITION_MAX) -> Int64s:
        """The source positions of many target positions, -1 where one is not known."""
        return _mapped(targets, self._targets, self._sources, end)


def _mapped(positions: Int64s, here: Int64s, there: Int64s, end: int) -> Int64s:
    """Positions on this side as positions on the other; points by their two coordinates."""
    if not len(here):
        return np.full(len(positions), UNKNOWN, np.int64)
    following = np.searchsorted(here, positions, side="right")
    at = np.maximum(following - 1, 0)
    is_last = following == len(here)
    limits = np.where(is_last, POSITION_MAX, there[np.where(is_last, 0, following)])
    room = np.minimum(limits, end) - there[at]
    mapped = there[at] + np.minimum(positions - here[at], room)
    return np.where(following == 0, UNKNOWN, mapped)


def _without_late(sources: Int64s, targets: Int64s, reached: int) -> tuple[Int64s, Int64s]:
    """The points without those that are behind a target position that was reached before."""
    in_time = targets >= np.maximum.accumulate(np.append(reached, targets))[:-1]
    return sources[in_time], targets[in_time]


def _least_behind(positions: Int64s) -> Int64s:
    """For each position but the last the smallest of those that follow it."""
    return np.minimum.accumulate(positions[::-1])[::-1][1:]


def _tells_more(sources: Int64s, targets: Int64s) -> npt.NDArray[np.bool_]:
    """Which points are not on the line of the one before them, or are the last."""
    tells = np.ones(len(sources), np.bool_)
    tells[1:-1] = np.diff(targets - sources)[:-1] != 0
    return tells


def _one(positions: Int64s) -> int | None:
    return None if positions[0] == UNKNOWN else int(positions[0])
