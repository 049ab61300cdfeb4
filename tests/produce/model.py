"""A model of a Kafka cluster that speaks Kafka's bytes: it parses what a client really sent and stores that.

Only what a producer needs: greeting, metadata, producer ids, produce. Frames are read and written by hand here, so that
no mistake of the client's own encoders can cancel itself out. The rules of storing are those of a real broker, in its
order: who leads, refusals, sizes and contents, then numbers; a producer that a partition has never heard of may begin
with any number, and of each producer the last five batches are remembered.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.clock import ManualClock
from penstock.errors import Persisted
from penstock.wire.entry import PropertyClaim
from penstock.wire.kafka.codes import TABLE
from penstock.wire.kafka.header import peek, verify
from penstock.wire.kafka.primitives import (
    compact_string,
    plain_string,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
    uvarint,
)
from penstock.wire.kafka.records import decode
from penstock.wire.kafka.versions import INIT_PRODUCER_ID, METADATA, PRODUCE
from penstock.wire.protocol import Endpoint
from tests.net.memory import Faults, MemoryStream
from tests.wire.kafka.ranges import KAFKA_4_3
from tests.wire.kafka.talk import greeting

METADATA_VERSION = 8
INIT_VERSION = 1
REMEMBERED = 5
NO_ERROR, UNKNOWN_TOPIC, NOT_LEADER, TOO_LARGE, OUT_OF_ORDER = 0, 3, 6, 10, 45
DUPLICATE, INVALID_EPOCH, INVALID_RECORD = 46, 47, 87
BAD = b"BAD"
"""What a value begins with that the broker takes for an invalid record."""


class Row(NamedTuple):
    """A message as it is stored."""

    value: bytes | None
    key: bytes | None
    properties: tuple[tuple[str, bytes | None], ...]
    time_ms: int


class Entry(NamedTuple):
    """A batch as it is stored."""

    first: int
    rows: list[Row]
    producer: int | str | None
    epoch: int
    sequence: int
    claim: PropertyClaim
    acks: int
    """Who had to have it before it was answered, as the request said: -1 all replicas, 1 the leader, 0 nobody."""


@dataclass
class ProducerState:
    """What a partition knows of one producer."""

    epoch: int
    next_sequence: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


@dataclass
class ModelPartition:
    """One partition: its leader and its log."""

    leader: int | None
    epoch: int = 0
    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    attempts: int = 0
    """Batches that were brought here, stored or not."""

    @property
    def rows(self) -> list[Row]:
        return [row for entry in self.entries for row in entry.rows]


class Answer(NamedTuple):
    """What a partition says to a batch."""

    code: int
    first: int = -1
    blamed: tuple[tuple[int, str], ...] = ()


Refusal = Callable[["ModelBroker", str, int, bool], int]
"""The code that a broker answers for no reason of its own, 0 for none: given the topic, the partition, and whether the
batch is stored there already."""


class ModelCluster:
    """Brokers, topics, and what is still on its way."""

    def __init__(self, clock: ManualClock, nodes: int = 3, produce_version: int = 12) -> None:
        self.clock = clock
        self.produce_version = produce_version
        self.topics: dict[str, list[ModelPartition]] = {}
        self.creates: dict[str, int] = {}
        """Topics that come into being with so many partitions when somebody who may create them asks."""
        self.message_bytes_max = 1 << 20
        self.brokers = {number: ModelBroker(self, number) for number in range(1, nodes + 1)}
        self.refusal: Refusal = lambda broker, topic, partition, stored: NO_ERROR
        self.unsure: Callable[[], bool] = lambda: True
        """Whether a batch that is answered with a code that leaves it open is stored."""
        self.delay: Callable[[], float] = lambda: 0.0
        """How long a request takes until it is looked at."""
        self.topic_error: dict[str, int] = {}
        self.identities_code = NO_ERROR
        self.identities = 0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def create(self, topic: str, partitions: int) -> list[ModelPartition]:
        nodes = sorted(self.brokers)
        made = [ModelPartition(nodes[number % len(nodes)]) for number in range(partitions)]
        self.topics[topic] = made
        return made

    def grow(self, topic: str, partitions: int) -> None:
        nodes = sorted(self.brokers)
        have = self.topics[topic]
        have += [ModelPartition(nodes[number % len(nodes)]) for number in range(len(have), partitions)]

    def lead(self, topic: str, partition: int, leader: int | None) -> None:
        """Another broker leads now."""
        led = self.topics[topic][partition]
        led.leader = leader
        led.epoch += 1

    def rows(self, topic: str, partition: int = 0) -> list[Row]:
        return self.topics[topic][partition].rows

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [row.value for row in self.rows(topic, partition)]

    def pump(self) -> None:
        """Do what has come of age."""
        while self._later and self._later[0][0] <= self.clock.monotonic():
            heapq.heappop(self._later)[2]()

    def next_event(self) -> float | None:
        return self._later[0][0] if self._later else None

    def at(self, moment: float, action: Callable[[], None]) -> None:
        if moment <= self.clock.monotonic():
            action()
        else:
            heapq.heappush(self._later, (moment, next(self._order), action))


@dataclass
class Channel:
    """One connection as a broker sees it."""

    stream: MemoryStream
    data: bytearray = field(default_factory=bytearray)
    heard: int = 0
    busy_until: float = 0.0
    answered_until: float = 0.0
    is_over: bool = False
    """The connection has ended, and the one request that was being worked on then is done."""


class ModelBroker:
    """One broker."""

    def __init__(self, cluster: ModelCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.endpoint = Endpoint(f"broker{number}", 9092)
        self.streams: list[MemoryStream] = []
        self.faults: Callable[[], Faults] = Faults
        self.is_up = True
        self.throttle_ms = 0
        self.requests: list[tuple[int, int]] = []
        """The key of each request, and how many batches were in it."""
        self.tamper: Callable[[bytes], list[tuple[float, bytes]]] = lambda answer: [(0.0, answer)]
        """What is sent in place of an answer, and how much later."""
        self.damage: Callable[[bytes, int], bytes] = lambda answer, telling: answer
        """What becomes of an answer's bytes: the first so many tell what it answers, and a change there is noticed."""
        self.life = 0
        self._channels: dict[MemoryStream, Channel] = {}
        ranges = KAFKA_4_3 | {
            PRODUCE.key: (3, cluster.produce_version),
            METADATA.key: (0, METADATA_VERSION),
            INIT_PRODUCER_ID.key: (0, INIT_VERSION),
        }
        self._greeting = _greeting(tuple(sorted(ranges.items())))

    def __repr__(self) -> str:
        return f"<ModelBroker {self.number}, {'up' if self.is_up else 'down'}>"

    def die(self) -> None:
        """End all connections and refuse new ones; what was asked and not looked at is forgotten."""
        self.is_up = False
        self.life += 1
        self.faults = lambda: Faults(refuse=True)
        self.cut()

    def revive(self) -> None:
        self.is_up = True
        self.faults = Faults

    def cut(self) -> None:
        """End all connections."""
        for stream in self.streams:
            stream.ended = True
        self.streams.clear()

    def hear(self, stream: MemoryStream) -> None:
        channel = self._channels.get(stream) or self._channels.setdefault(stream, Channel(stream))
        channel.data += stream.sent[channel.heard :]
        channel.heard = len(stream.sent)
        while len(channel.data) >= 4:
            size = int.from_bytes(channel.data[:4], "big")
            if len(channel.data) < 4 + size:
                return
            request = bytes(channel.data[4 : 4 + size])
            del channel.data[: 4 + size]
            self._take(channel, request)

    def _take(self, channel: Channel, request: bytes) -> None:
        due = max(channel.busy_until, self.cluster.clock.monotonic() + self.cluster.delay())
        channel.busy_until = due
        life = self.life

        def handle() -> None:
            if self.life == life and not channel.is_over:
                channel.is_over = channel.stream.ended or channel.stream.closed
                self._handle(channel, request)

        self.cluster.at(due, handle)

    def _handle(self, channel: Channel, request: bytes) -> None:
        key, version, correlation = struct.unpack_from(">hhi", request)
        _client, at = read_string(memoryview(request), 8, flexible=False)
        data = memoryview(request)
        if key == PRODUCE.key:
            flexible = PRODUCE.is_flexible(version)
            body = self._produce(data, skip_tags(data, at) if flexible else at, version)
            if body is not None:
                self._answer(channel, correlation, (b"\x00" if flexible else b"") + body, _telling(body, flexible))
            return
        self.requests.append((key, 0))
        if key == METADATA.key:
            assert version == METADATA_VERSION
            self._answer(channel, correlation, self._metadata(data, at))
        elif key == INIT_PRODUCER_ID.key:
            assert version == INIT_VERSION
            self._answer(channel, correlation, self._identify())
        else:
            self._answer(channel, correlation, self._greeting)

    def _answer(self, channel: Channel, correlation: int, body: bytes, telling: int = 0) -> None:
        """Answer; `telling` bytes of the body tell what it answers."""
        answer = self.damage(struct.pack(">ii", 4 + len(body), correlation) + body, 8 + telling)
        now = self.cluster.clock.monotonic()
        for delay, data in self.tamper(answer):
            channel.answered_until = max(channel.answered_until, now + delay)
            self.cluster.at(channel.answered_until, lambda data=data: self._give(channel.stream, data))  # type: ignore[misc]

    def _give(self, stream: MemoryStream, data: bytes) -> None:
        if not stream.ended and not stream.closed:
            stream.inbox += data

    # Metadata, identities

    def _metadata(self, data: memoryview, at: int) -> bytes:
        count, at = int.from_bytes(data[at : at + 4], "big", signed=True), at + 4
        names = []
        for _ in range(max(count, 0)):
            name, at = read_string(data, at, flexible=False)
            names.append(str(name))
        cluster = self.cluster
        if data[at]:
            for name in names:
                if name in cluster.creates and name not in cluster.topics:
                    cluster.create(name, cluster.creates[name])
        up = [broker for broker in cluster.brokers.values() if broker.is_up]
        parts = [struct.pack(">ii", 0, len(up))]
        for broker in up:
            host, port = broker.endpoint
            parts.append(struct.pack(">i", broker.number) + plain_string(host) + struct.pack(">i", port) + b"\xff\xff")
        parts.append(plain_string("model") + struct.pack(">ii", min(cluster.brokers), len(names)))
        parts += [self._topic(name) for name in names]
        parts.append(struct.pack(">i", -1))
        return b"".join(parts)

    def _topic(self, name: str) -> bytes:
        partitions = self.cluster.topics.get(name)
        code = self.cluster.topic_error.get(name, NO_ERROR if partitions is not None else UNKNOWN_TOPIC)
        shown = partitions if partitions is not None and code == NO_ERROR else []
        parts = [struct.pack(">h", code), plain_string(name), b"\x00", struct.pack(">i", len(shown))]
        for number, partition in enumerate(shown):
            leader = -1 if partition.leader is None else partition.leader
            parts.append(struct.pack(">hiiiiii", 5 if leader < 0 else 0, number, leader, partition.epoch, 0, 0, 0))
        return b"".join((*parts, struct.pack(">i", -1)))

    def _identify(self) -> bytes:
        self.cluster.identities += 1
        return struct.pack(">ihqh", 0, self.cluster.identities_code, 1000 + self.cluster.identities, 0)

    # Produce

    def _produce(self, data: memoryview, at: int, version: int) -> bytes | None:
        flexible = PRODUCE.is_flexible(version)
        _transactional, at = read_string(data, at, flexible)
        acks = struct.unpack_from(">h", data, at)[0]
        topics, at = read_count(data, at + 6, flexible)
        told: dict[str, list[bytes]] = {}
        batches = 0
        for _ in range(topics):
            name, at = read_string(data, at, flexible)
            partitions, at = read_count(data, at, flexible)
            for _ in range(partitions):
                number = struct.unpack_from(">i", data, at)[0]
                if flexible:
                    length, at = read_uvarint(data, at + 4)
                    length -= 1
                else:
                    length, at = struct.unpack_from(">i", data, at + 4)[0], at + 8
                answer = self._store(str(name), number, bytes(data[at : at + length]), acks)
                at += length
                at = skip_tags(data, at) if flexible else at
                batches += 1
                told.setdefault(str(name), []).append(_partition_answer(number, answer, version))
            at = skip_tags(data, at) if flexible else at
        assert (skip_tags(data, at) if flexible else at) == len(data), "bytes behind the request"
        self.requests.append((PRODUCE.key, batches))
        return _produce_answer(told, self.throttle_ms, flexible) if acks else None

    def _store(self, topic: str, number: int, batch: bytes, acks: int) -> Answer:
        partitions = self.cluster.topics.get(topic)
        if partitions is None or number >= len(partitions):
            return Answer(UNKNOWN_TOPIC)
        partition = partitions[number]
        partition.attempts += 1
        if partition.leader != self.number:
            return Answer(NOT_LEADER)
        header = verify(batch)
        known = _known(partition, header)
        code = self.cluster.refusal(self, topic, number, known is not None)
        if code == DUPLICATE:
            code = code if known is not None else NO_ERROR
        elif code != NO_ERROR:
            if code in UNSURE and self.cluster.unsure():
                self._accept(partition, header, batch, acks)
            return Answer(code)
        answer = self._accept(partition, header, batch, acks)
        return Answer(DUPLICATE) if code == DUPLICATE else answer

    def _accept(self, partition: ModelPartition, header: Any, batch: bytes, acks: int) -> Answer:
        if len(batch) > self.cluster.message_bytes_max:
            return Answer(TOO_LARGE)
        assert header.base_offset == 0
        assert header.count == header.last_offset_delta + 1
        rows = _rows(batch)
        assert len(rows) == header.count
        assert max(row.time_ms for row in rows) == header.max_timestamp
        blamed = tuple((index, "bad") for index, row in enumerate(rows) if (row.value or b"").startswith(BAD))
        if blamed:
            return Answer(INVALID_RECORD, -1, blamed)
        first = partition.end
        if header.producer_id >= 0:
            known = _known(partition, header)
            if known is not None:
                return Answer(NO_ERROR, known)
            code = _number(partition, header, first)
            if code != NO_ERROR:
                return Answer(code)
        shown = peek(batch)
        partition.entries.append(
            Entry(first, rows, shown.producer, header.producer_epoch, header.base_sequence, shown.claim, acks)
        )
        partition.end += len(rows)
        return Answer(NO_ERROR, first)


