"""Every byte of the last entries is flipped, and files are cut at every byte: what is lost is what was damaged.

Each case begins with a copy of one folder, left by a process that was killed or by a clean stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from penstock.broker.log.commit import FsyncPolicy
from penstock.broker.log.layout import BLOCK, BLOCK_ALIGN, CLAIMS, INDEX, LOG, SEGMENT_HEAD_BYTES, segment_name
from penstock.broker.log.partition import PartitionLog
from penstock.broker.log.store import LogSettings
from penstock.errors import FolderFormatError, StorageDamagedError, StorageError
from penstock.wire.entry import NO_CLAIM, EntryFormat, PropertyClaim
from tests.broker.log.crash_disk import CrashDisk, Folder, Inode
from tests.broker.log.kit import FOLDER, KAFKA, TOPIC, Kit, small
from tests.broker.log.toy_format import TOY

TOPIC_FOLDER = FOLDER / "topics" / TOPIC.hex
EPOCH_BYTES = range(12, 16)
"""Of Kafka's batch: the leader epoch, which its checksum leaves out."""
FLIPS = (0x01, 0x03, 0x80, 0xFF)
COUNT = 8
SEALED_BYTES = {TOY.name: 550, KAFKA.name: 950}
"""Segments of about ten entries."""
SIDE_COUNT = 14
TAIL = 3
"""How many entries are damaged."""


