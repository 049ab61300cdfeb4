"""Batches whose messages have times of their own."""

from __future__ import annotations

import gzip

from crc32c import crc32c

from penstock.wire.kafka.framing import varint
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CHECKED_PART, LENGTH_END, UNCHECKED_PART


def timed(*times_ms: int, attributes: int = 0, base_offset: int = 0, largest_ms: int | None = None) -> bytes:
    """A batch of messages with these times, and a header that tells the largest of them, or another."""
    payload = b""
    for index, time_ms in enumerate(times_ms):
        record = b"\0" + varint(time_ms - times_ms[0]) + varint(index) + b"\x01\x01\x00"
        payload += varint(len(record)) + record
    if attributes & 7 == 1:
        payload = gzip.compress(payload)
    largest_ms = max(times_ms) if largest_ms is None else largest_ms
    checked = CHECKED_PART.pack(attributes, len(times_ms) - 1, times_ms[0], largest_ms, -1, -1, -1, len(times_ms))
    length = BATCH_HEADER_BYTES - LENGTH_END + len(payload)
    return UNCHECKED_PART.pack(base_offset, length, 0, 2, crc32c(checked + payload)) + checked + payload
