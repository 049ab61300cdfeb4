"""All strands of a pipeline, and their topics: who is worked on when, what is begun, and how it ends."""

from __future__ import annotations

import math
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.clock import ManualClock
from penstock.errors import BusyError, ConfigError, GapError, PenstockError
from penstock.replicate.replicator import TOLD_EVERY, Replicator
from penstock.replicate.survey import TopicPlan
from penstock.wire.protocol import Partition

DISCOVER = 10.0


class HandStrand:
    """A strand that says when it is to be looked at, and ends when it is told to."""

    def __init__(self, rig: Rig, partition: Partition) -> None:
        self.rig = rig
        self.partition = partition
        self.is_over = False
        self.error: PenstockError | None = None
        self.begun = self.stopped = 0
        self.worked: list[float] = []
        self.next: float | None = None

    def begin(self) -> None:
        self.begun += 1

    def work(self, now: float) -> float | None:
        self.worked.append(now)
        return self.next

    def stop(self) -> None:
        self.stopped += 1

    def end(self, error: PenstockError | None = None) -> None:
        self.is_over, self.error = True, error
        self.rig.one.strand_ended(cast(Any, self))


class HandTopic:
    """A topic that has as many partitions as the test says."""

    def __init__(self, plan: TopicPlan) -> None:
        self.topic = plan.topic
        self.strands: dict[int, Any] = {}
        self.error: PenstockError | None = None
        self.partitions = plan.partitions
        self.shared_out = self.refreshed = 0
        self.fetcher = SimpleNamespace(cluster=SimpleNamespace(refresh=self._refresh))

    def _refresh(self, topic: str) -> None:
        self.refreshed += 1

    def share_out(self) -> None:
        self.shared_out += 1

    def new_partitions(self) -> list[int]:
        return [number for number in range(self.partitions) if number not in self.strands]


class Rig:
    """A replicator on a loop that is turned by hand."""

    def __init__(self, *plans: TopicPlan, follows: bool = True) -> None:
        self.clock = ManualClock(100.0, 0)
        self.parties: list[Any] = ["others"]
        self.wakes: list[float] = []
        self.surveys: list[Future[list[TopicPlan]]] = []
        self.told: list[float] = []
        loop: Any = SimpleNamespace(parties=self.parties, wake_by=self.wakes.append)
        errands: Any = SimpleNamespace(run=self._survey)
        surveyor: Any = SimpleNamespace(survey=lambda: None)
        opens: Any = (HandTopic, self._open_strand)
        self.one = Replicator(
            loop, errands, self.clock, surveyor, DISCOVER, opens, cast(Any, None), self.told.append
        )  # fmt: skip
        self.one.begin(list(plans), follows=follows)

    def _survey(self, cluster: Any, steps: Any) -> Future[list[TopicPlan]]:
        self.surveys.append(Future())
        return self.surveys[-1]

    def _open_strand(self, topic: HandTopic, plan: TopicPlan, number: int) -> HandStrand:
        return HandStrand(self, Partition(topic.topic, number))

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def strands(self) -> list[HandStrand]:
        return cast(list[HandStrand], self.one.strands)

    def topic(self, name: str = "t") -> HandTopic:
        return cast(HandTopic, self.one.topics[name])

    def turn(self, seconds: float = 0.0) -> float:
        """One turn after so many seconds; when the next one is due."""
        self.clock.advance(seconds) if seconds else None
        due_at = self.one.work(self.now)
        return math.inf if due_at is None else due_at


def plan(topic: str = "t", partitions: int = 2) -> TopicPlan:
    return TopicPlan(topic, topic, partitions, partitions, 1 << 20, UUID(int=1))


# Strands


def test_each_partition_gets_a_strand_and_is_begun_once() -> None:
    rig = Rig(plan("t", 2), plan("u", 1))
    rig.turn()
    rig.turn()
    assert [str(strand.partition) for strand in rig.strands] == ["t-0", "t-1", "u-0"]
    assert [strand.begun for strand in rig.strands] == [1, 1, 1]
    assert rig.parties == [rig.one, "others"], "what it forwards leaves in the same turn"


