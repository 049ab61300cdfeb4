"""A model of a Kafka cluster that is read from: it reads what a client really sent and answers as a broker would.

Requests are read and answers written by kio, none of whose code the client reads answers with, and whose Fetch is not
the client's. A broker works on one request of a connection at a time, as real ones do; a fetch that finds nothing waits
until something is stored or its time is over.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from kio.serial import entity_reader
from kio.static.primitive import Records

from penstock.clock import ManualClock
from penstock.wire.entry import Stamp
from penstock.wire.kafka import schema
from penstock.wire.kafka.header import peek
from penstock.wire.kafka.primitives import read_string
from penstock.wire.kafka.versions import (
    APIS,
    DESCRIBE_CONFIGS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
)
from penstock.wire.protocol import Endpoint
from tests.consume.batches import marker, values
from tests.net.memory import Faults, MemoryStream
from tests.wire.kafka.ranges import KAFKA_4_3
from tests.wire.kafka.talk import answer, greeting, kio_bytes, response, schema_time

OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, NOT_COORDINATOR = 1, 3, 6, 16
FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_ID = 74, 75, 100
IDS_FROM = 13
PINNED = {
    LIST_OFFSETS.key: (1, 8),
    OFFSET_FOR_LEADER_EPOCH.key: (2, 3),
    FIND_COORDINATOR.key: (0, 3),
    OFFSET_FETCH.key: (1, 7),
    OFFSET_COMMIT.key: (2, 7),
    DESCRIBE_CONFIGS.key: (1, 2),
}
BY_KEY = {api.key: api for api in APIS}


class Stored(NamedTuple):
    """An entry in a log."""

    first: int
    last: int
    epoch: int
    data: bytes


@dataclass
class ModelLog:
    """One partition: its leader and its log."""

    leader: int | None
    epoch: int = 0
    entries: list[Stored] = field(default_factory=list)
    start: int = 0
    end: int = 0
    local_start: int = 0
    """What lies before it is kept elsewhere."""
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first position and the marker's position of each aborted transaction."""
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leaders and where their entries begin."""

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(self, data: bytes) -> None:
        header = peek(data)
        assert isinstance(header.first, int)
        assert isinstance(header.last, int)
        self.entries.append(Stored(header.first, header.last, self.epoch, data))
        self.end = header.last + 1

    def write(self, count: int = 1, producer: int | None = None, **more: Any) -> None:
        """Some messages that say where they are; of a producer: within its transaction."""
        stamp = Stamp() if producer is None else Stamp(producer, 0, 0, transactional=True)
        if producer is not None:
            self.open.setdefault(producer, self.end)
        self.append(values(self.end, count, stamp=stamp, epoch=self.epoch, **more))

    def finish(self, producer: int, *, commit: bool) -> None:
        """End a producer's transaction."""
        first = self.open.pop(producer)
        if not commit:
            self.aborted.append((producer, first, self.end))
        self.append(marker(self.end, producer, commit=commit, epoch=self.epoch))

    def lead(self, leader: int | None) -> None:
        self.leader = leader
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))

    def delete_before(self, position: int) -> None:
        self.start = position
        self.entries = [entry for entry in self.entries if entry.last >= position]

    def cut(self, position: int) -> None:
        """Lose what lies behind a position, as when a leader that lags is elected."""
        self.entries = [entry for entry in self.entries if entry.last < position]
        self.end = self.entries[-1].last + 1 if self.entries else self.start
        self.epochs = [(epoch, min(first, self.end)) for epoch, first in self.epochs]

    def remove(self, first: int, last: int) -> None:
        """What compaction takes out."""
        self.entries = [entry for entry in self.entries if entry.last < first or entry.first > last]

    def committed(self) -> list[int]:
        """Positions that a reader of what is committed is to see, in order."""
        return [position for entry in self.entries if entry.last < self.stable for position in self._seen(entry)]

    def everything(self) -> list[int]:
        """Positions that a reader of everything is to see."""
        seen = (entry for entry in self.entries if not int(peek(entry.data).flags) & 2)
        return [position for entry in seen for position in range(entry.first, entry.first + peek(entry.data).count)]

    def _seen(self, entry: Stored) -> range | tuple[()]:
        header = peek(entry.data)
        is_aborted = any(
            producer == header.producer and first <= entry.first < end for producer, first, end in self.aborted
        )
        hidden = not header.count or int(header.flags) & 2 or (int(header.flags) & 1 and is_aborted)
        return () if hidden else range(max(entry.first, self.start), entry.first + header.count)


