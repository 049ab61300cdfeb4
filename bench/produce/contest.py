"""Contestants in turn, round by round, and what their figures become: medians, ratios, rows.

A contestant is a call that does one job and returns its `Figures`. Ratios are those of single rounds, so that a slow
moment of the machine slows both sides of one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from bench.peers import python_peers
from bench.peers.load import Load
from bench.peers.measure import Figures
from bench.peers.python_jobs import Terms
from bench.results import Bar, Row
from bench.timing import Ratio
from brokers.jvm import BENCHMARK
from brokers.kafka import KafkaCluster

Contestant = Callable[[], Figures]

ROUNDS = 5
WARMUP = (Load(600_000), Load(150_000, 1000, 16, "none"), Load(150_000, 1000, 1))
"""What a new broker is given before anything counts: it compiles itself as it runs."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a job's figures and how it is shown."""

    name: str
    of: Callable[[Figures], float]
    show: Callable[[float], str]


RATE = Measure("rate", lambda figures: figures.rate, lambda rate: f"{rate / 1000:,.{0 if rate >= 10_000 else 1}f} k/s")
CPU = Measure("CPU", lambda figures: figures.cpu_s_per_million["client"], lambda cost: f"{cost:.2f} s/M")
BROKER_CPU = Measure(
    "broker's CPU", lambda figures: figures.cpu_s_per_million["broker"], lambda cost: f"{cost:.2f} s/M"
)


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of every contestant, one for each round."""

    figures: Mapping[str, Sequence[Figures]]

    def median(self, name: str, measure: Measure) -> float:
        """What a contestant reached, over all rounds."""
        return median(map(measure.of, self.figures[name]))

    def ratio(self, name: str, other: str, measure: Measure) -> Ratio:
        """How many times another's number a contestant's is."""
        pairs = zip(self.figures[name], self.figures[other], strict=True)
        ratios = [measure.of(a) / measure.of(b) for a, b in pairs]
        return Ratio(median(ratios), min(ratios), max(ratios))

    def share(self, name: str, allowed: float, measure: Measure) -> Ratio:
        """How much of what is allowed a contestant takes."""
        shares = [measure.of(figures) / allowed for figures in self.figures[name]]
        return Ratio(median(shares), min(shares), max(shares))

    def shown(self, name: str, measure: Measure) -> str:
        """The median as a table shows it."""
        return measure.show(self.median(name, measure))

    def row(self, case: str, name: str, other: str, measure: Measure, bar: Bar | None = None) -> Row:
        """One comparison."""
        return Row(
            f"{case}, {measure.name}",
            self.shown(name, measure),
            other,
            self.shown(other, measure),
            self.ratio(name, other, measure),
            bar,
        )


def contest(contestants: Mapping[str, Contestant], rounds: int) -> Found:
    """Run all of them in turn, so many rounds, and say how it goes."""
    figures: dict[str, list[Figures]] = {name: [] for name in contestants}
    for number in range(1, rounds + 1):
        for name, run in contestants.items():
            found = run()
            figures[name].append(found)
            print(f"round {number}, {name}: {found}", file=sys.stderr, flush=True)
    return Found(figures)


@contextmanager
def warm_kafka(warmup: Sequence[Load] = WARMUP) -> Iterator[KafkaCluster]:
    """A real Kafka as benchmarks want it, that has compiled what it needs."""
    with KafkaCluster(profile=BENCHMARK) as cluster:
        for load in warmup:
            python_peers.produce(cluster, load)
        yield cluster


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a contest is held: a cluster and what is sent to it, on the same terms for all."""

    cluster: KafkaCluster
    load: Load
    terms: Terms

    def peer(self, client: str, action: str, load: Load | None = None) -> Contestant:
        """Another client's way to do it."""
        return lambda: python_peers.produce(self.cluster, load or self.load, client, action, self.terms)

    def job(self, client: str, action: str, load: Load | None = None, kernel: str = "compiled") -> Contestant:
        """A way that one of our own jobs goes: our client's, or any client's in the same shape."""
        surroundings = {"PENSTOCK_KERNEL": kernel}
        return lambda: python_peers.produce(
            self.cluster, load or self.load, client, action, self.terms, "bench.produce.jobs", surroundings
        )
