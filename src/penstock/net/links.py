"""The brokers one may speak to, the connection to each if there is one, and whom to take for a request to anybody.

A peer is a broker by its id or, before the cluster has named its brokers, a seed by its endpoint. A seed that turns out
to be a broker hands its connection over to it, so that no broker is connected to twice.

Whom to ask when anybody will do (`choose`, pure):

1. of the peers that are usable and have room, the one with the fewest requests in flight;
2. while one is being opened, or all usable ones are full: nobody, wait;
3. of the peers that may be tried, the one with the fewest failures; brokers before seeds, seeds in their order;
4. else wait until one may be tried again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import NotSentError, PenstockError
from penstock.net.backoff import Backoff
from penstock.net.pipeline import Interest, Pipeline
from penstock.wire.protocol import Endpoint, NodeId, Ready

Peer: TypeAlias = NodeId | Endpoint
UNWATCHED: Final = Interest(-1, read=False, write=False)


class LinkState(enum.Enum):
    """What a peer is good for now."""

    ROOM = "room"
    FULL = "full"
    OPENING = "opening"
    DOWN = "down"


class Standing(NamedTuple):
    """What choosing needs to know of a peer."""

    peer: Peer
    state: LinkState
    load: int = 0
    failures: int = 0
    retry_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class Use:
    """Send it there."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Open:
    """Connect to there, and wait."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before this moment; None: before something happens on a connection."""

    until: float | None = None


def choose(standings: Sequence[Standing], now: float) -> Use | Open | Wait:
    """Whom to ask when anybody will do."""
    usable = [standing for standing in standings if standing.state is LinkState.ROOM]
    if usable:
        return Use(min(usable, key=lambda standing: standing.load).peer)
    if any(standing.state is not LinkState.DOWN for standing in standings):
        return Wait()
    due = [standing for standing in standings if standing.retry_at <= now]
    if due:
        return Open(min(due, key=lambda standing: standing.failures).peer)
    return Wait(min((standing.retry_at for standing in standings), default=None))


@dataclass(frozen=True, slots=True)
class Connected:
    """A broker can be spoken to; `ready` is what its greeting said."""

    peer: Peer
    ready: Ready


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to a broker could not be opened, or is over; its tokens had their outcomes before."""

    peer: Peer
    reason: PenstockError


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Everybody that could be asked was tried in vain; trying goes on."""

    error: NotSentError


@dataclass(slots=True, eq=False)
class Link:
    """A peer and the connection to it. Runs on: the I/O thread."""

    peer: Peer
    endpoint: Endpoint
    backoff: Backoff
    pipeline: Pipeline | None = None
    vetted: bool = False
    """Whether the one at the other end has shown that it belongs to the cluster."""
    watched: Interest = UNWATCHED
    wanted: bool = False
    """Whether somebody waits for a connection that may not be opened yet."""
    retry_at: float = -math.inf
    failure: PenstockError | None = None
    opened_at: float = math.inf
    failing_since: float = math.inf
    failed_at: float = -math.inf

    def standing(self, now: float) -> Standing:
        """What choosing needs to know of it."""
        if self.pipeline is None:
            return Standing(self.peer, LinkState.DOWN, 0, self.backoff.failures, self.retry_at)
        if not self.vetted:
            return Standing(self.peer, LinkState.OPENING)
        state = LinkState.ROOM if self.pipeline.has_room(now) else LinkState.FULL
        return Standing(self.peer, state, self.pipeline.in_flight)

    def failed(self, error: PenstockError, now: float) -> None:
        """The connection could not be opened, or was lost: pause before the next attempt."""
        self.failure = error
        self.failing_since = min(self.failing_since, self.opened_at, now)
        self.failed_at = now
        self.retry_at = now + self.backoff.next()

    def worked(self) -> None:
        """The connection is open and to the right cluster."""
        self.vetted = True
        self.forgive()

    def forgive(self) -> None:
        """Forget its failures."""
        self.failure = None
        self.failing_since = math.inf
        self.backoff.reset()

    def hand_over(self, to: Link) -> None:
        """Let another link have the connection."""
        to.pipeline, self.pipeline = self.pipeline, None
        to.watched, self.watched = self.watched, UNWATCHED
        to.vetted, self.vetted = self.vetted, False
        self.forgive()


