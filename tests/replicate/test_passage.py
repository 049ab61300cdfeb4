"""The ways to a target on a model of its cluster: what is committed beside positions, whose positions are believed, and
when those who copied before are not forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.consume.seeker import Seeker
from penstock.errors import (
    BusyError,
    ConfigError,
    FencedError,
    GapError,
    PenstockError,
    TransactionError,
    UnknownTopicError,
)
from penstock.net.homes import Homes
from penstock.produce.transactions.transaction import TransactionalOutlet
from penstock.replicate.note import SourceNote, Writer
from penstock.replicate.passage import BasePassage, Desk, PlainPassage, TransactionalPassage
from penstock.replicate.position_map import Point
from penstock.replicate.strand import Claimed
from penstock.wire.protocol import Identity, Mark, Partition
from tests.consume.harness import UNKNOWN_TOPIC_S, Harness

GROUP = "penstock.mine"
SOURCE = Partition("s", 0)
FIRST, SECOND = UUID(int=1), UUID(int=2)


def note(topic_id: UUID | None = FIRST, cluster: str = "west", **more: Any) -> SourceNote:
    return SourceNote(cluster, "s", topic_id, 0, **more)


class Told(list[Any]):
    """What was told."""

    def __call__(self, outcome: Any) -> None:
        self.append(outcome)


class Rig:
    """A target cluster with topic t, whose partitions hold some messages."""

    def __init__(self, partitions: int = 1) -> None:
        self.harness = Harness()
        self.logs = self.harness.topic("t", partitions)
        for number, log in enumerate(self.logs, 1):
            log.write(10 * number)
        self.points: list[tuple[Partition, Point, UUID | None]] = []
        self.producer = SimpleNamespace(outlet=SimpleNamespace(identity=Identity(5, 0)))

    def desk(self, goes_on: bool = False) -> Desk:
        harness = self.harness
        tools = (harness.cluster, harness.clock, harness.backoff, UNKNOWN_TOPIC_S)
        writer: Any = SimpleNamespace(tell=self._tell)
        return Desk(harness.cluster, harness.errands, Homes(*tools), Seeker(*tools), GROUP, writer, goes_on)

    def _tell(self, partition: Partition, point: Point, log: UUID | None) -> Any:
        self.points.append((partition, point, log))
        return SimpleNamespace(parcel=object())

    def plain(self, own: SourceNote | None = None, places: int = 1, goes_on: bool = False) -> PlainPassage:
        where = [Partition("t", number) for number in range(places)]
        return PlainPassage(self.desk(goes_on), cast(Any, self.producer), SOURCE, where, own or note())

    def claim(self, passage: BasePassage) -> Claimed | PenstockError:
        told = Told()
        passage.claim(told)  # type: ignore[attr-defined]
        self.harness.run(lambda: told)
        (outcome,) = told
        found: Claimed | PenstockError = outcome
        return found

    def commit(self, passage: BasePassage, position: int) -> PenstockError | None:
        told = Told()
        passage.commit(Mark(position), told)  # type: ignore[attr-defined]
        self.harness.run(lambda: told)
        (outcome,) = told
        error: PenstockError | None = outcome
        return error

    def mark(self, number: int = 0) -> tuple[int, SourceNote]:
        position, text, _ = self.harness.model.marks[GROUP, "t", number]
        found = SourceNote.decode(text)
        assert found is not None
        return position, found

    def put(self, position: int, text: str) -> None:
        """Somebody has committed this."""
        self.harness.model.marks[GROUP, "t", 0] = (position, text, -1)


# Positions


def test_where_nothing_was_committed_it_begins_and_the_end_of_the_target_is_told() -> None:
    rig = Rig()
    assert rig.claim(rig.plain()) == Claimed(None, 10)


def test_who_comes_next_goes_on_where_the_last_one_was() -> None:
    rig = Rig()
    first = rig.plain()
    rig.claim(first)
    assert rig.commit(first, 77) is None
    assert rig.mark() == (77, note(writers=(Writer(5),), log=first.log))
    assert first.log is not None
    assert rig.claim(rig.plain()) == Claimed(Mark(77), 10)


def test_the_leader_epoch_is_committed_and_read_back() -> None:
    rig = Rig()
    first, told = rig.plain(), Told()
    rig.claim(first)
    first.commit(Mark(77, "", 6), told)
    rig.harness.run(lambda: told)
    assert rig.claim(rig.plain()) == Claimed(Mark(77, "", 6), 10)


def test_an_identity_is_waited_for() -> None:
    rig = Rig()
    rig.producer.outlet.identity = None
    told = Told()
    rig.plain().claim(told)
    rig.harness.advance(5.0)
    assert told == []
    rig.producer.outlet.identity = Identity(5, 0)
    rig.harness.advance(1.0)
    rig.harness.loop.wake_by(0.0)
    rig.harness.run(lambda: told)


def test_those_who_wrote_before_are_named_with_where_they_ended() -> None:
    rig = Rig()
    first = rig.plain()
    rig.claim(first)
    rig.commit(first, 77)
    rig.logs[0].write(5)
    rig.producer.outlet.identity = Identity(6, 0)
    second = rig.plain()
    rig.claim(second)
    rig.commit(second, 80)
    assert rig.mark()[1].writers == (Writer(5, 15), Writer(6))


def test_a_position_of_a_topic_that_was_made_anew_is_not_gone_on_from() -> None:
    rig = Rig()
    rig.put(30, note(FIRST).encode())
    error = rig.claim(rig.plain(note(SECOND)))
    assert isinstance(error, GapError)
    assert (error.partition, error.first, error.next) == ("s-0", 30, None)
    assert "topic s was deleted and created again since the position was committed" in str(error)


def test_unless_one_is_told_to_go_on_then_it_begins_anew_and_forgets_no_writer() -> None:
    rig = Rig()
    rig.put(30, note(FIRST, writers=(Writer(4),)).encode())
    passage = rig.plain(note(SECOND), goes_on=True)
    assert rig.claim(passage) == Claimed(None, 10)
    rig.commit(passage, 0)
    assert rig.mark()[1].producers == {4, 5}
    assert rig.mark()[1].topic_id == SECOND


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_position_of_another_cluster_is_never_gone_on_from(goes_on: bool) -> None:
    rig = Rig()
    rig.put(30, note(cluster="east").encode())
    error = rig.claim(rig.plain(goes_on=goes_on))
    assert isinstance(error, GapError)
    assert "the position is one of s-0 of cluster east, and the source is cluster west" in str(error)


def test_a_position_beside_a_topic_that_was_made_anew_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.put(30, note(log=UUID(int=9)).encode())
    assert rig.claim(rig.plain()) == Claimed(None, 10)
    assert "t-0 was deleted and made anew: it is filled from the beginning" in caplog.text


def test_no_position_is_committed_beside_a_topic_that_was_made_anew() -> None:
    rig = Rig()
    passage = rig.plain()
    rig.claim(passage)
    passage.log = UUID(int=9)
    error = rig.commit(passage, 77)
    assert isinstance(error, UnknownTopicError)
    assert "t was deleted and made anew: its id is" in str(error)
    assert rig.harness.model.marks == {}


def test_a_position_that_no_copier_wrote_is_refused() -> None:
    rig = Rig()
    rig.put(30, "")
    error = rig.claim(rig.plain())
    assert isinstance(error, ConfigError)
    assert "group penstock.mine has a position for t-0 that no replicator wrote" in str(error)


# Where messages came through


def test_where_messages_came_through_is_committed_with_the_position() -> None:
    rig = Rig()
    passage = rig.plain()
    rig.claim(passage)
    assert passage.come_through(frozenset({"north"}))
    assert not passage.come_through(frozenset({"north"})), "that is said already"
    rig.commit(passage, 5)
    assert rig.mark()[1].through == {"north"}


def test_going_back_does_not_forget_where_messages_came_through() -> None:
    """It was learnt and not committed yet when something failed; who learnt it will not be told again."""
    rig = Rig()
    rig.put(5, note(through=frozenset({"south"})).encode())
    passage = rig.plain()
    rig.claim(passage)
    passage.come_through(frozenset({"north"}))
    rig.claim(passage)
    rig.commit(passage, 6)
    assert rig.mark()[1].through == {"north", "south"}


# To several partitions


def test_the_position_stands_beside_all_partitions_that_are_written_to() -> None:
    rig = Rig(3)
    passage = rig.plain(places=3)
    assert rig.claim(passage) == Claimed(None, 30)
    rig.commit(passage, 7)
    assert [rig.mark(number)[0] for number in range(3)] == [7, 7, 7]


def test_where_writers_ended_holds_for_all_partitions() -> None:
    rig = Rig(3)
    passage = rig.plain(places=3)
    rig.claim(passage)
    rig.commit(passage, 7)
    rig.producer.outlet.identity = Identity(6, 0)
    rig.commit(passage, 8)
    assert rig.mark()[1].writers == (Writer(5, 30), Writer(6))


def test_points_are_told_of_one_partition_and_not_of_several() -> None:
    rig = Rig(2)
    one, several = rig.plain(), rig.plain(places=2)
    for passage in (one, several):
        rig.claim(passage)
    assert len(one.tell_points([Point(1, 2), Point(5, 6)])) == 2
    assert rig.points == [(SOURCE, Point(1, 2), one.log), (SOURCE, Point(5, 6), one.log)]
    assert several.tell_points([Point(1, 2)]) == ()


# The end


def test_nothing_is_told_after_it_was_closed() -> None:
    rig = Rig()
    passage, told = rig.plain(), Told()
    passage.claim(told)
    passage.close()
    rig.harness.advance(5.0)
    assert told == []
    assert "0 under way" in repr(rig.harness.errands)


# Within transactions


class HandKeeper:
    """A transactional id whose answers are given by hand."""

    def __init__(self) -> None:
        self.identity: Identity | None = Identity(5, 0)
        self.asked: list[tuple[str, Any, Future[None]]] = []

    def begin(self, outlet: Any) -> Future[None]:
        return self._ask("begin")

    def commit(self, marks: Any) -> Future[None]:
        return self._ask("commit", marks)

    def roll_back(self) -> Future[None]:
        return self._ask("roll back")

    def _ask(self, what: str, more: Any = None) -> Future[None]:
        self.asked.append((what, more, Future()))
        return self.asked[-1][2]

    def answer(self, expected: str, error: PenstockError | None = None) -> Any:
        """What was asked last has this outcome; what was said with it."""
        what, more, future = self.asked.pop()
        assert what == expected
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return more


def transactional(rig: Rig) -> tuple[TransactionalPassage, HandKeeper]:
    outlet = TransactionalOutlet.__new__(TransactionalOutlet)
    keeper = HandKeeper()
    outlet.keeper = cast(Any, keeper)
    producer: Any = SimpleNamespace(outlet=outlet, begin_close=lambda timeout: None)
    return TransactionalPassage(rig.desk(), producer, SOURCE, [Partition("t", 0)], note()), keeper


def told_after(rig: Rig, told: Sequence[Any]) -> Any:
    rig.harness.run(lambda: told)
    (outcome,) = told
    return outcome


def test_the_id_is_taken_before_the_position_is_read() -> None:
    rig = Rig()
    passage, keeper = transactional(rig)
    told = Told()
    rig.put(30, note().encode())
    passage.claim(told)
    rig.harness.advance(1.0)
    assert told == []
    rig.put(40, note().encode())
    keeper.answer("begin")
    assert told_after(rig, told) == Claimed(Mark(40), 10)


def test_who_cannot_have_the_id_claims_nothing() -> None:
    rig = Rig()
    passage, keeper = transactional(rig)
    told = Told()
    passage.claim(told)
    fenced = FencedError("another")
    keeper.answer("begin", fenced)
    assert told == [fenced]


def test_a_commit_carries_the_position_and_opens_the_next_transaction() -> None:
    rig = Rig()
    passage, keeper = transactional(rig)
    told = Told()
    passage.commit(Mark(33), told)
    ((where, marks),) = keeper.answer("commit").items()
    assert where[0] == GROUP
    assert marks[Partition("t", 0)].position == 33
    assert SourceNote.decode(marks[Partition("t", 0)].note) == note(writers=(Writer(5),))
    assert told == []
    keeper.answer("begin")
    assert told == [None]


def test_a_mistake_between_two_steps_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for ask in ("claim", "commit"):
        passage, keeper = transactional(rig)
        told = Told()
        passage.claim(told) if ask == "claim" else passage.commit(Mark(33), told)
        monkeypatch.setattr(passage, "_run" if ask == "claim" else "_begin", lambda *_: 1 / 0)
        keeper.answer("begin" if ask == "claim" else "commit")
        (error,) = told
        assert isinstance(error, PenstockError)
        assert "copying cannot go on: ZeroDivisionError" in str(error)


@pytest.mark.parametrize("step", ["commit", "begin"])
def test_a_commit_after_which_none_can_be_opened_has_failed_too(step: str) -> None:
    rig = Rig()
    passage, keeper = transactional(rig)
    told = Told()
    passage.commit(Mark(33), told)
    error = TransactionError("no")
    if step == "begin":
        keeper.answer("commit")
    keeper.answer(step, error)
    assert told == [error]


@pytest.mark.parametrize("error", [None, TransactionError("none is open")])
def test_without_an_identity_nothing_is_committed_and_that_is_an_error(error: PenstockError | None) -> None:
    rig = Rig()
    passage, keeper = transactional(rig)
    keeper.identity = None
    told = Told()
    passage.commit(Mark(33), told)
    keeper.answer("roll back", error)
    (outcome,) = told
    assert outcome is error or (error is None and isinstance(outcome, BusyError))


def test_nothing_is_told_of_a_transaction_after_it_was_closed() -> None:
    rig = Rig()
    passage, keeper = transactional(rig)
    told = Told()
    passage.give_up(told)
    passage.close()
    keeper.answer("roll back")
    assert told == []