def test_only_those_are_worked_on_who_asked_for_it() -> None:
    rig = Rig(plan())
    rig.turn()
    first, second = rig.strands
    rig.one.look(cast(Any, second))
    assert rig.one.work(rig.now) is not None
    assert (first.worked, second.worked) == ([], [rig.now])
    rig.one.look_at_all()
    rig.turn()
    assert (len(first.worked), len(second.worked)) == (1, 2)


def test_one_who_asks_while_others_are_worked_on_has_the_next_turn_at_once() -> None:
    rig = Rig(plan())
    rig.turn()
    first, second = rig.strands
    first.work = lambda now: rig.one.look(cast(Any, second))  # type: ignore[method-assign]
    rig.one.look(cast(Any, first))
    assert rig.turn() == rig.now
    rig.turn()
    assert second.worked == [rig.now]


def test_a_strand_is_worked_on_at_the_moment_that_it_named() -> None:
    rig = Rig(plan("t", 1))
    rig.turn()
    (strand,) = rig.strands
    strand.next = rig.now + 0.5
    rig.one.look(cast(Any, strand))
    assert rig.turn() == strand.next
    strand.next = None
    rig.turn(0.4)
    assert len(strand.worked) == 1
    rig.turn(0.1)
    assert len(strand.worked) == 2


def test_a_strand_that_names_later_moments_again_and_again_is_remembered_once() -> None:
    """As one that is looked at a thousand times in a second and is to renew its position in a day."""
    rig = Rig(plan("t", 1))
    rig.turn()
    (strand,) = rig.strands
    for step in range(2000):
        strand.next = rig.now + (86_400.0 if step % 2 else 1.0)
        rig.one.look(cast(Any, strand))
        rig.turn(0.3)
    assert len(rig.one._due) < 5
    strand.next = None
    before = len(strand.worked)
    rig.turn(86_400.0)
    assert len(strand.worked) == before + 1


def test_what_was_read_is_shared_out_before_strands_are_worked_on() -> None:
    rig = Rig(plan())
    rig.turn()
    assert rig.topic().shared_out == 1


def test_metrics_are_told_now_and_then_and_at_the_end() -> None:
    rig = Rig(plan("t", 1), follows=False)
    rig.turn()
    rig.turn(TOLD_EVERY / 2)
    assert rig.told == [100.0]
    rig.turn(TOLD_EVERY)
    assert len(rig.told) == 2
    rig.strands[0].end()
    rig.turn()
    assert rig.told[2:] == [rig.now]


# New topics and partitions


def test_new_topics_are_looked_for_now_and_then() -> None:
    rig = Rig(plan())
    assert rig.turn() <= rig.now + DISCOVER
    rig.turn(DISCOVER - 1)
    assert rig.surveys == []
    rig.turn(1.0)
    assert len(rig.surveys) == 1
    rig.turn(100.0)
    assert len(rig.surveys) == 1, "one at a time"
    rig.surveys[0].set_result([plan("new", 1)])
    rig.turn()
    assert [str(strand.partition) for strand in rig.strands] == ["t-0", "t-1", "new-0"]
    rig.turn(DISCOVER)
    assert len(rig.surveys) == 2


def test_a_survey_that_fails_for_now_is_made_again_and_one_that_cannot_succeed_ends_the_pipeline() -> None:
    rig = Rig(plan())
    rig.turn(DISCOVER)
    rig.surveys[0].set_exception(BusyError("later"))
    rig.turn(DISCOVER)
    assert len(rig.surveys) == 2
    assert rig.strands[0].stopped == 0
    error = ConfigError("topic t has 3 partitions, and t in the target has 2")
    rig.surveys[1].set_exception(error)
    assert rig.strands[0].stopped == 1
    for strand in rig.strands:
        strand.end()
    rig.turn()
    assert rig.one.ended.exception(0) is error


