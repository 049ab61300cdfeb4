"""Two clusters of one kind, one to copy from and one to copy to, both up all the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient

import penstock
from bench.broker.pair import shaped
from bench.peers import load as loads
from bench.peers import python_peers
from bench.peers.child import run_module
from bench.peers.measure import Figures, broker_pids
from bench.peers.python_jobs import Job, Terms
from bench.replicate.stock import KB64, Stock
from brokers.jvm import BENCHMARK
from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker

LIMIT_S = 900.0
JOBS = "bench.replicate.jobs"
SMALL = Stock(20_000, 100, KB64)
"""What each of our jobs copies before its clock starts."""
EMBEDDED_OPTIONS = ("--fsync", "system", "--http-port", "none")


class Held(NamedTuple):
    """What a topic holds for readers of what is committed."""

    messages: int
    batches: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Where copying is measured."""

    source: KafkaCluster
    target: KafkaCluster
    small_topic: str = ""
    """A topic of the source for our jobs to begin with."""

    @property
    def pids(self) -> dict[str, int]:
        """Both brokers' processes."""
        return {**broker_pids(self.source, "source"), **broker_pids(self.target, "target")}

    def job(self, action: str, stock: Stock, topics: tuple[str, str], settings: dict[str, Any]) -> Figures:
        """One of our jobs in a process of its own, from a topic of the source to one of the target."""
        ends = (self.source.bootstrap, self.target.bootstrap)
        job = Job("penstock", action, *ends, *topics, stock.load, self.pids, Terms(settings=settings))
        return Figures(**run_module(JOBS, asdict(job), LIMIT_S))

    def fill(self, stock: Stock) -> str:
        """A new topic of the source that holds this stock."""
        topic = loads.new_topic(self.source, stock.load, "stock")
        self.job("fill", stock, (topic, ""), {"stock": asdict(stock)})
        if (found := held(self.source, topic)).messages != stock.messages:
            raise RuntimeError(f"{topic} holds {found.messages} messages instead of {stock.messages}")
        return topic

    @contextmanager
    def stocked(self, stock: Stock) -> Iterator[str]:
        """A topic of the source that holds this stock for as long as it is needed."""
        topic = self.fill(stock)
        yield topic
        python_peers.delete_topic(self.source, topic)


@contextmanager
def two_kafkas() -> Iterator[Pair]:
    """Two real Kafkas of one node each, as benchmarks want them."""
    with KafkaCluster(profile=BENCHMARK) as source, KafkaCluster(profile=BENCHMARK) as target:
        yield _with_small_topic(source, target)


@contextmanager
def two_embedded() -> Iterator[Pair]:
    """Two of `penstock serve`, which leave syncing to the system as Kafka does."""
    with PenstockBroker(EMBEDDED_OPTIONS) as source, PenstockBroker(EMBEDDED_OPTIONS) as target:
        yield _with_small_topic(shaped(source), shaped(target))


def _with_small_topic(source: KafkaCluster, target: KafkaCluster) -> Pair:
    return Pair(source, target, Pair(source, target).fill(SMALL))


def held(cluster: KafkaCluster, topic: str) -> Held:
    """Count what a topic holds by the headers of its batches; markers of transactions are not counted."""
    with (
        penstock.connect(cluster.url, client_id="count") as client,
        client.reader(topic, end="latest", unit="batch") as reader,
    ):
        counts: Sequence[int] = [entry.header.count for entry in reader]
    return Held(sum(counts), len(counts))


def clear(cluster: KafkaCluster) -> None:
    """Delete all topics but the cluster's own: the disk's work for old ones would be charged to the next contestant."""
    admin = AdminClient({**loads.QUIET, "bootstrap.servers": cluster.bootstrap})
    old = [topic for topic in admin.list_topics(timeout=30).topics if not topic.startswith("__")]
    for deleted in (admin.delete_topics(old, operation_timeout=30) if old else {}).values():
        deleted.result(30)