class Worst(Random):
    """A loss of power that takes all that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def random(self) -> float:
        return 1.0


class Entry(NamedTuple):
    offset: int
    size: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


def twin(disk: CrashDisk) -> CrashDisk:
    """The same files on another disk."""
    return CrashDisk(disk.page, _twin(disk.root))


def _twin(folder: Folder) -> Folder:
    made = Folder()
    for name, node in folder.names.items():
        made.names[name] = _twin(node) if isinstance(node, Folder) else Inode(bytes(node.data))
    made.durable = dict(made.names)
    return made


def path_of(kind: str = LOG, base: int = 0, partition: int = 0) -> Path:
    return TOPIC_FOLDER / segment_name(partition, base, kind)


def flip(disk: CrashDisk, path: Path, at: int, mask: int) -> None:
    disk.file(path).data[at] ^= mask


def cut(disk: CrashDisk, path: Path, size: int) -> None:
    del disk.file(path).data[size:]


def fill(kit: Kit, entry_format: EntryFormat = TOY, count: int = COUNT) -> list[Entry]:
    """Append entries, each synced by itself; where they are."""
    log = kit.open()
    found = []
    for number in range(count):
        payload = b"payload %d" % number
        before = log.size
        kit.append(log, payload, claim=f"n={number}", entry_format=entry_format)
        assert kit.commit() is None
        size = log.size - before
        found.append(Entry(log.segments()[-1].size - size, size, payload))
    return found


def claims_of(log: PartitionLog) -> list[PropertyClaim]:
    return [each.header.claim for each in log.entries(log.start)]


def check_kept(kit: Kit, kept: Sequence[bytes], entry_format: EntryFormat = TOY) -> None:
    """The log holds these and no others, and takes another, which the next start finds, too."""
    log = kit.open()
    assert kit.payloads(log) == list(kept)
    assert log.end == log.visible == len(kept)
    assert log.size == sum(segment.held for segment in log.segments())
    assert tuple(kit.append(log, b"after", entry_format=entry_format)) == (len(kept), len(kept))
    assert kit.commit() is None
    kit.kill()
    log = kit.open()
    assert kit.payloads(log) == [*kept, b"after"]
    kit.close()


# The tail of a segment, nobody else having it


@pytest.fixture(params=[TOY, KAFKA], ids=["toy", "kafka"])
def tail(request: pytest.FixtureRequest) -> tuple[CrashDisk, list[Entry], EntryFormat]:
    """Entries that are synced in their file and stand behind the recovery point."""
    kit = Kit(policy=FsyncPolicy.ALWAYS)
    return kit.crash_disk, fill(kit, request.param), request.param


def test_every_byte_of_the_last_entries_flipped(tail: tuple[CrashDisk, list[Entry], EntryFormat]) -> None:
    disk, entries, entry_format = tail
    for number, entry in enumerate(entries[-TAIL:], COUNT - TAIL):
        for at in range(entry.size):
            if entry_format is KAFKA and at in EPOCH_BYTES:
                continue
            for mask in FLIPS:
                spoilt = twin(disk)
                flip(spoilt, path_of(), entry.offset + at, mask)
                kit = Kit(spoilt, FsyncPolicy.ALWAYS)
                check_kept(kit, [each.payload for each in entries[:number]], entry_format)


def test_segment_cut_at_every_byte(tail: tuple[CrashDisk, list[Entry], EntryFormat]) -> None:
    disk, entries, entry_format = tail
    for size in range(entries[-TAIL].offset, entries[-1].end + 1):
        spoilt = twin(disk)
        cut(spoilt, path_of(), size)
        kept = [each.payload for each in entries if each.end <= size]
        check_kept(Kit(spoilt, FsyncPolicy.ALWAYS), kept, entry_format)


def test_zeros_behind_every_byte(tail: tuple[CrashDisk, list[Entry], EntryFormat]) -> None:
    """A file grows before its bytes are on the disk."""
    disk, entries, entry_format = tail
    for size in range(entries[-TAIL].offset, entries[-1].end):
        spoilt = twin(disk)
        data = spoilt.file(path_of()).data
        zeroed = bytes(data[:size]).ljust(len(data), b"\0")
        same = sum(zeroed[: each.end] == data[: each.end] for each in entries)
        data[:] = zeroed
        check_kept(Kit(spoilt, FsyncPolicy.ALWAYS), [each.payload for each in entries[:same]], entry_format)


@pytest.mark.parametrize("mask", FLIPS)
def test_leader_epoch_of_a_batch_is_nobodys_to_verify(mask: int) -> None:
    kit = Kit(policy=FsyncPolicy.ALWAYS)
    entries = fill(kit, KAFKA)
    for at in EPOCH_BYTES:
        spoilt = twin(kit.crash_disk)
        flip(spoilt, path_of(), entries[-1].offset + at, mask)
        check_kept(Kit(spoilt, FsyncPolicy.ALWAYS), [each.payload for each in entries], KAFKA)


def test_head_of_a_new_segment_flipped_or_cut() -> None:
    kit = Kit(policy=FsyncPolicy.ALWAYS, settings=LogSettings(segment_bytes=200))
    entries = fill(kit)
    last = kit.open().segments()[-1].base
    assert 0 < last < COUNT
    for at in range(SEGMENT_HEAD_BYTES):
        for spoilt, cutting in ((twin(kit.crash_disk), False), (twin(kit.crash_disk), True)):
            if cutting:
                cut(spoilt, path_of(base=last), at)
            else:
                flip(spoilt, path_of(base=last), at, 0x5A)
            check_kept(Kit(spoilt, FsyncPolicy.ALWAYS), [each.payload for each in entries[:last]])


def test_segments_behind_a_damaged_entry_go_with_it() -> None:
    kit = Kit(policy=FsyncPolicy.ALWAYS, settings=LogSettings(segment_bytes=200))
    entries = fill(kit)
    bases = [segment.base for segment in kit.open().segments()]
    assert len(bases) > 2
    flip(kit.crash_disk, path_of(base=bases[1]), entries[bases[1]].offset + 40, 0xFF)
    kit.kill()
    check_kept(kit, [each.payload for each in entries[: bases[1]]])
    assert [path for path in kit.disk.names(TOPIC_FOLDER) if path.startswith(path_of(base=bases[2]).stem)] == []


def test_damage_that_the_journal_can_mend_is_mended() -> None:
    kit = Kit()
    entries = fill(kit)
    for at in range(entries[-TAIL].offset, entries[-1].end):
        spoilt = twin(kit.crash_disk)
        flip(spoilt, path_of(), at, 0x5A)
        check_kept(Kit(spoilt), [each.payload for each in entries])


# The journal, segments having nothing of it


def journal_only() -> tuple[CrashDisk, list[Entry]]:
    kit = Kit()
    entries = fill(kit)
    return kit.crash_disk.crash(Worst()), entries


def test_journal_has_all_that_was_acknowledged() -> None:
    disk, entries = journal_only()
    check_kept(Kit(disk), [each.payload for each in entries])


def test_every_byte_of_the_last_blocks_flipped() -> None:
    disk, entries = journal_only()
    path = FOLDER / "journal.0"
    data = bytes(disk.file(path).data)
    for number in range(COUNT - TAIL, COUNT):
        block = number * BLOCK_ALIGN
        size = BLOCK.size + BLOCK.unpack_from(data, block)[6]
        for at in range(size):
            for mask in FLIPS:
                spoilt = twin(disk)
                flip(spoilt, path, block + at, mask)
                check_kept(Kit(spoilt), [each.payload for each in entries[:number]])


def test_journal_cut_at_every_byte_of_the_last_block() -> None:
    disk, entries = journal_only()
    path = FOLDER / "journal.0"
    block = (COUNT - 1) * BLOCK_ALIGN
    whole = block + BLOCK.size + BLOCK.unpack_from(bytes(disk.file(path).data), block)[6]
    for size in range(block, whole + 1):
        spoilt = twin(disk)
        cut(spoilt, path, size)
        check_kept(Kit(spoilt), [each.payload for each in entries[: COUNT - (size < whole)]])


@pytest.mark.parametrize("damaged", range(3))
def test_blocks_around_a_damaged_one_count(damaged: int) -> None:
    kit = Kit()
    logs = [kit.open(number) for number in range(3)]
    for log in logs:
        kit.append(log, b"of " + log.name.encode())
        assert kit.commit() is None
    disk = kit.crash_disk.crash(Worst())
    flip(disk, FOLDER / "journal.0", damaged * BLOCK_ALIGN + BLOCK.size + 3, 0xFF)
    kit = Kit(disk)
    found = [kit.payloads(kit.open(number)) for number in range(3)]
    assert found == [[] if number == damaged else [b"of " + log.name.encode()] for number, log in enumerate(logs)]


# Index and claims


def side_files(monkeypatch: pytest.MonkeyPatch, *, clean: bool) -> CrashDisk:
    small(monkeypatch)
    kit = Kit()
    fill(kit, count=SIDE_COUNT)
    if clean:
        kit.store.close()
    return kit.crash_disk


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", [INDEX, CLAIMS])
def test_every_byte_of_index_and_claims(monkeypatch: pytest.MonkeyPatch, kind: str, clean: bool) -> None:
    disk = side_files(monkeypatch, clean=clean)
    kit = Kit(twin(disk))
    log = kit.open()
    payloads, claims = kit.payloads(log), claims_of(log)
    assert len(payloads) == SIDE_COUNT
    assert NO_CLAIM not in claims
    size = len(disk.file(path_of(kind)).data)
    assert size >= 96
    for at in range(size):
        for spoil in (flip_at, cut_at)[: 1 + (at % 5 == 0)]:
            spoilt = twin(disk)
            spoil(spoilt, path_of(kind), at)
            kit = Kit(spoilt)
            log = kit.open()
            for position in (0, 9, SIDE_COUNT - 1):
                assert kit.payloads(log, position) == payloads[position:]
            assert claims_of(log) == claims
            assert log.backlog(7)[:2] == (SIDE_COUNT - 7, SIDE_COUNT - 7)
            assert log.seek_time(1000) == (0, 1000)
            kit.close()


def flip_at(disk: CrashDisk, path: Path, at: int) -> None:
    flip(disk, path, at, 0x5A)


def cut_at(disk: CrashDisk, path: Path, at: int) -> None:
    cut(disk, path, at)


@pytest.mark.parametrize("kind", [INDEX, CLAIMS])
def test_missing_index_or_claims_are_made_again(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    disk = side_files(monkeypatch, clean=True)
    disk.remove(path_of(kind))
    kit = Kit(disk)
    log = kit.open()
    assert len(kit.payloads(log)) == SIDE_COUNT
    assert NO_CLAIM not in claims_of(log)
    assert path_of(kind).name in kit.disk.names(TOPIC_FOLDER)


@pytest.mark.parametrize("kind", [INDEX, CLAIMS])
def test_files_of_another_segment_are_not_believed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    disk = side_files(monkeypatch, clean=True)
    kit = Kit(twin(disk))
    other = kit.open(1)
    for number in range(30):
        kit.append(other, b"payload %d" % number, claim="other=1")
    kit.store.close()
    disk.file(path_of(kind)).data[:] = kit.crash_disk.file(path_of(kind, partition=1)).data
    kit = Kit(disk)
    assert all("n" in claim.same for claim in claims_of(kit.open()))


@pytest.mark.parametrize("kind", [INDEX, CLAIMS])
def test_index_and_claims_that_go_while_the_log_is_open(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    kit = Kit(side_files(monkeypatch, clean=True))
    log = kit.open()
    assert len(kit.payloads(log)) == SIDE_COUNT
    kit.disk.remove(path_of(kind))
    for position in (0, 12):
        assert [each.header.first for each in log.entries(position)] == list(range(position, SIDE_COUNT))


# Recovery points, clean mark, format


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("name", ["points", "clean"])
def test_every_byte_of_points_and_clean_mark(name: str, clean: bool) -> None:
    kit = Kit()
    entries = fill(kit)
    kit.store.checkpoint()
    kit.append(kit.open(), b"more")
    assert kit.commit() is None
    if clean:
        kit.store.close()
    elif name == "clean":
        assert name not in kit.disk.names(FOLDER)
        return
    disk = kit.crash_disk
    for at in range(len(disk.file(FOLDER / name).data)):
        for spoil in (flip_at, cut_at):
            spoilt = twin(disk)
            spoil(spoilt, FOLDER / name, at)
            check_kept(Kit(spoilt), [*(each.payload for each in entries), b"more"])


def test_lost_points_are_told_and_everything_is_verified(caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit(policy=FsyncPolicy.ALWAYS)
    entries = fill(kit)
    kit.store.close()
    flip(kit.crash_disk, FOLDER / "points", 9, 0xFF)
    flip(kit.crash_disk, path_of(), entries[3].offset + 40, 0xFF)
    kit.start()
    assert "points cannot be read" in caplog.text
    check_kept(kit, [each.payload for each in entries[:3]])


def test_points_of_an_older_stop_do_not_count_as_clean() -> None:
    kit = Kit()
    entries = fill(kit)
    kit.store.close()
    mark = bytes(kit.crash_disk.file(FOLDER / "clean").data)
    kit.start()
    kit.append(kit.open(), b"more")
    assert kit.commit() is None
    kit.store.checkpoint()
    assert kit.commit() is None
    disk = kit.crash_disk.kill()
    disk.close(disk.open(FOLDER / "clean", create=True))
    disk.file(FOLDER / "clean").data[:] = mark
    check_kept(Kit(disk), [*(each.payload for each in entries), b"more"])


def test_every_byte_of_the_format() -> None:
    kit = Kit()
    fill(kit, count=1)
    for at in range(len(kit.crash_disk.file(FOLDER / "format").data)):
        for spoil in (flip_at, cut_at):
            spoilt = twin(kit.crash_disk)
            spoil(spoilt, FOLDER / "format", at)
            with pytest.raises(FolderFormatError):
                Kit(spoilt)
            Kit.made[-1].close()


# Before the recovery point: nothing is cut


def sealed_log(monkeypatch: pytest.MonkeyPatch, entry_format: EntryFormat) -> tuple[CrashDisk, list[Entry], list[int]]:
    """A log of three segments and more, cleanly stopped; its entries, and the bases of its segments."""
    small(monkeypatch)
    kit = Kit(settings=LogSettings(segment_bytes=SEALED_BYTES[entry_format.name]))
    entries = fill(kit, entry_format, 40)
    bases = [segment.base for segment in kit.open().segments()]
    assert len(bases) > 3
    kit.store.close()
    return kit.crash_disk, entries, bases


def read_around(kit: Kit, log: PartitionLog) -> tuple[list[int], list[StorageDamagedError]]:
    """All entries that a reader gets who goes on where an error tells it to; and the errors."""
    found: list[int] = []
    errors: list[StorageDamagedError] = []
    position = log.start
    for _ in range(5):
        if position >= log.visible:
            break
        try:
            for each in log.entries(position):
                assert isinstance(each.header.first, int)
                found.append(each.header.first)
                position = each.header.first + 1
        except StorageDamagedError as error:
            errors.append(error)
            position = max(error.resume or 0, position)
    return found, errors


@pytest.mark.parametrize("entry_format", [TOY, KAFKA], ids=["toy", "kafka"])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "index lost"])
def test_every_byte_of_an_entry_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, entry_format: EntryFormat, indexed: bool
) -> None:
    disk, entries, bases = sealed_log(monkeypatch, entry_format)
    damaged = bases[1] + 2
    refused = served = 0
    for at in range(entries[damaged].size):
        spoilt = twin(disk)
        flip(spoilt, path_of(base=bases[1]), entries[damaged].offset + at, 0x5A)
        if not indexed:
            spoilt.remove(path_of(INDEX, bases[1]))
        kit = Kit(spoilt, settings=LogSettings(segment_bytes=1000))
        log = kit.open()
        found, errors = read_around(kit, log)
        assert len(errors) <= 1
        lost = sorted(set(range(40)) - set(found))
        if errors:
            refused += 1
            assert lost[0] in (damaged, damaged + 1)  # the latter when the head tells of more messages than there are
            assert lost == list(range(lost[0], errors[0].resume or 0))
            assert lost[-1] < bases[2]
            if lost[0] == damaged:
                with pytest.raises(StorageDamagedError):
                    log.read(damaged, 1)
        else:
            served += 1
            assert lost == []
        assert kit.sliced(log, 0, 1) != b""
        assert kit.sliced(log, 39, 1) != b""
        assert tuple(kit.append(log, b"after", entry_format=entry_format)) == (40, 40)
        kit.close()
    assert refused
    assert served >= len(entries[damaged].payload)


def test_index_bounds_what_a_damaged_head_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, entries, bases = sealed_log(monkeypatch, TOY)
    damaged = bases[1] + 2
    flip(disk, path_of(base=bases[1]), entries[damaged].offset + 9, 0xFF)
    kit = Kit(disk)
    found, errors = read_around(kit, kit.open())
    assert len(errors) == 1
    assert damaged < (errors[0].resume or 0) < bases[2]
    assert found[-1] == 39


def test_verify_finds_damaged_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, entries, bases = sealed_log(monkeypatch, TOY)
    for damaged in (1, bases[1] + 1, 39):
        base = max(base for base in bases if base <= damaged)
        flip(disk, path_of(base=base), entries[damaged].end - 1, 0xFF)
    log = Kit(disk).open()
    assert [error.resume for error in log.verify()] == [2, bases[1] + 2, 40]


@pytest.mark.parametrize("how", ["removed", "no head", "emptied"])
def test_a_segment_that_is_gone_takes_its_own_positions_only(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    disk, _entries, bases = sealed_log(monkeypatch, TOY)
    path = path_of(base=bases[1])
    if how == "removed":
        disk.remove(path)
    elif how == "no head":
        flip(disk, path, 20, 0xFF)
    else:
        cut(disk, path, 0)
    kit = Kit(disk, settings=LogSettings(segment_bytes=1000))
    log = kit.open()
    found, errors = read_around(kit, log)
    assert sorted(set(range(40)) - set(found)) == list(range(bases[1], bases[2]))
    assert [error.resume for error in errors] == [bases[2]]
    assert tuple(kit.append(log, b"after")) == (40, 40)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_last_segment_that_lost_what_was_synced(clean: bool) -> None:
    """Its missing positions are refused and not given again."""
    kit = Kit(policy=FsyncPolicy.ALWAYS)
    entries = fill(kit)
    kit.store.checkpoint()
    assert kit.commit() is None
    if clean:
        kit.store.close()
    for size in range(entries[-TAIL].offset, entries[-1].end):
        spoilt = twin(kit.crash_disk)
        cut(spoilt, path_of(), size)
        again = Kit(spoilt, FsyncPolicy.ALWAYS)
        log = again.open()
        assert log.end == COUNT
        whole = sum(each.end <= size for each in entries)
        found, errors = read_around(again, log)
        assert found == list(range(whole))
        assert [error.resume for error in errors] == [COUNT]
        assert tuple(again.append(log, b"after")) == (COUNT, COUNT)
        assert again.commit() is None
        again.kill()
        log = again.open()
        assert read_around(again, log)[0] == [*range(whole), COUNT]
        again.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_last_segment_that_is_gone(monkeypatch: pytest.MonkeyPatch, clean: bool) -> None:
    """The one before it takes no entries in its place."""
    disk, _entries, bases = sealed_log(monkeypatch, TOY)
    disk.remove(path_of(base=bases[-1]))
    if not clean:
        disk.remove(FOLDER / "clean")
    kit = Kit(disk, settings=LogSettings(segment_bytes=SEALED_BYTES[TOY.name]))
    for end in (40, 41):
        log = kit.open()
        assert log.end == end
        assert tuple(kit.append(log, b"after")) == (end, end)
        assert kit.commit() is None
        assert read_around(kit, log)[0] == [*range(bases[-1]), *range(40, end + 1)]
        kit.kill()


@pytest.mark.parametrize("drop", ["retention", "deletion"])
def test_a_last_segment_without_a_head_can_be_dropped(monkeypatch: pytest.MonkeyPatch, drop: str) -> None:
    disk, _entries, bases = sealed_log(monkeypatch, TOY)
    flip(disk, path_of(base=bases[-1]), 20, 0xFF)
    kit = Kit(disk)
    log = kit.open()
    assert log.end == 40
    if drop == "retention":
        log.enforce_retention(10**9, None, 0, None)
    else:
        log.delete_before(40)
    assert kit.commit() is None
    assert (log.start, log.end) == (40, 40)
    kit.kill()
    log = kit.open()
    assert (log.start, log.end) == (40, 40)
    assert tuple(kit.append(log, b"after")) == (40, 40)


def everything_of(log: PartitionLog) -> list[object]:
    """What can be asked of a log, each for positions throughout."""
    told: list[object] = []
    for position in range(log.start, log.end, 3):
        found = log.read(position, 200)
        assert found is not None
        told.append(found[1:6])
        found.release()
        told += [log.backlog(position), next(iter(log.entries(position))).header]
    return [*told, *map(log.seek_time, range(0, 2000, 100)), log.latest_time()]


@pytest.mark.parametrize(("kind", "when"), [(INDEX, "asleep"), (INDEX, "awake"), (CLAIMS, "asleep")])
def test_an_index_on_a_bad_sector_is_made_anew(monkeypatch: pytest.MonkeyPatch, kind: str, when: str) -> None:
    disk, _entries, bases = sealed_log(monkeypatch, TOY)
    kit = Kit(disk)
    expected = everything_of(kit.open())
    if when == "asleep":
        kit.restart()
    for base in bases:
        disk.file(path_of(kind, base)).unreadable = True
    assert everything_of(kit.open()) == expected


@pytest.mark.parametrize("when", ["asleep", "awake"])
@pytest.mark.parametrize("end", [".log", ".index"])
def test_without_descriptors_reading_is_refused_until_there_are_some(
    monkeypatch: pytest.MonkeyPatch, end: str, when: str
) -> None:
    disk, _entries, _bases = sealed_log(monkeypatch, TOY)
    kit = Kit(disk, settings=LogSettings(files_max=8))
    expected = everything_of(kit.open())
    if when == "asleep":
        kit.restart()
    kit.open().close()
    disk.unopened.add(end)
    with pytest.raises(StorageError):
        everything_of(kit.open())
    disk.unopened.clear()
    assert everything_of(kit.open()) == expected


def test_entries_on_a_bad_sector_are_refused_and_told_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _entries, bases = sealed_log(monkeypatch, TOY)
    kit = Kit(disk)
    log = kit.open()
    expected = everything_of(log)
    spoilt = disk.file(path_of(base=bases[1]))
    spoilt.unreadable = True
    with pytest.raises(StorageDamagedError, match="Input/output error"):
        log.read(bases[1] + 1, 100)
    assert log.read(bases[2] + 1, 100) is not None
    spoilt.unreadable = False
    assert everything_of(log) == expected


def test_nothing_is_written_over_when_neither_index_nor_entries_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    kit = Kit()
    entries = fill(kit, TOY, 40)
    log, disk = kit.open(), kit.crash_disk
    disk.remove(path_of(INDEX))
    disk.file(path_of()).unreadable = True
    with pytest.raises(StorageDamagedError, match="Input/output error"):
        log.read(5, 1)
    disk.file(path_of()).unreadable = False
    assert tuple(kit.append(log, b"after")) == (40, 40)
    assert kit.commit() is None
    for _ in range(2):
        log = kit.open()
        assert kit.payloads(log) == [*(each.payload for each in entries), b"after"]
        kit.kill()
