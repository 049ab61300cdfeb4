"""How long a broker takes to its first answer, and what memory it holds after a gigabyte went in and out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.broker.consume import fill, read
from bench.broker.pair import shaped
from bench.broker.produce import LARGE_BATCH
from bench.peers.load import Load
from bench.produce.send import scaled
from bench.results import Bar, Row, Section
from bench.timing import Ratio
from brokers.penstock import PenstockBroker

NAME = "broker.start"
ROUNDS = 5
COMPARED = """\
From the start of the process `penstock serve --data DIR --port PORT`, as a user starts it: group commit, and HTTP on a
second port. Until it has answered a Metadata request, for which a client asked every 5 ms: on an empty folder, and on
one with 1 GB in 16 partitions that was stopped cleanly, or killed. The last row is the resident memory of the process
after this gigabyte was written by confluent-kafka in batches of 1 MB and read again.
"""
ALLOWED_S, ALLOWED_MB = 0.5, 60.0
LOAD = Load(1_000_000, 1000, 16, "none")


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = ()) -> Section:
    """One broker of ours; Kafka takes seconds and half a gigabyte, and is not beside it."""
    del warmup
    empty = [first_answer(PenstockBroker()) for _ in range(rounds)]
    with PenstockBroker() as broker:
        load = Load(scaled(LOAD.messages, share), LOAD.value_bytes, LOAD.partitions, LOAD.compression)
        read(shaped(broker), load, fill(shaped(broker), load, LARGE_BATCH))
        memory = resident_mb(broker.pid())
        clean, killed = [], []
        for _ in range(rounds):
            broker.shut_down()
            clean.append(answer_again(broker))
            broker.kill()
            killed.append(answer_again(broker))
    rows = [
        within(f"start to first answer, {case}", times, ALLOWED_S, "s")
        for case, times in (("empty folder", empty), ("after a clean stop", clean), ("after kill -9", killed))
    ]
    return Section(NAME, COMPARED, [*rows, within("memory after 1 GB", [memory], ALLOWED_MB, "MB")], rounds)


def first_answer(broker: PenstockBroker) -> float:
    """Seconds of a start on an empty folder; the broker is gone afterwards."""
    started = time.monotonic()
    with broker:
        return time.monotonic() - started


def answer_again(broker: PenstockBroker) -> float:
    """Seconds of a start on what is there."""
    started = time.monotonic()
    broker.launch()
    broker.wait_ready()
    return time.monotonic() - started


def resident_mb(pid: int) -> float:
    """The resident memory of a process, in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


def within(case: str, found: Sequence[float], allowed: float, unit: str) -> Row:
    """A figure beside what is allowed."""
    shares = [value / allowed for value in found]
    ratio = Ratio(median(shares), min(shares), max(shares))
    return Row(case, f"{median(found):.3g} {unit}", "allowed", f"{allowed:g} {unit}", ratio, Bar("≤", 1))
