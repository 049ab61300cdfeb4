"""The Kafka door on a broker in a test's hands: real partitions, on logs that are one file each.

Rounds end when a test says so; nothing waits, sleeps or has a thread. Requests and answers pass through kio's own
writer and reader, as on a client's side.
"""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kio.serial import entity_reader

from penstock.broker.broker import Broker
from penstock.broker.filters import Filters
from penstock.broker.log.partition import EntryAt, PartitionLog, Place, Slice
from penstock.broker.names import parse_topic
from penstock.broker.partition_state import PartitionState
from penstock.broker.producer_names import PartitionProducerNames, TopicProducers
from penstock.broker.producers import PartitionProducers
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.connection import Connection
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.apis import TABLE
from penstock.broker.server.kafka.door import KafkaDoor
from penstock.broker.server.loop import Loop
from penstock.broker.settings import TopicSettings
from penstock.broker.stats import Stats
from penstock.broker.store import TopicRow
from penstock.broker.topics import Topic
from penstock.wire.entry import Buffer, EntryFormat, EntryHeader
from tests.broker.batches import FORMAT
from tests.broker.server.fakes import FakeHub, MemoryTransport
from tests.broker.server.kafka.samples import fill, kio_bytes

APIS = {api.name: api for api in TABLE}
NOW_MS = 1_700_000_000_000


