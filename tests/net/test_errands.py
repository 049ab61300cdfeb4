"""Errands that somebody waits for: what their steps come to, and what ends them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, cast

import pytest

from penstock.errors import BusyError, ClosedError, PenstockError, RefusedError
from penstock.net.asks import Whom
from penstock.net.errand import Ask, Pause, Steps, Until
from penstock.net.errands import Errands
from penstock.net.loop import Loop
from penstock.net.poller import Poller

from .memory import Say
from .worlds import learn, make_world


class Running:
    """A world, its loop driven by hand, and the errands."""

    def __init__(self) -> None:
        self.world = learn(make_world())
        self.loop = Loop("hand", self.world.clock, cast(Poller, self.world.poller))
        self.loop.clusters.append(self.world.cluster)
        self.errands = Errands(self.loop, self.world.clock)
        self.loop.parties.append(self.errands)

    def begin(self, steps: Steps[Any]) -> Any:
        return self.errands.run(self.world.cluster, steps)

    def run(self, until: Callable[[], object]) -> None:
        for _ in range(10_000):
            deadline = self.loop.run_once(self.world.poller.ready(), self.world.now)
            if until():
                return
            if not self.world.poller.ready() and deadline is not None and deadline > self.world.now:
                self.world.clock.advance(max(deadline - self.world.now, 1e-6))
            assert deadline is not None or self.world.poller.ready(), "asleep for ever"
        raise AssertionError("busy for ever")


def test_the_steps_come_to_a_result() -> None:
    running = Running()
    began = running.world.now

    def steps() -> Steps[tuple[Any, float]]:
        answer = yield Ask(Say(b"hello"), Whom.ANYBODY)
        yield Pause(began + 5)
        return answer, running.world.now - began

    future = running.begin(steps())
    running.run(future.done)
    assert future.result(0) == (b"hello", pytest.approx(5))
    assert repr(running.errands) == "<Errands, 0 under way>"


def test_a_condition_is_looked_at_when_it_says_so() -> None:
    running = Running()
    moment = running.world.now + 7

    def steps() -> Steps[str]:
        yield Until(lambda now: now >= moment, moment)
        return "late"

    future = running.begin(steps())
    running.run(future.done)
    assert future.result(0) == "late"


def test_an_error_that_the_steps_raise_is_the_futures() -> None:
    running = Running()

    def steps() -> Steps[None]:
        answer = yield Ask(Say(b"unspeakable"), Whom.ANYBODY)
        assert isinstance(answer, RefusedError)
        raise answer

    future = running.begin(steps())
    running.run(future.done)
    with pytest.raises(RefusedError, match="no word for it"):
        future.result(0)


def test_steps_without_a_wait_are_done_at_once() -> None:
    running = Running()

    def steps() -> Steps[int]:
        return 5
        yield

    future = running.begin(steps())
    running.run(future.done)
    assert future.result(0) == 5


def waiting() -> Steps[None]:
    yield Until(lambda now: False)


def test_cancelling_ends_it() -> None:
    running = Running()
    future = running.begin(waiting())
    running.loop.run_once([], running.world.now)
    assert future.cancel()
    running.loop.run_once([], running.world.now)
    assert repr(running.errands) == "<Errands, 0 under way>"
    with pytest.raises(CancelledError):
        future.result(0)


def test_a_closed_cluster_ends_it() -> None:
    running = Running()
    future = running.begin(waiting())
    running.loop.run_once([], running.world.now)
    running.world.cluster.close(running.world.now)
    running.run(future.done)
    with pytest.raises(ClosedError, match="was closed before the answer"):
        future.result(0)


def test_the_end_of_the_loop_ends_it() -> None:
    running = Running()
    future = running.begin(waiting())
    running.loop.run_once([], running.world.now)
    running.errands.abort(BusyError("the end"))
    with pytest.raises(PenstockError, match="the end"):
        future.result(0)
