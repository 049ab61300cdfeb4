"""Answers and requests read by kio's schemas, but not by kio's reader, which can be used on trusted bytes only.

kio's native reader ends the whole process on an array that claims to be too long, and raises on tags and error codes
that it does not know, although the protocol lets brokers add both to versions that exist. Here every length is checked
against the bytes that are there, unknown tags are skipped and error codes are plain numbers.

Requests are read more strictly than answers, and plainer: null is refused wherever the schema does not allow it, and
durations are whole milliseconds.
"""

from __future__ import annotations

import dataclasses
import struct
from collections import namedtuple
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin
from uuid import UUID

from penstock.errors import DecodeError
from penstock.wire.kafka.primitives import read_array_size, read_bytes, read_string, read_uvarint

Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]

UUID_BYTES = 16


class Manner(NamedTuple):
    """How the fields of a structure are read."""

    flexible: bool
    strict: bool
    """As requests are read."""

    @property
    def numbers(self) -> dict[str, str]:
        """The types that are read as plain numbers, and their layouts."""
        return NUMBERS | DURATIONS if self.strict else NUMBERS


@cache
def reader_of(kind: type[Any], *, strict: bool = False) -> Reader:
    """A function that reads a structure of kio's from the bytes at some place, and tells where it ends.

    What it returns has the structure's fields, but is a named tuple, since kio's own classes are slow to fill. `strict`
    is how requests are read.
    """
    manner = Manner(kind.__flexible__, strict)
    flexible = manner.flexible
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.metadata.get("tag", -1))
    plain = [field for field in fields if "tag" not in field.metadata]
    steps = _steps(plain, manner)
    tagged = {
        field.metadata["tag"]: (place, _field_reader(field, manner))
        for place, field in enumerate(fields)
        if "tag" in field.metadata
    }
    defaults = [field.default for field in fields[len(plain) :]]
    make = namedtuple(kind.__name__, [field.name for field in fields])._make  # type: ignore[attr-defined]

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for step in steps:
            more, at = step(data, at)
            values += more
        values += defaults
        if flexible:
            at = _read_tags(data, at, tagged, values)
        return make(values), at

    return read


def _steps(fields: list[dataclasses.Field[Any]], manner: Manner) -> list[Reader]:
    """Readers of the fields' values in order, one after the other but for numbers in a row, which are read at once."""
    steps: list[Reader] = []
    layouts = manner.numbers

    def layout(field: dataclasses.Field[Any]) -> str:
        return layouts.get(field.metadata.get("kafka_type", ""), "")

    for is_number, row in groupby(fields, key=lambda field: get_origin(field.type) is None and layout(field) != ""):
        if is_number:
            steps.append(_row_reader("".join(map(layout, row))))
        else:
            steps += (_one_value(_field_reader(field, manner)) for field in row)
    return steps


def _row_reader(layout: str) -> Reader:
    row = struct.Struct(f">{layout}")
    return lambda data, at: (row.unpack_from(data, at), at + row.size)


def _one_value(reader: Reader) -> Reader:
    def read(data: memoryview, at: int) -> tuple[Any, int]:
        value, at = reader(data, at)
        return (value,), at

    return read


def _read_tags(data: memoryview, at: int, tagged: dict[int, tuple[int, Reader]], values: list[Any]) -> int:
    count, at = read_uvarint(data, at)
    for _ in range(count):
        start = at
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > len(data) - at:
            raise DecodeError(start, "tag", f"{len(data) - at} bytes at most", size)
        if tag in tagged:
            place, reader = tagged[tag]
            values[place], _end = reader(data[: at + size], at)
        at += size
    return at


def _field_reader(field: dataclasses.Field[Any], manner: Manner) -> Reader:
    type_, nullable = field.type, False
    if isinstance(type_, UnionType):
        nullable = NoneType in get_args(type_)
        (type_,) = (part for part in get_args(type_) if part is not NoneType)
    kafka_type = field.metadata.get("kafka_type", "")
    if get_origin(type_) is tuple:
        reader = _array_reader(get_args(type_)[0], kafka_type, manner, field.name)
        return _never_null(reader, field.name) if manner.strict and not nullable else reader
    reader = _type_reader(type_, kafka_type, manner)
    if dataclasses.is_dataclass(type_):
        return _nullable(reader) if nullable else reader
    return _never_null(reader, field.name) if kafka_type in NULLABLE and not nullable else reader


def _type_reader(type_: Any, kafka_type: str, manner: Manner) -> Reader:
    if dataclasses.is_dataclass(type_):
        return reader_of(type_, strict=manner.strict)  # type: ignore[arg-type]
    if kafka_type == "string":
        return lambda data, at: read_string(data, at, manner.flexible)
    if kafka_type in ("bytes", "records"):
        return lambda data, at: read_bytes(data, at, manner.flexible)
    return _number_reader(f">{manner.numbers[kafka_type]}") if kafka_type in manner.numbers else PRIMITIVES[kafka_type]


def _array_reader(type_: Any, kafka_type: str, manner: Manner, name: str) -> Reader:
    if kafka_type == "int32":
        return lambda data, at: _read_numbers(data, at, manner.flexible)
    reader = _type_reader(type_, kafka_type, manner)
    if manner.strict and kafka_type in NULLABLE:
        reader = _never_null(reader, name)

    def read(data: memoryview, at: int) -> tuple[tuple[Any, ...] | None, int]:
        count, at = read_array_size(data, at, manner.flexible)
        if count is None:
            return None, at
        elements = []
        for _ in range(count):
            element, at = reader(data, at)
            elements.append(element)
        return tuple(elements), at

    return read


def _nullable(reader: Reader) -> Reader:
    """A structure that may be null has a byte in front that says which it is."""

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        return (None, at + 1) if data[at] == NO_STRUCTURE else reader(data, at + 1)

    return read


def _read_numbers(data: memoryview, at: int, flexible: bool) -> tuple[tuple[int, ...] | None, int]:
    """An array of int32, at once: brokers list replicas by the thousand."""
    count, at = read_array_size(data, at, flexible)
    if count is None:
        return None, at
    return struct.unpack_from(f">{count}i", data, at), at + 4 * count


def _never_null(reader: Reader, name: str) -> Reader:
    def read(data: memoryview, at: int) -> tuple[Any, int]:
        value, end = reader(data, at)
        if value is None:
            raise DecodeError(at, name, "a value", "null")
        return value, end

    return read


def _number_reader(layout: str, make: Callable[[int], Any] = int) -> Reader:
    number = struct.Struct(layout)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        return make(number.unpack_from(data, at)[0]), at + number.size

    return read


def _read_uuid(data: memoryview, at: int) -> tuple[UUID | None, int]:
    end = at + UUID_BYTES
    if end > len(data):
        raise DecodeError(at, "uuid", f"{UUID_BYTES} bytes", f"{len(data) - at} bytes")
    value = bytes(data[at:end])
    return UUID(bytes=value) if any(value) else None, end


NO_STRUCTURE = 0xFF
NULLABLE = frozenset({"string", "bytes"})
NUMBERS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "error_code": "h"}
DURATIONS = {"timedelta_i32": "i", "timedelta_i64": "q"}
PRIMITIVES: dict[str, Reader] = {
    **{kafka_type: _number_reader(f">{layout}") for kafka_type, layout in NUMBERS.items()},
    "bool": _number_reader(">b", bool),
    "timedelta_i32": _number_reader(">i", lambda number: timedelta(milliseconds=number)),
    "uuid": _read_uuid,
}
