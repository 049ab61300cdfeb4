"""What a megabyte costs with many partitions, and among many connections that do nothing."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.broker.pair import KAFKA, OURS, WARMUP, both
from bench.broker.requests import RATE, Shape, send
from bench.peers.load import Load
from bench.peers.measure import Figures
from bench.produce.contest import Found, Measure, contest
from bench.results import Bar, Row, Section
from brokers.kafka import KafkaCluster

NAME = "broker.flat"
ROUNDS = 5
COMPARED = """\
Requests of 16 KB, four connections with five in flight each, and the broker's CPU for a megabyte of batches: to 1,000
partitions in turn beside 1, and with 1,000 other connections that were opened before and say nothing beside none. Ours
stands beside itself; Kafka's figures are told. Both brokers leave syncing to the system.
"""
MANY = 1000
REQUESTS = 40_000
BAR = Bar("≤", 1.25)
COST = Measure(
    "broker's CPU",
    lambda figures: max(figures.cpu_s["broker"], 0.005) * 1e9 / figures.more["bytes"],
    lambda cost: f"{cost:.2f} ms/MB",
)
ONE, PARTITIONS, IDLE = "1 partition", f"{MANY:,} partitions", f"{MANY:,} idle connections"


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """Each broker with one partition, with many, and in a crowd."""
    with both(warmup) as brokers:
        jobs = {
            f"{name}, {case}": partial(job, broker, share)
            for name, broker in brokers.items()
            for case, job in JOBS.items()
        }
        found = contest(jobs, rounds)
    return Section(NAME, COMPARED, rows(found), rounds)


def rows(found: Found) -> list[Row]:
    """Ours beside itself, with the bar; Kafka's, told."""
    told = []
    for name, bar in ((OURS, BAR), (KAFKA, None)):
        for case in (PARTITIONS, IDLE):
            told.append(found.row(f"{name}, {case}", f"{name}, {case}", f"{name}, {ONE}", COST, bar))
            told.append(found.row(f"{name}, {case}", f"{name}, {case}", f"{name}, {ONE}", RATE))
    return told


def one(broker: KafkaCluster, share: float) -> Figures:
    """All to one partition."""
    return send(broker, share, Shape(16_384, REQUESTS, 4))


def many(broker: KafkaCluster, share: float) -> Figures:
    """To many partitions in turn."""
    return send(broker, share, Shape(16_384, REQUESTS, 4, MANY))


def crowded(broker: KafkaCluster, share: float) -> Figures:
    """To one partition, among connections that do nothing."""
    with idle_connections(broker.address(1), MANY):
        return one(broker, share)


@contextmanager
def idle_connections(address: tuple[str, int], count: int) -> Iterator[None]:
    """Connections that were opened and say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 500)), hard))
    opened: list[socket.socket] = []
    try:
        opened += [socket.create_connection(address, 60) for _ in range(count)]
        yield
    finally:
        for each in opened:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


JOBS = {ONE: one, PARTITIONS: many, IDLE: crowded}
