"""Files beside a segment that only repeat what its entries tell: its index and its claims.

Records are gathered in memory and appended to the file some at a time, never synced: whatever of them a crash takes is
made again from the entries. That needs one rule. In one file a record's place is written once, so that a record with
the right checksum is a true one; records that must go (a tail was cut) go with their whole file, for which another is
put in its place, durably. Only a summary may be written over, by the records that make it untrue.

A file that is missing or cannot be read (a bad sector) counts as having no records. Other errors of the system, as when
there are no descriptors, are for whoever asked: going through all entries would not help then.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.broker.log.disk import Disk, opened, read_file, replace_file, write_all
from penstock.broker.log.layout import SIDE_HEAD_BYTES, side_head
from penstock.wire.entry import Buffer

FLUSH_BYTES: Final = 4096
LOST: Final = frozenset({errno.ENOENT, errno.EIO})
"""Errors that mean that a file, or a part of it, is not there any more."""


@contextlib.contextmanager
def nothing_if_lost() -> Iterator[None]:
    """Go on behind the context where a file is missing or cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno not in LOST:
            raise


class SideFile:
    """Records that belong to a segment: `stored` bytes in a file, the rest pending. Runs on: the loop thread."""

    __slots__ = ("_disk", "_head", "path", "pending", "stored")

    def __init__(self, disk: Disk, path: Path, magic: bytes, partition: int, base: int) -> None:
        self._disk = disk
        self._head = side_head(magic, partition, base)
        self.path = path
        self.stored = 0
        """Bytes in the file that count, its head included; 0: there is no file, or none that counts."""
        self.pending = bytearray()

    @property
    def size(self) -> int:
        """Bytes of head and records, stored or pending."""
        return (self.stored or SIDE_HEAD_BYTES) + len(self.pending)

    def add(self, record: bytes) -> None:
        """Take another record; it is written when there are enough."""
        self.pending += record
        if len(self.pending) >= FLUSH_BYTES:
            self.flush()

    def flush(self, tail: bytes = b"") -> None:
        """Write what is pending, and a tail that the next records will overwrite; kept for later if that fails."""
        if not self.pending and not tail:
            return
        with contextlib.suppress(OSError):
            if self.stored:
                with opened(self._disk, self.path) as descriptor:
                    write_all(self._disk, descriptor, [bytes(self.pending), tail], self.stored)
            else:
                replace_file(self._disk, self.path, [self._head, bytes(self.pending), tail], durable=False)
            self.stored = self.size
            self.pending.clear()

    def restart(self, records: Buffer = b"") -> None:
        """Begin anew with these records and no others; the file is replaced when they are written."""
        self.stored = 0
        self.pending = bytearray(records)

    def renew(self, records: Buffer) -> None:
        """Begin anew, and have nothing left of the old file; `settle` makes that durable."""
        self.restart(records)
        self._disk.remove(self.path)

    def settle(self) -> None:
        """Write what is pending and sync the file; whoever called `renew` syncs the folder as well."""
        self.flush()
        if self.stored:
            with opened(self._disk, self.path) as descriptor:
                self._disk.sync(descriptor)

    def load(self) -> bytes:
        """All bytes of the file, head included; none when it is missing or of something else."""
        with nothing_if_lost():
            data = read_file(self._disk, self.path) or b""
            if data[:SIDE_HEAD_BYTES] == self._head:
                return data
        return b""

    def ending(self, size: int) -> tuple[int, bytes]:
        """The file's size and its last bytes, at most `size`; 0 and none when it is missing or of something else."""
        with nothing_if_lost(), opened(self._disk, self.path) as descriptor:
            total = self._disk.size(descriptor)
            if self._disk.read(descriptor, SIDE_HEAD_BYTES, 0) == self._head:
                return total, self._disk.read(descriptor, size, max(total - size, 0))
        return 0, b""

    def read(self, size: int, offset: int) -> bytes:
        """As many bytes as there are of head and records, stored or pending, from this place on."""
        if self.stored and offset < self.stored:
            with opened(self._disk, self.path) as descriptor:
                return self._disk.read(descriptor, min(size, self.stored - offset), offset)
        start = offset - (self.stored or SIDE_HEAD_BYTES)
        return bytes(self.pending[start : start + size])
