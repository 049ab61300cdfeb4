"""What is framed: the same messages in the shape that each contestant takes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.wire.columns import PROPERTIES, Columns

BATCH_BYTES = 262_144
TIME_MS = 1_700_000_000_000
SIZES = {"100 B": 100, "1 KB": 1000}

Headers: TypeAlias = list[tuple[str, bytes | None]]


class Told(NamedTuple):
    """One message, as every contestant must have it in the end."""

    value: bytes
    key: bytes | None
    headers: Headers
    time_ms: int = TIME_MS


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as lists and as columns; `keys` and `properties` are None where they have neither."""

    values: list[bytes]
    keys: list[bytes] | None
    properties: list[dict[str, bytes]] | None
    headers: list[Headers]
    """What other clients call properties; an empty list for each message that has none."""
    value_column: Any
    key_column: Any
    property_column: Any

    def __len__(self) -> int:
        return len(self.values)

    def told(self) -> list[Told]:
        """All of them, plainly."""
        keys = self.keys or repeat(None, len(self))
        return [Told(*message) for message in zip(self.values, keys, self.headers, strict=True)]


def make(count: int, size: int, *, with_properties: bool) -> Messages:
    """So many messages of this size, with a key and two properties or without."""
    chance = random.Random(size)
    values = [_value(chance, i, size) for i in range(count)]
    keys = properties = None
    headers: list[Headers] = [[]] * count
    if with_properties:
        keys = [b"customer-%06d" % chance.randrange(10**6) for _ in range(count)]
        properties = [{"trace": b"%016x" % chance.getrandbits(64), "region": b"eu-west-1"} for _ in range(count)]
        headers = [list(pairs.items()) for pairs in properties]
    return Messages(
        values,
        keys,
        properties,
        headers,
        pa.array(values, pa.binary()),
        None if keys is None else pa.array(keys, pa.binary()),
        None if properties is None else pa.array(headers, PROPERTIES),
    )


def told_by(columns: Columns) -> list[Told]:
    """The messages that columns hold."""
    times = columns.event_time.cast("int64")
    fields = (columns.value, columns.key, columns.properties, times)
    return [Told(*message) for message in zip(*(field.to_pylist() for field in fields), strict=True)]


def _value(chance: random.Random, number: int, size: int) -> bytes:
    """A line of JSON of this size, half of it noise: it compresses about as well as what people send."""
    fields: dict[str, object] = {"order": number, "state": "paid"}
    while len(text := json.dumps(fields)) < size:
        fields[f"item{len(fields)}"] = chance.randbytes(16).hex()
    return text[:size].encode()
