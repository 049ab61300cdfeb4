"""What a user sends and what it is known by afterwards; the words all layers share.

Owns no behaviour: values only. Must never know a wire or a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

PropertyValue: TypeAlias = str | bytes | None
Properties: TypeAlias = Mapping[str, PropertyValue]

# An order within one partition, opaque to everybody but the wire that made it: an int where the system counts messages,
# a tuple of ints where it counts ledgers, entries and indexes.
Position: TypeAlias = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One message. An empty key is a key; no key is None. The same holds for the value."""

    value: bytes | None
    key: bytes | None = None
    properties: Properties = field(default_factory=dict)
    event_time_ms: int | None = None
    tag: str | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """Where a stored message is found again."""

    topic: str
    partition: int
    position: Position

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.position}"
