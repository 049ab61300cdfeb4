"""One log: reading by position and time, rolling, retention, dropping, cutting."""

from __future__ import annotations

import pytest

from penstock.broker.log.commit import FsyncPolicy
from penstock.broker.log.partition import Backlog
from penstock.broker.log.store import LogSettings
from penstock.errors import ConfigError, PositionError, StorageFailedError
from penstock.wire.entry import EntryFormat
from tests.broker.log.kit import FOLDER, KAFKA, TOPIC, Kit, small
from tests.broker.log.toy_format import TOY

TOPIC_FOLDER = FOLDER / "topics" / TOPIC.hex
ENTRY_BYTES = 40
"""An entry with a payload of eight bytes."""
TEN = LogSettings(segment_bytes=64 + 10 * ENTRY_BYTES)


def filled(count: int = 35, settings: LogSettings = TEN, policy: FsyncPolicy = FsyncPolicy.GROUP) -> Kit:
    """A log with entries of one message, ten to a segment, entry n with time 1000 + n."""
    kit = Kit(policy=policy, settings=settings)
    for number in range(count):
        kit.append(kit.open(), b"%08d" % number, time_ms=1000 + number)
    assert kit.commit() is None
    return kit


def bases(kit: Kit) -> list[int]:
    return [segment.base for segment in kit.open().segments()]


# Reading


def test_read_begins_with_the_entry_that_holds_the_position() -> None:
    kit = Kit()
    log = kit.open()
    for count in (3, 1, 5):
        kit.append(log, count=count)
    kit.commit()
    for position, first in ((0, 0), (2, 0), (3, 3), (4, 4), (8, 4)):
        found = log.read(position, 1)
        assert found is not None
        assert found.first == first
        assert TOY.glance(kit.disk.read(found.fd, 32, found.offset)).first == first
        found.release()
    assert log.read(9, 100) is None


@pytest.mark.parametrize(("bytes_max", "entries"), [(0, 1), (1, 1), (40, 1), (79, 1), (80, 2), (400, 10), (4000, 10)])
def test_read_gives_whole_entries_of_one_file(monkeypatch: pytest.MonkeyPatch, bytes_max: int, entries: int) -> None:
    small(monkeypatch)
    kit = filled()
    for position in (0, 10, 20):
        assert len(kit.sliced(kit.open(), position, bytes_max)) == entries * ENTRY_BYTES


def test_read_ends_before_the_limit() -> None:
    kit = filled(8)
    log = kit.open()
    assert len(kit.sliced(log, 2, 4000, 5)) == 3 * ENTRY_BYTES
    assert log.read(2, 4000, 2) is None
    kit.append(log, count=4)
    kit.commit()
    assert log.read(8, 4000, 11) is None  # the entry reaches beyond it
    assert log.read(8, 4000, 12) is not None


def test_positions_outside_are_refused() -> None:
    kit = filled(35)
    log = kit.open()
    log.delete_before(12)
    for position in (-1, 0, 11, 36):
        with pytest.raises(PositionError):
            log.read(position, 100)
        with pytest.raises(PositionError):
            list(log.entries(position))
    assert log.read(35, 100) is None
    assert list(log.entries(35)) == []


def test_two_formats_in_one_log() -> None:
    kit = Kit()
    log = kit.open()
    formats: tuple[EntryFormat, ...] = (TOY, KAFKA, KAFKA, TOY)
    for number, entry_format in enumerate(formats):
        kit.append(log, b"%d" % number, entry_format=entry_format)
    kit.commit()
    assert bases(kit) == [0, 1, 3]
    assert kit.payloads(log) == [b"0", b"1", b"2", b"3"]
    kit.kill()
    assert kit.payloads(kit.open()) == [b"0", b"1", b"2", b"3"]


# By time


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_seek_time_is_the_first_entry_that_reaches_it(
    monkeypatch: pytest.MonkeyPatch, indexed: bool, restarted: bool
) -> None:
    if indexed:
        small(monkeypatch)
    times = [50, 30, 70, 70, 10, 90, 20, 90, 5, 60] * 3
    kit = Kit(settings=TEN)
    for time in times:
        kit.append(kit.open(), b"%08d" % time, time_ms=time)
    kit.commit()
    if restarted:
        kit.restart()
    log = kit.open()
    for wanted in range(100):
        expected = next(((place, time) for place, time in enumerate(times) if time >= wanted), None)
        assert log.seek_time(wanted) == expected
    assert log.latest_time() == (5, 90)
    for position in range(len(times) + 1):
        left = list(enumerate(times))[position:]
        for wanted in (0, 60, 90, 91):
            assert log.seek_time(wanted, position) == next((each for each in left if each[1] >= wanted), None)
        assert log.latest_time(position) == max(left, key=lambda each: each[1], default=None)


