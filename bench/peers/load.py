"""What peers send and read: text-like values, and topics made, filled and counted outside any clock."""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from brokers.kafka import KafkaCluster

DISTINCT = 1000  # values of 100 bytes repeat only beyond the 64 KB that lz4 looks back
WORDS = ("order", "item", "price", "region", "customer", "shipped", "pending", "invoice", "total", "quantity")
FILL_SETTINGS = {"linger.ms": 20, "batch.size": 1_000_000, "acks": "all", "queue.buffering.max.messages": 2_000_000}
QUIET = {"log_level": 4}
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """How many messages of which size, in how many partitions, compressed how on the way in."""

    messages: int
    value_bytes: int = 100
    partitions: int = 4
    compression: str = "lz4"


def values(value_bytes: int, seed: int = 1) -> list[bytes]:
    """Distinct text-like values that lz4 makes about half as long."""
    source = random.Random(seed)
    made = []
    for _ in range(DISTINCT):
        text = ""
        while len(text) < value_bytes:
            text += f"{source.choice(WORDS)}={source.getrandbits(32):x} "
        made.append(text[:value_bytes].encode())
    return made


def new_topic(cluster: KafkaCluster, load: Load, name: str = "load") -> str:
    """Make an empty topic under a new name, and wait until it can be written."""
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({**QUIET, "bootstrap.servers": cluster.bootstrap})
    copies = min(3, len(cluster.nodes))
    admin.create_topics([NewTopic(topic, load.partitions, copies)], operation_timeout=30)[topic].result(30)
    return topic


def fill(cluster: KafkaCluster, load: Load) -> str:
    """A new topic that holds the load, in large compressed batches spread evenly over its partitions."""
    topic = new_topic(cluster, load)
    settings = {**QUIET, **FILL_SETTINGS, "compression.type": load.compression, "bootstrap.servers": cluster.bootstrap}
    producer = confluent_kafka.Producer(settings)
    pool = values(load.value_bytes)
    for first in range(0, load.messages, DISTINCT):
        partition = first // DISTINCT % load.partitions
        for value in pool[: load.messages - first]:
            producer.produce(topic, value, partition=partition)
        producer.poll(0)
        if len(producer) > 1_000_000:
            producer.flush(LIMIT_S)
    if producer.flush(LIMIT_S) or count(cluster, topic) != load.messages:
        raise RuntimeError(f"{topic} on {cluster.bootstrap} could not be filled with {load.messages} messages")
    return topic


def count(cluster: KafkaCluster, topic: str) -> int:
    """How many messages a topic without compaction or retention holds; 0 when there is no such topic."""
    return TopicCounter(cluster, topic).count()


class TopicCounter:
    """Asks for a topic's end again and again over one connection."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(
            {**QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "counter"}
        )

    def count(self) -> int:
        """How many messages the topic holds now."""
        listed = self._consumer.list_topics(self._topic, timeout=30).topics[self._topic]
        ends = [
            self._consumer.get_watermark_offsets(confluent_kafka.TopicPartition(self._topic, partition), timeout=30)
            for partition in listed.partitions
        ]
        return sum(end - start for start, end in filter(None, ends))

    def wait_for(self, least: int, limit_s: float, poll_s: float = 0.05) -> int:
        """Wait until so many messages are there, and tell how many are; the topic itself may be yet to come."""
        deadline = time.monotonic() + limit_s
        while (found := self._count_or_none()) < least:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._topic} holds {found} messages after {limit_s:.0f} s, not {least}")
            time.sleep(poll_s)
        return found

    def _count_or_none(self) -> int:
        try:
            return self.count()
        except confluent_kafka.KafkaException:  # it is being made: its partitions have no leader yet
            return 0

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()
