"""Housekeeping: what is due when, and never too much of it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from penstock.broker.housekeeping import (
    CHECKPOINT_LOOK_S,
    CHECKPOINTS,
    CLOSING_LOOK_S,
    CLOSINGS,
    LOOKS,
    PAUSE_S,
    SKIPS,
    UNUSED_S,
    Housekeeping,
)
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings, TopicSettings
from penstock.broker.store import TopicRow
from penstock.broker.topics import Topic
from penstock.errors import StorageFailedError
from penstock.wire.protocol import Partition

RETENTION_S = 300.0
RETENTION_MS = 10_000_000


class FakeState:
    """A partition that remembers what was done to it."""

    def __init__(self, topic: Topic, number: int, oldest_ms: int | None) -> None:
        self.topic, self.number = topic, number
        self.partition = Partition(topic.name, number)
        self.unsaved, self.in_flight, self.gone, self.used_at = 0, 0, False, 0.0
        self.idle = True
        self.expires = 0
        self.done: list[object] = []
        self.fails: Exception | None = None
        headers = [] if oldest_ms is None else [SimpleNamespace(header=SimpleNamespace(max_time_ms=oldest_ms))]
        self.log = SimpleNamespace(
            start=0, entries=lambda position: iter(headers), maybe_roll=lambda now_ms: self.done.append("roll")
        )
        self.names = SimpleNamespace(expire=lambda now: self.done.append("names"))
        self.producers = SimpleNamespace(expire=lambda now_ms: self.expires)

    def enforce_retention(self, now_ms: int, keep_from: int | None) -> int:
        if self.fails is not None:
            raise self.fails
        self.done.append(("retention", keep_from))
        return 1

    def note_change(self) -> None:
        self.done.append("changed")


class FakePartitions:
    """Partitions that are opened and closed."""

    def __init__(self, states: dict[tuple[str, int], FakeState]) -> None:
        self.states = states
        self.open: dict[tuple[str, int], FakeState] = {}
        self.opened: list[FakeState] = []
        self.closed: list[FakeState] = []
        self.saved: list[FakeState] = []
        self.refuses: Exception | None = None

    def __len__(self) -> int:
        return len(self.open)

    def __iter__(self) -> Iterator[FakeState]:
        return iter(list(self.open.values()))

    def find(self, name: str, number: int) -> FakeState | None:
        return self.open.get((name, number))

    def get(self, name: str, number: int, now: float, now_ms: int) -> FakeState:
        if self.refuses is not None:
            raise self.refuses
        state = self.open[name, number] = self.states[name, number]
        self.opened.append(state)
        state.used_at = now
        return state

    def is_idle(self, state: FakeState) -> bool:
        return state.idle

    def close(self, state: FakeState) -> None:
        del self.open[state.partition]
        self.closed.append(state)

    def checkpoint(self, state: FakeState) -> None:
        self.saved.append(state)
        state.unsaved = state.in_flight


class FakeTopics:
    """Topics that can be deleted."""

    def __init__(self, topics: list[Topic]) -> None:
        self.known = {topic.id: topic for topic in topics}

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self.known.values()))

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self.known.get(topic_id)


class FakeCursors:
    """One cursor, perhaps, and whether what failed was tried again."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.retries = 0

    def oldest(self, topic: Topic, number: int) -> int | None:
        return self.position

    def retry(self) -> None:
        self.retries += 1


class FakeLogs:
    """Counts checkpoints."""

    def __init__(self) -> None:
        self.checkpoints = 0

    def checkpoint(self) -> None:
        self.checkpoints += 1


class Desk:
    """Housekeeping with fakes around it."""

    def __init__(self, topics: int = 1, partitions: int = 1, oldest_ms: int | None = 0, **options: Any) -> None:
        rows = [TopicRow(uuid4(), f"topic-{number}", partitions, True, 0) for number in range(topics)]
        made = [Topic(row, TopicSettings(retention_ms=RETENTION_MS)) for row in rows]
        states = [FakeState(topic, number, oldest_ms) for topic in made for number in range(partitions)]
        self.topics = FakeTopics(made)
        self.partitions = FakePartitions({state.partition: state for state in states})
        self.cursors = FakeCursors()
        self.logs = FakeLogs()
        around: tuple[Any, Any, Any, Any] = (self.topics, self.partitions, self.cursors, self.logs)
        settings = BrokerSettings(Path("data"), retention_check_ms=int(RETENTION_S * 1000), **options)
        self.house = Housekeeping(*around, settings)
        self.now, self.now_ms = 1000.0, 0
        self.turn()

    def turn(self, seconds: float = 0.0) -> float:
        """Let time pass, then do what is due; in how many seconds there is more to do."""
        self.now = round(self.now + seconds, 6)
        due = self.house.turn(self.now, self.now_ms)
        assert due is not None
        return round(due - self.now, 6)

    def open_all(self) -> list[FakeState]:
        states = list(self.partitions.states.values())
        self.partitions.open.update(self.partitions.states)
        for age, state in enumerate(states):
            state.used_at = self.now - age / 1000
        return states

    def change(self, state: FakeState, entries: int = 1) -> None:
        state.unsaved += entries
        self.house.changed(cast("Any", state))


