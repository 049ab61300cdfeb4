"""Asking those who keep the books: the home of a transactional id, and the homes of groups.

A home is a broker that is found by asking anybody. It is asked again, after a pause that grows, while that is of use; a
home that has moved, or cannot be reached, is looked for anew before.

Runs on: the I/O thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.clock import Clock
from penstock.errors import NotSentError, PenstockError, Persisted, UnknownTopicError
from penstock.net.asks import Whom
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster
from penstock.net.errand import Ask, Pause, Steps, Until
from penstock.net.failures import because
from penstock.wire.protocol import FindHome, NodeId, Request


class Told(NamedTuple):
    """What came of asking: the answer, or the error that it ended with."""

    answer: Any
    error: PenstockError | None
    maybe_done: bool
    """Whether one of the attempts that failed may have had its effect all the same."""


class Patience(NamedTuple):
    """How long asking goes on: until this moment, and only as long as this holds."""

    until: float = math.inf
    goes_on: Callable[[], bool] = lambda: True


class Homes:
    """The homes that are known of, and how they are asked."""

    def __init__(self, cluster: Cluster, clock: Clock, backoff: Callable[[], Backoff], unknown_topic: float) -> None:
        """`unknown_topic`: for how many seconds a topic may be unknown."""
        self.trouble: PenstockError | None = None
        """Why asking did not succeed yet."""
        self._cluster = cluster
        self._clock = clock
        self._backoff = backoff
        self._unknown_topic = unknown_topic
        self._nodes: dict[FindHome, NodeId] = {}

    def __repr__(self) -> str:
        return f"<Homes, {len(self._nodes)} known>"

    def asked(self, home: FindHome, request: Request[Any], patience: Patience = Patience()) -> Steps[Told]:  # noqa: B008
        """What this home says in the end."""
        backoff = self._backoff()
        began = self._clock.monotonic()
        maybe_done = False
        while True:
            node = yield from self.find(home)
            answer = node if isinstance(node, PenstockError) else (yield Ask(request, node))
            self.trouble = error = _error_in(answer)
            if error is None:
                return Told(answer, None, maybe_done)
            if not isinstance(node, PenstockError):
                maybe_done |= error.persisted is Persisted.MAYBE
            if error.refresh_metadata:
                self._nodes.pop(home, None)
            again_at = self._clock.monotonic() + backoff.next()
            until = min(patience.until, began + self._unknown_topic if _is_unknown(error) else math.inf)
            if not error.retriable or again_at > until or not patience.goes_on() or self._cluster.is_closed:
                return Told(answer, error, maybe_done)
            yield Pause(again_at)

    def find(self, home: FindHome) -> Steps[NodeId | PenstockError]:
        """The broker that keeps these books, connected; or why it cannot be had now."""
        node = self._nodes.get(home)
        if node is None:
            found = yield Ask(home, Whom.ANYBODY)
            if isinstance(found, PenstockError):
                return found
            node, endpoint = found
            self._cluster.meet(node, endpoint, self._clock.monotonic())
            self._nodes[home] = node
        return (yield from self.reach(node, f"broker {node}, which keeps the books of {home.name}"))

    def reach(self, node: NodeId, who: str) -> Steps[NodeId | PenstockError]:
        """This broker, connected; or why it cannot be had now."""
        yield Until(lambda now: self._is_decided(node, now))
        if self._cluster.connection(node, self._clock.monotonic()) is None:
            failure = self._cluster.failure(node)
            what = f"{who}, cannot be reached"
            return because(NotSentError(f"{what}: {failure}" if failure else what), failure)
        return node

    def enlists(self, home: FindHome) -> bool:
        """Whether the home is known to enlist by itself what is used in a transaction."""
        node = self._nodes.get(home)
        return node is not None and self._cluster.enlists(node) is True

    def _is_decided(self, node: NodeId, now: float) -> bool:
        """Whether a broker can be asked, or cannot for now."""
        cluster = self._cluster
        return (
            cluster.connection(node, now) is not None
            or cluster.failure(node) is not None
            or node not in cluster.topology.nodes
            or cluster.is_closed
        )


def _error_in(answer: Any) -> PenstockError | None:
    """The error that decides about an answer: of several the one that will not pass."""
    if isinstance(answer, PenstockError):
        return answer
    if not isinstance(answer, Mapping):
        return None
    errors = [error for error in answer.values() if isinstance(error, PenstockError)]
    return min(errors, key=lambda error: (error.retriable, not _is_unknown(error)), default=None)


def _is_unknown(error: PenstockError) -> bool:
    return isinstance(error, UnknownTopicError)
