"""Control requests and their answers, by kio's schemas; loaded when first used, since importing kio takes a while."""

from __future__ import annotations

import dataclasses
import struct
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from penstock.errors import RefusedError
from penstock.wire.kafka.reader import Reader, reader_of
from penstock.wire.kafka.versions import Api


class _Sink(bytearray):
    """What kio's writers write to."""

    write = bytearray.extend


def module_of(api: Api, version: int, side: str) -> ModuleType:
    """kio's module of a request or response."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in api.name).lstrip("_")
    return import_module(f"kio.schema.{words}.v{version}.{side}")


def entity(api: Api, version: int, structure: str, /, **values: Any) -> Any:
    """A structure of a request, by its name; values that this version has no field for are left out."""
    kind, names = _request_class(api, version, structure)
    return kind(**{name: value for name, value in values.items() if name in names})


def encode(api: Api, version: int, request: Any) -> bytes:
    """The bytes of a request's body."""
    from kio.serial import entity_writer
    from kio.serial.errors import SerialError

    sink = _Sink()
    try:
        entity_writer(type(request))(sink, request)  # type: ignore[arg-type]  # all it does is write
    except (SerialError, struct.error, UnicodeEncodeError) as error:
        raise RefusedError(f"{api}: cannot be said in version {version}: {error}") from error
    return bytes(sink)


def decode(api: Api, version: int, data: memoryview, at: int) -> Any:
    """The answer that stands there, error codes as numbers."""
    answer, _end = reader_of_answer(api, version)(data, at)
    return answer


@cache
def reader_of_answer(api: Api, version: int) -> Reader:
    """What reads an answer."""
    return reader_of(getattr(module_of(api, version, "response"), f"{api.name}Response"))


@cache
def _request_class(api: Api, version: int, name: str) -> tuple[type[Any], frozenset[str]]:
    kind = getattr(module_of(api, version, "request"), name)
    return kind, frozenset(field.name for field in dataclasses.fields(kind))
