"""Our client while one thread sends and works and never waits: how long sealed batches wait for their write.

Observed from outside, once per batch: `Lanes.seal` begins when no message can join the batch any more, and compresses
it; `Frame.take` learns that the transport took the last byte. The time between is told with the compression
(`p50_ms`, `p99_ms`) and without it (`sealed_p50_ms`, `sealed_p99_ms`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import Any

from bench.peers.load import DISTINCT, values
from bench.peers.measure import Figures
from bench.peers.python_jobs import BATCH, IDLE_LIMIT_S, Job, parts
from bench.produce import ours
from bench.produce.asyncio_jobs import percentiles
from penstock.net.gate import Frame
from penstock.produce.lanes import Lanes
from penstock.produce.sender import Flight

CALIBRATION, CALIBRATION_TURNS, CALIBRATION_ROUNDS = 2_000, 100, 20


@dataclass(slots=True)
class Waits:
    """How long batches waited, in ms."""

    since_seal_began: list[float] = field(default_factory=list)
    since_sealed: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew."""
        self.since_seal_began.clear()
        self.since_sealed.clear()

    def told(self) -> dict[str, float]:
        """As the figures call them."""
        bare = {f"sealed_{name}": ms for name, ms in percentiles(self.since_sealed).items()}
        return {**percentiles(self.since_seal_began), **bare, "batches": len(self.since_sealed)}


def busy(job: Job) -> Figures:
    """`send` in a tight loop with its own work for each message; receipts are asked when all are sent."""
    waits = observed_waits()
    turns = turns_of(job.terms.settings["work_us"])
    with ours.connected(job) as (_, producer):
        pool = values(job.load.value_bytes) * (BATCH // DISTINCT)
        receipts: list[Any] = []
        waits.clear()
        meter = job.meter()
        for part in parts(pool, job.load.messages, BATCH):
            receipts += send_and_work(producer.send, part, turns)
        figures = meter.figures(ours.NAME, job.name, len(receipts))
        for receipt in receipts:
            receipt.result(IDLE_LIMIT_S)
        figures.more.update(waits.told())
        return figures


def send_and_work(send: Any, part: Any, turns: int) -> list[Any]:
    """What a program does: a message, then something else."""
    receipts = []
    for value in part:
        receipts.append(send(value))
        for _ in repeat(None, turns):
            pass
    return receipts


def turns_of(work_us: float) -> int:
    """How many turns of the loop's own work take so long; found by the loop itself."""
    nothing = [None] * CALIBRATION
    idle = median(_seconds(nothing, 0) for _ in range(CALIBRATION_ROUNDS))
    busy = median(_seconds(nothing, CALIBRATION_TURNS) for _ in range(CALIBRATION_ROUNDS))
    return max(1, round(work_us / 1e6 * CALIBRATION * CALIBRATION_TURNS / (busy - idle)))


def _seconds(part: list[None], turns: int) -> float:
    began = time.perf_counter()
    send_and_work(_ignore, part, turns)
    return time.perf_counter() - began


def _ignore(_: object) -> None:
    """Costs what a call costs, in both of what is subtracted."""


def observed_waits() -> Waits:
    """The waits of all batches that are sealed from now on."""
    waits = Waits()
    began: dict[Any, float] = {}
    seal, take = Lanes.seal, Frame.take

    def sealing(self: Lanes, batch: Any) -> None:
        began[batch] = time.monotonic()
        seal(self, batch)

    def taking(self: Frame, count: int) -> int:
        rest = take(self, count)
        if not self.left and isinstance(self.token, Flight):
            now = time.monotonic()
            for _, batch in self.token.batches:
                if batch in began:  # else it is sent again
                    waits.since_seal_began.append((now - began.pop(batch)) * 1000)
                    waits.since_sealed.append((now - batch.sealed_at) * 1000)
        return rest

    Lanes.seal = sealing  # type: ignore[method-assign]
    Frame.take = taking  # type: ignore[method-assign]
    return waits
