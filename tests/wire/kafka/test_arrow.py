"""Arrow columns of every kind into the buffer: the same bytes as the same messages one by one, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MessageError
from penstock.wire.columns import PROPERTIES
from tests.wire.kafka.messages import SENT, Sent, map_column
from tests.wire.kafka.twins import Kit, outcome, state_of

BINARY = [b"one", None, b"", b"\xff\x00\xfe", b"four" * 50, None, b"six"]
TEXT = ["one", None, "", "größe", "four" * 50, None, "six"]
FIXED = [b"abc", None, b"def", b"\x00\x00\x00", b"ghi", None, b"jkl"]
KINDS = {
    "binary": (pa.binary(), BINARY),
    "string": (pa.string(), TEXT),
    "large_binary": (pa.large_binary(), BINARY),
    "large_string": (pa.large_string(), TEXT),
    "binary_view": (pa.binary_view(), BINARY),
    "string_view": (pa.string_view(), TEXT),
    "fixed_size_binary": (pa.binary(3), FIXED),
    "null": (pa.null(), [None] * 7),
    "binary without nulls": (pa.binary(), [b"a", b"bc", b"", b"def", b"g", b"h", b"i"]),
}
LAYOUTS: dict[str, Callable[[pa.Array], Any]] = {
    "whole": lambda array: array,
    "sliced": lambda array: pa.concat_arrays([array, array]).slice(3, 4),
    "sliced by more than a byte of bits": lambda array: pa.concat_arrays([array] * 3).slice(11, 7),
    "chunked": lambda array: pa.chunked_array([array.slice(0, 2), array.slice(2, 0), array.slice(2)]),
    "one chunk": lambda array: pa.chunked_array([array.slice(1)]),
    "no chunk": lambda array: pa.chunked_array([], array.type),
    "empty": lambda array: array.slice(0, 0),
    "empty at the end": lambda array: array.slice(7),
}
MAPS: list[dict[str, bytes | None] | None] = [
    {"a": b"1"},
    None,
    {},
    {"a": b"1", "größe": None},
    {f"p{i}": b"x" for i in range(30)},
    None,
    {"": b""},
]


def as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def written_one_by_one(kit: Kit, messages: Sequence[Sent]) -> tuple[Any, ...]:
    batch = kit.BatchBuffer(1 << 26)
    for sent in messages:
        batch.append(*sent)
    return state_of(batch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_kind_and_layout_are_framed(kit: Kit, kind: str, layout: str) -> None:
    arrow_kind, given_values = KINDS[kind]
    column = LAYOUTS[layout](pa.array(given_values, arrow_kind))
    values = [as_bytes(value) for value in column.to_pylist()]
    batch = kit.BatchBuffer(1 << 26)
    assert batch.extend(column, keys=column) == len(values)
    assert state_of(batch) == written_one_by_one(kit, [Sent(value, value) for value in values])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value_kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
@pytest.mark.parametrize("name_kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_map_columns_of_every_layout_are_framed(
    kit: Kit, name_kind: pa.DataType, value_kind: pa.DataType, layout: str
) -> None:
    pairs = [None if pairs is None else list(pairs.items()) for pairs in MAPS]
    column = LAYOUTS[layout](pa.array(pairs, pa.map_(name_kind, value_kind)))
    properties = [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    batch = kit.BatchBuffer(1 << 26)
    assert batch.extend(pa.array([b"v"] * len(column)), properties=column) == len(column)
    assert state_of(batch) == written_one_by_one(kit, [Sent(b"v", None, pairs) for pairs in properties])


def test_map_column_whose_values_are_strings_or_absent_is_framed(kit: Kit) -> None:
    kinds: list[tuple[pa.DataType, dict[str, str | None]]] = [
        (pa.string(), {"a": "é", "b": None}),
        (pa.null(), {"a": None}),
    ]
    for kind, pairs in kinds:
        batch = kit.BatchBuffer()
        batch.extend(pa.array([b"v"]), properties=pa.array([list(pairs.items())], pa.map_(pa.string(), kind)))
        assert state_of(batch) == written_one_by_one(kit, [Sent(b"v", None, pairs)])


def test_null_map_hides_the_entries_under_it(kit: Kit) -> None:
    whole = pa.array([[("a", b"1")], [("hidden", b"2")], [("c", b"3")]], PROPERTIES)
    _, offsets, *_ = whole.buffers()
    entries = pa.StructArray.from_arrays([whole.keys, whole.items], fields=list(PROPERTIES_FIELDS))
    column = pa.Array.from_buffers(PROPERTIES, 3, [pa.py_buffer(b"\x05"), offsets], children=[entries])
    batch = kit.BatchBuffer()
    batch.extend(pa.array([b"v"] * 3), properties=column)
    maps: list[Any] = [{"a": b"1"}, None, {"c": b"3"}]
    assert state_of(batch) == written_one_by_one(kit, [Sent(b"v", None, pairs) for pairs in maps])


PROPERTIES_FIELDS = (pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary()))


def test_map_made_of_sliced_names_and_values_is_framed(kit: Kit) -> None:
    names, values = pa.array(["x", "a", "b", "c"]).slice(1), pa.array([b"x", b"1", None, b"3"]).slice(1)
    column = pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), names, values)
    batch = kit.BatchBuffer()
    batch.extend(pa.array([b"v"] * 2), properties=column)
    assert state_of(batch) == written_one_by_one(
        kit, [Sent(b"v", None, {"a": b"1", "b": None}), Sent(b"v", None, {"c": b"3"})]
    )


def test_one_mapping_holds_for_every_message_of_columns(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.extend(pa.array([b"a", None]), properties={"x": "1", "y": None})
    assert state_of(batch) == written_one_by_one(
        kit, [Sent(value, None, {"x": "1", "y": None}) for value in (b"a", None)]
    )


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1500, None, 7], pa.timestamp("ms")),
        pa.array([1500, None, 7], pa.timestamp("ms", "UTC")),
        pa.array([1500, None, 7], pa.timestamp("ms", "Asia/Tokyo")),
        pa.array([1_500_999, None, 7_001], pa.timestamp("us")),
        pa.array([1_500_999_999, None, 7_000_001], pa.timestamp("ns", "UTC")),
        pa.array([1500, -1, 7], pa.int64()),
        pa.array([1500, None, 7], pa.int16()),
        pa.array([1500, None, 7], pa.uint64()),
        pa.chunked_array([pa.array([1500]), pa.array([None, 7], pa.int64())]),
        pa.array([0, 1500, None, 7]).slice(1),
        np.array([1500, -1, 7], np.int32),
        np.array([1500, 0, -1, 0, 7, 0])[::2],
        (1500, -1, 7),
    ],
)
def test_event_times_come_as_timestamps_or_numbers(kit: Kit, times: Any) -> None:
    wanted = written_one_by_one(kit, [Sent(b"v", time_ms=time_ms) for time_ms in (1500, -1, 7)])
    for values in (pa.array([b"v"] * 3), [b"v"] * 3):
        batch = kit.BatchBuffer()
        assert batch.extend(values, event_times_ms=times) == 3
        assert state_of(batch) == wanted


def test_seconds_become_milliseconds(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.extend(pa.array([b"v"]), event_times_ms=pa.array([5], pa.timestamp("s")))
    assert batch.first_time_ms == 5000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"values": pa.array([5])}, "values: expected binary or string columns, found int64"),
        (
            {"values": pa.array(["a"]).dictionary_encode()},
            "values: expected binary or string columns, found dictionary<values=string, indices=int32, ordered=0>",
        ),
        (
            {"values": pa.array([b"a"]), "keys": pa.array([1.5])},
            "keys: expected binary or string columns, found double",
        ),
        (
            {"values": pa.array([b"a"]), "keys": pa.array([b"a", b"b"])},
            "keys: expected 1 of them, one for each value, found 2",
        ),
        (
            {"values": pa.array([b"a"]), "properties": pa.array([], PROPERTIES)},
            "properties: expected 1 of them, one for each value, found 0",
        ),
        (
            {"values": pa.array([b"a"]), "properties": pa.array([b"x"])},
            "properties: expected a map column of names and values, found binary",
        ),
        (
            {"values": pa.array([b"a"]), "properties": pa.array([[(1, b"x")]], pa.map_(pa.int64(), pa.binary()))},
            "property names: expected binary or string columns, found int64",
        ),
        (
            {"values": pa.array([b"a"]), "properties": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
            "property values: expected binary or string columns, found int64",
        ),
        (
            {"values": pa.array([b"a"]), "event_times_ms": [1, 2]},
            "event times: expected 1 of them, one for each value, found 2",
        ),
        (
            {"values": pa.array([b"a"]), "event_times_ms": pa.array(["now"])},
            "event times: expected a column of timestamps or integers, found string",
        ),
        (
            {"values": pa.array([b"a"]), "event_times_ms": pa.array([1 << 63], pa.uint64())},
            "event times: Integer value 9223372036854775808 not in range: 0 to 9223372036854775807",
        ),
        (
            {"values": [b"a"], "event_times_ms": pa.array([1 << 63], pa.uint64())},
            "event times: Integer value 9223372036854775808 not in range: 0 to 9223372036854775807",
        ),
        ({"values": [b"a"], "event_times_ms": [1.5]}, "event times: expected a list of whole numbers, found float64"),
        ({"values": [b"a"], "event_times_ms": [None]}, "event times: expected a list of whole numbers, found object"),
        (
            {"values": [b"a"], "event_times_ms": [1 << 64]},
            "event times: expected a list of whole numbers, found object",
        ),
        (
            {"values": [b"a"], "event_times_ms": [1 << 63]},
            "event times: expected a list of whole numbers, found uint64",
        ),
        ({"values": [b"a"], "event_times_ms": [[1]]}, "event times: expected a list of whole numbers, found int64"),
        (
            {"values": [b"a"], "event_times_ms": np.array([1], "M8[ns]")},
            "event times: expected a list of whole numbers, found datetime64[ns]",
        ),
        (
            {"values": pa.array([b"a"]), "event_times_ms": 1 << 64},
            f"event_time_ms: expected -1 (none) to {(1 << 62) - 1}, found {1 << 64}",
        ),
        ({"values": [], "event_times_ms": -2}, f"event_time_ms: expected -1 (none) to {(1 << 62) - 1}, found -2"),
        ({"values": [b"a"], "start": -1}, "start: expected 0 to 1, found -1"),
        ({"values": [b"a"], "start": 2}, "start: expected 0 to 1, found 2"),
        ({"values": pa.array([b"a"]), "start": -1}, "start: expected 0 to 1, found -1"),
        ({"values": pa.array([b"a"]), "start": 2}, "start: expected 0 to 1, found 2"),
        ({"values": [b"a"], "keys": []}, "keys: expected 1 of them, one for each value, found 0"),
        ({"values": [b"a"], "properties": [{}, {}]}, "properties: expected 1 of them, one for each value, found 2"),
        ({"values": [b"a"], "properties": {5: b""}}, "properties: expected names of type str, found int"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_their_reason(kit: Kit, arguments: dict[str, Any], text: str) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"before", event_time_ms=5)
    before = state_of(batch)
    assert outcome(batch.extend, **arguments) == (MessageError, text)
    assert state_of(batch) == before


def test_lists_that_arrow_cannot_take_are_refused(kit: Kit) -> None:
    with pytest.raises(MessageError, match="columns: "):
        kit.BatchBuffer().extend(pa.array([b"a", b"b"]), keys=[b"a", 5])
    with pytest.raises(MessageError, match="event times: expected numbers of 64 bits"):
        kit.BatchBuffer().extend([b"a", b"b"], event_times_ms=[[1], [2, 3]])


def test_arrow_array_with_offsets_outside_its_data_is_refused(kit: Kit) -> None:
    for offsets in ([0, 100, 3], [0, -1, 3]):
        buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abc")]
        array = pa.Array.from_buffers(pa.binary(), 2, buffers)
        with pytest.raises(MessageError, match="the Arrow array is not valid"):
            kit.BatchBuffer().extend(array)


@given(st.lists(SENT, min_size=1, max_size=12), st.integers(61, 2000), st.data())
@settings(max_examples=60)
def test_columns_are_spread_over_batches_from_where_the_last_one_was_full(
    kit: Kit, messages: list[Sent], bytes_max: int, data: st.DataObject
) -> None:
    whole = pa.array([sent.value for sent in messages], pa.binary())
    arguments: dict[str, Any] = {
        "keys": pa.array([sent.key for sent in messages], pa.binary()),
        "properties": map_column([sent.properties for sent in messages]),
        "event_times_ms": [sent.time_ms for sent in messages],
    }
    cut = data.draw(st.integers(0, len(messages)))
    values = data.draw(st.sampled_from([whole, pa.chunked_array([whole.slice(0, cut), whole.slice(cut)])]))
    start = 0
    while start < len(messages):
        batch = kit.BatchBuffer(bytes_max)
        taken = batch.extend(values, **arguments, start=start)
        assert taken > 0
        assert state_of(batch) == written_one_by_one(kit, messages[start : start + taken])
        start += taken
    assert start == len(messages)
