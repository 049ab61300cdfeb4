"""The plain kernel's short way for bare values gives what framing each of them gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.kafka.batch import LATE_MAX, LATE_MIN, RecordBuffer

NOW_MS = 1_700_000_000_000
sizes = st.sampled_from((0, 1, LATE_MIN - 1, LATE_MIN, 100, 5000, LATE_MAX - 11, LATE_MAX - 10, LATE_MAX, 20_000))
steps = st.lists(st.tuples(sizes, st.integers(-3, 80), st.booleans()), max_size=40)


def same(one: RecordBuffer, other: RecordBuffer) -> bool:
    return (
        bytes(one.records()) == bytes(other.records())
        and one.count == other.count
        and one.size == other.size
        and (one.first_time_ms, one.min_time_ms, one.max_time_ms)
        == (other.first_time_ms, other.min_time_ms, other.max_time_ms)
    )


@given(st.integers(0, 200), steps, st.integers(1000, 300_000))
def test_values_taken_late_are_framed_as_if_taken_one_by_one(
    before: int, then: list[tuple[int, int, bool]], most: int
) -> None:
    late, at_once = RecordBuffer(most), RecordBuffer(most)
    plan = [(100, 0, False)] * before + then
    for size, later, with_key in plan:
        value, time_ms = bytes(size), NOW_MS + later
        if with_key:
            assert late.append(value, b"k", None, time_ms) == at_once.append(value, b"k", None, time_ms)
        else:
            assert late.append_value(value, time_ms) == at_once.append(value, None, None, time_ms)
    assert same(late, at_once)


def test_many_values_pass_the_number_that_two_bytes_can_tell() -> None:
    late, at_once = RecordBuffer(10_000_000), RecordBuffer(10_000_000)
    for number in range(LATE_MAX + 100):
        value = b"%064d" % number
        assert late.append_value(value, NOW_MS) == at_once.append(value, None, None, NOW_MS) == number
    assert same(late, at_once)


def test_a_limit_raised_later_counts_from_then_on() -> None:
    buffer = RecordBuffer(10_000)
    while buffer.append_value(bytes(100), NOW_MS) >= 0:
        pass
    full = buffer.count
    buffer.bytes_max = 20_000
    while buffer.append_value(bytes(100), NOW_MS) >= 0:
        pass
    assert full < buffer.count
    assert buffer.size <= 20_000


@pytest.mark.parametrize("count", [1, 100])
def test_a_sealed_batch_takes_none(count: int) -> None:
    buffer = RecordBuffer()
    for _ in range(count):
        buffer.append_value(bytes(100), NOW_MS)
    buffer.sealed = True
    assert buffer.append_value(bytes(100), NOW_MS) == -1
    buffer.clear()
    assert buffer.append_value(bytes(100), NOW_MS) == 0