# Checkpoints


def test_nothing_is_written_down_while_nothing_changes() -> None:
    desk = Desk()
    assert desk.turn(60) == RETENTION_S - 60
    assert desk.partitions.saved == []
    assert desk.logs.checkpoints == 0


def test_a_busy_partition_is_written_down_after_a_while() -> None:
    desk = Desk(checkpoint_ms=10_000)
    (state,) = desk.open_all()
    desk.change(state)
    assert desk.turn() == CHECKPOINT_LOOK_S
    assert desk.turn(CHECKPOINT_LOOK_S) == CHECKPOINT_LOOK_S
    desk.turn(9)
    assert desk.partitions.saved == []
    desk.turn(1)
    assert desk.partitions.saved == [state]
    assert (desk.logs.checkpoints, desk.cursors.retries) == (1, 1)
    desk.turn(CHECKPOINT_LOOK_S)
    assert desk.turn(20) > 100
    assert desk.partitions.saved == [state]


def test_a_very_busy_partition_is_written_down_sooner() -> None:
    desk = Desk(checkpoint_ms=10_000, checkpoint_entries=50)
    (state,) = desk.open_all()
    desk.change(state, 49)
    desk.turn()
    desk.turn(1)
    desk.turn(1)
    assert desk.partitions.saved == []
    state.unsaved += 1
    desk.turn(1)
    assert desk.partitions.saved == [state]
    state.unsaved = 50
    desk.turn(1)
    assert desk.partitions.saved == [state, state]
    assert (desk.logs.checkpoints, desk.cursors.retries) == (1, 1)
    state.unsaved = 50
    desk.turn(9)
    assert desk.logs.checkpoints == 2


def test_a_partition_whose_entries_are_on_their_way_is_written_down_again() -> None:
    desk = Desk(checkpoint_ms=10_000)
    (state,) = desk.open_all()
    state.in_flight = 1
    desk.change(state)
    desk.turn()
    desk.turn(1)
    desk.turn(10)
    desk.turn(9)
    assert len(desk.partitions.saved) == 1
    state.in_flight = 0
    desk.turn(1)
    assert len(desk.partitions.saved) == 2
    desk.turn(1)
    desk.turn(20)
    assert len(desk.partitions.saved) == 2


def test_many_partitions_are_written_down_a_few_at_a_time() -> None:
    desk = Desk(partitions=CHECKPOINTS * 2 + 1, checkpoint_ms=1000)
    for state in desk.open_all():
        desk.change(state)
    desk.turn()
    desk.turn(1)
    assert desk.turn(1) == PAUSE_S
    assert len(desk.partitions.saved) == CHECKPOINTS
    assert desk.turn(PAUSE_S) == PAUSE_S
    assert len(desk.partitions.saved) == CHECKPOINTS * 2
    assert desk.turn(PAUSE_S) == CHECKPOINT_LOOK_S
    assert len(set(desk.partitions.saved)) == CHECKPOINTS * 2 + 1


def test_a_partition_that_is_gone_is_not_written_down() -> None:
    desk = Desk(checkpoint_ms=1000)
    (state,) = desk.open_all()
    desk.change(state)
    state.gone = True
    desk.turn()
    desk.turn(1)
    assert desk.turn(60) > 100
    assert desk.partitions.saved == []


# Retention


def test_every_partition_is_looked_after_a_few_at_a_time() -> None:
    desk = Desk(partitions=LOOKS * 2 + 1)
    states = desk.open_all()
    assert desk.turn(RETENTION_S - 1) == 1
    assert desk.turn(1) == PAUSE_S
    assert sum(bool(state.done) for state in states) == LOOKS
    assert desk.turn(PAUSE_S) == PAUSE_S
    assert desk.turn(PAUSE_S) == RETENTION_S - 2 * PAUSE_S
    for state in states:
        assert state.done == ["names", ("retention", None), "roll"]
    assert desk.partitions.opened == desk.partitions.closed == []
    desk.turn(RETENTION_S - 2 * PAUSE_S)
    assert sum(len(state.done) == 6 for state in states) == LOOKS


def test_what_cursors_have_not_read_is_kept_where_that_is_wanted() -> None:
    desk = Desk()
    (state,) = desk.open_all()
    desk.cursors.position = 7
    state.topic.settings = TopicSettings(keep_unread=True)
    desk.turn(RETENTION_S)
    assert ("retention", 7) in state.done


def test_producers_that_were_forgotten_are_written_down() -> None:
    desk = Desk()
    (state,) = desk.open_all()
    state.expires = 3
    desk.turn(RETENTION_S)
    assert "changed" in state.done


def test_a_partition_that_is_not_open_is_opened_and_closed_again() -> None:
    desk = Desk()
    desk.turn(RETENTION_S)
    (state,) = desk.partitions.closed
    assert desk.partitions.opened == [state]
    assert desk.now - state.used_at == UNUSED_S


