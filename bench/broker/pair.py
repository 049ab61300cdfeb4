"""The two brokers of a benchmark, up at the same time, and what is told of a job on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

from bench.peers import python_peers
from bench.peers.load import Load
from bench.produce.contest import Found, Measure
from bench.results import Bar, Row
from brokers.jvm import BENCHMARK
from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker

OURS, KAFKA = "penstock", "Kafka"
WARMUP = (Load(400_000), Load(100_000, 1000, 16, "none"), Load(100_000, 1000, 1))
"""What a new Kafka is given before anything counts: it compiles itself as it runs."""
RATE_BAR, CPU_BAR = Bar("≥", 1), Bar("≤", 0.5)


@contextmanager
def both(
    warmup: Sequence[Load] = WARMUP, fsync: Sequence[str] = ("system",), properties: Mapping[str, str] | None = None
) -> Iterator[dict[str, KafkaCluster]]:
    """A warm Kafka and one `penstock serve` for each policy of syncing; the first of these is called `penstock`."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster(profile=BENCHMARK, properties=properties))
        brokers = {KAFKA: kafka}
        for policy in fsync:
            ours = stack.enter_context(PenstockBroker(["--fsync", policy, "--http-port", "none"]))
            brokers[OURS if policy == fsync[0] else f"{OURS} {policy}"] = shaped(ours)
        for load in warmup:
            python_peers.produce(kafka, load)
        yield brokers


def shaped(broker: PenstockBroker) -> KafkaCluster:
    """Ours under the type that the peers' loads are written for: it has the same shape."""
    return cast(KafkaCluster, broker)


def megabytes(value_bytes: int) -> Measure:
    """Megabytes of values per second."""
    return Measure(
        "rate",
        lambda figures: figures.rate * value_bytes / 1e6,
        lambda rate: f"{rate:,.{0 if rate >= 100 else 1}f} MB/s",
    )


def broker_cost(value_bytes: int) -> Measure:
    """The broker's CPU time for a gigabyte of values."""
    return Measure(
        "broker's CPU",
        lambda figures: max(figures.cpu_s["broker"], 0.005) * 1e9 / (figures.messages * value_bytes),
        lambda cost: f"{cost:.2f} s/GB",
    )


def rows(case: str, found: Found, value_bytes: int, bars: bool = True) -> list[Row]:
    """Rate and broker's CPU of ours beside Kafka's."""
    rate, cost = megabytes(value_bytes), broker_cost(value_bytes)
    return [
        found.row(case, OURS, KAFKA, rate, RATE_BAR if bars else None),
        found.row(case, OURS, KAFKA, cost, CPU_BAR if bars else None),
    ]


def case_of(load: Load, batch_bytes: int) -> str:
    """As the table calls it."""
    size = "100 B" if load.value_bytes == 100 else "1 KB"
    batch = "1 MB" if batch_bytes >= 1_000_000 else "16 KB"
    plural = "" if load.partitions == 1 else "s"
    return f"{size}, {load.compression}, {batch} batches, {load.partitions} partition{plural}"
