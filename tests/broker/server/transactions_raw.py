"""Requests of transactions, one at a time on a socket, so that a test decides about every version and field.

Works with any broker that speaks Kafka's protocol, which is how the answers expected in tests were found out.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
from datetime import timedelta
from importlib import import_module
from typing import Any, get_args

from kio.serial import entity_reader, entity_writer

from penstock.wire.entry import Stamp
from penstock.wire.kafka.buffer import BatchBuffer

LIMIT_S = 30.0
ACKS_ALL = -1


class _Sink(bytearray):
    write = bytearray.extend


def words(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class Raw:
    """A connection that says what it is told, and waits for the answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, LIMIT_S)
        self._correlation = 0

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, /, **values: Any) -> Any:
        """Ask, and wait for the answer."""
        self.send(api, version, **values)
        return self.receive(api, version)

    def send(self, api: str, version: int, /, **values: Any) -> None:
        """Ask."""
        module = import_module(f"kio.schema.{words(api)}.v{version}.request")
        request = _fill(getattr(module, f"{api}Request"), values)
        kind = type(request)
        self._correlation += 1
        frame = _Sink(struct.pack(">hhihh", kind.__api_key__, version, self._correlation, 1, 0)[:8])
        frame += struct.pack(">h", 4) + b"test"
        if kind.__flexible__:
            frame += b"\0"
        entity_writer(kind)(frame, request)  # type: ignore[arg-type]
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, api: str, version: int) -> Any:
        """The next answer."""
        (size,) = struct.unpack(">i", self._take(4))
        data = self._take(size)
        module = import_module(f"kio.schema.{words(api)}.v{version}.response")
        kind = getattr(module, f"{api}Response")
        at = 5 if kind.__flexible__ and api != "ApiVersions" else 4
        return entity_reader(kind)(data, at)[0]

    def _take(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return bytes(data)

    # The requests of a transaction

    def init(
        self,
        transactional_id: str | None,
        version: int = 4,
        timeout_ms: int = 60_000,
        current: tuple[int, int] = (-1, -1),
    ) -> tuple[int, int, int]:
        """Error, producer id, epoch."""
        told = self.ask(
            "InitProducerId",
            version,
            transactional_id=transactional_id,
            transaction_timeout=timedelta(milliseconds=timeout_ms),
            producer_id=current[0],
            producer_epoch=current[1],
        )
        return told.error_code, told.producer_id, told.producer_epoch

    def add(
        self, transactional_id: str, producer: int, epoch: int, *partitions: tuple[str, int], version: int = 3
    ) -> Any:
        """Error by partition."""
        told = self.ask(
            "AddPartitionsToTxn",
            version,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                {"name": topic, "partitions": tuple(number for name, number in partitions if name == topic)}
                for topic in dict(partitions)
            ],
        )
        return {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in told.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }

    def add_group(self, transactional_id: str, producer: int, epoch: int, group: str, version: int = 3) -> int:
        told = self.ask(
            *("AddOffsetsToTxn", version),
            transactional_id=transactional_id,
            producer_id=producer,
            producer_epoch=epoch,
            group_id=group,
        )
        return int(told.error_code)

    def end(
        self, transactional_id: str, producer: int, epoch: int, commit: bool, version: int = 4
    ) -> tuple[int, int, int]:
        """Error, producer id, epoch; -1 where the version has none."""
        told = self.ask(
            *("EndTxn", version),
            transactional_id=transactional_id,
            producer_id=producer,
            producer_epoch=epoch,
            committed=commit,
        )
        return told.error_code, getattr(told, "producer_id", -1), getattr(told, "producer_epoch", -1)

    def commit_offsets(
        self,
        transactional_id: str,
        producer: int,
        epoch: int,
        group: str,
        offsets: dict[tuple[str, int], int],
        version: int = 4,
        **member: Any,
    ) -> dict[tuple[str, int], int]:
        """Error by partition."""
        told = self.ask(
            *("TxnOffsetCommit", version),
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer,
            producer_epoch=epoch,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": number, "committed_offset": offset, "committed_metadata": "note"}
                        for (name, number), offset in offsets.items()
                        if name == topic
                    ],
                }
                for topic in dict(list(offsets))
            ],
            **member,
        )
        return {
            (topic.name, part.partition_index): part.error_code for topic in told.topics for part in topic.partitions
        }

    def produce(
        self,
        topic: str,
        partition: int,
        stamp: Stamp,
        transactional_id: str | None,
        version: int = 11,
        values: tuple[bytes, ...] = (b"x",),
    ) -> tuple[int, int]:
        """Error and base offset."""
        self.send_batch(topic, partition, stamp, transactional_id, version, values)
        return self.receive_batch(version)

    def send_batch(
        self,
        topic: str,
        partition: int,
        stamp: Stamp,
        transactional_id: str | None,
        version: int = 11,
        values: tuple[bytes, ...] = (b"x",),
    ) -> None:
        part = {"index": partition, "records": batch(stamp, values)}
        self.send(
            *("Produce", version),
            transactional_id=transactional_id,
            acks=ACKS_ALL,
            timeout=timedelta(seconds=LIMIT_S),
            topic_data=[{"name": topic, "partition_data": [part]}],
        )

    def receive_batch(self, version: int = 11) -> tuple[int, int]:
        told = self.receive("Produce", version).responses[0].partition_responses[0]
        return told.error_code, told.base_offset

    def create(self, topic: str, partitions: int = 1) -> int:
        told = self.ask(
            *("CreateTopics", 5),
            topics=[
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "assignments": (),
                    "configs": (),
                }
            ],
            timeout=timedelta(seconds=LIMIT_S),
        )
        return int(told.topics[0].error_code)

    def committed(self, group: str, topic: str, partition: int, stable: bool = False) -> tuple[int, int]:
        """Error and offset."""
        told = self.ask(
            *("OffsetFetch", 7),
            group_id=group,
            topics=[{"name": topic, "partition_indexes": (partition,)}],
            require_stable=stable,
        )
        if told.error_code:
            return told.error_code, -1
        part = told.topics[0].partitions[0]
        return part.error_code, part.committed_offset


def batch(stamp: Stamp, values: tuple[bytes, ...] = (b"x",)) -> bytes:
    """A batch of these values."""
    buffer = BatchBuffer()
    for value in values:
        buffer.append(value, event_time_ms=1_700_000_000_000)
    buffer.seal()
    return b"".join(bytes(part) for part in buffer.stamp(stamp))


def _fill(kind: Any, values: dict[str, Any]) -> Any:
    """A structure out of plain mappings; fields that this version has not are left out."""
    filled = {}
    for field in dataclasses.fields(kind):
        if field.name not in values:
            continue
        value = values[field.name]
        if isinstance(value, list):
            value = tuple(_fill(_element(field), item) for item in value)
        filled[field.name] = value
    return kind(**filled)


def _element(field: Any) -> Any:
    """The class of an array's elements."""
    kinds = [kind for kind in get_args(field.type) if kind not in (Ellipsis, type(None))]
    return kinds[0] if dataclasses.is_dataclass(kinds[0]) else get_args(kinds[0])[0]
