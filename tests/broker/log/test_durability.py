"""What becomes durable by how many syncs, who sees it when, and what happens when a disk does not do its part."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.log.commit import Committer, FsyncPolicy
from penstock.broker.log.disk import SystemDisk
from penstock.broker.log.rounds import LOG_BYTES_MAX
from penstock.broker.log.store import LogSettings, LogStore
from penstock.errors import (
    ClosedError,
    FolderFormatError,
    FolderInUseError,
    StorageFailedError,
    StorageFullError,
    StorageReadOnlyError,
)
from tests.broker.log.crash_disk import CrashDisk
from tests.broker.log.kit import FOLDER, KAFKA, Kit
from tests.broker.log.test_damage import Worst
from tests.broker.log.toy_format import TOY

MANY = 50
LIMIT_S = 30.0


class CountingDisk(CrashDisk):
    """Counts the reads of files whose name has a certain end."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.reads: list[str] = []

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        self.reads.append(self._files[descriptor][1])
        return super().read(descriptor, size, offset)


# Policies


@pytest.mark.parametrize("policy", [FsyncPolicy.GROUP, FsyncPolicy.ALWAYS])
def test_readers_see_what_is_synced(policy: FsyncPolicy) -> None:
    kit = Kit(policy=policy)
    log = kit.open()
    outcomes: list[Exception | None] = []
    kit.append(log, b"one")
    assert (log.end, log.visible) == (1, 0)
    assert log.read(0, 100) is None
    kit.committer.submit(done=outcomes.append)
    assert kit.committer.run_round()
    assert (log.visible, outcomes) == (0, [])
    kit.committer.finish()
    assert (log.visible, outcomes) == (1, [None])
    kit.append(log, b"two")
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert kit.payloads(kit.open()) == [b"one"]


def test_left_to_the_system_everything_is_seen_at_once() -> None:
    kit = Kit(policy=FsyncPolicy.SYSTEM)
    log = kit.open()
    outcomes: list[Exception | None] = []
    syncs = len(kit.crash_disk.syncs)
    kit.append(log, b"one")
    assert log.visible == 1
    kit.committer.submit(done=outcomes.append)
    assert outcomes == [None]
    assert kit.crash_disk.syncs[syncs:] == []
    kit.kill()
    assert kit.payloads(kit.open()) == [b"one"]


def test_always_syncs_each_segment_once_a_round_and_no_journal() -> None:
    kit = Kit(policy=FsyncPolicy.ALWAYS)
    logs = [kit.open(number) for number in range(3)]
    for log in logs:
        kit.append(log)
    kit.commit()
    for _ in range(2):
        syncs = len(kit.crash_disk.syncs)
        for log in logs:
            for _ in range(5):
                kit.append(log, b"small")
        assert kit.commit() is None
        assert kit.crash_disk.syncs[syncs:] == [f"{number}.00000000000000000000.log" for number in range(3)]
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert [kit.open(number).end for number in range(3)] == [11] * 3


# Group commit


def test_many_small_appends_on_many_partitions_need_one_sync_a_round() -> None:
    kit = Kit()
    logs = [kit.open(number) for number in range(MANY)]
    for _ in range(4):
        syncs = len(kit.crash_disk.syncs)
        for log in logs:
            for _ in range(3):
                kit.append(log, b"small")
        assert kit.commit() is None
        assert kit.crash_disk.syncs[syncs:] == ["journal.0"]
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert all(kit.payloads(kit.open(number)) == [b"small"] * 12 for number in range(MANY))


def test_submits_while_a_round_is_under_way_share_the_next() -> None:
    kit = Kit()
    log = kit.open()
    order: list[int] = []
    for number in range(10):
        kit.append(log)
        kit.committer.submit(done=lambda _error, number=number: order.append(number))  # type: ignore[misc]
    syncs = len(kit.crash_disk.syncs)
    assert kit.committer.run_round()
    assert not kit.committer.run_round()
    kit.committer.finish()
    assert order == list(range(10))
    assert len(kit.crash_disk.syncs) == syncs + 1


def test_large_appends_are_synced_in_place_and_not_written_twice() -> None:
    kit = Kit()
    log = kit.open()
    before = bytes(kit.crash_disk.file(FOLDER / "journal.0").data)
    syncs = len(kit.crash_disk.syncs)
    kit.append(log, b"x" * (LOG_BYTES_MAX + 1))
    assert kit.commit() is None
    assert "journal.0" not in kit.crash_disk.syncs[syncs:]
    assert kit.crash_disk.syncs[syncs:].count("0.00000000000000000000.log") == 1
    assert kit.crash_disk.file(FOLDER / "journal.0").data == before
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert kit.open().end == 1


def test_journal_files_keep_their_size() -> None:
    settings = LogSettings(journal_bytes=16 * 4096)
    kit = Kit(settings=settings)
    for _ in range(60):
        for number in range(3):
            kit.append(kit.open(number), b"x" * 1000)
        assert kit.commit() is None
    for name in ("journal.0", "journal.1"):
        assert len(kit.crash_disk.file(FOLDER / name).data) <= 16 * 4096
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert [kit.open(number).end for number in range(3)] == [60] * 3


