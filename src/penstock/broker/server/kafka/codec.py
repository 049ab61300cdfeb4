"""Requests read and answers written, by kio's schemas; each version's schema is loaded when it is first asked for.

Request frame, after its size, and the answer's:

    int16   request's key                  int32   correlation id
    int16   its version                    tags    where the body is compact, but never in ApiVersions' answer
    int32   correlation id                 ...     body
    string  client id, plain always
    tags    where the body is compact
    ...     body
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from penstock.broker.server.kafka.apis import Served
from penstock.wire.kafka.reader import Reader, reader_of
from penstock.wire.kafka.writer import Values, Writer, writer_of

API_VERSIONS = 18
HEAD = struct.Struct(">ii")
SIZE = struct.Struct(">i")
_TAGGED_HEAD = bytes(HEAD.size + 1)
_PLAIN_HEAD = bytes(HEAD.size)


class Schemas:
    """kio's modules. When it is first loaded, kio takes a testing library along if that is installed: half a second and
    20 MB, which a broker that is `alone` in its process does without. Where other threads may want that library at
    the same moment, it cannot.
    """

    def __init__(self) -> None:
        self.alone = False

    def load(self, name: str) -> ModuleType:
        """The module of that name."""
        if not self.alone or "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
            return import_module(name)
        sys.modules["hypothesis"] = cast(ModuleType, None)  # as if it were not installed
        try:
            return import_module(name)
        finally:
            del sys.modules["hypothesis"]


SCHEMAS = Schemas()


def schema_of(served: Served, version: int, side: str) -> type[Any]:
    """kio's class of a request or response."""
    return part_of(served, version, side, f"{served.name}{side.capitalize()}")


def part_of(served: Served, version: int, side: str, name: str) -> type[Any]:
    """kio's class of a structure inside a request or response."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in served.name).lstrip("_")
    kind: type[Any] = getattr(SCHEMAS.load(f"kio.schema.{words}.v{version}.{side}"), name)
    return kind


@cache
def request_reader(served: Served, version: int) -> Reader:
    """What reads the body of a request."""
    return reader_of(schema_of(served, version, "request"), strict=True)  # type: ignore[arg-type]


@cache
def answer_writer(served: Served, version: int) -> Writer:
    """What writes the body of an answer."""
    return writer_of(schema_of(served, version, "response"))  # type: ignore[arg-type]


@cache
def answer_names(served: Served, version: int) -> frozenset[str]:
    """The fields that an answer has at its top."""
    return frozenset(field.name for field in dataclasses.fields(schema_of(served, version, "response")))


def new_answer(served: Served, version: int) -> bytearray:
    """The head of an answer, to be filled in by `finish_answer`."""
    tagged = served.is_flexible(version) and served.key != API_VERSIONS
    return bytearray(_TAGGED_HEAD if tagged else _PLAIN_HEAD)


def finish_answer(out: bytearray, correlation: int) -> bytearray:
    """Put size and correlation id in front of an answer that is all in one piece."""
    HEAD.pack_into(out, 0, len(out) - SIZE.size, correlation)
    return out


def encode_answer(served: Served, version: int, correlation: int, values: Values) -> bytearray:
    """A whole answer."""
    out = new_answer(served, version)
    answer_writer(served, version)(out, values)
    return finish_answer(out, correlation)
