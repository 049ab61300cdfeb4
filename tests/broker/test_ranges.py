"""Sets of positions as ranges, beside a plain set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.ranges import Ranges
from penstock.errors import DecodeError

SPANS = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda span: (span[0], span[0] + span[1]))
STEPS = st.lists(st.one_of(SPANS, st.integers(0, 60)), max_size=40)


def made(*spans: tuple[int, int]) -> Ranges:
    ranges = Ranges()
    for first, after in spans:
        ranges.add(first, after)
    return ranges


def runs(positions: set[int]) -> list[tuple[int, int]]:
    """The positions as ranges, found the slow way."""
    firsts = sorted(position for position in positions if position - 1 not in positions)
    return [(first, next(at for at in range(first, 1000) if at not in positions)) for first in firsts]


@given(STEPS)
def test_it_is_a_set(steps: list[tuple[int, int] | int]) -> None:
    ranges, model = Ranges(), set[int]()
    for step in steps:
        if isinstance(step, tuple):
            ranges.add(*step)
            model |= set(range(*step))
        else:
            expected = next(at for at in range(step, 1000) if at not in model)
            assert ranges.drop_before(step) == expected
            model = {position for position in model if position >= expected}
        assert list(ranges) == runs(model)
        assert len(ranges) == len(runs(model))
        assert ranges.positions() == len(model)
        assert [at for at in range(80) if at in ranges] == sorted(model)
        for at in range(80):
            assert ranges.after(at) == next(free for free in range(at, 1000) if free not in model)


@given(st.lists(SPANS, max_size=30), st.integers(0, 1 << 60))
def test_bytes_give_it_back(spans: list[tuple[int, int]], base: int) -> None:
    ranges = made(*((base + first, base + after) for first, after in spans))
    assert list(Ranges.decode(ranges.encode(base), base)) == list(ranges)


@pytest.mark.parametrize("number", [1, 127, 128, 129, 16_383, 16_384, 1 << 40, (1 << 62) - 1])
def test_numbers_of_any_size_come_back(number: int) -> None:
    ranges = made((number, 2 * number))
    assert list(Ranges.decode(ranges.encode(0), 0)) == [(number, 2 * number)]


def test_it_is_compact() -> None:
    ranges = made(*((at, at + 1) for at in range(1 << 50, (1 << 50) + 20_000, 2)))
    assert len(ranges) == 10_000
    assert len(ranges.encode(1 << 50)) < 20_010


def test_a_copy_is_changed_apart() -> None:
    ranges = made((1, 2))
    ranges.copy().add(5, 6)
    assert list(ranges) == [(1, 2)]


def test_cleared_it_holds_nothing() -> None:
    ranges = made((1, 2), (5, 9))
    ranges.clear()
    assert list(ranges) == []
    assert repr(made((1, 2), (5, 9))) == "<Ranges 1-1, 5-8>"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "expected one byte more, found the end"),
        (b"\x01", "expected one byte more, found the end"),
        (b"\x01\x00", "expected one byte more, found the end"),
        (b"\x01\x00\x00", "expected ranges apart from each other, found gap 0, length 0"),
        (b"\x02\x00\x01\x00\x01", "expected ranges apart from each other, found gap 0, length 1"),
        (b"\x00\x00", "expected an end, found 1 bytes more"),
        (b"\x01" + b"\xff" * 9 + b"\x7f", "expected a number below 2^63, found a longer one"),
        (
            b"\x01" + b"\xff" * 8 + b"\x7f\x01",
            f"expected ranges apart from each other, found gap {(1 << 63) - 1}, length 1",
        ),
    ],
)
def test_other_bytes_are_refused(data: bytes, fault: str) -> None:
    with pytest.raises(DecodeError, match=fault.replace("^", r"\^")):
        Ranges.decode(data, 0)


@given(st.binary(max_size=30))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        ranges = Ranges.decode(data, 7)
    except DecodeError:
        return
    assert list(Ranges.decode(ranges.encode(7), 7)) == list(ranges)