# Descriptors


def test_few_descriptors_with_many_partitions() -> None:
    kit = Kit(settings=LogSettings(files_max=10), policy=FsyncPolicy.SYSTEM)
    handles = kit.store.volume.handles
    for _ in range(2):
        for number in range(100):
            kit.append(kit.open(number), b"%d" % number)
            assert len(handles) <= 10
    for number in range(100):
        assert kit.payloads(kit.open(number)) == [b"%d" % number] * 2
        assert len(handles) <= 10


def test_pinned_files_stay_open() -> None:
    kit = Kit(settings=LogSettings(files_max=8), policy=FsyncPolicy.SYSTEM)
    slices = []
    for number in range(20):
        kit.append(kit.open(number), b"%02d" % number)
        found = kit.open(number).read(0, 100)
        assert found is not None
        slices.append(found)
    for number, found in enumerate(slices):
        assert kit.disk.read(found.fd, found.size, found.offset).endswith(b"%02d" % number)
        found.release()
    kit.append(kit.open(50))
    assert len(kit.store.volume.handles) <= 8


# Disks that fail


@pytest.mark.parametrize("policy", list(FsyncPolicy))
def test_full_disk(policy: FsyncPolicy) -> None:
    kit = Kit(policy=policy)
    log = kit.open()
    kit.append(log, b"before")
    kit.commit()
    disk = kit.crash_disk
    size = log.size
    for room in (0, 1, 40, 99):
        disk.room = disk.used() + room
        for _ in range(2):
            with pytest.raises(StorageFullError):
                kit.append(log, b"x" * 100)
            assert (log.end, log.size) == (1, size)
            assert kit.payloads(log) == [b"before"]
    with pytest.raises(StorageFullError):
        kit.append(kit.open(1), b"x" * 1000)
    disk.room = None
    assert tuple(kit.append(log, b"after")) == (1, 1)
    assert tuple(kit.append(kit.open(1), b"after")) == (0, 0)
    assert kit.commit() is None
    kit.kill()
    assert kit.payloads(kit.open()) == [b"before", b"after"]
    assert kit.payloads(kit.open(1)) == [b"after"]


def test_failed_sync_ends_that_log_and_no_other() -> None:
    kit = Kit(policy=FsyncPolicy.ALWAYS)
    sick, well = kit.open(0), kit.open(1)
    for log in (sick, well):
        kit.append(log, b"before")
    assert kit.commit() is None
    kit.crash_disk.sick.add("0.00000000000000000000.log")
    kit.append(sick, b"lost")
    assert isinstance(kit.commit(), StorageFailedError)
    assert sick.visible == 1
    with pytest.raises(StorageFailedError):
        kit.append(sick)
    assert kit.payloads(sick) == [b"before"]
    kit.append(well, b"after")
    assert kit.commit() is None
    assert kit.payloads(well) == [b"before", b"after"]
    kit.store.close()
    assert "clean" not in kit.disk.names(FOLDER)


def test_journal_that_cannot_be_synced_is_done_without() -> None:
    kit = Kit()
    kit.crash_disk.sick.add("journal.0")
    for number in range(3):
        kit.append(kit.open(number), b"one")
    assert kit.commit() is None
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert [kit.open(number).end for number in range(3)] == [1] * 3


def test_read_only_disk() -> None:
    kit = Kit()
    log = kit.open()
    kit.append(log, b"before")
    kit.commit()
    kit.crash_disk.read_only = True
    with pytest.raises(StorageReadOnlyError):
        kit.append(log)
    assert kit.payloads(log) == [b"before"]
    disk = kit.crash_disk.kill()
    disk.read_only = True
    with pytest.raises(StorageReadOnlyError):
        Kit(disk)


# The folder


def test_folder_in_use(tmp_path: Path) -> None:
    first, second = Committer(threaded=False), Committer(threaded=False)
    store = LogStore(tmp_path / "data", SystemDisk(), [KAFKA, TOY], LogSettings(), first)
    with pytest.raises(FolderInUseError, match="in use"):
        LogStore(tmp_path / "data", SystemDisk(), [KAFKA, TOY], LogSettings(), second)
    store.close()
    LogStore(tmp_path / "data", SystemDisk(), [KAFKA, TOY], LogSettings(), second).close()


@pytest.mark.parametrize("text", ["penstock log 2\n", "something", "penstock log 1"])
def test_folder_of_another_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "format").write_text(text)
    with pytest.raises(FolderFormatError, match="penstock log 1"):
        Kit(SystemDisk(), folder=tmp_path)
    assert (tmp_path / "format").read_text() == text


def test_entries_of_an_unknown_format_are_refused(tmp_path: Path) -> None:
    kit = Kit(SystemDisk(), folder=tmp_path)
    kit.append(kit.open(), entry_format=TOY)
    kit.store.close()
    committer = Committer(threaded=False)
    store = LogStore(tmp_path, SystemDisk(), [KAFKA], LogSettings(), committer)
    log = store.open(kit.open().key.topic_id, 0, "topic-0")
    with pytest.raises(FolderFormatError, match="900"):
        log.read(0, 100)
    store.abandon()


