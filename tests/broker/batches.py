"""Batches made by hand, cheaply, without what a broker must not load."""

from __future__ import annotations

from crc32c import crc32c

from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CHECKED_PART, LENGTH_END, TRANSACTIONAL, UNCHECKED_PART
from penstock.wire.kafka.log_format import KafkaLogFormat

FORMAT = KafkaLogFormat()
RECORD = bytes((12, 0, 0, 0, 1, 0, 0))
"""Seven bytes: a record without key, value or headers."""


def batch(
    count: int = 1,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    *,
    transactional: bool = False,
    time_ms: int = 0,
    attributes: int = 0,
    size: int = 0,
    delta: int | None = None,
) -> bytes:
    """A batch of `count` messages whose checksum is right; of `size` bytes, if that is more than it needs."""
    payload = RECORD * count
    payload += bytes(max(size - BATCH_HEADER_BYTES - len(payload), 0))
    identity = (producer, epoch, sequence) if producer >= 0 else (-1, -1, -1)
    checked = CHECKED_PART.pack(
        *(attributes | TRANSACTIONAL * transactional, count - 1 if delta is None else delta, time_ms, time_ms),
        *(*identity, count),
    )
    length = BATCH_HEADER_BYTES - LENGTH_END + len(payload)
    return UNCHECKED_PART.pack(0, length, -1, 2, crc32c(checked + payload)) + checked + payload