class Links:
    """The links of one cluster: brokers by their ids, then seeds in the order given. Runs on: the I/O thread."""

    def __init__(self, seeds: Sequence[Endpoint], backoff: Callable[[], Backoff]) -> None:
        self._backoff = backoff
        self._seeds = [Link(seed, seed, backoff()) for seed in dict.fromkeys(seeds)]
        self._nodes: dict[NodeId, Link] = {}
        self._open: dict[Pipeline, Link] = {}
        self._named: frozenset[NodeId] = frozenset()
        self._strays: list[Pipeline] | None = None  # connections to others than brokers; None: to be looked for

    def __iter__(self) -> Iterator[Link]:
        yield from self._nodes.values()
        yield from self._seeds

    def pipelines(self) -> list[Pipeline]:
        """All connections there are."""
        return list(self._open)

    def connections(self) -> Iterable[tuple[Pipeline, Link]]:
        """All connections, and whose they are."""
        return self._open.items()

    def find(self, key: object) -> Link | None:
        """The link whose connection this is; None when it is not ours, or not any more."""
        return self._open.get(key) if isinstance(key, Pipeline) else None

    def node(self, node: NodeId) -> Link | None:
        """The link of a broker, if the cluster has named it."""
        return self._nodes.get(node)

    def peer(self, peer: Peer) -> Link:
        """The link of a peer that `choose` named."""
        return next(link for link in self if link.peer == peer)

    def opened(self, link: Link, pipeline: Pipeline, now: float) -> None:
        """The link has a connection, which is being opened now."""
        link.opened_at = now
        link.pipeline, link.vetted, link.wanted, link.watched = pipeline, False, False, UNWATCHED
        self._open[pipeline] = link
        self._strays = None

    def ended(self, pipeline: Pipeline) -> Link | None:
        """The connection is over; whose it was."""
        link = self._open.pop(pipeline, None)
        self._strays = None
        if link is not None:
            link.pipeline, link.vetted, link.watched = None, False, UNWATCHED
        return link

    def name_nodes(self, nodes: Mapping[NodeId, Endpoint]) -> None:
        """The cluster has named its brokers: links for new ones, those that are gone and not open are dropped."""
        kept = {node: link for node, link in self._nodes.items() if node in nodes or link.pipeline is not None}
        for node, endpoint in nodes.items():
            if node not in kept:
                kept[node] = Link(node, endpoint, self._backoff())
            elif kept[node].endpoint != endpoint:
                kept[node].endpoint = endpoint
                kept[node].retry_at = -math.inf
        self._nodes = {node: kept[node] for node in sorted(kept, key=lambda node: (str(type(node)), node))}
        self._adopt(nodes)
        self._named = frozenset(nodes)
        self._strays = None

    def standings(self, nodes: Mapping[NodeId, Endpoint], now: float) -> list[Standing]:
        """All peers that anybody's request may go to."""
        return [link.standing(now) for link in self if link.peer in nodes or isinstance(link.peer, Endpoint)]

    def superfluous(self) -> list[Pipeline]:
        """Idle connections to brokers that are gone and, once a broker is connected, to seeds that are none."""
        if self._strays is None:
            self._strays = [
                pipeline
                for pipeline, link in self._open.items()
                if isinstance(link.peer, Endpoint) or link.peer not in self._named
            ]
        if not self._strays:
            return []
        connected = any(link.vetted for node, link in self._nodes.items() if node in self._named)
        return [
            pipeline
            for pipeline in self._strays
            if pipeline.in_flight == 0
            and (link := self._open[pipeline]).vetted
            and (connected or not isinstance(link.peer, Endpoint))
        ]

    def trouble(self, now: float) -> str:
        """What was tried, for how long, and the last answer; empty when nothing failed since it last worked."""
        failed = [link for link in self if link.failure is not None]
        if not failed:
            return ""
        since = now - min(link.failing_since for link in failed)
        last = max(reversed(failed), key=lambda link: link.failed_at)
        tried = ", ".join(dict.fromkeys(str(link.endpoint) for link in failed))
        return f"tried {tried} for {since:.1f} s; last answer: {last.failure}"

    def all_failed(self) -> bool:
        """Whether every peer was tried in vain since it last worked."""
        return all(link.failure is not None for link in self)

    def wake(self, now: float) -> None:
        """Whoever waited for a link that may be tried again is told by this turn, and asks for it again if need be."""
        for link in self:
            link.wanted = link.wanted and now < link.retry_at

    def next_deadline(self) -> float | None:
        """When a link that somebody waits for may be tried again."""
        waits = [link.retry_at for link in self if link.wanted and link.pipeline is None]
        return min(waits, default=None)

    def _adopt(self, nodes: Mapping[NodeId, Endpoint]) -> None:
        for seed in self._seeds:
            if seed.pipeline is None:
                continue
            node = next((node for node, endpoint in nodes.items() if endpoint == seed.endpoint), None)
            if node is not None and self._nodes[node].pipeline is None:
                self._open[seed.pipeline] = self._nodes[node]
                seed.hand_over(self._nodes[node])

    def __repr__(self) -> str:
        return f"<Links to {len(self._nodes)} brokers and {len(self._seeds)} seeds, {len(self._open)} open>"
