"""Messages as Hypothesis draws them, the same as Arrow columns, and bytes that were framed well and then damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from penstock.message import Properties, PropertyValue
from penstock.wire.columns import PROPERTIES

TIME_MS_MAX = 1 << 62
NOW_MS = 1_700_000_000_000
# More than the compiled twin keeps on its stack.
MANY = 25


class Sent(NamedTuple):
    """The arguments of one `append`."""

    value: bytes | None = None
    key: bytes | None = None
    properties: Properties | None = None
    time_ms: int = -1


class Read(NamedTuple):
    """One message of columns that were read."""

    position: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    properties: tuple[tuple[str, bytes | None], ...]


class OddDict(dict[str, PropertyValue]):
    """A dict that is not quite one."""


# Sizes at which varints get longer, and beyond what a small table or a first allocation holds.
LARGE = st.sampled_from([63, 64, 127, 128, 8191, 8192, 16_383, 16_384, 70_000]).map(lambda size: b"\xa5" * size)
STRINGS = st.none() | st.binary(max_size=24) | LARGE
NAMES = st.text(max_size=6)
PROPERTY_VALUES: st.SearchStrategy[PropertyValue] = st.none() | st.text(max_size=6) | st.binary(max_size=6)
DICTS = st.dictionaries(NAMES, PROPERTY_VALUES, max_size=4)
LONG_DICTS = st.integers(MANY - 2, MANY + 10).map(lambda count: {f"p{i}": str(i) for i in range(count)})
MAPPINGS: st.SearchStrategy[Properties | None] = (
    st.none() | DICTS | LONG_DICTS | DICTS.map(MappingProxyType) | DICTS.map(OddDict)
)
TIMES = st.sampled_from([-1, 0, TIME_MS_MAX - 1]) | st.integers(NOW_MS - 100, NOW_MS + 100) | st.integers(-1, 1 << 48)
SENT = st.builds(Sent, STRINGS, STRINGS, MAPPINGS, TIMES)

BAD_STRINGS: st.SearchStrategy[Any] = st.sampled_from([5, "text", 1.5, [b"x"], object])
NO_MAPPINGS: list[Any] = [[("a", b"1")], "ab", 5]
WITH_BAD_NAMES: list[Any] = [{5: b"1"}, {b"a": b"1"}, {"\ud800": b""}]
WITH_BAD_VALUES: list[Any] = [{"a": 5}, {"a": b"1", "b": bytearray(b"2")}, {"a": "\udfff"}]
WITH_BAD_VALUES += [MappingProxyType({"a": [1]}), {f"p{i}": 1.5 for i in range(MANY)}]
BAD_MAPPINGS: st.SearchStrategy[Any] = st.sampled_from(NO_MAPPINGS + WITH_BAD_NAMES + WITH_BAD_VALUES)
BAD_TIMES: st.SearchStrategy[Any] = st.sampled_from([-2, TIME_MS_MAX, 1 << 70, -(1 << 70), 1.5, "now", None])


def bytes_of(value: PropertyValue) -> bytes | None:
    """A property's value as it is framed."""
    return value.encode() if isinstance(value, str) else value


def pairs_of(properties: Properties | None) -> list[tuple[str, bytes | None]] | None:
    """Properties as Arrow takes the entries of a map."""
    return None if properties is None else [(name, bytes_of(value)) for name, value in properties.items()]


def map_column(all_properties: Sequence[Mapping[str, PropertyValue] | None]) -> pa.Array:
    """Properties as a map column."""
    return pa.array([pairs_of(properties) for properties in all_properties], PROPERTIES)


def expected(messages: Sequence[Sent], base_offset: int = 0) -> list[Read]:
    """What must be read when these were written."""
    return [
        Read(base_offset + i, sent.time_ms, sent.key, sent.value, tuple(pairs_of(sent.properties) or ()))
        for i, sent in enumerate(messages)
    ]


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes with some of them changed, cut away, put in, or moved."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "set", "cut", "drop", "insert", "splice"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from([0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF]))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 8))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=10))
            case "splice":
                start = draw(st.integers(0, len(data)))
                data[at:at] = data[start : start + draw(st.integers(1, 30))]
    return bytes(data)
