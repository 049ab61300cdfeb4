"""Where messages of the source are in the copy: points where that changes, and nowhere else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.replicate.position_map import Point, PositionMap
from penstock.replicate.runs import Runs, Stretches


def whole(first: int, count: int) -> Stretches:
    return Stretches((first,), (0,), count)


def begun(source: int, target: int) -> Runs:
    runs = Runs()
    runs.begin(Point(source, target))
    return runs


def test_what_follows_on_both_sides_needs_no_point() -> None:
    runs = begun(10, 500)
    assert runs.stored(whole(10, 5), 500) == []
    assert runs.stored(whole(15, 5), 505) == []
    assert repr(runs) == "<Runs, the next message at Point(source=20, target=510)>"


def test_a_hole_in_the_source_begins_a_run() -> None:
    runs = begun(10, 500)
    assert runs.stored(whole(12, 5), 500) == [Point(12, 500)]
    assert runs.stored(whole(17, 1), 505) == []
    assert runs.stored(whole(20, 1), 506) == [Point(20, 506)]


def test_something_in_between_at_the_target_begins_a_run() -> None:
    runs = begun(10, 500)
    runs.stored(whole(10, 5), 500)
    assert runs.stored(whole(15, 5), 506) == [Point(15, 506)]


def test_holes_in_a_batch_begin_runs_within_it() -> None:
    runs = begun(0, 0)
    assert runs.stored(Stretches((0, 5, 9), (0, 2, 3), 6), 0) == [Point(5, 2), Point(9, 3)]
    assert runs.stored(whole(12, 1), 6) == []


def test_going_back_begins_a_run() -> None:
    runs = begun(0, 0)
    runs.stored(whole(0, 10), 0)
    runs.begin(Point(0, 11))
    assert runs.stored(whole(0, 10), 11) == []
    assert Runs().stored(whole(0, 1), 0) == [Point(0, 0)], "nothing was told yet"


def test_the_first_and_last_position_of_a_batch() -> None:
    assert (whole(7, 3).first, whole(7, 3).last) == (7, 9)
    some = Stretches((0, 5, 9), (0, 2, 3), 6)
    assert (some.first, some.last) == (0, 11)


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4), st.integers(0, 2)),
        max_size=12,
    )
)
def test_points_tell_of_each_message_where_it_is(batches: list[tuple[list[tuple[int, int]], int]]) -> None:
    """Stretches with holes before them, in batches with something between them at the target."""
    runs, points = begun(0, 0), [Point(0, 0)]
    where: dict[int, int] = {}
    source = target = 0
    for stretches, between in batches:
        target += between
        positions: list[int] = []
        indexes: list[int] = []
        total = 0
        for hole, count in stretches:
            source += hole
            if hole or not positions:
                positions.append(source)
                indexes.append(total)
            where |= {source + i: target + total + i for i in range(count)}
            source, total = source + count, total + count
        points += runs.stored(Stretches(positions, indexes, total), target)
        target += total
    sources, targets = np.array(points, np.int64).T
    told = PositionMap().then(sources, targets)
    assert {position: told.target_of(position) for position in where} == where
    assert len(points) <= 1 + sum(len(stretches) for stretches, _ in batches)
