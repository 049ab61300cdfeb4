"""Values for any structure of kio's, plain as the broker's reader and writer have them, and as objects of kio's."""

from __future__ import annotations

import dataclasses
import io
import random
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from penstock.broker.server.kafka.apis import TABLE, Served

BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CODES = [code.value for code in ErrorCode]


def in_all_versions() -> list[tuple[Served, int]]:
    return [(api, version) for api in TABLE for version in range(api.oldest, api.newest + 1)]


def named(case: tuple[Served, int]) -> str:
    return f"{case[0].name}-{case[1]}"


def values_of(kind: type[Any], chance: random.Random) -> dict[str, Any]:
    """Something in every field, null now and then where that is allowed."""
    return {field.name: _value(field, chance) for field in dataclasses.fields(kind)}


def _bare(type_: Any) -> tuple[Any, bool]:
    if isinstance(type_, UnionType):
        return next(part for part in get_args(type_) if part is not NoneType), True
    return type_, False


def _value(field: dataclasses.Field[Any], chance: random.Random) -> Any:
    type_, nullable = _bare(field.type)
    kafka_type = field.metadata.get("kafka_type", "")
    if nullable and chance.random() < 0.3 and "tag" not in field.metadata:
        return -1 if kafka_type == "datetime_i64" else None
    if get_origin(type_) is tuple:
        return tuple(_one(get_args(type_)[0], kafka_type, chance) for _ in range(chance.choice((0, 1, 3))))
    return _one(type_, kafka_type, chance)


def _one(type_: Any, kafka_type: str, chance: random.Random) -> Any:
    if dataclasses.is_dataclass(type_):
        return values_of(type_, chance)  # type: ignore[arg-type]
    if kafka_type == "string":
        return "é" * chance.choice((0, 1, 5, 70))
    if kafka_type in ("bytes", "records"):
        return chance.randbytes(chance.choice((0, 1, 130)))
    if kafka_type == "uuid":
        return UUID(int=chance.getrandbits(128) | 1)
    if kafka_type == "bool":
        return chance.random() < 0.5
    if kafka_type == "error_code":
        return chance.choice(CODES)
    if kafka_type.startswith(("timedelta", "datetime")):
        return chance.randrange(1 << 30)
    return chance.randrange(-1, 1 << BITS[kafka_type]) if kafka_type != "uint16" else chance.randrange(1 << 16)


def kio_entity(kind: type[Any], values: dict[str, Any]) -> Any:
    """The same as an object of kio's."""
    return kind(**{field.name: _kio(field, values[field.name]) for field in dataclasses.fields(kind)})


def _kio(field: dataclasses.Field[Any], value: Any) -> Any:
    type_, _nullable = _bare(field.type)
    kafka_type = field.metadata.get("kafka_type", "")
    if value is None or (kafka_type == "datetime_i64" and value == -1):
        return None
    if get_origin(type_) is tuple:
        return tuple(_kio_one(get_args(type_)[0], kafka_type, each) for each in value)
    return _kio_one(type_, kafka_type, value)


def _kio_one(type_: Any, kafka_type: str, value: Any) -> Any:
    if dataclasses.is_dataclass(type_):
        return kio_entity(type_, value)  # type: ignore[arg-type]
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        return EPOCH + timedelta(milliseconds=value)
    return value


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def plain(part: Any) -> Any:
    """What the broker's reader gave, as plain values."""
    if hasattr(part, "_asdict"):
        return {name: plain(value) for name, value in part._asdict().items()}
    if dataclasses.is_dataclass(part):  # a default of kio's
        return {field.name: plain(getattr(part, field.name)) for field in dataclasses.fields(part)}
    return tuple(map(plain, part)) if isinstance(part, tuple) else part


def fill(kind: type[Any], values: dict[str, Any]) -> Any:
    """An object of kio's with these plain values, and what is empty or usual in all other fields."""
    given = {}
    for field in dataclasses.fields(kind):
        type_, nullable = _bare(field.type)
        if field.name in values:
            given[field.name] = _filled(type_, field, values[field.name])
        elif field.default is dataclasses.MISSING:
            empty = () if get_origin(type_) is tuple else None if nullable else _empty(field)
            given[field.name] = _kio(field, empty)
    return kind(**given)


def _filled(type_: Any, field: dataclasses.Field[Any], value: Any) -> Any:
    if value is None:
        return None
    if get_origin(type_) is tuple and dataclasses.is_dataclass(get_args(type_)[0]):
        return tuple(fill(get_args(type_)[0], each) for each in value)
    if dataclasses.is_dataclass(type_):
        return fill(type_, value)  # type: ignore[arg-type]
    return _kio(field, value)


def _empty(field: dataclasses.Field[Any]) -> Any:
    return {"string": "", "bytes": b"", "records": None, "uuid": None, "bool": False}.get(
        field.metadata.get("kafka_type", ""), 0
    )
