"""Requests and batches made by hand: what no official client would say, said over a socket of its own.

Nothing of the product takes part: requests are kio's, a batch is put together here, field by field.
"""

from __future__ import annotations

import datetime
import importlib
import io
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Self

import crc32c
from kio.serial import entity_reader, entity_writer

from tests.compat.sides import LIMIT_S

CLIENT = "raw"
NOT_YET = (3, 6, 14, 15, 16)
"""Codes of a topic, leader or coordinator that is about to be there."""
TIME_MS = 1_700_000_000_000


class ClosedError(Exception):
    """The broker closed the connection instead of answering."""


class Wire:
    """One connection, one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, LIMIT_S)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: Any) -> Any:
        """Send kio's request and return kio's answer."""
        self.send(request)
        answer = self.receive()
        module = importlib.import_module(type(request).__module__.replace(".request", ".response"))
        kind = getattr(module, type(request).__name__.replace("Request", "Response"))
        header, at = entity_reader(kind.__header_schema__)(answer, 0)
        assert header.correlation_id == self._correlation
        return entity_reader(kind)(answer, at)[0]

    def send(self, request: Any) -> None:
        """Send kio's request and wait for nothing."""
        self._correlation += 1
        kind = type(request)
        header = {
            "request_api_key": kind.__api_key__,
            "request_api_version": kind.__version__,
            "correlation_id": self._correlation,
            "client_id": CLIENT,
        }
        frame = io.BytesIO()
        entity_writer(kind.__header_schema__)(frame, kind.__header_schema__(**header))
        entity_writer(kind)(frame, request)
        self.send_frame(frame.getvalue())

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedError from error

    def receive(self) -> bytes:
        """The next frame."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except ConnectionResetError as error:
                raise ClosedError from error
            if not part:
                raise ClosedError
            data += part
        return data


def api(name: str, version: int) -> ModuleType:
    """kio's module of a request in a version."""
    return importlib.import_module(f"kio.schema.{name}.v{version}.request")


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def record(value: bytes | None, key: bytes | None = b"k", offset_delta: int = 0, time_delta: int = 0) -> bytes:
    """One record without headers."""

    def sized(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\x00" + varint(time_delta) + varint(offset_delta) + sized(key) + sized(value) + varint(0)
    return varint(len(body)) + body


def records(count: int, deltas: Sequence[int] | None = None, key: bytes | None = b"k") -> bytes:
    """So many small records, a millisecond apart."""
    return b"".join(
        record(b"value-%d" % number, key, delta, number) for number, delta in enumerate(deltas or range(count))
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch, of which any field may be wrong; None for what follows from the others."""

    payload: bytes
    count: int
    base_offset: int = 0
    length: int | None = None
    leader_epoch: int = -1
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int = TIME_MS
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    def encode(self) -> bytes:
        checked = struct.pack(
            ">hiqqqhii",
            self.attributes,
            self.count - 1 if self.last_offset_delta is None else self.last_offset_delta,
            self.base_timestamp,
            self.base_timestamp + self.count - 1 if self.max_timestamp is None else self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )
        checked += self.payload
        crc = crc32c.crc32c(checked) if self.crc is None else self.crc
        length = 9 + len(checked) if self.length is None else self.length
        return struct.pack(">qiibI", self.base_offset, length, self.leader_epoch, self.magic, crc) + checked


def produce_request(
    topic: str, batches: Sequence[bytes | None], version: int = 8, acks: int = -1, transactional_id: str | None = None
) -> Any:
    """A Produce request with one batch for each partition from 0 on; the same topic twice when there are more."""
    module = api("produce", version)
    parts = tuple(module.PartitionProduceData(index=at, records=batch) for at, batch in enumerate(batches))
    return module.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=datetime.timedelta(seconds=30),
        topic_data=(module.TopicProduceData(name=topic, partition_data=parts),),
    )


def produce(wire: Wire, request: Any) -> Any:
    """The answer for the first partition, once its leader is there."""
    over = time.monotonic() + LIMIT_S
    while True:
        answer = wire.ask(request).responses[0].partition_responses[0]
        if answer.error_code.value not in NOT_YET or time.monotonic() > over:
            return answer


def fetch(wire: Wire, topic: str, partitions: Sequence[int] = (0,), offset: int = 0, isolation: int = 0) -> list[Any]:
    """What is there at once from an offset on, by partition."""
    module = api("fetch", 4)
    parts = tuple(
        module.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=64 << 20)
        for number in partitions
    )
    request = module.FetchRequest(
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        max_bytes=64 << 20,
        isolation_level=isolation,
        topics=(module.FetchTopic(topic=topic, partitions=parts),),
    )
    return list(wire.ask(request).responses[0].partitions)


def settle(address: tuple[str, int], topic: str, partitions: int) -> None:
    """Wait until a new topic's leaders are at work."""
    over = time.monotonic() + LIMIT_S
    with Wire(address) as wire:
        while any(part.error_code.value in NOT_YET for part in fetch(wire, topic, range(partitions))):
            assert time.monotonic() < over, f"{topic} has no leaders"
            time.sleep(0.005)


def stored_batches(address: tuple[str, int], topic: str) -> list[bytes]:
    """The batches of partition 0 as they are stored."""
    with Wire(address) as wire:
        (part,) = fetch(wire, topic)
    assert part.error_code.value == 0, part.error_code
    data, batches = part.records or b"", []
    while data:
        (length,) = struct.unpack_from(">i", data, 8)
        batches.append(bytes(data[: 12 + length]))
        data = data[12 + length :]
    return batches


def warm(address: tuple[str, int], count: int = 16) -> None:
    """Use groups and transactional ids once: a new Kafka first makes the topics that it keeps them in."""
    offsets, identity = api("offset_fetch", 1), api("init_producer_id", 0)
    timeout = datetime.timedelta(minutes=1)
    asked = [
        offsets.OffsetFetchRequest(
            group_id=f"warm-{n}", topics=(offsets.OffsetFetchRequestTopic(name="none", partition_indexes=(0,)),)
        )
        for n in range(count)
    ]
    asked += [
        identity.InitProducerIdRequest(transactional_id=f"warm-{n}", transaction_timeout=timeout) for n in range(count)
    ]
    over = time.monotonic() + LIMIT_S
    finder = api("find_coordinator", 4)
    with Wire(address) as wire:
        for kind in (0, 1):
            request = finder.FindCoordinatorRequest(
                key_type=kind, coordinator_keys=tuple(f"warm-{n}" for n in range(count))
            )
            while any(each.error_code.value for each in wire.ask(request).coordinators):
                assert time.monotonic() < over, "no coordinators"
                time.sleep(0.02)
        for request in asked:
            while _refused(wire.ask(request)):
                assert time.monotonic() < over, "coordinators are not at work"
                time.sleep(0.02)


def _refused(answer: Any) -> bool:
    codes = (
        [answer.error_code]
        if hasattr(answer, "error_code")
        else [part.error_code for topic in answer.topics for part in topic.partitions]
    )
    return any(code.value for code in codes)
