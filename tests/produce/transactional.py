"""Producers with transactional ids on a model of a cluster, and a clock moved by hand: no threads and no sleep."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from penstock.clock import ManualClock
from penstock.config import BatchIo, BatchPolicy, ClientOptions, ProducerOptions
from penstock.errors import ClosedError, ConnectionLostError, NotSentError, PenstockError, TimedOutError
from penstock.metrics import Registry
from penstock.net.asks import Whom
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.loop import Loop
from penstock.net.meters import Meters
from penstock.net.pipeline import Lost
from penstock.net.poller import Poller
from penstock.net.topology import TopicChanged
from penstock.produce.accumulator import Accumulator
from penstock.produce.entrance import Entrance
from penstock.produce.kernel import Receipt
from penstock.produce.lanes import Lanes, Parts
from penstock.produce.router import Sticky
from penstock.produce.sender import Sender
from penstock.produce.transactions.keeper import KeeperParts, TransactionKeeper
from penstock.produce.transactions.transaction import Keepers, TransactionalOutlet, TransactionCore
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.protocol import Answered, NodeId, Partition, Request
from tests.produce.books_model import BooksModel

LATENCY = 0.002
RECONNECT = 0.1
TURNS_MAX = 2000


@dataclass
class Sent:
    """A request on its way to a broker."""

    request: Request[Any]
    token: Any
    handled_at: float
    joins: bool = False


@dataclass
class FakePipeline:
    """The connection to one broker: answers come in the order of the requests."""

    cluster: FakeCluster
    node: int
    queue: deque[Sent] = field(default_factory=deque)

    def has_room(self, now: float) -> bool:
        return len(self.queue) < 5

    def submit(self, request: Request[Any], token: Any, now: float, *policy: Any) -> None:
        self.cluster.launch(self.node, request, token, now)


class FakeCluster:
    """A `Cluster` as the sender and the keepers use it, with a model behind it."""

    name = "model"
    is_closed = False

    def __init__(self, model: BooksModel, chance: random.Random) -> None:
        self.model = model
        self.chance = chance
        self.topology = SimpleNamespace(nodes=dict(model.nodes))
        self.pipelines = {node: FakePipeline(self, node) for node in model.nodes}
        self.waiting: list[tuple[Request[Any], Any, Any, float]] = []
        self.down: dict[int, float] = {}
        """Brokers without a connection, and until when."""
        self.dead: set[int] = set()
        self.silent: Callable[[int, Request[Any]], bool] = lambda node, request: False
        """Whether a request is never answered."""
        self.cuts: Callable[[int, Request[Any]], str | None] = lambda node, request: None
        """Whether the connection ends "before" or "after" a request is handled."""
        self.known: set[str] = set()
        self.events: list[ClusterEvent] = []

    # What is known

    def want(self, topic: str, now: float, *, create: bool = False) -> None:
        if topic in self.model.topics and topic not in self.known:
            self.known.add(topic)
            self.events.append(TopicChanged(topic, self.model.topics[topic]))

    def refresh(self, topic: str | None = None) -> None: ...

    def partitions(self, topic: str) -> int | None:
        return self.model.topics.get(topic) if topic in self.known else None

    def leader(self, partition: Partition) -> NodeId | None:
        return self.model.leader(partition) if partition.topic in self.known else None

    def error(self, topic: str) -> PenstockError | None:
        return None

    def trouble(self, now: float) -> NotSentError | None:
        return None

    def failure(self, node: int) -> PenstockError | None:
        return ConnectionLostError(f"broker {node} is away") if node in self.down or node in self.dead else None

    def enlists(self, node: int) -> bool | None:
        return None if self.failure(node) else self.model.enlists

    def meet(self, node: NodeId, endpoint: Any, now: float) -> None:
        assert self.model.nodes[cast(int, node)] == endpoint

    # Requests

    def connection(self, node: int, now: float) -> FakePipeline | None:
        return None if self.failure(node) else self.pipelines[node]

    def ask(self, request: Request[Any], token: Any, target: Any, now: float) -> None:
        if self.is_closed:
            raise NotSentError("the cluster is closed")
        self.waiting.append((request, token, target, now + 30))

    def flush(self, now: float) -> None: ...

    def launch(self, node: int, request: Request[Any], token: Any, now: float) -> None:
        sent = Sent(request, token, now + LATENCY, self.model.will_join(request))
        self.model.collisions += sent.joins and self.model.joins > 0
        self.model.joins += sent.joins
        self.pipelines[node].queue.append(sent)

    # The loop

    def turn(self, ready: object, now: float) -> list[ClusterEvent]:
        self.down = {node: until for node, until in self.down.items() if until > now}
        for pipeline in self.pipelines.values():
            self._serve(pipeline, now)
        waiting, self.waiting = self.waiting, []
        for request, token, target, deadline in waiting:
            nodes = self._usable(target, now)
            if now >= deadline:
                self.events.append(Lost(token, NotSentError("no connection in time")))
            elif not nodes:
                self.waiting.append((request, token, target, deadline))
            else:
                self.launch(nodes[0], request, token, now)
        events, self.events = self.events, []
        return events

    def _serve(self, pipeline: FakePipeline, now: float) -> None:
        queue = pipeline.queue
        while queue and queue[0].handled_at <= now:
            sent = queue[0]
            if self.silent(pipeline.node, sent.request):
                if now < sent.handled_at + 30:
                    return
                self.lose(pipeline, TimedOutError("no answer in time"))
                return
            cut = self.cuts(pipeline.node, sent.request)
            if cut == "before":
                self.lose(pipeline, ConnectionLostError("cut"))
                return
            answer = self.model.answer(pipeline.node, sent.request)
            if cut is not None:
                self.lose(pipeline, ConnectionLostError("cut"))
                return
            queue.popleft()
            self.model.joins -= sent.joins
            self.events.append(Answered(sent.token, answer))

    def lose(self, pipeline: FakePipeline, error: PenstockError, now: float | None = None) -> None:
        """The connection ends; of what is on its way a part may still be handled."""
        lost = list(pipeline.queue)
        pipeline.queue.clear()
        for sent in lost[1 : 1 + self.chance.randrange(len(lost) or 1)]:
            self.model.answer(pipeline.node, sent.request)
        for sent in lost:
            self.model.joins -= sent.joins
            self.events.append(Lost(sent.token, error))
        self.down[pipeline.node] = self.model.clock.monotonic() + RECONNECT

    def before_poll(self) -> float | None:
        now = self.model.clock.monotonic()
        moments = [-math.inf] if self.events else []
        for pipeline in self.pipelines.values():
            if pipeline.queue:
                head = pipeline.queue[0]
                is_silent = head.handled_at <= now and self.silent(pipeline.node, head.request)
                moments.append(head.handled_at + 30 * is_silent)
        moments += self.down.values()
        if any(self._usable(target, now) for _, _, target, _ in self.waiting):
            moments.append(-math.inf)
        moments += [deadline for _, _, _, deadline in self.waiting]
        return min(moments, default=None)

    def _usable(self, target: Any, now: float) -> list[int]:
        nodes = list(self.pipelines) if target is Whom.ANYBODY else [target]
        return [node for node in nodes if self.failure(node) is None and self.pipelines[node].has_room(now)]

    def close(self, now: float) -> list[ClusterEvent]:
        self.is_closed = True
        for pipeline in self.pipelines.values():
            self.lose(pipeline, ConnectionLostError("closed"))
        events, self.events = self.events, []
        return events


class FakePoller:
    is_woken = False

    def wake(self) -> None:
        self.is_woken = True

    def close(self) -> None: ...


class World:
    """A client whose loop turns when it is told to."""

    def __init__(self, enlists: bool = True, nodes: int = 1, seed: int = 0, model: BooksModel | None = None) -> None:
        self.clock = model.clock if model else ManualClock(1000.0, 1_700_000_000_000)
        self.chance = random.Random(seed)
        self.model = model or BooksModel(self.clock, enlists, nodes)
        self.cluster = FakeCluster(self.model, self.chance)
        self.poller = FakePoller()
        self.loop = Loop("world", self.clock, cast(Poller, self.poller))
        self.loop.clusters.append(cast(Cluster, self.cluster))
        options = ClientOptions()
        self.accumulator = Accumulator(options.total_bytes_max, options.lanes_max, self.loop.wake_by)
        self.sender = Sender(self.accumulator, options, self.chance.random)
        self.loop.parties.append(self.sender)
        self.parts = KeeperParts(cast(Cluster, self.cluster), self.loop, self.sender, self.clock, self._backoff)
        self.keepers = Keepers(self.parts)
        self.meters = Meters(Registry(), "model")
        self.deadline: float | None = -math.inf
        self.others: list[World] = []
        """Clients on the same cluster."""

    def _backoff(self) -> Backoff:
        return Backoff(0.1, 1.0, self.chance.random)

    def other(self) -> World:
        """Another client of the same cluster."""
        made = World(model=self.model, seed=self.chance.randrange(1 << 30))
        self.others.append(made)
        return made

    def producer(self, topic: str = "t", name: str = "x", partitions: int = 1, **options: Any) -> Line:
        if topic not in self.model.topics:
            self.model.create(topic, partitions)
        policy = options.pop("policy", BatchPolicy(delay_ms=0))
        read = ProducerOptions(transactional_id=name, compression="none", **options)
        lanes = Lanes(
            Parts(topic, KafkaWire(), self.accumulator, self.clock, self.loop, read, policy, Sticky(self.chance))
        )
        outlet = self.keepers.outlet(lanes, BatchIo(), self.meters)
        Entrance(lanes)
        self.loop.call(lambda: self.sender.attach(outlet, self.now))
        return Line(self, lanes, outlet)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    # Turning

    def turn(self) -> None:
        self.poller.is_woken = False
        self.loop._sleeps_until = -math.inf
        self.deadline = self.loop.run_once((), self.now)
        self.loop._sleeps_until = math.inf if self.deadline is None else self.deadline

    def is_awake(self) -> bool:
        return self.poller.is_woken or (self.deadline is not None and self.deadline <= self.now)

    def settle(self) -> None:
        """Turn until all would sleep."""
        for _ in range(TURNS_MAX):
            awake = [world for world in (self, *self.others) if world.is_awake()]
            if not awake:
                return
            for world in awake:
                world.turn()
        raise AssertionError("busy for ever")

    def run(self, until: Callable[[], object], seconds: float = 600.0) -> None:
        """Turn, and let time pass, until it holds."""
        over = self.now + seconds
        self.settle()
        while not until():
            moments = [world.deadline for world in (self, *self.others) if world.deadline is not None]
            assert moments, f"asleep for ever: {self.describe()}"
            assert self.now <= over, f"not within {seconds} s: {self.describe()}"
            self.clock.advance(max(min(moments) - self.now, 1e-6))
            self.settle()

    def pass_time(self, seconds: float) -> None:
        over = self.now + seconds
        self.run(lambda: self.now >= over or not self._next_before(over))
        self.clock.advance(max(over - self.now, 0))
        self.settle()

    def _next_before(self, over: float) -> bool:
        moments = [world.deadline for world in (self, *self.others) if world.deadline is not None]
        return bool(moments) and min(moments) < over

    def describe(self) -> str:
        return f"{self.loop.parties}, {self.model.kinds()[-10:]}, waiting {self.cluster.waiting}"

    def done(self, future: Future[None], seconds: float = 600.0) -> None:
        """What came of it, waited for."""
        self.run(future.done, seconds)
        future.result(0)

    def error(self, future: Future[None], seconds: float = 600.0) -> BaseException:
        self.run(future.done, seconds)
        error = future.exception(0)
        assert error is not None
        return error

    def check_idle(self) -> None:
        """All accounting is zero when nothing is under way."""
        assert self.accumulator.budget.used == 0
        assert self.sender.flushing == 0


@dataclass
class Line:
    """One producer."""

    world: World
    lanes: Lanes
    outlet: TransactionalOutlet

    @property
    def keeper(self) -> TransactionKeeper:
        return self.outlet.keeper

    def send(self, value: bytes, key: bytes | None = None, **fields: Any) -> Receipt:
        receipt: Receipt = self.lanes.intake.send(value, key, **fields)
        return receipt

    def begin(self) -> TransactionCore:
        transaction = TransactionCore(self.outlet)
        self.world.done(transaction.begin())
        return transaction

    def commit(self, *values: bytes) -> Sequence[Receipt]:
        """A whole transaction of these messages."""
        transaction = self.begin()
        receipts = [self.send(value) for value in values]
        self.world.done(transaction.commit())
        return receipts

    def close(self) -> None:
        self.lanes.close(ClosedError("closed"))
        self.world.run(lambda: not self.lanes.unsettled)
        self.world.loop.call(lambda: self.world.sender.detach(self.outlet, ClosedError("closed")))
        self.world.settle()
