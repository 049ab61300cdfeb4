"""Disks that fail, fill up or lie, and folders that are not what they should be."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from penstock.broker.broker import Broker
from penstock.broker.log.disk import SystemDisk
from penstock.broker.log.partition import Place
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import FILE, Scope
from penstock.broker.topics import BROKER
from penstock.errors import FolderFormatError, FolderInUseError, StorageDamagedError
from penstock.wire.entry import Buffer
from tests.broker.batches import FORMAT, batch
from tests.broker.rig import START_MS, Rig


class FaultyDisk(SystemDisk):
    """A disk that has no room, or cannot sync, when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.sick = False

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:  # type: ignore[override]
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, buffers, offset)

    def sync(self, descriptor: int) -> None:
        if self.sick:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def rig(tmp_path: Path, disk: FaultyDisk) -> Iterator[Rig]:
    rig = Rig(tmp_path, disk=disk)
    rig.create(partitions=2)
    yield rig
    disk.full = disk.sick = False
    rig.close()


def refused(reason: Refusal) -> pytest.RaisesExc[Refused]:
    return pytest.RaisesExc(Refused, check=lambda error: error.reason is reason)


def entry(sequence: int) -> bytes:
    return batch(1, producer=7, sequence=sequence, time_ms=START_MS)


def test_a_full_disk_refuses_entries_and_serves_readers_until_there_is_room(rig: Rig, disk: FaultyDisk) -> None:
    rig.sent(entry(0))
    disk.full = True
    for _ in range(3):
        with refused(Refusal.STORAGE_FULL):
            rig.send(entry(1))
    found = rig.state().log.read(0, 1000)
    assert found is not None
    assert found.next == 1
    found.release()
    disk.full = False
    assert rig.sent(entry(1)) == Place(1, 1)
    assert rig.sent(entry(0)) == Place(0, 0)


def test_a_disk_that_cannot_sync_fails_its_round_and_takes_nothing_more(rig: Rig, disk: FaultyDisk) -> None:
    rig.sent(entry(0))
    told: list[Place | Exception] = []
    disk.sick = True
    rig.send(entry(1), told.append)
    rig.send(entry(2), told.append)
    rig.settle()
    assert [cast("Refused", each).reason for each in told] == [Refusal.STORAGE_FAILED] * 2
    assert rig.state().readable_end() == 1
    for sequence in (1, 2, 3):
        with pytest.raises(Refused):
            rig.send(entry(sequence))
    assert rig.sent(entry(0)) == Place(0, 0)
    disk.sick = False
    rig.again()
    end = rig.state().log.end
    assert rig.sent(entry(end)) == Place(end, end)


def test_who_waits_for_a_topic_learns_that_the_store_is_full(rig: Rig) -> None:
    told: list[object] = []
    db = rig.broker.committer._store
    assert db is not None
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(200):
        rig.broker.topics.create(f"{'x' * 200}-{number}", 1, now_ms=0, done=told.append)
        rig.settle()
        if isinstance(told[-1], Refused):
            break
    assert isinstance(told[-1], Refused)
    assert told[-1].reason is Refusal.STORAGE_FULL
    count = len(rig.broker.topics)
    assert rig.sent(entry(0)) == Place(0, 0)
    db.execute("PRAGMA max_page_count = 1000000")
    rig.create("room")
    assert len(rig.broker.topics) == count + 1
    rig.again()
    assert len(rig.broker.topics) == count + 1


def test_what_is_damaged_is_passed_over(rig: Rig, tmp_path: Path) -> None:
    rig.broker.topics.change(Scope("topic", "orders"), {"segment_bytes": 1024})
    rig.settle()
    for sequence in range(12):
        rig.sent(batch(1, producer=7, sequence=sequence, time_ms=START_MS, size=400))
    rig.close()
    change(tmp_path, "DELETE FROM producers")
    segments = sorted(tmp_path.glob("topics/*/0.*.log"))
    assert len(segments) > 3
    damaged = bytearray(segments[1].read_bytes())
    damaged[-900:] = bytes(900)
    segments[1].write_bytes(damaged)
    rig.open()
    assert rig.sent(batch(1, producer=7, sequence=12, time_ms=START_MS)) == Place(12, 12)
    with pytest.raises(StorageDamagedError):
        list(rig.state().log.entries(0))
    assert rig.state().log.start == 0


