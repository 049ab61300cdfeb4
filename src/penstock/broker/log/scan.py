"""Entries of a segment read one by one and verified, to find out what is in a file that nobody vouches for.

Up to a mark the file was synced and verified once: what does not fit there is damage, is told, and passed over as far
as that can be. Behind the mark, an entry that is not whole is where the writing stopped: nothing after it counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.broker.log.layout import SEGMENT_HEAD_BYTES, SIDE_HEAD_BYTES
from penstock.errors import DecodeError, StorageDamagedError
from penstock.wire.entry import EntryHeader

if TYPE_CHECKING:
    from penstock.broker.log.segment import Segment

WINDOW_BYTES: Final = 1 << 18


class Mark(NamedTuple):
    """A place in a segment where an entry begins, or would begin."""

    offset: int
    position: int


class Window:
    """A part of a file in memory, moved along as entries are read from it."""

    def __init__(self, segment: Segment, size: int) -> None:
        self._segment = segment
        self._size = size
        self._data = memoryview(b"")
        self._start = 0

    def entry(self, offset: int) -> memoryview:
        """The entry at this place; DecodeError when none is there that could be whole."""
        size = self._segment.format.measure(self._bytes(offset, self._segment.format.head_bytes))
        if size is None or size > self._size - offset:
            raise DecodeError(offset, "entry", f"{self._size - offset} bytes at most", size)
        entry = self._bytes(offset, size)
        if len(entry) < size:
            raise DecodeError(offset, "entry", f"{size} bytes", len(entry))
        return entry

    def _bytes(self, offset: int, size: int) -> memoryview:
        """Bytes of the file, fewer only at its end."""
        at = offset - self._start
        if not 0 <= at <= len(self._data) - size:
            wanted = min(max(size, WINDOW_BYTES), self._size - offset)
            self._data, self._start, at = memoryview(self._segment.read(wanted, offset)), offset, 0
        return self._data[at : at + size]


def scan(segment: Segment, size: int, trusted: Mark) -> list[str]:
    """Note all entries of a segment up to the offset `size`; what was found damaged before the mark, in words."""
    resume(segment, trusted)
    window = Window(segment, size)
    damage = []
    while segment.size < size:
        offset = segment.size
        try:
            header = _verified(segment, window, offset)
        except DecodeError as error:
            if offset >= trusted.offset:
                break
            damage.append(f"{segment}, byte {offset}, position {segment.end}: {error}")
            unverified = _unverified(segment, window, offset, trusted)
            if unverified is None:
                segment.skip(trusted)
                continue
            header = unverified
        segment.note(header, segment.end, cast("int", header.last))
    return damage


def resume(segment: Segment, trusted: Mark) -> None:
    """Go on from the last row of the index that can be trusted, with the rows and claims before it."""
    claims = segment.claims.salvage()
    last, records = segment.first_row, bytearray()
    for row in segment.index.salvage():
        if row.offset > trusted.offset or row.claims_before > max(len(claims), SIDE_HEAD_BYTES):
            break
        last = row
        records += row.pack()
    segment.restart(last)
    segment.index.renew(records)
    segment.claims.renew(claims[SIDE_HEAD_BYTES : last.claims_before])


def _verified(segment: Segment, window: Window, offset: int) -> EntryHeader:
    header = segment.format.check(window.entry(offset))
    if header.first != segment.end:
        raise DecodeError(0, "position", str(segment.end), header.first)
    return header


def _unverified(segment: Segment, window: Window, offset: int, trusted: Mark) -> EntryHeader | None:
    """The head of an entry whose payload is damaged, if another entry can follow it."""
    try:
        header = segment.format.glance(window.entry(offset))
    except DecodeError:
        return None
    after = Mark(offset + header.size, cast("int", header.last) + 1)
    fits = header.first == segment.end and after.offset <= trusted.offset and after.position <= trusted.position
    return header if fits else None


def verify(segment: Segment) -> Iterator[StorageDamagedError]:
    """Read all entries of a segment; what is damaged."""
    window = Window(segment, segment.size)
    offset, position = SEGMENT_HEAD_BYTES, segment.base
    while True:
        try:
            for at, first, following, _header in segment.heads(offset, position, segment.size):
                try:
                    segment.format.check(window.entry(at))
                except DecodeError as error:
                    yield StorageDamagedError(f"{segment}, byte {at}, position {first}: {error}", following)
        except StorageDamagedError as error:
            yield error
            if error.resume is None or error.resume >= segment.end:
                return
            offset, position, _entries = segment.spot(error.resume)
        else:
            return
