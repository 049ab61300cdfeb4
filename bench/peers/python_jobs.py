"""The Python peers at work, one job in a process of its own: `python -m bench.peers.python_jobs JOB RESULT`.

JOB is a file with a `Job` in JSON, RESULT the file its figures go to. The clock and the CPU times start when the client
is connected, its modules are loaded and, if it produces, its first messages are acknowledged; they stop when the last
message is acknowledged or read. Producers are idempotent and wait for all copies.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench.peers.load import DISTINCT, Load, values
from bench.peers.measure import Figures, Meter

BATCH = 10_000
GATHER = 5_000
POLL_EVERY = 100
PYTHON_BATCH_BYTES = 262_144  # the pure Python clients do better with large batches than with their 16 KB
WARMUP = 1_000
"""Messages that a producer sends before the clock starts, to every partition: each has a leader then, and the producer
has its connections and its identity."""
IDLE_LIMIT_S = 60.0
REGIONS = ("eu", "us", "ap", "sa")
VERSIONS = ("1", "2")
# One setting makes librdkafka's consumer four times faster at equal CPU: without it it waits between fetches.
CONSUMER = {"fetch.queue.backoff.ms": 5}
MIRROR_CONSUMER = {
    **CONSUMER,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 262_144,
    "max.partition.fetch.bytes": 8_388_608,
}
MIRROR_PRODUCER = {"linger.ms": 20, "batch.size": 1_000_000}
T = TypeVar("T")


class Mail(NamedTuple):
    """One message that has all its parts."""

    value: bytes
    key: bytes
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Terms:
    """How messages are produced, the same for every client."""

    keyed: bool = False  # each message with a key and two properties
    linger_ms: float = 5.0
    settings: dict[str, Any] = field(default_factory=dict)  # what only one action knows


@dataclass(frozen=True, slots=True)
class Job:
    """What one process has to do."""

    client: str
    action: str
    source: str  # bootstrap servers; of the only cluster, except when mirroring
    target: str
    topic: str
    target_topic: str
    load: Load
    pids: Mapping[str, int]
    terms: Terms = field(default_factory=Terms)

    @property
    def name(self) -> str:
        """As the figures call it."""
        keyed = " keyed" if self.terms.keyed else ""
        return f"{self.action} {self.load.value_bytes} B{keyed} {self.load.compression} {self.load.partitions}p"

    def meter(self) -> Meter:
        """Start the clock for this process and the brokers."""
        return Meter({"client": os.getpid(), **self.pids})

    def first_messages(self) -> Iterator[tuple[bytes, int]]:
        """What is sent before the clock starts, and to which partitions."""
        return zip(values(self.load.value_bytes)[:WARMUP], itertools.cycle(range(self.load.partitions)), strict=False)


def mails(value_bytes: int) -> list[Mail]:
    """As many as there are distinct values, each with its own key."""
    return [
        Mail(value, b"customer-%05d" % number, {"region": REGIONS[number % 4], "version": VERSIONS[number % 2]})
        for number, value in enumerate(values(value_bytes))
    ]


def parts(pool: Sequence[T], count: int, size: int) -> Iterator[Sequence[T]]:
    """The pool again and again, so many in all, in parts of this size; it must divide the pool's."""
    for sent in range(0, count, size):
        begin = sent % len(pool)
        yield pool[begin : begin + min(size, count - sent)]


def confluent_produce(job: Job) -> Figures:
    producer, delivered, report = _confluent_producer(job.source, job.load.compression, _terms(job))
    _warm_up(job, producer, delivered, report)
    if job.terms.keyed:
        mail = [(each.value, each.key, _headers(each)) for each in mails(job.load.value_bytes)]
        meter = job.meter()
        _confluent_mails(job, producer, report, mail)
    else:
        pool = values(job.load.value_bytes)
        meter = job.meter()
        _confluent_values(job, producer, report, pool)
    return _delivered(job, producer, delivered, meter)


def _headers(mail: Mail) -> list[tuple[str, bytes]]:
    return [(name, text.encode()) for name, text in mail.properties.items()]


def _confluent_values(job: Job, producer: Any, report: Callable[..., None], pool: Sequence[bytes]) -> None:
    produce, topic = producer.produce, job.topic
    for part in parts(pool, job.load.messages, POLL_EVERY):
        for value in part:
            try:
                produce(topic, value, on_delivery=report)
            except BufferError:
                _produce(producer, topic, value, report)
        producer.poll(0)


