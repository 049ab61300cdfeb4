"""Messages taken out of columns: the same as from lists, whatever the columns' layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.columns import PROPERTIES, BinaryColumn, BufferColumns, MapColumn, from_arrow, take, to_arrow

STRINGS = st.none() | st.binary(max_size=12)
MAPS = st.none() | st.dictionaries(st.text(max_size=3), STRINGS, max_size=3)
ROWS = st.lists(st.tuples(STRINGS, STRINGS, MAPS, st.integers(-1, 1 << 48)), max_size=20)


def arrays(rows: list[Any], skip: int) -> BufferColumns:
    """Columns of the rows from `skip` on, cut out of Arrow arrays of all of them."""
    values, keys, maps, times = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    pairs = [None if pairs is None else list(pairs.items()) for pairs in maps]
    return from_arrow(
        pa.array(values, pa.binary()).slice(skip),
        pa.array(keys, pa.binary()).slice(skip),
        pa.array(pairs, PROPERTIES).slice(skip),
        times[skip:],
    )


def strings(column: BinaryColumn | None, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    valid = bits(column, count)
    ends = column.offsets.tolist()
    return [column.data[ends[i] : ends[i + 1]].tobytes() if valid[i] else None for i in range(count)]


def bits(column: BinaryColumn | MapColumn, count: int) -> list[bool]:
    if column.validity is None:
        return [True] * count
    return [
        bool(column.validity[bit >> 3] >> (bit & 7) & 1) for bit in range(column.bit_offset, column.bit_offset + count)
    ]


def maps_of(column: MapColumn | None, count: int) -> list[dict[str, bytes | None] | None]:
    if column is None:
        return [None] * count
    size = len(column.names.offsets) - 1
    names = [name.decode() for name in strings(column.names, size) if name is not None]
    values = strings(column.values, size)
    ends, valid = column.offsets.tolist(), bits(column, count)
    pairs = [dict(zip(names[ends[i] : ends[i + 1]], values[ends[i] : ends[i + 1]], strict=True)) for i in range(count)]
    return [pairs[i] if valid[i] else None for i in range(count)]


def rows_of(columns: BufferColumns) -> list[Any]:
    count = len(columns)
    keys = strings(columns.keys, count)
    maps = maps_of(columns.properties, count)
    return list(zip(strings(columns.values, count), keys, maps, columns.times_ms.tolist(), strict=True))


@given(ROWS, st.data())
def test_what_is_taken_is_what_a_list_would_give(rows: list[Any], data: st.DataObject) -> None:
    skip = data.draw(st.integers(0, len(rows)))
    columns, left = arrays(rows, skip), rows[skip:]
    assert rows_of(columns) == left
    indexes = data.draw(st.lists(st.integers(0, len(left) - 1), max_size=30)) if left else []
    taken = take(columns, np.array(indexes, data.draw(st.sampled_from([np.int64, np.int32, np.uint8]))))
    assert rows_of(taken) == [left[i] for i in indexes]
    again = take(taken, np.arange(len(indexes))[::-1])
    assert rows_of(again) == [left[i] for i in reversed(indexes)]


@given(ROWS, st.data())
def test_arrow_shows_columns_of_any_bit_offset(rows: list[Any], data: st.DataObject) -> None:
    skip = data.draw(st.integers(0, len(rows)))
    left = rows[skip:]
    shown = to_arrow(replace(arrays(rows, skip), positions=np.arange(len(left))))
    assert shown.value.to_pylist() == [row[0] for row in left]
    assert shown.key.to_pylist() == [row[1] for row in left]
    pairs = [None if row[2] is None else list(row[2].items()) for row in left]
    assert shown.properties.to_pylist() == pairs


def test_positions_are_taken_along_where_there_are_any() -> None:
    columns = from_arrow(pa.array([b"a", b"b", b"c"]), None, None, [1, 2, 3])
    indexes = np.array([2, 0])
    assert take(columns, indexes).positions is None
    positions = take(replace(columns, positions=np.array([70, 80, 90])), indexes).positions
    assert positions is not None
    assert positions.tolist() == [90, 70]


def test_absent_columns_stay_absent() -> None:
    taken = take(from_arrow(pa.array([b"a", None]), None, None, 5), np.array([1]))
    assert (taken.keys, taken.properties) == (None, None)
    assert rows_of(taken) == [(None, None, None, 5)]


def test_property_names_that_are_no_text_are_taken_as_they_are() -> None:
    ends = np.array([0, 1, 2], np.int32)
    names = BinaryColumn(ends, np.frombuffer(b"\xff\xfe", np.uint8))
    columns = from_arrow(pa.array([b"a", b"b"]), None, None, 5)
    columns = replace(columns, properties=MapColumn(ends, names, names))
    properties = take(columns, np.array([1, 0])).properties
    assert properties is not None
    assert strings(properties.names, 2) == [b"\xfe", b"\xff"]


@pytest.mark.parametrize("index", [-1, 2])
def test_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError):
        take(from_arrow(pa.array([b"a", b"b"]), None, None, 5), np.array([index]))
