"""Producing to both brokers with three clients, in every size of message and batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.broker.pair import WARMUP, both, case_of, rows
from bench.peers import java_perf, python_peers
from bench.peers.load import Load
from bench.peers.measure import Figures
from bench.peers.python_jobs import Terms
from bench.produce.contest import contest
from bench.produce.send import scaled
from bench.results import Row, Section
from brokers.kafka import KafkaCluster

NAME = "broker.produce"
ROUNDS = 3
COMPARED = """\
The same load on `penstock serve` and on a real Kafka of one node, one after the other, both up and both leaving syncing
to the system. confluent-kafka hands over 10,000 messages at a time with `produce_batch`; "own bulk send" is our
client's `send_many` of as many; Java is Kafka's performance tool, counted after its warm-up. All are idempotent with
acks=all, and each message's outcome is known when the clock stops. Rates are megabytes of values per second; client and
broker share the cores, so a rate tells of both. A broker's CPU is all its threads' inside the clock, for a gigabyte of
values.
"""
PACKAGES = ("confluent-kafka",)
SMALL_BATCH, LARGE_BATCH = 16_384, 1_000_000
LINGER_MS = {SMALL_BATCH: 5.0, LARGE_BATCH: 50.0}
MESSAGES = {100: 2_000_000, 1000: 400_000}
JAVA_WARMUP = 1_000_000
JOBS = "bench.broker.jobs"
GRID = list(itertools.product(MESSAGES, ("none", "lz4"), LINGER_MS, (1, 16)))


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """The whole grid with each client."""
    told: list[Row] = []
    with both(warmup) as brokers:
        for size, codec, batch_bytes, partitions in GRID:
            load = Load(scaled(MESSAGES[size], share), size, partitions, codec)
            told += cell(brokers, load, batch_bytes, rounds, "confluent-kafka", confluent)
            told += cell(brokers, load, batch_bytes, rounds, "own bulk send", bulk)
            told += cell(brokers, load, batch_bytes, rounds, "Java", partial(java, share))
    return Section(NAME, COMPARED, told, rounds, PACKAGES)


def cell(
    brokers: Mapping[str, KafkaCluster],
    load: Load,
    batch_bytes: int,
    rounds: int,
    client: str,
    job: Callable[[KafkaCluster, Load, int], Figures],
) -> list[Row]:
    """One point of the grid: the client on each broker in turn."""
    found = contest({name: partial(job, broker, load, batch_bytes) for name, broker in brokers.items()}, rounds)
    return rows(f"{case_of(load, batch_bytes)}: {client}", found, load.value_bytes)


def confluent(broker: KafkaCluster, load: Load, batch_bytes: int) -> Figures:
    """confluent-kafka."""
    terms = Terms(linger_ms=LINGER_MS[batch_bytes], settings={"batch_bytes": batch_bytes})
    return python_peers.produce(broker, load, "confluent-kafka", "batches", terms, JOBS)


def bulk(broker: KafkaCluster, load: Load, batch_bytes: int) -> Figures:
    """Our own client."""
    terms = Terms(linger_ms=LINGER_MS[batch_bytes], settings={"batch": {"bytes_max": batch_bytes}})
    return python_peers.produce(broker, load, "penstock", "send_many", terms, JOBS)


def java(share: float, broker: KafkaCluster, load: Load, batch_bytes: int) -> Figures:
    """Kafka's own tool, warm."""
    return java_perf.produce(broker, load, scaled(JAVA_WARMUP, share), batch_bytes)
