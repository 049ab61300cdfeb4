"""A batch being written, from its first message to the bytes that leave.

Framing is the kernel's; here is what happens once per batch: seal (compress, with the interpreter lock released) and
stamp (write the header, late, so that a batch can be numbered anew without being compressed again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import BatchStateError, MessageError
from penstock.message import Properties
from penstock.wire.columns import BufferColumns, from_arrow, is_arrow, times_of
from penstock.wire.compression import Codec, check_level, compress, decompress
from penstock.wire.entry import NO_CLAIM, UNSTAMPED, Buffer, PropertyClaim, Stamp
from penstock.wire.kafka.batch import checked_time
from penstock.wire.kafka.checksum import batch_checksum
from penstock.wire.kafka.claim import frame_claim
from penstock.wire.kafka.framing import NO_HEADERS, frame_properties
from penstock.wire.kafka.header import NO_LEADER_EPOCH
from penstock.wire.kafka.kernel import RecordBuffer, gather
from penstock.wire.kafka.layout import (
    BATCH_HEADER_BYTES,
    CHECKED_PART,
    CLAIM,
    CODEC_BITS,
    CODEC_NUMBERS,
    CODECS,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
    UNCHECKED_PART,
)
from penstock.wire.kafka.records import without_claim


class BatchBuffer(RecordBuffer):
    """The `BatchBuffer` of `wire.entry` in Kafka's bytes.

    Runs on: the thread that appends; once sealed, the one that stamps.
    """

    __slots__ = ("_attributes", "_compressed")

    def __init__(self, bytes_max: int = 262_144) -> None:
        super().__init__(bytes_max)
        self._attributes = 0
        self._compressed: Buffer | None = None

    def __repr__(self) -> str:
        return f"<BatchBuffer {'sealed' if self.sealed else 'open'}, {self.count} messages, {self.size} bytes>"

    @property
    def held(self) -> int:
        """Bytes of payload that it holds now."""
        return self.size - BATCH_HEADER_BYTES if self._compressed is None else len(self._compressed)

    def extend(
        self,
        values: Sequence[bytes | None] | BufferColumns | Any,
        keys: Sequence[bytes | None] | Any = None,
        properties: Properties | Sequence[Properties | None] | Any = None,
        event_times_ms: int | Sequence[int] | Any = -1,
        start: int = 0,
    ) -> int:
        """Frame as many of these messages, from index `start` on, as there is room for; return how many.

        Values (and keys) are lists of bytes or Arrow arrays; whoever extends several batches from the same Arrow
        arrays turns them into `BufferColumns` once, with `wire.columns.from_arrow`. One mapping holds for all messages.
        """
        common = NO_HEADERS
        if isinstance(event_times_ms, int):
            event_times_ms = checked_time(event_times_ms)
        if properties is not None and isinstance(properties, Mapping):
            common, properties = frame_properties(properties), None
        if isinstance(values, BufferColumns):
            _check_only_columns(keys, properties, event_times_ms)
        if is_arrow(values):
            values = from_arrow(values, keys, properties, event_times_ms)
        if not 0 <= start <= len(values):
            raise MessageError(f"start: expected 0 to {len(values)}, found {start}")
        if isinstance(values, BufferColumns):
            return self.extend_columns(values, common, start)
        if keys is not None or properties is not None:
            _check_lengths(values, keys, properties)
        times_ms = event_times_ms if isinstance(event_times_ms, int) else times_of(event_times_ms, len(values))
        return self.extend_list(values, keys, properties, times_ms, common, start)

    def seal(self, codec: Codec = Codec.NONE, level: int | None = None, claim: PropertyClaim = NO_CLAIM) -> None:
        """Compress the records, the claim with the first of them; no message can follow.

        The compressed payload is all that is kept: memory for what it was made of goes to the next batch.
        """
        if self.sealed:
            raise BatchStateError("the batch is sealed already")
        if not self.count:
            raise BatchStateError("the batch is empty; there is nothing to seal")
        check_level(codec, level)
        header = b"" if claim is NO_CLAIM else frame_claim(claim)
        if header:
            self.insert_header(header)
        self._attributes = CODEC_NUMBERS[codec] | CLAIM * bool(header)
        if codec is not Codec.NONE:
            with self.records() as records:
                self._compressed = compress(codec, records, level)
            self.drop_records()
        self.sealed = True

    def stamp(self, stamp: Stamp = UNSTAMPED) -> tuple[bytes, Buffer]:
        """The header for this stamp, and the payload."""
        if not self.sealed:
            raise BatchStateError("the batch is still open; seal it before it is stamped")
        payload = self.records() if self._compressed is None else self._compressed
        producer, epoch, sequence, transactional = stamp
        attributes = self._attributes | TRANSACTIONAL * transactional
        count = self.count
        checked = CHECKED_PART.pack(
            *(attributes, count - 1, self.first_time_ms, self.max_time_ms, producer, epoch, sequence, count)
        )
        length = BATCH_HEADER_BYTES - LENGTH_END + len(payload)
        crc = batch_checksum(checked, payload)
        return UNCHECKED_PART.pack(0, length, NO_LEADER_EPOCH, MAGIC, crc) + checked, payload

    def columns(self) -> BufferColumns:
        """The messages in it, as they were given; opens what was compressed."""
        with self._opened() as records:
            columns = gather(records, self.count, 0, self.first_time_ms)
        properties = columns.properties
        if properties is not None and self._attributes & CLAIM:
            properties = without_claim(properties)
        return replace(columns, properties=properties, positions=None)

    def clear(self) -> None:
        """Open it anew; BufferError while somebody still holds its bytes."""
        super().clear()
        self._attributes = 0
        self._compressed = None

    def _opened(self) -> memoryview:
        if self._compressed is None:
            return self.records()
        codec = CODECS[self._attributes & CODEC_BITS]
        return decompress(codec, self._compressed, self.size - BATCH_HEADER_BYTES)


def _check_only_columns(keys: Any, properties: Any, event_times_ms: Any) -> None:
    if keys is not None or properties is not None or not isinstance(event_times_ms, int) or event_times_ms != -1:
        raise MessageError("values: columns bring their own keys, properties and event times; give them there")


def _check_lengths(values: Sequence[object], keys: Any, properties: Any) -> None:
    for field, others in (("keys", keys), ("properties", properties)):
        if others is not None and len(others) != len(values):
            raise MessageError(f"{field}: expected {len(values)} of them, one for each value, found {len(others)}")