def _confluent_mails(job: Job, producer: Any, report: Callable[..., None], pool: Sequence[tuple[Any, ...]]) -> None:
    produce, topic = producer.produce, job.topic
    for part in parts(pool, job.load.messages, POLL_EVERY):
        for value, key, headers in part:
            try:
                produce(topic, value, key, on_delivery=report, headers=headers)
            except BufferError:
                _produce(producer, topic, value, report, key=key, headers=headers)
        producer.poll(0)


def confluent_produce_batch(job: Job) -> Figures:
    """It knows no headers."""
    producer, delivered, report = _confluent_producer(job.source, job.load.compression, _terms(job))
    _warm_up(job, producer, delivered, report)
    batch = [{"value": value} for value in values(job.load.value_bytes) * (BATCH // DISTINCT)]
    meter = job.meter()
    for part in parts(batch, job.load.messages, BATCH):
        rest = part
        while rest:
            queued = producer.produce_batch(job.topic, rest, on_delivery=report)
            rest = rest[queued:]
            producer.poll(0 if not rest else 0.05)
            for message in rest:
                message.pop("_error", None)
    return _delivered(job, producer, delivered, meter)


def _terms(job: Job) -> dict[str, Any]:
    """Keys choose partitions as they do for everybody else here, by Java's hash."""
    return {"linger.ms": job.terms.linger_ms, "enable.idempotence": True, "partitioner": "murmur2_random"}


def _warm_up(job: Job, producer: Any, delivered: list[int], report: Callable[..., None]) -> None:
    for value, partition in job.first_messages():
        _produce(producer, job.topic, value, report, partition=partition)
    producer.flush(IDLE_LIMIT_S)
    if delivered[0] != WARMUP:
        raise RuntimeError(f"confluent-kafka: {delivered[0]} messages of {WARMUP} arrived before the clock started")
    delivered[0] = 0


def _confluent_producer(
    bootstrap: str, compression: str, more: Mapping[str, Any]
) -> tuple[Any, list[int], Callable[..., None]]:
    """A connected producer, the count of its acknowledged messages, and the callback that counts."""
    import confluent_kafka

    delivered = [0]

    def report(error: object, _: object) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        delivered[0] += 1

    settings = {"bootstrap.servers": bootstrap, "acks": "all", "compression.type": compression, **more}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.messages": 1_000_000})
    producer.list_topics(timeout=30)
    return producer, delivered, report


def _produce(producer: Any, topic: str, value: bytes, report: Callable[..., None], **more: Any) -> None:
    """Hand one message over, waiting for room when the producer is full."""
    while True:
        try:
            producer.produce(topic, value, on_delivery=report, **more)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def _delivered(job: Job, producer: Any, delivered: list[int], meter: Meter) -> Figures:
    producer.flush(IDLE_LIMIT_S)
    return meter.figures("confluent-kafka", job.name, delivered[0])


def confluent_consume(job: Job) -> Figures:
    consumer = _confluent_consumer(job, CONSUMER)
    meter = job.meter()
    read = 0
    deadline = time.monotonic() + IDLE_LIMIT_S
    while read < job.load.messages and time.monotonic() < deadline:
        read += len(consumer.consume(BATCH, 0.5))
    figures = meter.figures("confluent-kafka", job.name, read)
    consumer.close()
    return figures


def _confluent_consumer(job: Job, settings: Mapping[str, Any]) -> Any:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": job.source, "group.id": "peer", **settings})
    consumer.list_topics(timeout=30)
    consumer.assign([confluent_kafka.TopicPartition(job.topic, at, 0) for at in range(job.load.partitions)])
    return consumer


def confluent_mirror(job: Job) -> Figures:
    """Read and send on message by message; no offsets are kept, unlike MirrorMaker's."""
    producer, delivered, report = _confluent_producer(job.target, job.load.compression, MIRROR_PRODUCER)
    consumer = _confluent_consumer(job, MIRROR_CONSUMER)
    meter = job.meter()
    read = 0
    deadline = time.monotonic() + IDLE_LIMIT_S
    while read < job.load.messages and time.monotonic() < deadline:
        messages = consumer.consume(min(BATCH, job.load.messages - read), 0.5)
        for message in messages:
            _produce(producer, job.target_topic, message.value(), report)
        producer.poll(0)
        read += len(messages)
    figures = _delivered(job, producer, delivered, meter)
    consumer.close()
    return figures


def aiokafka_produce(job: Job) -> Figures:
    import aiokafka

    async def produce() -> Figures:
        pool = values(job.load.value_bytes)
        compression = None if job.load.compression == "none" else job.load.compression
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=job.source,
            enable_idempotence=True,
            linger_ms=job.terms.linger_ms,
            compression_type=compression,
            max_batch_size=PYTHON_BATCH_BYTES,
        ) as producer:
            early = [await producer.send(job.topic, value, partition=at) for value, at in job.first_messages()]
            await asyncio.gather(*early)
            meter = job.meter()
            sent = 0
            for first in range(0, job.load.messages, GATHER):
                numbers = range(first, min(first + GATHER, job.load.messages))
                receipts = [await producer.send(job.topic, pool[number % len(pool)]) for number in numbers]
                sent += len(await asyncio.gather(*receipts))
            return meter.figures("aiokafka", job.name, sent)

    return asyncio.run(produce())


def aiokafka_consume(job: Job) -> Figures:
    import aiokafka

    async def consume() -> Figures:
        partitions = [aiokafka.TopicPartition(job.topic, at) for at in range(job.load.partitions)]
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=job.source) as consumer:
            consumer.assign(partitions)
            meter = job.meter()
            for partition in partitions:
                consumer.seek(partition, 0)
            read = 0
            deadline = time.monotonic() + IDLE_LIMIT_S
            while read < job.load.messages and time.monotonic() < deadline:
                read += sum(map(len, (await consumer.getmany(timeout_ms=500, max_records=BATCH)).values()))
            return meter.figures("aiokafka", job.name, read)

    return asyncio.run(consume())


