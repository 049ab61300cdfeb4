"""Loads that decide about the size of their batches: one job in a process of its own, as the peers' jobs have it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from bench.peers import python_jobs
from bench.peers.load import DISTINCT, values
from bench.peers.measure import Figures
from bench.peers.python_jobs import BATCH, IDLE_LIMIT_S, WARMUP, Job, parts
from bench.produce import jobs as produce_jobs

READER = {
    "fetch.queue.backoff.ms": 5,  # without it librdkafka waits between fetches
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 262_144,
    "max.partition.fetch.bytes": 4_194_304,
    "fetch.max.bytes": 52_428_800,
}


def produce(job: Job) -> Figures:
    """confluent-kafka's `produce_batch`, idempotent, with batches of the size that the terms say."""
    import confluent_kafka

    delivered = [0]

    def report(error: object, _: object) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        delivered[0] += 1

    batch_bytes = job.terms.settings["batch_bytes"]
    settings = {
        "bootstrap.servers": job.source,
        "enable.idempotence": True,
        "compression.type": job.load.compression,
        "linger.ms": job.terms.linger_ms,
        "batch.size": batch_bytes,
        "batch.num.messages": 1_000_000,
        "message.max.bytes": max(batch_bytes + 1000, 1_000_000),
        "sticky.partitioning.linger.ms": job.terms.linger_ms,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 131_072,
    }
    producer = confluent_kafka.Producer(settings)
    for value, partition in job.first_messages():
        producer.produce(job.topic, value, partition=partition, on_delivery=report)
    producer.flush(IDLE_LIMIT_S)
    if delivered[0] != WARMUP:
        raise RuntimeError(f"{delivered[0]} messages of {WARMUP} arrived before the clock started")
    delivered[0] = 0
    pool = [{"value": value} for value in values(job.load.value_bytes) * (BATCH // DISTINCT)]
    meter = job.meter()
    for part in parts(pool, job.load.messages, BATCH):
        _hand(producer, job.topic, part, report)
    producer.flush(IDLE_LIMIT_S)
    return meter.figures("confluent-kafka", job.name, delivered[0])


def _hand(producer: Any, topic: str, messages: Any, report: Any) -> None:
    """Hand all of them over, waiting for room when the producer is full."""
    rest = messages
    while rest:
        rest = rest[producer.produce_batch(topic, rest, on_delivery=report) :]
        producer.poll(0.02 if rest else 0)
        for message in rest:
            message.pop("_error", None)


def consume(job: Job) -> Figures:
    """confluent-kafka's `consume`, all partitions assigned; the first message is read before the clock starts."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": job.source, "group.id": "peer", **READER})
    consumer.assign([confluent_kafka.TopicPartition(job.topic, at, 0) for at in range(job.load.partitions)])
    deadline = time.monotonic() + IDLE_LIMIT_S
    while not (read := len(consumer.consume(1, 0.5))) and time.monotonic() < deadline:
        pass
    meter = job.meter()
    while read < job.load.messages and time.monotonic() < deadline:
        read += len(consumer.consume(BATCH, 0.5))
    figures = meter.figures("confluent-kafka", job.name, read)
    consumer.close()
    return figures


JOBS = produce_jobs.JOBS | {("confluent-kafka", "batches"): produce, ("confluent-kafka", "read"): consume}

if __name__ == "__main__":
    python_jobs.main(Path(sys.argv[1]), Path(sys.argv[2]), JOBS)