def test_one_that_somebody_uses_meanwhile_stays_open() -> None:
    desk = Desk()
    next(iter(desk.partitions.states.values())).idle = False
    desk.turn(RETENTION_S)
    assert len(desk.partitions) == 1


@pytest.mark.parametrize(
    ("oldest_ms", "retention_ms", "again"),
    [(5000, RETENTION_MS, True), (5001, RETENTION_MS, False), (None, RETENTION_MS, False), (5000, None, False)],
)
def test_one_in_which_nothing_can_be_due_is_not_opened_again(
    oldest_ms: int | None, retention_ms: int | None, again: bool
) -> None:
    desk = Desk(oldest_ms=oldest_ms)
    for topic in desk.topics:
        topic.settings = TopicSettings(retention_ms=retention_ms)
    desk.turn(RETENTION_S)
    desk.now_ms = RETENTION_MS + 5000
    desk.turn(RETENTION_S)
    assert len(desk.partitions.opened) == 1 + again


def test_other_settings_are_looked_at_anew() -> None:
    desk = Desk(oldest_ms=None)
    desk.turn(RETENTION_S)
    desk.turn(RETENTION_S)
    assert len(desk.partitions.opened) == 1
    desk.house.settings_changed()
    desk.turn(RETENTION_S)
    assert len(desk.partitions.opened) == 2


def test_one_that_was_opened_meanwhile_is_looked_at_anew() -> None:
    desk = Desk(oldest_ms=None)
    desk.turn(RETENTION_S)
    (state,) = desk.open_all()
    desk.turn(RETENTION_S)
    desk.partitions.close(state)
    desk.turn(RETENTION_S)
    assert len(desk.partitions.opened) == 2


def test_passing_over_partitions_has_an_end_too() -> None:
    desk = Desk(partitions=SKIPS + 10, oldest_ms=None)
    wait = desk.turn(RETENTION_S)
    while wait == PAUSE_S:
        wait = desk.turn(PAUSE_S)
    assert len(desk.partitions.opened) == SKIPS + 10
    assert desk.turn(wait) == PAUSE_S
    assert desk.turn(PAUSE_S) == RETENTION_S - PAUSE_S
    assert len(desk.partitions.opened) == SKIPS + 10


def test_a_topic_that_is_deleted_meanwhile_is_passed_over_and_forgotten() -> None:
    desk = Desk(topics=LOOKS + 1)
    assert desk.turn(RETENTION_S) == PAUSE_S
    last = list(desk.topics)[-1]
    del desk.topics.known[last.id]
    desk.house.drop_topic(last)
    assert desk.turn(PAUSE_S) == RETENTION_S - PAUSE_S
    assert len(desk.partitions.opened) == LOOKS
    for topic in list(desk.topics):
        desk.house.drop_topic(topic)
    assert desk.house._nothing_before_ms == {}


@pytest.mark.parametrize("error", [Refused(Refusal.STORAGE_FAILED, "broken"), StorageFailedError("broken")])
def test_a_partition_in_trouble_is_told_of_and_the_next_is_looked_after(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(partitions=2)
    first, second = desk.open_all()
    first.fails = error
    desk.turn(RETENTION_S)
    assert "topic-0-0 cannot be looked after: broken" in caplog.text
    assert second.done


def test_one_that_cannot_be_opened_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.partitions.refuses = Refused(Refusal.STORAGE_FAILED, "broken")
    desk.turn(RETENTION_S)
    assert "topic-0-0 cannot be looked after: broken" in caplog.text


# Closing


def test_as_many_as_may_be_stay_open() -> None:
    desk = Desk(partitions=16, partitions_open_max=16)
    desk.open_all()
    assert desk.turn(UNUSED_S + CLOSING_LOOK_S) > CLOSING_LOOK_S
    assert desk.partitions.closed == []


def test_the_longest_unused_are_closed_a_few_at_a_time() -> None:
    desk = Desk(partitions=16 + CLOSINGS + 2, partitions_open_max=16)
    states = desk.open_all()
    assert desk.turn(CLOSING_LOOK_S) == CLOSING_LOOK_S
    assert desk.partitions.closed == []
    assert desk.turn(UNUSED_S) == PAUSE_S
    assert desk.partitions.closed == states[: -CLOSINGS - 1 : -1]
    assert desk.turn(PAUSE_S) > CLOSING_LOOK_S
    assert len(desk.partitions) == 16


def test_those_in_use_stay_open() -> None:
    desk = Desk(partitions=20, partitions_open_max=16)
    states = desk.open_all()
    for state in states[1:]:
        state.idle = False
    desk.turn(UNUSED_S + CLOSING_LOOK_S)
    assert desk.partitions.closed == states[:1]


def test_it_tells_its_state() -> None:
    desk = Desk()
    assert repr(desk.house) == "<Housekeeping 0 partitions to be written down, next look at 1300.0>"
