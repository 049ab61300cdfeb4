"""Kafka's record batch of version 2 as a format in which logs store entries.

A stored batch differs from the one that arrived in two fields that its checksum leaves out: base offset and partition
leader epoch. What a broker must not refuse (attribute bits that nobody has given a meaning yet) is accepted here;
what a producer may not send (a base offset, a control bit) is for the door to judge.

The marker that ends a transaction is a control batch of one record, numbers big-endian:

    key    int16 version 0, int16 type        0: abort, 1: commit
    value  int16 version 0, int32 coordinator epoch

Must never import numpy or pyarrow.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from penstock.errors import ChecksumError, DecodeError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, Buffer, EntryFlag, EntryHeader, PropertyClaim
from penstock.wire.kafka.checksum import batch_checksum
from penstock.wire.kafka.claim import read_claim
from penstock.wire.kafka.header import DECOMPRESSED_BYTES_MAX, BatchHeader, check_magic, check_numbers, redate
from penstock.wire.kafka.layout import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CHECKED_AT,
    CHECKED_PART,
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
    TRANSACTIONAL,
)

PLACED: Final = struct.Struct(">qii")  # base offset, batch length, leader epoch: the head that a log writes
MARKER_RECORD: Final = struct.Struct(">bbbbbhhbhib")
MARKER_KEY: Final = struct.Struct(">hh")
ABORT, COMMIT = 0, 1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

_MEASURED = struct.Struct(">8xi4xB")
_LENGTH = struct.Struct(">i")
_FLAGS = (
    (LOG_APPEND_TIME, EntryFlag.LOG_TIME),
    (TRANSACTIONAL, EntryFlag.TRANSACTIONAL),
    (CONTROL, EntryFlag.CONTROL),
    (DELETE_HORIZON, EntryFlag.PURGE_DATED),
)
_LENGTH_MIN = BATCH_HEADER_BYTES - LENGTH_END


class KafkaLogFormat:
    """The format with number 1. Has no state: one will do for all logs."""

    number = 1
    name = "kafka record batch v2"
    head_bytes = BATCH_HEADER_BYTES

    def measure(self, data: Buffer) -> int | None:
        """The size that the first batch in these bytes says it has; None when too few of them are there to tell."""
        if len(data) <= MAGIC_AT:
            return None
        length, magic = _MEASURED.unpack_from(data)
        check_magic(magic, 0)
        if length < _LENGTH_MIN:
            raise DecodeError(8, "batch length", f"{_LENGTH_MIN} or more", length)
        return int(length) + LENGTH_END

    def glance(self, head: Buffer) -> EntryHeader:
        """What the head of a batch tells, its claim left out."""
        return _describe(_parse(head), NO_CLAIM)

    def check(self, entry: Buffer) -> EntryHeader:
        """The header of one whole batch, claim included, whose checksum is right; DecodeError otherwise."""
        size = len(entry)
        if size > LENGTH_END and _LENGTH.unpack_from(entry, 8)[0] != size - LENGTH_END:
            raise DecodeError(
                8, "batch length", f"{size - LENGTH_END}, the bytes that follow", _LENGTH.unpack_from(entry, 8)[0]
            )
        header = _parse(entry)
        view = memoryview(entry)
        found = batch_checksum(view[CHECKED_AT:])
        if found != header.crc:
            raise ChecksumError(CRC_AT, "crc", f"{header.crc:#010x} over the bytes that follow", f"{found:#010x}")
        claim = NO_CLAIM
        if header.attributes & CLAIM and header.count:
            claim = read_claim(header.codec, view[BATCH_HEADER_BYTES:], DECOMPRESSED_BYTES_MAX)
        return _describe(header, claim)

    def place(self, entry: Buffer, position: int, epoch: int) -> tuple[Buffer, Buffer]:
        """The batch with this base offset and leader epoch: a new head, and a view of the rest, uncopied."""
        return PLACED.pack(position, len(entry) - LENGTH_END, epoch), memoryview(entry)[MAGIC_AT:]

    def marker(self, commit: bool, producer: int, epoch: int, time_ms: int, coordinator_epoch: int = 0) -> Buffer:
        """A control batch that ends a producer's transaction."""
        record = _marker_record(COMMIT if commit else ABORT, coordinator_epoch)
        attributes = TRANSACTIONAL | CONTROL
        checked = CHECKED_PART.pack(attributes, 0, time_ms, time_ms, producer, epoch, NO_SEQUENCE, 1)
        crc = batch_checksum(checked, record)
        length = BATCH_HEADER_BYTES - LENGTH_END + len(record)
        return PLACED.pack(0, length, NO_LEADER_EPOCH) + struct.pack(">bI", MAGIC, crc) + checked + record

    def marker_of(self, entry: Buffer) -> bool | None:
        """Whether a whole control batch commits (True) or aborts (False); None: it marks something else."""
        view = memoryview(entry)
        if not BATCH_HEADER.unpack_from(view)[5] & CONTROL:
            return None
        record = view[BATCH_HEADER_BYTES:]
        try:
            at = _skip_varint(record, _skip_varint(record, _skip_varint(record, 0) + 1))
            size, at = record[at], at + 1
            version, kind = MARKER_KEY.unpack_from(record, at)
        except (IndexError, struct.error):
            return None
        if size < MARKER_KEY.size * 2 or version < 0:  # a length in a varint counts double
            return None
        return {ABORT: False, COMMIT: True}.get(kind)

    def dated(self, entry: Buffer, time_ms: int | None) -> Buffer:
        """The batch with log-append time, this one; None: without."""
        return redate(entry, time_ms)


def _parse(head: Buffer) -> BatchHeader:
    size = len(head)
    if size < BATCH_HEADER_BYTES:
        if size > MAGIC_AT:
            check_magic(memoryview(head)[MAGIC_AT], 0)
        raise DecodeError(size, "batch header", f"{BATCH_HEADER_BYTES} bytes", f"{size} bytes")
    header = BatchHeader._make(BATCH_HEADER.unpack_from(head))
    if header.magic != MAGIC:
        check_magic(memoryview(head)[MAGIC_AT], 0)
    if header.attributes & ~KNOWN_BITS:
        check_numbers(header._replace(attributes=header.attributes & KNOWN_BITS))
    else:
        check_numbers(header)
    return header


@cache
def _meaning(attributes: int, thinned: bool) -> tuple[Codec, EntryFlag]:
    """The codec and the flags of a batch; few combinations occur, and naming flags is slow."""
    flags = EntryFlag.THINNED if thinned else EntryFlag.NONE
    for bit, flag in _FLAGS:
        if attributes & bit:
            flags |= flag
    return CODECS[attributes & CODEC_BITS], flags


def _describe(header: BatchHeader, claim: PropertyClaim) -> EntryHeader:
    base, length, _leader, _magic, _crc, attributes, delta, base_time, max_time, producer, epoch, sequence, count = (
        header
    )
    codec, flags = _meaning(attributes & KNOWN_BITS, count != delta + 1)
    only_time = attributes & LOG_APPEND_TIME or (count == 1 and base_time == max_time)
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


def _marker_record(kind: int, coordinator_epoch: int) -> bytes:
    """The one record of a marker, all of whose varints take one byte; a varint of n is 2n."""
    size = MARKER_RECORD.size - 1
    return MARKER_RECORD.pack(size * 2, 0, 0, 0, 4 * 2, 0, kind, 6 * 2, 0, coordinator_epoch, 0)


def _skip_varint(data: memoryview, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
