"""One partition: what it takes, what it refuses, when it tells, and what it takes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import pytest

from penstock.broker.log.partition import PartitionLog, Place
from penstock.broker.partition_state import PartitionState
from penstock.broker.producer_names import PartitionProducerNames, TopicProducers
from penstock.broker.producers import PartitionProducers
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.rounds import Rounds
from penstock.broker.settings import TopicSettings
from penstock.broker.stats import Stats
from penstock.broker.store import TopicRow
from penstock.broker.topics import Topic
from penstock.broker.transactions.seams import Enlisting, Marker
from penstock.errors import StorageFailedError, StorageFullError
from penstock.wire.entry import Buffer, EntryFlag, EntryFormat, EntryHeader
from penstock.wire.kafka.layout import CONTROL, LOG_APPEND_TIME
from penstock.wire.protocol import Partition
from tests.broker.batches import FORMAT, batch

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class FakeLog:
    """Entries in a list; readers see them after a sync."""

    name = "public/default/orders-0"
    segment_bytes = segment_age_ms = 0

    def __init__(self) -> None:
        self.start = self.end = self.visible = 0
        self.entries: list[tuple[bytes, EntryHeader]] = []
        self.fail_with: Exception | None = None
        self.retained: tuple[object, ...] = ()
        self.kept_from = 1

    def append(self, form: EntryFormat, entry: Buffer, header: EntryHeader, now_ms: int, epoch: int = 0) -> Place:
        if self.fail_with is not None:
            raise self.fail_with
        assert header.size == len(entry)
        self.entries.append((bytes(entry), header))
        place = Place(self.end, self.end + header.count - 1)
        self.end = place.last + 1
        return place

    def delete_before(self, position: int) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        self.start = max(self.start, position)

    def enforce_retention(self, *values: object) -> int:
        self.retained = values
        self.start = self.kept_from
        return 1


class FakeOwner:
    """The broker around a partition: rounds end when a test says so."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.waiting: list[Callable[[Exception | None], None]] = []
        self.heard: list[str] = []
        self.enlisting: Enlisting | None = None
        self.at_once = False
        self.rounds = cast("Rounds", self)

    def submit(
        self, work: None = None, done: Callable[[Exception | None], None] | None = None, log: FakeLog | None = None
    ) -> int:
        if done is None:
            self.heard.append("submit")
        elif self.at_once:
            self.log.visible = self.log.end
            done(None)
        else:
            self.waiting.append(done)
        return 0

    def round(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        if error is None:
            self.log.visible = self.log.end
        for done in waiting:
            done(error)

    def admit(
        self,
        header: EntryHeader,
        partition: Partition,
        transactional_id: str | None,
        joins: bool,
        now: float,
        now_ms: int,
    ) -> Enlisting | None:
        self.heard.append(f"admit {header.producer} to {partition} for {transactional_id}, joins {joins}")
        if transactional_id == "stranger":
            raise Refused(Refusal.BAD_TRANSACTION_STATE)
        return self.enlisting

    def advanced(self, state: PartitionState) -> None:
        self.heard.append("advanced")

    def changed(self, state: PartitionState) -> None:
        self.heard.append("changed")


class Desk:
    """A partition with its surroundings."""

    def __init__(self, **settings: Any) -> None:
        row = TopicRow(uuid4(), "orders", 1, True, 0)
        self.topic = Topic(row, TopicSettings(**settings))
        self.owner = FakeOwner()
        self.log = self.owner.log
        self.stats = Stats()
        self.told: list[Place | Exception] = []
        self.state = PartitionState(
            *(self.topic, 0, cast("PartitionLog", self.log), PartitionProducers("orders-0")),
            *(PartitionProducerNames(TopicProducers(), 1000), self.stats.partition("orders", 0), FORMAT, self.owner),
        )

    def send(self, entry: bytes, name: str = "sender", transactional_id: str | None = None, **more: Any) -> Place:
        times = more.pop("now", 5.0), more.pop("now_ms", NOW_MS)
        header = FORMAT.check(entry)
        more.setdefault("done", self.told.append)
        return self.state.publish(FORMAT, entry, header, *times, name, transactional_id, **more)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def refused(reason: Refusal) -> pytest.RaisesExc[Refused]:
    return pytest.RaisesExc(Refused, check=lambda error: error.reason is reason)


def entry(count: int = 1, **more: Any) -> bytes:
    more.setdefault("time_ms", NOW_MS)
    return batch(count, **more)


# When it tells


def test_an_entry_is_told_when_it_is_durable_in_order(desk: Desk) -> None:
    assert desk.send(entry(3)) == Place(0, 2)
    assert desk.send(entry(2)) == Place(3, 4)
    assert desk.send(entry(1)) == Place(5, 5)
    assert desk.owner.heard == ["changed"]
    assert desk.told == []
    assert desk.state.in_flight == 3
    desk.owner.round()
    assert desk.told == [Place(0, 2), Place(3, 4), Place(5, 5)]
    assert desk.state.in_flight == 0
    assert desk.owner.heard == ["changed", *["advanced"] * 3]
    assert desk.state.readable_end() == 6


def test_where_nobody_waits_for_syncs_it_is_told_at_once(desk: Desk) -> None:
    desk.owner.at_once = True
    place = desk.send(entry(3))
    assert desk.told == [place]


def test_nobody_need_be_told(desk: Desk) -> None:
    desk.send(entry(), done=None)
    desk.owner.round()
    assert desk.told == []


def test_a_round_that_fails_fails_everything_in_it(desk: Desk) -> None:
    desk.send(entry(1, producer=7, sequence=0))
    desk.owner.round()
    desk.send(entry(1, producer=7, sequence=1))
    desk.send(entry(1, producer=8, sequence=0))
    desk.owner.round(StorageFailedError("the disk died"))
    assert desk.told[0] == Place(0, 0)
    assert [cast("Refused", each).reason for each in desk.told[1:]] == [Refusal.STORAGE_FAILED] * 2
    assert 8 not in desk.state.producers
    known = desk.state.producers.get(7)
    assert known is not None
    assert known.last_sequence == 0
    assert desk.state.readable_end() == 1


def test_an_entry_whose_round_failed_is_not_taken_for_stored_when_it_is_sent_again(desk: Desk) -> None:
    desk.send(entry(1, producer=7, sequence=0))
    desk.owner.round(StorageFailedError("the disk died"))
    desk.log.fail_with = StorageFailedError("no more")
    with refused(Refusal.STORAGE_FAILED):
        desk.send(entry(1, producer=7, sequence=0))


def test_an_entry_that_the_log_does_not_take_is_refused_and_leaves_nothing(desk: Desk) -> None:
    desk.log.fail_with = StorageFullError("full")
    with refused(Refusal.STORAGE_FULL):
        desk.send(entry(1, producer=7, sequence=0))
    desk.log.fail_with = None
    assert desk.send(entry(1, producer=7, sequence=0)) == Place(0, 0)
    desk.owner.round()
    assert desk.told == [Place(0, 0)]


# Producers


def test_a_duplicate_is_told_its_old_place_when_that_is_durable(desk: Desk) -> None:
    first = entry(3, producer=7, sequence=0)
    assert desk.send(first) == desk.send(first) == Place(0, 2)
    assert desk.told == []
    desk.owner.round()
    assert desk.told == [Place(0, 2)] * 2
    desk.send(first)
    assert desk.told == [Place(0, 2)] * 3
    desk.send(first, done=None)
    assert len(desk.log.entries) == 1
    assert desk.state.in_flight == 0


def test_a_duplicate_right_behind_what_is_durable_waits_too(desk: Desk) -> None:
    desk.send(entry(1, producer=7, sequence=0))
    desk.owner.round()
    desk.send(entry(1, producer=7, sequence=1))
    desk.send(entry(1, producer=7, sequence=1))
    assert desk.told == [Place(0, 0)]
    desk.owner.round()
    assert desk.told == [Place(0, 0), Place(1, 1), Place(1, 1)]


def test_a_duplicate_fails_with_the_entry_it_repeats(desk: Desk) -> None:
    first = entry(3, producer=7, sequence=0)
    desk.send(first)
    desk.send(first)
    desk.owner.round(StorageFailedError("the disk died"))
    assert [cast("Refused", each).reason for each in desk.told] == [Refusal.STORAGE_FAILED] * 2


def test_a_gap_is_refused_and_stores_nothing(desk: Desk) -> None:
    desk.send(entry(3, producer=7, sequence=0))
    with refused(Refusal.OUT_OF_ORDER):
        desk.send(entry(1, producer=7, sequence=5))
    assert len(desk.log.entries) == 1


def test_a_producer_without_an_id_is_not_judged(desk: Desk) -> None:
    assert desk.send(entry(1)) == Place(0, 0)
    assert desk.send(entry(1)) == Place(1, 1)
    assert not [word for word in desk.owner.heard if "admit" in word]


def test_what_transactions_refuse_is_not_stored(desk: Desk) -> None:
    with refused(Refusal.BAD_TRANSACTION_STATE):
        desk.send(entry(1, producer=7, transactional=True), transactional_id="stranger")
    assert desk.log.entries == []


def test_transactions_learn_whether_an_entry_enlists(desk: Desk) -> None:
    desk.send(entry(1, producer=7, transactional=True), transactional_id="mine", enlists=True)
    assert desk.owner.heard[0] == "admit 7 to orders-0 for mine, joins True"
    desk.send(entry(1, producer=7, sequence=1, transactional=True), transactional_id="mine")
    assert "admit 7 to orders-0 for mine, joins False" in desk.owner.heard


def test_an_entry_that_enlists_is_told_when_that_is_durable_too(desk: Desk) -> None:
    desk.owner.enlisting = Enlisting()
    desk.send(entry(1, producer=7, transactional=True), transactional_id="mine")
    desk.owner.round()
    assert desk.told == []
    desk.owner.enlisting.settle(None)
    assert desk.told == [Place(0, 0)]


def test_a_transactional_entry_needs_its_id(desk: Desk) -> None:
    with refused(Refusal.TRANSACTIONAL_ID_NEEDED):
        desk.send(entry(1, producer=7, transactional=True))


def test_readers_of_what_is_committed_stop_before_an_open_transaction(desk: Desk) -> None:
    desk.send(entry(2))
    desk.send(entry(3, producer=7, transactional=True), transactional_id="mine")
    desk.owner.round()
    assert (desk.state.readable_end(), desk.state.readable_end(committed_only=True)) == (5, 2)
    desk.state.mark(Marker(7, 0, committed=True), NOW_MS)
    assert desk.log.entries[-1][1].flags & EntryFlag.CONTROL
    desk.owner.round()
    assert (desk.state.readable_end(), desk.state.readable_end(committed_only=True)) == (6, 2)
    desk.owner.heard.clear()
    desk.state.release(7)
    assert desk.state.readable_end(committed_only=True) == 6
    assert desk.owner.heard == ["advanced"]


def test_an_aborted_transaction_is_listed(desk: Desk) -> None:
    desk.send(entry(3, producer=7, transactional=True), transactional_id="mine")
    desk.state.mark(Marker(7, 0, committed=False), NOW_MS)
    desk.owner.round()
    desk.state.release(7)
    assert [(each.producer, each.first) for each in desk.state.producers.aborted(0, 4)] == [(7, 0)]


def test_a_marker_that_the_log_does_not_take_is_an_error_of_storage(desk: Desk) -> None:
    desk.send(entry(3, producer=7, transactional=True), transactional_id="mine")
    desk.log.fail_with = StorageFullError("full")
    with pytest.raises(StorageFullError):
        desk.state.mark(Marker(7, 0, committed=True), NOW_MS)


def test_producers_have_a_limit(desk: Desk) -> None:
    desk = Desk(partition_producers_max=2)
    desk.send(entry(), "a")
    desk.send(entry(), "b")
    desk.send(entry(), "a")
    with refused(Refusal.TOO_MANY_PRODUCERS):
        desk.send(entry(), "c", now=5.5)
    assert len(desk.log.entries) == 3
    desk.send(entry(), "c", now=6.0)
    assert [(each.name, each.id) for each in desk.state.names] == [("c", None)]


def test_one_name_with_two_ids_counts_twice() -> None:
    desk = Desk(partition_producers_max=2)
    desk.send(entry(1, producer=1), "a")
    desk.send(entry(1, producer=2), "a")
    with refused(Refusal.TOO_MANY_PRODUCERS):
        desk.send(entry(1, producer=3), "a")


def test_ids_that_are_remembered_have_a_limit() -> None:
    desk = Desk(partition_producers_max=2)
    for producer in (1, 2):
        desk.send(entry(1, producer=producer), "a", now=producer * 10.0)
    with refused(Refusal.TOO_MANY_PRODUCERS):
        desk.send(entry(1, producer=3), "a", now=30.0)
    desk.owner.round()
    assert desk.send(entry(1, producer=3), "a", now=30.0, now_ms=NOW_MS + 25 * HOUR_MS) == Place(2, 2)
    assert desk.send(entry(1), "a", now=31.0) == Place(3, 3)


def test_a_topic_has_a_limit_over_its_partitions() -> None:
    everyone = TopicProducers()
    settings = TopicSettings(producers_max=2)
    first, second = PartitionProducerNames(everyone, 1000), PartitionProducerNames(everyone, 1000)
    first.admit("a", None, 0.0, settings)
    second.admit("b", 1, 0.0, settings)
    second.admit("a", None, 0.0, settings)
    assert len(everyone) == 2
    with refused(Refusal.TOO_MANY_PRODUCERS):
        first.admit("c", None, 0.5, settings)
    assert second.expire(1.0) == 2
    assert len(everyone) == 1
    first.admit("c", None, 1.0, settings)
    first.clear()
    assert (len(first), len(everyone)) == (0, 0)


def test_what_is_stored_is_counted_by_name(desk: Desk) -> None:
    sent = entry(3)
    desk.send(sent, "a")
    desk.send(sent, "b")
    assert set(desk.state.stats.producers) == {"a", "b"}
    flow = desk.state.stats.published_flow
    assert flow is not None
    assert (flow.entries, flow.messages, flow.bytes) == (2, 6, 2 * len(sent))


# What is refused


def test_the_size_has_a_limit(desk: Desk) -> None:
    desk = Desk(entry_bytes_max=200)
    desk.send(entry(1, size=200))
    with refused(Refusal.ENTRY_TOO_LARGE):
        desk.send(entry(1, size=201))


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (entry(0, delta=0), "the entry has no message"),
        (entry(3, delta=5), "messages were taken out of the entry"),
        (entry(1, attributes=CONTROL), "control entries are the log's own"),
    ],
)
def test_what_cannot_be_stored_as_it_is_is_refused(desk: Desk, bad: bytes, fault: str) -> None:
    with pytest.raises(Refused, match=fault) as why:
        desk.send(bad)
    assert why.value.reason is Refusal.BAD_ENTRY
    assert desk.log.entries == []


