"""Position maps against a copier that is simulated message by message."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replicate.position_map import Point, PositionMap

FAR = 10


class Copying:
    """A copier at work: `log` is the target's, for each position which message of the source is there, if any."""

    def __init__(self, start: int, foreign: int) -> None:
        self.next = start
        self.log: list[int | None] = [None] * foreign
        self.points = [Point(start, foreign)]

    def copy(self, count: int) -> None:
        for _ in range(count):
            last = self.points[-1]
            if (self.next, len(self.log)) != (last.source, last.target) and self.log[-1:] != [self.next - 1]:
                self.points.append(Point(self.next, len(self.log)))
            self.log.append(self.next)
            self.next += 1

    def leave_out(self, count: int) -> None:
        self.next += count

    def other(self, count: int) -> None:
        """Markers, and messages of others."""
        self.log += [None] * count

    def rewind(self, count: int) -> None:
        """What was copied from there on is aborted, or will be there again."""
        self.next = max(self.next - count, self.points[0].source)
        self.log = [None if here is not None and here >= self.next else here for here in self.log]

    def tell(self, count: int) -> None:
        """A point before its message, where the message is expected."""
        self.points.append(Point(self.next, len(self.log)))

    def behind(self, position: int) -> list[int]:
        """The messages that are read at the target from a position on."""
        return [here for here in self.log[position:] if here is not None]

    def copied(self, position: int) -> list[int]:
        """The messages of the source from a position on that were copied."""
        return [here for here in self.log if here is not None and here >= position]


class Step(NamedTuple):
    what: str
    times: int

    def do(self, copying: Copying) -> None:
        getattr(copying, self.what)(self.times)


WHATS = ["copy", "copy", "leave_out", "other", "rewind", "tell"]
STEPS = st.lists(st.builds(Step, st.sampled_from(WHATS), st.integers(1, 6)), max_size=25)
POINTS = st.lists(st.builds(Point, st.integers(0, 30), st.integers(0, 30)), max_size=12)


def copied(steps: list[Step], start: int = 0, foreign: int = 0) -> Copying:
    copying = Copying(start, foreign)
    for step in steps:
        step.do(copying)
    return copying


def map_of(points: list[Point], before: PositionMap | None = None, *, one_log: bool = False) -> PositionMap:
    sources, targets = np.array(points, np.int64).reshape(-1, 2).T
    return (before or PositionMap()).then(sources, targets, one_log=one_log)


def tables(position_map: PositionMap, upto: int) -> tuple[list[int], list[int]]:
    positions = np.arange(upto, dtype=np.int64)
    return position_map.targets_of(positions).tolist(), position_map.sources_of(positions).tolist()


@given(steps=STEPS, start=st.integers(0, 5), foreign=st.integers(0, 5), one_log=st.booleans())
def test_every_position_is_where_the_copier_put_it(steps: list[Step], start: int, foreign: int, one_log: bool) -> None:
    copying = copied(steps, start, foreign)
    found, end = map_of(copying.points, one_log=one_log), len(copying.log)
    for source in range(start, copying.next + FAR):
        target = found.target_of(source, end)
        assert target is not None
        assert copying.behind(target) == copying.copied(source)
        if source in copying.log:
            assert copying.log[target] == source
    assert found.first is not None
    for target in range(found.first.target, end + FAR):
        source_found = found.source_of(target, copying.next)
        assert source_found is not None
        assert copying.copied(source_found) == copying.behind(target)
        if target < end and copying.log[target] is not None:
            assert source_found == copying.log[target]


@given(steps=STEPS, start=st.integers(1, 5), foreign=st.integers(1, 5))
def test_before_the_first_point_nothing_is_known(steps: list[Step], start: int, foreign: int) -> None:
    found = map_of(copied(steps, start, foreign).points)
    assert found.first is not None
    assert found.first.source == start
    assert found.target_of(start - 1) is None
    assert found.source_of(found.first.target - 1) is None
    assert found.target_of(start) == found.first.target


