"""Our client at work in a thread: one message at a time, and in bulk.

What a job observes inside its clock is the outcome of every message: each receipt is asked for its result. It keeps the
receipts of the last messages and asks those before them, as a program does that must know and does not want to wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import penstock
from bench.peers.load import DISTINCT, values
from bench.peers.measure import Figures
from bench.peers.python_jobs import BATCH, IDLE_LIMIT_S, Job, mails, parts

NAME = "penstock"
BATCH_BYTES = 1_000_000
"""As confluent-kafka's and the Java producer's; the broker takes a little more."""
BEHIND = 20
"""How many parts of messages are sent before the receipts of the first are asked."""
Ask = Callable[[Any], int]
Hand = Callable[[Sequence[Any]], Any]


@contextmanager
def connected(job: Job) -> Iterator[tuple[Any, Any]]:
    """A client and a producer of the job's topic that has sent to every partition."""
    batch = {"bytes_max": BATCH_BYTES, "delay_ms": job.terms.linger_ms, **job.terms.settings.get("batch", {})}
    io = job.terms.settings.get("io", {})
    with (
        penstock.connect(f"kafka://{job.source}", client_id="bench", **job.terms.settings.get("client", {})) as client,
        client.producer(
            job.topic,
            batch=penstock.BatchPolicy(**batch),
            io=penstock.BatchIo(**io),
            compression=job.load.compression,
        ) as producer,
    ):
        for receipt in [producer.send(value, partition=at) for value, at in job.first_messages()]:
            receipt.result(IDLE_LIMIT_S)
        yield client, producer


def send(job: Job) -> Figures:
    """`send`, and `result` of every receipt."""
    with connected(job) as (_, producer):
        each = producer.send
        if job.terms.keyed:
            pool: Sequence[Any] = mails(job.load.value_bytes) * (BATCH // DISTINCT)
            meter = job.meter()
            asked = observe(
                parts(pool, job.load.messages, BATCH),
                lambda part: [each(value, key=key, properties=properties) for value, key, properties in part],
                ask_receipts,
            )
        else:
            pool = values(job.load.value_bytes) * (BATCH // DISTINCT)
            meter = job.meter()
            asked = observe(
                parts(pool, job.load.messages, BATCH), lambda part: [each(value) for value in part], ask_receipts
            )
        return meter.figures(NAME, job.name, asked)


def send_many(job: Job) -> Figures:
    """`send_many` of as many values as confluent-kafka's `produce_batch` is given."""
    with connected(job) as (_, producer):
        pool = values(job.load.value_bytes) * (BATCH // DISTINCT)
        meter = job.meter()
        asked = observe(parts(pool, job.load.messages, BATCH), producer.send_many, ask_bulk)
        return meter.figures(NAME, job.name, asked)


def send_table(job: Job) -> Figures:
    """`send_table` of as many rows."""
    import pyarrow

    with connected(job) as (_, producer):
        pool = pyarrow.table(
            {"value": pyarrow.array(values(job.load.value_bytes) * (BATCH // DISTINCT), pyarrow.binary())}
        )
        meter = job.meter()
        tables = (pool.slice(0, min(BATCH, job.load.messages - sent)) for sent in range(0, job.load.messages, BATCH))
        asked = observe(tables, producer.send_table, ask_bulk)
        return meter.figures(NAME, job.name, asked)


def observe(messages: Iterator[Any], hand: Hand, ask: Ask) -> int:
    """Hand part after part over and ask what became of each; how many messages arrived."""
    waiting: deque[Any] = deque()
    asked = 0
    for part in messages:
        waiting.append(hand(part))
        if len(waiting) > BEHIND:
            asked += ask(waiting.popleft())
    while waiting:
        asked += ask(waiting.popleft())
    return asked


def ask_receipts(receipts: Sequence[Any]) -> int:
    """Every receipt of a part; the first error is raised."""
    for receipt in receipts:
        receipt.result(IDLE_LIMIT_S)
    return len(receipts)


def ask_bulk(bulk: Any) -> int:
    """The receipt of a part sent in one call; the first error is raised."""
    return len(bulk.result(IDLE_LIMIT_S))
