"""A reader's core without a thread, without sockets and without time: a clock moved by hand, a network in memory, a
model of a cluster at its end, and a loop that turns when it is told to.

The loop sleeps as the real one does: after a turn nothing happens until its deadline, until bytes come, or until
somebody wakes it. So whoever forgets to wake it, or to name a deadline, leaves messages behind that are never read.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, cast

from penstock.clock import ManualClock
from penstock.config import ClientOptions, ReaderOptions
from penstock.consume.cursor import CursorCore, CursorMachinery
from penstock.consume.feed import Feed
from penstock.consume.fetcher import FetcherParts
from penstock.consume.places import make_plan
from penstock.consume.reader import Outline, ReaderCore, ReaderMachinery
from penstock.consume.readers import Readers
from penstock.consume.seeker import Seeker
from penstock.consume.shape import Shape
from penstock.consume.stats import ReaderMeter
from penstock.errors import PenstockError
from penstock.metrics import Registry
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster, NetParts
from penstock.net.errands import Errands
from penstock.net.gate import IoMemory
from penstock.net.homes import Homes
from penstock.net.loop import Loop
from penstock.net.poller import Poller
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.property_filter import PropertyCondition
from tests.consume.batches import Row, rows_of
from tests.consume.model import ModelBroker, ModelCluster, ModelLog
from tests.net.memory import MemoryNetwork, MemoryPoller

WALL_MS = 1_700_000_000_000
TURNS_MAX = 50_000
"""More turns at one moment mean that the loop never sleeps."""
UNKNOWN_TOPIC_S = 10.0


class Line:
    """One reader, and what it has handed out."""

    def __init__(self, harness: Harness, core: ReaderCore) -> None:
        self.harness = harness
        self.core = core
        self.items: list[Any] = []
        self.error: PenstockError | None = None

    def drain(self) -> list[Any]:
        """Take what is there."""
        found = []
        try:
            while self.error is None and (item := self.core.poll()) is not None:
                found.append(item)
        except PenstockError as error:
            self.error = error
        self.items += found
        return found

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.core.is_at_end

    @property
    def rows(self) -> list[Row]:
        return [row for item in self.items for row in rows_of(item)]

    def positions(self, partition: int = 0) -> list[int]:
        return [row.position for row in self.rows if row.partition == partition]

    def read_to_end(self, seconds: float = 600.0) -> list[Row]:
        """All that it hands out until it is over; raises its error."""
        self.harness.run(lambda: (self.drain(), self.is_over)[1], seconds)
        if self.error is not None:
            raise self.error
        return self.rows

    def read_until(self, count: int, seconds: float = 600.0) -> list[Row]:
        """As many messages as these."""
        self.harness.run(lambda: (self.drain(), self.is_over or len(self.rows) >= count)[1], seconds)
        if self.error is not None:
            raise self.error
        return self.rows

    def fail(self, seconds: float = 600.0) -> PenstockError:
        """The error that it must come to."""
        self.harness.run(lambda: (self.drain(), self.is_over)[1], seconds)
        assert self.error is not None, "it came to its end"
        return self.error

    def close(self) -> None:
        self.core.begin_close()
        self.harness.settle()


class Harness:
    """A client's engine, driven by hand."""

    def __init__(
        self, *, seed: int = 0, nodes: int = 1, fetch_version: int = 17, ids: bool = True, **options: Any
    ) -> None:
        self.clock = ManualClock(1000.0, WALL_MS)
        self.chance = random.Random(seed)
        self.model = ModelCluster(self.clock, nodes, fetch_version, ids=ids)
        self.network: MemoryNetwork[ModelBroker] = MemoryNetwork()
        self.network.brokers = {broker.endpoint: broker for broker in self.model.brokers.values()}
        self.poller = MemoryPoller(self.network)
        self.options = ClientOptions(**options)
        self.loop = Loop("harness", self.clock, cast(Poller, self.poller))
        self.readers = Readers(self.loop)
        self.errands = Errands(self.loop, self.clock)
        self.loop.parties += [self.readers, self.errands]
        self.registry = Registry()
        self.cluster = self.new_cluster()
        self.loop.clusters.append(self.cluster)
        self.lines: list[Line] = []
        self.deadline: float | None = -math.inf
        self.turns = 0

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def topic(self, name: str = "t", partitions: int = 1) -> list[ModelLog]:
        return self.model.create(name, partitions)

    def new_cluster(self) -> Cluster:
        room = memoryview(bytearray(4096))
        parts = NetParts(self.network, self.poller, IoMemory(0), room, self.chance.random, self.options)
        return Cluster("model", [broker.endpoint for broker in self.model.brokers.values()], KafkaWire(), parts)

    def backoff(self) -> Backoff:
        options = self.options
        return Backoff(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000, self.chance.random)

    def reader(
        self,
        topic: str = "t",
        start: Any = "earliest",
        end: Any = None,
        partitions: Any = None,
        unit: str = "message",
        condition: str | None = None,
        **options: Any,
    ) -> Line:
        """A reader, begun."""
        read = ReaderOptions(**options)
        shape = Shape(topic, None) if unit == "message" else None
        found = None if condition is None else PropertyCondition.parse(condition)
        outline = Outline(make_plan(topic, start, end, partitions), shape, found, read)
        machinery = ReaderMachinery(
            self.loop,
            self.readers,
            self.clock,
            KafkaWire().stored_entries(),
            ReaderMeter(self.registry, "model", topic),
        )
        core: ReaderCore
        feed = Feed(read.prefetch_bytes_max, lambda: core.has_room())
        tools = (self.clock, self.backoff, self.options, UNKNOWN_TOPIC_S)
        core = ReaderCore(outline, machinery, FetcherParts(self.new_cluster(), feed, *tools))
        core.begin()
        line = Line(self, core)
        self.lines.append(line)
        return line

    def cursor(self, topic: str = "t", name: str = "mine", initial: Any = "earliest") -> CursorCore:
        tools = (self.cluster, self.clock, self.backoff, UNKNOWN_TOPIC_S)
        machinery = CursorMachinery(self.loop, self.errands, self.clock, self.cluster, Seeker(*tools), Homes(*tools))
        return CursorCore(topic, name, initial, machinery)

    def result(self, future: Any, seconds: float = 600.0) -> Any:
        """What a future comes to, waited for."""
        self.run(future.done, seconds)
        return future.result(0)

    # Turning

    def turn(self) -> None:
        self.poller.is_woken = False
        self.loop._sleeps_until = -math.inf
        self.deadline = self.loop.run_once(self.poller.ready(), self.now)
        self.loop._sleeps_until = math.inf if self.deadline is None else self.deadline
        self.turns += 1

    def is_awake(self) -> bool:
        due = self.deadline is not None and self.deadline <= self.now
        return due or self.poller.is_woken or bool(self.poller.ready())

    def settle(self) -> None:
        """Turn until the loop would sleep."""
        for _ in range(TURNS_MAX):
            self.model.pump()
            if not self.is_awake():
                return
            self.turn()
        raise AssertionError(f"busy for ever: {self.describe()}")

    def next_moment(self) -> float | None:
        moments = [self.deadline, self.model.next_event()]
        return min((moment for moment in moments if moment is not None), default=None)

    def advance(self, seconds: float) -> None:
        """Let time pass, and let the loop do what it is woken for on the way."""
        over = self.now + seconds
        self.settle()
        while (moment := self.next_moment()) is not None and moment < over:
            self.sleep_until(moment)
            self.settle()
        self.sleep_until(over)
        self.settle()

    def run(self, until: Callable[[], object], seconds: float = 600.0) -> None:
        """Turn and let time pass until it holds."""
        over = self.now + seconds
        self.settle()
        while not until():
            if self.is_awake():
                self.settle()
                continue
            moment = self.next_moment()
            assert moment is not None, f"asleep for ever: {self.describe()}"
            assert self.now <= over, f"not within {seconds} s: {self.describe()}"
            self.sleep_until(moment)
            self.settle()

    def sleep_until(self, moment: float) -> None:
        if moment > self.now:
            self.clock.advance(max(moment - self.now, 1e-6))

    def describe(self) -> str:
        lines = [(line.core.fetcher, list(line.core.fetcher.tracks.values()), line.core.feed) for line in self.lines]
        return f"{self.readers!r}, {self.errands!r}, {lines}"

    def check_idle(self) -> None:
        """Whoever is over has let go of everything."""
        for line in self.lines:
            assert line.core.fetcher.gone.done()
            assert line.core.feed.used == 0 or line.core.is_closed
        assert self.loop.clusters == [self.cluster]
        own = {link.peer for link in self.cluster._links if link.pipeline is not None}
        open_streams = [stream for stream in self.network.streams if not stream.closed]
        assert len(open_streams) == len(own)