def test_seek_time_sees_what_is_there_and_visible() -> None:
    kit = filled(35)
    log = kit.open()
    log.delete_before(15)
    assert log.seek_time(0) == (15, 1015)
    kit.append(log, time_ms=5000)
    assert log.seek_time(5000) is None
    assert log.latest_time() == (34, 1034)
    kit.commit()
    assert log.seek_time(5000) == log.latest_time() == (35, 5000)


def test_log_without_entries_has_no_times() -> None:
    log = Kit().open()
    assert log.seek_time(0) is None
    assert log.latest_time() is None


# Rolling


def test_roll_by_size() -> None:
    assert bases(filled(35)) == [0, 10, 20, 30]


def test_entry_larger_than_a_segment_has_one_of_its_own() -> None:
    kit = Kit(settings=TEN)
    log = kit.open()
    for size in (8, 2000, 8):
        kit.append(log, b"x" * size)
    kit.commit()
    assert bases(kit) == [0, 1, 2]
    assert [len(each) for each in kit.payloads(log)] == [8, 2000, 8]


def test_roll_by_age() -> None:
    kit = Kit(settings=LogSettings(segment_age_ms=100))
    log = kit.open()
    kit.append(log)
    kit.now_ms += 100
    kit.append(log)
    assert not log.maybe_roll(kit.now_ms)
    kit.now_ms += 1
    assert log.maybe_roll(kit.now_ms)
    assert not log.maybe_roll(kit.now_ms + 1000)  # nothing is in it
    kit.append(log)
    kit.now_ms += 2000
    kit.append(log)
    kit.commit()
    assert bases(kit) == [0, 2, 3]


def test_clock_that_goes_back_rolls_nothing() -> None:
    kit = Kit(settings=LogSettings(segment_age_ms=100))
    for now_ms in (5000, 10, 4000):
        kit.now_ms = now_ms
        kit.append(kit.open())
    assert bases(kit) == [0]


@pytest.mark.parametrize("settings", [{"segment_bytes": 64}, {"segment_age_ms": 0}, {"journal_bytes": 0}])
def test_settings_without_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LogSettings(**settings)


# Retention


@pytest.mark.parametrize(
    ("bytes_max", "start"), [(35 * 40, 0), (26 * 40, 0), (25 * 40, 10), (24 * 40, 10), (5 * 40, 30), (0, 30)]
)
def test_retention_by_size_drops_whole_segments(bytes_max: int, start: int) -> None:
    kit = filled()
    log = kit.open()
    assert log.enforce_retention(5000, bytes_max, None, None) == start
    kit.commit()
    assert (log.start, log.end, log.size) == (start, 35, (35 - start) * ENTRY_BYTES)
    for _ in range(2):
        assert kit.payloads(kit.open()) == [b"%08d" % number for number in range(start, 35)]
        kit.kill()
    assert len([name for name in kit.disk.names(TOPIC_FOLDER) if name.endswith(".log")]) == 4 - start // 10


@pytest.mark.parametrize(("age", "start"), [(1000, 0), (991, 0), (990, 10), (980, 20), (970, 30), (965, 35), (0, 35)])
def test_retention_by_time_goes_by_the_newest_in_a_segment(age: int, start: int) -> None:
    kit = filled()
    log = kit.open()
    assert log.enforce_retention(2000, None, age, None) == start
    kit.commit()
    assert (log.start, log.end) == (start, 35)
    kit.kill()
    log = kit.open()
    assert (log.start, log.end) == (start, 35)
    assert tuple(kit.append(log)) == (35, 35)


def test_retention_keeps_what_is_wanted_or_not_visible() -> None:
    kit = filled()
    log = kit.open()
    assert log.enforce_retention(10**6, 0, 0, 15) == 10
    assert log.start == 10
    kit.append(log)
    assert log.enforce_retention(10**6, None, 0, None) == 20
    assert log.start == 30


@pytest.mark.parametrize("policy", list(FsyncPolicy))
@pytest.mark.parametrize("count", [5, 35])
def test_retention_frees_a_full_disk(count: int, policy: FsyncPolicy) -> None:
    """There is no room for the segment that is to follow the last: the log does without, and positions go on."""
    kit = filled(count, policy=policy)
    log, disk = kit.open(), kit.crash_disk
    disk.room = disk.used()
    assert log.enforce_retention(10**6, None, 0, None) == count
    assert kit.commit() is None
    assert (log.start, log.end, log.visible, log.size) == (count, count, count, 0)
    assert disk.names(TOPIC_FOLDER) == []
    assert log.read(count, 100) is None
    assert log.backlog(count) == Backlog(0, 0, 0)
    kit.kill()
    kit.restart()
    log = kit.open()
    assert (log.start, log.end, log.visible) == (count, count, count)
    assert tuple(kit.append(log, b"after")) == (count, count)
    assert kit.commit() is None
    assert kit.payloads(log) == [b"after"]
    kit.kill()
    assert kit.payloads(kit.open()) == [b"after"]


