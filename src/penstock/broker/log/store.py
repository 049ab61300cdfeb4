"""The data folder: one process has it, and finds in it the logs of all partitions.

Partitions are opened when asked for; a start after a clean stop reads one file, however many there are. After any other
end the journal is replayed at once, and a partition is verified from its recovery point on when it is opened, if its
files have changed since.

Runs on: the loop thread.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from penstock.broker.log import recovery
from penstock.broker.log.commit import Committer
from penstock.broker.log.disk import Disk, read_file, replace_file, storage_error
from penstock.broker.log.journal import Journal, read_blocks
from penstock.broker.log.layout import (
    FORMAT,
    FORMAT_TEXT,
    JOURNALS,
    LOCK,
    POINTS,
    SEGMENT_HEAD_BYTES,
    TOPICS,
    LogKey,
    Point,
)
from penstock.broker.log.partition import PartitionLog
from penstock.broker.log.points import Points
from penstock.broker.log.syncer import Syncer
from penstock.broker.log.volume import Volume
from penstock.errors import ConfigError, FolderFormatError, FolderInUseError, StorageError
from penstock.wire.entry import EntryFormat

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a log's files may take; sizes and ages of segments are defaults that each partition can change."""

    segment_bytes: int = 1 << 30
    segment_age_ms: int = 7 * 24 * 3_600_000
    files_max: int | None = None
    """Descriptors that may be open for segments; None: half of what the process may have when the store is opened."""
    journal_bytes: int = 32 << 20
    """Size of each of the two journal files, reached only under load and reused from then on."""

    def __post_init__(self) -> None:
        if not SEGMENT_HEAD_BYTES < self.segment_bytes <= 1 << 31:
            raise ConfigError(
                f"segment_bytes: expected {SEGMENT_HEAD_BYTES + 1} to {1 << 31}, found {self.segment_bytes}"
            )
        for name in ("segment_age_ms", "journal_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, found {getattr(self, name)}")


