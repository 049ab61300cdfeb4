"""One message as it comes in, checked: what is wrong with it is said before anything is reserved for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from penstock.errors import MessageError
from penstock.message import Properties, PropertyValue
from penstock.produce.batch import NO_FIELDS, Fields
from penstock.wire.protocol import Wire

FRAMING_BYTES = 40
"""No system's framing of one message, properties aside, takes more."""
PAIR_BYTES = 10
TIME_MS_MAX = 1 << 62


class Incoming(NamedTuple):
    """A message that can be framed."""

    value: bytes | None
    key: bytes | None
    properties: Properties | None
    time_ms: int | None
    """None: the time at which it is framed."""
    partition: int | None
    fields: Fields
    size: int
    """What it takes framed, or a little more."""


def check(
    wire: Wire,
    value: object,
    key: object = None,
    properties: object = None,
    event_time: object = None,
    partition: object = None,
    tag: object = None,
    keys: object = None,
    deliver_at: object = None,
    wait_for_store: object = None,
) -> Incoming:
    """The message, or a `MessageError` that names the field and the remedy."""
    value_bytes, key_bytes = _bytes("value", value), _bytes("key", key)
    size = FRAMING_BYTES + (len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0)
    pairs = None
    if properties is not None:
        pairs, pairs_size = checked_pairs(properties)
        size += pairs_size
    fields = NO_FIELDS
    if wait_for_store is not None and not isinstance(wait_for_store, bool):
        raise MessageError(f"wait_for_store: expected True, False or None, found {type(wait_for_store).__name__}")
    if tag is not None or wait_for_store is not None:
        fields = Fields(_text("tag", tag), wait_for_store)
    if tag is not None or keys is not None or deliver_at is not None:
        labelled = wire.labelled(
            pairs, fields.tag, _keys(keys), None if deliver_at is None else time_ms_of(deliver_at, "deliver_at")
        )
        pairs, pairs_size = checked_pairs(labelled) if labelled is not None else (None, 0)
        size = FRAMING_BYTES + len(value_bytes or b"") + len(key_bytes or b"") + pairs_size
    time_ms = None if event_time is None else time_ms_of(event_time, "event_time")
    number = None if partition is None else checked_partition(partition)
    return Incoming(value_bytes, key_bytes, pairs, time_ms, number, fields, size)


def time_ms_of(time: object, field: str) -> int:
    """Milliseconds since 1970 of an int in ms, or of a datetime that knows its zone."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise MessageError(f"{field}: this datetime does not say in which time zone it is; give it a tzinfo")
        time = round(time.timestamp() * 1000)
    if isinstance(time, bool) or not isinstance(time, int):
        raise MessageError(f"{field}: expected milliseconds as an int, or a datetime, found {type(time).__name__}")
    if not 0 <= time < TIME_MS_MAX:
        raise MessageError(f"{field}: expected 0 to {TIME_MS_MAX - 1} milliseconds since 1970, found {time}")
    return time


def _bytes(field: str, data: object) -> bytes | None:
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise MessageError(f"{field}: expected bytes or None, found {type(data).__name__}; encode it or give a serializer")


def checked_pairs(properties: object) -> tuple[dict[str, PropertyValue], int]:
    """The properties of a message, and what they take framed."""
    if not isinstance(properties, Mapping):
        raise MessageError(f"properties: expected a mapping of names to values, found {type(properties).__name__}")
    pairs: dict[str, PropertyValue] = {}
    size = 0
    for name, value in properties.items():
        if not isinstance(name, str):
            raise MessageError(f"properties: expected names of type str, found {name!r} of type {type(name).__name__}")
        if value is not None and not isinstance(value, str | bytes):
            raise MessageError(
                f"properties: expected str, bytes or None for {name!r}, found {type(value).__name__}; convert it first"
            )
        pairs[name] = value
        size += PAIR_BYTES + _encoded_size(name, name) + (0 if value is None else _encoded_size(name, value))
    return pairs, size


def _encoded_size(name: str, text: str | bytes) -> int:
    if isinstance(text, bytes):
        return len(text)
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageError(f"properties: {name!r} cannot be written as UTF-8: {error}") from error


def _text(field: str, text: object) -> str | None:
    if text is not None and not isinstance(text, str):
        raise MessageError(f"{field}: expected a str, found {type(text).__name__}")
    return text


def _keys(keys: Any) -> Sequence[str]:
    if keys is None:
        return ()
    if isinstance(keys, str):
        return (keys,)
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise MessageError(f"keys: expected a str or a sequence of them, found {keys!r}")
    return keys


def checked_partition(partition: object) -> int:
    """The number of a partition, which may be one that the topic has not."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise MessageError(f"partition: expected an int, found {type(partition).__name__}")
    if partition < 0:
        raise MessageError(f"partition: expected 0 or more, found {partition}")
    return partition
