"""`verify` on a real Kafka: topics that official clients wrote and copied, with transactions, and compacted."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

import penstock
from brokers.kafka import KafkaCluster
from penstock.replicate.verify import verify
from tests.consume.real.conftest import Connect
from tests.consume.real.conftest import cleaning_kafka as cleaning_kafka
from tests.consume.real.conftest import connect as connect
from tests.consume.real.test_compacted import wait_until_compacted
from tests.produce.real.reading import LIMIT_S, Read, create, read_all

PARTITIONS = 2
COMMITTED: dict[str, Any] = {"isolation.level": "read_committed"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def write(bootstrap: str, topic: str, messages: Sequence[Read], **settings: Any) -> None:
    """Messages by an official producer, with the times that they have."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **settings})
    put(producer, topic, messages)
    assert producer.flush(LIMIT_S) == 0


def put(producer: Producer, topic: str, messages: Sequence[Read]) -> None:
    for message in messages:
        headers: list[tuple[str, str | bytes | None]] = list(message.headers)
        producer.produce(
            topic, message.value, message.key, message.partition, timestamp=message.time_ms, headers=headers
        )


def random_messages(chance: random.Random, count: int) -> list[Read]:
    """Messages of all shapes: null, empty and long; names of headers twice."""

    def some(*sizes: int | None) -> bytes | None:
        size = chance.choice(sizes)
        return None if size is None else chance.randbytes(size)

    def one() -> Read:
        names = [chance.choice(["a", "b", "region"]) for _ in range(chance.randrange(4))]
        headers = tuple((name, some(None, 0, 3)) for name in names)
        return Read(
            chance.randrange(PARTITIONS),
            0,
            some(None, 0, 4),
            some(None, 0, 100, 3000),
            headers,
            1_700_000_000_000 + chance.randrange(9),
        )

    return [one() for _ in range(count)]


def keyed_messages(chance: random.Random, count: int) -> list[Read]:
    """Many values for few keys, tombstones among them."""
    values = (None if chance.random() < 0.1 else chance.randbytes(chance.choice([5, 3000])) for _ in range(count))
    return [
        Read(0, 0, b"k%d" % chance.randrange(40), value, (("n", b"%d" % number),), 1_700_000_000_000 + number)
        for number, value in enumerate(values)
    ]


def written(bootstrap: str, topic: str, chance: random.Random) -> None:
    """Plain messages of all codecs, and transactions of which some are aborted."""
    for codec in CODECS:
        write(bootstrap, topic, random_messages(chance, 200), **{"compression.type": codec, "batch.num.messages": 7})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"id-{uuid.uuid4().hex}"})
    producer.init_transactions(LIMIT_S)
    for number in range(6):
        producer.begin_transaction()
        put(producer, topic, random_messages(chance, 50))
        assert producer.flush(LIMIT_S) == 0
        if number % 2:
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)


@pytest.mark.parametrize("of", ["real", "embedded"])
def test_a_copy_by_an_official_client_is_equal(real_kafka: KafkaCluster, connect: Connect, of: str) -> None:
    chance = random.Random(11)
    topic = create(real_kafka.bootstrap, PARTITIONS)
    written(real_kafka.bootstrap, topic, chance)
    messages = read_all(real_kafka.bootstrap, topic, **COMMITTED)
    assert len(messages) == 5 * 200 + 3 * 50
    with penstock.embedded() as broker:
        there = real_kafka.bootstrap if of == "real" else broker.bootstrap
        copy = create(there, PARTITIONS, 1)
        write(there, copy, messages[:500], **{"compression.type": "lz4"})
        aborted = Producer({"bootstrap.servers": there, "transactional.id": f"id-{uuid.uuid4().hex}"})
        aborted.init_transactions(LIMIT_S)
        aborted.begin_transaction()
        put(aborted, copy, random_messages(chance, 30))
        assert aborted.flush(LIMIT_S) == 0
        aborted.abort_transaction(LIMIT_S)
        write(there, copy, messages[500:-1])
        source, target = connect(real_kafka.url), connect(f"kafka://{there}")
        behind = verify(source, target, topic, copy, timeout=LIMIT_S).difference
        assert behind is not None
        assert (behind.partition, behind.field) == (messages[-1].partition, "count")
        assert behind.source_position == messages[-1].offset
        write(there, copy, messages[-1:])
        found = verify(source, target, topic, copy, timeout=LIMIT_S)
        assert found.equal, str(found)
        assert found.source_count == found.target_count == len(messages)
        target.close(0)


def test_a_topic_that_was_compacted_after_its_copy_is_equal_by_key(
    cleaning_kafka: KafkaCluster, connect: Connect
) -> None:
    bootstrap = cleaning_kafka.bootstrap
    topic = create(bootstrap, 1, cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.0")
    copy = create(bootstrap, 1)
    messages = keyed_messages(random.Random(5), 4000)
    write(bootstrap, copy, messages)
    write(bootstrap, topic, messages, **{"compression.type": "lz4", "batch.num.messages": 50})
    wait_until_compacted(bootstrap, topic)
    client = connect(cleaning_kafka.url)
    found = verify(client, client, topic, copy, by_key=True, timeout=LIMIT_S)
    assert found.equal, str(found)
    last = {message.key: message for message in messages}
    assert found.source_count == sum(message.value is not None for message in last.values()) > 20
    plainly = verify(client, client, topic, copy, timeout=LIMIT_S)
    assert plainly.source_count < plainly.target_count == len(messages)
    write(bootstrap, copy, [Read(0, 0, b"k7", b"not of the source", (), 0)])
    assert not verify(client, client, topic, copy, by_key=True, timeout=LIMIT_S).equal
