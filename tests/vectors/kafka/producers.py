"""The official clients as producers: each sends a case with settings that are written down beside its vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import aiokafka
import confluent_kafka
import kafka as kafka_python

from tests.vectors.kafka.cases import COMMIT, Case

Settings = dict[str, str | int | bool | None]

# Long enough for all messages of a flush to come together; flushing does not wait for it.
LINGER_MS = 100
BATCH_BYTES = 262_144
LIMIT_S = 30
# kafka-python compresses only with packages that it does not bring along.
KAFKA_PYTHON_CODECS = ("lz4", "python-snappy", "zstandard")


@dataclass(frozen=True, slots=True)
class Client:
    """One official client: the settings of all its producers, those of a case, and how it sends one."""

    name: str
    version: Callable[[], str]
    common: Settings
    settings: Callable[[Case, str, str], Settings]
    send: Callable[[str, str, Case, Settings], None]


def confluent_settings(case: Case, codec: str, topic: str) -> Settings:
    if case.outcomes:
        return {"compression.type": codec, "transactional.id": topic}
    return {"compression.type": codec, "enable.idempotence": case.idempotent}


def confluent_send(bootstrap: str, topic: str, case: Case, settings: Settings) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    if case.outcomes:
        producer.init_transactions(LIMIT_S)
    for at, flush in enumerate(case.flushes):
        if case.outcomes:
            producer.begin_transaction()
        for message in flush:
            options: dict[str, Any] = {} if message.time_ms is None else {"timestamp": message.time_ms}
            producer.produce(topic, message.value, message.key, 0, headers=list(message.headers), **options)
        if left := producer.flush(LIMIT_S):
            raise TimeoutError(f"{topic}: {left} messages were not delivered")
        if case.outcomes:
            end = producer.commit_transaction if case.outcomes[at] == COMMIT else producer.abort_transaction
            end(LIMIT_S)


def python_settings(case: Case, codec: str, topic: str) -> Settings:
    compression = None if codec == "none" else codec
    if case.outcomes:
        return {"compression_type": compression, "transactional_id": topic}
    return {"compression_type": compression, "enable_idempotence": case.idempotent}


def aiokafka_send(bootstrap: str, topic: str, case: Case, settings: Settings) -> None:
    asyncio.run(_aiokafka_send(bootstrap, topic, case, settings))


async def _aiokafka_send(bootstrap: str, topic: str, case: Case, settings: Settings) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        for at, flush in enumerate(case.flushes):
            if case.outcomes:
                await producer.begin_transaction()
            sent = [
                await producer.send(topic, m.value, m.key, 0, timestamp_ms=m.time_ms, headers=list(m.headers))
                for m in flush
            ]
            await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
            if case.outcomes:
                await (producer.commit_transaction if case.outcomes[at] == COMMIT else producer.abort_transaction)()


def kafka_python_send(bootstrap: str, topic: str, case: Case, settings: Settings) -> None:
    producer = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        if case.outcomes:
            producer.init_transactions()
        for at, flush in enumerate(case.flushes):
            if case.outcomes:
                producer.begin_transaction()
            sent = [producer.send(topic, m.value, m.key, list(m.headers), 0, m.time_ms) for m in flush]
            producer.flush(LIMIT_S)
            for future in sent:
                future.get(LIMIT_S)
            if case.outcomes:
                (producer.commit_transaction if case.outcomes[at] == COMMIT else producer.abort_transaction)()
    finally:
        producer.close()


CONFLUENT = Client(
    "confluent-kafka",
    lambda: f"{version('confluent-kafka')} with librdkafka {confluent_kafka.libversion()[0]}",
    {"linger.ms": LINGER_MS, "batch.size": BATCH_BYTES},
    confluent_settings,
    confluent_send,
)
AIOKAFKA = Client(
    "aiokafka",
    lambda: f"{version('aiokafka')} with cramjam {version('cramjam')}",
    {"linger_ms": LINGER_MS, "max_batch_size": BATCH_BYTES},
    python_settings,
    aiokafka_send,
)
KAFKA_PYTHON = Client(
    "kafka-python",
    lambda: f"{version('kafka-python')} with {', '.join(f'{name} {version(name)}' for name in KAFKA_PYTHON_CODECS)}",
    {"linger_ms": LINGER_MS, "batch_size": BATCH_BYTES},
    python_settings,
    kafka_python_send,
)
CLIENTS = (CONFLUENT, AIOKAFKA, KAFKA_PYTHON)