# Stops


def test_clean_stop_needs_no_scan() -> None:
    kit = Kit(CountingDisk())
    for number in range(MANY):
        for each in range(5):
            kit.append(kit.open(number), b"%d" % each)
    kit.restart()
    disk = kit.disk
    assert isinstance(disk, CountingDisk)
    disk.reads.clear()
    disk.opened.clear()
    kit.restart()
    logs = [kit.open(number) for number in range(MANY)]
    assert [(log.start, log.end, log.visible) for log in logs] == [(0, 5, 5)] * MANY
    assert not [name for name in disk.opened if name.endswith((".log", ".index", ".claims"))]
    disk.reads.clear()
    assert len(kit.sliced(logs[7], 0)) == logs[7].size
    looked = [name for name in disk.reads if name.endswith(".log")]
    assert looked == ["7.00000000000000000000.log"] * 2  # its head, and what was asked for


def test_everything_is_done_before_a_stop() -> None:
    kit = Kit()
    outcomes: list[Exception | None] = []
    kit.append(kit.open(), b"one")
    kit.committer.submit(done=outcomes.append)
    kit.append(kit.open(), b"two")
    kit.store.close()
    assert outcomes == [None]
    with pytest.raises(ClosedError):
        kit.committer.submit()
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert kit.payloads(kit.open()) == [b"one", b"two"]


def test_commit_thread(tmp_path: Path) -> None:
    """The same with a thread and a real disk."""
    committer = Committer()
    store = LogStore(tmp_path, SystemDisk(), [KAFKA, TOY], LogSettings(), committer)
    log = store.open(Kit().open().key.topic_id, 0, "topic-0")
    outcomes: list[Exception | None] = []
    ticket = 0
    for number in range(200):
        entry = TOY.make(b"%d" % number)
        log.append(TOY, entry, TOY.check(entry), 0)
        ticket = committer.submit(done=outcomes.append)
    committer.wait(ticket)
    assert outcomes == [None] * 200
    assert log.visible == 200
    store.close()


def test_whoever_waits_is_not_forgotten_when_the_thread_becomes_idle_without_a_word() -> None:
    committer = Committer(FsyncPolicy.SYSTEM)
    committer._busy = True  # its last round is over and was taken, and it has not looked for another yet
    waiting = threading.Thread(target=lambda: committer.wait(committer.submit()), daemon=True)
    waiting.start()
    committer._busy = False
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


# A commit thread that cannot go on


class Stuck(sqlite3.Connection):
    """A store that can neither commit nor roll back."""

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, *given)

    def rollback(self) -> None:
        raise sqlite3.OperationalError("disk I/O error")


class Stopping(CrashDisk):
    """A disk that fails in a way that nobody foresaw, once it is told to."""

    fails = False

    def sync(self, descriptor: int) -> None:
        if self.fails:
            raise RuntimeError("unforeseen")
        super().sync(descriptor)


def store_statement(store: sqlite3.Connection) -> None:
    store.execute("CREATE TABLE things (name TEXT)")


@pytest.mark.parametrize("policy", list(FsyncPolicy))
def test_a_store_that_cannot_even_roll_back_ends_all_writing(
    policy: FsyncPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    kit = Kit(policy=policy)
    kit.committer._connect = lambda: sqlite3.connect(":memory:", factory=Stuck)
    log = kit.open()
    kit.append(log, b"before")
    assert kit.commit() is None
    outcomes: list[Exception | None] = []
    kit.committer.submit(store_statement, outcomes.append)
    kit.committer.submit(None, outcomes.append, log)
    kit.committer.wait(kit.committer.submit(store_statement, outcomes.append))
    assert [type(each) for each in outcomes if each is not None] == [StorageFailedError] * (
        2 if policy is FsyncPolicy.SYSTEM else 3
    )
    assert isinstance(kit.committer.broken, StorageFailedError)
    assert "the commit thread cannot go on" in caplog.text
    with pytest.raises(StorageFailedError, match="takes no more"):
        kit.append(log, b"refused")
    assert isinstance(kit.commit(), StorageFailedError)
    assert kit.payloads(log) == [b"before"]


def test_what_was_not_synced_when_the_commit_thread_failed_is_not_shown() -> None:
    kit = Kit(Stopping())
    log = kit.open()
    kit.append(log, b"before")
    assert kit.commit() is None
    cast(Stopping, kit.disk).fails = True
    kit.append(log, b"lost")
    assert isinstance(kit.commit(), StorageFailedError)
    assert (log.visible, log.end) == (1, 2)
    with pytest.raises(StorageFailedError):
        kit.append(kit.open(1))


def test_whoever_waits_is_told_when_the_commit_thread_fails(caplog: pytest.LogCaptureFixture) -> None:
    committer = Committer(connect=lambda: sqlite3.connect(":memory:", factory=Stuck))
    outcomes: list[Exception | None] = []
    for _ in range(2):
        committer.wait(committer.submit(store_statement, outcomes.append))
    assert [type(outcome) for outcome in outcomes] == [StorageFailedError] * 2
    assert committer.broken is not None
    committer.close()
