"""Answers written by kio's schemas, from plain mappings; the counterpart of `reader`.

kio's own writer wants an object of its classes for every structure and takes about 12 us for each; this one takes a
mapping and about 2. A value is looked up by the field's name in kio's class:

    number, error code    int                          duration    int, milliseconds; times too, -1: none
    string, bytes         str, bytes; None: null       uuid        UUID; None: zero
    array                 any sized iterable           structure   a mapping; None: null, where the schema allows it;
                                                                   bytes: as they are, written before by its writer

A field without a value gets the schema's default, or zero, empty or an empty array where it has none. A value that this
version has no field for is left out, since fields come and go with versions; one that neither the oldest nor the newest
version knows either is a mistake, and raises KeyError. Tagged fields are written where they differ from their default.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin

from penstock.wire.kafka.primitives import uvarint

Writer: TypeAlias = Callable[[bytearray, Any], None]
Values: TypeAlias = Mapping[str, Any]

NO_TIME = -1
NO_UUID = bytes(16)
NULL_STRUCTURE = b"\xff"
STRUCTURE = b"\x01"


@cache
def writer_of(kind: type[Any]) -> Writer:
    """A function that writes a structure of kio's, given as a mapping, at the end of some bytes."""
    flexible: bool = kind.__flexible__
    fields = dataclasses.fields(kind)
    plain = [field for field in fields if "tag" not in field.metadata]
    tagged = sorted((field for field in fields if "tag" in field.metadata), key=lambda field: field.metadata["tag"])
    steps = _steps(plain, flexible)
    tags = [(field.name, *_tag_writer(field)) for field in tagged]
    names = frozenset(field.name for field in fields)

    def write(out: bytearray, values: Values | bytes) -> None:
        if isinstance(values, bytes):
            out += values
            return
        if not values.keys() <= names:
            _check_names(kind, values)
        for step in steps:
            step(out, values)
        if flexible:
            _write_tags(out, tags, values)

    return write


def _check_names(kind: type[Any], values: Values) -> None:
    strange = values.keys() - _names_in_any(kind)  # type: ignore[arg-type]
    if strange:
        raise KeyError(f"{kind.__module__} has no {kind.__name__}.{', '.join(sorted(strange))}, in no version")


@cache
def _names_in_any(kind: type[Any]) -> frozenset[str]:
    """The structure's fields in all versions; modules that are of no use otherwise are loaded for it, once."""
    import pkgutil
    from importlib import import_module

    package, _version, side = kind.__module__.rsplit(".", 2)
    names: set[str] = set()
    for found in pkgutil.iter_modules(import_module(package).__path__):
        other = getattr(import_module(f"{package}.{found.name}.{side}"), kind.__name__, None)
        if other is not None:
            names.update(field.name for field in dataclasses.fields(other))
    return frozenset(names)


def _steps(fields: list[dataclasses.Field[Any]], flexible: bool) -> list[Writer]:
    """Writers of the fields in order, one after the other but for numbers in a row, which are written at once."""
    steps: list[Writer] = []
    for is_number, row in groupby(fields, key=_is_number):
        if is_number:
            steps.append(_row_writer(list(row)))
        else:
            steps += (_value_writer(field, flexible) for field in row)
    return steps


def _is_number(field: dataclasses.Field[Any]) -> bool:
    return get_origin(_bare(field)[0]) is None and field.metadata.get("kafka_type", "") in NUMBERS


def _row_writer(fields: list[dataclasses.Field[Any]]) -> Writer:
    pack = struct.Struct(">" + "".join(NUMBERS[field.metadata["kafka_type"]] for field in fields)).pack
    names = [(field.name, _default(field)) for field in fields]
    if len(names) == 1:
        ((name, default),) = names

        def write_one(out: bytearray, values: Values) -> None:
            out += pack(values.get(name, default))

        return write_one

    def write(out: bytearray, values: Values) -> None:
        get = values.get
        out += pack(*[get(name, default) for name, default in names])

    return write


