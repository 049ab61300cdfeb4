"""What the official Python clients do to a real Kafka, in one shape: send values, read them all back."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiokafka
import confluent_kafka

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in a deprecated way while being imported
    import kafka

READ_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Client:
    """One client library: how it sends all values in order, and how it reads a topic's partition 0 from the start."""

    name: str
    send: Callable[[str, str, Sequence[bytes]], None]
    read: Callable[[str, str, int], list[bytes]]


def confluent_send(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(READ_LIMIT_S) == 0
    assert not failures


def confluent_read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + READ_LIMIT_S
        values: list[bytes] = []
        while len(values) < count and time.monotonic() < deadline:
            values += [message.value() or b"" for message in consumer.consume(count, 0.5) if message.error() is None]
        return values
    finally:
        consumer.close()


def aiokafka_send(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            for receipt in [await producer.send(topic, value) for value in values]:
                await receipt

    asyncio.run(send())


def aiokafka_read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            deadline = time.monotonic() + READ_LIMIT_S
            values: list[bytes] = []
            while len(values) < count and time.monotonic() < deadline:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    values += [message.value for message in messages]
            return values

    return asyncio.run(read())


def kafka_python_send(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all")
    try:
        for receipt in [producer.send(topic, value) for value in values]:
            receipt.get(READ_LIMIT_S)
    finally:
        producer.close()


def kafka_python_read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=None)
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + READ_LIMIT_S
        values: list[bytes] = []
        while len(values) < count and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=500).values():
                values += [message.value for message in messages]
        return values
    finally:
        consumer.close()


CLIENTS = [
    Client("confluent-kafka", confluent_send, confluent_read),
    Client("aiokafka", aiokafka_send, aiokafka_read),
    Client("kafka-python", kafka_python_send, kafka_python_read),
]