def test_deleting_everything_frees_a_full_disk() -> None:
    kit = filled(5)
    log, disk = kit.open(), kit.crash_disk
    disk.room = disk.used()
    log.delete_before(5)
    assert kit.commit() is None
    assert disk.names(TOPIC_FOLDER) == []
    assert tuple(kit.append(log, b"after")) == (5, 5)


def test_slices_outlive_what_retention_drops() -> None:
    kit = filled()
    log = kit.open()
    found = log.read(3, 80)
    assert found is not None
    log.enforce_retention(10**6, 0, None, None)
    kit.commit()
    assert log.start == 30
    assert not [name for name in kit.disk.names(TOPIC_FOLDER) if name.startswith("0.00000000000000000000")]
    assert kit.disk.read(found.fd, found.size, found.offset)[32:40] == b"00000003"
    found.release()
    with pytest.raises(KeyError):
        kit.disk.read(found.fd, 1, 0)


# Dropping and cutting


@pytest.mark.parametrize("position", [0, 1, 10, 15, 34, 35, 99])
def test_delete_before(position: int) -> None:
    kit = filled()
    log = kit.open()
    log.delete_before(position)
    kit.commit()
    start = min(position, 35)
    for _ in range(2):
        log = kit.open()
        assert (log.start, log.end) == (start, 35)
        assert kit.payloads(log) == [b"%08d" % number for number in range(start, 35)]
        kit.kill()
    log = kit.open()
    assert tuple(kit.append(log, b"after")) == (35, 35)
    log.delete_before(0)
    assert log.start == start


@pytest.mark.parametrize("position", [0, 5, 10, 29, 30, 34, 35])
@pytest.mark.parametrize("policy", list(FsyncPolicy))
def test_truncate(position: int, policy: FsyncPolicy) -> None:
    kit = filled(policy=policy)
    log = kit.open()
    log.truncate(position)
    kept = [b"%08d" % number for number in range(position)]
    assert (log.end, log.visible, log.size) == (position, position, position * ENTRY_BYTES)
    assert kit.payloads(log) == kept
    assert tuple(kit.append(log, b"another!")) == (position, position)
    kit.commit()
    kit.kill()
    assert kit.payloads(kit.open()) == [*kept, b"another!"]


def test_truncate_takes_an_entry_whole() -> None:
    kit = Kit()
    log = kit.open()
    for count in (2, 5, 1):
        kit.append(log, count=count)
    kit.commit()
    log.truncate(4)
    assert log.end == 2
    log.truncate(50)
    assert log.end == 2


@pytest.mark.parametrize("position", [0, 7, 10, 25, 34, 35])
def test_backlog(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    small(monkeypatch)
    waiting = 35 - position
    log = filled().open()
    assert log.backlog(position) == Backlog(waiting, waiting, waiting * ENTRY_BYTES)
    assert log.backlog(position, 0) == Backlog(0, 0, 0)
    if position < 20:
        assert log.backlog(position, 20)[:2] == (20 - position, 20 - position)


def test_backlog_counts_messages_from_inside_an_entry() -> None:
    kit = Kit()
    log = kit.open()
    for count in (4, 4):
        kit.append(log, count=count)
    kit.commit()
    assert log.backlog(3)[:2] == (2, 5)


def test_deleted_log() -> None:
    kit = filled()
    log = kit.open()
    found = log.read(0, 40)
    assert found is not None
    log.delete()
    log.delete()
    with pytest.raises(StorageFailedError, match="deleted"):
        kit.append(log)
    kit.commit()
    assert kit.disk.names(TOPIC_FOLDER) == []
    assert len(kit.disk.read(found.fd, found.size, found.offset)) == found.size
    found.release()
    again = kit.open()
    assert again is not log
    assert tuple(kit.append(again, b"new")) == (0, 0)
    kit.commit()
    kit.kill()
    assert kit.payloads(kit.open()) == [b"new"]


def test_deleted_topic() -> None:
    """After a crash the journal may bring files of it back, for whoever knows the topics to delete again."""
    kit = filled()
    kit.append(kit.open(1))
    kit.commit()
    kit.store.delete(TOPIC)
    kit.commit()
    assert kit.store.topic_ids() == []
    kit.kill()
    for topic_id in kit.store.topic_ids():
        kit.store.delete(topic_id)
    kit.commit()
    assert kit.store.topic_ids() == []
    kit.restart()
    assert kit.store.topic_ids() == []
    assert (kit.open().start, kit.open().end) == (0, 0)