def kafka_python_produce(job: Job) -> Figures:
    kafka = _kafka_python()
    pool = values(job.load.value_bytes)
    compression = None if job.load.compression == "none" else job.load.compression
    producer = kafka.KafkaProducer(
        bootstrap_servers=job.source.split(","),
        enable_idempotence=True,
        linger_ms=job.terms.linger_ms,
        compression_type=compression,
        batch_size=PYTHON_BATCH_BYTES,
    )
    for receipt in [producer.send(job.topic, value, partition=at) for value, at in job.first_messages()]:
        receipt.get(IDLE_LIMIT_S)
    meter = job.meter()
    receipts = [producer.send(job.topic, pool[number % len(pool)]) for number in range(job.load.messages)]
    producer.flush(IDLE_LIMIT_S)
    figures = meter.figures("kafka-python", job.name, sum(receipt.succeeded() for receipt in receipts))
    producer.close()
    return figures


def kafka_python_consume(job: Job) -> Figures:
    kafka = _kafka_python()
    partitions = [kafka.TopicPartition(job.topic, at) for at in range(job.load.partitions)]
    consumer = kafka.KafkaConsumer(bootstrap_servers=job.source.split(","), group_id=None)
    consumer.assign(partitions)
    meter = job.meter()
    for partition in partitions:
        consumer.seek(partition, 0)
    read = 0
    deadline = time.monotonic() + IDLE_LIMIT_S
    while read < job.load.messages and time.monotonic() < deadline:
        read += sum(map(len, consumer.poll(timeout_ms=500, max_records=BATCH).values()))
    figures = meter.figures("kafka-python", job.name, read)
    consumer.close()
    return figures


def _kafka_python() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
    return kafka


JOBS: dict[tuple[str, str], Callable[[Job], Figures]] = {
    ("confluent-kafka", "produce"): confluent_produce,
    ("confluent-kafka", "produce_batch"): confluent_produce_batch,
    ("confluent-kafka", "consume"): confluent_consume,
    ("confluent-kafka", "mirror"): confluent_mirror,
    ("aiokafka", "produce"): aiokafka_produce,
    ("aiokafka", "consume"): aiokafka_consume,
    ("kafka-python", "produce"): kafka_python_produce,
    ("kafka-python", "consume"): kafka_python_consume,
}


def main(job_path: Path, result_path: Path, jobs: Mapping[tuple[str, str], Callable[[Job], Figures]] = JOBS) -> None:
    """Do the job and write its figures."""
    described = json.loads(job_path.read_text())
    job = Job(**{**described, "load": Load(**described["load"]), "terms": Terms(**described["terms"])})
    figures = jobs[job.client, job.action](job)
    result_path.write_text(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
