"""Producers that are being closed: each ends when all that it has sent has its outcome, or when its time is over.

Closing goes on here whoever asked for it: a thread waits for the end, a task is suspended, a callback on the I/O thread
goes its way. While a producer is being closed no frame waits in a gate.
"""

from __future__ import annotations

from penstock.errors import ClosedError, PenstockError
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.produce.kernel import Parcel
from penstock.produce.outlet import Outlet
from penstock.produce.receipts import announce
from penstock.produce.sender import Sender
from penstock.wire.protocol import Stored


class Closing:
    """The end of one producer; `gone` is settled when it has come."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.gone = Parcel(outlet.topic, -1, outlet.lanes.home)
        self.deadline = float("inf")

    def __repr__(self) -> str:
        return f"<Closing of {self.outlet!r}, {'gone' if self.gone.verdict else f'until {self.deadline}'}>"

    def end(self) -> None:
        """Say that it has come."""
        if self.gone.verdict is None:
            self.gone.verdict = Stored(None)
            announce(self.gone)


class Closings:
    """All that are under way. Runs on: the I/O thread."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._open: dict[Closing, None] = {}

    def __repr__(self) -> str:
        return f"<Closings, {len(self._open)} under way>"

    def begin(self, closing: Closing, deadline: float, now: float) -> None:
        """End this one, at this moment at the latest; said again, the earlier moment counts."""
        closing.deadline = min(closing.deadline, deadline)
        if closing.gone.verdict is None and closing not in self._open:
            self._open[closing] = None
            self._sender.flushing += 1
            closing.outlet.cluster.flush(now)

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News that nobody here waits for."""

    def work(self, now: float) -> float | None:
        """End those that have nothing more to wait for."""
        for closing in list(self._open):
            if now >= closing.deadline or not closing.outlet.lanes.unsettled:
                self._end(closing, ClosedError(f"the producer of {closing.outlet.topic} was closed"))
        deadline = min((closing.deadline for closing in self._open), default=float("inf"))
        return None if deadline == float("inf") else deadline

    def abort(self, error: PenstockError) -> None:
        """The loop has ended."""
        for closing in list(self._open):
            self._end(closing, error)

    def _end(self, closing: Closing, error: PenstockError) -> None:
        del self._open[closing]
        self._sender.flushing -= 1
        self._sender.detach(closing.outlet, error)
        closing.end()
