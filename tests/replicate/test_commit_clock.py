"""When a position is to be committed."""

from __future__ import annotations

import pytest

from penstock.replicate.commit_clock import CommitClock, Terms

TERMS = Terms(commit_interval=1.0, transaction_bytes_max=100, renew_after=3600.0)


@pytest.fixture
def clock() -> CommitClock:
    clock = CommitClock(TERMS)
    clock.wind(50.0)
    return clock


def test_it_is_due_an_interval_after_the_position_first_moved(clock: CommitClock) -> None:
    clock.touched(60.0)
    clock.touched(60.9)
    assert clock.due_at(can_move=True) == 61.0
    assert not clock.is_due(60.9, can_move=True, is_pressing=False)
    assert clock.is_due(61.0, can_move=True, is_pressing=False)


def test_it_is_never_due_where_it_would_say_the_same_again(clock: CommitClock) -> None:
    clock.touched(60.0, 1000)
    assert clock.due_at(can_move=False) is None
    assert not clock.is_due(1e6, can_move=False, is_pressing=True)


def test_it_is_due_at_once_when_many_bytes_left(clock: CommitClock) -> None:
    clock.touched(60.0, 99)
    assert not clock.is_due(60.0, can_move=True, is_pressing=False)
    clock.touched(60.0, 1)
    assert clock.is_due(60.0, can_move=True, is_pressing=False)


def test_it_is_due_at_once_when_nothing_is_worth_waiting_for_but_not_twice(clock: CommitClock) -> None:
    clock.touched(60.0)
    assert clock.is_due(60.0, can_move=True, is_pressing=True)
    clock.committed(60.0, is_all=True)
    assert not clock.is_touched
    assert not clock.is_due(60.0, can_move=True, is_pressing=True)


def test_what_was_not_part_of_a_commit_is_due_an_interval_later(clock: CommitClock) -> None:
    clock.touched(60.0, 1000)
    clock.committed(61.0, is_all=False)
    assert clock.due_at(can_move=True) == 62.0
    assert not clock.is_due(61.5, can_move=True, is_pressing=False)


@pytest.mark.parametrize("begin", [-1e9, 0.0, 5.0, 1e9])
def test_what_was_found_committed_is_renewed_so_long_after_it_was_found(begin: float) -> None:
    """A clock may begin anywhere: how long a machine has been running says nothing."""
    clock = CommitClock(TERMS)
    assert clock.due_at(can_move=True) is None
    clock.wind(begin)
    clock.wind(begin + 7.0)
    assert clock.due_at(can_move=False) == begin + 3600.0
    clock.committed(begin + 3600.0, is_all=True)
    assert clock.due_at(can_move=False) == begin + 7200.0


def test_after_going_back_there_is_nothing_to_commit(clock: CommitClock) -> None:
    clock.touched(60.0, 1000)
    clock.reset()
    assert clock.due_at(can_move=True) is None
    clock.wind(70.0)
    clock.touched(70.0)
    assert not clock.is_due(70.0, can_move=True, is_pressing=False)
    assert repr(clock) == "<CommitClock, 0 bytes since 70.0, committed at 70.0>"
