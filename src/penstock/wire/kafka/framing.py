"""How the fields of a record are framed and walked, one at a time: varints, strings, headers.

What both twins of the kernel share, and what judging a batch unopened needs; must never import numpy or pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from penstock.errors import DecodeError, MessageError
from penstock.message import Properties, PropertyValue
from penstock.wire.kafka.faults import Fault, Field, Kind, fault_error
from penstock.wire.kafka.layout import RECORD_BYTES_MIN

NO_HEADERS = b"\x00"
NULL = b"\x01"


def varint(number: int) -> bytes:
    """A number of at most 64 bits, zigzag, seven bits a byte, lowest first."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


# Lengths, counts and time deltas are small and positive almost always: a look-up instead of a call.
SMALL = 1 << 14
SMALL_VARINTS = [varint(number) for number in range(SMALL)]


def sized(data: bytes | None) -> bytes:
    """A string behind its length, null as -1."""
    if data is None:
        return NULL
    size = len(data)
    return (SMALL_VARINTS[size] if size < SMALL else varint(size)) + data


def frame_properties(properties: Properties | None) -> bytes:
    """Properties as a record's headers: their count, then each name and value."""
    if not properties:
        return NO_HEADERS
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise MessageError(f"properties: expected a mapping of names to values, found {type(properties).__name__}")
    headers = [frame_header(name, value) for name, value in properties.items()]
    return varint(len(headers)) + b"".join(headers)


def frame_header(name: str, value: PropertyValue) -> bytes:
    """One header: name and value, each behind its length."""
    if not isinstance(name, str):
        raise MessageError(f"properties: expected names of type str, found {type(name).__name__}")
    if isinstance(value, str):
        value = _utf8(value)
    elif value is not None and not isinstance(value, bytes):
        raise MessageError(f"properties: expected a value of type str, bytes or None, found {type(value).__name__}")
    return sized(_utf8(name)) + sized(value)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"properties: {text!r} cannot be written as UTF-8: {error.reason}") from error


class Walk:
    """A position in framed records that never passes the end of the record it is in."""

    __slots__ = ("at", "data", "end", "record", "size", "start")

    def __init__(self, data: memoryview, size: int) -> None:
        self.data = data
        self.size = self.end = size
        self.at = self.start = 0
        self.record = 0

    def left(self) -> int:
        """Bytes until the end of the record."""
        return self.end - self.at

    def enter(self) -> tuple[int, int]:
        """Read a record's length; return where its body starts and ends."""
        self.end = self.size
        begin = self.at
        length = self.varint(Field.LENGTH)
        if not RECORD_BYTES_MIN - 1 <= length <= self.left():
            self._fail(Kind.RANGE, Field.LENGTH, begin, RECORD_BYTES_MIN - 1, self.left(), length)
        self.start, self.end = self.at, self.at + length
        return self.start, self.end

    def skip_to_headers(self) -> None:
        """Step over a record's fields up to its header count."""
        self.byte(Field.ATTRIBUTES)
        self.varint(Field.TIMESTAMP_DELTA, 64)
        self.varint(Field.OFFSET_DELTA)
        self.string(Field.KEY_LENGTH, -1)
        self.string(Field.VALUE_LENGTH, -1)

    def leave(self) -> None:
        """The record must end here."""
        if self.at != self.end:
            self._fail(Kind.LEFT_OVER, Field.END, self.at, found=self.left())
        self.record += 1

    def finish(self) -> None:
        """The payload must end here."""
        if self.at != self.size:
            self._fail(Kind.LEFT_OVER, Field.END, self.at, found=self.size - self.at)

    def byte(self, field: Field) -> int:
        """One byte."""
        if self.at >= self.end:
            self._fail(Kind.CUT, field, self.at, high=self.end)
        self.at += 1
        return self.data[self.at - 1]

    def varint(self, field: Field, bits: int = 32) -> int:
        """A number of at most `bits` bits."""
        begin = self.at
        raw = shift = 0
        while True:
            if self.at >= self.end:
                self._fail(Kind.CUT, field, begin, high=self.end)
            byte = self.data[self.at]
            self.at += 1
            raw |= (byte & 0x7F) << shift
            if raw >> bits or (byte & 0x80 and shift + 7 >= bits):
                self._fail(Kind.LONG, field, begin, high=bits)
            if not byte & 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def number(self, field: Field, low: int, high: int) -> int:
        """A 32-bit number from low to high."""
        begin = self.at
        found = self.varint(field)
        if not low <= found <= high:
            self._fail(Kind.RANGE, field, begin, low, high, found)
        return found

    def string(self, field: Field, low: int) -> bytes | None:
        """A string behind its length; -1 is null where `low` allows it."""
        begin = self.at
        length = self.varint(field)
        if not low <= length <= self.left():
            self._fail(Kind.RANGE, field, begin, low, self.left(), length)
        if length < 0:
            return None
        self.at += length
        return bytes(self.data[self.at - length : self.at])

    def _fail(self, kind: Kind, field: Field, offset: int, low: int = 0, high: int = 0, found: int = 0) -> NoReturn:
        raise fault_error(Fault(kind, field, self.record, offset, low, high, found))


def record_size(start: memoryview) -> int:
    """Size of the record that starts here, its length included."""
    walk = Walk(start, len(start))
    length = walk.varint(Field.LENGTH)
    return walk.at + max(length, 0)


def first_header(start: memoryview) -> tuple[bytes, bytes | None] | None:
    """The first header of the record that starts here; None when it has none or these bytes end before it."""
    walk = Walk(start, len(start))
    try:
        walk.varint(Field.LENGTH)
        walk.skip_to_headers()
        if walk.varint(Field.HEADER_COUNT) < 1:
            return None
        name = walk.string(Field.HEADER_NAME_LENGTH, 0)
        return name or b"", walk.string(Field.HEADER_VALUE_LENGTH, -1)
    except DecodeError:
        return None
