"""The plain twin of the kernel: frames records one after the other, and gathers their fields again.

This is the reference that tests compare the compiled twin (`_batch.pyx`) with, and what serves where there is no
compiler. The bytes are those of `layout`. Only what touches every message is here; sealing, headers and columns are
not. Both twins refuse what they cannot frame before they change anything.

Runs on: the thread that calls; a lane that is shared between threads holds its own lock.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise, repeat
from typing import NoReturn, SupportsIndex

import numpy as np

from penstock.errors import BatchStateError, MessageError, MessageTooLargeError
from penstock.message import Properties
from penstock.wire.columns import NO_BYTES, BinaryColumn, BufferColumns, Bytes8, Int64s, MapColumn
from penstock.wire.entry import Buffer
from penstock.wire.kafka.faults import Field
from penstock.wire.kafka.framing import NO_HEADERS, NULL, SMALL, SMALL_VARINTS, Walk, frame_properties, sized, varint
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, HEADER_BYTES_MIN, RECORD_BYTES_MAX

TIME_MS_MAX = 1 << 62
# The shape of records that are framed together: numbers from LATE_MIN on take two bytes, below LATE_MAX no more.
LATE_MIN, LATE_MAX = 1 << 6, 1 << 13
LATE_FRAMING = 10
# A record's attributes byte and a small timestamp delta.
SMALL_DELTAS = [b"\x00" + framed for framed in SMALL_VARINTS]


class RecordBuffer:
    """The records of a batch being written, framed one after the other.

    A message that would make the batch larger than `bytes_max` is not taken, unless it is the first. The limit may be
    set anew at any time; a batch that is larger already takes nothing more.
    """

    __slots__ = (
        "_dropped_bytes",
        "_late",
        "_late_left",
        "_late_times",
        "_records",
        "bytes_max",
        "count",
        "first_time_ms",
        "max_time_ms",
        "min_time_ms",
        "sealed",
    )

    count: int
    sealed: bool
    first_time_ms: int
    min_time_ms: int
    max_time_ms: int

    def __init__(self, bytes_max: int = 262_144) -> None:
        self.bytes_max = bytes_max
        self._records = bytearray()
        self._dropped_bytes = 0
        # Values that are taken, and framed all at once when somebody looks; and how many more bytes of such.
        self._late: list[bytes] = []
        self._late_times: list[int] = []
        self._late_left = -1
        self.clear()

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """Size of the batch if it left uncompressed now."""
        if self._late:
            self._frame_late()
        return BATCH_HEADER_BYTES + (self._dropped_bytes or len(self._records))

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        properties: Properties | None = None,
        event_time_ms: int = -1,
    ) -> int:
        """Frame one message and return its index, or -1 when there is no room for it."""
        self._check_open()
        value, key = _bytes("value", value), _bytes("key", key)
        if type(event_time_ms) is not int or not -1 <= event_time_ms < TIME_MS_MAX:
            event_time_ms = checked_time(event_time_ms)
        headers = frame_properties(properties) if properties else NO_HEADERS
        return self.count - 1 if self._frame(value, key, headers, event_time_ms) else -1

    def append_value(self, value: bytes, time_ms: int) -> int:
        """Take a message that is nothing but bytes and a time; its index, -1 when there is no room for it.

        Most are of one shape, where each number takes one or two bytes: their size is known, and framing them together
        by columns, when somebody looks, costs a fifth of framing each.
        """
        size = len(value)
        left = self._late_left - size
        index = self.count
        if (
            left >= 0
            and LATE_MIN <= size < LATE_MAX - LATE_FRAMING
            and 0 <= time_ms - self.first_time_ms < LATE_MIN
            and index < LATE_MAX
            and not self.sealed
        ):
            self._late.append(value)
            self._late_times.append(time_ms)
            self._late_left = left - LATE_FRAMING
            self.count = index + 1
            return index
        if self.sealed:
            return -1
        taken = self._frame(value, None, NO_HEADERS, time_ms)
        if self.count >= LATE_MIN:
            self._late_left = self.bytes_max - self.size - LATE_FRAMING
        return index if taken else -1

    def extend_list(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        properties: Sequence[Properties | None] | None,
        times_ms: int | Int64s,
        common: bytes,
        start: int,
    ) -> int:
        """Frame values from `start` on until one has no room; return how many. A bad one leaves nothing behind.

        `common` is the framed properties of every message, used where `properties` is None.
        """
        self._check_open()
        before = self._mark()
        stop = len(values)
        try:
            for i in range(start, stop):
                value = _bytes("value", values[i])
                key = None if keys is None else _bytes("key", keys[i])
                time_ms = checked_time(times_ms if isinstance(times_ms, int) else times_ms[i])
                headers = common if properties is None else frame_properties(properties[i])
                if not self._frame(value, key, headers, time_ms):
                    return i - start
        except BaseException:
            self._rewind(before)
            raise
        return stop - start

    def extend_columns(self, columns: BufferColumns, common: bytes, start: int) -> int:
        """The same from bare buffers."""
        self._check_open()
        before = self._mark()
        stop = len(columns)
        keys = repeat(None) if columns.keys is None else _strings(columns.keys, start, stop)
        headers = repeat(common) if columns.properties is None else _framed_pairs(columns.properties, start, stop)
        taken = 0
        try:
            for value, key, framed, time_ms in zip(
                _strings(columns.values, start, stop),
                keys,
                headers,
                columns.times_ms[start:stop].tolist(),
                strict=False,
            ):
                if not self._frame(value, key, framed, checked_time(time_ms)):
                    break
                taken += 1
        except BaseException:
            self._rewind(before)
            raise
        return taken

    def _frame_late(self) -> None:
        """Frame the values that were taken before, all at once."""
        count = len(self._late)
        sizes = np.fromiter(map(len, self._late), np.int64, count)
        times = np.array(self._late_times, np.int64)
        prefixes = np.empty((count, LATE_FRAMING), np.uint8)
        prefixes[:, 0] = 0  # the end of the record before: no properties
        _two_bytes(prefixes, 1, sizes + LATE_FRAMING - 2)
        prefixes[:, 3] = 0
        prefixes[:, 4] = (times - self.first_time_ms) << 1
        _two_bytes(prefixes, 5, np.arange(self.count - count, self.count))
        prefixes[:, 7] = NULL[0]
        _two_bytes(prefixes, 8, sizes)
        framing = prefixes.tobytes()
        parts = [b""] * (2 * count)
        parts[0::2] = [framing[at : at + LATE_FRAMING] for at in range(0, len(framing), LATE_FRAMING)]
        parts[0] = parts[0][1:]
        parts[1::2] = self._late
        parts.append(NO_HEADERS)
        self._records += b"".join(parts)
        self.min_time_ms = min(self.min_time_ms, int(times.min()))
        self.max_time_ms = max(self.max_time_ms, int(times.max()))
        self._late = []
        self._late_times = []
        self._late_left = -1

    def insert_header(self, header: bytes) -> None:
        """Put one framed header in front of the first record's own."""
        old = self.records()
        walk = Walk(old, len(old))
        _, end = walk.enter()
        walk.skip_to_headers()
        count_at = walk.at
        count = walk.varint(Field.HEADER_COUNT)
        body = bytes(old[walk.start : count_at]) + varint(count + 1) + header + bytes(old[walk.at : end])
        old.release()
        self._records[:end] = varint(len(body)) + body

    def records(self) -> memoryview:
        """The framed records; while somebody holds this view the buffer is not cleared."""
        if self._dropped_bytes:
            raise_dropped()
        if self._late:
            self._frame_late()
        return memoryview(self._records).toreadonly()

    def drop_records(self) -> None:
        """Give the records' memory back; count, size and times stay. A view that is held keeps it until released."""
        self._dropped_bytes = self.size - BATCH_HEADER_BYTES
        with suppress(BufferError):
            del self._records[:]

    def clear(self) -> None:
        """Forget the messages and open it anew; BufferError while a view of the records is held."""
        del self._records[:]
        self._late, self._late_times, self._late_left = [], [], -1
        self._dropped_bytes = 0
        self.count = 0
        self.sealed = False
        self.first_time_ms = self.min_time_ms = self.max_time_ms = -1

    def _check_open(self) -> None:
        if self.sealed:
            raise_sealed()

    def _frame(self, value: bytes | None, key: bytes | None, headers: bytes, time_ms: int) -> bool:
        if self._late:
            self._frame_late()
        index = self.count
        delta = time_ms - self.first_time_ms if index else 0
        body = (
            (SMALL_DELTAS[delta] if 0 <= delta < SMALL else b"\x00" + varint(delta))
            + (SMALL_VARINTS[index] if index < SMALL else varint(index))
            + (NULL if key is None else sized(key))
            + (NULL if value is None else sized(value))
            + headers
        )
        length = len(body)
        record = (SMALL_VARINTS[length] if length < SMALL else varint(length)) + body
        if len(record) > RECORD_BYTES_MAX:
            raise_too_large()
        records = self._records
        if index and BATCH_HEADER_BYTES + len(records) + len(record) > self.bytes_max:
            return False
        records += record
        self.count = index + 1
        if not index:
            self.first_time_ms = self.min_time_ms = self.max_time_ms = time_ms
        elif time_ms > self.max_time_ms:
            self.max_time_ms = time_ms
        elif time_ms < self.min_time_ms:
            self.min_time_ms = time_ms
        return True

    def _mark(self) -> tuple[int, int, int, int, int]:
        if self._late:
            self._frame_late()
        return len(self._records), self.count, self.first_time_ms, self.min_time_ms, self.max_time_ms

    def _rewind(self, before: tuple[int, int, int, int, int]) -> None:
        end, self.count, self.first_time_ms, self.min_time_ms, self.max_time_ms = before
        del self._records[end:]


