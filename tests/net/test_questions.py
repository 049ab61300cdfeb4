"""Questions to a cluster that somebody waits for: asked again while that is of use, and given up in time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Any, cast

import pytest

from penstock.errors import BusyError, ClosedError, DeniedError, NotSentError, PenstockError, TimedOutError
from penstock.net.asks import Whom
from penstock.net.backoff import Backoff
from penstock.net.loop import Loop
from penstock.net.poller import Poller
from penstock.net.questions import Questions

from .memory import Say, World
from .worlds import ONE, broker, learn, make_world, refused


class Asking:
    """A world, its loop driven by hand, and the questions."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or learn(make_world())
        self.loop = Loop("hand", self.world.clock, cast(Poller, self.world.poller))
        self.loop.clusters.append(self.world.cluster)
        self.questions = Questions(self.loop, self.world.clock, lambda: Backoff(0.1, 1.0, lambda: 0.5))
        self.loop.parties.append(self.questions)

    def ask(self, text: bytes = b"hello", timeout: float = 30.0) -> Any:
        return self.questions.ask(self.world.cluster, Say(text), Whom.ANYBODY, timeout)

    def run(self, until: Callable[[], object], seconds: float = 60.0) -> None:
        over = self.world.now + seconds
        for _ in range(10_000):
            deadline = self.loop.run_once(self.world.poller.ready(), self.world.now)
            if until():
                return
            if not self.world.poller.ready() and deadline is not None and deadline > self.world.now:
                self.world.clock.advance(max(deadline - self.world.now, 1e-6))
            assert deadline is not None or self.world.poller.ready(), "asleep for ever"
            assert self.world.now <= over, "not in time"
        raise AssertionError("busy for ever")

    def answer(self, answers: Callable[[Any], Any]) -> None:
        for one in self.world.network.brokers.values():
            one.answers = answers


def test_the_answer_comes_as_a_result() -> None:
    asking = Asking()
    future = asking.ask(b"hello")
    asking.run(future.done)
    assert future.result(0) == b"hello"
    assert repr(asking.questions) == "<Questions, 0 open>"


def test_what_a_broker_says_no_to_for_good_is_raised_at_once() -> None:
    asking = Asking()
    asking.answer(lambda request: DeniedError("no"))
    future = asking.ask()
    started = asking.world.now
    asking.run(future.done)
    assert isinstance(future.exception(0), DeniedError)
    assert asking.world.now == started


def test_what_will_pass_is_asked_again_after_growing_pauses() -> None:
    asking = Asking()
    times: list[float] = []

    def answer(request: Any) -> Any:
        times.append(asking.world.now)
        return BusyError("later") if len(times) < 5 else b"now"

    asking.answer(answer)
    future = asking.ask()
    asking.run(future.done)
    assert future.result(0) == b"now"
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8], abs=0.01)


def test_what_never_passes_is_given_up_in_time_with_the_last_answer() -> None:
    asking = Asking()
    asking.answer(lambda request: BusyError("later"))
    future = asking.ask(timeout=5.0)
    started = asking.world.now
    asking.run(future.done)
    error = future.exception(0)
    assert isinstance(error, TimedOutError)
    assert "Say for anybody: no answer within 5.0 s: later" in str(error)
    assert isinstance(error.__cause__, BusyError)
    assert asking.world.now - started == pytest.approx(5.0, abs=0.01)


def test_a_broker_that_keeps_silent_is_given_up_in_time() -> None:
    asking = Asking()
    for one in asking.world.network.brokers.values():
        one.held = []
    future = asking.ask(timeout=5.0)
    started = asking.world.now
    asking.run(future.done)
    assert isinstance(future.exception(0), TimedOutError)
    assert asking.world.now - started == pytest.approx(5.0, abs=0.01)
    asking.run(lambda: asking.world.now > started + 40, seconds=100)
    assert isinstance(future.exception(0), TimedOutError), "a late end changes nothing"


def test_a_cluster_that_cannot_be_reached_is_told_with_what_was_tried() -> None:
    world = make_world()
    for one in world.network.brokers.values():
        one.faults = refused
    asking = Asking(world)
    future = asking.ask(timeout=3.0)
    asking.run(future.done)
    error = future.exception(0)
    assert isinstance(error, PenstockError)
    assert "tried one:1" in str(error)


def test_a_lost_answer_is_asked_for_again() -> None:
    asking = Asking()
    one = broker(asking.world, ONE)
    asked: list[Any] = []

    def die_once(request: Any) -> Any:
        asked.append(request)
        one.held = [] if len(asked) == 1 else None
        for stream in one.streams:
            stream.ended = one.held is not None
        return b"again"

    asking.answer(die_once)
    future = asking.ask()
    asking.run(future.done)
    assert future.result(0) == b"again"
    assert len(asked) == 2


def test_what_the_wire_has_no_word_for_is_raised() -> None:
    asking = Asking()
    future = asking.ask(b"unspeakable")
    asking.run(future.done)
    assert "the toy protocol has no word for it" in str(future.exception(0))


def test_a_question_that_nobody_waits_for_any_more_is_forgotten() -> None:
    asking = Asking()
    asking.answer(lambda request: BusyError("later"))
    future = asking.ask()
    asking.loop.run_once(asking.world.poller.ready(), asking.world.now)
    assert future.cancel()
    asking.run(lambda: repr(asking.questions) == "<Questions, 0 open>")
    with pytest.raises(CancelledError):
        future.result(0)


def test_the_end_of_the_loop_ends_all_questions() -> None:
    asking = Asking()
    asking.answer(lambda request: BusyError("later"))
    futures = [asking.ask(), asking.ask()]
    for _ in range(10):
        asking.loop.run_once(asking.world.poller.ready(), asking.world.now)
    asking.loop._end(ClosedError("over"))
    assert all(isinstance(future.exception(0), ClosedError | NotSentError) for future in futures)


def test_a_cluster_that_is_closed_ends_its_questions() -> None:
    asking = Asking()
    for one in asking.world.network.brokers.values():
        one.held = []
    future = asking.ask()
    for _ in range(10):
        asking.loop.run_once(asking.world.poller.ready(), asking.world.now)
    for event in asking.world.cluster.close(asking.world.now):
        asking.loop.tell(asking.world.cluster, event, asking.world.now)
    assert isinstance(future.exception(0), ClosedError)
