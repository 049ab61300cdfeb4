"""`connect`: clients of clusters, and what those with the same id share.

Clients of one process with the same client id share an engine: one I/O thread, one accumulator with its memory, one
connection per broker. It is counted who uses it, and it ends with the last one. Each cluster is known by its brokers'
addresses; clients of different clusters share an engine, but never a cluster. Readers have connections of their own.

`ClientCore` is a client but for how one waits; `Client` waits by blocking, `penstock.aio.AsyncClient` by `await`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, get_args

from penstock import __version__
from penstock.clock import Clock, SystemClock
from penstock.config import BatchIo, BatchPolicy, ClientOptions, Options, ReaderOptions, parse, validate
from penstock.config.options import Scope
from penstock.consume.cursor import Cursor, CursorCore, CursorFace, CursorMachinery, read_filter
from penstock.consume.feed import Feed
from penstock.consume.fetcher import Fetcher, FetcherParts
from penstock.consume.places import Given, Plan, make_plan
from penstock.consume.reader import Outline, Reader, ReaderCore, ReaderFace, ReaderMachinery, Unit
from penstock.consume.readers import Readers
from penstock.consume.seeker import Seeker
from penstock.consume.shape import Shape
from penstock.consume.stats import ReaderMeter
from penstock.errors import ClosedError, ConfigError, UnknownTopicError
from penstock.metrics import Registry
from penstock.net.asks import Target, Whom
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster, NetParts
from penstock.net.errands import Errands
from penstock.net.gate import IoMemory
from penstock.net.homes import Homes
from penstock.net.loop import Loop
from penstock.net.meters import Meters
from penstock.net.poller import Poller
from penstock.net.questions import Questions
from penstock.net.stream import SocketStreams
from penstock.net.url import Address, read_url
from penstock.produce.accumulator import Accumulator
from penstock.produce.bulk_receipt import wait_for_all, when_all_settled
from penstock.produce.closing import Closings
from penstock.produce.kernel import Parcel
from penstock.produce.lanes import Lanes, Parts
from penstock.produce.outlet import Outlet
from penstock.produce.producer import Machinery, Producer, ProducerCore, ProducerFace, Serializer
from penstock.produce.receipts import announce
from penstock.produce.router import OwnRouter, Spread, Sticky
from penstock.produce.sender import Sender
from penstock.produce.transactions.keeper import KeeperParts
from penstock.produce.transactions.transaction import Keepers
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import ClusterView, CreateTopic, DeleteTopic, Done, GrowTopic, LookUp, Request, Wire

ROOM_BYTES = 256 * 1024
STOP_TIMEOUT = 10.0
ASK_TIMEOUT = 30.0
PRODUCER_SCOPES = (Scope.PRODUCER, Scope.BATCH, Scope.GATE)
CLIENT_SCOPES = (Scope.CLIENT, *PRODUCER_SCOPES, Scope.READER)
Answer = TypeVar("Answer")
Face = TypeVar("Face", bound=ProducerFace)
ReadFace = TypeVar("ReadFace", bound=ReaderFace)
MarkFace = TypeVar("MarkFace", bound=CursorFace)


class Engine:
    """What clients with one id share. Runs on: any thread."""

    def __init__(self, options: ClientOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.metrics = Registry()
        self.poller = Poller()
        self.loop = Loop(options.client_id, self.clock, self.poller)
        self.accumulator = Accumulator(options.total_bytes_max, options.lanes_max, self.loop.wake_by)
        self.sender = Sender(self.accumulator, options, random.random)
        self.closings = Closings(self.sender)
        self.questions = Questions(self.loop, self.clock, self.backoff)
        self.errands = Errands(self.loop, self.clock)
        self.readers = Readers(self.loop)
        self.members: weakref.WeakSet[Lanes] = weakref.WeakSet()
        self._net = NetParts(
            SocketStreams(options.connect_timeout_ms, self.poller.wake),
            self.poller,
            IoMemory(options.io_memory_max),
            memoryview(bytearray(ROOM_BYTES)),
            random.random,
            options,
        )
        self._users = 0
        self._clusters: dict[Address, tuple[Cluster, Meters, list[int]]] = {}
        self.loop.parties += [self.sender, self.readers, self.questions, self.errands, self.closings]
        self.loop.start()

    def __repr__(self) -> str:
        return f"<Engine {self.options.client_id!r}, {self._users} users, {self.loop!r}>"

    def backoff(self) -> Backoff:
        """Pauses as the options say."""
        options = self.options
        return Backoff(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000, random.random)

    def use_locked(self, address: Address, wire: Wire) -> tuple[Cluster, Meters]:
        """The cluster at this address; to be released as often as it was used."""
        known = self._clusters.get(address)
        if known is None:
            cluster = Cluster(str(address), address.endpoints, wire, self._net)
            self.loop.call(lambda: self.loop.clusters.append(cluster))
            known = self._clusters[address] = (cluster, Meters(self.metrics, str(address)), [0])
        known[2][0] += 1
        self._users += 1
        return known[0], known[1]

    def reading_cluster(self, address: Address, wire: Wire) -> Cluster:
        """The cluster at this address once more, for one reader."""
        return Cluster(str(address), address.endpoints, wire, self._net)

    def release_locked(self, address: Address) -> bool:
        """One user less: a cluster that nobody uses is closed. Whether nobody uses any of it."""
        cluster, _, users = self._clusters[address]
        users[0] -= 1
        self._users -= 1
        if users[0] == 0:
            del self._clusters[address]
            with contextlib.suppress(ClosedError):  # the I/O thread has ended, and closed it
                self.loop.call(lambda: self._close(cluster))
        return self._users == 0

    def _close(self, cluster: Cluster) -> None:
        self.loop.clusters.remove(cluster)
        now = self.clock.monotonic()
        for event in cluster.close(now):
            self.loop.tell(cluster, event, now)

    def disown(self) -> None:
        """This is a child of `fork()`: nothing here works any more, and everything says so."""
        for lanes in self.members:
            lanes.disown(
                ClosedError(f"client {self.options.client_id} came to this process by fork(): connect anew here")
            )


_lock = threading.Lock()  # guards the following, and who uses what of an engine
_engines: dict[str, Engine] = {}


def _forget_inherited() -> None:
    global _lock
    _lock = threading.Lock()
    for engine in _engines.values():
        engine.disown()
    _engines.clear()


os.register_at_fork(after_in_child=_forget_inherited)


def connect(url: str, **options: Any) -> Client:
    """A client of the cluster at this URL: `kafka://host:port,host:port`, or `host:port` alone for Kafka.

    Options are those of a client; those of producers and readers given here hold for all that the client makes. The
    connections are opened when they are needed.
    """
    return Client(ClientCore(read_url(url), parse(options, CLIENT_SCOPES)))


def _engine_locked(options: ClientOptions) -> Engine:
    engine = _engines.get(options.client_id)
    if engine is None or engine.loop.has_ended:
        engine = _engines[options.client_id] = Engine(options)
    elif engine.options != options:
        raise _other_options(engine.options, options)
    return engine


def _other_options(one: ClientOptions, other: ClientOptions) -> ConfigError:
    differing = [name for name in one.__slots__ if getattr(one, name) != getattr(other, name)]
    told = ", ".join(f"{name}={getattr(one, name)!r}" for name in differing)
    return ConfigError(
        f"a client with the id {one.client_id!r} is in use with other options ({told}), which it shares: give the same "
        "options, or another client_id"
    )


class ClientCore:
    """A client but for how one waits. Runs on: any thread."""

    def __init__(self, address: Address, options: Options) -> None:
        self.address = address
        self.options = options
        self.left = Parcel("", -1)
        """Settled when it was closed and has let go of what is shared."""
        self.wire = KafkaWire(software_version=__version__)
        with _lock:
            self.engine = _engine_locked(options.client)
            self.cluster, self._meters = self.engine.use_locked(address, self.wire)
        self.left.home = self.engine.loop
        engine = self.engine
        self._keepers = Keepers(KeeperParts(self.cluster, engine.loop, engine.sender, engine.clock, engine.backoff))
        tools = (self.cluster, engine.clock, engine.backoff, self.unknown_topic)
        cursors = (engine.loop, engine.errands, engine.clock, self.cluster)
        self._cursors = CursorMachinery(*cursors, Seeker(*tools), Homes(*tools))
        self._producers_lock = threading.Lock()  # guards the following
        self._producers: list[ProducerCore] = []
        self._readers: set[ReaderCore] = set()
        self.is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{len(self._producers)} producers, {len(self._readers)} readers"
        return f"{self.options.client.client_id!r} of {self.address}, {state}"

    # Producers

    def producer(
        self,
        topic: str,
        batch: BatchPolicy | None,
        io: BatchIo | None,
        router: Spread | OwnRouter | None,
        serializers: tuple[Serializer | None, Serializer | None],
        options: Mapping[str, Any],
    ) -> ProducerCore:
        """What a producer is without its face."""
        self.engine.loop.check_is_ours()
        read = _producer_options(self.options, batch, io, options)
        with self._producers_lock:
            self.check_open()
            core = self._new_producer(_checked_topic(topic), read, router or Sticky(), serializers)
            self._producers.append(core)
        when_all_settled([core.gone], lambda: self._forget(core))
        return core

    def _forget(self, core: ProducerCore) -> None:
        with self._producers_lock:
            self._producers.remove(core)

    def _new_producer(
        self,
        topic: str,
        options: Options,
        router: Spread | OwnRouter,
        serializers: tuple[Serializer | None, Serializer | None],
    ) -> ProducerCore:
        engine = self.engine
        engine.loop.check_turns()
        parts = (topic, self.wire, engine.accumulator, engine.clock, engine.loop)
        lanes = Lanes(Parts(*parts, options.producer, options.batch, router))
        engine.members.add(lanes)
        if options.producer.transactional_id is None:
            outlet = Outlet(self.cluster, lanes, options.io, self._meters, engine.backoff())
        else:
            outlet = self._keepers.outlet(lanes, options.io, self._meters)
        machinery = Machinery(engine.loop, engine.sender, engine.closings, engine.clock)
        return ProducerCore(lanes, outlet, machinery, *serializers)

    # Readers and cursors

    def reader(
        self,
        topic: str,
        places: tuple[Any, Any],
        partitions: Iterable[int] | None,
        handed_out: tuple[Any, Any, Any],
        options: Mapping[str, Any],
    ) -> ReaderCore:
        """What a reader is without its face: where to start and end, and unit, filter and columns."""
        self.engine.loop.check_is_ours()
        start, end = places
        if isinstance(start, CursorFace):
            start = start.place_for(topic, str(self.address))
        plan = make_plan(_checked_topic(topic), start, end, partitions)
        read = parse(options, (Scope.READER,), self.options)
        outline = Outline(plan, *_outlined(topic, *handed_out), read.reader)
        with self._producers_lock:
            self.check_open()
            core = self._new_reader(outline)
            self._readers.add(core)
        core.fetcher.gone.add_done_callback(lambda _: self._forget_reader(core))
        return core

    def cursor(self, topic: str, name: str, initial: Given) -> CursorCore:
        """What a cursor is without its face."""
        self.engine.loop.check_is_ours()
        self.check_open()
        return CursorCore(_checked_topic(topic), name, initial, self._cursors)

    def _new_reader(self, outline: Outline) -> ReaderCore:
        engine = self.engine
        meter = ReaderMeter(engine.metrics, str(self.address), outline.plan.topic)
        machinery = ReaderMachinery(engine.loop, engine.readers, engine.clock, self.wire.stored_entries(), meter)
        cluster = engine.reading_cluster(self.address, self.wire)
        core: ReaderCore
        feed = Feed(outline.options.prefetch_bytes_max, lambda: core.has_room())
        tools = (engine.clock, engine.backoff, engine.options, self.unknown_topic)
        core = ReaderCore(outline, machinery, FetcherParts(cluster, feed, *tools))
        core.begin()
        return core

    def led_fetcher(self, plan: Plan, options: ReaderOptions, condition: PropertyCondition | None) -> Fetcher:
        """A reader's far side for somebody who says for each partition where it is read on. Not begun yet."""
        engine = self.engine
        fetcher: Fetcher

        def has_room() -> None:
            fetcher.look()
            engine.loop.wake_by(-math.inf)

        feed = Feed(options.prefetch_bytes_max, has_room)
        cluster = engine.reading_cluster(self.address, self.wire)
        tools = (engine.clock, engine.backoff, engine.options, self.unknown_topic)
        fetcher = Fetcher(plan, options, FetcherParts(cluster, feed, *tools, is_led=True), condition)
        return fetcher

    def _forget_reader(self, core: ReaderCore) -> None:
        with self._producers_lock:
            self._readers.discard(core)

    @property
    def unknown_topic(self) -> float:
        """For how many seconds a topic may be unknown."""
        return self.options.producer.unknown_topic_ms / 1000

    # Topics

    def look_up(self, topics: Sequence[str] | None, timeout: float) -> Future[ClusterView]:
        """The brokers, and these topics (None: all) with their partitions and leaders."""
        return self.ask(LookUp(None if topics is None else frozenset(topics)), Whom.ANYBODY, timeout)

    def create_topic(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str] | None, timeout: float
    ) -> Future[Done]:
        """Create a topic; -1 leaves a number to the cluster."""
        request = CreateTopic(name, partitions, replicas, settings or {}, int(timeout * 1000))
        return self.ask(request, Whom.CONTROLLER, timeout)

    def delete_topic(self, name: str, timeout: float) -> Future[Done]:
        """Delete a topic."""
        return self.ask(DeleteTopic(name, int(timeout * 1000)), Whom.CONTROLLER, timeout)

    def grow_topic(self, name: str, partitions: int, timeout: float) -> Future[Done]:
        """Give a topic more partitions."""
        return self.ask(GrowTopic(name, partitions, int(timeout * 1000)), Whom.CONTROLLER, timeout)

    def ask(self, request: Request[Answer], target: Target, timeout: float) -> Future[Answer]:
        """Ask the cluster something; the answer when it is there."""
        self.check_open()
        return self.engine.questions.ask(self.cluster, request, target, timeout)

    # The end

    def check_open(self) -> None:
        """Raise when it is closed."""
        if self.is_closed:
            raise ClosedError(f"the client of {self.address} is closed")

    def begin_close(self, timeout: float | None) -> Parcel:
        """Close its readers, and its producers within so many seconds, then let go of what is shared; what is settled
        then."""
        with self._producers_lock:
            was_closed, self.is_closed = self.is_closed, True
            producers, readers = list(self._producers), list(self._readers)
        for reader in readers:
            reader.begin_close()
        gone = [producer.begin_close(timeout) for producer in producers]
        if not was_closed:
            when_all_settled(gone, self._leave)
        return self.left

    def _leave(self) -> None:
        engine = self.engine
        with _lock:
            is_last = engine.release_locked(self.address)
            if is_last and _engines.get(engine.options.client_id) is engine:
                del _engines[engine.options.client_id]
        if is_last:
            engine.loop.stop(0)
        self.left.verdict = is_last
        announce(self.left)


