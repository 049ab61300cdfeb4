"""A batch unopened: cut out of a fetched buffer, judged by its header, given another header.

None of this reads the records, but for the claim of a batch that says it has one. Must never import numpy or pyarrow.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from penstock.config import ReaderOptions
from penstock.errors import ChecksumError, DecodeError, UnsupportedError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, Buffer, EntryFlag, EntryHeader, PropertyClaim, Stamp
from penstock.wire.kafka.checksum import batch_checksum, patched_checksum
from penstock.wire.kafka.claim import read_claim
from penstock.wire.kafka.layout import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CHECKED_AT,
    CLAIM,
    CODEC_BITS,
    CODECS,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    KNOWN_BITS,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
)

DECOMPRESSED_BYTES_MAX = ReaderOptions().decompressed_bytes_max
NO_LEADER_EPOCH = -1

_SPLIT = struct.Struct(">8xi4xB")
_SPAN = struct.Struct(">q4xi7xi")


class BatchHeader(NamedTuple):
    """The fields of a batch's header, as they stand there."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a header for

    @property
    def codec(self) -> Codec:
        """The codec of the records."""
        return CODECS[self.attributes & CODEC_BITS]


class Span(NamedTuple):
    """Where a batch ends: the position behind it, and the leader under whom it was stored."""

    next: int
    epoch: int


def span(entry: Buffer) -> Span:
    """Where a batch that was cut out ends; its numbers are not checked."""
    base, epoch, delta = _SPAN.unpack_from(entry)
    return Span(base + delta + 1, epoch)


def split(records: Buffer) -> list[memoryview]:
    """The whole batches of a fetched buffer; a last one that was cut is left out."""
    view = memoryview(records).cast("B")
    entries = []
    at, size = 0, len(view)
    while size - at > MAGIC_AT:
        length, magic = _SPLIT.unpack_from(view, at)
        check_magic(magic, at)
        if length < BATCH_HEADER_BYTES - LENGTH_END:
            raise DecodeError(at + 8, "batch length", f"{BATCH_HEADER_BYTES - LENGTH_END} or more", length)
        end = at + LENGTH_END + length
        if end > size:
            break
        entries.append(view[at:end])
        at = end
    return entries


def check_magic(magic: int, at: int) -> None:
    """Refuse what is no record batch of version 2; `at` is where the batch begins."""
    if magic == MAGIC:
        return
    if magic in (0, 1):
        raise UnsupportedError(
            at + MAGIC_AT, "magic", f"{MAGIC}", f"{magic}: a message set of version {magic}, from before Kafka 0.11"
        )
    raise UnsupportedError(at + MAGIC_AT, "magic", f"{MAGIC}", magic)


def parse_header(entry: Buffer) -> BatchHeader:
    """The header of one whole batch, its numbers checked against each other and the bytes that are there."""
    size = len(entry)
    if size < BATCH_HEADER_BYTES:
        if size > MAGIC_AT:
            check_magic(memoryview(entry)[MAGIC_AT], 0)
        raise DecodeError(size, "batch header", f"{BATCH_HEADER_BYTES} bytes", f"{size} bytes")
    header = BatchHeader._make(BATCH_HEADER.unpack_from(entry))
    if header.magic != MAGIC:
        check_magic(memoryview(entry)[MAGIC_AT], 0)
    if header.length != size - LENGTH_END:
        raise DecodeError(8, "batch length", f"{size - LENGTH_END}, the bytes that follow", header.length)
    check_numbers(header)
    return header


def check_numbers(header: BatchHeader) -> None:
    """Check a header's numbers against each other and the size that it tells."""
    attributes = header.attributes & 0xFFFF
    if attributes & CODEC_BITS >= len(CODECS):
        names = ", ".join(codec.value for codec in CODECS)
        raise UnsupportedError(CHECKED_AT, "attributes", f"codec 0 to 4 ({names})", f"codec {attributes & CODEC_BITS}")
    if attributes & ~KNOWN_BITS:
        raise UnsupportedError(
            CHECKED_AT, "attributes", f"flag bits within {KNOWN_BITS:#06x}", f"{attributes & ~KNOWN_BITS:#06x}"
        )
    if header.last_offset_delta < 0:
        raise DecodeError(23, "last offset delta", "0 or more", header.last_offset_delta)
    if not 0 <= header.count <= header.last_offset_delta + 1:
        raise DecodeError(57, "records count", f"0 to {header.last_offset_delta + 1}", header.count)
    size = header.length + LENGTH_END
    most = (size - BATCH_HEADER_BYTES) // RECORD_BYTES_MIN
    if not attributes & CODEC_BITS and header.count > most:
        raise DecodeError(57, "records count", f"{most} at most in {size} bytes", header.count)


