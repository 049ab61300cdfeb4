"""How fast copying may go. Time is moved by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replicate.rate import BURST_S, Rate


def test_without_a_rate_everything_may_go() -> None:
    rate = Rate(None)
    rate.take(1 << 40, 5.0)
    assert rate.ready_at(5.0) == 5.0
    assert "any number" in repr(rate)


def test_the_first_goes_at_once_however_large_it_is_and_is_paid_for_afterwards() -> None:
    rate = Rate(10.0)
    assert rate.ready_at(100.0) == 100.0
    rate.take(50, 100.0)
    assert rate.ready_at(100.0) == pytest.approx(105.0)
    assert rate.ready_at(104.0) == pytest.approx(105.0)
    assert rate.ready_at(105.5) == 105.5


def test_after_a_rest_a_little_may_go_at_once_and_not_all_that_could_have_gone() -> None:
    rate = Rate(100.0)
    rate.take(0, 0.0)
    rate.ready_at(1000.0)
    burst = int(100 * BURST_S)
    rate.take(burst, 1000.0)
    assert rate.ready_at(1000.0) == 1000.0
    rate.take(100, 1000.0)
    assert rate.ready_at(1000.0) == pytest.approx(1001.0)


def test_time_that_stands_still_or_goes_back_earns_nothing() -> None:
    rate = Rate(10.0)
    rate.take(10, 50.0)
    for now in (50.0, 49.0, 50.0):
        assert rate.ready_at(now) == pytest.approx(now + 1.0)


def test_it_can_be_told_what_it_allows() -> None:
    rate = Rate(10.0)
    rate.take(4, 0.0)
    assert repr(rate) == "<Rate of 10.0 in a second, credit -4>"


@given(
    per_second=st.floats(0.5, 1e6),
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=40),
    rests=st.lists(st.floats(0.0, 3.0), min_size=40, max_size=40),
)
def test_who_goes_when_he_may_never_goes_faster_and_never_waits_for_ever(
    per_second: float, sizes: list[int], rests: list[float]
) -> None:
    """Whoever goes at the moment that he was told may go, and stays within the rate over any time."""
    rate, now, gone = Rate(per_second), 1000.0, 0
    for size, rest in zip(sizes, rests, strict=False):
        now += rest
        for _ in range(3):
            ready_at = rate.ready_at(now)
            if ready_at <= now:
                break
            now = ready_at
        else:
            pytest.fail("told again and again that it is not time yet")
        assert gone <= per_second * (now - 1000.0 + BURST_S) * (1 + 1e-9)
        rate.take(size, now)
        gone += size