class LogStore:
    """The logs in one data folder."""

    def __init__(
        self, folder: Path, disk: Disk, formats: Sequence[EntryFormat], settings: LogSettings, committer: Committer
    ) -> None:
        """Lock the folder, make what is missing, recover what was not left in order.

        FolderInUseError, StorageReadOnlyError and FolderFormatError tell why not; StorageFullError that a crash has to
        be recovered from for which there is no room.
        """
        self.settings = settings
        self.committer = committer
        self.volume = Volume(disk, folder, settings.files_max or _files_allowed() // 2, formats)
        self._logs: dict[LogKey, PartitionLog] = {}
        self._points = Points(disk, folder)
        self._closed = False
        self._lock = -1
        try:
            self._lock = _lock(disk, folder)
            _check_format(disk, folder)
            self._journal = self._recover_journal()
        except OSError as error:
            self._unlock()
            raise storage_error(error, f"{folder}") from error
        except StorageError:
            self._unlock()
            raise
        committer.attach(Syncer(self.volume, committer.policy, self._journal, self._points), self._settle)

    def open(self, topic_id: UUID, partition: int, name: str) -> PartitionLog:
        """A partition's log, always the same object; begun at position 0 when there is none yet.

        One that a clean stop left is not looked at before something is asked of it that needs its files.
        """
        key = LogKey(topic_id, partition)
        log = self._logs.get(key)
        if log is not None:
            return log
        log = PartitionLog(self, key, name)
        point = self._points.get(key)
        if point is not None and point.exact:
            log.start, log.end, log.visible, log.size = point.start, point.end, point.end, point.size
        else:
            log.wake()
        self._logs[key] = log
        return log

    def recover(self, log: PartitionLog) -> recovery.Recovered:
        """What a log's files hold, in order again."""
        point = self._points.get(log.key)
        if point is None and not self._points.lost:
            point = recovery.beginning(0)
        try:
            recovered = recovery.recover(self.volume, log.key, log.name, point)
        except OSError as error:
            raise storage_error(error, f"{log.name}: not recovered") from error
        segments, start, end = recovered
        if segments:
            last = segments[-1]
            self._points.put(log.key, Point(0, start, end, last.base, last.size, 0))
        return recovered

    def logs(self) -> Iterator[PartitionLog]:
        """The logs that were opened."""
        return iter(list(self._logs.values()))

    def topic_ids(self) -> list[UUID]:
        """The topics that have files here, opened or not: for finding those that nobody knows any more."""
        found = []
        for name in self.volume.disk.names(self.volume.topics_path):
            with contextlib.suppress(ValueError):
                found.append(UUID(hex=name))
        return found

    def delete(self, topic_id: UUID) -> None:
        """Remove all partitions of a topic; readers that hold a slice keep their file until they release it."""
        opened = [log for key, log in self._logs.items() if key.topic_id == topic_id]
        for log in opened:
            log.delete()
        folder = self.volume.topic(topic_id).path
        self.volume.forget_topic(topic_id)

        def remove(syncer: Syncer) -> None:
            syncer.remove_topic(topic_id, folder)

        self.committer.gathering.orders.append(remove)

    def forget(self, key: LogKey) -> None:
        """A log was deleted."""
        self._logs.pop(key, None)

    def checkpoint(self) -> None:
        """Have the commit thread sync what is only in the journal, and write recovery points; returns at once."""
        self.committer.order(lambda syncer: syncer.checkpoint())

    def close(self) -> None:
        """Close the committer if that is not done yet, let go of all files and of the folder."""
        if self._closed:
            return
        self._closed = True
        self.committer.close()
        self._let_go()

    def abandon(self) -> None:
        """Let go of everything as if the process were killed: the next start finds an unclean end."""
        if not self._closed:
            self._closed = True
            self.committer.abandon()
            self._let_go()

    def _let_go(self) -> None:
        self._journal.close()
        self.volume.handles.close_all()
        self._unlock()

    def _settle(self) -> None:
        """Before the last round: have everything written that makes the next start quick."""
        logs = list(self._logs.values())
        for log in logs:
            log.settle()
        points = [(log.key, point) for log in logs if (point := log.point()) is not None]
        self.committer.gathering.orders.append(lambda syncer: syncer.close(points))

    def _recover_journal(self) -> Journal:
        disk, folder = self.volume.disk, self.volume.folder
        self._points.load()
        generation = self._points.floor
        if not self._points.clean:
            if self._points.lost:
                _log.error("damaged: %s cannot be read, all partitions are verified whole", folder / POINTS)
            blocks = read_blocks(disk, folder)
            generation = max([generation, *(block.generation for block in blocks)]) + 1  # also than torn blocks have
            recovery.replay(self.volume, self._points, blocks)
            disk.sync_folder(self.volume.topics_path)
            self._points.write(generation)
        return Journal(disk, folder, self.settings.journal_bytes, generation, 0)

    def _unlock(self) -> None:
        if self._lock >= 0:
            self.volume.disk.unlock(self._lock)
            self._lock = -1

    def __repr__(self) -> str:
        return f"<LogStore {self.volume.folder}, {len(self._logs)} logs opened, {len(self.volume.handles)} files>"


def _lock(disk: Disk, folder: Path) -> int:
    disk.make_folder(folder)
    with contextlib.suppress(PermissionError):  # a parent that may not be read, which an older folder does not need
        disk.sync_folder(folder.parent)
    try:
        return disk.lock(folder / LOCK)
    except BlockingIOError as error:
        raise FolderInUseError(f"{folder} is in use by another process") from error


def _check_format(disk: Disk, folder: Path) -> None:
    """Make a new folder ours; refuse one of another layout."""
    text = read_file(disk, folder / FORMAT)
    if text is None or not text:
        strangers = {TOPICS, POINTS, *JOURNALS} & set(disk.names(folder))
        if strangers:
            raise FolderFormatError(f"{folder} has {', '.join(sorted(strangers))}, but no file {FORMAT!r}")
        replace_file(disk, folder / FORMAT, [FORMAT_TEXT], durable=True)
    elif text != FORMAT_TEXT:
        found = text[:40].decode(errors="replace").strip()
        raise FolderFormatError(
            f"{folder} has the format {found!r}, this program knows {FORMAT_TEXT.decode().strip()!r}"
        )
    disk.make_folder(folder / TOPICS)
    disk.sync_folder(folder)


def _files_allowed() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 16
