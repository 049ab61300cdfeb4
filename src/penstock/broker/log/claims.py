"""What entries of a segment claim about their messages, kept beside it so that no entry is opened twice for it.

Only entries that claim something have a record: a checksum, the entry's first position, a length, and the claim as
JSON in UTF-8: `{"same": {"region": "eu"}, "listed": {"city": ["oslo", null]}}`. The index tells which records are about
entries before a row, so reading begins near the entry that is wanted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from crc32c import crc32c

from penstock.broker.log.disk import Disk
from penstock.broker.log.layout import CLAIM, CLAIMS_MAGIC, CRC, SIDE_HEAD_BYTES
from penstock.broker.log.side import SideFile
from penstock.wire.entry import NO_CLAIM, Buffer, PropertyClaim

READ_BYTES: Final = 16_384


class Claims(SideFile):
    """The claims of one segment. Runs on: the loop thread."""

    __slots__ = ("crc",)

    def __init__(self, disk: Disk, path: Path, partition: int, base: int) -> None:
        super().__init__(disk, path, CLAIMS_MAGIC, partition, base)
        self.crc = 0
        """Checksum of all records."""

    def claim(self, position: int, claim: PropertyClaim) -> None:
        """Note what the entry at this position claims."""
        record = frame_claim(position, claim)
        self.crc = crc32c(record, self.crc)
        self.add(record)

    def open(self, size: int, crc: int) -> bool:
        """Take up the file, of which so many bytes count; whether they are there and as they were."""
        self.restart()
        if size == SIDE_HEAD_BYTES:
            return True
        records = memoryview(self.load())[SIDE_HEAD_BYTES:size]
        if len(records) < size - SIDE_HEAD_BYTES or crc32c(records) != crc:
            return False
        self.stored, self.crc = size, crc
        return True

    def restart(self, records: Buffer = b"") -> None:
        """Begin anew with these records and no others."""
        super().restart(records)
        self.crc = crc32c(records)

    def salvage(self) -> bytes:
        """The records of a file that may end anywhere, up to the first that is none; its head included."""
        data = self.load()
        end = min(len(data), SIDE_HEAD_BYTES)
        while (size := _record_size(data, end)) is not None:
            end += size
        return data[:end]

    def since(self, offset: int) -> Iterator[tuple[int, PropertyClaim]]:
        """Positions and claims from this place in the file on, until a record that is none."""
        data, at = b"", 0
        while True:
            size = _record_size(data, at)
            if size is None:
                offset += at
                data, at = self._chunk(offset), 0
                size = _record_size(data, at)
                if size is None:
                    return
            yield CLAIM.unpack_from(data, at)[1], parse_claim(data[at + CLAIM.size : at + size])
            at += size

    def _chunk(self, offset: int) -> bytes:
        """Records from this place on: some, or one that is large."""
        with contextlib.suppress(OSError):  # what cannot be read claims nothing
            data = self.read(READ_BYTES, offset)
            if len(data) < READ_BYTES:
                return data
            wanted = CLAIM.size + CLAIM.unpack_from(data)[2]
            return data if wanted <= READ_BYTES else self.read(wanted, offset)
        return b""


def frame_claim(position: int, claim: PropertyClaim) -> bytes:
    """A record of the claims file."""
    said = {
        "same": dict(claim.same),
        "listed": {name: sorted(values, key=lambda v: (v is None, v)) for name, values in claim.listed.items()},
    }
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    record = CLAIM.pack(0, position, len(text)) + text
    return CRC.pack(crc32c(memoryview(record)[CRC.size :])) + record[CRC.size :]


@lru_cache(maxsize=256)
def parse_claim(text: bytes) -> PropertyClaim:
    """The claim that a record holds; the same few occur again and again."""
    try:
        said = json.loads(text)
        listed = {name: frozenset(values) for name, values in said["listed"].items()}
        return PropertyClaim(said["same"], listed)
    except (ValueError, KeyError, TypeError, AttributeError):
        return NO_CLAIM


def _record_size(data: bytes, offset: int) -> int | None:
    """The size of the record at this place; None when none is there, or not whole."""
    if len(data) - offset < CLAIM.size:
        return None
    crc, _position, length = CLAIM.unpack_from(data, offset)
    end: int = offset + CLAIM.size + length
    if len(data) < end or crc32c(memoryview(data)[offset + CRC.size : end]) != crc:
        return None
    return end - offset
