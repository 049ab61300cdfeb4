"""What a user sends and what it is known by afterwards; the words all layers share.

Owns no behaviour: values only. Must never know a wire or a broker. `MessageId` has a compiled twin, since one is made
for every receipt that is asked; PENSTOCK_KERNEL chooses, as for the kernels.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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


class MessageId(NamedTuple):
    """Where a stored message is found again; without a position where the broker was not asked for one."""

    topic: str
    partition: int
    position: Position | None

    def __str__(self) -> str:
        where = "?" if self.position is None else self.position
        return f"{self.topic}-{self.partition}@{where}"

    def __reduce__(self) -> tuple[object, ...]:
        return unpickled_id, tuple(self)


PlainMessageId = MessageId
make_id: Callable[[tuple[str, int, Position | None]], MessageId] = partial(tuple.__new__, MessageId)
"""The quickest way to an id of these three fields."""

if not TYPE_CHECKING and os.environ.get("PENSTOCK_KERNEL") != "plain":
    with contextlib.suppress(ImportError):  # where it was not built
        from penstock._message import MessageId

        make_id = MessageId._make


def unpickled_id(topic: str, partition: int, position: Position | None) -> MessageId:
    """An id from another process, which may have had the other twin of it."""
    return MessageId(topic, partition, position)
