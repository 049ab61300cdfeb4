"""Transactions with `await`, on a real Kafka: the core is the blocking face's, so only the face is tried here."""

from __future__ import annotations

from typing import Any

import pytest

from brokers.kafka import KafkaCluster
from penstock import aio
from penstock.errors import TransactionStateError

from .faces import in_a_loop, new_id
from .produce.real.reading import create, read_all


def committed(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    settings: dict[str, Any] = {"isolation.level": "read_committed"}
    return [message.value for message in read_all(kafka.bootstrap, topic, **settings)]


async def broken_off(producer: aio.AsyncProducer) -> None:
    async with producer.transaction():
        await producer.send(b"two")
        raise KeyError("of the block")


@in_a_loop
async def test_a_block_commits_at_its_end_and_aborts_on_an_exception(real_kafka: KafkaCluster) -> None:
    topic = create(real_kafka.bootstrap)
    async with aio.connect(real_kafka.url) as client, client.producer(topic, transactional_id=new_id()) as producer:
        async with producer.transaction():
            stored = await producer.send_and_wait(b"one")
        with pytest.raises(KeyError):
            await broken_off(producer)
        async with producer.transaction() as transaction:
            await producer.send(b"three")
            await transaction.abort()
        with pytest.raises(TransactionStateError):
            await producer.send(b"outside")
        async with producer.transaction():
            await producer.send_many([b"four", b"five"])
    assert stored.topic == topic
    assert committed(real_kafka, topic) == [b"one", b"four", b"five"]
