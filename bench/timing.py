"""Times contestants in turn, so that whatever else the machine does hits all of them alike.

A round runs every contestant once, a, b, c, and then the next round begins. What is told is the median of all rounds,
and of a ratio the median of the rounds' own ratios: a slow moment of the machine slows both sides of it. The garbage
collector runs between the rounds only, and everybody is run once before anything counts.
"""

from __future__ import annotations

import enum
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

Contestant = Callable[[], object]

RUN_S_MIN = 0.02
"""A contestant that is done sooner is repeated within its turn; its sample is the mean of these."""


class Clock(enum.Enum):
    """Which time counts."""

    WALL = "wall time"
    PROCESS = "CPU time of the process"
    THREAD = "CPU time of the measuring thread"


class Sample(NamedTuple):
    """What one call took, in seconds."""

    wall: float
    process: float
    thread: float

    def of(self, clock: Clock) -> float:
        """The reading of this clock."""
        return (self.wall, self.process, self.thread)[list(Clock).index(clock)]


class Ratio(NamedTuple):
    """The median of the rounds' ratios, and the smallest and largest of them."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Timings:
    """One sample for each contestant and round, and the clock that counts."""

    samples: Mapping[str, Sequence[Sample]]
    clock: Clock

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return min(len(samples) for samples in self.samples.values())

    def seconds(self, name: str) -> list[float]:
        """What each round took a contestant."""
        return [sample.of(self.clock) for sample in self.samples[name]]

    def median(self, name: str) -> float:
        """What a contestant took, in seconds."""
        return median(self.seconds(name))

    def ratio(self, name: str, other: str) -> Ratio:
        """How many times as long as another a contestant took."""
        ratios = [a / b for a, b in zip(self.seconds(name), self.seconds(other), strict=True)]
        return Ratio(median(ratios), min(ratios), max(ratios))

    def without(self, overhead: str) -> Timings:
        """The same with what this contestant took in each round taken off the others."""
        base = self.samples[overhead]
        return Timings(
            {
                name: [_difference(sample, less) for sample, less in zip(samples, base, strict=True)]
                for name, samples in self.samples.items()
                if name != overhead
            },
            self.clock,
        )


def interleave(contestants: Mapping[str, Contestant], rounds: int, clock: Clock) -> Timings:
    """Run all contestants in turn, so many rounds."""
    repeats = {name: _repeats(run) for name, run in contestants.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    collecting = gc.isenabled()
    try:
        for _ in range(rounds):
            gc.collect()
            gc.disable()
            for name, run in contestants.items():
                samples[name].append(_sample(run, repeats[name]))
    finally:
        if collecting:
            gc.enable()
    return Timings(samples, clock)


def _repeats(run: Contestant) -> int:
    run()
    took = _sample(run, 1).wall
    return max(1, round(RUN_S_MIN / max(took, 1e-9)))


def _sample(run: Contestant, repeats: int) -> Sample:
    turns = range(repeats)
    before = _now()
    for _ in turns:
        run()
    after = _now()
    return Sample._make((end - begin) / repeats for begin, end in zip(before, after, strict=True))


def _now() -> Sample:
    return Sample(time.perf_counter(), time.process_time(), time.thread_time())


def _difference(sample: Sample, less: Sample) -> Sample:
    return Sample._make(a - b for a, b in zip(sample, less, strict=True))
