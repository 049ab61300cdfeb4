"""What a run took: wall time and the CPU time of every process in it, from `/proc`.

A client and its brokers share this machine's cores, so CPU seconds per million messages compare better than rates do.
The measuring process reads its own CPU time from its own clock: `/proc` counts in ticks, too coarse for a second's run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from brokers.kafka import KafkaCluster
from brokers.process import usage


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one peer."""

    peer: str
    job: str
    messages: int
    seconds: float
    cpu_s: dict[str, float] = field(default_factory=dict)  # by process
    more: dict[str, float] = field(default_factory=dict)  # what else this job measures, by name

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_s_per_million(self) -> dict[str, float]:
        """CPU seconds per million messages of every process."""
        return {name: cpu_s * 1e6 / self.messages for name, cpu_s in self.cpu_s.items()}

    def __str__(self) -> str:
        costs = ", ".join(f"{name} {cost:.2f}" for name, cost in self.cpu_s_per_million.items())
        return f"{self.peer} {self.job}: {self.messages} messages, {self.rate:,.0f} msg/s; CPU s per million: {costs}"


def cpu_seconds(pid: int) -> float:
    """The CPU seconds of all threads of a process so far, ended ones included."""
    return time.process_time() if pid == os.getpid() else usage(pid).cpu_s


class Meter:
    """Reads the clock and every process's CPU time when made, and again when asked for the figures."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._cpu_s = self._read()
        self._started = time.monotonic()

    def _read(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    def figures(self, peer: str, job: str, messages: int, more: Mapping[str, float] | None = None) -> Figures:
        """What was used since this meter was made."""
        seconds = time.monotonic() - self._started
        used = {name: cpu_s - self._cpu_s[name] for name, cpu_s in self._read().items()}
        return Figures(peer, job, messages, seconds, used, dict(more or {}))


class Recorder:
    """Samples CPU times while a program runs whose own output tells afterwards which part of the time counts."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._samples: list[tuple[float, dict[str, float]]] = []

    def sample(self) -> None:
        """Note the CPU times of all processes now."""
        self._samples.append((time.monotonic(), {name: usage(pid).cpu_s for name, pid in self._pids.items()}))

    def last(self, seconds: float) -> dict[str, float]:
        """The CPU seconds used in the last so many seconds before the last sample."""
        end, after = self._samples[-1]
        before = next(
            cpu_s for at, cpu_s in reversed(self._samples) if at <= end - seconds or at == self._samples[0][0]
        )
        return {name: after[name] - before[name] for name in after}


def broker_pids(cluster: KafkaCluster, name: str = "broker") -> dict[str, int]:
    """The brokers' processes under names that tell them apart."""
    many = len(cluster.nodes) > 1
    return {f"{name}-{node}" if many else name: cluster.pid(node) for node in cluster.nodes}
