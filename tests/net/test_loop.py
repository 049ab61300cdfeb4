"""The loop: one turn by hand, and its thread from start to end."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from penstock.clock import ManualClock, SystemClock
from penstock.errors import ClosedError, PenstockError
from penstock.net.asks import Whom
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.links import Connected
from penstock.net.loop import Loop
from penstock.net.pipeline import Lost, Sent
from penstock.net.poller import Poller
from penstock.wire.protocol import Answered

from .memory import MemoryPoller, Say
from .worlds import learn, make_world

LIMIT_S = 60.0


class Party:
    """Notes what it is told; `deadline` is when it wants to be called again."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.handled: list[ClusterEvent] = []
        self.worked: list[float] = []
        self.aborted: list[PenstockError] = []
        self.job: Callable[[], None] = lambda: None

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        self.handled.append(event)

    def work(self, now: float) -> float | None:
        self.worked.append(now)
        self.job()
        return self.deadline

    def abort(self, error: PenstockError) -> None:
        self.aborted.append(error)


class Token:
    def __init__(self) -> None:
        self.heard: list[Answered | Sent | Lost] = []

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        self.heard.append(event)


def by_hand(*parties: Party) -> Loop:
    world = make_world()
    loop = Loop("hand", ManualClock(5.0), cast(Poller, MemoryPoller(world.network)))
    loop.parties += parties
    return loop


@pytest.fixture
def running() -> Iterator[Callable[..., Loop]]:
    """Makes loops with a thread, which are gone after the test."""
    loops: list[Loop] = []

    def make(*parties: Party) -> Loop:
        loop = Loop("thread", SystemClock(), Poller())
        loop.parties += parties
        loops.append(loop)
        loop.start()
        return loop

    yield make
    for loop in loops:
        loop.stop(LIMIT_S)
        loop.ended.result(LIMIT_S)


# One turn


def test_the_next_turn_is_due_when_the_first_of_all_is() -> None:
    assert by_hand().run_once((), 5.0) is None
    assert by_hand(Party(), Party(9.0), Party(7.0)).run_once((), 5.0) == 7.0


def test_calls_are_done_before_anything_else_in_the_order_in_which_they_came() -> None:
    party = Party()
    loop = by_hand(party)
    done: list[str] = []
    party.job = lambda: done.append("work")
    loop.call(lambda: done.append("one"))
    loop.call(lambda: done.append("two"))
    loop.run_once((), 5.0)
    loop.run_once((), 6.0)
    assert done == ["one", "two", "work", "work"]
    assert party.worked == [5.0, 6.0]


def test_a_call_made_by_a_call_is_done_in_the_same_turn() -> None:
    loop = by_hand()
    done: list[str] = []
    loop.call(lambda: loop.call(lambda: done.append("inner")))
    loop.run_once((), 5.0)
    assert done == ["inner"]


def test_outcomes_go_to_their_tokens_and_all_else_to_every_party() -> None:
    world = make_world()
    parties = Party(), Party()
    loop = Loop("hand", world.clock, cast(Poller, world.poller))
    loop.parties += parties
    loop.clusters.append(world.cluster)
    token = Token()
    world.cluster.ask(Say(b"hello"), token, Whom.ANYBODY, world.now)
    for _ in range(100):
        loop.run_once(world.poller.ready(), world.now)
    assert [event.answer for event in token.heard if isinstance(event, Answered)] == [b"hello"]
    assert [event for event in parties[0].handled if isinstance(event, Connected)]
    assert parties[0].handled == parties[1].handled
    assert not any(isinstance(event, Answered) for event in parties[0].handled)


def test_a_party_that_leaves_in_its_turn_harms_no_other() -> None:
    one, other = Party(), Party()
    loop = by_hand(one, other)
    one.job = lambda: loop.parties.remove(one)
    loop.run_once((), 5.0)
    loop.run_once((), 6.0)
    assert (one.worked, other.worked) == ([5.0], [5.0, 6.0])


@pytest.mark.parametrize(
    ("moment", "woken"), [(-math.inf, True), (4.0, True), (9.9, True), (10.0, False), (99.0, False)]
)
def test_only_a_moment_before_the_end_of_the_sleep_wakes_it(moment: float, woken: bool) -> None:
    loop = by_hand()
    poller = cast(Any, loop)._poller
    loop._sleeps_until = 10.0
    loop.wake_by(moment)
    assert poller.is_woken is woken


def test_a_deadline_that_is_set_during_the_parties_work_wakes_it() -> None:
    party = Party()
    loop = by_hand(party)
    poller = cast(Any, loop)._poller
    party.job = lambda: loop.wake_by(1e9)
    loop._sleeps_until = -math.inf
    loop.run_once((), 5.0)
    assert poller.is_woken


def test_a_loop_tells_its_state() -> None:
    assert repr(by_hand()) == "<Loop hand, not started, 0 clusters, 0 calls waiting>"