def peek(entry: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> EntryHeader:
    """What the header tells; a compressed batch is opened for its claim only, and no further than its first block."""
    return describe_whole(parse_header(entry), entry, bytes_max)


def describe_whole(header: BatchHeader, entry: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> EntryHeader:
    """A batch's header in neutral words, with the claim that its bytes make."""
    claim = NO_CLAIM
    if header.attributes & CLAIM and header.count:
        claim = read_claim(header.codec, memoryview(entry)[BATCH_HEADER_BYTES:], bytes_max)
    return describe(header, claim)


def describe(header: BatchHeader, claim: PropertyClaim = NO_CLAIM) -> EntryHeader:
    """A batch's header in neutral words."""
    (base, length, _leader, _magic, _crc, attributes, delta, first_time, max_time, producer, epoch, sequence, count) = (
        header
    )
    codec, flags = _meaning(attributes, count != delta + 1)
    only_time = attributes & LOG_APPEND_TIME or (count == 1 and first_time == max_time)
    return EntryHeader(
        count,
        length + LENGTH_END,
        codec,
        base,
        base + delta,
        max_time if only_time else None,
        max_time,
        None if producer < 0 else producer,
        epoch,
        sequence,
        flags,
        claim,
    )


@cache
def _meaning(attributes: int, thinned: bool) -> tuple[Codec, EntryFlag]:
    """The codec and the flags of a batch; few combinations occur, and naming flags is slow."""
    flags = EntryFlag.THINNED if thinned else EntryFlag.NONE
    for bit, flag in _FLAGS:
        if attributes & bit:
            flags |= flag
    return CODECS[attributes & CODEC_BITS], flags


def verify(entry: Buffer) -> BatchHeader:
    """The header of a batch whose checksum is right; ChecksumError otherwise."""
    header = parse_header(entry)
    view = memoryview(entry)
    found = batch_checksum(view[CHECKED_AT:BATCH_HEADER_BYTES], view[BATCH_HEADER_BYTES:])
    if found != header.crc:
        raise ChecksumError(CRC_AT, "crc", f"{header.crc:#010x} over the bytes that follow", f"{found:#010x}")
    return header


def rewrite_header(entry: Buffer, stamp: Stamp) -> tuple[bytes, memoryview]:
    """A stored batch as a new one to be produced: a fresh header, and the payload as it is, uncopied.

    Base offset 0, no leader epoch, the stamp's producer, epoch, sequence and transactional flag; codec and claim stay,
    a delete horizon goes. So does log-append time, which brokers refuse from a producer: the records show their
    senders' times again. The checksum follows the change of the header: a damaged payload stays damaged.
    """
    old = parse_header(entry)
    if old.attributes & CONTROL:
        raise UnsupportedError(CHECKED_AT, "attributes", "a batch of messages", "a control batch")
    view = memoryview(entry).toreadonly()
    attributes = old.attributes & (CODEC_BITS | CLAIM) | TRANSACTIONAL * stamp.transactional
    payload = view[BATCH_HEADER_BYTES:]
    header = bytearray(BATCH_HEADER_BYTES)
    BATCH_HEADER.pack_into(
        *(header, 0, 0, old.length, NO_LEADER_EPOCH, MAGIC, 0, attributes, old.last_offset_delta),
        *(old.base_timestamp, old.max_timestamp, stamp.producer, stamp.epoch, stamp.sequence, old.count),
    )
    crc = patched_checksum(old.crc, view[CHECKED_AT:BATCH_HEADER_BYTES], header[CHECKED_AT:], payload)
    header[CRC_AT:CHECKED_AT] = crc.to_bytes(4, "big")
    return bytes(header), payload


def redate(entry: Buffer, time_ms: int | None) -> bytes:
    """A batch with log-append time, this one; None: without, so that the records show their senders' times again.

    The header was judged before. The checksum follows its change, as in `rewrite_header`.
    """
    view = memoryview(entry)
    old = BatchHeader._make(BATCH_HEADER.unpack_from(view))
    if time_ms is None:
        attributes, max_timestamp = old.attributes & ~LOG_APPEND_TIME, old.max_timestamp
    else:
        attributes, max_timestamp = old.attributes | LOG_APPEND_TIME, time_ms
    dated = bytearray(view)
    changed = old._replace(attributes=attributes, max_timestamp=max_timestamp)
    BATCH_HEADER.pack_into(dated, 0, *changed)
    crc = patched_checksum(
        *(old.crc, view[CHECKED_AT:BATCH_HEADER_BYTES], dated[CHECKED_AT:BATCH_HEADER_BYTES]),
        view[BATCH_HEADER_BYTES:],
    )
    dated[CRC_AT:CHECKED_AT] = crc.to_bytes(4, "big")
    return bytes(dated)


_FLAGS = (
    (LOG_APPEND_TIME, EntryFlag.LOG_TIME),
    (TRANSACTIONAL, EntryFlag.TRANSACTIONAL),
    (CONTROL, EntryFlag.CONTROL),
    (DELETE_HORIZON, EntryFlag.PURGE_DATED),
)
