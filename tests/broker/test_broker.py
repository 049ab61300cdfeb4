"""The broker as a whole, on a real folder: what survives a stop, what survives a crash, and its housekeeping."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.broker.cursor import Cursor
from penstock.broker.housekeeping import CLOSING_LOOK_S, LOOKS, UNUSED_S
from penstock.broker.log.partition import Place
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.store import OffsetRow, Scope
from penstock.broker.topics import BROKER
from penstock.errors import ConfigError, FolderInUseError
from penstock.wire.protocol import Identity
from tests.broker.batches import FORMAT, batch
from tests.broker.rig import START_MS, Rig

DAY_S = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def refused(reason: Refusal) -> pytest.RaisesExc[Refused]:
    return pytest.RaisesExc(Refused, check=lambda error: error.reason is reason)


def stored(rig: Rig, topic: str = "orders", number: int = 0) -> list[bytes]:
    """The entries that readers see, as they lie in the log, but for their heads."""
    log = rig.state(topic, number).log
    return [os.pread(at.fd, at.size, at.offset)[16:] for at in log.entries(log.start)]


# Publishing


def test_what_is_published_is_read(rig: Rig) -> None:
    rig.create()
    sent = [batch(count, time_ms=START_MS) for count in (1, 2, 3)]
    assert [rig.sent(entry) for entry in sent] == [Place(0, 0), Place(1, 2), Place(3, 5)]
    assert stored(rig) == [entry[16:] for entry in sent]
    assert rig.state().readable_end() == 6


def test_nothing_is_told_or_seen_before_the_round_is_over(rig: Rig) -> None:
    rig.create()
    told: list[Place | Exception] = []
    rig.send(batch(1), told.append)
    rig.send(batch(1), told.append)
    assert (told, rig.state().readable_end()) == ([], 0)
    rig.turn()
    rig.broker.committer.run_round()
    assert (told, rig.state().readable_end()) == ([], 0)
    rig.broker.finish()
    assert (told, rig.state().readable_end()) == ([Place(0, 0), Place(1, 1)], 2)


def test_who_waits_is_called_once_for_a_turn(rig: Rig) -> None:
    rig.create()
    calls: list[int] = []
    state = rig.state()
    state.wait(lambda: calls.append(state.readable_end()))
    for _ in range(3):
        rig.send(batch(1))
    rig.settle()
    assert calls == [3]


def test_where_the_system_syncs_nobody_waits_for_a_round(tmp_path: Path) -> None:
    rig = Rig(tmp_path, fsync="system")
    rig.create()
    told: list[Place | Exception] = []
    calls: list[int] = []
    rig.state().wait(lambda: calls.append(rig.state().readable_end()))
    rig.send(batch(2), told.append)
    assert told == [Place(0, 1)]
    assert calls == []
    rig.turn()
    assert calls == [2]
    rig.again()
    assert rig.state().readable_end() == 2
    rig.close()


@pytest.mark.parametrize("fsync", ["always", "group", "system"])
def test_entries_and_producers_come_back_after_a_stop(tmp_path: Path, fsync: str) -> None:
    rig = Rig(tmp_path, fsync=fsync)
    rig.create()
    first, second = batch(2, producer=7, sequence=0), batch(1, producer=7, sequence=2)
    rig.sent(first, producer_name="sender")
    rig.again()
    assert rig.sent(second) == Place(2, 2)
    assert rig.sent(first) == Place(0, 1)
    with refused(Refusal.OUT_OF_ORDER):
        rig.send(batch(1, producer=7, sequence=9))
    rig.close()


def test_partitions_are_apart(rig: Rig) -> None:
    rig.create(partitions=2)
    rig.create("acme/sales/orders")
    assert rig.sent(batch(3), number=1) == Place(0, 2)
    assert rig.sent(batch(2), topic="acme/sales/orders") == Place(0, 1)
    assert rig.sent(batch(2), topic="public/default/orders") == Place(0, 1)
    assert rig.state("public/default/orders", 1) is rig.state("orders", 1)


@pytest.mark.parametrize(
    ("topic", "number", "reason"),
    [
        ("nothing", 0, Refusal.UNKNOWN_TOPIC),
        ("orders", 2, Refusal.UNKNOWN_PARTITION),
        ("orders", -1, Refusal.UNKNOWN_PARTITION),
        ("no name", 0, Refusal.BAD_TOPIC_NAME),
    ],
)
def test_there_are_no_other_partitions(rig: Rig, topic: str, number: int, reason: Refusal) -> None:
    rig.create(partitions=2)
    with refused(reason):
        rig.state(topic, number)
    assert not rig.broker.has_partition(topic, number)
    assert rig.broker.has_partition("orders", 1)


def test_a_topic_that_grows_has_its_new_partitions(rig: Rig) -> None:
    rig.create()
    rig.sent(batch(1))
    rig.broker.topics.grow("orders", 3, lambda _: None)
    rig.settle()
    assert rig.sent(batch(1), number=2) == Place(0, 0)
    assert rig.sent(batch(1)) == Place(1, 1)


# Transactions


def identify(rig: Rig) -> Identity:
    told: list[Identity | Exception] = []
    times = rig.clock.monotonic(), rig.clock.wall_ms()
    rig.broker.transactions.identify("writer", 60_000, None, *times, told.append)
    rig.settle()
    assert isinstance(told[0], Identity)
    return told[0]


def write(rig: Rig, who: Identity, sequence: int = 0, number: int = 0) -> Place:
    entry = batch(1, who.producer, who.epoch, sequence, transactional=True, time_ms=START_MS)
    return rig.sent(entry, number=number, transactional_id="writer", enlists=True)


def end(rig: Rig, who: Identity, commit: bool) -> Identity:
    told: list[Identity | Exception] = []
    times = rig.clock.monotonic(), rig.clock.wall_ms()
    rig.broker.transactions.end("writer", who, commit, True, *times, told.append)
    rig.settle()
    assert isinstance(told[0], Identity)
    return told[0]


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_transactions_come_back_after_a_stop(rig: Rig, with_snapshot: bool) -> None:
    rig.create(partitions=2)
    who = identify(rig)
    for commit in (True, False):
        write(rig, who)
        write(rig, who, number=1)
        who = end(rig, who, commit)
    write(rig, who)
    states = [rig.state("orders", number) for number in (0, 1)]
    before = [(state.readable_end(), state.readable_end(True), state.producers.aborted(0, 9)) for state in states]
    assert [each[:2] for each in before] == [(5, 4), (4, 4)]
    assert [[(each.producer, each.first) for each in found[2]] for found in before] == [[(who.producer, 2)]] * 2
    rig.close()
    if not with_snapshot:
        db = rig.broker.store.connect()
        db.execute("DELETE FROM producers")
        db.close()
    rig.open()
    states = [rig.state("orders", number) for number in (0, 1)]
    assert before == [
        (state.readable_end(), state.readable_end(True), state.producers.aborted(0, 9)) for state in states
    ]
    end(rig, who, commit=True)
    assert rig.state().readable_end(True) == rig.state().readable_end() == 6


def test_a_partition_with_an_open_transaction_is_not_closed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, producer_idle_ms=1000)
    rig.create()
    who = identify(rig)
    write(rig, who)
    rig.state().names.clear()
    assert not rig.broker.partitions.is_idle(rig.state())
    end(rig, who, commit=True)
    assert rig.broker.partitions.is_idle(rig.state())
    rig.close()


# Deleting


def test_a_topic_that_is_created_again_starts_anew(rig: Rig) -> None:
    rig.create(partitions=2)
    entry = batch(2, producer=7, sequence=0)
    rig.sent(entry, number=1)
    rig.broker.cursors.create(rig.broker.topics.get("orders"), 1, "reader", 0, START_MS, lambda _: None)
    rig.broker.store.save_offsets([OffsetRow("group", "orders", 1, 2, -1, "", START_MS)])
    rig.settle()
    before = rig.broker.topics.get("orders").id
    calls: list[str] = []
    state = rig.state("orders", 1)
    state.wait(lambda: calls.append("woken"))
    rig.broker.topics.delete("orders", lambda _: calls.append("deleted"))
    with refused(Refusal.UNKNOWN_TOPIC):
        rig.state("orders", 1)
    rig.settle()
    assert calls == ["woken", "deleted"]
    assert state.gone
    assert rig.broker.logs.topic_ids() == []
    rig.create(partitions=2)
    assert rig.broker.topics.get("orders").id != before
    assert rig.sent(entry, number=1) == Place(0, 1)
    rig.again()
    assert list(rig.broker.store.offsets()) == []
    assert list(rig.broker.cursors.of(rig.broker.topics.get("orders"), 1)) == []
    assert rig.state("orders", 1).readable_end() == 2


def test_entries_on_their_way_when_the_topic_goes_have_an_outcome(rig: Rig) -> None:
    rig.create()
    told: list[Place | Exception] = []
    rig.send(batch(1), told.append)
    rig.broker.topics.delete("orders", lambda _: None)
    rig.settle()
    assert len(told) == 1


def test_files_without_a_topic_are_swept_at_start(rig: Rig) -> None:
    rig.create()
    rig.create("kept")
    rig.sent(batch(1))
    rig.sent(batch(1), topic="kept")
    kept = rig.broker.topics.get("kept").id
    assert len(rig.broker.logs.topic_ids()) == 2
    store = rig.broker.store
    with store.connect() as db:
        db.execute("DELETE FROM topics WHERE name = 'orders'")
    db.close()
    rig.again()
    assert rig.broker.logs.topic_ids() == [kept]
    assert rig.state("kept").readable_end() == 1


# Cursors


def test_cursors_stand_on_the_log(rig: Rig) -> None:
    rig.create()
    for count in (3, 1, 4, 2):
        rig.sent(batch(count, time_ms=rig.clock.wall_ms()))
        rig.clock.advance(1)
    cursors = rig.broker.cursors
    made: list[object] = []
    cursors.create(rig.broker.topics.get("orders"), 0, "reader", 0, START_MS, made.append)
    rig.settle()
    cursor = cast("Cursor", made[0])
    cursors.acknowledge(cursor, [(0, 2), (4, 9)], START_MS)
    assert cursor.backlog(rig.state().log)[:2] == (3, 3)
    rig.settle()
    rig.again()
    cursor = rig.broker.cursors.get(rig.broker.topics.get("orders"), 0, "reader")
    assert (cursor.position, list(cursor.ranges)) == (2, [(4, 9)])
    assert cursor.backlog(rig.state().log)[:2] == (3, 3)
    rig.broker.cursors.reset_to_time(cursor, START_MS + 1500, START_MS)
    assert cursor.position == 4
    rig.broker.cursors.reset_to_time(cursor, START_MS + 5000, START_MS)
    assert cursor.backlog(rig.state().log) == (0, 0, 0)


# Settings


def test_a_changed_setting_holds_for_open_partitions(rig: Rig) -> None:
    rig.create()
    state = rig.state()
    rig.broker.topics.change(BROKER, {"segment_bytes": 4096, "entry_bytes_max": 100})
    rig.settle()
    assert state.log.segment_bytes == 4096
    with refused(Refusal.ENTRY_TOO_LARGE):
        rig.send(batch(1, size=101))


def test_filters_are_looked_at_before_they_are_set(rig: Rig) -> None:
    rig.create()
    with refused(Refusal.BAD_SETTING):
        rig.broker.topics.change(Scope("topic", "orders"), {"entry_filters": "no_such_filter"})
    rig.broker.topics.change(Scope("topic", "orders"), {"entry_filters": "property(region = eu)"})
    rig.broker.topics.change(Scope("group", "readers"), {"entry_filters": "property(version = 1)"})
    rig.settle()
    assert rig.broker.topics.get("orders").settings.entry_filters == "property(region = eu)"
    assert rig.broker.filters.group("readers") == "property(version = 1)"
    rig.again()
    assert rig.broker.filters.group("readers") == "property(version = 1)"
    rig.broker.topics.change(Scope("group", "readers"), {}, ["entry_filters"])
    rig.settle()
    assert rig.broker.filters.group("readers") is None


def test_a_broker_does_not_start_with_filters_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_filter"):
        Rig(tmp_path, topics={"entry_filters": "no_such_filter"})


def test_the_cluster_has_one_id_for_ever(rig: Rig) -> None:
    first = rig.broker.cluster_id
    assert len(first) == 22
    rig.again()
    assert rig.broker.cluster_id == first


def test_a_folder_has_one_broker(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(FolderInUseError):
        Rig(tmp_path)
    rig.create()
    rig.sent(batch(1))


# Housekeeping


def test_old_entries_are_dropped(tmp_path: Path) -> None:
    rig = Rig(tmp_path, retention_check_ms=60_000)
    rig.create(retention_ms=3_600_000, segment_bytes=1024)
    for _ in range(10):
        rig.sent(batch(1, time_ms=rig.clock.wall_ms(), size=600))
    rig.pass_time(3000, 100)
    rig.sent(batch(1, time_ms=rig.clock.wall_ms(), size=600))
    rig.pass_time(1000, 100)
    assert rig.state().log.start == 10
    assert rig.state().readable_end() == 11
    rig.again()
    assert rig.state().log.start == 10
    rig.close()


def test_a_log_does_not_grow_beyond_its_size(tmp_path: Path) -> None:
    rig = Rig(tmp_path, retention_check_ms=60_000)
    rig.create(retention_bytes=5000, segment_bytes=1024)
    for _ in range(30):
        rig.sent(batch(1, time_ms=rig.clock.wall_ms(), size=600))
    rig.pass_time(100, 50)
    assert rig.state().log.start > 0
    assert rig.state().log.size <= 5000 + 1024
    rig.close()


@pytest.mark.parametrize("keep_unread", [False, True])
def test_retention_wins_over_readers_unless_the_topic_says_otherwise(tmp_path: Path, keep_unread: bool) -> None:
    rig = Rig(tmp_path, retention_check_ms=60_000)
    rig.create(retention_ms=1000, segment_bytes=1024, keep_unread=keep_unread)
    for _ in range(10):
        rig.sent(batch(1, time_ms=rig.clock.wall_ms(), size=600))
    rig.broker.cursors.create(rig.broker.topics.get("orders"), 0, "reader", 6, START_MS, lambda _: None)
    rig.pass_time(300, 50)
    start = rig.state().log.start
    assert 0 < start <= 6 if keep_unread else start == 10
    rig.close()


def test_a_partition_that_is_not_open_is_looked_after_too_but_rarely(tmp_path: Path) -> None:
    rig = Rig(tmp_path, retention_check_ms=60_000)
    rig.create(partitions=3 * LOOKS, retention_ms=3_600_000, segment_bytes=1024)
    for number in range(3 * LOOKS):
        rig.send(batch(1, time_ms=rig.clock.wall_ms(), size=600), number=number)
    rig.settle()
    rig.again()
    assert len(rig.broker.partitions) == 0
    opened: list[object] = []
    rig.broker.partitions.opened = opened.append
    rig.pass_time(70, 1)
    assert len(opened) == 3 * LOOKS
    assert len(rig.broker.partitions) == 0
    rig.pass_time(600, 10)
    assert len(opened) == 3 * LOOKS
    rig.pass_time(3600, 10)
    assert len(opened) > 3 * LOOKS
    assert {rig.state("orders", number).log.start for number in range(3 * LOOKS)} == {1}
    rig.close()


def test_producers_are_forgotten_after_a_day(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.create()
    rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS))
    rig.pass_time(DAY_S / 2, 600)
    assert 7 in rig.state().producers
    rig.pass_time(DAY_S, 600)
    assert 7 not in rig.state().producers
    rig.again()
    assert rig.sent(batch(1, producer=7, sequence=99, time_ms=START_MS)) == Place(1, 1)
    rig.close()


def test_a_clock_that_goes_back_forgets_nobody_and_drops_nothing(rig: Rig) -> None:
    rig.create()
    rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS))
    rig.clock.set_wall_ms(START_MS - 30 * 86_400_000)
    rig.pass_time(700, 100)
    assert rig.sent(batch(1, producer=7, sequence=1, time_ms=rig.clock.wall_ms())) == Place(1, 1)
    assert rig.state().log.start == 0
    rig.again()
    assert rig.sent(batch(1, producer=7, sequence=2, time_ms=rig.clock.wall_ms())) == Place(2, 2)


def test_what_nobody_uses_is_closed_and_opened_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, partitions_open_max=16, producer_idle_ms=1000)
    rig.create(partitions=40)
    for number in range(40):
        rig.send(batch(1, producer=7, sequence=0, time_ms=START_MS), number=number)
    rig.state("orders", 3).wait(lambda: None)
    rig.settle()
    assert len(rig.broker.partitions) == 40
    rig.pass_time(400, 50)
    assert len(rig.broker.partitions) == 16
    assert rig.broker.partitions.find("orders", 3) is not None
    for number in range(40):
        assert rig.sent(batch(1, producer=7, sequence=1, time_ms=START_MS), number=number) == Place(1, 1)
    rig.close()


def test_a_partition_is_idle_when_nobody_would_miss_it(rig: Rig) -> None:
    rig.create()
    state = rig.state()
    assert rig.broker.partitions.is_idle(state)
    rig.send(batch(1, time_ms=START_MS))
    state.names.clear()
    assert not rig.broker.partitions.is_idle(state)
    rig.settle()
    assert rig.broker.partitions.is_idle(state)

    def waiter() -> None:
        pass

    state.wait(waiter)
    assert not rig.broker.partitions.is_idle(state)
    state.unwait(waiter)
    rig.sent(batch(1, time_ms=START_MS))
    assert not rig.broker.partitions.is_idle(state)


def test_a_partition_that_is_closed_is_written_down(rig: Rig) -> None:
    rig.create()
    rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS))
    state = rig.state()
    state.names.clear()
    rig.broker.partitions.close(state)
    rig.settle()
    found = rig.broker.store.producers(state.topic.id, 0)
    assert found is not None
    assert found[0] == 1
    assert rig.broker.partitions.find("orders", 0) is None


def test_a_deleted_topic_is_forgotten_by_all_who_count(rig: Rig) -> None:
    rig.create()
    rig.sent(batch(1, time_ms=START_MS), producer_name="sender")
    assert rig.broker.stats.topic("orders")
    rig.broker.topics.delete("orders", lambda _: None)
    rig.settle()
    assert not rig.broker.stats.topic("orders")
    assert rig.broker.partitions._producers == {}


def test_a_partition_in_use_stays_open(tmp_path: Path) -> None:
    rig = Rig(tmp_path, partitions_open_max=16, producer_idle_ms=1000)
    rig.create(partitions=20)
    states = [rig.state("orders", number) for number in range(20)]
    rig.pass_time(UNUSED_S + CLOSING_LOOK_S, 5)
    for state in states:
        assert rig.broker.partitions.find("orders", state.number) in (None, state)
    assert sum(state.gone for state in states) == 4
    rig.close()


def test_checkpoints_leave_few_headers_to_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_ms=1000)
    rig.create()
    for sequence in range(20):
        rig.sent(batch(1, producer=7, sequence=sequence, time_ms=START_MS))
    topic = rig.broker.topics.get("orders")
    assert rig.broker.store.producers(topic.id, 0) is None
    rig.pass_time(5, 1)
    found = rig.broker.store.producers(topic.id, 0)
    assert found is not None
    assert found[0] == 20
    rig.sent(batch(1, producer=7, sequence=20, time_ms=START_MS))
    rig.again()
    found = rig.broker.store.producers(topic.id, 0)
    assert found is not None
    assert found[0] == 21
    rig.close()


def test_a_snapshot_that_cannot_be_read_or_is_ahead_is_not_used(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.create()
    rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS))
    for position, state in ((1, b"nonsense"), (2, None)):
        rig.close()
        db = rig.broker.store.connect()
        db.execute("UPDATE producers SET position = ?, state = coalesce(?, state)", (position, state))
        db.close()
        rig.open()
        assert rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS)) == Place(0, 0)
        rig.broker.partitions.checkpoint(rig.state())
        rig.settle()
    rig.close()


def test_a_snapshot_that_is_ahead_is_replaced_before_the_log_reaches_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.create()
    rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS))
    rig.close()
    db = rig.broker.store.connect()
    db.execute("UPDATE producers SET position = 3")
    db.close()
    rig.open()
    state = rig.state()
    rig.settle()
    found = rig.broker.store.producers(state.topic.id, 0)
    assert found is not None
    assert found[0] == 1
    rig.close()


def test_headers_that_had_to_be_read_need_not_be_read_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_ms=1000)
    rig.create()
    rig.sent(batch(1, producer=7, sequence=0, time_ms=START_MS))
    rig.close()
    db = rig.broker.store.connect()
    db.execute("DELETE FROM producers")
    db.close()
    rig.open()
    state = rig.state()
    rig.pass_time(5, 1)
    found = rig.broker.store.producers(state.topic.id, 0)
    assert found is not None
    assert found[0] == 1
    rig.close()


def test_nothing_is_due_at_once_when_nothing_happens(rig: Rig) -> None:
    rig.create()
    rig.sent(batch(1))
    rig.pass_time(700, 10)
    due = rig.turn()
    assert due is not None
    assert due > rig.clock.monotonic() + 1


# The process


def test_a_broker_loads_neither_numpy_nor_pyarrow_nor_kio() -> None:
    program = (
        "import sys, penstock.broker.broker, penstock.wire.kafka.log_format\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numpy', 'pyarrow', 'kio', 'asyncio'}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert answer.stdout == "[]\n"


def test_what_can_be_asked_tells_its_state(rig: Rig) -> None:
    rig.create()
    rig.state()
    assert "1 open" in repr(rig.broker)
    assert "let go" in repr(rig.broker.rounds)
    assert FORMAT.number == 1
