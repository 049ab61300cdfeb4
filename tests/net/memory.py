"""A network in memory, a tiny protocol, and brokers that speak it, with faults where a test wants them.

A toy frame: u16 length of what follows | u8 kind | u32 id | body. The client says HELLO and hears WELCOME; each ASK is
answered by one ANSWER with the same id. Bodies are pickled, so that any request and any answer fit.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from penstock.clock import ManualClock
from penstock.config import ClientOptions
from penstock.errors import ConnectionLostError, DecodeError, RefusedError, TimedOutError
from penstock.message import Properties
from penstock.net.cluster import Cluster, ClusterEvent, NetParts
from penstock.net.gate import IoMemory
from penstock.net.pipeline import Pipeline
from penstock.net.poller import ReadyIo
from penstock.wire.entry import BatchBuffer, Buffer
from penstock.wire.protocol import (
    Answered,
    ClusterView,
    Endpoint,
    Event,
    LookUp,
    NodeId,
    Publish,
    Ready,
    Reply,
    Request,
    StoredEntries,
    TopicView,
)

HEAD = struct.Struct(">HBI")
HELLO, WELCOME, ASK, ANSWER, PING, PONG = range(6)
FRAME_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Say(Request[bytes]):
    """A request of the toy protocol; the answer is its text, unless the broker thinks otherwise."""

    text: bytes = b""


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return HEAD.pack(HEAD.size - 2 + len(body), kind, number) + body


def frames(data: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Cut whole frames off the front."""
    while len(data) >= HEAD.size:
        length, kind, number = HEAD.unpack_from(data)
        if length < HEAD.size - 2 or length > FRAME_MAX or kind > PONG:
            raise DecodeError(0, "toy frame", "a kind and a length in range", (kind, length))
        if len(data) < length + 2:
            return
        yield kind, number, bytes(data[HEAD.size : length + 2])
        del data[: length + 2]


