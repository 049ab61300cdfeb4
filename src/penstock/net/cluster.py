"""One cluster as a client uses it: asked for leaders when needed, a connection per broker on first use, and requests to
whoever should have them.

What is known is in `topology`, what to ask next in `lookups`, whom to ask in `links`; this file lets them work together
and is the only one that holds connections. One turn of the loop is

    events = cluster.turn(ready, now)          connect, read, handle answers, write; metadata; asks
    ...                                        the sender handles events and submits to `connection(node, now)`
    timeout = cluster.before_poll() - now      interest told to the poller; when to come back at the latest

Every new connection first introduces itself with an empty look-up, and is used only when the answer names the right
cluster. Addresses are used again by others; without this, a message could be stored in a cluster nobody meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.config import ClientOptions
from penstock.errors import ConnectionLostError, NotSentError, PenstockError
from penstock.net.asks import Ask, Asks, Target, Whom, Why
from penstock.net.backoff import Backoff, RandomSource, earliest
from penstock.net.failures import because
from penstock.net.gate import IoMemory
from penstock.net.links import Connected, Disconnected, Link, Links, Unreachable, Use, Wait, choose
from penstock.net.lookups import LookUps
from penstock.net.pipeline import Closed, Lost, Pipeline, PipelineEvent, PipelineLimits, Sent, State
from penstock.net.poller import ReadyIo, Watcher
from penstock.net.stream import StreamFactory
from penstock.net.topology import NodeGone, NodeMoved, TopicChanged, TopicFailed, Topology
from penstock.wire.protocol import (
    Answered,
    ClusterView,
    Endpoint,
    LookUp,
    NodeId,
    Partition,
    Ready,
    Request,
    Wire,
)


@dataclass(frozen=True, slots=True)
class NetParts:
    """What the clusters of one client share: transport, poller, the gates' memory, the room to receive in, options."""

    streams: StreamFactory
    poller: Watcher
    memory: IoMemory
    room: memoryview
    random: RandomSource
    options: ClientOptions


ClusterEvent: TypeAlias = Answered | Sent | Lost | Connected | Disconnected | TopicChanged | TopicFailed | Unreachable