# Its thread


def test_calls_run_on_its_thread_and_wake_it(running: Callable[..., Loop]) -> None:
    loop = running()
    done = threading.Event()
    here: list[bool] = []

    def call() -> None:
        here.append(loop.is_here())
        done.set()

    for _ in range(20):
        done.clear()
        loop.call(call)
        assert done.wait(LIMIT_S)
    assert here == [True] * 20
    assert not loop.is_here()


def test_waiting_on_its_own_thread_is_refused(running: Callable[..., Loop]) -> None:
    loop = running()
    loop.check_may_wait()
    errors: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            loop.check_may_wait()
        except ClosedError as error:
            errors.append(error)
        done.set()

    loop.call(call)
    assert done.wait(LIMIT_S)
    assert "waiting on the I/O thread, as in a callback, would wait for ever" in str(errors[0])


def test_stopping_ends_the_thread_and_tells_every_party(running: Callable[..., Loop]) -> None:
    parties = Party(), Party()
    loop = running(*parties)
    loop.stop(LIMIT_S)
    loop.ended.result(LIMIT_S)
    for party in parties:
        assert [str(error) for error in party.aborted] == ["client thread was closed"]
    assert loop.has_ended
    assert repr(loop).startswith("<Loop thread, ended")
    with pytest.raises(ClosedError, match="client thread has ended: client thread was closed"):
        loop.call(lambda: None)


def test_stopping_from_its_own_thread_does_not_wait_for_itself(running: Callable[..., Loop]) -> None:
    loop = running()
    loop.call(lambda: loop.stop(LIMIT_S))
    loop.ended.result(LIMIT_S)
    loop.stop(LIMIT_S)


def test_calls_that_came_before_the_end_are_done(running: Callable[..., Loop]) -> None:
    loop = running()
    held, go, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go.wait(LIMIT_S)

    loop.call(hold)
    assert held.wait(LIMIT_S)
    stopping = threading.Thread(target=loop.stop, args=(LIMIT_S,))
    stopping.start()
    loop.call(done.set)
    go.set()
    stopping.join(LIMIT_S)
    assert done.is_set()


def test_a_call_in_the_moment_of_the_end_is_done_or_refused_but_not_forgotten(running: Callable[..., Loop]) -> None:
    for _ in range(30):
        loop = running()
        counts = [0, 0]

        def call(loop: Loop = loop, counts: list[int] = counts) -> None:
            def done() -> None:
                counts[1] += 1

            try:
                while True:
                    loop.call(done)
                    counts[0] += 1
            except ClosedError:
                return

        thread = threading.Thread(target=call)
        thread.start()
        loop.stop(LIMIT_S)
        thread.join(LIMIT_S)
        loop.ended.result(LIMIT_S)
        assert counts[0] == counts[1]


@pytest.mark.parametrize("where", ["call", "work"])
def test_a_mistake_on_its_thread_ends_it_and_everybody_hears_of_it(
    running: Callable[..., Loop], caplog: pytest.LogCaptureFixture, where: str
) -> None:
    clumsy, fine = Party(), Party()
    loop = running(clumsy, fine)

    def fail() -> None:
        raise ZeroDivisionError("oh")

    with caplog.at_level(logging.ERROR, "penstock"):
        if where == "work":
            clumsy.job = fail
        loop.call(fail if where == "call" else lambda: None)
        loop.ended.result(LIMIT_S)
    for party in (clumsy, fine):
        (error,) = party.aborted
        assert "client thread cannot go on: ZeroDivisionError('oh')" in str(error)
        assert isinstance(error.__cause__, ZeroDivisionError)
    with pytest.raises(ClosedError, match="cannot go on"):
        loop.call(lambda: None)


def test_a_party_that_fails_at_the_end_does_not_keep_the_others_from_hearing(
    running: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clumsy, fine = Party(), Party()

    def fail(error: PenstockError) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(clumsy, "abort", fail)
    loop = running(clumsy, fine)
    with caplog.at_level(logging.ERROR, "penstock"):
        loop.stop(LIMIT_S)
        loop.ended.result(LIMIT_S)
    assert len(fine.aborted) == 1
    assert "while a client was ending" in caplog.text


def test_the_end_closes_the_clusters_and_settles_what_was_asked_of_them() -> None:
    world = learn(make_world())
    loop = Loop("hand", world.clock, cast(Poller, world.poller))
    loop.clusters.append(world.cluster)
    token = Token()
    world.cluster.ask(Say(b"late"), token, Whom.ANYBODY, world.now)
    loop._end(ClosedError("over"))
    assert [type(event) for event in token.heard] == [Lost]
    assert world.cluster.is_closed
    assert all(stream.closed for stream in world.network.streams)


def test_a_loop_that_was_never_started_can_be_stopped() -> None:
    by_hand().stop(LIMIT_S)
