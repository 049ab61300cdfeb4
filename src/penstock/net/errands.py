"""Errands that somebody waits for: begun on any thread, done on the I/O thread, their outcome in a future.

Runs on: `run` on any thread, the rest on the I/O thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import ClosedError, PenstockError
from penstock.net.backoff import earliest
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.errand import Errand, Steps
from penstock.net.loop import Loop

Result = TypeVar("Result")


class Errands:
    """All errands of one client that are not over yet."""

    def __init__(self, loop: Loop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._open: dict[Errand, tuple[Cluster, Future[Any]]] = {}

    def __repr__(self) -> str:
        return f"<Errands, {len(self._open)} under way>"

    def run(self, cluster: Cluster, steps: Steps[Result]) -> Future[Result]:
        """What these steps come to. An error that they raise is the future's; cancelling it ends them."""
        future: Future[Result] = Future()
        self._loop.call(lambda: self._begin(cluster, steps, future))
        return future

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News that nobody here waits for; conditions are looked at in each turn."""

    def work(self, now: float) -> float | None:
        """Take the steps that can be taken."""
        deadlines = []
        for errand, (cluster, future) in list(self._open.items()):
            if future.cancelled():
                self._end(errand)
            elif cluster.is_closed:
                self._fail(errand, ClosedError(f"the client of {cluster.name} was closed before the answer"))
            else:
                deadlines.append(errand.work(now))
        return earliest(deadlines)

    def abort(self, error: PenstockError) -> None:
        """The loop has ended."""
        for errand in list(self._open):
            self._fail(errand, error)

    def _begin(self, cluster: Cluster, steps: Steps[Any], future: Future[Any]) -> None:
        result: list[Any] = []

        def all_steps() -> Steps[None]:
            result.append((yield from steps))

        errand = Errand(cluster, all_steps(), lambda error: self._done(errand, error, result))
        self._open[errand] = (cluster, future)
        errand.begin(self._clock.monotonic())

    def _done(self, errand: Errand, error: PenstockError | None, result: list[Any]) -> None:
        future = self._open.pop(errand)[1]
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(result[0])
        else:
            future.set_exception(error)

    def _fail(self, errand: Errand, error: PenstockError) -> None:
        future = self._open[errand][1]
        self._end(errand)
        if future.set_running_or_notify_cancel():
            future.set_exception(error)

    def _end(self, errand: Errand) -> None:
        del self._open[errand]
        errand.drop()
