"""Streams of record batches compared, beside a plain comparison of lists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replicate.comparison import FIELDS, Comparison, compare
from tests.replicate.verify_kit import TIME_MS, Message, changed, cut, numbered, rows

BYTES = st.sampled_from([None, b"", b"a", b"b", b"\x00", b"ab" * 40])
MESSAGES = st.builds(
    Message,
    BYTES,
    BYTES,
    st.lists(st.tuples(st.sampled_from(["", "x", "y", "ä"]), BYTES), max_size=3).map(tuple),
    st.sampled_from([-1, 0, TIME_MS]),
    st.just(True),
)
LISTS = st.lists(MESSAGES, max_size=30)
SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any)
NAMES = {"key": "key", "value": "value", "properties": "properties", "event_time": "time_ms"}
OFTEN = ([1], [2, 3], [7], [100])


@st.composite
def kin(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """Two lists that are equal, or nearly, or not at all."""
    source = draw(LISTS)
    kind = draw(st.sampled_from(["same", "other", "one", "swapped", "shorter", "longer"]))
    target = draw(LISTS) if kind == "other" else list(source)
    if kind == "longer":
        target += draw(LISTS)
    elif kind == "shorter":
        del target[draw(st.integers(0, len(target))) :]
    elif kind == "one" and target:
        target[draw(st.integers(0, len(target) - 1))] = draw(MESSAGES)
    elif kind == "swapped" and len(target) > 1:
        at = draw(st.integers(0, len(target) - 2))
        target[at : at + 2] = target[at + 1], target[at]
    return source, target


def compared(
    source: Sequence[Message], target: Sequence[Message], sizes: Sequence[Sequence[int]] = ([1000], [1000]), **how: Any
) -> Comparison:
    return compare(3, cut(rows(source, 100, 2), sizes[0]), cut(rows(target, 5), sizes[1]), **how)


def first_unlike(source: Sequence[Message], target: Sequence[Message]) -> tuple[int, str] | None:
    """Index and field of the first difference, found one by one."""
    for index, (one, other) in enumerate(itertools.zip_longest(source, target)):
        if one is None or other is None:
            return index, "count"
        if one != other:
            return index, next(field for field in FIELDS if getattr(one, NAMES[field]) != getattr(other, NAMES[field]))
    return None


@given(lists=kin(), sizes=st.tuples(SIZES, SIZES))
def test_it_finds_what_a_comparison_of_lists_finds(
    lists: tuple[list[Message], list[Message]], sizes: tuple[list[int], list[int]]
) -> None:
    source, target = lists
    found = compared(source, target, sizes)
    expected = first_unlike(source, target)
    assert (found.source_count, found.target_count) == (len(source), len(target))
    assert (found.source_digest == found.target_digest) is (source == target)
    if expected is None:
        assert found.difference is None
        return
    told = found.difference
    assert told is not None
    assert (told.partition, told.index, told.field) == (3, *expected)
    assert told.source_position == (100 + 2 * told.index if told.index < len(source) else None)
    assert told.target_position == (5 + told.index if told.index < len(target) else None)
    assert told.source != told.target


@given(messages=LISTS, other=LISTS, sizes=SIZES)
def test_digests_tell_the_messages_and_nothing_else(
    messages: list[Message], other: list[Message], sizes: list[int]
) -> None:
    alone = compared(messages, []).source_digest
    assert compared(messages, messages, [sizes, [1]]).source_digest == alone
    assert compared(other, messages, [[2], sizes]).target_digest == alone
    assert (compared(other, []).source_digest == alone) is (other == messages)


@pytest.mark.parametrize("sizes", list(itertools.product(OFTEN, OFTEN)))
def test_chunks_need_not_align(sizes: tuple[list[int], list[int]]) -> None:
    source = numbered(100)
    assert compared(source, source, sizes).difference is None
    for at in (0, 1, 50, 99):
        told = compared(source, changed(source, at, value=b"other"), sizes).difference
        assert told is not None
        assert (told.index, told.field) == (at, "value")


CHANGES: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    ("key", {"key": b"k8"}, ("b'k7'", "b'k8'")),
    ("key", {"key": None}, ("b'k7'", "null")),
    ("key", {"key": b""}, ("b'k7'", "b''")),
    ("value", {"value": None}, ("b'v7'", "null")),
    ("value", {"value": b"v7" + b"x" * 100}, ("b'v7'", f"b'v7{'x' * 46}' (bytes 0 to 47 of 102)")),
    ("properties", {"properties": ()}, ("property 1, 'n' = b'7'", "no property 1")),
    ("properties", {"properties": (("n", None),)}, ("property 1, 'n' = b'7'", "property 1, 'n' = null")),
    ("properties", {"properties": (("m", b"7"),)}, ("property 1, 'n' = b'7'", "property 1, 'm' = b'7'")),
    ("properties", {"properties": (("n", b"7"), ("n", b"7"))}, ("no property 2", "property 2, 'n' = b'7'")),
    ("event_time", {"time_ms": TIME_MS}, ("2023-11-14T22:13:20.007Z", "2023-11-14T22:13:20.000Z")),
    ("event_time", {"time_ms": (1 << 62)}, ("2023-11-14T22:13:20.007Z", "146140482-04-24T15:36:27.904Z")),
    ("key", {"key": b"", "value": b"", "time_ms": 0}, ("b'k7'", "b''")),
]


@pytest.mark.parametrize(("field", "fields", "shown"), CHANGES)
def test_what_differs_is_shown(field: str, fields: dict[str, Any], shown: tuple[str, str]) -> None:
    source = numbered(10)
    told = compared(source, changed(source, 7, **fields)).difference
    assert told is not None
    assert (told.index, told.field, told.source_position, told.target_position) == (7, field, 114, 12)
    assert (told.source, told.target) == shown


def test_null_is_not_empty() -> None:
    for field in ("key", "value"):
        null, empty = numbered(3, **{field: None}), numbered(3, **{field: b""})
        told = compared(null, empty).difference
        assert told is not None
        assert (told.index, told.field, told.source, told.target) == (0, field, "null", "b''")


def test_of_long_values_the_part_that_differs_is_shown() -> None:
    long = bytes(range(256)) * 4000
    other = long[:500_000] + b"?" + long[500_001:]
    told = compared([Message(value=long)], [Message(value=other)]).difference
    assert told is not None
    assert told.source == f"{long[499_988:500_036]!r} (bytes 499988 to 500035 of 1024000)"
    assert told.target == f"{other[499_988:500_036]!r} (bytes 499988 to 500035 of 1024000)"


def test_the_first_row_that_differs_counts_and_not_the_first_field() -> None:
    source = numbered(10)
    told = compared(source, changed(changed(source, 8, key=b""), 3, time_ms=0)).difference
    assert told is not None
    assert (told.index, told.field) == (3, "event_time")


def test_counts_and_digests_are_of_all_messages_also_behind_a_difference() -> None:
    source, target = numbered(100), changed(numbered(90), 10, value=b"")
    found = compared(source, target, [[7], [9]])
    assert (found.source_count, found.target_count) == (100, 90)
    assert found.source_digest == compared(source, source).source_digest
    assert found.target_digest == compared(target, target).source_digest
    assert str(found) == (
        f"partition 3: 100 messages at the source, digest {found.source_digest}; "
        f"90 at the target, digest {found.target_digest}; "
        "after 10 equal messages value differs: the source has b'v10' at position 120, the target b'' at position 15"
    )


def test_an_end_before_the_other_is_told() -> None:
    shorter = compared(numbered(1200), numbered(1000), [[1], [1000]]).difference
    assert str(shorter) == "after 1,000 equal messages the target ends, and the source has 200 more, from position 2100"
    longer = compared(numbered(2), numbered(3)).difference
    assert str(longer) == "after 2 equal messages the source ends, and the target has 1 more, from position 7"


def test_nothing_equals_nothing() -> None:
    found = compared([], [])
    assert found.difference is None
    assert found.source_digest == found.target_digest != compared(numbered(1), []).source_digest


@pytest.mark.parametrize("log", [0, 1], ids=["source", "target"])
def test_times_that_a_log_gave_are_not_compared(log: int) -> None:
    sides = [numbered(100), numbered(100)]
    sides[log] = [message._replace(time_ms=5, sent=False) if n % 3 else message for n, message in enumerate(sides[log])]
    found = compared(sides[0], sides[1], [[7], [11]])
    assert found.difference is None
    assert found.untimed == 66
    assert found.source_digest == found.target_digest
    told = compared(sides[0], changed(sides[1], 30, time_ms=6)).difference
    assert told is not None
    assert (told.index, told.field) == (30, "event_time")


def test_times_may_be_ignored() -> None:
    source, target = numbered(100), numbered(100, time_ms=5)
    assert compared(source, target).difference is not None
    found = compared(source, target, [[7], [11]], times="ignore")
    assert found.difference is None
    assert found.untimed == 0
    assert found.source_digest == found.target_digest
    assert compared(source, changed(target, 4, key=None), times="ignore").difference is not None


def test_no_more_is_taken_than_is_compared() -> None:
    """Of two sides, neither runs ahead of the other by more than a record batch."""
    taken = [0, 0]
    ahead: list[int] = []

    def side(number: int, sizes: list[int]) -> Any:
        for batch in cut(rows(numbered(500)), sizes):
            taken[number] += batch.num_rows
            ahead.append(abs(taken[0] - taken[1]))
            yield batch

    assert compare(0, side(0, [13]), side(1, [40, 3])).difference is None
    assert max(ahead) <= 40
