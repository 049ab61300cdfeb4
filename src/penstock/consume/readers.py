"""The readers' part in each turn of the loop: all readers of one client, on all its clusters.

Each has a cluster of its own, that is connections of its own, which come and go with it.

Runs on: the I/O thread.
"""

from __future__ import annotations

from penstock.consume.fetcher import Fetcher
from penstock.errors import ClosedError, PenstockError
from penstock.net.backoff import earliest
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.loop import Loop


class Readers:
    """All of them that are not over."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._fetchers: dict[Cluster, Fetcher] = {}

    def __repr__(self) -> str:
        return f"<Readers, {len(self._fetchers)} at work>"

    def attach(self, fetcher: Fetcher, now: float) -> None:
        """A reader begins, unless it was closed before."""
        if fetcher.is_over:
            fetcher.gone.set_result(None)
            return
        self._fetchers[fetcher.cluster] = fetcher
        self._loop.clusters.append(fetcher.cluster)
        fetcher.begin(now)

    def detach(self, fetcher: Fetcher, now: float) -> None:
        """A reader ends, and lets go of its connections."""
        fetcher.end(ClosedError("the reader was closed"))
        if self._fetchers.pop(fetcher.cluster, None) is None:
            return
        self._loop.clusters.remove(fetcher.cluster)
        for event in fetcher.cluster.close(now):
            self._loop.tell(fetcher.cluster, event, now)
        fetcher.gone.set_result(None)

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News of a cluster."""
        fetcher = self._fetchers.get(cluster)
        if fetcher is not None:
            fetcher.handle(event, now)

    def work(self, now: float) -> float | None:
        """Do what is due; when to come back at the latest."""
        deadlines = [fetcher.work(now) for fetcher in self._fetchers.values()]
        for fetcher in [fetcher for fetcher in self._fetchers.values() if fetcher.is_over]:
            self.detach(fetcher, now)
        return earliest(deadlines)

    def abort(self, error: PenstockError) -> None:
        """The loop has ended, and closed all clusters."""
        for fetcher in self._fetchers.values():
            fetcher.end(error)
            fetcher.gone.set_result(None)
        self._fetchers.clear()
