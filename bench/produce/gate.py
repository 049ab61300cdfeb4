"""What the gate is for: many small requests that leave in few writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.broker.pair import both
from bench.peers.load import Load
from bench.peers.python_jobs import Terms
from bench.produce.contest import CPU, RATE, Ground, Measure, contest
from bench.produce.send import scaled
from bench.results import Bar, Row, Section
from brokers.kafka import KafkaCluster

NAME = "produce.gate"
ROUNDS = 5
MESSAGES = 60_000
GATE = {"delay_ms": 2, "bytes_max": 1 << 20}
IN_FLIGHT = 1000
COMPARED = """\
Our producer beside itself: gate on (a frame waits for 2 ms or until 1 MiB waits) and off, with batching off,
idempotence off and up to 1,000 requests in flight on one connection, each with one message of 100 B, uncompressed, to
one partition, acks=all: of a real Kafka of one node, and of `penstock serve`, which leaves syncing to the system, as
Kafka does. A write is a call of the system that took bytes, as each connection counts them. Every receipt was asked
with `result()` inside the clock. Kafka takes up a connection's next request when it has answered the last, however
many have come. A request of one message costs the client some 90 µs, of which a write of its own is a tenth: that is
what keeps the rate where it is.
"""
WARMUP = (Load(300_000),)
ON, OFF = "gate on", "gate off"
PER_WRITE = Measure("requests per write", lambda figures: figures.more["per_write"], lambda count: f"{count:,.1f}")


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """Gate on against off, on both brokers."""
    load = Load(scaled(MESSAGES, share), partitions=1, compression="none")
    with both(warmup) as brokers:
        rows = [row for name, broker in brokers.items() for row in rows_on(name, broker, load, rounds)]
    return Section(NAME, COMPARED, rows, rounds)


def rows_on(name: str, broker: KafkaCluster, load: Load, rounds: int) -> list[Row]:
    """Writes, rate and CPU on one broker."""
    contestants = {
        way: Ground(broker, load, Terms(settings=settings(io))).job("penstock", "gate")
        for way, io in ((ON, GATE), (OFF, {}))
    }
    contest(contestants, 1)  # the broker compiles itself for requests of one message, too
    found = contest(contestants, rounds)
    case = f"1,000 small requests in flight to {name}"
    return [
        found.row(case, ON, OFF, PER_WRITE, Bar("≥", 50)),
        found.row(case, ON, OFF, RATE, Bar("≥", 1.5)),
        found.row(case, ON, OFF, CPU),
    ]


def settings(io: Mapping[str, Any]) -> dict[str, Any]:
    """One message in a batch, one batch in a request, many requests in flight."""
    return {
        "batch": {"count_max": 1},
        "io": dict(io),
        "client": {"in_flight_max": IN_FLIGHT, "idempotence": False},
    }