class FileLog:
    """A log that is one file; readers see what was synced."""

    segment_bytes = segment_age_ms = 0

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.start = self.end = self.visible = 0
        self.held = 0
        self.is_unreadable = False
        """Whether what is read is an error of the system, as a bad sector is."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._folder = os.open(path.parent, os.O_RDONLY)
        self._placed: list[tuple[EntryHeader, int]] = []
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    def append(self, form: EntryFormat, entry: Buffer, header: EntryHeader, now_ms: int, epoch: int = 0) -> Place:
        first, last = self.end, self.end + header.count - 1
        os.pwritev(self._fd, list(form.place(entry, first, epoch)), self._size)
        self._placed.append((header._replace(first=first, last=last), self._size))
        self._size += header.size
        self.end = last + 1
        return Place(first, last)

    def _visible(self, position: int, limit: int | None) -> Iterator[tuple[EntryHeader, int]]:
        end = self.visible if limit is None else min(limit, self.visible)
        for header, offset in self._placed:
            if cast(int, header.last) >= position and cast(int, header.last) < end:
                yield header, offset

    def read(self, position: int, bytes_max: int, limit: int | None = None) -> Slice | None:
        found = list(self._visible(position, limit))
        if not found:
            return None
        size = 0
        taken: list[tuple[EntryHeader, int]] = []
        for header, offset in found:
            if taken and size + header.size > bytes_max:
                break
            size += header.size
            taken.append((header, offset))
        self.held += 1
        first, last = cast(int, taken[0][0].first), cast(int, taken[-1][0].last)
        fd = self._folder if self.is_unreadable else self._fd
        return Slice(fd, taken[0][1], size, first, last + 1, len(taken), cast(Any, self))

    def has_claims(self, position: int) -> bool:
        return any(header.claim for header, _offset in self._placed)

    def pin(self) -> int:
        self.held += 1
        return self._folder if self.is_unreadable else self._fd

    def unpin(self) -> None:
        self.held -= 1
        assert self.held >= 0

    def entries(self, position: int, limit: int | None = None) -> Iterator[EntryAt]:
        for header, offset in self._visible(position, limit):
            yield EntryAt(header, self._fd, offset, header.size, cast(Any, self))

    def seek_time(self, time_ms: int, position: int = 0) -> tuple[int, int] | None:
        for header, _offset in self._visible(max(self.start, position), None):
            if header.max_time_ms >= time_ms:
                return cast(int, header.first), header.max_time_ms
        return None

    def latest_time(self, position: int = 0) -> tuple[int, int] | None:
        visible = self._visible(max(self.start, position), None)
        rows = [(-header.max_time_ms, cast(int, header.first)) for header, _offset in visible]
        return (min(rows)[1], -min(rows)[0]) if rows else None

    def delete_before(self, position: int) -> None:
        self.start = max(self.start, position)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)


class DeskTopics:
    """Topics that are there at once, unless a test holds them up."""

    def __init__(self, owner: Desk) -> None:
        self._by_name: dict[str, Topic] = {}
        self._owner = owner
        self.auto_create = True
        self.arriving: list[Callable[[], None]] | None = None

    def add(self, name: str, partitions: int = 1, **settings: Any) -> Topic:
        topic = Topic(TopicRow(uuid.uuid4(), name, partitions, True, 0), TopicSettings(**settings))
        self._by_name[name] = topic
        return topic

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def get(self, name: str) -> Topic:
        topic = self.find(name)
        if topic is None:
            raise Refused(Refusal.UNKNOWN_TOPIC, f"there is no topic {parse_topic(name).name}")
        return topic

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return next((topic for topic in self._by_name.values() if topic.id == topic_id), None)

    def ensure(self, name: str, *, now_ms: int, done: Callable[[Topic | Exception], None]) -> None:
        topic = self.find(name)
        if topic is not None:
            done(topic)
        elif not self.auto_create:
            self.get(name)
        elif self.arriving is not None:
            parse_topic(name)
            self.arriving.append(lambda: done(self.add(name)))
        else:
            parse_topic(name)
            done(self.add(name))

    def drop(self, name: str) -> None:
        topic = self._by_name.pop(name)
        for number in range(topic.partitions):
            state = self._owner.states.pop((name, number), None)
            if state is not None:
                state.leave()


class Desk:
    """A broker as far as the Kafka door sees it, and one client's connection to it."""

    def __init__(self, folder: Path, **limits: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.hub = FakeHub(**limits)
        self.hub.now, self.hub.now_ms = 1000.0, NOW_MS
        self.settings = SimpleNamespace(node_id=1, folder=folder, topics={})
        self.cluster_id = "cluster"
        self.stats = Stats()
        self.filters = Filters()
        self.topics = DeskTopics(self)
        self.groups = SimpleNamespace(groups_reading=lambda *_: set())
        self.states: dict[tuple[str, int], PartitionState] = {}
        self.logs: list[FileLog] = []
        self.at_once = True
        self.refusal: Refusal | None = None
        self._waiting: list[tuple[FileLog, Callable[[Exception | None], None]]] = []
        self.rounds = SimpleNamespace(submit=self._submit)
        self.door = KafkaDoor(cast(Broker, self), cast(Loop, self.hub))
        self.door._bound = ("127.0.0.1", 9092)
        self._clients: list[Client] = []

    def close(self) -> None:
        for client in self._clients:
            client.connection.close("the test is over")
        for log in self.logs:
            assert log.held == 0
            log.close()

    # The broker

    def partition(self, name: str, number: int) -> PartitionState:
        topic = self.topics.get(name)
        if not 0 <= number < topic.partitions:
            raise Refused(Refusal.UNKNOWN_PARTITION)
        if (name, number) not in self.states:
            log = FileLog(self._folder / f"{name}-{number}-{len(self.logs)}")
            self.logs.append(log)
            self.states[name, number] = PartitionState(
                *(topic, number, cast(PartitionLog, log), PartitionProducers(), self._names(topic)),
                *(self.stats.partition(name, number), FORMAT, cast(Any, self)),
            )
        return self.states[name, number]

    def _names(self, topic: Topic) -> PartitionProducerNames:
        return PartitionProducerNames(TopicProducers(), 600_000)

    def _submit(self, work: None, done: Callable[[Exception | None], None], log: Any = None) -> int:
        if self.at_once:
            for each in self.logs:
                each.visible = each.end
            done(None)
        else:
            self._waiting.append((log, done))
        return 0

    def round(self, error: Exception | None = None) -> None:
        """The commit thread has done what it was given."""
        waiting, self._waiting = self._waiting, []
        for each in self.logs:
            each.visible = each.end
        for _log, done in waiting:
            done(error)
        self.turn()

    def admit(self, *_: object) -> None:
        if self.refusal is not None:
            raise Refused(self.refusal)

    def advanced(self, state: PartitionState) -> None:
        state.wake()

    def changed(self, state: PartitionState) -> None:
        pass

    # Time and clients

    def turn(self) -> None:
        self.hub.end_turn()

    def pass_time(self, seconds: float) -> None:
        self.hub.now += seconds
        self.hub.now_ms += round(seconds * 1000)
        self.turn()

    def client(self) -> Client:
        self._clients.append(Client(self))
        return self._clients[-1]

    def put(self, entry: bytes, topic: str = "orders", number: int = 0, **more: Any) -> Place:
        """Publish, as if by another client."""
        state, header = self.partition(topic, number), FORMAT.check(entry)
        place = state.publish(FORMAT, entry, header, self.hub.now, self.hub.now_ms, "other", **more)
        self.turn()
        return place


class Client:
    """One connection, in memory."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.transport = MemoryTransport()
        self.connection = Connection(self.transport, ("127.0.0.1", 5), desk.hub)
        self.connection.session = desk.door.session(self.connection)
        self._correlation = 0
        self._asked: list[tuple[str, int, int]] = []

    def send(self, name: str, version: int, **values: Any) -> None:
        """Send a request whose fields are plain values; those not given are empty."""
        kind = codec.schema_of(APIS[name], version, "request")
        self.send_body(name, version, kio_bytes(fill(kind, values)))

    def send_body(self, name: str, version: int, body: bytes) -> None:
        api = APIS[name]
        self._correlation += 1
        tags = b"\0" if api.is_flexible(version) else b""
        head = struct.pack(">hhih", api.key, version, self._correlation, 4) + b"test" + tags
        self._asked.append((name, version, self._correlation))
        self.transport.arrivals.append(struct.pack(">i", len(head) + len(body)) + head + body)
        while self.transport.arrivals and not self.connection.is_closed:
            self.connection.readable()
            self.desk.turn()

    def answers(self) -> list[Any]:
        """All answers that have arrived since the last time, read by kio."""
        found = []
        while self.transport.sent:
            size = int.from_bytes(self.transport.sent[:4], "big")
            data = bytes(self.transport.sent[4 : 4 + size])
            del self.transport.sent[: 4 + size]
            name, version, correlation = self._asked.pop(0)
            kind = codec.schema_of(APIS[name], version, "response")
            assert int.from_bytes(data[:4], "big") == correlation
            at = 5 if kind.__flexible__ and name != "ApiVersions" else 4
            answer, end = entity_reader(kind)(data, at)
            assert end == len(data) - at or end == len(data)
            found.append(answer)
        return found

    def ask(self, name: str, version: int, **values: Any) -> Any:
        """Send, and take the one answer."""
        self.send(name, version, **values)
        (answer,) = self.answers()
        return answer
