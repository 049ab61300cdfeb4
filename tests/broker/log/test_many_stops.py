"""A clean stop of many topics: their files are synced several at a time, and nothing is promised that is not so."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from penstock.broker.log import syncer
from penstock.broker.log.commit import Committer, FsyncPolicy
from penstock.broker.log.disk import TOGETHER_MAX, SystemDisk
from penstock.broker.log.store import LogSettings, LogStore
from tests.broker.log.crash_disk import PowerLoss
from tests.broker.log.kit import FOLDER, Kit
from tests.broker.log.test_damage import Worst
from tests.broker.log.toy_format import TOY

MANY = 100


def topic(number: int) -> UUID:
    return UUID(int=number + 1)


def write_to_many(kit: Kit) -> None:
    for number in range(MANY):
        kit.append(kit.open(topic=topic(number)), b"%d" % number)
    assert kit.commit() is None


def is_clean(kit: Kit) -> bool:
    return "clean" in kit.disk.names(FOLDER)


@pytest.mark.parametrize("policy", FsyncPolicy)
def test_the_names_of_many_new_folders_take_one_sync(policy: FsyncPolicy) -> None:
    kit = Kit(policy=policy)
    kit.crash_disk.syncs.clear()
    write_to_many(kit)
    kit.store.close()
    names = kit.crash_disk.syncs
    assert names.count("topics/") == 1
    assert len([name for name in names if name.endswith(".log")]) == MANY
    assert is_clean(kit)
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert [kit.payloads(kit.open(topic=topic(number))) for number in range(MANY)] == [[b"%d" % n] for n in range(MANY)]


@pytest.mark.parametrize("policy", [FsyncPolicy.GROUP, FsyncPolicy.SYSTEM])
def test_a_folder_made_after_the_others_were_named_is_named_too(policy: FsyncPolicy) -> None:
    kit = Kit(policy=policy)
    write_to_many(kit)
    kit.store.checkpoint()
    kit.commit()
    kit.append(kit.open(topic=topic(MANY)), b"late")
    kit.store.close()
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert kit.payloads(kit.open(topic=topic(MANY))) == [b"late"]


@pytest.mark.parametrize("policy", [FsyncPolicy.GROUP, FsyncPolicy.SYSTEM])
def test_one_file_that_cannot_be_synced_makes_the_stop_unclean_and_spares_the_others(policy: FsyncPolicy) -> None:
    kit = Kit(policy=policy)
    sick = kit.open(7, topic(MANY))
    kit.append(sick, b"sick")
    write_to_many(kit)
    kit.crash_disk.sick.add("7.00000000000000000000.log")
    kit.store.close()
    assert sick.failure is not None
    assert not is_clean(kit)
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert [kit.payloads(kit.open(topic=topic(number))) for number in range(MANY)] == [[b"%d" % n] for n in range(MANY)]
    if policy is FsyncPolicy.GROUP:
        assert kit.payloads(kit.open(7, topic(MANY))) == [b"sick"], "the journal has it"


@pytest.mark.parametrize("fuse", range(0, 320, 20))
def test_power_that_goes_in_the_middle_of_a_stop_takes_nothing_acknowledged(fuse: int) -> None:
    kit = Kit()
    write_to_many(kit)
    kit.crash_disk.fuse = fuse
    with contextlib.suppress(PowerLoss):
        kit.store.close()
    kit.disk = kit.crash_disk.crash(Worst())
    kit.start()
    assert [kit.payloads(kit.open(topic=topic(number))) for number in range(MANY)] == [[b"%d" % n] for n in range(MANY)]


def test_many_large_writes_of_one_round_are_synced_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer, "TOGETHER_FROM", 3)
    kit = Kit(policy=FsyncPolicy.GROUP)
    logs = [kit.open(number) for number in range(5)]
    for log in logs:
        kit.append(log, bytes(1 << 20))
    kit.crash_disk.sick.add("3.00000000000000000000.log")
    assert kit.commit() is not None
    assert [log.visible for log in logs] == [1, 1, 1, 0, 1]


# The system's disk


def works(count: int, done: list[int]) -> list[Callable[[], None]]:
    return [lambda number=number: done.append(number) for number in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("count", [0, 1, 2, TOGETHER_MAX, 200])
def test_all_is_done_once(count: int) -> None:
    done: list[int] = []
    assert SystemDisk().together(works(count, done)) == [None] * count
    assert sorted(done) == list(range(count))


def test_several_are_under_way_at_the_same_time() -> None:
    meeting = threading.Barrier(TOGETHER_MAX, timeout=30)

    def meet() -> None:
        meeting.wait()

    assert SystemDisk().together([meet] * TOGETHER_MAX) == [None] * TOGETHER_MAX


def test_each_has_its_own_outcome_and_what_was_not_foreseen_is_raised() -> None:
    def fails() -> None:
        raise OSError(errno.EIO, "no")

    def breaks() -> None:
        raise ZeroDivisionError

    done: list[int] = []
    outcomes = SystemDisk().together([*works(40, done), fails, *works(40, done)])
    assert [place for place, outcome in enumerate(outcomes) if outcome is not None] == [40]
    assert len(done) == 80
    with pytest.raises(ZeroDivisionError):
        SystemDisk().together([*works(3, done), breaks, fails])


def test_where_no_thread_can_be_begun_one_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    assert SystemDisk().together(works(50, done)) == [None] * 50
    assert done == list(range(50))


@pytest.mark.parametrize("policy", [FsyncPolicy.GROUP, FsyncPolicy.SYSTEM])
def test_many_topics_on_a_real_disk(tmp_path: Path, policy: FsyncPolicy) -> None:
    def start() -> LogStore:
        return LogStore(tmp_path, SystemDisk(), [TOY], LogSettings(), Committer(policy))

    store = start()
    for number in range(MANY):
        entry = TOY.make(b"%d" % number)
        store.open(topic(number), 0, "topic-0").append(TOY, entry, TOY.check(entry), 0)
    store.committer.wait(store.committer.submit())
    store.close()
    assert (tmp_path / "clean").exists()
    store = start()
    logs = [store.open(topic(number), 0, "topic-0") for number in range(MANY)]
    assert [log.end for log in logs] == [1] * MANY
    store.close()
