"""What official consumers find in a topic, from its first message to its last; what an official admin does to it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiokafka
import kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

LIMIT_S = 60.0
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Read:
    """One message as a consumer got it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int


def new_topic() -> str:
    return f"p-{uuid.uuid4().hex[:12]}"


def create(bootstrap: str, partitions: int = 1, replicas: int = -1, **settings: str) -> str:
    """A new topic with these settings, underscores for dots; its name. Messages of any age stay in it.

    Its leaders are at work when this returns. A new one refuses for a moment, saying that it does not lead; as that may
    mean that it has just ceased to, having stored the batch, what becomes of such a batch depends on it.
    """
    name = new_topic()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"retention.ms": "-1"} | {setting.replace("_", "."): value for setting, value in settings.items()}
    _done(admin.create_topics([NewTopic(name, partitions, replicas, config=config)]))
    over = time.monotonic() + LIMIT_S
    idle = [TopicPartition(name, number) for number in range(partitions)]
    while idle:
        assert time.monotonic() < over, f"nobody leads {idle}"
        asked = admin.list_offsets({partition: OffsetSpec.latest() for partition in idle})  # type: ignore[no-untyped-call]
        idle = [partition for partition, future in asked.items() if future.exception(LIMIT_S) is not None]
    return name


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # held, since its answers end with it
    _done(admin.create_partitions([NewPartitions(topic, partitions)]))


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    _done(admin.delete_topics([topic]))


def _done(futures: Mapping[str, Any]) -> None:
    for future in futures.values():
        future.result(LIMIT_S)


def partitions_of(bootstrap: str, topic: str) -> list[int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=LIMIT_S).topics[topic]
    assert found.error is None, found.error
    return sorted(found.partitions)


def read_all(bootstrap: str, topic: str, least: int = 0, **settings: Any) -> list[Read]:
    """All that confluent-kafka finds: until the end of every partition, and until so many were found."""
    partitions = partitions_of(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reading",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 20,  # how long the end of a partition takes to be told
            "check.crcs": True,
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Read] = []
        ended: set[int] = set()
        over = time.monotonic() + LIMIT_S
        while (len(ended) < len(partitions) or len(found) < least) and time.monotonic() < over:
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(_read(message))
                    ended.discard(message.partition())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
                elif not error.retriable() and error.code() not in PASSING:
                    raise KafkaException(error)
    finally:
        consumer.close()
    assert len(ended) == len(partitions), f"only partitions {sorted(ended)} of {topic} were read to their end"
    return found


PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)


def _read(message: Any) -> Read:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Read(message.partition(), message.offset(), message.key(), message.value(), headers, message.timestamp()[1])


def read_by_aiokafka(bootstrap: str, topic: str, least: int) -> list[Read]:
    async def read() -> list[Read]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([aiokafka.TopicPartition(topic, number) for number in partitions_of(bootstrap, topic)])
            found: list[Read] = []
            over = time.monotonic() + LIMIT_S
            while len(found) < least and time.monotonic() < over:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += map(_record, records)
            return found

    return asyncio.run(read())


def read_by_kafka_python(bootstrap: str, topic: str, least: int) -> list[Read]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=None, auto_offset_reset="earliest")
    try:
        consumer.assign([kafka.TopicPartition(topic, number) for number in partitions_of(bootstrap, topic)])
        found: list[Read] = []
        over = time.monotonic() + LIMIT_S
        while len(found) < least and time.monotonic() < over:
            for records in consumer.poll(timeout_ms=200).values():
                found += map(_record, records)
        return found
    finally:
        consumer.close()


def _record(record: Any) -> Read:
    headers = tuple((name, value) for name, value in record.headers)
    return Read(record.partition, record.offset, record.key, record.value, headers, record.timestamp)


Reader = Callable[[str, str, int], list[Read]]
READERS: dict[str, Reader] = {
    "confluent-kafka": read_all,
    "aiokafka": read_by_aiokafka,
    "kafka-python": read_by_kafka_python,
}


def in_place(found: Iterable[Read]) -> dict[tuple[int, int], Read]:
    """Messages by partition and offset."""
    return {(message.partition, message.offset): message for message in found}


def by_partition(found: Iterable[Read]) -> dict[int, list[Read]]:
    """Messages of each partition, in the order of their offsets."""
    parts: dict[int, list[Read]] = {}
    for message in sorted(found, key=lambda message: (message.partition, message.offset)):
        parts.setdefault(message.partition, []).append(message)
    return parts
