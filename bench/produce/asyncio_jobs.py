"""asyncio producers at work, ours and the peers', each in the same three shapes.

    tasks      many tasks, each of which awaits the outcome of a message before it sends its next
    together   many sends, then their outcomes, again and again
    single     one send after the other, each awaited, and how long each took

A client is seen as two calls, `send` (gives something to await the outcome with) and `send_and_wait`; what runs in the
clock is the same code for all. `push` is what a client needs to be told after its last send for now.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.peers.load import values
from bench.peers.measure import Figures
from bench.peers.python_jobs import BATCH, PYTHON_BATCH_BYTES, Job, parts

TOGETHER = BATCH
CONFLUENT_SHARE = 4
"""AIOProducer hands its messages on when a quarter of the tasks wait: with all of them it was not faster."""
CONFLUENT_POLL_S = 0.005
"""AIOProducer asks for outcomes only when it sends a batch; without a task that polls, waiting tasks wait 100 ms."""


async def nothing() -> None:
    """No client but one needs to be pushed."""


@dataclass(frozen=True, slots=True)
class Client:
    """A producer of one topic."""

    name: str
    send: Callable[..., Awaitable[Awaitable[Any]]]
    send_and_wait: Callable[[bytes], Awaitable[Any]]
    push: Callable[[], Awaitable[Any]] = nothing


@asynccontextmanager
async def ours(job: Job) -> AsyncIterator[Client]:
    """Penstock's."""
    import penstock.aio

    async with (
        penstock.aio.connect(f"kafka://{job.source}", client_id="bench") as client,
        client.producer(
            job.topic, batch=penstock.BatchPolicy(delay_ms=job.terms.linger_ms), compression=job.load.compression
        ) as producer,
    ):
        yield Client("penstock", producer.send, producer.send_and_wait)


@asynccontextmanager
async def aiokafkas(job: Job) -> AsyncIterator[Client]:
    """aiokafka's."""
    import aiokafka

    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=job.source,
        enable_idempotence=True,
        linger_ms=job.terms.linger_ms,
        compression_type=None if job.load.compression == "none" else job.load.compression,
        max_batch_size=PYTHON_BATCH_BYTES,
    ) as producer:
        yield Client("aiokafka", partial(producer.send, job.topic), partial(producer.send_and_wait, job.topic))


@asynccontextmanager
async def confluents(job: Job) -> AsyncIterator[Client]:
    """confluent-kafka's, with the poller that tasks need."""
    from confluent_kafka.aio import AIOProducer

    settings = {
        "bootstrap.servers": job.source,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": job.load.compression,
        "linger.ms": job.terms.linger_ms,
    }
    together = job.action == "together"
    size = 1000 if together else max(1, job.terms.settings.get("tasks", 1) // CONFLUENT_SHARE)
    producer = AIOProducer(settings, batch_size=size, buffer_timeout=0.1)

    async def send_and_wait(value: bytes) -> Any:
        return await (await producer.produce(job.topic, value))

    async def poll() -> None:
        while True:
            await producer.poll(CONFLUENT_POLL_S)

    poller = None if together else asyncio.create_task(poll())
    try:
        yield Client("confluent-kafka", partial(producer.produce, job.topic), send_and_wait, producer.flush)
    finally:
        if poller is not None:
            poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await poller
        await producer.close()


async def tasks(job: Job, client: Client) -> Figures:
    """Each task its share of the messages."""
    count = job.terms.settings["tasks"]
    pool = values(job.load.value_bytes)

    async def work(number: int) -> int:
        send_and_wait, value = client.send_and_wait, pool[number % len(pool)]
        shares = range(number, job.load.messages, count)
        for _ in shares:
            await send_and_wait(value)
        return len(shares)

    meter = job.meter()
    done = sum(await asyncio.gather(*map(work, range(count))))
    return meter.figures(client.name, job.name, done)


async def together(job: Job, client: Client) -> Figures:
    """So many at a time."""
    pool = values(job.load.value_bytes)
    pool *= TOGETHER // len(pool)
    send, done = client.send, 0
    meter = job.meter()
    for part in parts(pool, job.load.messages, TOGETHER):
        receipts = [await send(value) for value in part]
        await client.push()
        for receipt in receipts:
            await receipt
        done += len(receipts)
    return meter.figures(client.name, job.name, done)


async def single(job: Job, client: Client) -> Figures:
    """One after the other."""
    pool = values(job.load.value_bytes)
    took_ms = []
    meter = job.meter()
    for number in range(job.load.messages):
        began = time.perf_counter()
        await client.send_and_wait(pool[number % len(pool)])
        took_ms.append((time.perf_counter() - began) * 1000)
    return meter.figures(client.name, job.name, len(took_ms), percentiles(took_ms))


def percentiles(took_ms: list[float]) -> dict[str, float]:
    """The middle one, and the one that only one in a hundred is above."""
    ranked = sorted(took_ms)
    return {"p50_ms": ranked[len(ranked) // 2], "p99_ms": ranked[len(ranked) * 99 // 100]}


async def warm_up(job: Job, client: Client) -> None:
    """Send to every partition."""
    receipts = [await client.send(value, partition=at) for value, at in job.first_messages()]
    await client.push()
    for receipt in receipts:
        await receipt


async def run(
    open_client: Callable[[Job], contextlib.AbstractAsyncContextManager[Client]],
    shape: Callable[[Job, Client], Awaitable[Figures]],
    job: Job,
) -> Figures:
    """One client in one shape."""
    async with open_client(job) as client:
        await warm_up(job, client)
        return await shape(job, client)


def do(
    open_client: Callable[[Job], contextlib.AbstractAsyncContextManager[Client]],
    shape: Callable[[Job, Client], Awaitable[Figures]],
    job: Job,
) -> Figures:
    """The same, in a loop of its own."""
    return asyncio.run(run(open_client, shape, job))


JOBS: dict[tuple[str, str], Callable[[Job], Figures]] = {
    (name, shape.__name__): partial(do, open_client, shape)
    for name, open_client in (("penstock", ours), ("aiokafka", aiokafkas), ("confluent-kafka", confluents))
    for shape in (tasks, together, single)
}
