"""Batches made by hand: any header before any payload, with a checksum that is right unless a test wants it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from penstock.wire.columns import Columns
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, UNSTAMPED, PropertyClaim, Stamp
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.framing import varint
from penstock.wire.kafka.header import BatchHeader
from penstock.wire.kafka.layout import BATCH_HEADER, BATCH_HEADER_BYTES, CHECKED_AT, CRC_AT, LENGTH_END
from tests.wire.kafka.messages import Read, Sent


def make_header(payload: bytes = b"", **fields: int) -> BatchHeader:
    """A right header for this payload, but for the fields given."""
    count = fields.get("count", 0)
    right: dict[str, Any] = {
        "base_offset": 0,
        "length": BATCH_HEADER_BYTES - LENGTH_END + len(payload),
        "leader_epoch": -1,
        "magic": 2,
        "crc": 0,
        "attributes": 0,
        "last_offset_delta": max(count - 1, 0),
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "count": count,
    }
    return BatchHeader(**right | fields)


def make_entry(payload: bytes = b"", **fields: int) -> bytes:
    """A batch of this payload; the checksum is right unless it is among the fields given."""
    entry = BATCH_HEADER.pack(*make_header(payload, **fields)) + payload
    return entry if "crc" in fields else with_checksum(entry)


def with_checksum(entry: bytes) -> bytes:
    """The same with the right checksum, if there is a whole header."""
    if len(entry) < CHECKED_AT:
        return entry
    return entry[:CRC_AT] + crc32c(entry[CHECKED_AT:]).to_bytes(4, "big") + entry[CHECKED_AT:]


def with_fields(entry: bytes, **fields: int) -> bytes:
    """The same batch with other fields in its header, the checksum right again."""
    header = BatchHeader._make(BATCH_HEADER.unpack_from(entry))._replace(**fields)
    changed = BATCH_HEADER.pack(*header) + entry[BATCH_HEADER_BYTES:]
    return changed if "crc" in fields else with_checksum(changed)


def write(
    messages: Sequence[Sent],
    codec: Codec = Codec.NONE,
    level: int | None = None,
    claim: PropertyClaim = NO_CLAIM,
    stamp: Stamp = UNSTAMPED,
    make: Callable[[int], BatchBuffer] = BatchBuffer,
) -> bytes:
    """These messages as one batch."""
    batch = make(1 << 26)
    for sent in messages:
        assert batch.append(*sent) >= 0
    batch.seal(codec, level, claim)
    return b"".join(batch.stamp(stamp))


def read(columns: Columns) -> list[Read]:
    """Columns as one tuple for each message."""
    names: list[Any] = [
        columns.position,
        columns.event_time.cast(pa.int64()),
        columns.key,
        columns.value,
        columns.properties,
    ]
    rows = zip(*(column.to_pylist() for column in names), strict=True)
    return [Read(position, time, key, value, tuple(pairs)) for position, time, key, value, pairs in rows]


def record(
    *,
    attributes: bytes = b"\x00",
    timestamp_delta: bytes = b"\x00",
    offset_delta: bytes = b"\x00",
    key: bytes = b"\x01",
    value: bytes = b"\x01",
    header_count: bytes = b"\x00",
    headers: bytes = b"",
    length: int | None = None,
) -> bytes:
    """A record of fields given as they are framed."""
    body = attributes + timestamp_delta + offset_delta + key + value + header_count + headers
    return varint(len(body) if length is None else length) + body
