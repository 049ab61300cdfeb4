"""Talking to a connection without a broker, by answers that kio encodes, and with one over a plain blocking socket."""

from __future__ import annotations

import dataclasses
import datetime
import io
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

import confluent_kafka
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from penstock.errors import PenstockError
from penstock.wire.kafka import schema
from penstock.wire.kafka.connection import KafkaConnection
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.kafka.versions import API_VERSIONS, Api
from penstock.wire.protocol import Answered, Event, Ready, Reply, Request
from tests.wire.kafka.ranges import KAFKA_4_3, Ranges

FRAME_BYTES_MAX = 1 << 20
CLIENT = "some client"
LIMIT_S = 60.0
NEWEST = {"transaction.version": 2}


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def answer(api: Api, version: int, correlation: int, body: bytes, tags: bytes = b"\x00") -> bytes:
    """The frame of an answer."""
    flexible = api.is_flexible(version) and api is not API_VERSIONS
    return framed(correlation.to_bytes(4, "big") + tags * flexible + body)


def response(api: Api, version: int, structure: str = "", /, **values: Any) -> Any:
    """A structure of an answer as kio has it."""
    return getattr(schema.module_of(api, version, "response"), structure or f"{api}Response")(**values)


def sample(kind: type[Any]) -> Any:
    """A structure with something in every field: one element in arrays, "t" for strings, 0 for numbers."""
    return kind(
        **{field.name: sample_of(field.type) for field in dataclasses.fields(kind) if "tag" not in field.metadata}
    )


def sample_of(type_: Any) -> Any:
    if isinstance(type_, UnionType):
        type_ = get_args(type_)[0]
    if get_origin(type_) is tuple:
        return (sample_of(get_args(type_)[0]),)
    if dataclasses.is_dataclass(type_):
        return sample(type_)  # type: ignore[arg-type]
    if issubclass(type_, str):
        return "t"
    if issubclass(type_, datetime.timedelta):
        return schema_time(0)
    return None if type_.__module__ == "uuid" else type_(0)


def greeting(ranges: Ranges, features: Mapping[str, int], correlation: int = 1, version: int = 3) -> bytes:
    """A broker's answer to the greeting."""
    keys = tuple(
        response(API_VERSIONS, version, "ApiVersion", api_key=key, min_version=low, max_version=high)
        for key, (low, high) in ranges.items()
    )
    values: dict[str, Any] = {"error_code": schema_error(0), "api_keys": keys}
    if version >= 1:
        values["throttle_time"] = schema_time(0)
    if version >= 3:
        values["finalized_features_epoch"] = 1
        values["finalized_features"] = tuple(
            response(API_VERSIONS, version, "FinalizedFeatureKey", name=n, max_version_level=v, min_version_level=1)
            for n, v in features.items()
        )
    return answer(API_VERSIONS, version, correlation, kio_bytes(response(API_VERSIONS, version, **values)))


def schema_error(code: int) -> Any:
    return ErrorCode(code)


def schema_time(milliseconds: int) -> Any:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=milliseconds))


def greeted(ranges: Ranges = KAFKA_4_3, features: Mapping[str, int] = NEWEST) -> KafkaConnection:
    """A connection that believes to have greeted such a broker."""
    connection = KafkaWire().connection(CLIENT, FRAME_BYTES_MAX)
    connection.greet()
    (event,) = receive(connection, greeting(ranges, features))
    assert isinstance(event, Ready)
    return connection


def receive(connection: KafkaConnection, data: bytes) -> list[Event]:
    return list(connection.receive(memoryview(data)))


class Talk:
    """A connection with its socket; without `ranges` it greets the broker itself."""

    def __init__(self, address: tuple[str, int], ranges: Ranges | None, features: Mapping[str, int]) -> None:
        self.socket = socket.create_connection(address, LIMIT_S)
        self.ready: Ready | None = None
        if ranges is not None:
            self.connection = greeted(ranges, features)
            return
        self.connection = KafkaWire().connection(CLIENT, FRAME_BYTES_MAX)
        self.socket.sendall(b"".join(self.connection.greet()))
        while self.ready is None:
            for event in self.events():
                if isinstance(event, Reply):
                    self.socket.sendall(b"".join(event.buffers))
                else:
                    assert isinstance(event, Ready)
                    self.ready = event

    def events(self) -> list[Event]:
        data = self.socket.recv(1 << 16)
        assert data, "the broker closed the connection"
        return receive(self.connection, data)

    def send(self, request: Request[Any]) -> None:
        self.socket.sendall(b"".join(self.connection.send(request, request)))

    def ask_once(self, request: Request[Any]) -> Any:
        self.send(request)
        while not (events := self.events()):
            pass
        (event,) = events
        assert isinstance(event, Answered)
        assert event.token is request
        return event.answer

    def ask(self, request: Request[Any]) -> Any:
        """The answer, once it is not an error that goes away by itself."""
        deadline = time.monotonic() + LIMIT_S
        while will_pass(told := self.ask_once(request)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return told


def will_pass(told: Any) -> bool:
    errors = [told] if not isinstance(told, Mapping) else list(told.values())
    return any(isinstance(error, PenstockError) and error.retriable for error in errors)


@contextmanager
def talk(
    address: tuple[str, int], ranges: Ranges | None = None, features: Mapping[str, int] = NEWEST
) -> Iterator[Talk]:
    talk = Talk(address, ranges, features)
    try:
        yield talk
    finally:
        talk.socket.close()


class Read(NamedTuple):
    """A message as an official consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None


def read_back(bootstrap: str, topic: str, partition: int = 0) -> list[Read]:
    """All committed messages of a partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        messages = []
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, "no end of the partition in time"
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None
                messages.append(Read(offset, message.key(), message.value()))
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                return messages
    finally:
        consumer.close()
