"""Steps that follow each other on the I/O thread, written down in order although each may take many turns.

An errand is a generator. It yields what it waits for and is resumed with what came of it:

    Ask      a request to somebody       its answer, or the error that came instead
    Until    a condition, of the moment  nothing; it is looked at in each turn, and at a moment that it may name
    Pause    a moment                    nothing

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from penstock.errors import PenstockError
from penstock.net.asks import Target
from penstock.net.cluster import Cluster
from penstock.net.pipeline import Lost, Sent
from penstock.wire.protocol import Answered, Request


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this of somebody, once."""

    request: Request[Any]
    target: Target


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until this holds; `look_at` is when it holds at the latest because time has passed."""

    holds: Callable[[float], bool]
    look_at: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until this moment."""

    until: float


Result = TypeVar("Result")
Steps: TypeAlias = Generator[Ask | Until | Pause, Any, Result]


class Errand:
    """Somebody's steps, until they have come to an end: `done` gets the error, or None."""

    def __init__(self, cluster: Cluster, steps: Steps[None], done: Callable[[PenstockError | None], None]) -> None:
        self._cluster = cluster
        self._steps = steps
        self._done = done
        self._wait: Ask | Until | Pause | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether it takes no further step."""
        return self._is_over

    def __repr__(self) -> str:
        return f"<Errand {'over' if self._is_over else f'that waits for {self._wait}'}>"

    def begin(self, now: float) -> None:
        """Take the first step."""
        self._go_on(None, now)

    def work(self, now: float) -> float | None:
        """Go on if what it waits for has come; when to look again at the latest."""
        while not self._is_over:
            wait = self._wait
            if isinstance(wait, Pause) and now < wait.until:
                return wait.until
            if isinstance(wait, Until) and not wait.holds(now):
                return wait.look_at
            if isinstance(wait, Ask):
                return None
            self._go_on(None, now)
        return None

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        """What was asked has its outcome."""
        if not self._is_over:
            self._go_on(event.answer if isinstance(event, Answered) else getattr(event, "error", None), now)

    def drop(self) -> None:
        """Take no further step, and tell nobody."""
        self._is_over = True
        self._steps.close()

    def _go_on(self, outcome: Any, now: float) -> None:
        """Take one step; what cannot be asked is an answer too."""
        while True:
            try:
                self._wait = self._steps.send(outcome)
            except StopIteration:
                self._end(None)
                return
            except PenstockError as error:
                self._end(error)
                return
            if not isinstance(self._wait, Ask):
                return
            try:
                self._cluster.ask(self._wait.request, self, self._wait.target, now)
            except PenstockError as error:
                outcome = error
            else:
                return

    def _end(self, error: PenstockError | None) -> None:
        self._is_over = True
        self._done(error)