def test_a_new_partition_waits_until_the_target_has_it_and_that_is_looked_after_at_once() -> None:
    rig = Rig(plan())
    rig.turn()
    rig.topic().partitions = 3
    rig.turn()
    assert len(rig.surveys) == 1
    assert len(rig.strands) == 2
    rig.surveys[0].set_result([plan("t", 3)])
    rig.turn()
    assert len(rig.strands) == 3
    assert rig.topic().refreshed == 1


def test_a_target_that_cannot_be_grown_for_now_is_not_asked_in_every_turn() -> None:
    rig = Rig(plan())
    rig.turn()
    rig.topic().partitions = 3
    rig.turn()
    rig.surveys[0].set_exception(BusyError("later"))
    for _ in range(5):
        assert rig.turn() > rig.now
    assert len(rig.surveys) == 1
    rig.turn(DISCOVER)
    assert len(rig.surveys) == 2


# The end


def test_it_ends_when_all_is_copied() -> None:
    rig = Rig(plan("t", 2), plan("u", 1), follows=False)
    rig.turn()
    for strand in rig.strands[:2]:
        strand.end()
    rig.turn()
    assert not rig.one.ended.done()
    rig.strands[2].end()
    rig.turn()
    assert rig.one.ended.result(0) is None
    assert rig.parties == ["others"]


def test_it_does_not_end_before_it_has_begun() -> None:
    rig = Rig(plan("t", 2), follows=False)
    rig.topic().partitions = 0
    rig.turn()
    assert not rig.one.ended.done()


def test_with_partitions_that_came_in_between_it_ends_when_they_are_copied_too() -> None:
    """The topic grew after both ends were looked at, and before it was read."""
    rig = Rig(plan("t", 1), follows=False)
    rig.topic().partitions = 2
    rig.turn()
    rig.strands[0].end()
    rig.turn()
    assert not rig.one.ended.done()
    rig.surveys[0].set_result([plan("t", 2)])
    rig.turn()
    rig.strands[1].end()
    rig.turn()
    assert rig.one.ended.done()


def test_one_that_follows_ends_only_when_it_is_told_to() -> None:
    rig = Rig(plan("t", 1))
    rig.turn()
    rig.strands[0].end()
    rig.turn()
    assert not rig.one.ended.done()
    rig.one.stop()
    assert rig.wakes == [-math.inf]
    rig.turn()
    assert rig.one.ended.result(0) is None


def test_a_strand_that_fails_ends_the_pipeline_and_the_others_commit_first(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(plan("t", 3))
    rig.turn()
    error = GapError("t-0", 5, 9, "deleted")
    rig.strands[0].end(error)
    assert [strand.stopped for strand in rig.strands] == [0, 1, 1]
    rig.turn()
    assert not rig.one.ended.done()
    rig.strands[1].end(BusyError("later"))
    rig.strands[2].end()
    rig.turn()
    assert rig.one.ended.exception(0) is error
    assert "copying t-0 has ended: t-0: positions 5 to 8 are missing" in caplog.text


def test_a_topic_that_cannot_even_be_begun_ends_the_pipeline_without_haste() -> None:
    """While the others commit, it is not stopped again in every turn."""
    rig = Rig(plan("t", 1), plan("u", 1))
    rig.topic("u").partitions = 0
    rig.turn()
    rig.topic("u").error = GapError("u-0", 5, 9, "deleted")
    for _ in range(3):
        rig.turn()
    assert rig.strands[0].stopped == 1
    assert rig.wakes == [-math.inf]
    rig.strands[0].end()
    rig.turn()
    assert isinstance(rig.one.ended.exception(0), GapError)


def test_nothing_new_is_begun_once_it_is_told_to_stop() -> None:
    rig = Rig(plan("t", 1))
    rig.turn()
    rig.one.stop()
    rig.topic().partitions = 5
    rig.turn(DISCOVER)
    assert rig.surveys == []
    assert len(rig.strands) == 1


def test_it_ends_with_its_loop() -> None:
    rig = Rig(plan())
    rig.turn()
    error = BusyError("the loop is over")
    rig.one.abort(error)
    rig.one.abort(BusyError("again"))
    assert rig.one.ended.exception(0) is error