def test_times_have_limits() -> None:
    desk = Desk(time_before_max_ms=HOUR_MS)
    for time_ms in (NOW_MS, NOW_MS + HOUR_MS, NOW_MS - HOUR_MS, -1):
        desk.send(entry(1, time_ms=time_ms))
    for time_ms in (NOW_MS + HOUR_MS + 1, NOW_MS - HOUR_MS - 1, 0):
        for count in (1, 2):
            with refused(Refusal.BAD_TIME):
                desk.send(entry(count, time_ms=time_ms))
    assert len(desk.log.entries) == 4


def test_only_the_future_has_a_limit_by_default(desk: Desk) -> None:
    for time_ms in (0, -1, NOW_MS + HOUR_MS):
        desk.send(entry(2, time_ms=time_ms))
    with refused(Refusal.BAD_TIME):
        desk.send(entry(2, time_ms=NOW_MS + HOUR_MS + 1))


def test_a_topic_may_have_no_limits_of_time() -> None:
    desk = Desk(time_after_max_ms=None)
    desk.send(entry(1, time_ms=NOW_MS * 2))


def test_a_topic_can_have_the_logs_time() -> None:
    desk = Desk(time_type="log")
    desk.send(entry(2, time_ms=NOW_MS * 2))
    stored, header = desk.log.entries[0]
    again = FORMAT.check(stored)
    assert (again.max_time_ms, again.min_time_ms) == (header.max_time_ms, header.min_time_ms) == (NOW_MS, NOW_MS)
    assert again.flags & header.flags & EntryFlag.LOG_TIME


