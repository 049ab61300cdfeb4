"""A batch that a log gave, on its way to another log: written and sealed by somebody else, and not opened for it.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from penstock.errors import BatchStateError
from penstock.message import Properties
from penstock.wire.columns import BufferColumns
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, UNSTAMPED, Buffer, PropertyClaim, Stamp
from penstock.wire.kafka.header import rewrite_header
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES
from penstock.wire.kafka.records import decode_buffers


class StoredBatch:
    """The `BatchBuffer` of `wire.entry` over a stored batch: sealed, and only its header can change."""

    __slots__ = ("_entry", "bytes_max", "count", "sealed")

    def __init__(self, entry: Buffer, count: int) -> None:
        """The batch was judged before; `count` is the number of its messages."""
        self._entry = entry
        self.count = count
        self.sealed = True
        self.bytes_max = 0

    def __repr__(self) -> str:
        return f"<StoredBatch of {self.count} messages, {self.size} bytes>"

    @property
    def size(self) -> int:
        """Its size as it is stored."""
        return len(self._entry)

    @property
    def held(self) -> int:
        """Bytes of payload that it holds."""
        return len(self._entry) - BATCH_HEADER_BYTES

    def stamp(self, stamp: Stamp = UNSTAMPED) -> tuple[Buffer, Buffer]:
        """The header for this stamp, and the payload as it is."""
        return rewrite_header(self._entry, stamp)

    def columns(self) -> BufferColumns:
        """The messages in it, opened."""
        return replace(decode_buffers(self._entry), positions=None)

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        properties: Properties | None = None,
        event_time_ms: int = -1,
    ) -> int:
        """Nothing can be added."""
        self._refuse()

    def extend(
        self,
        values: Sequence[bytes | None] | Any,
        keys: Sequence[bytes | None] | Any = None,
        properties: Properties | Sequence[Properties | None] | Any = None,
        event_times_ms: int | Sequence[int] | Any = -1,
        start: int = 0,
    ) -> int:
        """Nothing can be added."""
        self._refuse()

    def seal(self, codec: Codec = Codec.NONE, level: int | None = None, claim: PropertyClaim = NO_CLAIM) -> None:
        """It was sealed by whoever wrote it."""
        self._refuse()

    def clear(self) -> None:
        """It is not written anew."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BatchStateError("the batch was stored by a log: only its header can change")
