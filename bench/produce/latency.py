"""How long a sealed batch waits for its write while one thread is busy sending."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.load import Load
from bench.peers.python_jobs import Terms
from bench.produce.awaited import P50, P99
from bench.produce.contest import RATE, Found, Ground, Measure, contest, warm_kafka
from bench.produce.send import scaled
from bench.results import Bar, Row, Section

NAME = "produce.latency"
ROUNDS = 5
MESSAGES = 1_000_000
WORK_US = 2.0
COMPARED = """\
One thread sends in a tight Python loop with 2 µs of its own Python work per message and never waits; 100 B, lz4, 4
partitions, linger 5 ms, a real Kafka of one node. What is told is the time from the moment at which no message can join
a batch any more until the call of the system that takes its last byte has returned, over all batches of a round;
compressing it lies within. "compressed" is the same from when it is. Runs that saturate a producer hide it, because a
sender that waits gives the interpreter lock away.
"""
WARMUP = (Load(600_000),)
ALLOWED_MS = {P50: 3.0, P99: 20.0}
COMPRESSED = (
    Measure("compressed to write, p50", lambda figures: figures.more["sealed_p50_ms"], P50.show),
    Measure("compressed to write, p99", lambda figures: figures.more["sealed_p99_ms"], P99.show),
)


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """Both sizes of batches, in turn."""
    sizes = {"64 KB batches": 65536, "256 KB batches": 262144}
    load = Load(scaled(MESSAGES, share))
    with warm_kafka(warmup) as cluster:
        contestants = {
            name: Ground(cluster, load, Terms(settings={"batch": {"bytes_max": size}, "work_us": WORK_US})).job(
                "penstock", "busy"
            )
            for name, size in sizes.items()
        }
        found = contest(contestants, rounds)
    rows = [row for name in sizes for row in rows_of(name, found)]
    return Section(NAME, COMPARED, rows, rounds)


def rows_of(name: str, found: Found) -> list[Row]:
    """The two figures that have a limit, and how fast the loop was."""
    limited = [within(name, found, measure, allowed) for measure, allowed in ALLOWED_MS.items()]
    told = [Row(f"{name}, {measure.name}", found.shown(name, measure)) for measure in (*COMPRESSED, RATE)]
    return limited + told


def within(name: str, found: Found, measure: Measure, allowed: float) -> Row:
    """A figure beside what is allowed."""
    case = f"{name}, seal to write, {measure.name}"
    share = found.share(name, allowed, measure)
    return Row(case, found.shown(name, measure), "allowed", f"{allowed:g} ms", share, Bar("≤", 1))
