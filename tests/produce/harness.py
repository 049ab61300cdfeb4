"""The producer's core without a thread, without sockets and without time: a clock moved by hand, a network in memory, a
model of a cluster at its end, and a loop that turns when it is told to.

The loop sleeps as the real one does: after a turn nothing happens until its deadline, until bytes come, or until
somebody wakes it. So whoever forgets to wake it, or to name a deadline, leaves messages behind that never arrive.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa

from penstock.clock import Clock, ManualClock, SystemClock
from penstock.config import BatchIo, BatchPolicy, ClientOptions, ProducerOptions
from penstock.errors import ClosedError, PenstockError
from penstock.message import MessageId
from penstock.metrics import Registry
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster, NetParts
from penstock.net.gate import IoMemory
from penstock.net.loop import Loop
from penstock.net.meters import Meters
from penstock.net.poller import Poller
from penstock.produce.kernel import Receipt
from penstock.produce.router import OwnRouter, Spread, Sticky
from penstock.wire.columns import from_arrow
from penstock.wire.kafka.system import KafkaWire
from tests.net.memory import MemoryNetwork, MemoryPoller
from tests.produce.kits import OWN, Kit, load_kit
from tests.produce.model import ModelBroker, ModelCluster

WALL_MS = 1_700_000_000_000
TURNS_MAX = 5000
"""More turns at one moment mean that the loop never sleeps."""


class FastClock(SystemClock):
    """Time moved by hand that passes for the machine's, so that the compiled way through `send` is taken.

    That way reads the machine's own clock for the times of messages.
    """

    def __init__(self, manual: ManualClock) -> None:
        self._manual = manual

    __slots__ = ("_manual",)

    def monotonic(self) -> float:
        return self._manual.monotonic()

    def wall_ms(self) -> int:
        return self._manual.wall_ms()


class WaitingHome:
    """The client as receipts see it: nobody waits here, unless a test says what happens meanwhile."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] | None = None

    def check_may_wait(self) -> None:
        if self.meanwhile is None:
            raise AssertionError("somebody would wait for ever")
        self.meanwhile()


class Line:
    """One producer: its lanes, its entrance and its outlet."""

    def __init__(self, harness: Harness, lanes: Any, outlet: Any, entrance: Any) -> None:
        self.harness = harness
        self.lanes = lanes
        self.outlet = outlet
        self.entrance = entrance
        self.is_closed = False

    def send(self, value: Any, key: Any = None, **fields: Any) -> Receipt:
        receipt: Receipt = self.lanes.intake.send(value, key, **fields)
        return receipt

    def send_many(
        self, values: Sequence[Any], keys: Any = None, properties: Any = None, times_ms: Any = 0, *, arrow: bool = False
    ) -> list[Receipt]:
        """As `Producer.send_many` does it: from lists, or from Arrow arrays."""
        bulk = self.harness.kit.modules["bulk"]
        if arrow:
            rows = pa.array([list((one or {}).items()) for one in properties or []], pa.map_(pa.string(), pa.binary()))
            arrays = pa.array(values, pa.binary()), keys and pa.array(keys, pa.binary()), rows if properties else None
            source = bulk.ColumnSource(from_arrow(*arrays, times_ms))
        else:
            source = bulk.ListSource(values, keys, properties, times_ms)
        return list(self._run(bulk.send_all(self.lanes, source, None)))

    def batch(self, bytes_max: int = 262_144) -> Any:
        return self.harness.kit.part("hand_made", "HandMadeBatch")(self.lanes.wire, bytes_max)

    def send_batch(self, batch: Any, partition: int | None = None) -> Any:
        """As `Producer.send_batch` does it."""
        return self._run(self.harness.kit.part("hand_made", "send_whole")(self.lanes, batch, partition))

    def _run(self, steps: Any) -> Any:
        try:
            size = next(steps)
            while True:
                try:
                    self.entrance.find_room(size)
                except PenstockError as error:
                    size = steps.throw(error)
                else:
                    size = steps.send(size)
        except StopIteration as done:
            return done.value
        finally:
            steps.close()

    def lane(self, partition: int) -> Any:
        return self.lanes.intake.lanes[partition]

    def reasons(self) -> dict[str, int]:
        return dict(self.lanes.stats().total.seal_reasons)

    def seal(self) -> None:
        """What `flush` does before it waits."""
        self.lanes.seal_open(self.harness.kit.SealReason.FLUSH)

    def flush(self, seconds: float = 600.0) -> None:
        """As `Producer.flush` does it."""
        self.harness.sender.flushing += 1
        self.outlet.cluster.flush(self.harness.now)
        self.seal()
        batches = list(self.lanes.unsettled)
        self.harness.run(lambda: all(self._is_settled(batch) for batch in batches), seconds)
        self.harness.sender.flushing -= 1

    def _is_settled(self, batch: Any) -> bool:
        if isinstance(batch.verdict, self.harness.kit.Moved):
            return all(self._is_settled(part) for part in batch.verdict.parts)
        return batch.verdict is not None

    def begin_close(self) -> None:
        self.is_closed = True
        self.lanes.close(ClosedError("the producer is closed"))

    def end_close(self) -> None:
        self.is_closed = True
        self.lanes.close(ClosedError("the producer is closed"))
        self.harness.sender.detach(self.outlet, ClosedError("closed before it was stored"))


