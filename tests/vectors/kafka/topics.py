"""Topics of a real Kafka of one node: made with settings, their first segment read from the disk, and cleaned."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from brokers.kafka import KafkaCluster

SEGMENT_MS = 60_000
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": str(SEGMENT_MS)}
LIMIT_S = 60.0
POLL_S = 0.1


def create_topics(kafka: KafkaCluster, settings: Mapping[str, Mapping[str, str]]) -> None:
    """Make topics of one partition, each with its settings."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [NewTopic(topic, 1, 1, config=dict(each)) for topic, each in settings.items()]
    for created in admin.create_topics(topics).values():
        created.result(LIMIT_S)


def segment_path(kafka: KafkaCluster, topic: str) -> Path:
    """The first log file of a topic's partition 0."""
    return kafka.data(1) / f"{topic}-0" / f"{0:020}.log"


def closing_time_ms() -> int:
    """Only a closed segment is cleaned, and a message of this time, in the future, closes the one before it."""
    return time.time_ns() // 1_000_000 + 10 * SEGMENT_MS


def wait_cleaned(kafka: KafkaCluster, topics: Collection[str]) -> None:
    """Wait until the cleaner has been through these topics."""
    checkpoint = kafka.data(1) / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + LIMIT_S
    while missing := set(topics) - _cleaned(checkpoint):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not cleaned within {LIMIT_S:.0f} s: {missing}")
        time.sleep(POLL_S)


def _cleaned(checkpoint: Path) -> set[str]:
    """After two lines, each line has topic, partition and offset."""
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    return {line.split()[0] for line in lines[2:]}