def test_an_entry_that_claims_the_logs_time_loses_that(desk: Desk) -> None:
    desk.send(entry(2, attributes=LOG_APPEND_TIME))
    stored, header = desk.log.entries[0]
    assert stored == entry(2)
    assert not header.flags & EntryFlag.LOG_TIME


def test_a_partition_that_is_gone_takes_nothing(desk: Desk) -> None:
    desk.topic.leaving = True
    with refused(Refusal.UNKNOWN_TOPIC):
        desk.send(entry())
    desk.topic.leaving = False
    desk.state.leave()
    with refused(Refusal.UNKNOWN_TOPIC):
        desk.send(entry())


# Waiting


def test_who_waits_is_called_until_it_does_not_wait(desk: Desk) -> None:
    calls: list[str] = []
    first, second = (lambda: calls.append("first")), (lambda: calls.append("second"))
    desk.state.wait(first)
    desk.state.wait(second)
    desk.state.wake()
    desk.state.wake()
    desk.state.unwait(first)
    desk.state.unwait(first)
    desk.state.wake()
    assert calls == ["first", "second", "first", "second", "second"]
    assert desk.state.is_waited_for


def test_who_waits_is_told_when_the_partition_goes(desk: Desk) -> None:
    calls: list[bool] = []
    desk.send(entry())
    desk.state.wait(lambda: calls.append(desk.state.gone))
    desk.state.leave()
    assert calls == [True]
    assert len(desk.state.names) == 0


