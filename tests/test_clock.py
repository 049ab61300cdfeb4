from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import Clock, ManualClock, SystemClock


def now_of(clock: Clock) -> tuple[float, int]:
    return clock.monotonic(), clock.wall_ms()


def test_the_system_clock_tells_the_machines_time() -> None:
    clock = SystemClock()
    first, wall_ms = now_of(clock)
    assert clock.monotonic() >= first
    assert wall_ms > 1_600_000_000_000
    assert repr(clock) == "SystemClock()"


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(monotonic=10.0, wall_ms=1_000)
    assert now_of(clock) == (10.0, 1_000)
    assert now_of(clock) == (10.0, 1_000)
    clock.advance(0.25)
    assert now_of(clock) == (10.25, 1_250)
    assert repr(clock) == "ManualClock(monotonic=10.25, wall_ms=1250)"


def test_the_wall_clock_can_be_set_back_while_deadlines_go_on() -> None:
    clock = ManualClock(wall_ms=5_000)
    clock.advance(1)
    clock.set_wall_ms(100)
    clock.advance(1)
    assert now_of(clock) == (2.0, 1_100)


@pytest.mark.parametrize("seconds", [-0.001, float("nan")])
def test_time_does_not_go_back(seconds: float) -> None:
    clock = ManualClock(monotonic=1.0)
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(seconds)
    assert clock.monotonic() == 1.0


@given(st.lists(st.integers(0, 10_000_000), max_size=50))
def test_small_steps_add_up_exactly(steps_us: list[int]) -> None:
    clock = ManualClock()
    for step_us in steps_us:
        clock.advance(step_us / 1_000_000)
    assert clock.wall_ms() == sum(steps_us) // 1000
    assert clock.monotonic() == sum(steps_us) / 1_000_000