@given(steps=STEPS, cuts=st.lists(st.integers(0, 30), max_size=4), one_log=st.booleans())
def test_points_may_come_in_pieces(steps: list[Step], cuts: list[int], one_log: bool) -> None:
    copying = copied(steps)
    found = PositionMap()
    for begin, end in pairwise([0, *sorted(cuts), None]):
        found = map_of(copying.points[begin:end], found, one_log=one_log)
    whole = map_of(copying.points, one_log=one_log)
    assert len(found) == len(whole)
    assert tables(found, 200) == tables(whole, 200)


@given(steps=STEPS, late=st.lists(st.integers(0, 30), max_size=5))
def test_points_that_are_told_late_change_nothing(steps: list[Step], late: list[int]) -> None:
    points = copied(steps).points
    before = map_of(points, one_log=True)
    again = [points[number % len(points)] for number in late]
    after = map_of([point for point in again if point.target < points[-1].target], before, one_log=True)
    assert tables(after, 200) == tables(before, 200)


@given(steps=STEPS, unsaid=st.integers(0, 5), last=st.integers(1, 6))
def test_what_is_not_told_yet_errs_towards_reading_again(steps: list[Step], unsaid: int, last: int) -> None:
    """Without transactions a message may be read before its point: one behind a hole of the source is told before."""
    copying = copied(steps)
    copying.tell(1)
    told = list(copying.points)
    copying.other(unsaid)
    copying.copy(last)
    late, exact = map_of(told), map_of(copying.points)
    for source in range(copying.next + FAR):
        (early_position, position) = (one.target_of(source, len(copying.log)) for one in (late, exact))
        assert early_position is not None
        assert position is not None
        assert early_position <= position


@given(points=POINTS)
def test_points_hold_until_one_voids_them(points: list[Point]) -> None:
    held: list[Point] = []
    for point in points:
        held = [one for one in held if one.source < point.source and one.target <= point.target]
        held.append(point)
    found = map_of(points)
    assert [found.target_of(point.source) for point in held] == [point.target for point in held]
    assert found.first == (held[0] if held else None)
    assert found.last == (held[-1] if held else None)


def test_a_target_that_was_made_anew_voids_what_was_there() -> None:
    points = [Point(0, 0), Point(50, 70), Point(60, 100), Point(80, 5)]
    assert map_of(points).target_of(55) == 5
    assert map_of(points, one_log=True).target_of(85) == 125, "in one log such a point is late"


def test_an_end_in_the_middle_limits_every_position() -> None:
    found = map_of([Point(0, 0), Point(10, 20), Point(40, 35)])
    assert [found.target_of(source, 25) for source in (5, 12, 30, 45)] == [5, 22, 25, 25]
    assert [found.target_of(source) for source in (5, 12, 30, 45)] == [5, 22, 35, 40]
    assert found.source_of(60, 50) == 50


def test_an_empty_map_knows_nothing() -> None:
    found = PositionMap()
    assert (found.target_of(0), found.source_of(0), found.first, found.last) == (None, None, None, None)
    assert found.targets_of(np.arange(3)).tolist() == [-1, -1, -1]
    assert map_of([]).target_of(5) is None
    assert "empty" in repr(found)


def test_points_on_one_line_are_one() -> None:
    line = [Point(100 + number, 7 + number) for number in range(0, 1000, 3)]
    found = map_of(line)
    assert len(found) == 2, "the first, and the last"
    assert found.nbytes == 32
    assert found.target_of(777) == 684
    more = map_of([Point(5000, 4907), Point(6000, 9000)], found)
    assert len(more) == 2
    assert (more.target_of(5500), more.target_of(6001)) == (5407, 9001)
    assert repr(more) == "<PositionMap, 2 points from Point(source=100, target=7) to Point(source=6000, target=9000)>"


@pytest.mark.parametrize("position", [0, (1 << 63) - 1])
def test_positions_of_any_size_are_mapped(position: int) -> None:
    found = map_of([Point(position, 0)])
    assert found.target_of(position) == 0
    assert found.source_of(0) == position
    assert map_of([Point(0, position)]).target_of((1 << 63) - 1) == (1 << 63) - 1