class ToyConnection:
    """The client's side of the toy protocol."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._data = bytearray()
        self._asked: dict[int, object] = {}
        self.repeated: dict[int, object] = {}

    def greet(self) -> Sequence[Buffer]:
        return [frame(HELLO, 0)]

    def send(self, request: Request[Any], token: object) -> Sequence[Buffer]:
        if isinstance(request, Say) and request.text == b"unspeakable":
            raise RefusedError("the toy protocol has no word for it")
        number = next(self._numbers)
        body = request.text if isinstance(request, Say) else pickle.dumps(request)
        if not (isinstance(request, Publish) and request.acks == "none"):
            self._asked[number] = token
        kind = 0 if isinstance(request, Say) else 1
        return [frame(ASK, number, bytes([kind]) + body)[: HEAD.size + 1], memoryview(bytearray(body)), b""]

    def room(self) -> memoryview | None:
        return None

    def receive(self, data: memoryview) -> Sequence[Event]:
        self._data += data
        return [self._event(*found) for found in frames(self._data)]

    def unanswered(self) -> Sequence[object]:
        return list(self._asked.values())

    def _event(self, kind: int, number: int, body: bytes) -> Event:
        if kind == WELCOME:
            return Ready({})
        if kind == PING:
            return Reply([frame(PONG, number)])
        if number in self.repeated:
            return Answered(self.repeated[number], None)
        if kind != ANSWER or number not in self._asked:
            raise DecodeError(0, "toy frame", "an answer to what was asked", number)
        self.repeated[number] = self._asked[number]
        answer, throttle_ms = pickle.loads(body)
        return Answered(self._asked.pop(number), answer, throttle_ms)


class ToyWire:
    scheme = "toy"
    port = 7

    def connection(self, client_id: str, frame_bytes_max: int) -> ToyConnection:
        return ToyConnection()

    def buffer(self, bytes_max: int) -> BatchBuffer:
        raise NotImplementedError("the toy protocol knows no batches")

    def stored_entries(self) -> StoredEntries:
        raise NotImplementedError("the toy protocol knows no batches")

    def stored_batch(self, entry: Buffer, count: int) -> BatchBuffer:
        raise NotImplementedError("the toy protocol knows no batches")

    def labelled(
        self, properties: Properties | None, tag: str | None, keys: Sequence[str], deliver_at_ms: int | None
    ) -> Properties | None:
        raise NotImplementedError("the toy protocol knows no messages")


@dataclass
class Faults:
    """What goes wrong on one connection."""

    refuse: bool = False
    silent_until: float | None = None
    """The connection attempt is swallowed, and given up at this moment."""
    take_max: int = 1 << 30
    """Bytes taken by one send."""
    give_max: int = 1 << 30
    """Bytes given by one receive."""
    stuck: bool = False
    """Nothing is taken any more."""
    cut_after_sent: int | None = None
    cut_after_given: int | None = None


class MemoryStream:
    """A `Stream` that is two byte strings; what is sent is heard at once by `hear`."""

    numbers = itertools.count(100)

    def __init__(self, endpoint: Endpoint, faults: Faults, hear: Callable[[MemoryStream], None] | None = None) -> None:
        self.endpoint = endpoint
        self.faults = faults
        self.sent = bytearray()
        self.given = 0
        self.inbox = bytearray()
        self.ended = False
        self.closed = False
        self.sends: list[int] = []
        self._hear = hear
        self._number = next(self.numbers)

    def fileno(self) -> int:
        return -1 if self.closed else self._number

    def is_connected(self, now: float) -> bool:
        if self.faults.refuse:
            raise ConnectionLostError(f"cannot connect to {self.endpoint}: refused")
        if self.faults.silent_until is not None:
            if now >= self.faults.silent_until:
                raise TimedOutError(f"cannot connect to {self.endpoint}: no answer")
            return False
        return True

    def deadline(self) -> float | None:
        return self.faults.silent_until

    def send(self, buffers: Sequence[memoryview]) -> int:
        assert not self.closed
        if self.ended:
            raise ConnectionLostError(f"{self.endpoint}: broken pipe")
        data = b"".join(buffers)
        room = 0 if self.faults.stuck else self.faults.take_max
        cut = self.faults.cut_after_sent
        if cut is not None:
            if len(self.sent) >= cut:
                self.ended = True
                raise ConnectionLostError(f"{self.endpoint}: reset by peer")
            room = min(room, cut - len(self.sent))
        taken = data[:room]
        self.sent += taken
        self.sends.append(len(taken))
        if self._hear is not None:
            self._hear(self)
        return len(taken)

    def receive_into(self, room: memoryview) -> int | None:
        assert not self.closed
        count = min(len(room), len(self.inbox), self.faults.give_max)
        cut = self.faults.cut_after_given
        if cut is not None and self.given + count >= cut:
            count = cut - self.given
            self.ended = True
            self.inbox = self.inbox[:count]
        if not count:
            return 0 if self.ended else None
        room[:count] = self.inbox[:count]
        del self.inbox[:count]
        self.given += count
        return count

    def close(self) -> None:
        self.closed = True

    def is_readable(self) -> bool:
        return bool(self.inbox) or self.ended

    def is_writable(self) -> bool:
        return self.faults.silent_until is None and not self.faults.stuck

    def __repr__(self) -> str:
        return f"<MemoryStream to {self.endpoint}, {len(self.sent)} sent, {self.given} given, {self.faults}>"


@dataclass
class ToyBroker:
    """Answers what it is asked, or as `answers` says; holds answers back while `held` is a list."""

    endpoint: Endpoint
    view: ClusterView
    answers: Callable[[Request[Any]], Any] = lambda request: getattr(request, "text", None)
    faults: Callable[[], Faults] = Faults
    throttle_ms: int = 0
    held: list[tuple[MemoryStream, bytes]] | None = None
    asked: list[Request[Any]] = field(default_factory=list)
    streams: list[MemoryStream] = field(default_factory=list)
    _data: dict[MemoryStream, bytearray] = field(default_factory=dict)
    _heard: dict[MemoryStream, int] = field(default_factory=dict)

    def hear(self, stream: MemoryStream) -> None:
        data = self._data.setdefault(stream, bytearray())
        data += stream.sent[self._heard.get(stream, 0) :]
        self._heard[stream] = len(stream.sent)
        for kind, number, body in frames(data):
            if kind == HELLO:
                stream.inbox += frame(WELCOME, 0)
            elif kind == ASK:
                request = pickle.loads(body[1:]) if body[0] else Say(body[1:])
                self.asked.append(request)
                self._answer(stream, number, request)

    def _answer(self, stream: MemoryStream, number: int, request: Request[Any]) -> None:
        answer = self._view(request) if isinstance(request, LookUp) else self.answers(request)
        if isinstance(request, Publish) and request.acks == "none":
            return
        told = frame(ANSWER, number, pickle.dumps((answer, self.throttle_ms)))
        is_introduction = isinstance(request, LookUp) and not request.topics
        if self.held is None or is_introduction:
            stream.inbox += told
        else:
            self.held.append((stream, told))

    def _view(self, request: LookUp) -> ClusterView:
        topics = {name: view for name, view in self.view.topics.items() if name in (request.topics or ())}
        return ClusterView(self.view.cluster_id, self.view.nodes, topics, self.view.controller)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for stream, told in held:
            stream.inbox += told

    def die(self) -> None:
        """End all connections, and refuse new ones."""
        self.faults = lambda: Faults(refuse=True)
        for stream in self.streams:
            stream.ended = True


class Server(Protocol):
    """Who listens at an endpoint."""

    streams: list[MemoryStream]

    @property
    def faults(self) -> Callable[[], Faults]:
        """What goes wrong on the next connection."""

    def hear(self, stream: MemoryStream) -> None:
        """More bytes were sent on this connection."""


Listening = TypeVar("Listening", bound=Server)


class MemoryNetwork(Generic[Listening]):
    """A `StreamFactory`; where no broker is, connections are refused."""

    def __init__(self) -> None:
        self.brokers: dict[Endpoint, Listening] = {}
        self.opened: list[Endpoint] = []
        self.streams: list[MemoryStream] = []

    def open(self, endpoint: Endpoint, now: float) -> MemoryStream:
        self.opened.append(endpoint)
        broker = self.brokers.get(endpoint)
        faults = broker.faults() if broker else Faults(refuse=True)
        stream = MemoryStream(endpoint, faults, broker.hear if broker else None)
        if broker:
            broker.streams.append(stream)
        self.streams.append(stream)
        return stream


class MemoryPoller:
    """A `Watcher` that knows which memory streams are ready."""

    def __init__(self, network: MemoryNetwork[Any]) -> None:
        self._network = network
        self.watched: dict[object, tuple[int, bool, bool]] = {}
        self.is_woken = False

    def watch(self, key: object, descriptor: int, *, read: bool, write: bool) -> None:
        self.watched[key] = (descriptor, read, write)

    def unwatch(self, key: object) -> None:
        self.watched.pop(key, None)

    def wake(self) -> None:
        self.is_woken = True

    def close(self) -> None:
        self.watched.clear()

    def ready(self) -> list[ReadyIo]:
        streams = {stream.fileno(): stream for stream in self._network.streams if not stream.closed}
        found = []
        for key, (descriptor, read, write) in list(self.watched.items()):
            stream = streams.get(descriptor)
            if stream is not None:
                now = ReadyIo(key, read and stream.is_readable(), write and stream.is_writable())
                found += [now] if now.readable or now.writable else []
        return found


class World:
    """One cluster on a network in memory, and a clock moved by hand."""

    def __init__(self, seeds: Sequence[Endpoint], brokers: Sequence[ToyBroker], **options: Any) -> None:
        self.clock = ManualClock(monotonic=1000.0)
        self.network: MemoryNetwork[ToyBroker] = MemoryNetwork()
        self.network.brokers = {broker.endpoint: broker for broker in brokers}
        self.poller = MemoryPoller(self.network)
        self.memory = IoMemory(1 << 20)
        room = memoryview(bytearray(4096))
        parts = NetParts(self.network, self.poller, self.memory, room, lambda: 0.5, ClientOptions(**options))
        self.cluster = Cluster("toy://here", seeds, ToyWire(), parts)
        self.events: list[ClusterEvent] = []

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def turn(self) -> float | None:
        """One turn of the loop; the moment of the next."""
        self.events += self.cluster.turn(self.poller.ready(), self.now)
        return self.cluster.before_poll()

    def run(self, until: Callable[[], object], seconds: float = 60.0) -> None:
        """Turn until it holds; time moves to the next deadline whenever nothing is ready."""
        over = self.now + seconds
        for _ in range(20_000):
            self.events += self.cluster.turn(self.poller.ready(), self.now)
            if until():
                self.cluster.before_poll()
                return
            deadline = self.cluster.before_poll()
            if not self.poller.ready():
                assert deadline is not None, f"asleep for ever: {self.cluster!r}"
                assert self.now <= over, f"not within {seconds} s: {self.cluster!r}, {self.events}"
                self.clock.advance(max(deadline - self.now, 1e-6) if deadline > self.now else 0)
        raise AssertionError(f"busy for ever: {self.cluster!r}")

    def settle(self) -> None:
        """Turn until nothing is ready and nothing is due."""
        for _ in range(1000):
            deadline = self.turn()
            if not self.poller.ready() and (deadline is None or deadline > self.now):
                return
        raise AssertionError(f"busy for ever: {self.cluster!r}")

    def connection(self, node: NodeId) -> Pipeline:
        """The connection to a broker, waited for."""
        found: list[Pipeline] = []

        def usable() -> bool:
            pipeline = self.cluster.connection(node, self.now)
            if pipeline is not None:
                found.append(pipeline)
            return bool(found)

        self.run(usable)
        return found[0]

    def outcomes(self, token: object) -> list[ClusterEvent]:
        return [event for event in self.events if getattr(event, "token", self) == token]


def cluster_view(nodes: dict[NodeId, Endpoint], cluster_id: str = "toy-1", **topics: TopicView) -> ClusterView:
    return ClusterView(cluster_id, nodes, topics, controller=min(nodes, key=str, default=None))
