"""Small Produce requests, several in flight on each connection: how many a broker answers in a second."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from bench.broker import raw_job
from bench.broker.pair import KAFKA, OURS, WARMUP, both
from bench.broker.raw_job import RawJob
from bench.peers import load as loads
from bench.peers import python_peers
from bench.peers.child import run_module
from bench.peers.load import Load
from bench.peers.measure import Figures, broker_pids
from bench.produce.contest import Found, Measure, contest
from bench.produce.send import scaled
from bench.results import Bar, Row, Section
from brokers.kafka import KafkaCluster

NAME = "broker.requests"
ROUNDS = 5
COMPARED = """\
Produce requests whose bytes were made before the clock started, five in flight on each connection, acks=all, each with
one batch of 1 KB or 16 KB of values of 100 B; the client looks at each answer's error and sends the next request. Both
brokers leave syncing to the system. CPU is that of all the broker's threads for one request.
"""
LIMIT_S = 600.0
RATE = Measure("requests", lambda figures: figures.rate, lambda rate: f"{rate / 1000:,.1f} k/s")
COST = Measure(
    "broker's CPU",
    lambda figures: max(figures.cpu_s["broker"], 0.005) * 1e6 / figures.messages,
    lambda cost: f"{cost:.0f} µs",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the batches are, how many go out, and over what."""

    batch_bytes: int
    requests: int
    connections: int = 1
    partitions: int = 1
    depth: int = 5


CELLS = {
    "1 KB, 1 connection, 1 partition": Shape(1024, 60_000),
    "1 KB, 4 connections, 16 partitions": Shape(1024, 60_000, 4, 16),
    "16 KB, 1 connection, 1 partition": Shape(16_384, 40_000),
    "16 KB, 4 connections, 16 partitions": Shape(16_384, 40_000, 4, 16),
}
BAR = Bar("≥", 2)


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """Every kind of request on both."""
    told: list[Row] = []
    with both(warmup) as brokers:
        for case, shape in CELLS.items():
            contestants = {name: partial(send, broker, share, shape) for name, broker in brokers.items()}
            told += rows(case, contest(contestants, rounds))
    return Section(NAME, COMPARED, told, rounds)


def rows(case: str, found: Found) -> list[Row]:
    """The rate has the bar; the cost is told."""
    return [found.row(case, OURS, KAFKA, RATE, BAR), found.row(case, OURS, KAFKA, COST)]


def send(broker: KafkaCluster, share: float, shape: Shape, config: Mapping[str, str] | None = None) -> Figures:
    """Requests to a new topic, which must then hold all their messages and is deleted."""
    topic = new_topic(broker, shape.partitions, config or {})
    host, port = broker.address(1)
    job = RawJob(
        host=host,
        port=port,
        topic=topic,
        partitions=shape.partitions,
        batch_bytes=shape.batch_bytes,
        value_bytes=100,
        requests=scaled(shape.requests, share),
        connections=shape.connections,
        depth=shape.depth,
        acks=-1,
        pids=broker_pids(broker),
    )
    figures = Figures(**run_module("bench.broker.raw_job", asdict(job), LIMIT_S))
    stored = loads.count(broker, topic)
    wanted = (job.requests + raw_job.warmup_of(job)) * int(figures.more["per_request"])
    if stored != wanted:
        raise RuntimeError(f"{topic} holds {stored} messages, not {wanted}")
    python_peers.delete_topic(broker, topic)
    return figures


def new_topic(broker: KafkaCluster, partitions: int, config: Mapping[str, str]) -> str:
    """An empty topic with these settings."""
    topic = f"raw-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({**loads.QUIET, "bootstrap.servers": broker.bootstrap})
    made = NewTopic(topic, partitions, 1, config=dict(config))
    admin.create_topics([made], operation_timeout=30)[topic].result(30)
    deadline = time.monotonic() + LIMIT_S
    while not all_led(admin, topic, partitions) and time.monotonic() < deadline:
        time.sleep(0.05)
    return topic


def all_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether every partition's leader is at work: a new Kafka topic's refuse for a moment."""
    latest: Any = OffsetSpec
    asked = {TopicPartition(topic, number): latest.latest() for number in range(partitions)}
    return all(future.exception(30) is None for future in admin.list_offsets(asked).values())