class Cluster:
    """Brokers, leaders and connections of one cluster. Runs on: the I/O thread."""

    def __init__(self, name: str, seeds: Sequence[Endpoint], wire: Wire, parts: NetParts) -> None:
        self.name = name
        self.topology = Topology(name)
        self._wire = wire
        self._parts = parts
        self._links = Links(seeds, self._backoff)
        self._lookups = LookUps(self._backoff(), parts.options.metadata_age_max_ms / 1000)
        self._asks = Asks()
        self._asked = False  # since asks were last sent
        self._retry_at: float | None = None
        self._tick_at = -math.inf  # when time next brings something to a connection, or to a link that is wanted
        self._events: list[ClusterEvent] = []
        self._closed = False

    # What is known

    def want(self, topic: str, now: float, *, create: bool = False, keep: bool = False) -> None:
        """This topic is in use; to be said again on each use, since unused ones are forgotten, or once with `keep`.

        Raises `BusyError`.
        """
        self._lookups.want(topic, now, create=create, keep=keep)

    def forget(self, topic: str) -> None:
        """Nobody uses this topic any more."""
        self._lookups.forget(topic)
        self.topology.forget(topic)

    def refresh(self, topic: str | None = None) -> None:
        """What is known of this topic, or of everything, has proved wrong: ask again soon."""
        self._lookups.refresh(topic)

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is not known."""
        return self.topology.partitions(topic)

    def leader(self, partition: Partition) -> NodeId | None:
        """Who leads a partition; None while nobody does, or it is not known."""
        return self.topology.leader(partition)

    def error(self, topic: str) -> PenstockError | None:
        """Why a topic cannot be used, as last told."""
        return self.topology.error(topic)

    def trouble(self, now: float) -> NotSentError | None:
        """Why nobody can be asked: what was tried, for how long, and the last answer. None while somebody can."""
        story = self._links.trouble(now)
        if not story or any(link.vetted for link in self._links):
            return None
        return NotSentError(f"{self.name} cannot be reached: {story}")

    @property
    def is_closed(self) -> bool:
        """Whether it was closed on this side."""
        return self._closed

    def failure(self, node: NodeId) -> PenstockError | None:
        """Why a broker cannot be spoken to, as of the last attempt; None when it can, or was not tried."""
        link = self._links.node(node)
        return link.failure if link else None

    def enlists(self, node: NodeId) -> bool | None:
        """Whether a broker enlists by itself what is used in a transaction; None while it cannot be spoken to."""
        link = self._links.node(node)
        if link is None or link.pipeline is None or link.pipeline.ready is None or not link.vetted:
            return None
        return link.pipeline.ready.enlists

    def meet(self, node: NodeId, endpoint: Endpoint, now: float) -> None:
        """A broker named outside of metadata, as the home of a transaction."""
        for change in self.topology.meet(node, endpoint):
            if isinstance(change, NodeMoved):
                self._move(change, now)
        self._links.name_nodes(self.topology.nodes)

    # Requests

    def connection(self, node: NodeId, now: float) -> Pipeline | None:
        """The connection to a broker, opened when first asked for; None until it can be used."""
        link = self._links.node(node)
        if link is None or node not in self.topology.nodes or self._closed:
            self._lookups.refresh_nodes()
            return None
        if link.pipeline is not None:
            return link.pipeline if link.vetted else None
        if now >= link.retry_at:
            self._open(link, now)
        link.wanted = link.pipeline is None
        return None

    def ask(self, request: Request[Any], token: object, target: Target, now: float) -> None:
        """Send a request as soon as whom it is for can have it; its outcome comes as an event with this token.

        It is sent again as long as it was certainly not sent, until the request timeout is over. Raises `BusyError`.
        """
        if self._closed:
            raise NotSentError(f"{self.name} is closed")
        self._asks.check_room(self.name)
        if isinstance(target, Partition):
            self._lookups.want(target.topic, now)
        self._asks.add(Ask(request, token, target, self._deadline(now)))
        self._asked = True

    def flush(self, now: float) -> None:
        """Let all frames out of the gates."""
        for pipeline in self._links.pipelines():
            self._handle(pipeline, pipeline.flush(now), now)

    # The loop

    def turn(self, ready: Sequence[ReadyIo], now: float) -> list[ClusterEvent]:
        """Do what can be done now; what came of it. What is ready on other clusters' connections is passed over.

        All is read before anything is written: a broker that waits for its answers to be read does not read itself.
        """
        is_due = now >= self._tick_at
        if is_due:
            self._links.wake(now)
        for pipeline in self._ours(key for key, readable, _ in ready if readable):
            self._handle(pipeline, pipeline.on_readable(now), now)
        for pipeline in self._ours(key for key, _, writable in ready if writable):
            self._handle(pipeline, pipeline.on_writable(now), now)
        if is_due:
            for pipeline in self._links.pipelines():
                self._handle(pipeline, pipeline.tick(now), now)
        self._maybe_look_up(now)
        self._send_asks(now)
        for pipeline in self._links.superfluous():
            self._handle(pipeline, pipeline.close(ConnectionLostError(f"{pipeline.name}: not needed any more")), now)
        events, self._events = self._events, []
        return events

    def _ours(self, keys: Iterable[object]) -> Iterator[Pipeline]:
        """Those of these connections that are ours, one after the other, since one may end another."""
        for key in keys:
            link = self._links.find(key)
            if link is not None and link.pipeline is not None:
                yield link.pipeline

    def before_poll(self) -> float | None:
        """Tell the poller what to watch; the moment of the next turn if nothing happens before."""
        deadlines = [self._links.next_deadline()]
        connecting = False
        for pipeline, link in self._links.connections():
            interest = pipeline.interest()
            if interest != link.watched:
                self._parts.poller.watch(pipeline, interest.descriptor, read=interest.read, write=interest.write)
                link.watched = interest
            deadlines.append(pipeline.next_deadline())
            connecting = connecting or pipeline.state is State.CONNECTING
        tick_at = earliest(deadlines)
        # Whoever resolves names wakes us, and then there is nothing to be read or written yet.
        self._tick_at = -math.inf if connecting else math.inf if tick_at is None else tick_at
        if self._events or self._closed:
            return -math.inf if self._events else None
        if self._asked:
            return -math.inf  # after this turn had sent what was asked before: the next one must not wait
        return earliest((tick_at, self._lookups.next_deadline(), self._asks.next_deadline(), self._retry_at))

    def close(self, now: float) -> list[ClusterEvent]:
        """Close all connections; every request that has no outcome gets one."""
        self._closed = True
        reason = ConnectionLostError(f"{self.name} was closed on this side")
        for pipeline in self._links.pipelines():
            self._handle(pipeline, pipeline.close(reason), now)
        for ask in self._asks.take():
            self._lose(ask, because(NotSentError(f"never sent: {reason}"), reason), now)
        events, self._events = self._events, []
        return events

    # Connections

    def _backoff(self) -> Backoff:
        options = self._parts.options
        return Backoff(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000, self._parts.random)

    def _open(self, link: Link, now: float) -> None:
        options = self._parts.options
        pipeline = Pipeline(
            str(link.endpoint),
            self._parts.streams.open(link.endpoint, now),
            self._wire.connection(options.client_id, options.frame_bytes_max),
            self._parts.memory,
            self._parts.room,
            PipelineLimits.of(options),
        )
        self._links.opened(link, pipeline, now)
        self._handle(pipeline, pipeline.tick(now), now)

    def _handle(self, pipeline: Pipeline, events: Sequence[PipelineEvent], now: float) -> None:
        if not events:
            return
        idle = not any(isinstance(event, Lost) for event in events)
        for event in events:
            if isinstance(event, Ready):
                self._introduce(pipeline, event, now)
            elif isinstance(event, Closed):
                self._ended(pipeline, event.reason, now, idle=idle)
            elif not isinstance(event.token, Ask):
                self._events.append(event)
            elif isinstance(event, Lost):
                self._lose(event.token, event.error, now)
            elif isinstance(event, Answered):
                self._answered(pipeline, event.token, event, now)
            else:
                self._events.append(Sent(event.token.token))

    def _introduce(self, pipeline: Pipeline, ready: Ready, now: float) -> None:
        if not pipeline.has_room(now):
            return  # it ended in the same breath
        introduction = Ask(LookUp(frozenset()), None, Whom.ANYBODY, math.inf, Why.INTRODUCTION, ready)
        try:
            pipeline.submit(introduction.request, introduction, now)
        except PenstockError as error:
            self._handle(pipeline, pipeline.close(error), now)

    def _ended(self, pipeline: Pipeline, reason: PenstockError, now: float, *, idle: bool) -> None:
        self._parts.poller.unwatch(pipeline)
        link = self._links.find(pipeline)
        if link is None:
            return
        harmless = link.vetted and idle
        self._links.ended(pipeline)
        self._events.append(Disconnected(link.peer, reason))
        if self._closed or harmless:
            return
        link.failed(reason, now)
        if self._lookups.topics:
            self._lookups.refresh()
        trouble = self.trouble(now)
        if trouble is not None and self._links.all_failed():
            self._events.append(Unreachable(because(trouble, reason)))

    def _move(self, change: NodeMoved, now: float) -> None:
        link = self._links.node(change.node)
        if link is not None and link.pipeline is not None:
            reason = ConnectionLostError(f"broker {change.node} moved from {link.endpoint} to {change.endpoint}")
            self._handle(link.pipeline, link.pipeline.close(reason), now)

    # Asks and their outcomes

    def _maybe_look_up(self, now: float) -> None:
        look_up = None if self._closed else self._lookups.next(now)
        if look_up is not None:
            self._asks.add(Ask(look_up, None, Whom.ANYBODY, self._deadline(now), Why.LOOK_UP))

    def _send_asks(self, now: float) -> None:
        self._retry_at = None
        self._asked = False
        for ask in self._asks.take() if self._asks else ():
            if now >= ask.deadline:
                self._lose(ask, self._expired(ask, now), now)
                continue
            pipeline = self._pipeline_for(ask.target, now)
            if pipeline is None or not pipeline.has_room(now):
                self._asks.add(ask)
                continue
            try:
                pipeline.submit(ask.request, ask, now)
            except PenstockError as error:
                self._answered(pipeline, ask, Answered(ask, error), now)

    def _pipeline_for(self, target: Target, now: float) -> Pipeline | None:
        node: NodeId | None
        if isinstance(target, Whom):
            node = self.topology.controller if target is Whom.CONTROLLER else None
            if target is Whom.ANYBODY or (node is None and self.topology.nodes):
                return self._anybody(now)  # a cluster that names no controller has none, or will tell who it is
        else:
            node = self.topology.leader(target) if isinstance(target, Partition) else target
        if node is not None:
            return self.connection(node, now)
        if isinstance(target, Partition):
            self._lookups.refresh(target.topic)
        else:
            self._lookups.refresh_nodes()
        return None

    def _anybody(self, now: float) -> Pipeline | None:
        while True:
            chosen = choose(self._links.standings(self.topology.nodes, now), now)
            if isinstance(chosen, Wait):
                self._retry_at = chosen.until
                return None
            link = self._links.peer(chosen.peer)
            if isinstance(chosen, Use):
                return link.pipeline
            self._open(link, now)  # one that fails at once may be tried again later only, so this ends

    def _answered(self, pipeline: Pipeline, ask: Ask, event: Answered, now: float) -> None:
        if ask.why is Why.ASKED:
            self._events.append(Answered(ask.token, event.answer, event.throttle_ms))
            return
        asked = ask.request.topics if isinstance(ask.request, LookUp) and ask.request.topics else frozenset()
        error = self._learn(pipeline, event.answer, asked, now)
        if ask.why is Why.LOOK_UP:
            self._looked_up(asked, error, now)
        elif error is not None:
            self._handle(pipeline, pipeline.close(error), now)
        else:
            link = self._links.find(pipeline)
            if link is not None and ask.ready is not None:
                link.worked()
                self._events.append(Connected(link.peer, ask.ready))

    def _learn(
        self, pipeline: Pipeline, answer: ClusterView | PenstockError, asked: frozenset[str], now: float
    ) -> PenstockError | None:
        """Merge a view; why it could not be."""
        if isinstance(answer, PenstockError):
            return answer
        try:
            changes = self.topology.learn(answer, asked)
        except PenstockError as foreign:
            self._handle(pipeline, pipeline.close(foreign), now)
            return foreign
        for change in changes:
            if isinstance(change, NodeMoved):
                self._move(change, now)
            elif not isinstance(change, NodeGone):
                self._events.append(change)
        self._links.name_nodes(self.topology.nodes)
        return None

    def _looked_up(self, asked: frozenset[str], error: PenstockError | None, now: float) -> None:
        if error is not None:
            self._lookups.failed(now)
            return
        unsettled = [topic for topic in asked if not self.topology.is_settled(topic)]
        for topic in self._lookups.answered(unsettled, now):
            self.topology.forget(topic)
        for topic in asked.difference(self._lookups.topics):
            self.topology.forget(topic)

    def _lose(self, ask: Ask, error: PenstockError, now: float) -> None:
        if ask.why is Why.INTRODUCTION:
            return
        if isinstance(error, NotSentError) and now < ask.deadline and not self._closed:
            self._asks.add(ask)
        elif ask.why is Why.LOOK_UP:
            self._lookups.failed(now)
        else:
            self._events.append(Lost(ask.token, error))

    def _expired(self, ask: Ask, now: float) -> NotSentError:
        trouble = self.trouble(now)
        told = str(trouble) if trouble else f"{self.name} had no connection with room for it in time"
        if isinstance(ask.target, Partition) and (error := self.topology.error(ask.target.topic)) is not None:
            return because(NotSentError(f"{ask} was never sent: {error}"), error)
        return NotSentError(f"{ask} was never sent: {told}")

    def _deadline(self, now: float) -> float:
        return now + self._parts.options.request_timeout_ms / 1000

    def __repr__(self) -> str:
        return f"<Cluster {self.name}, {self.topology!r}, {self._links!r}, {self._lookups!r}, {self._asks!r}>"
