"""How a round becomes durable: in the segments' own files, or through the journal.

| what a log wrote in a round | becomes durable by |
|---|---|
| much, or anything under ALWAYS | a sync of its segment, and of the folder if the file is new in it |
| little, under GROUP | the journal: its segment is *pending*, and synced some time later |
| that it starts later than before | the journal |

Pending segments are synced some at a time while the next generation of the journal fills up, the oldest first; then the
recovery points are written and the other file of the journal is free again. If the journal cannot be written, or its
other file not be freed, everything is synced in its own place until it can.

A log whose segment could not be synced has failed: it takes no more, since the system may have dropped what it could
not write. What the journal holds of it stays there, so the journal is not written over any more.

Where very many files are to be synced, as at a stop, some threads do it that live no longer than that.

Runs on: the commit thread.
"""

from __future__ import annotations

import enum
import errno
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from penstock.broker.log.disk import Disk, storage_error
from penstock.broker.log.journal import Journal, data_item, start_item
from penstock.broker.log.layout import ITEM, LogKey, Point
from penstock.broker.log.points import Points
from penstock.broker.log.rounds import Note, Part, Round, Write
from penstock.broker.log.segment import Segment
from penstock.broker.log.volume import Volume
from penstock.errors import StorageError, StorageFailedError
from penstock.wire.entry import Buffer

if TYPE_CHECKING:
    from penstock.broker.log.partition import PartitionLog

BLOCK_BYTES_MAX: Final = 4 << 20
POINTS_EVERY_BYTES: Final = 256 << 20
"""After so many bytes synced in their own places recovery points are written, so that recovery has less to verify."""
TOGETHER_FROM: Final = 64
"""So many logs that are to be synced in their own places in one round are synced several at a time."""

_log = logging.getLogger("penstock")


class FsyncPolicy(enum.Enum):
    """When an append counts as durable; the value is the name that users write."""

    ALWAYS = "always"
    GROUP = "group"
    SYSTEM = "system"


class Pending:
    """What is durable in the journal only, of one log."""

    __slots__ = ("log", "parts", "since")

    def __init__(self, log: PartitionLog, since: int) -> None:
        self.log = log
        self.since = since
        """The oldest generation of the journal that holds some of it."""
        self.parts: list[Part] = []


