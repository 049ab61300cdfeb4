"""Producing with asyncio beside aiokafka and confluent-kafka's asyncio producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.peers.load import Load
from bench.peers.python_jobs import Terms
from bench.produce.contest import CPU, RATE, Contestant, Ground, Measure, contest, warm_kafka
from bench.produce.send import scaled
from bench.results import Bar, Row, Section
from brokers.kafka import KafkaCluster

NAME = "produce.asyncio"
ROUNDS = 5
COMPARED = """\
One real Kafka of one node, 100 B, lz4, 4 partitions, everybody idempotent and acks=all, in one event loop of asyncio's
own. The shapes are the same code for all clients. "1,000 tasks" is as many tasks, each of which awaits `send_and_wait`
before its next; "10,000 together" is as many `await send(...)`, then all receipts awaited one after the other, again
and again; both with linger 5 ms unless the case says otherwise. "one after the other" is one `await send_and_wait(...)`
at a time, linger 0; what is told is how long one took. aiokafka has batches of 256 KB, with which it is faster than
with its own 16 KB. confluent-kafka's AIOProducer has what it needs beyond its defaults: a task that polls for outcomes
while tasks wait, a flush after 10,000 sends.
"""

PACKAGES = ("aiokafka", "confluent-kafka")
TASKS = 1000
WARMUP = (Load(600_000),)
OURS, AIOKAFKA, CONFLUENT = "penstock", "aiokafka", "confluent-kafka"
P50 = Measure("p50", lambda figures: figures.more["p50_ms"], lambda ms: f"{ms:.2f} ms")
P99 = Measure("p99", lambda figures: figures.more["p99_ms"], lambda ms: f"{ms:.2f} ms")
# Messages of ours and of the peers: the same where a bar is, except that ours would be over before it could be timed.
MESSAGES = {
    "tasks": {OURS: 200_000, AIOKAFKA: 100_000, CONFLUENT: 60_000},
    "together": {OURS: 1_000_000, AIOKAFKA: 150_000, CONFLUENT: 150_000},
    "single": {OURS: 2_000, AIOKAFKA: 2_000, CONFLUENT: 1_000},
}


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """All shapes, the two of aiokafka's first."""
    with warm_kafka(warmup) as cluster:
        rows = [
            *rows_of(cluster, "1,000 tasks", "tasks", rounds, share, {RATE: Bar("≥", 2.5)}),
            *rows_of(cluster, "1,000 tasks, linger 0", "tasks", rounds, share, {}, linger_ms=0),
            *rows_of(cluster, "10,000 together", "together", rounds, share, {RATE: Bar("≥", 12)}),
            *rows_of(cluster, "one after the other", "single", rounds, share, {P50: Bar("≤", 1.2)}, linger_ms=0),
        ]
    return Section(NAME, COMPARED, rows, rounds, PACKAGES)


def rows_of(
    cluster: KafkaCluster,
    case: str,
    shape: str,
    rounds: int,
    share: float,
    bars: Mapping[Measure, Bar],
    linger_ms: float = 5.0,
) -> list[Row]:
    """One shape; the bars are those beside aiokafka."""
    settings = {"tasks": TASKS} if shape == "tasks" else {}
    ground = Ground(cluster, Load(1), Terms(linger_ms=linger_ms, settings=settings))
    found = contest({client: job(ground, client, shape, share) for client in MESSAGES[shape]}, rounds)
    measures = (P50, P99) if shape == "single" else (RATE, CPU)
    rows = [found.row(case, OURS, AIOKAFKA, measure, bars.get(measure)) for measure in measures]
    return rows + [found.row(case, OURS, CONFLUENT, measure) for measure in measures]


def job(ground: Ground, client: str, shape: str, share: float) -> Contestant:
    """A client's turn."""
    messages = MESSAGES[shape][client]
    load = replace(ground.load, messages=scaled(messages, share))
    return ground.job(client, shape, load)
