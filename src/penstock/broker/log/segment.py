"""A segment: one file of entries, its index and its claims, from its base position to its end.

A segment is loaded when it is first needed: its head, its size, and what its index says of the whole. The last segment
of a log takes entries; each is written, then noted: counted, indexed every so many bytes, its claim kept. Reading walks
heads of entries from a row of the index on, and compares each with where it should be; what does not fit is damage.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

from penstock.broker.log import scan
from penstock.broker.log.claims import Claims
from penstock.broker.log.disk import storage_error, write_all
from penstock.broker.log.handles import Handle
from penstock.broker.log.index import Holds, Index, SpoiltRowError
from penstock.broker.log.layout import (
    CLAIMS,
    INDEX,
    LOG,
    NO_TIME,
    SEGMENT_HEAD_BYTES,
    SIDE_HEAD_BYTES,
    LogKey,
    Row,
    SegmentHead,
    Summary,
    segment_name,
)
from penstock.broker.log.volume import Volume
from penstock.errors import DecodeError, FolderFormatError, StorageDamagedError
from penstock.wire.entry import NO_CLAIM, Buffer, EntryFormat, EntryHeader, PropertyClaim

INDEX_BYTES: Final = 16_384
"""How many bytes of entries a row of the index stands for, at least."""
HEADS_BYTES: Final = 4096
"""How much is read at a time when heads of entries are walked."""

_log = logging.getLogger("penstock")

Head: TypeAlias = tuple[int, int, int, EntryHeader]
"""Offset, first position, the position after it, header."""


class Spot(NamedTuple):
    """Where an entry begins, or would begin, in a segment."""

    offset: int
    position: int
    entries: int
    """Entries before it in the segment."""


class Segment:
    """One segment. Runs on: the loop thread, but for `named` and the handle's descriptor while that is pinned."""

    __slots__ = (
        *(
            "_volume",
            "base",
            "claims",
            "created_ms",
            "end",
            "entries",
            "folder",
            "format",
            "handle",
            "index",
            "key",
            "loaded",
        ),
        *("log_name", "named", "rewound", "row_at", "sealed", "size", "time", "time_at"),
    )

    def __init__(self, volume: Volume, key: LogKey, base: int, log_name: str) -> None:
        self.folder = volume.topic(key.topic_id)
        folder = self.folder.path
        self._volume = volume
        self.key = key
        self.base = base
        self.log_name = log_name
        self.handle = Handle(volume.handles, folder / segment_name(key.partition, base, LOG))
        self.index = Index(volume.disk, folder / segment_name(key.partition, base, INDEX), key.partition, base)
        self.claims = Claims(volume.disk, folder / segment_name(key.partition, base, CLAIMS), key.partition, base)
        self.loaded = False
        self.named = True
        """Whether its file would be in its folder after the loss of power; set by the commit thread."""
        self.rewound = 0
        """How often bytes were taken back that may be on disk: if ever, it must be synced in place next."""
        self.sealed = False
        """Whether it takes no more entries: there was another behind it, or it has lost some."""
        self.created_ms = 0
        self.format = cast("EntryFormat", None)  # until it is loaded
        self.restart(self.first_row)

    @classmethod
    def create(
        cls, volume: Volume, key: LogKey, base: int, log_name: str, entry_format: EntryFormat, now_ms: int
    ) -> Segment:
        """Make the file of a new segment; nothing is left of it when that fails."""
        volume.make_topic(key.topic_id)
        segment = cls(volume, key, base, log_name)
        path = segment.handle.path
        for leftover in (path, segment.index.path, segment.claims.path):
            volume.disk.remove(leftover)
        descriptor = volume.disk.open(path, create=True)
        try:
            write_all(volume.disk, descriptor, [SegmentHead(entry_format.number, key, base, now_ms).pack()], 0)
        except OSError:
            volume.disk.close(descriptor)
            volume.disk.remove(path)
            raise
        segment.handle = Handle(volume.handles, path, descriptor)
        segment.format = entry_format
        segment.created_ms = now_ms
        segment.named = False
        segment.loaded = True
        return segment

    @property
    def first_row(self) -> Row:
        """What a row of the index would say of the first entry, which has none."""
        return Row(self.base, NO_TIME, SEGMENT_HEAD_BYTES, 0, SIDE_HEAD_BYTES)

    @property
    def held(self) -> int:
        """Bytes of entries."""
        return self.size - SEGMENT_HEAD_BYTES

    def paths(self) -> tuple[Path, Path, Path]:
        """The names of its files; the one with the entries goes first when they are removed."""
        return self.handle.path, self.index.path, self.claims.path

    def restart(self, row: Row) -> None:
        """Know of the entries before this row only."""
        self.size = self.row_at = row.offset
        self.end = row.position
        self.entries = row.entries_before
        self.time = row.time_before
        self.time_at = self.base
        """The first position of an entry with the largest time, or one before it."""

    # Loading

    def open(self) -> int | None:
        """Read the head of the file; its size, or None when the file has no head that says it is this segment."""
        try:
            descriptor = self.descriptor()
            head = SegmentHead.parse(self._volume.disk.read(descriptor, SEGMENT_HEAD_BYTES, 0))
            size = self._volume.disk.size(descriptor)
        except OSError as error:
            raise StorageDamagedError(f"{self}: {error.strerror or error}") from error
        if head is None or (head.key, head.base) != (self.key, self.base):
            return None
        if head.format not in self._volume.formats:
            raise FolderFormatError(f"{self} holds entries in format {head.format}, which is not known")
        self.format = self._volume.formats[head.format]
        self.created_ms = head.created_ms
        return size

    def measure(self) -> int:
        """Bytes of entries, by the file's size."""
        try:
            return max(self._volume.disk.size(self.descriptor()) - SEGMENT_HEAD_BYTES, 0)
        except (StorageDamagedError, OSError):
            return 0

    def load(self, until: int) -> None:
        """Learn what is in a segment that is whole; the next one begins at position `until`."""
        if self.loaded:
            return
        try:
            size = self.open()
        except StorageDamagedError as error:
            raise StorageDamagedError(str(error), until) from error
        if size is None:
            raise StorageDamagedError(f"{self} has no head that says so", until)
        with self._translated():
            if not self.take_summary(size):
                for damage in self.rebuild(size, scan.Mark(size, until)):
                    _log.error("damaged: %s", damage)
        self.loaded = True

    def take_summary(self, size: int) -> bool:
        """Take what the index says of the whole, if it is of a file of this size; whether it was so."""
        summary = self.index.open(size)
        if summary is None or not self.claims.open(summary.claims, summary.claims_crc):
            return False
        try:
            row = self.index.tail() or self.first_row
        except SpoiltRowError:
            return False
        self.end, self.time, self.time_at, self.size, self.entries = summary[:5]
        self.row_at = row.offset
        self.loaded = True
        return True

    def rebuild(self, size: int, trusted: scan.Mark) -> list[str]:
        """Make index, claims and numbers anew from the entries up to `size`; what is found damaged before the mark.

        Entries end at `self.size` then: what lies behind it, up to `size`, are none. If the entries cannot be read, the
        segment has to be loaded anew, and takes no more of them.
        """
        sealed, self.loaded, self.sealed = self.sealed, False, True
        damage = scan.scan(self, size, trusted)
        self.sealed = sealed
        with contextlib.suppress(OSError):
            self.index.settle()
            self.claims.settle()
            self._volume.disk.sync_folder(self.handle.path.parent)
        self.loaded = True
        return damage

    def summarise(self) -> None:
        """Write index and claims, so that nothing has to be looked up in the entries to know the segment."""
        if self.loaded:
            self.claims.flush()
            numbers = self.end, self.time, self.time_at, self.size, self.entries
            self.index.close(Summary(*numbers, self.claims.size, self.claims.crc))

    # Writing

    def append(self, buffers: Sequence[Buffer], header: EntryHeader, first: int, last: int) -> None:
        """Write an entry behind all others; OSError, and nothing was written, if that fails."""
        disk = self._volume.disk
        handle = self.handle
        descriptor = handle.descriptor if handle.descriptor >= 0 else handle.fileno()
        handle.used = True
        try:
            if disk.write(descriptor, buffers, self.size) != header.size:
                write_all(disk, descriptor, buffers, self.size)
        except OSError:
            self.rewound += 1
            disk.truncate(descriptor, self.size)
            raise
        self.note(header, first, last)

    def takes(self, entry_format: EntryFormat, end: int) -> bool:
        """Whether entries of this format can follow here, the log ending at this position."""
        return self.format.number == entry_format.number and self.end == end and not self.sealed

    def note(self, header: EntryHeader, first: int, last: int) -> None:
        """Count an entry that stands at the end."""
        offset = self.size
        if offset - self.row_at >= INDEX_BYTES:
            self.index.add(Row(first, self.time, offset, self.entries, self.claims.size).pack())
            self.row_at = offset
        if header.claim is not NO_CLAIM and header.claim:
            self.claims.claim(first, header.claim)
        if header.max_time_ms > self.time:
            self.time = header.max_time_ms
            self.time_at = first
        self.entries += 1
        self.size = offset + header.size
        self.end = last + 1

    def skip(self, mark: scan.Mark) -> None:
        """Go on behind a damaged stretch, where an entry begins again."""
        self.size = self.row_at = mark.offset
        self.end = mark.position
        self.index.add(Row(mark.position, self.time, mark.offset, self.entries, self.claims.size).pack())

    # Reading

    def descriptor(self) -> int:
        """The file's descriptor, for now."""
        try:
            return self.handle.fileno()
        except FileNotFoundError as error:
            raise StorageDamagedError(f"{self} is missing", self.end) from error
        except OSError as error:
            raise storage_error(error, str(self)) from error

    def pin(self) -> int:
        """The file's descriptor, until the handle is unpinned."""
        descriptor = self.descriptor()
        self.handle.pins += 1
        return descriptor

    def read(self, size: int, offset: int) -> bytes:
        """As many bytes of the file from this place as there are, at most `size`."""
        descriptor = self.descriptor()
        try:
            return self._volume.disk.read(descriptor, size, offset)
        except OSError as error:
            raise StorageDamagedError(f"{self}, byte {offset}: {error.strerror or error}") from error

    def heads(self, offset: int, position: int, stop: int) -> Iterator[Head]:
        """The entries from this one on, up to the offset `stop`, by their heads."""
        head_bytes, glance = self.format.head_bytes, self.format.glance
        data, at = memoryview(b""), 0
        while offset < stop:
            if len(data) - at < head_bytes:
                data, at = memoryview(self.read(HEADS_BYTES, offset)), 0
            try:
                header = glance(data[at : at + head_bytes])
            except DecodeError as error:
                raise self._damage(offset, position, str(error)) from error
            following = cast("int", header.last) + 1
            if header.first != position or header.size > stop - offset or not position < following <= self.end:
                found = f"an entry of positions {header.first} to {header.last}, {header.size} bytes"
                raise self._damage(offset, position, found)
            first, position = position, following
            yield offset, first, position, header
            offset += header.size
            at += header.size

    def spot(self, position: int) -> Spot:
        """The entry that holds this position, or the end."""
        if position >= self.end:
            return Spot(self.size, self.end, self.entries)
        if position == self.base:
            return Spot(SEGMENT_HEAD_BYTES, self.base, 0)
        row = self.row_before(lambda row: row.position <= position)
        entries = row.entries_before
        for offset, first, following, _header in self.heads(row.offset, row.position, self.size):
            if following > position:
                return Spot(offset, first, entries)
            entries += 1
        raise self._damage(row.offset, row.position, f"no entry with position {position}")

    def fit(self, spot: Spot, bytes_max: int, limit: int) -> Spot:
        """The end of the entries from `spot` on that fit into so many bytes and lie before position `limit`.

        At least one entry, if it lies before the limit.
        """
        goal = spot.offset + bytes_max
        row = self.row_before(lambda row: row.offset <= goal and row.position <= limit)
        end = spot
        if row.offset > spot.offset:
            end = Spot(row.offset, row.position, row.entries_before)
        try:
            for offset, _first, following, header in self.heads(end.offset, end.position, self.size):
                if following > limit or (offset + header.size > goal and offset > spot.offset):
                    break
                end = Spot(offset + header.size, following, end.entries + 1)
        except StorageDamagedError:
            if end is spot:
                raise
        return end

    def seek_time(self, time_ms: int, start: int) -> tuple[int, int] | None:
        """First position and largest time of the first entry that reaches this time, and this position."""
        if self.time < time_ms:
            return None
        row = self.row_before(lambda row: row.time_before < time_ms)
        found = self._first_reaching(row.offset, row.position, time_ms)
        if found is not None and found[1] <= start:
            spot = self.spot(start)
            found = self._first_reaching(spot.offset, spot.position, time_ms)
        return None if found is None else (found[0], found[2])

    def _first_reaching(self, offset: int, position: int, time_ms: int) -> tuple[int, int, int] | None:
        for _, first, following, header in self.heads(offset, position, self.size):
            if header.max_time_ms >= time_ms:
                return first, following, header.max_time_ms
        return None

    def largest_time(self, start: int, stop: int) -> int:
        """The largest time of the entries from position `start` to `stop`, at both of which an entry begins or ends."""
        if start <= self.time_at < stop and self.time > NO_TIME:
            return self.time
        if start <= self.base:
            row = self.row_before(lambda row: row.position <= stop)
            largest = row.time_before
            spot = Spot(row.offset, row.position, 0)
        else:
            largest = NO_TIME
            spot = self.spot(start)
        for _, _, following, header in self.heads(spot.offset, spot.position, self.size):
            if following > stop:
                break
            largest = max(largest, header.max_time_ms)
        return largest

    def claims_from(self, position: int) -> Iterator[tuple[int, PropertyClaim]]:
        """Positions and claims of entries, from about this position on."""
        if self.claims.size == SIDE_HEAD_BYTES:
            return iter(())
        return self.claims.since(self.row_before(lambda row: row.position <= position).claims_before)

    def row_before(self, holds: Holds) -> Row:
        """The last row of the index for which this holds, or the one that the first entry would have."""
        with self._translated():
            try:
                return self.index.last(holds) or self.first_row
            except SpoiltRowError:
                self.rebuild(self.size, scan.Mark(self.size, self.end))
                return self.index.last(holds) or self.first_row

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """What the system says of the files beside the entries, in our words."""
        try:
            yield
        except OSError as error:
            raise storage_error(error, f"{self}: its index") from error

    def _damage(self, offset: int, position: int, found: str) -> StorageDamagedError:
        row = None
        with contextlib.suppress(SpoiltRowError, OSError):
            row = self.index.next(lambda row: row.offset <= offset)
        resume = self.end if row is None else row.position
        return StorageDamagedError(f"{self}, byte {offset}: expected position {position}, found {found}", resume)

    def __str__(self) -> str:
        return f"{self.log_name}: segment {self.handle.path.name}"

    def __repr__(self) -> str:
        loaded = f"{self.entries} entries, {self.size} bytes" if self.loaded else "not loaded"
        return f"<Segment {self.handle.path.name}, {loaded}>"