class ClientFace(Generic[Face, ReadFace, MarkFace]):
    """What a client can do without waiting."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core!r}>"

    @property
    def url(self) -> str:
        """The cluster's URL."""
        return str(self._core.address)

    @property
    def metrics(self) -> Registry:
        """What is counted, over all clients with this id."""
        return self._core.engine.metrics

    def producer(
        self,
        topic: str,
        *,
        batch: BatchPolicy | None = None,
        io: BatchIo | None = None,
        router: Spread | OwnRouter | None = None,
        value_serializer: Serializer | None = None,
        key_serializer: Serializer | None = None,
        **options: Any,
    ) -> Face:
        """A producer of a topic. Its first lane is opened in the background: `ready` and receipts tell what fails."""
        serializers = (value_serializer, key_serializer)
        return self._face(self._core.producer(topic, batch, io, router, serializers, options))

    def reader(
        self,
        topic: str,
        start: Given | MarkFace | Mapping[int, Given] = "earliest",
        end: Given | Mapping[int, Given] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        unit: Unit = "message",
        filter: str | PropertyCondition | None = None,  # noqa: A002
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> ReadFace:
        """A reader of a topic, from `start` up to but not including `end`; without an end it follows the topic.

        Both are earliest, latest, a position, a datetime, or one of these for each partition; it may start at a cursor.
        Iterating it gives Arrow record batches with these columns, or, with unit="batch", entries unopened.
        """
        return self._reader_face(self._core.reader(topic, (start, end), partitions, (unit, filter, columns), options))

    def cursor(self, topic: str, name: str, initial: Given = "earliest") -> MarkFace:
        """A durable position in a topic by its name; `initial` is where it is before anything was committed."""
        return self._cursor_face(self._core.cursor(topic, name, initial))

    def _face(self, core: ProducerCore) -> Face:
        raise NotImplementedError

    def _reader_face(self, core: ReaderCore) -> ReadFace:
        raise NotImplementedError

    def _cursor_face(self, core: CursorCore) -> MarkFace:
        raise NotImplementedError


class Client(ClientFace[Producer, Reader, Cursor]):
    """A cluster's topics, producers and readers; made by `connect`. Runs on: any thread."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def metadata(self, topics: Sequence[str] | None = None, timeout: float = ASK_TIMEOUT) -> ClusterView:
        """The brokers, and these topics (None: all) with their partitions and leaders."""
        return self._asking().look_up(topics, timeout).result()

    def topics(self, timeout: float = ASK_TIMEOUT) -> list[str]:
        """The names of all topics."""
        return sorted(self.metadata(None, timeout).topics)

    def partitions(self, topic: str, timeout: float = ASK_TIMEOUT) -> int:
        """How many partitions a topic has."""
        return count_partitions(self.metadata([topic], timeout), topic)

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replicas: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout: float = ASK_TIMEOUT,
    ) -> None:
        """Create a topic; -1 leaves a number to the cluster."""
        self._asking().create_topic(name, partitions, replicas, settings, timeout).result()

    def delete_topic(self, name: str, timeout: float = ASK_TIMEOUT) -> None:
        """Delete a topic."""
        self._asking().delete_topic(name, timeout).result()

    def grow_topic(self, name: str, partitions: int, timeout: float = ASK_TIMEOUT) -> None:
        """Give a topic more partitions: so many in all."""
        self._asking().grow_topic(name, partitions, timeout).result()

    def close(self, timeout: float | None = None) -> None:
        """Close its readers and producers, as they do it themselves, and end; other clients with the same id go on.

        Called from a callback it does not wait: closing goes on behind it. In a child of `fork()` it does nothing.
        """
        loop = self._core.engine.loop
        if loop.is_inherited():
            return
        left = self._core.begin_close(timeout)
        if not loop.is_here() and wait_for_all([left], None) and left.verdict is True:
            loop.stop(STOP_TIMEOUT)

    def _face(self, core: ProducerCore) -> Producer:
        return Producer(core)

    def _reader_face(self, core: ReaderCore) -> Reader:
        return Reader(core)

    def _cursor_face(self, core: CursorCore) -> Cursor:
        return Cursor(core)

    def _asking(self) -> ClientCore:
        self._core.engine.loop.check_may_wait()
        return self._core


def count_partitions(view: ClusterView, topic: str) -> int:
    """How many partitions a topic has by this view; raises why it cannot be used."""
    told = view.topics.get(topic)
    if told is None:
        raise UnknownTopicError(f"the cluster does not know the topic {topic}")
    if told.error is not None:
        raise told.error
    return len(told.partitions)


def _checked_topic(topic: str) -> str:
    if not isinstance(topic, str) or not topic:
        raise ConfigError(f"topic: expected a name, found {topic!r}")
    return topic


def _outlined(topic: str, unit: Any, given: Any, columns: Any) -> tuple[Shape | None, PropertyCondition | None]:
    """The columns of what is handed out, None for entries; and the filter."""
    if unit not in get_args(Unit):
        raise ConfigError(f"unit: expected one of {', '.join(get_args(Unit))}, found {unit!r}")
    if unit == "batch" and columns is not None:
        raise ConfigError('columns: entries have none; leave them out, or set unit="message"')
    return (Shape(topic, columns) if unit == "message" else None), read_filter(given)


def _producer_options(
    base: Options, batch: BatchPolicy | None, io: BatchIo | None, given: Mapping[str, Any]
) -> Options:
    """The client's options with a producer's own in place."""
    if batch is not None and not isinstance(batch, BatchPolicy):
        raise ConfigError(f"batch: expected a BatchPolicy, found {type(batch).__name__}")
    if io is not None and not isinstance(io, BatchIo):
        raise ConfigError(f"io: expected a BatchIo, found {type(io).__name__}")
    changed = dataclasses.replace(base, batch=batch or base.batch, io=io or base.io)
    read = parse(given, PRODUCER_SCOPES, changed)
    validate(read)
    return read
