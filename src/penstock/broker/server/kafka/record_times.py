"""The times of a batch's messages: the one thing for which a batch is opened here.

ListOffsets asks which message of a stored batch is the first to reach a time, or has the largest; Produce which ones of
a batch that is refused for its times are wrong. How much is opened for one request is bounded; beyond that a batch's
first message stands for it, which is never too late, and no single messages are blamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.errors import DecodeError
from penstock.wire.compression import Codec, decompress
from penstock.wire.entry import Buffer
from penstock.wire.kafka.header import BatchHeader, parse_header
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, LOG_APPEND_TIME

RECORDS_MAX: Final = 50_000
ENTRY_RECORDS: Final = 50
"""So many records an entry counts for at least: it must be read and unpacked, however few it has."""
UNPACKED_BYTES_MAX: Final = 16 << 20
TIME_MAX: Final = (1 << 63) - 1


class Reached(NamedTuple):
    """A message, and its time."""

    position: int
    time_ms: int


class Opening:
    """What may still be opened for one request."""

    __slots__ = ("_bytes", "_records")

    def __init__(self, records: int = RECORDS_MAX, unpacked_bytes: int = UNPACKED_BYTES_MAX) -> None:
        self._records = records
        self._bytes = unpacked_bytes

    def first_at(self, entry: Buffer, time_ms: int, start: int) -> Reached | None:
        """The first message at `start` or behind it whose time is this or later; None if there is none."""
        header = parse_header(entry)
        first = max(header.base_offset, start)
        if header.attributes & LOG_APPEND_TIME:
            return Reached(first, header.max_timestamp) if header.max_timestamp >= time_ms else None
        payload = self._unpacked(header, entry)
        if payload is None:
            return Reached(first, header.max_timestamp)
        try:
            found = (each for each in _messages(payload, header) if each.time_ms >= time_ms and each.position >= start)
            return next(found, None)
        except IndexError:
            return Reached(first, header.max_timestamp)  # damaged before it was stored

    def latest(self, entry: Buffer, start: int) -> Reached | None:
        """The first message with the largest time of those at `start` or behind it; None if there is none."""
        header = parse_header(entry)
        claimed = Reached(max(header.base_offset, start), header.max_timestamp)
        payload = self._unpacked(header, entry)
        if payload is None or header.attributes & LOG_APPEND_TIME:
            return claimed
        try:
            left = (each for each in _messages(payload, header) if each.position >= start)
            return max(left, key=lambda each: each.time_ms, default=None)
        except IndexError:
            return claimed

    def outside(self, entry: Buffer, oldest_ms: int | None, newest_ms: int | None) -> dict[int, int]:
        """The messages whose times are not within these bounds: index and time; a time below 0 is none."""
        header = parse_header(entry)
        payload = self._unpacked(header, entry)
        if payload is None or header.attributes & LOG_APPEND_TIME:
            return {}
        low = 0 if oldest_ms is None else oldest_ms
        high = TIME_MAX if newest_ms is None else newest_ms
        try:
            messages = enumerate(_messages(payload, header))
            return {
                index: each.time_ms for index, each in messages if each.time_ms >= 0 and not low <= each.time_ms <= high
            }
        except IndexError:
            return {}

    def _unpacked(self, header: BatchHeader, entry: Buffer) -> memoryview | None:
        """The records, None when they are too many to be looked at, or cannot be."""
        payload = memoryview(entry)[BATCH_HEADER_BYTES:]
        if header.count > self._records or len(payload) > self._bytes:
            return None
        if header.codec is not Codec.NONE:
            try:
                payload = memoryview(decompress(header.codec, payload, self._bytes))
            except DecodeError:
                return None
        self._records -= max(header.count, ENTRY_RECORDS)
        self._bytes -= len(payload)
        return payload


def _messages(payload: memoryview, header: BatchHeader) -> Iterator[Reached]:
    """Each message's position and time; IndexError where the records are not what they should be."""
    at = 0
    for _ in range(header.count):
        size, at = _varint(payload, at)
        end = at + size
        delta_ms, at = _varint(payload, at + 1)
        delta, at = _varint(payload, at)
        yield Reached(header.base_offset + delta, header.base_timestamp + delta_ms)
        if size <= 0:
            raise IndexError(at)
        at = end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    raw, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at
