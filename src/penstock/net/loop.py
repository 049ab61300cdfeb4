"""The one I/O thread of a client: clusters take their turns, those who work with them take theirs, then it sleeps.

One turn is one function, `run_once`:

    calls from other threads
    each cluster's turn: connect, read, handle answers, write, metadata
    what came of it, told to whom it concerns
    the parties' work: expire, retry, seal, send
    interest and deadlines; then the poller sleeps until something happens

A token that is given to a cluster with a request is told of the outcome by its own `landed`; all other events go to
every party.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from penstock.clock import Clock
from penstock.errors import ClosedError, PenstockError
from penstock.net.backoff import earliest
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.fork import Birth
from penstock.net.pipeline import Lost, Sent
from penstock.net.poller import Poller, ReadyIo
from penstock.wire.protocol import Answered

_log = logging.getLogger("penstock")


class Token(Protocol):
    """What goes with a request."""

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        """The request has its outcome."""


class Party(Protocol):
    """Somebody who works with clusters in each turn. Runs on: the I/O thread."""

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """Something happened that was asked for by nobody in particular."""

    def work(self, now: float) -> float | None:
        """Do what is due; when to be called again at the latest."""

    def abort(self, error: PenstockError) -> None:
        """The loop has ended, for this reason: whatever still waits gets its outcome now."""


class Loop:
    """Turns until it is stopped. Runs on: its own thread, but for what is said to run on any."""

    def __init__(self, name: str, clock: Clock, poller: Poller) -> None:
        self.name = name
        self.clusters: list[Cluster] = []
        self.parties: list[Party] = []
        self._clock = clock
        self._poller = poller
        self._birth = Birth()
        self._calls: deque[Callable[[], None]] = deque()
        self._sleeps_until = math.inf
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._ended: PenstockError | None = None
        self.ended: Future[None] = Future()
        """Done when the thread has told everybody that it ends."""
        self.ended.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running" if self._thread else "not started"
        return f"<Loop {self.name}, {state}, {len(self.clusters)} clusters, {len(self._calls)} calls waiting>"

    # On any thread

    def start(self) -> None:
        """Begin to turn, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-{self.name}", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Have this run on the I/O thread, in its next turn; `ClosedError` when there is none and it will not run."""
        self.check_is_ours()
        self.check_turns()
        self._calls.append(function)
        self._poller.wake()
        if self._ended is not None:  # in the same moment
            try:
                self._calls.remove(function)
            except ValueError:
                return  # its last turn had it
            self.check_turns()

    @property
    def has_ended(self) -> bool:
        """Whether the thread turns no more."""
        return self._ended is not None

    def check_turns(self) -> None:
        """Raise when the thread turns no more."""
        if self._ended is not None:
            raise ClosedError(f"client {self.name} has ended: {self._ended}")

    def wake_by(self, moment: float) -> None:
        """See to it that there is a turn at this moment, or before."""
        if moment < self._sleeps_until:
            self._poller.wake()

    def check_is_ours(self) -> None:
        """Raise in a child of `fork()`, where locks may be held by threads that are gone."""
        self._birth.check(f"client {self.name}")

    def check_may_wait(self) -> None:
        """Raise when the caller would wait for ever: in a child of `fork()`, or on the I/O thread itself."""
        self.check_is_ours()
        if self.is_here():
            raise ClosedError(
                "waiting on the I/O thread, as in a callback, would wait for ever: ask for the outcome elsewhere"
            )

    def is_here(self) -> bool:
        """Whether this is the I/O thread."""
        return threading.current_thread() is self._thread

    def is_inherited(self) -> bool:
        """Whether this process got it by `fork()`."""
        return not self._birth.is_here()

    def stop(self, timeout: float) -> None:
        """End the thread after its present turn, and wait for that unless this is it."""
        self._stopping = True
        if self._thread is None or not self._birth.is_here():
            return
        self._poller.wake()
        if not self.is_here():
            self._thread.join(timeout)

    # On the I/O thread

    def run_once(self, ready: Sequence[ReadyIo], now: float) -> float | None:
        """One turn; when the next one is due at the latest, None: when something happens."""
        self._run_calls()
        for cluster in list(self.clusters):
            for event in cluster.turn(ready, now):
                self.tell(cluster, event, now)
        self._sleeps_until = math.inf  # whoever sets a deadline from here on wakes us, and it is not missed
        deadlines = [party.work(now) for party in list(self.parties)]
        deadlines += [cluster.before_poll() for cluster in self.clusters]
        return earliest(deadlines)

    def tell(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """Hand an event to whom it concerns."""
        if isinstance(event, Answered | Sent | Lost):
            event.token.landed(event, now)
        else:
            for party in list(self.parties):
                party.handle(cluster, event, now)

    def _run(self) -> None:
        ready: Sequence[ReadyIo] = ()
        reason: PenstockError = ClosedError(f"client {self.name} was closed")
        try:
            while not self._stopping:
                deadline = self.run_once(ready, self._clock.monotonic())
                self._sleeps_until = math.inf if deadline is None else deadline
                ready = self._poller.poll(None if deadline is None else deadline - self._clock.monotonic())
                self._sleeps_until = -math.inf
        except Exception as error:  # noqa: BLE001  # whoever waits must hear of it
            _log.exception("client %s cannot go on", self.name)
            reason = PenstockError(f"client {self.name} cannot go on: {error!r}")
            reason.__cause__ = error
        finally:
            self._end(reason)

    def _end(self, reason: PenstockError) -> None:
        self._ended = reason
        _at_all_costs(self._run_calls)
        for cluster in list(self.clusters):
            _at_all_costs(self._closing(cluster))
        for party in self.parties:
            _at_all_costs(lambda party=party: party.abort(reason))  # type: ignore[misc]
        self._poller.close()
        self.ended.set_result(None)

    def _closing(self, cluster: Cluster) -> Callable[[], None]:
        def close() -> None:
            now = self._clock.monotonic()
            for event in cluster.close(now):
                self.tell(cluster, event, now)

        return close

    def _run_calls(self) -> None:
        while self._calls:
            try:
                function = self._calls.popleft()
            except IndexError:
                return
            function()


def _at_all_costs(step: Callable[[], Any]) -> None:
    """What must be tried whatever the steps before brought."""
    try:
        step()
    except Exception:  # noqa: BLE001
        _log.exception("while a client was ending")