def gather(payload: Buffer, count: int, base_offset: int, base_time_ms: int) -> BufferColumns:
    """The fields of `count` records as columns; offsets and times wrap at 64 bits as they do in other clients."""
    view = memoryview(payload).cast("B")
    walk = Walk(view, len(view))
    positions, times = [], []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    names: list[bytes | None] = []
    contents: list[bytes | None] = []
    ends = [0]
    for _ in range(count):
        walk.enter()
        walk.byte(Field.ATTRIBUTES)
        times.append(_wrapped(base_time_ms + walk.varint(Field.TIMESTAMP_DELTA, 64)))
        positions.append(_wrapped(base_offset + walk.varint(Field.OFFSET_DELTA)))
        keys.append(walk.string(Field.KEY_LENGTH, -1))
        values.append(walk.string(Field.VALUE_LENGTH, -1))
        for _ in range(walk.number(Field.HEADER_COUNT, 0, walk.left() // HEADER_BYTES_MIN)):
            names.append(walk.string(Field.HEADER_NAME_LENGTH, 0))
            contents.append(walk.string(Field.HEADER_VALUE_LENGTH, -1))
        ends.append(len(names))
        walk.leave()
    walk.finish()
    pairs = MapColumn(np.array(ends, np.int32), _column(names), _column(contents)) if names else None
    return BufferColumns(
        np.array(times, np.int64),
        _column(values),
        _column(keys) if any(key is not None for key in keys) else None,
        pairs,
        np.array(positions, np.int64),
    )


def _bytes(field: str, data: object) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise MessageError(f"{field}: expected bytes or None, found {type(data).__name__}; encode it or give a serializer")


def raise_sealed() -> NoReturn:
    """A message came after the seal."""
    raise BatchStateError("the batch is sealed and takes no more messages; clear it or open another")


def raise_dropped() -> NoReturn:
    """The records were asked for after their memory was given back."""
    raise BatchStateError("the batch gave its records' memory back when it was compressed; ask for its columns instead")


def checked_time(time_ms: SupportsIndex) -> int:
    """An event time that a log can hold."""
    try:
        number = operator.index(time_ms)
    except TypeError as error:
        raise MessageError(f"event_time_ms: expected an int, found {type(time_ms).__name__}") from error
    if not -1 <= number < TIME_MS_MAX:
        raise MessageError(f"event_time_ms: expected -1 (none) to {TIME_MS_MAX - 1}, found {number}")
    return number


def raise_too_large() -> NoReturn:
    """A record whose length its own field could not tell safely."""
    raise MessageTooLargeError(f"message: framed it takes more than the {RECORD_BYTES_MAX} bytes a record can hold")


def _two_bytes(prefixes: Bytes8, at: int, numbers: Int64s) -> None:
    """Varints of two bytes in this column and the next."""
    prefixes[:, at] = (numbers << 1) & 0x7F | 0x80
    prefixes[:, at + 1] = numbers >> 6


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _column(strings: list[bytes | None]) -> BinaryColumn:
    offsets = np.zeros(len(strings) + 1, np.int32)
    np.cumsum([len(string) if string else 0 for string in strings], out=offsets[1:])
    data = b"".join(string for string in strings if string)
    valid = np.array([string is not None for string in strings], bool)
    return BinaryColumn(
        offsets,
        np.frombuffer(data, np.uint8) if data else NO_BYTES,
        None if valid.all() else np.packbits(valid, bitorder="little"),
    )


def _strings(column: BinaryColumn, start: int, stop: int) -> list[bytes | None]:
    data = column.data.tobytes()
    ends = column.offsets[start : stop + 1].tolist()
    strings: list[bytes | None] = [data[begin:end] for begin, end in pairwise(ends)]
    if column.validity is None:
        return strings
    valid = np.unpackbits(column.validity, bitorder="little")[column.bit_offset + start : column.bit_offset + stop]
    return [string if bit else None for string, bit in zip(strings, valid.tolist(), strict=True)]


def _framed_pairs(column: MapColumn, start: int, stop: int) -> list[bytes]:
    names = _strings(column.names, 0, len(column.names.offsets) - 1)
    values = _strings(column.values, 0, len(column.values.offsets) - 1)
    framed = [sized(name) + sized(value) for name, value in zip(names, values, strict=True)]
    ends = column.offsets[start : stop + 1].tolist()
    headers = [varint(end - begin) + b"".join(framed[begin:end]) for begin, end in pairwise(ends)]
    if column.validity is None:
        return headers
    valid = np.unpackbits(column.validity, bitorder="little")[column.bit_offset + start : column.bit_offset + stop]
    return [header if bit else NO_HEADERS for header, bit in zip(headers, valid.tolist(), strict=True)]