UNSURE = {row.number for row in TABLE if row.error.persisted is Persisted.MAYBE}
"""Codes after which nobody knows whether the batch was stored."""


def _known(partition: ModelPartition, header: Any) -> int | None:
    """Where a batch is that was stored before."""
    state = partition.producers.get(header.producer_id)
    if state is None or state.epoch != header.producer_epoch:
        return None
    for sequence, count, first in state.batches:
        if (sequence, count) == (header.base_sequence, header.count):
            return first
    return None


def _number(partition: ModelPartition, header: Any, first: int) -> int:
    """Note a batch as its producer's next, or say why it is not."""
    state = partition.producers.get(header.producer_id)
    if state is None:
        state = partition.producers[header.producer_id] = ProducerState(header.producer_epoch, header.base_sequence)
    if header.producer_epoch < state.epoch:
        return INVALID_EPOCH
    if header.producer_epoch > state.epoch:
        if header.base_sequence != 0:
            return OUT_OF_ORDER
        state = partition.producers[header.producer_id] = ProducerState(header.producer_epoch, 0)
    if header.base_sequence != state.next_sequence:
        return OUT_OF_ORDER
    state.next_sequence = header.base_sequence + header.count
    state.batches.append((header.base_sequence, header.count, first))
    return NO_ERROR