def test_a_damaged_topic_can_be_deleted(rig: Rig, tmp_path: Path) -> None:
    rig.sent(batch(1, time_ms=START_MS))
    rig.close()
    for path in tmp_path.glob("topics/*/0.*"):
        path.write_bytes(b"nonsense" * 100)
    rig.open()
    told: list[object] = []
    rig.broker.topics.delete("orders", told.append)
    rig.settle()
    assert len(told) == 1
    assert not isinstance(told[0], Exception)
    rig.create()
    assert rig.sent(batch(1, time_ms=START_MS)) == Place(0, 0)
    rig.again()
    assert len(rig.broker.logs.topic_ids()) == 1


def test_retention_makes_room_on_a_full_disk(rig: Rig, disk: FaultyDisk) -> None:
    rig.broker.topics.change(BROKER, {"segment_bytes": 1024, "segment_ms": 1000, "retention_ms": 3_600_000})
    rig.settle()
    for _ in range(8):
        rig.sent(batch(1, time_ms=rig.clock.wall_ms(), size=600))
    rig.pass_time(3000, 300)
    last = rig.sent(batch(1, time_ms=rig.clock.wall_ms(), size=600))
    disk.full = True
    rig.pass_time(1500, 300)
    assert rig.state().log.start == last.first
    disk.full = False


# Starts that fail


def test_a_start_that_fails_lets_go_of_the_folder(tmp_path: Path) -> None:
    settings = BrokerSettings(tmp_path)
    Broker(settings, [FORMAT], 0.0, 0).close()
    change(tmp_path, "PRAGMA user_version = 99")
    for _ in range(2):
        with pytest.raises(FolderFormatError, match="version 99"):
            Broker(settings, [FORMAT], 0.0, 0)
    change(tmp_path, "PRAGMA user_version = 1")
    Broker(settings, [FORMAT], 0.0, 0).close()


def test_a_folder_in_use_is_refused_and_stays_in_use(tmp_path: Path) -> None:
    settings = BrokerSettings(tmp_path)
    broker = Broker(settings, [FORMAT], 0.0, 0)
    for _ in range(2):
        with pytest.raises(FolderInUseError):
            Broker(settings, [FORMAT], 0.0, 0)
    broker.close()


def test_a_store_that_is_no_database_is_refused(tmp_path: Path) -> None:
    settings = BrokerSettings(tmp_path)
    Broker(settings, [FORMAT], 0.0, 0).close()
    (tmp_path / FILE).write_bytes(b"no database, surely" * 1000)
    with pytest.raises(StorageDamagedError):
        Broker(settings, [FORMAT], 0.0, 0)


def change(folder: Path, statement: str) -> None:
    db = sqlite3.connect(folder / FILE, isolation_level=None)
    db.execute(statement)
    db.close()


# Crowds


class NotingDisk(SystemDisk):
    """Notes which files are opened and which folders are looked into, and syncs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[Path] = []

    def open(self, path: Path, *, create: bool = False) -> int:
        self.touched.append(path)
        return super().open(path, create=create)

    def names(self, folder: Path) -> list[str]:
        self.touched.append(folder)
        return super().names(folder)

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


@pytest.mark.parametrize(("fsync", "end"), [("group", "stopped"), ("system", "killed")])
def test_a_start_opens_no_file_of_ten_thousand_topics(tmp_path: Path, fsync: str, end: str) -> None:
    disk, told = NotingDisk(), list[object]()
    rig = Rig(tmp_path, disk=disk, fsync=fsync)
    names = [f"topic-{number}" for number in range(10_000)]
    for name in names:
        rig.broker.topics.create(name, now_ms=START_MS, done=told.append)
    rig.settle()
    assert not [each for each in told if isinstance(each, Exception)]
    for name in names[::20]:
        rig.send(batch(1), topic=name)
    rig.settle()
    if end == "stopped":
        rig.close()
    else:
        rig.broker.logs.abandon()
        rig.broker.store.close()
    disk.touched.clear()
    rig.open()
    assert len(rig.broker.topics) == len(names)
    assert not [path for path in disk.touched if tmp_path / "topics" in path.parents]
    assert rig.sent(batch(1), topic=names[4320]).first == 1
    assert [path for path in disk.touched if tmp_path / "topics" in path.parents]
    rig.close()
