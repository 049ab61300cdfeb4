"""What may be on its way at once: taken and given back exactly once, and whoever was refused hears of the next one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.failures import InvariantError
from penstock.replicate.permits import Permits


class Freed:
    """Counts how often somebody was told."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_bytes_and_entries_are_limited() -> None:
    permits = Permits(100, 3, Freed())
    assert permits.take(60)
    assert not permits.take(41)
    assert permits.take(40)
    assert not permits.take(1)
    permits.give_back(60)
    assert permits.take(1)
    assert (permits.bytes, permits.entries) == (41, 2)
    assert permits.take(1)
    assert not permits.take(0), "no more entries"


def test_a_single_one_passes_however_large_it_is() -> None:
    permits = Permits(100, 3, Freed())
    assert permits.take(1000)
    assert not permits.take(1)
    permits.give_back(1000)
    assert permits.take(1000)


def test_whoever_was_refused_is_told_once_when_there_is_one_again() -> None:
    freed = Freed()
    permits = Permits(100, 10, freed)
    permits.take(50)
    permits.take(50)
    permits.give_back(50)
    assert freed.times == 0, "nobody was refused"
    permits.take(50)
    permits.take(50)
    permits.take(50)
    permits.give_back(50)
    assert freed.times == 1
    permits.give_back(50)
    assert freed.times == 1


def test_the_one_who_is_told_may_take_at_once() -> None:
    taken: list[bool] = []
    permits = Permits(100, 10, lambda: taken.append(permits.take(100)))
    permits.take(100)
    permits.take(100)
    permits.give_back(100)
    assert taken == [True]
    assert (permits.bytes, permits.entries) == (100, 1)


@pytest.mark.parametrize("size", [60, 40])
def test_giving_back_more_than_was_taken_is_a_mistake(size: int) -> None:
    permits = Permits(100, 10, Freed())
    permits.take(50)
    permits.give_back(min(size, 50))
    with pytest.raises(InvariantError, match="more was given back than was taken"):
        permits.give_back(size)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=60))
def test_it_agrees_with_a_list_of_what_is_on_its_way(steps: list[tuple[bool, int]]) -> None:
    freed = Freed()
    permits, refused = Permits(100, 4, freed), False
    out: list[int] = []
    for takes, size in steps:
        if takes:
            fits = not out or (len(out) < 4 and sum(out) + size <= 100)
            assert permits.take(size) is fits
            refused |= not fits
            out += [size] * fits
        elif out:
            before = freed.times
            permits.give_back(out.pop(0))
            assert freed.times - before == refused
            refused = False
        assert (permits.bytes, permits.entries) == (sum(out), len(out))