def _value_writer(field: dataclasses.Field[Any], flexible: bool) -> Writer:
    name, default, writer = field.name, _default(field), _field_writer(field, flexible)

    def write(out: bytearray, values: Values) -> None:
        writer(out, values.get(name, default))

    return write


def _tag_writer(field: dataclasses.Field[Any]) -> tuple[bytes, Any, Writer]:
    return uvarint(field.metadata["tag"]), _default(field), _field_writer(field, flexible=True, is_tag=True)


def _write_tags(out: bytearray, tags: list[tuple[str, bytes, Any, Writer]], values: Values) -> None:
    if not tags:
        out.append(0)
        return
    count, body = 0, bytearray()
    for name, tag, default, writer in tags:
        value = values.get(name, default)
        if value == default:
            continue
        part = bytearray()
        writer(part, value)
        body += tag + uvarint(len(part)) + part
        count += 1
    out += uvarint(count) + body


def _bare(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """A field's type, and whether it may be null."""
    if not isinstance(field.type, UnionType):
        return field.type, False
    (type_,) = (part for part in get_args(field.type) if part is not NoneType)
    return type_, True


def _default(field: dataclasses.Field[Any]) -> Any:
    type_, nullable = _bare(field)
    default = field.default
    if field.metadata.get("kafka_type") == "datetime_i64" and not default:
        return NO_TIME
    if default is dataclasses.MISSING:
        if get_origin(type_) is tuple:
            return ()
        return None if nullable else IMPLICIT.get(field.metadata.get("kafka_type", ""), {})
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if dataclasses.is_dataclass(default):
        return {}
    return int(default) if isinstance(default, int) else default


def _field_writer(field: dataclasses.Field[Any], flexible: bool, is_tag: bool = False) -> Writer:
    type_, nullable = _bare(field)
    kafka_type = field.metadata.get("kafka_type", "")
    if get_origin(type_) is tuple:
        element = get_args(type_)[0]
        return _array_writer(_type_writer(element, kafka_type, flexible, nullable=False), flexible)
    return _type_writer(type_, kafka_type, flexible, nullable and not is_tag)


def _type_writer(type_: Any, kafka_type: str, flexible: bool, nullable: bool) -> Writer:
    if dataclasses.is_dataclass(type_):
        writer = writer_of(type_)  # type: ignore[arg-type]
        return _nullable(writer) if nullable else writer
    if kafka_type == "string":
        return _write_compact_string if flexible else _write_string
    if kafka_type in ("bytes", "records"):
        return _write_compact_bytes if flexible else _write_bytes
    if kafka_type == "uuid":
        return _write_uuid
    pack = struct.Struct(f">{NUMBERS[kafka_type]}").pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _array_writer(writer: Writer, flexible: bool) -> Writer:
    def write(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            return
        count = len(values)
        out += uvarint(count + 1) if flexible else count.to_bytes(4, "big")
        for value in values:
            writer(out, value)

    return write


def _nullable(writer: Writer) -> Writer:
    def write(out: bytearray, values: Any) -> None:
        if values is None:
            out += NULL_STRUCTURE
        else:
            out += STRUCTURE
            writer(out, values)

    return write


def _write_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    data = text.encode()
    out += uvarint(len(data) + 1)
    out += data


def _write_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    data = text.encode()
    out += struct.pack(">h", len(data))
    out += data


def _write_compact_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(0)
        return
    out += uvarint(len(data) + 1)
    out += data


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += b"\xff\xff\xff\xff"
        return
    out += struct.pack(">i", len(data))
    out += data


def _write_uuid(out: bytearray, value: Any) -> None:
    out += NO_UUID if value is None else value.bytes


NUMBERS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "float64": "d",
}
IMPLICIT: dict[str, Any] = {**dict.fromkeys(NUMBERS, 0), "string": "", "bytes": b"", "records": None, "uuid": None}
