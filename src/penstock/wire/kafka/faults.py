"""What can be wrong with a record, as data: kernels find a fault without the interpreter, this names it.

Both twins report the same numbers, so that one test compares them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from penstock.errors import DecodeError


class Kind(enum.IntEnum):
    """The ways in which a field can be wrong."""

    CUT = 1
    """A varint runs past the end of what holds it."""
    LONG = 2
    """A varint has more bytes than its type can need."""
    RANGE = 3
    """A number is outside low to high."""
    LEFT_OVER = 4
    """Bytes are left where the record (or the payload) should end."""


class Field(enum.IntEnum):
    """The fields of a record, in order of their bytes."""

    LENGTH = 0
    ATTRIBUTES = 1
    TIMESTAMP_DELTA = 2
    OFFSET_DELTA = 3
    KEY_LENGTH = 4
    VALUE_LENGTH = 5
    HEADER_COUNT = 6
    HEADER_NAME_LENGTH = 7
    HEADER_VALUE_LENGTH = 8
    END = 9


class Fault(NamedTuple):
    """One fault: where, in which field of which record, and the numbers that tell why."""

    kind: int
    field: int
    record: int
    offset: int
    low: int = 0
    high: int = 0
    found: int = 0


def fault_error(fault: Fault) -> DecodeError:
    """The error that says it in words."""
    name = f"record {fault.record} {Field(fault.field).name.lower().replace('_', ' ')}"
    match Kind(fault.kind):
        case Kind.CUT:
            return DecodeError(fault.offset, name, "a varint", f"the end of the bytes at {fault.high}")
        case Kind.LONG:
            return DecodeError(fault.offset, name, f"a varint of {fault.high} bits at most", "a longer one")
        case Kind.RANGE:
            return DecodeError(fault.offset, name, f"{fault.low} to {fault.high}", fault.found)
        case Kind.LEFT_OVER:
            return DecodeError(fault.offset, name, "no bytes after the last field", f"{fault.found} bytes")