def test_a_waiter_may_leave_and_take_others_along_when_it_is_called(desk: Desk) -> None:
    calls: list[str] = []

    def first() -> None:
        calls.append("first")
        desk.state.unwait(first)
        desk.state.unwait(second)

    def second() -> None:
        calls.append("second")

    desk.state.wait(first)
    desk.state.wait(second)
    desk.state.wake()
    assert calls == ["first"]
    assert not desk.state.is_waited_for


def test_a_waiter_that_fails_harms_nobody_else(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def failing() -> None:
        raise ValueError("a mistake")

    desk.state.wait(failing)
    desk.state.wait(lambda: calls.append("called"))
    desk.state.wake()
    assert calls == ["called"]
    assert "somebody who waited for more has failed" in caplog.text


# Upkeep


def test_entries_before_a_position_can_be_dropped(desk: Desk) -> None:
    told: list[int | Exception] = []
    desk.send(entry(5))
    desk.owner.round()
    desk.send(entry(5))
    desk.state.delete_before(0, told.append)
    assert desk.log.start == 0
    desk.owner.waiting.pop()
    desk.state.delete_before(3, told.append)
    assert told == []
    desk.owner.round()
    assert told == [3]
    desk.state.delete_before(1, told.append)
    desk.owner.round()
    assert told == [3, 3]
    with refused(Refusal.POSITION_OUT_OF_RANGE):
        desk.state.delete_before(11, told.append)
    with refused(Refusal.POSITION_OUT_OF_RANGE):
        desk.state.delete_before(-2, told.append)
    desk.state.delete_before(-1, told.append)
    desk.owner.round()
    assert told == [3, 3, 10]
    desk.log.fail_with = StorageFailedError("the disk died")
    with refused(Refusal.STORAGE_FAILED):
        desk.state.delete_before(-1, told.append)


def test_aborted_transactions_are_forgotten_with_their_entries(desk: Desk) -> None:
    for drop in (
        lambda: desk.state.delete_before(-1, lambda _: None),
        lambda: desk.state.enforce_retention(NOW_MS, None),
    ):
        first = desk.send(entry(3, producer=7, transactional=True, epoch=desk.log.end), transactional_id="mine").first
        desk.state.mark(Marker(7, desk.log.end, committed=False), NOW_MS)
        desk.owner.round()
        desk.state.release(7)
        assert len(desk.state.producers.aborted(first, desk.log.end)) == 1
        desk.log.kept_from = desk.log.end
        drop()
        assert desk.state.producers.aborted(first, desk.log.end) == []


def test_retention_follows_the_topics_settings() -> None:
    desk = Desk(retention_ms=5, retention_bytes=None)
    assert desk.state.enforce_retention(NOW_MS, None) == 1
    assert desk.log.retained == (NOW_MS, None, 5, None)
    assert desk.owner.heard == ["submit"]


def test_the_log_gets_the_topics_settings(desk: Desk) -> None:
    desk.topic.settings = TopicSettings(segment_bytes=5000, segment_ms=9)
    desk.state.take_settings()
    assert (desk.log.segment_bytes, desk.log.segment_age_ms) == (5000, 9)


def test_it_tells_its_state(desk: Desk) -> None:
    desk.send(entry(3))
    desk.state.wait(lambda: None)
    assert repr(desk.state) == "<PartitionState orders-0 0 to 3, visible to 0, 1 waiting>"