Refusal = Callable[["ModelBroker", str, int], int]
"""The code with which a broker refuses a fetch of a partition for no reason of its own, 0 for none."""


class ModelCluster:
    """Brokers, topics, groups, and what is still on its way."""

    def __init__(self, clock: ManualClock, nodes: int = 3, fetch_version: int = 17, *, ids: bool = True) -> None:
        self.clock = clock
        self.topics: dict[str, list[ModelLog]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.compacted: set[str] = set()
        self.marks: dict[tuple[str, str, int], tuple[int, str, int]] = {}
        self.unstable: set[str | tuple[str, str, int]] = set()
        """Groups, or single marks, that belong to a transaction that is open."""
        self.refusal: Refusal = lambda broker, topic, partition: 0
        self.delay: Callable[[], float] = lambda: 0.0
        self.codes: dict[int, Callable[[], int]] = {}
        """The code with which a kind of request is refused, by its key."""
        self.metadata_version = 12 if ids or fetch_version >= IDS_FROM else 8
        self.ranges = KAFKA_4_3 | PINNED | {FETCH.key: (4, fetch_version), METADATA.key: (0, self.metadata_version)}
        self.brokers = {number: ModelBroker(self, number) for number in range(1, nodes + 1)}
        self.home = 1
        self.homes: dict[str, int | None] = {}
        """Groups whose home is another one, or that have none for a moment."""
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def home_of(self, group: str) -> int | None:
        return self.homes.get(group, self.home)

    def create(self, topic: str, partitions: int = 1) -> list[ModelLog]:
        nodes = sorted(self.brokers)
        self.topics[topic] = [ModelLog(nodes[number % len(nodes)]) for number in range(partitions)]
        self.ids[topic] = uuid.uuid4()
        return self.topics[topic]

    def grow(self, topic: str, partitions: int) -> None:
        nodes, have = sorted(self.brokers), self.topics[topic]
        have += [ModelLog(nodes[number % len(nodes)]) for number in range(len(have), partitions)]

    def delete(self, topic: str) -> None:
        del self.topics[topic], self.ids[topic]

    def pump(self) -> None:
        """Do what has come of age, and look whether those who wait have something now."""
        for broker in self.brokers.values():
            broker.look()
        while self._later and self._later[0][0] <= self.clock.monotonic():
            heapq.heappop(self._later)[2]()

    def next_event(self) -> float | None:
        return self._later[0][0] if self._later else None

    def at(self, moment: float, action: Callable[[], None]) -> None:
        if moment <= self.clock.monotonic():
            action()
        else:
            heapq.heappush(self._later, (moment, next(self._order), action))


@dataclass(eq=False)
class Channel:
    """One connection as a broker sees it: requests in order, one of them being worked on."""

    stream: MemoryStream
    data: bytearray = field(default_factory=bytearray)
    heard: int = 0
    requests: deque[bytes] = field(default_factory=deque)
    busy: bool = False


class Waiting(NamedTuple):
    """A fetch that has found nothing so far."""

    channel: Channel
    version: int
    correlation: int
    request: Any


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
        self.asked: list[Any] = []
        """All requests but greetings and metadata, as kio read them."""
        self.answered_at: list[float] = []
        """When fetches were answered."""
        self.tamper: Callable[[bytes], bytes] = lambda answer: answer
        self.life = 0
        self._channels: dict[MemoryStream, Channel] = {}
        self._waiting: list[Waiting] = []

    def __repr__(self) -> str:
        return f"<ModelBroker {self.number}, {'up' if self.is_up else 'down'}>"

    @property
    def fetches(self) -> list[Any]:
        return [request for request in self.asked if type(request).__name__ == "FetchRequest"]

    def die(self) -> None:
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
        self._waiting.clear()

    def hear(self, stream: MemoryStream) -> None:
        channel = self._channels.get(stream) or self._channels.setdefault(stream, Channel(stream))
        channel.data += stream.sent[channel.heard :]
        channel.heard = len(stream.sent)
        while len(channel.data) >= 4:
            size = int.from_bytes(channel.data[:4], "big")
            if len(channel.data) < 4 + size:
                break
            channel.requests.append(bytes(channel.data[4 : 4 + size]))
            del channel.data[: 4 + size]
        self._next(channel)

    def look(self) -> None:
        """Answer fetches that have something now."""
        for waiting in list(self._waiting):
            body, found = self._fetch(waiting.request, waiting.version)
            if found:
                self._waiting.remove(waiting)
                self._answer_fetch(waiting, body)

    def _next(self, channel: Channel) -> None:
        if channel.busy or not channel.requests:
            return
        channel.busy = True
        request, life = channel.requests.popleft(), self.life

        def handle() -> None:
            if self.life == life and not channel.stream.ended and not channel.stream.closed:
                self._handle(channel, request)

        self.cluster.at(self.cluster.clock.monotonic() + self.cluster.delay(), handle)

    def _handle(self, channel: Channel, request: bytes) -> None:
        key, version = int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big")
        correlation = int.from_bytes(request[4:8], "big")
        api = BY_KEY[key]
        if api.name == "ApiVersions":
            self._give(channel, _greeting(tuple(sorted(self.cluster.ranges.items())), correlation))
            return
        low, high = self.cluster.ranges[key]
        assert low <= version <= high
        _client, at = read_string(memoryview(request), 8, flexible=False)
        told = _read(api, version, request[at + api.is_flexible(version) :])
        if api is METADATA:
            self._give(channel, answer(api, version, correlation, self._metadata(told, version)))
            return
        self.asked.append(told)
        if api is FETCH:
            self._take_fetch(Waiting(channel, version, correlation, told))
            return
        body = getattr(self, f"_{api.name.lower()}")(told, version, self.cluster.codes.get(key, lambda: 0)())
        self._give(channel, answer(api, version, correlation, body))

    def _give(self, channel: Channel, data: bytes) -> None:
        channel.busy = False
        if not channel.stream.ended and not channel.stream.closed:
            channel.stream.inbox += self.tamper(data)
        self._next(channel)

    # Fetch

    def _take_fetch(self, asked: Waiting) -> None:
        if self.throttle_ms:
            body = _say(FETCH, asked.version, throttle_ms=self.throttle_ms, responses=())
            self._answer_fetch(asked, body)
            return
        body, found = self._fetch(asked.request, asked.version)
        wait = asked.request.max_wait.total_seconds()
        if found or not wait:
            self._answer_fetch(asked, body)
            return
        self._waiting.append(asked)

        def give_up() -> None:
            if asked in self._waiting:
                self._waiting.remove(asked)
                self._answer_fetch(asked, self._fetch(asked.request, asked.version)[0])

        self.cluster.at(self.cluster.clock.monotonic() + wait, give_up)

    def _answer_fetch(self, asked: Waiting, body: bytes) -> None:
        self.answered_at.append(self.cluster.clock.monotonic())
        self._give(asked.channel, answer(FETCH, asked.version, asked.correlation, body))

    def _fetch(self, request: Any, version: int) -> tuple[bytes, bool]:
        """The answer, and whether it is worth giving at once."""
        left, responses, found, taken = request.max_bytes, [], False, 0
        names = {topic_id: name for name, topic_id in self.cluster.ids.items()}
        for topic in request.topics:
            name = names.get(topic.topic_id) if version >= IDS_FROM else topic.topic
            rows = []
            for row in topic.partitions:
                told = self._partition(name, row, request, left, first=not taken, by_id=version >= IDS_FROM)
                size = len(told["records"] or b"")
                left, taken = max(left - size, 0), taken + size
                found = found or bool(told["code"]) or size > 0
                rows.append(_partition_data(version, row.partition, told))
            named = {"topic_id": topic.topic_id} if version >= IDS_FROM else {"topic": topic.topic}
            responses.append(response(FETCH, version, "FetchableTopicResponse", partitions=tuple(rows), **named))
        return _say(FETCH, version, responses=tuple(responses)), found

    def _partition(
        self, name: str | None, row: Any, request: Any, left: int, *, first: bool, by_id: bool
    ) -> dict[str, Any]:
        told: dict[str, Any] = {"code": 0, "records": b"", "start": -1, "end": -1, "stable": -1, "aborted": None}
        logs = self.cluster.topics.get(name or "")
        if logs is None or row.partition >= len(logs):
            return told | {"code": UNKNOWN_ID if by_id else UNKNOWN_TOPIC}
        log = logs[row.partition]
        epoch = getattr(row, "current_leader_epoch", -1)
        code = self.cluster.refusal(self, name or "", row.partition)
        if code:
            return told | {"code": code}
        if log.leader != self.number:
            return told | {"code": NOT_LEADER}
        if epoch >= 0 and epoch != log.epoch:
            return told | {"code": FENCED_EPOCH if epoch < log.epoch else UNKNOWN_EPOCH}
        if not log.start <= row.fetch_offset <= log.end:
            return told | {"code": OUT_OF_RANGE}
        told |= {"start": log.start, "end": log.end, "stable": log.stable}
        readable = log.stable if request.isolation_level else log.end
        wanted = [entry for entry in log.entries if entry.last >= row.fetch_offset and entry.last < readable]
        if row.fetch_offset < log.local_start:
            wanted = []
        limit = min(left, row.partition_max_bytes)
        data = b"".join(entry.data for entry in wanted)
        told["records"] = data[: max(limit, len(wanted[0].data))] if wanted and first else data[:limit]
        if request.isolation_level:
            upper = max((entry.last for entry in wanted), default=-1)
            told["aborted"] = tuple(
                (producer, begun)
                for producer, begun, ended in log.aborted
                if begun <= upper and ended >= row.fetch_offset
            )
        return told

    # Metadata

    def _metadata(self, request: Any, version: int) -> bytes:
        cluster = self.cluster
        up = [broker for broker in cluster.brokers.values() if broker.is_up]
        brokers = tuple(
            response(
                METADATA, version, "MetadataResponseBroker", node_id=broker.number, host=broker.endpoint.host, port=9092
            )
            for broker in up
        )
        names = sorted(cluster.topics) if request.topics is None else [topic.name for topic in request.topics]
        topics = tuple(self._topic(name, version) for name in names)
        more: dict[str, Any] = {"cluster_id": "model", "controller_id": min(cluster.brokers)}
        return _say(METADATA, version, brokers=brokers, topics=topics, **more)

    def _topic(self, name: str, version: int) -> Any:
        logs = self.cluster.topics.get(name)
        rows = tuple(
            response(
                *(METADATA, version, "MetadataResponsePartition"),
                error_code=_code(5 if log.leader is None else 0),
                partition_index=number,
                leader_id=-1 if log.leader is None else log.leader,
                leader_epoch=log.epoch,
                replica_nodes=(),
                isr_nodes=(),
                offline_replicas=(),
            )
            for number, log in enumerate(logs or ())
        )
        ids = {"topic_id": self.cluster.ids.get(name)} if version >= 10 else {}
        code = _code(0 if logs is not None else UNKNOWN_TOPIC)
        return response(
            *(METADATA, version, "MetadataResponseTopic"),
            error_code=code,
            name=name,
            is_internal=False,
            partitions=rows,
            **ids,
        )

    # Positions

    def _listoffsets(self, request: Any, version: int, code: int) -> bytes:
        topics = []
        for topic in request.topics:
            rows = tuple(self._listed(topic.name, row, request.isolation_level, code) for row in topic.partitions)
            topics.append(response(LIST_OFFSETS, version, "ListOffsetsTopicResponse", name=topic.name, partitions=rows))
        return _say(LIST_OFFSETS, version, topics=tuple(topics))

    def _listed(self, name: str, row: Any, committed: int, code: int) -> Any:
        log, code = self._led(name, row.partition_index, code)
        found, time = -1, -1
        if log is not None and not code:
            spots = {-1: log.stable if committed else log.end, -2: log.start, -4: max(log.local_start, log.start)}
            if row.timestamp in spots:
                found = spots[row.timestamp]
            else:  # a message's time is its position
                later = [entry for entry in log.entries if entry.last >= row.timestamp]
                found = time = max(later[0].first, row.timestamp) if later else -1
        return response(
            *(LIST_OFFSETS, 8, "ListOffsetsPartitionResponse"),
            partition_index=row.partition_index,
            error_code=_code(code),
            offset=found,
            timestamp=time,
        )

    def _offsetforleaderepoch(self, request: Any, version: int, code: int) -> bytes:
        topics = []
        for topic in request.topics:
            rows = tuple(self._ended(topic.topic, row, version, code) for row in topic.partitions)
            topics.append(
                response(
                    OFFSET_FOR_LEADER_EPOCH, version, "OffsetForLeaderTopicResult", topic=topic.topic, partitions=rows
                )
            )
        return _say(OFFSET_FOR_LEADER_EPOCH, version, topics=tuple(topics))

    def _ended(self, name: str, row: Any, version: int, code: int) -> Any:
        log, code = self._led(name, row.partition, code)
        epoch, end = -1, -1
        if log is not None and not code:
            if 0 <= row.current_leader_epoch != log.epoch:
                code = FENCED_EPOCH if row.current_leader_epoch < log.epoch else UNKNOWN_EPOCH
            else:
                known = [(one, first) for one, first in log.epochs if one <= row.leader_epoch]
                later = [first for one, first in log.epochs if one > row.leader_epoch]
                if known and (later or known[-1][0] == row.leader_epoch):
                    epoch, end = known[-1][0], min(later, default=log.end)
        return response(
            *(OFFSET_FOR_LEADER_EPOCH, version, "EpochEndOffset"),
            error_code=_code(code),
            partition=row.partition,
            leader_epoch=epoch,
            end_offset=end,
        )

    def _led(self, name: str, number: int, code: int) -> tuple[ModelLog | None, int]:
        logs = self.cluster.topics.get(name)
        if logs is None or number >= len(logs):
            return None, code or UNKNOWN_TOPIC
        return logs[number], code or (0 if logs[number].leader == self.number else NOT_LEADER)

    def _describeconfigs(self, request: Any, version: int, code: int) -> bytes:
        (asked,) = request.resources
        policy = "compact" if asked.resource_name in self.cluster.compacted else "delete"
        setting = {"name": "cleanup.policy", "value": policy, "read_only": False, "is_sensitive": False, "synonyms": ()}
        result = response(
            *(DESCRIBE_CONFIGS, version, "DescribeConfigsResult"),
            error_code=_code(code),
            error_message=None,
            resource_type=2,
            resource_name=asked.resource_name,
            configs=(response(DESCRIBE_CONFIGS, version, "DescribeConfigsResourceResult", **setting),),
        )
        return _say(DESCRIBE_CONFIGS, version, results=(result,))

    # Groups

    def _findcoordinator(self, request: Any, version: int, code: int) -> bytes:
        number = self.cluster.home_of(request.key)
        if number is None:
            return _say(
                FIND_COORDINATOR, version, error_code=_code(15), error_message=None, node_id=-1, host="", port=-1
            )
        home = self.cluster.brokers[number]
        where: dict[str, Any] = {"node_id": home.number, "host": home.endpoint.host, "port": 9092}
        return _say(FIND_COORDINATOR, version, error_code=_code(code), error_message=None, **where)

    def _listgroups(self, request: Any, version: int, code: int) -> bytes:
        names = sorted({group for group, _topic, _number in self.cluster.marks})
        more = {"protocol_type": "", "group_state": "Empty", "group_type": "classic"}
        groups = tuple(
            response(LIST_GROUPS, version, "ListedGroup", group_id=name, **more)
            for name in names
            if self.cluster.home_of(name) == self.number
        )
        return _say(LIST_GROUPS, version, error_code=_code(code), groups=groups)

    def _offsetfetch(self, request: Any, version: int, code: int) -> bytes:
        group, topics = request.group_id, []
        whole = code or (0 if self.cluster.home_of(group) == self.number else NOT_COORDINATOR)
        for topic in request.topics:
            rows = []
            for number in topic.partition_indexes:
                offset, note, epoch = self.cluster.marks.get((group, topic.name, number), (-1, "", -1))
                unstable = 88 if self.cluster.unstable & {group, (group, topic.name, number)} else 0
                told = {"committed_offset": offset, "metadata": note, "committed_leader_epoch": epoch}
                row = {"partition_index": number, "error_code": _code(unstable), **told}
                rows.append(response(OFFSET_FETCH, version, "OffsetFetchResponsePartition", **row))
            topics.append(
                response(OFFSET_FETCH, version, "OffsetFetchResponseTopic", name=topic.name, partitions=tuple(rows))
            )
        return _say(OFFSET_FETCH, version, topics=tuple(topics), error_code=_code(whole))

    def _offsetcommit(self, request: Any, version: int, code: int) -> bytes:
        topics = []
        code = code or (0 if self.cluster.home_of(request.group_id) == self.number else NOT_COORDINATOR)
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                told = code or (0 if topic.name in self.cluster.topics else UNKNOWN_TOPIC)
                if not told:
                    key = (request.group_id, topic.name, row.partition_index)
                    mark = (row.committed_offset, row.committed_metadata or "", row.committed_leader_epoch)
                    self.cluster.marks[key] = mark
                fields = {"partition_index": row.partition_index, "error_code": _code(told)}
                rows.append(response(OFFSET_COMMIT, version, "OffsetCommitResponsePartition", **fields))
            topics.append(
                response(OFFSET_COMMIT, version, "OffsetCommitResponseTopic", name=topic.name, partitions=tuple(rows))
            )
        return _say(OFFSET_COMMIT, version, topics=tuple(topics))


def _partition_data(version: int, number: int, told: dict[str, Any]) -> Any:
    aborted = told["aborted"]
    if aborted is not None:
        aborted = tuple(
            response(FETCH, version, "AbortedTransaction", producer_id=producer, first_offset=first)
            for producer, first in aborted
        )
    fields = {
        "partition_index": number,
        "error_code": _code(told["code"]),
        "high_watermark": told["end"],
        "last_stable_offset": told["stable"],
        "aborted_transactions": aborted,
        "records": Records(told["records"]),
    }
    if version >= 5:
        fields["log_start_offset"] = told["start"]
    return response(FETCH, version, "PartitionData", **fields)


def _say(api: Api, version: int, *, throttle_ms: int = 0, **fields: Any) -> bytes:
    kind = getattr(schema.module_of(api, version, "response"), f"{api}Response")
    names = set(kind.__slots__)
    more = {"throttle_time": schema_time(throttle_ms), "error_code": _code(0), "session_id": 0}
    return kio_bytes(kind(**{name: value for name, value in (more | fields).items() if name in names}))


def _code(number: int) -> Any:
    """An error code, also one that kio has no name for."""
    return SimpleNamespace(value=number)


def _read(api: Api, version: int, data: bytes) -> Any:
    told, size = _reader(api, version)(data, 0)
    assert size == len(data), "bytes behind the request"
    return told


@functools.cache
def _reader(api: Api, version: int) -> Any:
    return entity_reader(getattr(schema.module_of(api, version, "request"), f"{api}Request"))


@functools.cache
def _greeting(ranges: tuple[tuple[int, tuple[int, int]], ...], correlation: int) -> bytes:
    return greeting(dict(ranges), {}, correlation)
