"""The bytes of a data folder: names of files, and the records in them. `docs/log-format.md` is their reference.

All numbers are little-endian, but for entries, which are kept in their own format. Every record ends with a CRC-32C of
the bytes before it, or has one in front of what it covers; a record whose checksum is wrong was never written.

    lock                                      held by the one process that has the folder
    format                                    which layout this is
    points                                    recovery points, replaced whole
    clean                                     the last stop was a clean one
    journal.0, journal.1                      entries that are not synced in their segments yet
    topics/<topic id>/<partition>.<base>.log     a segment: its entries
    topics/<topic id>/<partition>.<base>.index   where some of them are
    topics/<topic id>/<partition>.<base>.claims  what some of them claim about their messages
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from penstock.wire.entry import Buffer

VERSION: Final = 1
LOCK: Final = "lock"
FORMAT: Final = "format"
FORMAT_TEXT: Final = b"penstock log 1\n"
POINTS: Final = "points"
CLEAN: Final = "clean"
JOURNALS: Final = ("journal.0", "journal.1")
TOPICS: Final = "topics"
LOG, INDEX, CLAIMS = "log", "index", "claims"
NEW: Final = ".new"
"""What a file is called until it takes the place of another."""

NO_TIME: Final = -(1 << 63)
"""Less than any time an entry can have."""

CRC: Final = struct.Struct("<I")

SEGMENT_MAGIC: Final = b"PENS-SEG"
SEGMENT_HEAD: Final = struct.Struct("<8sHH4x16sI4xqq4x")  # the checksum follows
SEGMENT_HEAD_BYTES: Final = 64
SEGMENT_BYTES_MAX: Final = (1 << 32) - 1

INDEX_MAGIC: Final = b"PENS-IDX"
SIDE_HEAD: Final = struct.Struct("<8sH2xIq4x")  # of index and claims files; the checksum follows
SIDE_HEAD_BYTES: Final = 32
ROW: Final = struct.Struct("<qqIII")  # the checksum follows
ROW_BYTES: Final = 32
SUMMARY_MAGIC: Final = b"PENS-SUM"
SUMMARY: Final = struct.Struct("<8sqqqIIII12x")  # the checksum follows
SUMMARY_BYTES: Final = 64

CLAIMS_MAGIC: Final = b"PENS-CLM"
CLAIM: Final = struct.Struct("<IqI")  # the checksum is the first

BLOCK_MAGIC: Final = b"PENS-JNL"
BLOCK: Final = struct.Struct("<8sIHHQQII")  # the checksum is the second
BLOCK_ALIGN: Final = 4096
ITEM: Final = struct.Struct("<B3xI16sqqI")
DATA, START = 1, 2

POINTS_MAGIC: Final = b"PENS-PTS"
POINTS_HEAD: Final = struct.Struct("<8sIHHQQ")  # the checksum is the second
POINT_KEY: Final = struct.Struct("<16sI")
POINT: Final = struct.Struct("<Iqqqqq")
POINT_BYTES: Final = POINT_KEY.size + POINT.size
CLEAN_MARK: Final = struct.Struct("<8sI")
CLEAN_MAGIC: Final = b"PENS-CLN"


def sealed(record: bytes) -> bytes:
    """A record with its checksum behind it."""
    return record + CRC.pack(crc32c(record))


def is_sealed(record: Buffer) -> bool:
    """Whether a record's last four bytes are the checksum of those before them."""
    view = memoryview(record)
    return len(view) > CRC.size and CRC.unpack_from(view, len(view) - CRC.size)[0] == crc32c(view[: -CRC.size])


class LogKey(NamedTuple):
    """Which partition a log is of."""

    topic_id: UUID
    partition: int

    def packed(self) -> bytes:
        """As recovery points and journals write it."""
        return POINT_KEY.pack(self.topic_id.bytes, self.partition)


class SegmentHead(NamedTuple):
    """What stands at the beginning of a segment file."""

    format: int
    key: LogKey
    base: int
    created_ms: int

    def pack(self) -> bytes:
        """Its bytes."""
        return sealed(
            SEGMENT_HEAD.pack(
                *(SEGMENT_MAGIC, VERSION, self.format, self.key.topic_id.bytes, self.key.partition),
                *(self.base, self.created_ms),
            )
        )

    @classmethod
    def parse(cls, data: bytes) -> SegmentHead | None:
        """What these bytes say; None when they are no head of a segment."""
        if len(data) != SEGMENT_HEAD_BYTES or not is_sealed(data):
            return None
        magic, version, number, topic_id, partition, base, created_ms = SEGMENT_HEAD.unpack_from(data)
        if magic != SEGMENT_MAGIC or version != VERSION:
            return None
        return cls(number, LogKey(UUID(bytes=topic_id), partition), base, created_ms)


class Row(NamedTuple):
    """A row of an index: an entry, and what is before it in its segment."""

    position: int
    time_before: int
    """The largest time of all entries before it, so that rows are in order of this, too, whatever clocks did."""
    offset: int
    entries_before: int
    claims_before: int
    """Bytes of the claims file that are about entries before it, its head included."""

    def pack(self) -> bytes:
        """Its bytes."""
        return sealed(ROW.pack(*self))


class Summary(NamedTuple):
    """What an index says of its whole segment; true as long as the segment has that size."""

    end: int
    time: int
    time_at: int
    size: int
    entries: int
    claims: int
    """Bytes of the claims file, its head included."""
    claims_crc: int

    def pack(self) -> bytes:
        """Its bytes."""
        return sealed(SUMMARY.pack(SUMMARY_MAGIC, *self))

    @classmethod
    def parse(cls, data: Buffer) -> Summary | None:
        """What these bytes say; None when they are no summary."""
        if len(data) != SUMMARY_BYTES or not is_sealed(data):
            return None
        magic, *fields = SUMMARY.unpack_from(data)
        return cls(*fields) if magic == SUMMARY_MAGIC else None


def side_head(magic: bytes, partition: int, base: int) -> bytes:
    """The first bytes of an index or claims file."""
    return sealed(SIDE_HEAD.pack(magic, VERSION, partition, base))


class Point(NamedTuple):
    """A recovery point: up to here a partition's files are as they should be, synced and verified."""

    exact: int
    """1: written by a clean stop, nothing came after it."""
    start: int
    end: int
    base: int
    """The segment it is in."""
    offset: int
    """Where in its file."""
    size: int
    """Bytes of entries in the whole log."""


def segment_name(partition: int, base: int, kind: str) -> str:
    """The name of a segment's file."""
    return f"{partition}.{base:020d}.{kind}"


def parse_segment_name(name: str) -> tuple[int, int, str] | None:
    """Partition, base and kind that a file's name tells; None for another file."""
    parts = name.split(".")
    if len(parts) != 3 or parts[2] not in (LOG, INDEX, CLAIMS) or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1]), parts[2]


def topic_folder(folder: Path, topic_id: UUID) -> Path:
    """Where a topic's segments are."""
    return folder / TOPICS / topic_id.hex
