"""Filling a topic and copying it, one job in a process of its own: `python -m bench.replicate.jobs JOB RESULT`.

A job is what `bench.peers.python_jobs` calls one; what only these jobs know is in its terms' settings. The clock of a
copy runs from when it forwards its first messages until `wait` returns, positions committed, in a process that has
copied a small topic before; what it took until then is told beside it. CPU is counted from the call of `copy`, since
some is read, and opened where it must be, before anything is forwarded.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import penstock
from bench.peers import python_jobs
from bench.peers.measure import Figures
from bench.peers.python_jobs import IDLE_LIMIT_S, Job
from bench.produce.ours import NAME, ask_bulk, ask_receipts, observe
from bench.replicate.scales import Scales
from bench.replicate.stock import OTHERS, PROPERTY, RAW_BYTES_MAX, WANTED, Portion, Stock, per_batch, portions

COPY_LIMIT_S = 600.0
POLL_S = 0.01
FILL_DELAY_MS = 10_000
"""Batches are sealed because they are full, and the last ones by flushing."""
HANDED = 1_000


@dataclass(frozen=True, slots=True)
class Way:
    """How our replicator copies."""

    options: dict[str, Any] = field(default_factory=dict)
    small_topic: str = ""
    """What is copied before the clock starts."""
    is_weighed: bool = False
    """Whether to tell how much memory this process holds."""

    @property
    def settings(self) -> dict[str, Any]:
        """As a job's terms carry them."""
        return asdict(self)


def fill(job: Job) -> Figures:
    """Send a stock, its batches as large as it says."""
    stock = Stock(**job.terms.settings["stock"])
    same = {PROPERTY: [WANTED, *OTHERS]} if stock.claims else {}
    policy = penstock.BatchPolicy(
        bytes_max=RAW_BYTES_MAX, count_max=per_batch(stock), delay_ms=FILL_DELAY_MS, same_properties=same
    )
    with (
        penstock.connect(f"kafka://{job.source}", client_id="bench") as client,
        client.producer(job.topic, batch=policy, compression=job.load.compression) as producer,
    ):
        meter = job.meter()

        def handed() -> Iterator[Portion]:
            yield from portions(stock)
            producer.flush(IDLE_LIMIT_S)

        def hand(portion: Any) -> Any:
            return producer.send_many(portion.values, None, portion.properties, portion.times_ms, portion.partition)

        return meter.figures(NAME, job.name, observe(handed(), hand, ask_bulk))


def copy(job: Job) -> Figures:
    """Copy the topic with our replicator."""
    way = Way(**job.terms.settings)
    if way.small_topic:
        with copying(job, way.small_topic, f"-{uuid.uuid4().hex[:8]}", way) as small:
            small.wait(COPY_LIMIT_S)
    meter, called = job.meter(), time.monotonic()
    with copying(job, job.topic, job.target_topic.removeprefix(job.topic), way) as whole:
        while not (whole.is_over or has_begun(whole)):
            time.sleep(POLL_S)
        start_s = 0.0 if whole.is_over else time.monotonic() - called
        with Scales(way.is_weighed) as scales:
            whole.wait(COPY_LIMIT_S)
        figures = meter.figures(NAME, job.name, job.load.messages, {"start_s": start_s, **scales.told()})
        total = whole.stats().total
    figures.more.update(unopened=total.entries_unopened, opened=sum(total.opened.values()), commits=total.commits)
    return replace(figures, seconds=figures.seconds - start_s)


def has_begun(pipeline: penstock.Copying) -> bool:
    """Whether anything was forwarded; topics here begin at 0."""
    return any(partition.position > 0 for partition in pipeline.stats().partitions.values())


@contextmanager
def copying(job: Job, topic: str, suffix: str, way: Way) -> Iterator[penstock.Copying]:
    """A pipeline that nobody has had before."""
    with penstock.copy(
        f"kafka://{job.source}",
        f"kafka://{job.target}",
        topic,
        name=f"bench-{uuid.uuid4().hex[:8]}",
        rename=f"{{topic}}{suffix}",
        until="end",
        **way.options,
    ) as pipeline:
        yield pipeline


def one_by_one(job: Job) -> Figures:
    """Read messages and send each with a request of its own, batching and gate off; every receipt is asked."""
    policy = penstock.BatchPolicy(count_max=1)
    with (
        penstock.connect(f"kafka://{job.source}", client_id="bench-source") as source,
        penstock.connect(f"kafka://{job.target}", client_id="bench-target") as target,
        target.producer(job.target_topic, batch=policy, compression=job.load.compression) as producer,
        source.reader(job.topic, columns=("partition", "value")) as reader,
    ):
        producer.ready(IDLE_LIMIT_S)
        send = producer.send
        meter = job.meter()
        asked = observe(
            groups(messages(reader), job.load.messages),
            lambda some: [send(value, partition=at) for at, value in some],
            ask_receipts,
        )
        return meter.figures(NAME, job.name, asked)


def messages(reader: Any) -> Iterator[tuple[int, bytes]]:
    """Partition and value of each message."""
    for batch in reader:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def groups(given: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """So many of them, some at a time."""
    some = islice(given, count)
    while group := list(islice(some, HANDED)):
        yield group


JOBS = python_jobs.JOBS | {
    ("penstock", "fill"): fill,
    ("penstock", "copy"): copy,
    ("penstock", "one by one"): one_by_one,
}

if __name__ == "__main__":
    python_jobs.main(Path(sys.argv[1]), Path(sys.argv[2]), JOBS)
