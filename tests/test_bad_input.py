"""What cannot be sent, or not so: named errors at once with both faces, and nothing reserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from brokers.kafka import KafkaCluster
from penstock.errors import (
    ClosedError,
    ConfigError,
    MessageError,
    MessageTooLargeError,
    PenstockError,
    UnknownOptionError,
    UnknownTopicError,
)
from tests.faces import LIMIT_S, UNREACHABLE, Face, budget_of, face, producer, topic
from tests.produce.real.reading import read_all

__all__ = ["face", "producer", "topic"]


BAD: dict[str, tuple[dict[str, Any], type[PenstockError], str]] = {
    "text as value": ({"value": "text"}, MessageError, "value: expected bytes or None, found str"),
    "number as key": ({"value": b"v", "key": 5}, MessageError, "key: expected bytes or None, found int"),
    "properties": ({"value": b"v", "properties": 5}, MessageError, "properties: expected a mapping"),
    "property name": ({"value": b"v", "properties": {1: "a"}}, MessageError, "names of type str, found 1"),
    "property value": ({"value": b"v", "properties": {"a": 1}}, MessageError, "for 'a', found int"),
    "broken text": ({"value": b"v", "properties": {"a": "\udc80"}}, MessageError, "UTF-8"),
    "negative partition": ({"value": b"v", "partition": -1}, MessageError, "partition: expected 0 or more, found -1"),
    "partition": ({"value": b"v", "partition": "0"}, MessageError, "partition: expected an int, found str"),
    "event time": ({"value": b"v", "event_time": "now"}, MessageError, "event_time: expected milliseconds"),
    "tag": ({"value": b"v", "tag": 5}, MessageError, "tag: expected a str, found int"),
    "keys": ({"value": b"v", "keys": 5}, MessageError, "keys: expected a str or a sequence"),
    "deliver_at": ({"value": b"v", "deliver_at": 2_000_000_000_000}, MessageError, "deliver_at"),
    "wait_for_store": ({"value": b"v", "wait_for_store": 1}, MessageError, "wait_for_store: expected True"),
    "too large": ({"value": b"v" * 1_000_001}, MessageTooLargeError, "message_bytes_max is 1000000"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_message_that_cannot_be_sent_is_refused_at_once_and_leaves_nothing(face: Face, case: str) -> None:
    fields, kind, text = BAD[case]
    producer = face.connect(UNREACHABLE, message_bytes_max=1_000_000, batch_delay_ms=60_000).producer("t")
    with pytest.raises(kind, match=text):
        producer.send(**fields)
    assert budget_of(producer).used == 0
    assert producer.stats().total.messages == 0
    producer.send(b"good", partition=0)
    used = budget_of(producer).used
    with pytest.raises(kind, match=text):
        producer.send(**{"partition": 0, **fields})
    assert budget_of(producer).used == used


BAD_MANY: dict[str, tuple[dict[str, Any], str]] = {
    "no sequence": ({"values": 5}, "values: expected a sequence of them, found int"),
    "text": ({"values": [b"v", "text"]}, r"values\[1\]: expected bytes or None, found str"),
    "key": ({"values": [b"v"], "keys": [5]}, r"keys\[0\]: expected bytes or None, found int"),
    "keys": ({"values": [b"v"], "keys": [b"k", b"k"]}, "keys: expected 1 of them, one for each value, found 2"),
    "properties": ({"values": [b"v"], "properties": [{}, {}]}, "properties: expected 1 of them"),
    "property name": ({"values": [b"v"] * 2, "properties": [{}, {1: "a"}]}, "message 1: properties: expected names"),
    "property value": ({"values": [b"v"] * 2, "properties": [None, {"a": 1}]}, "message 1: properties: expected str"),
    "no mapping": ({"values": [b"v"], "properties": [5]}, "message 0: properties: expected a mapping"),
    "broken text": ({"values": [b"v"], "properties": [{"a": "\udc80"}]}, "UTF-8"),
    "one mapping": ({"values": [b"v"], "properties": {1: "a"}}, "names of type str"),
    "arrow properties": ({"values": [b"v"], "properties": pa.array([[]])}, "properties: expected mappings"),
    "event times": ({"values": [b"v"], "event_times": [1, 2]}, "event_times: expected 1 of them"),
    "event time": ({"values": [b"v"], "event_times": ["now"]}, "event_times: expected milliseconds"),
    "negative partition": ({"values": [b"v"], "partition": -1}, "partition: expected 0 or more, found -1"),
    "partition": ({"values": [b"v"], "partition": "0"}, "partition: expected an int, found str"),
    "too large": ({"values": [b"v", b"v" * 1_000_001]}, "message 1: it takes .* message_bytes_max is 1000000"),
    "arrow": ({"values": pa.array([1, 2])}, "expected binary or string columns, found int64"),
}


@pytest.mark.parametrize("case", BAD_MANY)
def test_many_of_which_one_cannot_be_sent_are_refused_at_once_and_leave_nothing(face: Face, case: str) -> None:
    fields, text = BAD_MANY[case]
    producer = face.connect(UNREACHABLE, message_bytes_max=1_000_000).producer("t")
    with pytest.raises(MessageError, match=text):
        producer.send_many(**fields)
    assert budget_of(producer).used == 0
    assert producer.stats().total.messages == 0


def test_tables_and_batches_that_cannot_be_sent_are_refused_at_once(face: Face) -> None:
    producer = face.connect(UNREACHABLE).producer("t")
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: producer.send_table([b"v"]), "table: expected an Arrow table or record batch, found list"),
        (lambda: producer.send_table(pa.table({"key": [b"k"]})), "table: expected a column value"),
        (lambda: producer.send_table(pa.table({"value": [b"v"], "x": [1]})), "found value, x"),
        (lambda: producer.send_batch(b"bytes"), "batch: expected one made by `producer.batch"),
        (lambda: producer.send_batch(producer.batch()), "batch: it is empty"),
    ]
    for call, text in bad:
        with pytest.raises(MessageError, match=text):
            call()
    made = producer.batch()
    made.append(b"v")
    with pytest.raises(MessageError, match="partition: expected 0 or more, found -1"):
        producer.send_batch(made, partition=-1)
    with pytest.raises(UnknownTopicError, match="not known yet"):
        producer.send_batch(made)
    assert budget_of(producer).used == 0


def test_a_partition_that_the_topic_has_not_is_refused(face: Face, producer: Any) -> None:
    producer.ready(LIMIT_S)
    made = producer.batch()
    made.append(b"v")
    calls: list[Callable[[], Any]] = [
        lambda: producer.send(b"v", partition=2),
        lambda: producer.send_many([b"v"], partition=2),
        lambda: producer.send_batch(made, partition=2),
    ]
    for call in calls:
        with pytest.raises(MessageError, match="partition: expected 0 to 1, found 2"):
            call()
    assert budget_of(producer).used == 0


def test_bytes_in_other_shapes_are_taken(real_kafka: KafkaCluster, face: Face, producer: Any, topic: str) -> None:
    producer.ready(LIMIT_S)
    shapes = [b"v", bytearray(b"v"), memoryview(b"v")]
    receipts = [producer.send(shape, shape) for shape in shapes]
    bulk = producer.send_many(shapes, keys=shapes)
    places = {face.result(receipt).partition for receipt in receipts}
    assert {place.partition for place in face.result(bulk)} == places
    assert len(places) == 1
    assert {(message.value, message.key) for message in read_all(real_kafka.bootstrap, topic)} == {(b"v", b"v")}


def test_a_serializer_that_raises_leaves_nothing(face: Face) -> None:
    producer = face.connect(UNREACHABLE).producer("t", value_serializer=str.encode)
    with pytest.raises(TypeError):
        producer.send(5)
    with pytest.raises(TypeError):
        producer.send_many(["a", 5])
    assert budget_of(producer).used == 0


def test_a_closed_producer_takes_nothing_more(face: Face) -> None:
    client = face.connect(UNREACHABLE)
    producer = client.producer("t")
    made = producer.batch()
    made.append(b"v")
    producer.close()
    producer.close()
    calls: list[Callable[[], Any]] = [
        lambda: producer.send(b"v"),
        lambda: producer.send(b"v", b"k", partition=3, tag="t"),
        lambda: producer.send_many([b"v"]),
        lambda: producer.send_table(pa.table({"value": [b"v"]})),
        lambda: producer.send_batch(made, partition=0),
        lambda: producer.ready(1),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the producer of t is closed"):
            call()
    producer.flush(1)
    assert budget_of(producer).used == 0
    assert "closed" in repr(producer)
    client.close()
    producer.flush(1)
    with pytest.raises(ClosedError, match=r"the client of kafka://.* is closed"):
        client.producer("t")
    with pytest.raises(ClosedError, match=r"the client of kafka://.* is closed"):
        client.metadata()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("pulsar://h:1", "pulsar:// is not in this version"),
        ("rocketmq://h:1", "rocketmq:// is not in this version"),
        ("http://h:1", "expected kafka://host:port, found the scheme 'http'"),
        ("kafka://", "expected kafka://host:port,host:port"),
        ("kafka://h:x", "expected a port from 1 to 65535, found 'x'"),
        (b"kafka://h:1", "expected text like kafka://host:9092, found bytes"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(face: Face, url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        face.connect(url)


def test_options_that_cannot_be_used_are_refused(face: Face) -> None:
    with pytest.raises(UnknownOptionError, match="the nearest is"):
        face.connect(UNREACHABLE, client_idd="x")
    client = face.connect(UNREACHABLE)
    with pytest.raises(ConfigError, match="client_id is an option of the client"):
        client.producer("t", client_id="x")
    with pytest.raises(ConfigError, match="topic: expected a name, found ''"):
        client.producer("")
    with pytest.raises(ConfigError, match="batch: expected a BatchPolicy, found int"):
        client.producer("t", batch=5)
    with pytest.raises(ConfigError, match="io: expected a BatchIo, found int"):
        client.producer("t", io=5)
