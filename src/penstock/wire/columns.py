"""The messages of a batch as columns: Arrow for users and Spark, bare buffers for the kernels, and the way between.

`Columns` is what a read batch becomes. `BufferColumns` is the same data as numpy views of plain buffers, which is what
kernels gather into and frame from; neither direction copies message bytes here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import MessageError

Bytes8 = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

PROPERTIES = pa.map_(pa.string(), pa.binary())
TIME = pa.timestamp("ms", tz="UTC")
POSITION = pa.int64()
BINARY = pa.binary()
RAW_PROPERTIES = pa.map_(BINARY, BINARY)  # names as they came, UTF-8 or not
NO_BYTES: Bytes8 = np.empty(0, np.uint8)
_ARROW = (pa.Array, pa.ChunkedArray)


class BinaryColumn(NamedTuple):
    """Byte strings, some null: string i is data[offsets[i]:offsets[i + 1]], null where its validity bit is 0."""

    offsets: Int32s
    data: Bytes8
    validity: Bytes8 | None = None
    bit_offset: int = 0


class MapColumn(NamedTuple):
    """Name and value pairs: those of message i are at offsets[i] to offsets[i + 1] of names and values."""

    offsets: Int32s
    names: BinaryColumn
    values: BinaryColumn
    validity: Bytes8 | None = None
    bit_offset: int = 0


NO_STRINGS = BinaryColumn(np.zeros(1, np.int32), NO_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class BufferColumns:
    """The messages of a batch as bare buffers. Positions are absent in a batch that is being written."""

    times_ms: Int64s
    values: BinaryColumn
    keys: BinaryColumn | None
    properties: MapColumn | None
    positions: Int64s | None = None

    def __len__(self) -> int:
        return len(self.times_ms)


@dataclass(frozen=True, slots=True)
class Columns:
    """The messages of a batch that was read, one Arrow array per field, all of the same length."""

    position: pa.Array
    event_time: pa.Array
    key: pa.Array
    value: pa.Array
    properties: pa.Array

    def __len__(self) -> int:
        return len(self.value)

    def to_record_batch(self) -> pa.RecordBatch:
        """The same as an Arrow record batch, the field names as columns."""
        names = list(type(self).__slots__)
        return pa.RecordBatch.from_arrays([getattr(self, name) for name in names], names=names)


def to_arrow(columns: BufferColumns) -> Columns:
    """Arrow arrays over the very buffers of these gathered columns."""
    count = len(columns)
    positions = columns.positions if columns.positions is not None else np.arange(count, dtype=np.int64)
    return Columns(
        position=_fixed(POSITION, positions),
        event_time=_fixed(TIME, columns.times_ms),
        key=_binary(columns.keys, count),
        value=_binary(columns.values, count),
        properties=_map(columns.properties, count),
    )


def from_arrow(values: Any, keys: Any, properties: Any, event_times_ms: Any) -> BufferColumns:
    """Bare buffers over Arrow arrays; one number may stand for all event times."""
    try:
        array = _one_chunk(values)
        count = len(array)
        return BufferColumns(
            times_ms=times_of(event_times_ms, count),
            values=_strings("values", array, count),
            keys=None if keys is None else _strings("keys", _one_chunk(keys), count),
            properties=None if properties is None else _pairs(_one_chunk(properties), count),
        )
    except pa.ArrowException as error:
        raise MessageError(f"columns: {error}") from error


def take(columns: BufferColumns, indexes: npt.NDArray[np.integer[Any]]) -> BufferColumns:
    """The messages at these indexes, in this order; one may be taken more than once."""
    chosen, count = pa.array(indexes), len(columns)
    return BufferColumns(
        times_ms=columns.times_ms[indexes],
        values=_taken_strings(columns.values, count, chosen),
        keys=None if columns.keys is None else _taken_strings(columns.keys, count, chosen),
        properties=None if columns.properties is None else _taken_pairs(columns.properties, count, chosen),
        positions=None if columns.positions is None else columns.positions[indexes],
    )


def times_of(times: Any, count: int) -> Int64s:
    """Event times in ms, one for each of `count` messages; one number stands for all."""
    numbers = _arrow_times(_one_chunk(times)) if is_arrow(times) else _plain_times(times, count)
    if numbers.ndim != 1 or (len(numbers) and not np.can_cast(numbers.dtype, np.int64)):
        raise MessageError(f"event times: expected a list of whole numbers, found {numbers.dtype}")
    if len(numbers) != count:
        raise MessageError(f"event times: expected {count} of them, one for each value, found {len(numbers)}")
    return np.ascontiguousarray(numbers, np.int64)


def is_arrow(values: object) -> bool:
    """Whether this is an Arrow array, chunked or not."""
    return isinstance(values, _ARROW)


def _fixed(kind: pa.DataType, numbers: Int64s) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _binary(column: BinaryColumn | None, count: int, kind: pa.DataType = BINARY) -> pa.Array:
    if column is None:
        return pa.nulls(count, kind)
    validity = _bits(column, count)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers, -1 if validity else 0)


def _map(column: MapColumn | None, count: int) -> pa.Array:
    column = column or MapColumn(np.zeros(count + 1, np.int32), NO_STRINGS, NO_STRINGS)
    return _map_of(PROPERTIES, column, _names(column.names, len(column.names.offsets) - 1), count)


def _map_of(kind: pa.DataType, column: MapColumn, names: pa.Array, count: int) -> pa.Array:
    pair, fields = pa.struct([kind.key_field, kind.item_field]), [names, _binary(column.values, len(names))]
    pairs = pa.Array.from_buffers(pair, len(names), [None], 0, 0, fields)
    validity = _bits(column, count)
    return pa.Array.from_buffers(
        kind, count, [validity, pa.py_buffer(column.offsets)], -1 if validity else 0, 0, [pairs]
    )


def _bits(column: BinaryColumn | MapColumn, count: int) -> pa.Buffer | None:
    """Its validity with the first bit in front, where an array that begins at its first offset has it."""
    if column.validity is None:
        return None
    if not column.bit_offset:
        return pa.py_buffer(column.validity)
    bits = np.unpackbits(column.validity, count=column.bit_offset + count, bitorder="little")
    return pa.py_buffer(np.packbits(bits[column.bit_offset :], bitorder="little"))


def _names(column: BinaryColumn, count: int) -> pa.Array:
    """Property names as strings; malformed UTF-8 becomes U+FFFD, as other clients show it, and costs no message."""
    if not column.data.size or column.data.max() < 0x80:
        return _binary(column, count, pa.string())
    raw = _binary(column, count).to_pylist()
    return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())


def _taken_strings(column: BinaryColumn, count: int, chosen: pa.Array) -> BinaryColumn:
    return _strings("columns", _binary(column, count).take(chosen), len(chosen))


def _taken_pairs(column: MapColumn, count: int, chosen: pa.Array) -> MapColumn:
    names = _binary(column.names, len(column.names.offsets) - 1)
    return _pairs(_map_of(RAW_PROPERTIES, column, names, count).take(chosen), len(chosen))


def _one_chunk(array: Any) -> Any:
    if isinstance(array, pa.ChunkedArray):
        return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()  # which copies
    if isinstance(array, pa.Array):
        return array
    return pa.array(array)


def _check_length(field: str, array: pa.Array, count: int) -> None:
    if len(array) != count:
        raise MessageError(f"{field}: expected {count} of them, one for each value, found {len(array)}")


def _strings(field: str, array: pa.Array, count: int) -> BinaryColumn:
    _check_length(field, array, count)
    kind = array.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        if not (_is_wide_binary(kind) or pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind)):
            raise MessageError(f"{field}: expected binary or string columns, found {kind}")
        array = array.cast(pa.binary())
    validity, offsets, data = array.buffers()
    strings = np.frombuffer(data, np.uint8) if data else NO_BYTES
    return BinaryColumn(_offsets(array, offsets, len(strings)), strings, *_validity(array, validity))


def _offsets(array: pa.Array, buffer: pa.Buffer | None, size: int) -> Int32s:
    """The offsets of an array, known to rise and to stay within the `size` that kernels will trust them with."""
    if not buffer:
        return np.zeros(len(array) + 1, np.int32)
    offsets: Int32s = np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    if offsets[0] < 0 or offsets[-1] > size or bool((offsets[1:] < offsets[:-1]).any()):
        raise MessageError(f"columns: expected offsets that rise to {size} at most; the Arrow array is not valid")
    return offsets


def _is_wide_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
    )


def _validity(array: pa.Array, buffer: pa.Buffer | None) -> tuple[Bytes8 | None, int]:
    if buffer is None or not array.null_count:
        return None, 0
    return np.frombuffer(buffer, np.uint8), array.offset


def _pairs(array: pa.Array, count: int) -> MapColumn:
    _check_length("properties", array, count)
    if not pa.types.is_map(array.type):
        raise MessageError(f"properties: expected a map column of names and values, found {array.type}")
    names, values = array.keys, array.items
    if names.null_count:
        raise MessageError("properties: a property's name is null")
    return MapColumn(
        _offsets(array, array.buffers()[1], len(names)),
        _strings("property names", names, len(names)),
        _strings("property values", values, len(names)),
        *_validity(array, array.buffers()[0]),
    )


def _plain_times(times: Any, count: int) -> npt.NDArray[Any]:
    try:
        return np.full(count, times, np.int64) if isinstance(times, int) else np.asarray(times)
    except (OverflowError, ValueError) as error:
        raise MessageError(f"event times: expected numbers of 64 bits, one for each value: {error}") from error


def _arrow_times(array: pa.Array) -> Int64s:
    """Timestamps lose what is finer than a millisecond; null becomes -1, as in a message without one."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
    elif not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise MessageError(f"event times: expected a column of timestamps or integers, found {array.type}")
    try:
        numbers: Int64s = array.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise MessageError(f"event times: {error}") from error
    return numbers
