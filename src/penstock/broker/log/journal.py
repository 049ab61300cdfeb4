"""The journal: what was appended to many segments, once more in one file, so that one sync covers it.

Two files take turns. Blocks are written one behind the other; when a file is full the other takes over with the next
generation, which it can only when its old blocks are needed no more: all they cover was synced in its own place, and
the recovery points say so (their floor is the lowest generation that counts). A file keeps its size and is written over
from its beginning, which spares the disk the work that a growing file makes. A little of it is there from the start, so
that on a full disk a log can still note what it drops.

A block stands on pages of its own, so that writing one never touches another that was synced before. Its items are
either bytes of a segment or the news that a log starts later than before. All of a block counts or nothing.

Runs on: the commit thread; reading and recovering on the loop thread, before there are any rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from penstock.broker.log.disk import Disk, opened, write_all
from penstock.broker.log.layout import BLOCK, BLOCK_ALIGN, BLOCK_MAGIC, DATA, ITEM, JOURNALS, START, VERSION, LogKey
from penstock.wire.entry import Buffer

RESERVED_BYTES: Final = 65_536
CHECKED_AT: Final = 12
"""Where the bytes begin that a block's checksum covers."""
_PADDING = bytes(BLOCK_ALIGN)


class Item(NamedTuple):
    """A piece of news about one log."""

    kind: int
    key: LogKey
    base: int
    """DATA: the segment; START: the oldest segment that is still there."""
    place: int
    """DATA: the offset in the segment's file; START: the position at which the log starts."""
    path: Path
    offset: int
    size: int
    """Where the bytes are: file of the journal, offset in it, how many."""


class Block(NamedTuple):
    """Items that became durable together."""

    generation: int
    sequence: int
    items: list[Item]


def data_item(key: LogKey, base: int, offset: int, size: int) -> bytes:
    """What stands before bytes of a segment."""
    return ITEM.pack(DATA, key.partition, key.topic_id.bytes, base, offset, size)


def start_item(key: LogKey, base: int, position: int) -> bytes:
    """The news that a log starts at this position, in the segment with this base."""
    return ITEM.pack(START, key.partition, key.topic_id.bytes, base, position, 0)


class Journal:
    """The two files, written block by block."""

    def __init__(self, disk: Disk, folder: Path, bytes_max: int, generation: int, sequence: int) -> None:
        """`generation` and `sequence` are higher than those of any block that is there."""
        self._disk = disk
        self._paths = [folder / name for name in JOURNALS]
        self._descriptors = [_open_or_create(disk, path) for path in self._paths]
        for descriptor in self._descriptors:
            missing = RESERVED_BYTES - disk.size(descriptor)
            if missing > 0:
                write_all(disk, descriptor, [bytes(missing)], disk.size(descriptor))
                disk.sync(descriptor)
        disk.sync_folder(folder)
        self._bytes_max = max(bytes_max // BLOCK_ALIGN, 2) * BLOCK_ALIGN
        self._active = 0
        self._at = 0
        self.generation = generation
        self._sequence = sequence

    def has_room(self, size: int) -> bool:
        """Whether a block with so many bytes of items fits behind the others."""
        return self._at + _aligned(size) <= self._bytes_max

    def fits(self, size: int) -> bool:
        """Whether a block with so many bytes of items fits into a file at all."""
        return _aligned(size) <= self._bytes_max

    @property
    def filled(self) -> float:
        """Which part of the present file is written."""
        return self._at / self._bytes_max

    def switch(self) -> None:
        """Go on in the other file, whose blocks are needed no more."""
        self._active = 1 - self._active
        self._at = 0
        self.generation += 1

    def write(self, buffers: Sequence[Buffer], size: int, count: int) -> None:
        """Write a block behind the others, not synced yet; there is room for it."""
        head = BLOCK.pack(BLOCK_MAGIC, 0, VERSION, 0, self.generation, self._sequence, size, count)
        crc = crc32c(memoryview(head)[CHECKED_AT:])
        for buffer in buffers:
            crc = crc32c(buffer, crc)
        head = BLOCK.pack(BLOCK_MAGIC, crc, VERSION, 0, self.generation, self._sequence, size, count)
        padding = _PADDING[: _aligned(size) - BLOCK.size - size]
        write_all(self._disk, self._descriptors[self._active], [head, *buffers, padding], self._at)
        self._at += _aligned(size)
        self._sequence += 1

    def sync(self) -> None:
        """Make the blocks of the present file durable."""
        self._disk.sync(self._descriptors[self._active])

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in self._descriptors:
            self._disk.close(descriptor)

    def __repr__(self) -> str:
        return f"<Journal, generation {self.generation}, {self._at} of {self._bytes_max} bytes>"


def read_blocks(disk: Disk, folder: Path) -> list[Block]:
    """The blocks of both files, in the order in which they were written.

    A file's generation is that of the first block in it. Of later pages only blocks of that generation count: others
    are left from before. A page that begins none is passed over: either damage has put it before others that count, or
    all others are of a generation that counts no more.
    """
    blocks = [block for name in JOURNALS for block in _file_blocks(disk, folder / name)]
    return sorted(blocks, key=lambda block: (block.generation, block.sequence))


def _file_blocks(disk: Disk, path: Path) -> Iterator[Block]:
    try:
        with opened(disk, path) as descriptor:
            size = disk.size(descriptor)
            generation = None
            offset = 0
            while offset < size:
                block, length = _read_block(disk, path, descriptor, offset)
                if generation is None and block is not None:
                    generation = block.generation
                if block is not None and block.generation == generation:
                    yield block
                    offset += length
                else:
                    offset += BLOCK_ALIGN
    except FileNotFoundError:
        return


def _read_block(disk: Disk, path: Path, descriptor: int, offset: int) -> tuple[Block | None, int]:
    head = disk.read(descriptor, BLOCK.size, offset)
    if len(head) < BLOCK.size:
        return None, 0
    magic, crc, version, _, generation, sequence, size, count = BLOCK.unpack(head)
    if magic != BLOCK_MAGIC or version != VERSION:
        return None, 0
    data = disk.read(descriptor, size, offset + BLOCK.size)
    if len(data) < size or crc32c(data, crc32c(memoryview(head)[CHECKED_AT:])) != crc:
        return None, 0
    return Block(generation, sequence, _items(data, count, path, offset + BLOCK.size)), _aligned(size)


def _items(data: bytes, count: int, path: Path, offset: int) -> list[Item]:
    items = []
    at = 0
    for _ in range(count):
        kind, partition, topic_id, base, place, size = ITEM.unpack_from(data, at)
        at += ITEM.size
        items.append(Item(kind, LogKey(UUID(bytes=topic_id), partition), base, place, path, offset + at, size))
        at += size
    return items


def _aligned(size: int) -> int:
    return -(-(BLOCK.size + size) // BLOCK_ALIGN) * BLOCK_ALIGN


def _open_or_create(disk: Disk, path: Path) -> int:
    try:
        return disk.open(path)
    except FileNotFoundError:
        return disk.open(path, create=True)