class Syncer:
    """Makes rounds durable, one after the other."""

    def __init__(self, volume: Volume, policy: FsyncPolicy, journal: Journal, points: Points) -> None:
        self._disk = volume.disk
        self._volume = volume
        self._policy = policy
        self._journal = journal
        self._points = points
        self._journal_broken = False
        self._pending: dict[LogKey, Pending] = {}  # the oldest generations first
        self._failed: dict[LogKey, StorageError] = {}
        self._to_drain = 0
        self._drained = 0
        self._condemned: list[Note] = []
        self._unpointed_bytes = 0
        self._round = Round()

    def run(self, round_: Round) -> None:
        """Make a round durable and follow its orders; each write knows then whether it failed."""
        self._round = round_
        writes = [write for write in round_.writes.values() if not self._has_failed(write)]
        small = [write for write in writes if write.small] if self._policy is FsyncPolicy.GROUP else []
        if len(small) < len(writes):
            self._sync_writes([write for write in writes if write not in small])
        if small or round_.notes:
            self._write_journal(small)
        self._drain()
        if self._unpointed_bytes > POINTS_EVERY_BYTES:
            self.write_points()
        for order in round_.orders:
            try:
                order(self)
            except OSError:
                _log.exception("the log could not do its housekeeping")

    def failure(self, log: PartitionLog) -> StorageError | None:
        """Why what a log has written is not durable: it has failed, or could not be written in this round."""
        known = self._failed.get(log.key)
        return known or next((error for failed, error in self._round.failures if failed is log), None)

    # In their own places

    def _has_failed(self, write: Write) -> bool:
        error = self._failed.get(write.log.key)
        if error is not None:
            write.error = error
            self._release(write.parts)
        return error is not None

    def _sync_writes(self, writes: Sequence[Write]) -> None:
        if len(writes) < TOGETHER_FROM:
            for write in writes:
                self._sync_write(write)
            return
        errors = self._sync_logs([(write.log, write.parts) for write in writes])
        for write, error in zip(writes, errors, strict=True):
            write.error = error
            self._unpointed_bytes += write.bytes

    def _sync_write(self, write: Write) -> None:
        write.error = self._sync_log(write.log, write.parts)
        self._unpointed_bytes += write.bytes

    def _sync_log(self, log: PartitionLog, parts: Sequence[Part]) -> StorageError | None:
        """Sync what a log has written, what is pending of it included; what went wrong."""
        everything = self._all_parts(log, parts)
        try:
            self._sync_parts(everything)
        except OSError as error:
            return self._not_synced(log, parts, error)
        self._synced(log, everything)
        return None

    def _sync_logs(self, logs: Sequence[tuple[PartitionLog, Sequence[Part]]]) -> list[StorageError | None]:
        """The same for many logs, several at a time."""
        everything = [self._all_parts(log, parts) for log, parts in logs]
        outcomes = self._disk.together([partial(self._sync_parts, each) for each in everything])
        failures: list[StorageError | None] = []
        for (log, parts), each, error in zip(logs, everything, outcomes, strict=True):
            if error is None:
                self._synced(log, each)
            failures.append(None if error is None else self._not_synced(log, parts, error))
        return failures

    def _all_parts(self, log: PartitionLog, parts: Sequence[Part]) -> Sequence[Part]:
        pending = self._pending.get(log.key)
        return parts if pending is None else [*pending.parts, *parts]

    def _synced(self, log: PartitionLog, everything: Sequence[Part]) -> None:
        self._pending.pop(log.key, None)
        self._release(everything)
        last = everything[-1]
        self._points.move(log.key, last.end, last.segment.base, last.stop)

    def _not_synced(self, log: PartitionLog, parts: Sequence[Part], error: OSError) -> StorageError:
        failure = StorageFailedError(f"{log.name}: could not be synced: {error.strerror or error}")
        failure.__cause__ = error
        self._failed[log.key] = failure
        self._round.failures.append((log, failure))
        self._release(parts)
        return failure

    def _sync_parts(self, parts: Sequence[Part]) -> None:
        for descriptor in dict.fromkeys(part.descriptor for part in parts):
            self._disk.sync(descriptor)
        new = [part.segment for part in parts if not part.segment.named]
        if new:
            folder = new[0].folder
            self._disk.sync_folder(folder.path)
            if not folder.named:
                self._volume.name_folders()
            for segment in new:
                segment.named = True

    def _release(self, parts: Iterable[Part]) -> None:
        self._round.released += [part.segment.handle for part in parts]

    # Through the journal

    def _write_journal(self, writes: Sequence[Write]) -> None:
        notes = self._round.notes
        for note in notes:
            self._points.start(note.log.key, note.base, note.position)
        self._condemned += notes
        try:
            covered = self._write_blocks(writes)
        except OSError as error:
            _log.warning("the journal could not be written, segments are synced instead: %s", error)
            covered = None
        if covered is not None:
            for write, generation in covered:
                self._cover(write, generation)
            self._remove_condemned()
            return
        for write in writes:
            self._sync_write(write)
        if notes and (failure := self.write_points()) is not None:
            self._round.failures += [(note.log, failure) for note in notes]

    def _write_blocks(self, writes: Sequence[Write]) -> list[tuple[Write, int]] | None:
        """Write all of this and sync it; the generation that each write is in, or None when there is no room."""
        covered: list[tuple[Write, int]] = []
        for block in blocks_of(self._round.notes, writes, self._disk):
            if not self._make_room(block.size):
                return None
            self._journal.write(block.buffers, block.size, block.items)
            covered += [(write, self._journal.generation) for write in block.writes]
        self._sync_journal()
        return covered

    def _make_room(self, size: int) -> bool:
        journal = self._journal
        if self._journal_broken or not journal.fits(size):
            return False
        if journal.has_room(size):
            return True
        self._sync_journal()
        if not self._free_other_file():
            return False
        journal.switch()
        self._to_drain, self._drained = len(self._pending), 0
        return True

    def _free_other_file(self) -> bool:
        """Whether nothing in the journal counts any more but what is in its present file."""
        generation = self._journal.generation
        for pending in list(self._pending.values()):
            if pending.since >= generation:
                break
            self._sync_log(pending.log, ())
        if self._points.floor < generation:
            self.write_points()
        return self._points.floor >= generation

    def _sync_journal(self) -> None:
        if self._policy is FsyncPolicy.SYSTEM:
            return
        try:
            self._journal.sync()
        except OSError:
            self._journal_broken = True
            raise

    def _cover(self, write: Write, generation: int) -> None:
        """What a log wrote is durable in the journal."""
        key = write.log.key
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = Pending(write.log, generation)
        parts = write.parts
        if pending.parts and pending.parts[-1].segment is parts[0].segment:
            pending.parts[-1].extend(parts[0])
            self._release(parts[:1])
            parts = parts[1:]
        pending.parts += parts

    def _drain(self) -> None:
        """Sync some of what only an older generation holds, in step with the present one, and free its file."""
        generation = self._journal.generation
        too_many = len(self._pending) - self._volume.handles.files_max // 2
        due = self._to_drain * min(2 * self._journal.filled, 1) - self._drained
        for pending in list(itertools.islice(self._pending.values(), max(math.ceil(due), too_many, 0))):
            if pending.since >= generation and too_many <= 0:
                break
            self._sync_log(pending.log, ())
            self._drained += 1
            too_many -= 1
        if self._points.floor < generation and self._floor() == generation:
            self.write_points()

    # Recovery points

    def _floor(self) -> int:
        """The lowest generation of the journal that still counts."""
        oldest = next(iter(self._pending.values()), None)
        return self._journal.generation if oldest is None else min(oldest.since, self._journal.generation)

    def write_points(self) -> StorageError | None:
        """Write the recovery points; what went wrong, which only makes recovery longer."""
        try:
            self._points.write(self._floor())
        except OSError as error:
            _log.warning("recovery points could not be written: %s", error)
            return storage_error(error, "recovery points could not be written")
        self._unpointed_bytes = 0
        self._remove_condemned()
        return None

    # Orders

    def checkpoint(self) -> None:
        """Sync all that is pending, and write the recovery points."""
        self._sync_logs([(pending.log, ()) for pending in self._pending.values()])
        self.write_points()

    def cut(self, segment: Segment, descriptor: int, point: Point, gone: Sequence[Segment]) -> None:
        """End a log at this point, in this segment: its recovery point goes back first, then the files are cut.

        Nothing in the journal counts any more afterwards, since it might hold what was cut.
        """
        self.checkpoint()
        if self._pending:
            raise StorageFailedError("a log has failed, and the journal still has to vouch for it")
        self._points.put(segment.key, point)
        self._journal.switch()
        self._to_drain = 0
        if (failure := self.write_points()) is not None:
            raise failure
        self.remove(segment.key, gone)
        self._disk.truncate(descriptor, point.offset)
        self._disk.sync(descriptor)
        self._disk.sync_folder(segment.folder.path)

    def _remove_condemned(self) -> None:
        """Remove the segments of which it is durable that their logs start behind them."""
        condemned, self._condemned = self._condemned, []
        for note in condemned:
            try:
                self.remove(note.log.key, note.gone)
            except OSError as error:
                _log.warning("%s: segments that are not needed could not be removed: %s", note.log.name, error)

    def remove(self, key: LogKey, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that their log has no more."""
        pending = self._pending.get(key)
        if pending is not None:
            self._release(part for part in pending.parts if part.segment in segments)
            pending.parts = [part for part in pending.parts if part.segment not in segments]
            if not pending.parts:
                del self._pending[key]
        for segment in segments:
            for path in segment.paths():
                self._disk.remove(path)

    def forget(self, key: LogKey) -> None:
        """A log is deleted: its files go without being synced."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            self._release(pending.parts)
        self._points.drop(key)
        self._failed.pop(key, None)

    def remove_topic(self, topic_id: UUID, folder: Path) -> None:
        """Remove a topic's folder with all that is in it, and forget its partitions."""
        self._points.drop_topic(topic_id)
        for name in self._disk.names(folder):
            self._disk.remove(folder / name)
        self._disk.remove_folder(folder)

    def close(self, points: Iterable[tuple[LogKey, Point]]) -> None:
        """Sync all that is pending, write what is known of all logs, and the clean mark unless one has failed."""
        self.checkpoint()
        clean = not self._pending and not self._failed
        for key, point in points:
            if clean:
                self._points.put(key, point)
        self._points.write(self._journal.generation + 1 if clean else self._floor(), clean=clean)


class JournalBlock(NamedTuple):
    """A block to be written."""

    buffers: list[Buffer]
    size: int
    items: int
    writes: list[Write]


def blocks_of(notes: Sequence[Note], writes: Sequence[Write], disk: Disk) -> Iterator[JournalBlock]:
    """All of this in blocks that are not too large."""
    buffers: list[Buffer] = [start_item(note.log.key, note.base, note.position) for note in notes]
    size, count, inside = ITEM.size * len(notes), len(notes), list[Write]()
    for write in writes:
        items, items_count = items_of(write, disk)
        items_size = sum(map(len, items))
        if size and size + items_size > BLOCK_BYTES_MAX:
            yield JournalBlock(buffers, size, count, inside)
            buffers, size, count, inside = [], 0, 0, []
        buffers += items
        size += items_size
        count += items_count
        inside.append(write)
    yield JournalBlock(buffers, size, count, inside)


def items_of(write: Write, disk: Disk) -> tuple[list[Buffer], int]:
    """A write as items of the journal, and how many they are."""
    if write.copied is not None:
        return write.copied, write.appends
    items: list[Buffer] = []
    for part in write.parts:
        segment, size = part.segment, part.stop - part.start
        data = disk.read(part.descriptor, size, part.start)
        if len(data) != size:
            raise OSError(errno.EIO, f"{segment} is shorter than what was written to it")
        items += (data_item(segment.key, segment.base, part.start, size), data)
    return items, len(write.parts)
