from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.backoff import PAUSE_MIN, Backoff


def test_pauses_double_up_to_the_limit_and_start_anew_after_success() -> None:
    backoff = Backoff(0.1, 1.2, lambda: 0.5)
    assert [backoff.next() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.failures == 6
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next() == pytest.approx(0.1)


def test_pauses_lie_within_a_fifth_of_their_length_and_never_above_the_limit() -> None:
    numbers = iter([0.0, 1.0, 0.0, 1.0])
    backoff = Backoff(0.1, 0.2, lambda: next(numbers))
    assert [backoff.next() for _ in range(4)] == pytest.approx([0.08, 0.2, 1 / 6 * 0.8, 0.2])


@given(
    st.floats(0, 10),
    st.floats(0, 100),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=100),
)
def test_every_pause_is_between_the_least_and_the_limit(first: float, more: float, numbers: list[float]) -> None:
    source = iter(numbers)
    backoff = Backoff(first, first + more, lambda: next(source))
    for _ in numbers:
        assert PAUSE_MIN <= backoff.next() <= max((first + more) * 1.000001, PAUSE_MIN)


def test_it_tells_its_state() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    backoff.next()
    assert repr(backoff) == "<Backoff after 1 failures, 0.1 to 1.0 s>"