class Harness:
    """A client's engine, driven by hand."""

    def __init__(
        self,
        kit: Kit | None = None,
        *,
        seed: int = 0,
        nodes: int = 1,
        produce_version: int = 12,
        fast: bool = False,
        clock: ManualClock | None = None,
        **options: Any,
    ) -> None:
        self.kit = kit or load_kit(OWN)
        self.manual = clock or ManualClock(1000.0, WALL_MS)
        self.clock: Clock = FastClock(self.manual) if fast else self.manual
        self.chance = random.Random(seed)
        self.model = ModelCluster(self.manual, nodes, produce_version)
        self.network: MemoryNetwork[ModelBroker] = MemoryNetwork()
        self.network.brokers = {broker.endpoint: broker for broker in self.model.brokers.values()}
        self.poller = MemoryPoller(self.network)
        self.options = ClientOptions(**options)
        self.loop = Loop("harness", self.clock, cast(Poller, self.poller))
        self.accumulator = self.kit.Accumulator(self.options.total_bytes_max, self.options.lanes_max, self.loop.wake_by)
        self.sender = self.kit.Sender(self.accumulator, self.options, self.chance.random)
        self.loop.parties.append(self.sender)
        self.io_memory = IoMemory(self.options.io_memory_max)
        self.home = WaitingHome()
        self.registry = Registry()
        self.meters = Meters(self.registry, "model")
        self.cluster = self.connect("model")
        self.lines: list[Line] = []
        self.deadline: float | None = -math.inf
        self.turns = 0

    def connect(self, name: str, model: ModelCluster | None = None) -> Cluster:
        """A cluster; another one than the first brings its own model."""
        brokers = (model or self.model).brokers.values()
        self.network.brokers.update({broker.endpoint: broker for broker in brokers})
        room = memoryview(bytearray(65536))
        parts = NetParts(self.network, self.poller, self.io_memory, room, self.chance.random, self.options)
        cluster = Cluster(name, [broker.endpoint for broker in brokers], KafkaWire(), parts)
        self.loop.clusters.append(cluster)
        return cluster

    @property
    def now(self) -> float:
        return self.manual.monotonic()

    def line(
        self,
        topic: str = "t",
        policy: BatchPolicy | None = None,
        io: BatchIo | None = None,
        router: Spread | OwnRouter | None = None,
        cluster: Cluster | None = None,
        **options: Any,
    ) -> Line:
        """A producer of a topic; compression is off unless asked for."""
        kit = self.kit
        parts = kit.Parts(
            topic,
            KafkaWire(),
            self.accumulator,
            self.clock,
            self.home,
            ProducerOptions(**{"compression": "none"} | options),
            policy or BatchPolicy(),
            router or Sticky(self.chance),
        )
        lanes = kit.Lanes(parts)
        backoff = Backoff(
            self.options.retry_backoff_ms / 1000, self.options.retry_backoff_max_ms / 1000, self.chance.random
        )
        outlet = kit.Outlet(cluster or self.cluster, lanes, io or BatchIo(), self.meters, backoff)
        line = Line(self, lanes, outlet, kit.Entrance(lanes))
        self.lines.append(line)
        self.loop.call(lambda: self.sender.attach(outlet, self.now))
        return line

    # Turning

    def turn(self) -> None:
        """One turn of the loop, as its own thread would do it."""
        self.poller.is_woken = False
        self.loop._sleeps_until = -math.inf
        self.deadline = self.loop.run_once(self.poller.ready(), self.now)
        self.loop._sleeps_until = math.inf if self.deadline is None else self.deadline
        self.turns += 1

    def is_awake(self) -> bool:
        """Whether the loop would turn at this moment."""
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
        """When something happens next if nobody does anything."""
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
            moment = self.next_moment()
            assert moment is not None, f"asleep for ever: {self.describe()}"
            assert self.now <= over, f"not within {seconds} s: {self.describe()}"
            self.sleep_until(moment)
            self.settle()

    def sleep_until(self, moment: float) -> None:
        if moment > self.now:
            self.manual.advance(max(moment - self.now, 1e-6))

    def describe(self) -> str:
        lanes = [
            (lane, lane.delivery, list(lane.queue)) for line in self.lines for lane in line.lanes.intake.lanes.values()
        ]
        return f"{self.sender!r}, {self.accumulator!r}, {self.cluster!r}, {lanes}"

    # Asking

    def results(self, receipts: list[Receipt]) -> list[MessageId]:
        """What became of them, waited for."""
        self.run(lambda: all(receipt.done() for receipt in receipts))
        return [receipt.result(0) for receipt in receipts]

    def error(self, receipt: Receipt) -> Exception:
        """The error of a message that must have one, waited for."""
        self.run(receipt.done)
        error = receipt.exception(0)
        assert error is not None, "it was stored"
        return error

    def check_idle(self) -> None:
        """All accounting is zero when idle."""
        assert self.accumulator.budget.used == 0, self.accumulator
        assert self.io_memory.used == 0
        assert not self.sender._busy
        assert not self.accumulator.sealed or not any(lane.queue for lane in self.accumulator.sealed)
        open_lanes = [lane for line in self.lines for lane in line.lanes.intake.lanes.values()]
        assert self.accumulator.lanes == len(open_lanes)
        for line in self.lines:
            assert not line.lanes.unsettled
        for lane in open_lanes:
            assert not lane.open
            assert not lane.queue
            assert lane.delivery is None or lane.delivery.is_idle
        for pipeline in self.cluster._links.pipelines():
            assert pipeline.bytes_waiting == 0
