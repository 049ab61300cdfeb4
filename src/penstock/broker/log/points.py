"""Recovery points: up to where each partition's files are known to be synced and right.

One file for all partitions, replaced whole; its floor is the lowest generation of the journal that still counts. The
clean mark is a file of its own that names the points it was written with: it is taken away, durably, before anything
else is changed.

Runs on: the commit thread; loading, and looking up a partition that is not open yet, on the loop thread.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from crc32c import crc32c

from penstock.broker.log.disk import Disk, read_file, replace_file
from penstock.broker.log.layout import (
    CLEAN,
    CLEAN_MAGIC,
    CLEAN_MARK,
    CRC,
    POINT,
    POINT_BYTES,
    POINT_KEY,
    POINTS,
    POINTS_HEAD,
    POINTS_MAGIC,
    SEGMENT_HEAD_BYTES,
    VERSION,
    LogKey,
    Point,
)
from penstock.errors import FolderFormatError

CHECKED_AT = 12
"""Where the bytes begin that the checksum of the points covers."""
_INEXACT = bytes(4)


class Points:
    """The recovery points of a data folder."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._rows: dict[bytes, bytes] = {}
        self.floor = 0
        self.clean = False
        """Whether the last stop was a clean one, so that exact points tell all there is to know."""
        self.lost = False
        """Whether there was a file that could not be read: everything must be verified from its beginning."""

    def load(self) -> None:
        """Read what the last process left, and take the clean mark away."""
        data = read_file(self._disk, self._folder / POINTS)
        if data is not None:
            self._parse(data)
        mark = read_file(self._disk, self._folder / CLEAN)
        if mark is not None:
            self.clean = data is not None and not self.lost and mark == _mark(data)
            self._disk.remove(self._folder / CLEAN)
            self._disk.sync_folder(self._folder)
        if not self.clean:
            self._rows = {key: _INEXACT + row[len(_INEXACT) :] for key, row in self._rows.items()}

    def get(self, key: LogKey) -> Point | None:
        """A partition's point; one that is exact tells all there is to know."""
        row = self._rows.get(key.packed())
        return None if row is None else Point._make(POINT.unpack(row))

    def put(self, key: LogKey, point: Point) -> None:
        """Move a partition's point."""
        self._rows[key.packed()] = POINT.pack(*point)

    def move(self, key: LogKey, end: int, base: int, offset: int) -> None:
        """More of a partition is synced: up to this place of this segment."""
        before = self.get(key)
        self.put(key, Point(0, 0 if before is None else before.start, end, base, offset, 0))

    def start(self, key: LogKey, base: int, position: int) -> None:
        """A partition starts at this position, in the segment with this base."""
        before = self.get(key)
        if before is None or before.base < base:
            self.put(key, Point(0, position, base, base, SEGMENT_HEAD_BYTES, 0))
        else:
            self.put(key, before._replace(exact=0, start=position))

    def drop(self, key: LogKey) -> None:
        """Forget a partition."""
        self._rows.pop(key.packed(), None)

    def drop_topic(self, topic_id: UUID) -> None:
        """Forget all partitions of a topic."""
        for key in list(self._rows):
            if key.startswith(topic_id.bytes):
                del self._rows[key]

    def write(self, floor: int, *, clean: bool = False) -> None:
        """Make all points durable; blocks of the journal below this generation count no more."""
        head = POINTS_HEAD.pack(POINTS_MAGIC, 0, VERSION, 0, floor, len(self._rows))
        checked = b"".join((head[CHECKED_AT:], *(key + row for key, row in list(self._rows.items()))))
        data = POINTS_MAGIC + CRC.pack(crc32c(checked)) + checked
        replace_file(self._disk, self._folder / POINTS, [data], durable=True)
        self.floor = floor
        if clean:
            replace_file(self._disk, self._folder / CLEAN, [_mark(data)], durable=True)

    def _parse(self, data: bytes) -> None:
        if data[:8] != POINTS_MAGIC or len(data) < POINTS_HEAD.size:
            self.lost = True
            return
        _, crc, version, _, floor, count = POINTS_HEAD.unpack_from(data)
        if crc32c(memoryview(data)[CHECKED_AT:]) != crc or len(data) != POINTS_HEAD.size + count * POINT_BYTES:
            self.lost = True
            return
        if version != VERSION:
            raise FolderFormatError(f"{self._folder / POINTS} is of version {version}, this program knows {VERSION}")
        self.floor = floor
        for at in range(POINTS_HEAD.size, len(data), POINT_BYTES):
            self._rows[data[at : at + POINT_KEY.size]] = data[at + POINT_KEY.size : at + POINT_BYTES]


def _mark(points: bytes) -> bytes:
    return CLEAN_MARK.pack(CLEAN_MAGIC, crc32c(points))
