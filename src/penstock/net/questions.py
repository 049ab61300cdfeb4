"""Questions to a cluster that somebody waits for: asked on the I/O thread, asked again while that is of use.

Runs on: `ask` on any thread, the rest on the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import ClosedError, PenstockError, TimedOutError
from penstock.net.asks import Target
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.failures import because
from penstock.net.loop import Loop
from penstock.net.pipeline import Lost, Sent
from penstock.wire.protocol import Answered, Request

Answer = TypeVar("Answer")


class Question:
    """A request, until it is answered for good or its time is over."""

    def __init__(
        self, owner: Questions, cluster: Cluster, request: Request[Any], target: Target, timeout: float
    ) -> None:
        self.future: Future[Any] = Future()
        self.cluster = cluster
        self.deadline = float("inf")
        self.retry_at: float | None = None
        """When it is asked again; None while it is on its way."""
        self._owner = owner
        self._request = request
        self._target = target
        self._timeout = timeout
        self._backoff = owner.backoff()
        self._trouble: PenstockError | None = None

    def __repr__(self) -> str:
        return f"<Question {type(self._request).__name__} to {self.cluster.name}>"

    def begin(self, now: float) -> None:
        """Ask it for the first time."""
        self.deadline = now + self._timeout
        self.ask(now)

    def ask(self, now: float) -> None:
        """Ask it, once."""
        self.retry_at = None
        try:
            self.cluster.ask(self._request, self, self._target, now)
        except PenstockError as error:
            self._failed(error, now)

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        """It was answered, or will not be."""
        answer = event.answer if isinstance(event, Answered) else event.error if isinstance(event, Lost) else None
        if isinstance(answer, PenstockError):
            self._failed(answer, now)
        else:
            self._settle(answer)

    def give_up(self, now: float) -> None:
        """Its time is over."""
        trouble = self._trouble or self.cluster.trouble(now)
        told = trouble or f"{self.cluster.name} has not answered"
        text = f"{type(self._request).__name__} for {self._target}: no answer within {self._timeout} s: {told}"
        self._settle(because(TimedOutError(text), trouble))

    def close(self, error: PenstockError) -> None:
        """Nobody will ask it any more."""
        self._settle(error)

    def _failed(self, error: PenstockError, now: float) -> None:
        self._trouble = error
        if self.cluster.is_closed:
            self._settle(because(ClosedError(f"the client of {self.cluster.name} was closed before the answer"), error))
        elif error.retriable:
            if error.refresh_metadata:
                self.cluster.refresh()
            self.retry_at = now + self._backoff.next()
        else:
            self._settle(error)

    def _settle(self, answer: Any) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            if isinstance(answer, PenstockError):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)
        self._owner.forget(self)


class Questions:
    """All questions of one client that have no answer yet."""

    def __init__(self, loop: Loop, clock: Clock, backoff: Callable[[], Backoff]) -> None:
        self.backoff = backoff
        self._loop = loop
        self._clock = clock
        self._open: dict[Question, None] = {}

    def __repr__(self) -> str:
        return f"<Questions, {len(self._open)} open>"

    def ask(self, cluster: Cluster, request: Request[Answer], target: Target, timeout: float) -> Future[Answer]:
        """The answer, once it is there; tried again for `timeout` seconds while that is of use."""
        question = Question(self, cluster, request, target, timeout)
        self._loop.call(lambda: self._begin(question))
        return question.future

    def forget(self, question: Question) -> None:
        """It is settled."""
        self._open.pop(question, None)

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News that nobody here asked for."""

    def work(self, now: float) -> float | None:
        """Ask again what has paused long enough, and give up what has waited too long."""
        for question in list(self._open):
            if question.future.cancelled():
                self.forget(question)
            elif now >= question.deadline:
                question.give_up(now)
            elif question.retry_at is not None and now >= question.retry_at:
                question.ask(now)
        moments = [
            question.deadline if question.retry_at is None else min(question.deadline, question.retry_at)
            for question in self._open
        ]
        return min(moments, default=None)

    def abort(self, error: PenstockError) -> None:
        """The loop has ended."""
        for question in list(self._open):
            question.close(error)

    def _begin(self, question: Question) -> None:
        self._open[question] = None
        question.begin(self._clock.monotonic())