def _rows(batch: bytes) -> list[Row]:
    columns = decode(batch)
    properties = [tuple(pairs) for pairs in columns.properties.to_pylist()]
    times = columns.event_time.cast("int64").to_pylist()
    fields = (columns.value.to_pylist(), columns.key.to_pylist(), properties, times)
    return [Row(*row) for row in zip(*fields, strict=True)]


def _partition_answer(number: int, answer: Answer, version: int) -> bytes:
    flexible = PRODUCE.is_flexible(version)
    body = struct.pack(">ihqq", number, answer.code, answer.first, -1)
    if version >= 5:
        body += struct.pack(">q", 0)
    if version >= 8:
        body += uvarint(len(answer.blamed) + 1) if flexible else struct.pack(">i", len(answer.blamed))
        for index, said in answer.blamed:
            body += struct.pack(">i", index) + (compact_string(said) + b"\x00" if flexible else plain_string(said))
        body += b"\x00\x00" if flexible else b"\xff\xff"
    return body


def _produce_answer(told: dict[str, list[bytes]], throttle_ms: int, flexible: bool) -> bytes:
    string = compact_string if flexible else plain_string
    tags = b"\x00" if flexible else b""
    parts = [_count(len(told), flexible)]
    for name, partitions in told.items():
        parts += [string(name), _count(len(partitions), flexible), *partitions, tags]
    return b"".join((*parts, struct.pack(">i", throttle_ms), tags))


def _telling(body: bytes, flexible: bool) -> int:
    """How many bytes of an answer to produce come before the first code."""
    tags, count, length = (1, 1, 1) if flexible else (0, 4, 2)
    name = body[1] - 1 if flexible else int.from_bytes(body[4:6], "big")
    return tags + count + length + name + count + 4  # the last is the partition's number


def _count(number: int, flexible: bool) -> bytes:
    return uvarint(number + 1) if flexible else struct.pack(">i", number)


_GREETINGS: dict[Any, bytes] = {}


def _greeting(ranges: tuple[tuple[int, tuple[int, int]], ...]) -> bytes:
    """The body of a greeting's answer."""
    if ranges not in _GREETINGS:
        _GREETINGS[ranges] = greeting(dict(ranges), {})[8:]
    return _GREETINGS[ranges]
