"""One partition's log: entries one after the other, in segment files, from its start to its end.

Positions count messages; an entry holds those from its first to its last. Whoever appends has checked the entry. What
is appended is in its file at once; readers see it when it is as durable as the policy demands.

`read` and `entries` raise PositionError for a position outside of `start` to `end`, StorageDamagedError where the files
do not hold what they should; at `visible` there is nothing yet, which is no error. Damage is found where heads of
entries are walked; a payload is not looked at when it is read, its reader does that.

A log is asleep until something is asked of it that needs its files; `start`, `end`, `visible` and `size` do not.

Runs on: the loop thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.broker.log.disk import storage_error
from penstock.broker.log.handles import Handle
from penstock.broker.log.layout import NO_TIME, SEGMENT_BYTES_MAX, SIDE_HEAD_BYTES, LogKey, Point, SegmentHead
from penstock.broker.log.rounds import Note, Write
from penstock.broker.log.scan import Mark, verify
from penstock.broker.log.segment import Segment, Spot
from penstock.broker.log.syncer import FsyncPolicy, Syncer
from penstock.errors import PositionError, StorageDamagedError, StorageError, StorageFailedError
from penstock.wire.entry import NO_CLAIM, Buffer, EntryFormat, EntryHeader

if TYPE_CHECKING:
    from penstock.broker.log.store import LogStore

_log = logging.getLogger("penstock")

NO_MORE_CLAIMS: Final = (1 << 63, NO_CLAIM)
SPOTS_MAX: Final = 16
"""How many places are remembered at which a reader will go on."""


class Place(NamedTuple):
    """The positions an entry got."""

    first: int
    last: int


class Slice(NamedTuple):
    """A run of whole entries in one file, to be sent from there.

    The file stays open until `release()`, which must be called exactly once, even if retention removes it meanwhile.
    """

    fd: int
    offset: int
    size: int
    first: int
    """The first position of the first entry, which may be before the position asked for."""
    next: int
    """The position after the last entry."""
    entries: int
    handle: Handle

    def read(self) -> bytes:
        """All of it, read now; StorageDamagedError when that cannot be done."""
        return _read(self.fd, self.size, self.offset)

    def release(self) -> None:
        """Let the file go."""
        self.handle.unpin()


class EntryAt(NamedTuple):
    """An entry and where it stands: good until the iterator that gave it is asked for the next, or closed."""

    header: EntryHeader
    fd: int
    offset: int
    size: int
    handle: Handle
    """To be pinned by whoever needs the file for longer."""
    format: EntryFormat | None = None
    """In which it is written."""

    def read(self) -> bytes:
        """All of it, read now; StorageDamagedError when that cannot be done."""
        return _read(self.fd, self.size, self.offset)


def _read(fd: int, size: int, offset: int) -> bytes:
    try:
        data = os.pread(fd, size, offset)
    except OSError as error:
        raise StorageDamagedError(f"{size} bytes from byte {offset} on: {error.strerror or error}") from error
    if len(data) < size:
        raise StorageDamagedError(f"{size} bytes from byte {offset} on: its file ends {size - len(data)} too early")
    return data


class Backlog(NamedTuple):
    """What is readable from some position on."""

    entries: int
    messages: int
    bytes: int


class PartitionLog:
    """One partition's log. Made by `LogStore.open`."""

    __slots__ = (
        *("_committer", "_segments", "_spots", "_store", "_system", "deleted", "end", "failure", "key"),
        *("name", "segment_age_ms", "segment_bytes", "size", "start", "visible", "visible_segment", "visible_spot"),
    )

    def __init__(self, store: LogStore, key: LogKey, name: str) -> None:
        self.key = key
        self.name = name
        """For messages: "tenant/namespace/topic-3"."""
        self.start = 0
        """The first position that is still there."""
        self.end = 0
        """The next position to be given."""
        self.visible = 0
        """Readers see positions below it: the synced end, or `end` where syncing is left to the system."""
        self.size = 0
        """Bytes of entries, those before `start` included until their segment goes."""
        self.segment_bytes = store.settings.segment_bytes
        self.segment_age_ms = store.settings.segment_age_ms
        """When a segment is full, or so old that the next append begins another; both may be set at any time."""
        self.failure: StorageError | None = None
        """Why it takes no more entries, once that is so."""
        self.deleted = False
        self._store = store
        self._committer = store.committer
        self._system = store.committer.policy is FsyncPolicy.SYSTEM
        self._segments: list[Segment] | None = None
        self._spots: dict[int, tuple[Segment, Spot]] = {}
        self.visible_segment: Segment | None = None
        self.visible_spot = Spot(0, 0, 0)
        """Where the visible part ends."""

    # Writing

    def append(self, format: EntryFormat, entry: Buffer, header: EntryHeader, now_ms: int, epoch: int = 0) -> Place:  # noqa: A002
        """Write an entry at the end; `header` is what `format.check(entry)` told. Durable when the committer says so.

        StorageFullError: taken back whole, may work again later. StorageReadOnlyError likewise. StorageFailedError:
        this log takes no more until the broker is started anew; reading goes on.
        """
        segments = self._segments
        size = header.size
        segment = segments[-1] if segments else None
        if (
            segment is None
            or segment.format.number != format.number
            or segment.size + size > self.segment_bytes
            or now_ms - segment.created_ms > self.segment_age_ms
            or segment.sealed
            or self.failure is not None
            or self._committer.broken is not None
        ):
            segment = self._roll_for(format, size, now_ms)
        first, offset = self.end, segment.size
        last = first + cast("int", header.last) - cast("int", header.first)
        buffers = format.place(entry, first, epoch)
        try:
            segment.append(buffers, header, first, last)
        except OSError as error:
            raise self._not_written(error) from error
        self.end = last + 1
        self.size += size
        if self._system:
            self.visible = last + 1
            self.visible_segment = segment
            self.visible_spot = Spot(segment.size, last + 1, segment.entries)
        else:
            self._committer.gathering.wrote(self, segment, offset, size, buffers)
        return Place(first, last)

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin another segment if the newest is due for it by age; whether it did."""
        segments = self._segments  # a log that is asleep has written nothing for long
        if not segments or not segments[-1].entries or now_ms - segments[-1].created_ms <= self.segment_age_ms:
            return False
        self._roll(segments[-1].format, now_ms)
        return True

    def _roll_for(self, entry_format: EntryFormat, size: int, now_ms: int) -> Segment:
        """The segment for an entry of this size, a new one if need be."""
        failure = self.failure or self._committer.broken
        if failure is not None:
            raise StorageFailedError(f"{self.name} takes no more: {failure}") from failure
        if self.deleted:
            raise StorageFailedError(f"{self.name} is deleted")
        segments = self.segments()
        if segments and segments[-1].loaded and segments[-1].takes(entry_format, self.end):
            last = segments[-1]
            fits = last.size + size <= min(self.segment_bytes, SEGMENT_BYTES_MAX)
            if not last.entries or (fits and now_ms - last.created_ms <= self.segment_age_ms):
                return last
        return self._roll(entry_format, now_ms)

    def _roll(self, entry_format: EntryFormat, now_ms: int) -> Segment:
        """Begin another segment at the end."""
        segments = self.segments()
        old = segments[-1] if segments else None
        if old is not None and old.base == self.end:  # empty: another takes its name
            segments.pop().handle.remove()
            old = None
        for segment in segments[-1:]:
            segment.sealed = True
        volume = self._store.volume
        try:
            new = Segment.create(volume, self.key, self.end, self.name, entry_format, now_ms)
        except OSError as error:
            raise storage_error(error, f"{self.name}: no new segment") from error
        segments.append(new)
        self._spots.clear()
        if old is not None:
            old.summarise()
        if not self._system:
            head = SegmentHead(entry_format.number, self.key, new.base, now_ms).pack()
            self._committer.gathering.wrote(self, new, 0, len(head), (head,))
        elif old is not None:
            self._committer.gathering.dirtied(self, old)
        return new

    def _not_written(self, error: OSError) -> StorageError:
        failure = storage_error(error, f"{self.name}: not written")
        if isinstance(failure, StorageFailedError):
            self.failure = failure
        return failure

    # Dropping

    def delete_before(self, position: int) -> None:
        """Move `start` up to this position, at most to `visible`, and free segments; durable with the next submit."""
        position = min(position, self.visible)
        if position <= self.start:
            return
        segments = self.segments()
        self.start = position
        count = sum(each.base < self._end_of(place) <= position for place, each in enumerate(segments))
        self._drop(count, segments[-1].created_ms)

    def enforce_retention(
        self, now_ms: int, bytes_max: int | None, age_ms_max: int | None, keep_from: int | None
    ) -> int:
        """Drop whole segments from the old end while there are more bytes, or they are older, than wanted.

        Nothing at `keep_from` or after it goes, nor what is not visible. The newest segment goes too, once all in it
        is too old. A segment is as old as the newest time in it. How many entries were dropped; durable with the next
        submit.
        """
        limit = self.visible if keep_from is None else min(keep_from, self.visible)
        spare = None if bytes_max is None else self.size - bytes_max
        oldest = None if age_ms_max is None else now_ms - age_ms_max
        count = entries = 0
        for place, segment in enumerate(self.segments()):
            end, time = self._end_of(place), self._newest_time(place)
            too_old = oldest is not None and time is not None and time < oldest
            too_large = spare is not None and segment.measure() <= spare
            if end > limit or not (too_old or too_large) or end == segment.base:
                break
            if place == len(self.segments()) - 1 and not too_old:
                break
            count, entries = place + 1, entries + segment.entries
            spare = None if spare is None else spare - segment.measure()
        if count:
            self.start = max(self.start, self._end_of(count - 1))
            self._drop(count, now_ms)
        return entries

    def truncate(self, position: int) -> None:
        """Cut all entries from the one that holds `position`; blocks until that is durable. A rare thing."""
        if position >= self.end:
            return
        self._check(position)
        self._committer.wait(self._committer.submit())
        segment, spot = self._locate(position)
        segments = self.segments()
        gone = segments[segments.index(segment) + 1 :]
        start = min(self.start, spot.position)
        point = Point(0, start, spot.position, segment.base, spot.offset, 0)
        descriptor = segment.pin()
        try:
            self._committer.run(lambda syncer: syncer.cut(segment, descriptor, point, gone))
        except OSError as error:
            raise storage_error(error, f"{self.name}: not cut") from error
        finally:
            segment.handle.unpin()
        self.start = start
        for each in gone:
            each.handle.remove()
        del segments[segments.index(segment) + 1 :]
        segment.sealed = False
        segment.rebuild(spot.offset, Mark(spot.offset, spot.position))
        self.end = spot.position
        self.size = sum(each.held if each.loaded else each.measure() for each in segments)
        self.show(self.end)

    def _newest_time(self, place: int) -> int | None:
        """The newest time in a segment; that of its successor's creation where none is known, None where nothing is."""
        segments = self.segments()
        try:
            segments[place].load(self._end_of(place))
        except StorageDamagedError as error:
            _log.warning("retention: %s", error)
        if segments[place].time >= 0:
            return segments[place].time
        if place + 1 == len(segments):
            return segments[place].created_ms
        with contextlib.suppress(StorageDamagedError):
            segments[place + 1].open()
            return segments[place + 1].created_ms
        return None

    def _drop(self, count: int, now_ms: int) -> None:
        """Let go of the oldest segments, which hold nothing at or after `start`.

        Before the last of them goes, an empty one follows it, whose name tells where the log ends. On a full disk there
        is no room for it: the log has no segment then until the next append, and the recovery point tells.
        """
        segments = self.segments()
        if count == len(segments) and segments[-1].loaded:
            with contextlib.suppress(StorageError):
                self._roll(segments[-1].format, now_ms)
        gone = segments[:count]
        del segments[:count]
        self._spots.clear()
        for segment in gone:
            self.size -= segment.held if segment.loaded else segment.measure()
            segment.handle.remove()
        if self.visible_segment in gone:
            self.show(self.visible)
        base = segments[0].base if segments else self.end
        self._committer.gathering.note(Note(self, base, self.start, gone))

    # Reading

    def read(self, position: int, bytes_max: int, limit: int | None = None) -> Slice | None:
        """Whole entries from the one that holds `position`, all below `visible` and `limit`; None: nothing there yet.

        As many as `bytes_max` takes and their file holds; the first entry is given even if it is larger.
        """
        stop = self.visible if limit is None or limit > self.visible else limit
        if not self.start <= position < stop:
            self._check(position)
            return None
        known = self._spots.get(position)
        segment, spot = known if known is not None else self._locate(position)
        whole = self.visible_spot if segment is self.visible_segment else segment.spot(segment.end)
        if whole.position <= stop and whole.offset - spot.offset <= bytes_max:
            end = whole
        else:
            end = segment.fit(spot, bytes_max, stop)
            if end.offset <= spot.offset:  # the first entry reaches beyond the limit
                return None
        self._remember(segment, end)
        size, entries = end.offset - spot.offset, end.entries - spot.entries
        return Slice(segment.pin(), spot.offset, size, spot.position, end.position, entries, segment.handle)

    def entries(self, position: int, limit: int | None = None) -> Iterator[EntryAt]:
        """Each entry from the one that holds `position`, all below `visible` and `limit`, with its claim if it has one.

        Heads are read, payloads are not. Close the iterator when it is not read to its end.
        """
        stop = self.visible if limit is None or limit > self.visible else limit
        while self.start <= position < stop:
            segment, spot = self._locate(position)
            descriptor = segment.pin()
            try:
                claims = segment.claims_from(spot.position)
                claimed, claim = next(claims, NO_MORE_CLAIMS)
                for offset, first, following, header in segment.heads(spot.offset, spot.position, segment.size):
                    if following > stop:
                        return
                    position = following
                    while claimed < first:
                        claimed, claim = next(claims, NO_MORE_CLAIMS)
                    told = header if claimed != first else header._replace(claim=claim)
                    yield EntryAt(told, descriptor, offset, header.size, segment.handle, segment.format)
            finally:
                segment.handle.unpin()
        self._check(position)

    def has_claims(self, position: int) -> bool:
        """Whether any entry in the file that holds this position claims something about its messages."""
        known = self._spots.get(position)
        segment = known[0] if known is not None else self._segment(position)
        return segment.claims.size > SIDE_HEAD_BYTES

    def seek_time(self, time_ms: int, position: int = 0) -> tuple[int, int] | None:
        """The first visible entry whose largest time is `time_ms` or more: its first position and that time.

        From the entry that holds `position` on. One that reaches back before `start` is told with `start`.
        """
        position = max(position, self.start)
        for segment in self._visible_segments():
            found = segment.seek_time(time_ms, position)
            if found is not None:
                return (max(found[0], self.start), found[1]) if found[0] < self.visible else None
        return None

    def latest_time(self, position: int = 0) -> tuple[int, int] | None:
        """First position and time of the visible entry with the largest time, the first such; None without any.

        From the entry that holds `position` on.
        """
        position = max(position, self.start)
        largest = NO_TIME
        for segment in self._visible_segments():
            largest = max(largest, segment.largest_time(position, min(self.visible, segment.end)))
        return None if largest < 0 else self.seek_time(largest, position)

    def backlog(self, position: int, limit: int | None = None) -> Backlog:
        """What is readable from the entry that holds `position` on; messages from `position` exactly."""
        stop = self.visible if limit is None or limit > self.visible else limit
        position = max(position, self.start)
        if position >= stop:
            return Backlog(0, 0, 0)
        first, begin = self._locate(position)
        if stop == self.visible and self.visible_segment is not None:
            last, end = self.visible_segment, self.visible_spot
        else:
            last, end = self._locate(stop)
        entries, size = end.entries - begin.entries, end.offset - begin.offset
        for segment in self._visible_segments():
            if first.base <= segment.base < last.base:
                entries += segment.entries
                size += segment.held
        return Backlog(entries, stop - position, size)

    def verify(self) -> Iterator[StorageDamagedError]:
        """Read all entries that can be read, and tell what is damaged; slow, for tools."""
        for place, segment in enumerate(self.segments()):
            try:
                segment.load(self._end_of(place))
            except StorageDamagedError as error:
                yield error
            else:
                yield from verify(segment)

    def _check(self, position: int) -> None:
        if not self.start <= position <= self.end:
            raise PositionError(position, self.start, self.end)

    def _locate(self, position: int) -> tuple[Segment, Spot]:
        """The segment that holds a position, and the entry in it."""
        segment = self._segment(position)
        return segment, segment.spot(position)

    def _segment(self, position: int) -> Segment:
        """The segment that holds a position."""
        segments = self.segments()
        place = bisect_right(segments, position, key=lambda segment: segment.base) - 1
        if place < 0:
            raise StorageDamagedError(f"{self.name}: position {position} is in no segment", self._resume(0))
        segment = segments[place]
        segment.load(self._end_of(place))
        if position > segment.end or (position == segment.end and place < len(segments) - 1):
            raise StorageDamagedError(f"{segment} ends before position {position}", self._resume(place + 1))
        return segment

    def _end_of(self, place: int) -> int:
        """Where a segment ends: at the base of the next."""
        segments = self.segments()
        return segments[place + 1].base if place + 1 < len(segments) else self.end

    def _resume(self, place: int) -> int:
        segments = self.segments()
        return segments[place].base if place < len(segments) else self.end

    def _visible_segments(self) -> Iterator[Segment]:
        """The segments with something visible, loaded, but for those that cannot be."""
        for place, segment in enumerate(self.segments()):
            if segment.base >= self.visible:
                return
            try:
                segment.load(self._end_of(place))
            except StorageDamagedError as error:
                _log.warning("passed over: %s", error)
            else:
                yield segment

    def _remember(self, segment: Segment, spot: Spot) -> None:
        """Note where a reader will go on."""
        if spot.position == segment.end and segment is not self.segments()[-1]:
            return
        self._spots[spot.position] = segment, spot
        if len(self._spots) > SPOTS_MAX:
            del self._spots[next(iter(self._spots))]

    # Its life

    def segments(self) -> list[Segment]:
        """Its segments, the oldest first; wakes the log."""
        if self._segments is None:
            self.wake()
        return cast("list[Segment]", self._segments)

    def wake(self) -> None:
        """Find out what its files hold, recovering them if they were not left in order."""
        self._segments, self.start, self.end = self._store.recover(self)
        self.size = sum(each.held if each.loaded else each.measure() for each in self._segments)
        self.show(self.end)

    def show(self, position: int) -> None:
        """Let readers see all up to the end, which is this position."""
        last = self._segments[-1] if self._segments else None
        self.visible = position
        self.visible_segment = last
        self.visible_spot = Spot(last.size, last.end, last.entries) if last is not None else Spot(0, 0, 0)
        self._spots.clear()

    def fail(self, failure: StorageError) -> None:
        """Something was not made durable; if that was an entry, take no more."""
        if isinstance(failure, StorageFailedError) and self.failure is None:
            self.failure = failure

    def committed(self, write: Write) -> None:
        """What it wrote in a round is durable, unless it has failed."""
        if self._system or self.deleted or write.error is not None:
            return
        for part in write.parts:
            if part.segment.rewound == part.rewound:
                part.segment.rewound = 0
        last = write.parts[-1]
        self.visible = last.end
        self.visible_segment = last.segment
        self.visible_spot = Spot(last.stop, last.end, last.entries)

    def point(self) -> Point | None:
        """What a clean stop should remember of it; None when its files were not touched."""
        if not self._segments:
            return None
        last = self._segments[-1]
        return Point(1, self.start, self.end, last.base, last.size, self.size)

    def settle(self) -> None:
        """Write what makes the next start quick, before a clean stop."""
        if self._segments:
            self._segments[-1].summarise()
            if self._system:
                self._committer.gathering.dirtied(self, self._segments[-1])

    def close(self) -> None:
        """Let go of files and memory that can be had again; what was appended stays the committer's to make durable."""
        self._spots.clear()
        for segment in self._segments or ():
            segment.handle.rest()

    def delete(self) -> None:
        """Remove its files; the object is of no use afterwards. Slices that are out stay good."""
        if self.deleted:
            return
        segments = self.segments()
        self.deleted = True
        self._segments = []
        self._spots.clear()
        self.start = self.end = self.visible = self.size = 0
        for segment in segments:
            segment.handle.remove()

        def forget(syncer: Syncer) -> None:
            syncer.forget(self.key)
            syncer.remove(self.key, segments)

        self._committer.gathering.orders.append(forget)
        self._store.forget(self.key)

    def __repr__(self) -> str:
        state = "failed" if self.failure else "asleep" if self._segments is None else f"{len(self._segments)} segments"
        return f"<PartitionLog {self.name}, {self.start} to {self.visible} of {self.end}, {self.size} bytes, {state}>"
