"""A log on a disk that can crash, with everything a test wants to do to it in one short call."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import ClassVar
from uuid import UUID

import pytest

from penstock.broker.log import rounds, segment, side, syncer
from penstock.broker.log.commit import Committer, FsyncPolicy
from penstock.broker.log.disk import Disk
from penstock.broker.log.partition import PartitionLog, Place
from penstock.broker.log.store import LogSettings, LogStore
from penstock.message import Position
from penstock.wire.entry import EntryFormat
from penstock.wire.kafka.checksum import batch_checksum
from penstock.wire.kafka.layout import CHECKED_PART
from penstock.wire.kafka.log_format import PLACED, KafkaLogFormat
from tests.broker.log.crash_disk import CrashDisk
from tests.broker.log.toy_format import TOY

KAFKA = KafkaLogFormat()
FOLDER = Path("/data")
TOPIC = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)


SMALL = {
    (rounds, "LOG_BYTES_MAX"): 400,
    (rounds, "COPIED_BYTES_MAX"): 700,
    (syncer, "BLOCK_BYTES_MAX"): 600,
    (syncer, "POINTS_EVERY_BYTES"): 4000,
    (segment, "INDEX_BYTES"): 200,
    (side, "FLUSH_BYTES"): 64,
}
"""Limits so low that a few entries reach them."""


def small(patch: pytest.MonkeyPatch) -> None:
    """Use low limits in this test."""
    for where, value in SMALL.items():
        patch.setattr(*where, value)


def kafka_entry(payload: bytes = b"payload", count: int = 1, time_ms: int = 1000) -> bytes:
    """A batch that says its records are compressed, so that nobody asks how many fit into the payload."""
    checked = CHECKED_PART.pack(1, count - 1, time_ms, time_ms, -1, -1, -1, count)
    head = PLACED.pack(0, 49 + len(payload), -1) + struct.pack(">bI", 2, batch_checksum(checked, payload))
    return head + checked + payload


class Kit:
    """A data folder, its committer without a thread, and logs."""

    made: ClassVar[list[Kit]] = []
    """Those that were not closed yet; `conftest.py` closes them after each test."""

    def __init__(
        self,
        disk: Disk | None = None,
        policy: FsyncPolicy = FsyncPolicy.GROUP,
        settings: LogSettings | None = None,
        folder: Path = FOLDER,
    ) -> None:
        self.disk = disk or CrashDisk()
        self.policy = policy
        self.settings = settings or LogSettings()
        self.folder = folder
        self.now_ms = 1000
        self.committer = Committer(policy, threaded=False)
        self.made.append(self)
        self.start()

    def start(self) -> None:
        self.committer.abandon()
        self.committer = Committer(self.policy, threaded=False)
        self.store = LogStore(self.folder, self.disk, [KAFKA, TOY], self.settings, self.committer)

    def close(self) -> None:
        """Leave everything as it is, as a killed process does."""
        self.committer.abandon()
        self.made.remove(self)

    @property
    def crash_disk(self) -> CrashDisk:
        """The disk, where it is one that can crash."""
        assert isinstance(self.disk, CrashDisk)
        return self.disk

    def open(self, partition: int = 0, topic: UUID = TOPIC) -> PartitionLog:
        return self.store.open(topic, partition, f"tenant/space/topic-{partition}")

    def append(
        self,
        log: PartitionLog,
        payload: bytes = b"payload",
        count: int = 1,
        time_ms: int | None = None,
        claim: str = "",
        entry_format: EntryFormat = TOY,
    ) -> Place:
        time_ms = self.now_ms if time_ms is None else time_ms
        entry = (
            TOY.make(payload, count, time_ms, claim) if entry_format is TOY else kafka_entry(payload, count, time_ms)
        )
        return log.append(entry_format, entry, entry_format.check(entry), self.now_ms)

    def commit(self) -> Exception | None:
        """Make all that was appended durable; the outcome."""
        outcomes: list[Exception | None] = []
        self.committer.wait(self.committer.submit(done=outcomes.append))
        assert len(outcomes) == 1
        return outcomes[0]

    def crash(self, seed: int = 0) -> None:
        """Lose power, and start again."""
        assert isinstance(self.disk, CrashDisk)
        self.disk = self.disk.crash(Random(seed))
        self.start()

    def kill(self) -> None:
        """Kill the process, and start again."""
        assert isinstance(self.disk, CrashDisk)
        self.disk = self.disk.kill()
        self.start()

    def restart(self) -> None:
        """Stop cleanly, and start again."""
        self.store.close()
        self.start()

    def payloads(self, log: PartitionLog, position: int | None = None, limit: int | None = None) -> list[bytes]:
        """The payloads of all entries that can be read."""
        found = []
        for each in log.entries(log.start if position is None else position, limit):
            entry = self.disk.read(each.fd, each.size, each.offset)
            entry_format = next(seg.format for seg in reversed(log.segments()) if seg.base <= as_int(each.header.first))
            assert entry_format.check(entry) == each.header
            found.append(payload_of(entry, entry_format))
        return found

    def sliced(self, log: PartitionLog, position: int, bytes_max: int = 1 << 20, limit: int | None = None) -> bytes:
        """What `read` gives, as bytes."""
        found = log.read(position, bytes_max, limit)
        if found is None:
            return b""
        data = self.disk.read(found.fd, found.size, found.offset)
        assert len(data) == found.size
        found.release()
        return data


def payload_of(entry: bytes, entry_format: EntryFormat = TOY) -> bytes:
    """The payload of an entry, claim left out."""
    return entry[61:] if entry_format is KAFKA else entry[32 + struct.unpack_from("<I", entry, 28)[0] :]


def as_int(position: Position) -> int:
    assert isinstance(position, int)
    return position
