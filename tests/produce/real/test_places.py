"""Which partition our messages are found in: where other clients put them, and in those that come later."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from brokers.kafka import KafkaCluster
from penstock import BatchPolicy, RoundRobin
from penstock.errors import ClosedError, MessageError, Persisted, UnknownTopicError, UnresolvedError
from tests.faces import wait_until
from tests.produce.real import java
from tests.produce.real.conftest import Connect
from tests.produce.real.proxy import Proxy
from tests.produce.real.reading import LIMIT_S, by_partition, create, delete, grow, new_topic, read_all

PARTITIONS = 12


def sample_keys() -> list[bytes]:
    """Keys of every length modulo four, with bytes above 127, and long ones."""
    chance = random.Random(7)
    drawn = [chance.randbytes(size) for size in range(1, 40) for _ in range(10)]
    return [*drawn, *(b"user-%d" % number for number in range(200)), "ключ".encode(), b"x" * 10_000]


def places_of(bootstrap: str, topic: str) -> dict[bytes | None, int]:
    return {message.key: message.partition for message in read_all(bootstrap, topic)}


@pytest.mark.parametrize(("partitioner", "hash_name"), [("murmur2_random", "murmur2"), ("consistent_random", "crc32")])
def test_keys_lie_where_confluent_kafka_puts_them(
    real_kafka: KafkaCluster, connect: Connect, partitioner: str, hash_name: str
) -> None:
    theirs, one_by_one, early, many = (create(real_kafka.bootstrap, PARTITIONS) for _ in range(4))
    keys = sample_keys()
    peer = Producer({"bootstrap.servers": real_kafka.bootstrap, "partitioner": partitioner})
    for key in keys:
        peer.produce(theirs, b"v", key=key)
    assert peer.flush(LIMIT_S) == 0
    with connect(real_kafka.url, hash=hash_name) as client:
        with client.producer(one_by_one) as producer:
            producer.ready(LIMIT_S)
            for key in keys:
                producer.send(b"v", key=key)
        with client.producer(early) as producer:  # sent before it is known how many partitions there are
            for key in keys:
                producer.send(b"v", key=key)
        with client.producer(many) as producer:
            producer.ready(LIMIT_S)
            producer.send_many([b"v"] * len(keys), keys)
    expected = places_of(real_kafka.bootstrap, theirs)
    assert len(expected) == len(keys)
    for topic in (one_by_one, early, many):
        assert places_of(real_kafka.bootstrap, topic) == expected


def test_keys_lie_where_the_java_client_puts_them(real_kafka: KafkaCluster, connect: Connect, tmp_path: Path) -> None:
    theirs, ours = create(real_kafka.bootstrap, PARTITIONS), create(real_kafka.bootstrap, PARTITIONS)
    texts = ["", "k", *(f"user-{number}" for number in range(200)), "ключ", "schlüssel", "x" * 1000]
    java.send_keyed(real_kafka.bootstrap, theirs, [(text, "v") for text in texts], tmp_path)
    with connect(real_kafka.url) as client, client.producer(ours) as producer:
        for text in texts:
            producer.send(b"v", key=text.encode())
    expected = places_of(real_kafka.bootstrap, theirs)
    assert len(expected) == len(texts)
    assert places_of(real_kafka.bootstrap, ours) == expected


def test_messages_without_a_key_stay_together_until_a_batch_is_full(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 6)
    policy = BatchPolicy(bytes_max=10_000, delay_ms=1000)
    with connect(real_kafka.url) as client, client.producer(topic, batch=policy, compression="none") as producer:
        producer.ready(LIMIT_S)
        for number in range(3000):
            producer.send(b"%04d" % number * 50)
    found = read_all(real_kafka.bootstrap, topic)
    where = {message.value: message.partition for message in found}
    moves = sum(where[b"%04d" % n * 50] != where[b"%04d" % (n + 1) * 50] for n in range(2999))
    assert len(by_partition(found)) == 6, "60 draws out of 6 leave none out"
    assert moves <= 3000 * 210 // 10_000 + 10


def test_an_own_router_is_asked_for_each_message(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 3)
    with (
        connect(real_kafka.url) as client,
        client.producer(topic, router=lambda message: int(message.value or b"0") % message.partitions) as producer,
    ):
        for number in range(300):  # the first ones before it is known how many there are
            producer.send(b"%d" % number, key=b"same")
        producer.ready(LIMIT_S)
        producer.send_many([b"%d" % number for number in range(300, 600)], [b"same"] * 300)
    parts = by_partition(read_all(real_kafka.bootstrap, topic))
    for part in range(3):
        assert [int(message.value or b"") for message in parts[part]] == list(range(part, 600, 3))


def test_a_partition_that_is_not_there_is_refused(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 2)
    with connect(real_kafka.url) as client, client.producer(topic) as producer:
        early = producer.send(b"before it can be known", partition=2)
        fine = producer.send(b"fine", partition=1)
        assert fine.result(LIMIT_S).position == 0
        with pytest.raises(MessageError, match="partition: expected 0 to 1, found 2; the topic has 2"):
            early.result(LIMIT_S)
        with pytest.raises(MessageError, match="partition: expected 0 to 1, found 2"):
            producer.send(b"now it is", partition=2)
    assert [message.value for message in read_all(real_kafka.bootstrap, topic)] == [b"fine"]


def test_partitions_that_are_added_are_noticed_and_used(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 2)
    policy = BatchPolicy(count_max=10, delay_ms=1)
    with (
        connect(real_kafka.url, metadata_age_max_ms=200) as client,
        client.producer(topic, batch=policy, router=RoundRobin()) as producer,
    ):
        producer.send_many([b"v"] * 100).result(LIMIT_S)
        assert producer.stats().partitions == 2
        grow(real_kafka.bootstrap, topic, 5)
        over = time.monotonic() + LIMIT_S
        while producer.stats().partitions != 5 and time.monotonic() < over:
            producer.send(b"v").result(LIMIT_S)
        producer.send_many([b"after"] * 100).result(LIMIT_S)
        keyed = {producer.send(b"k", key=b"%d" % number).result(LIMIT_S).partition for number in range(50)}
    assert keyed == set(range(5))
    after = [message.partition for message in read_all(real_kafka.bootstrap, topic) if message.value == b"after"]
    assert {part: after.count(part) for part in range(5)} == dict.fromkeys(range(5), 20)


def test_our_client_creates_grows_and_deletes_topics(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = new_topic()
    with connect(real_kafka.url) as client:
        client.create_topic(topic, 2, settings={"retention.ms": "1234567"})
        wait_until(lambda: topic in client.topics())  # the controller answers before the broker knows
        assert client.partitions(topic) == 2
        client.grow_topic(topic, 4)
        wait_until(lambda: client.partitions(topic) == 4)
        view = client.metadata([topic])
        assert {partition.leader for partition in view.topics[topic].partitions.values()} == {1}
        client.delete_topic(topic)
        wait_until(lambda: topic not in client.topics())


def test_a_topic_that_is_made_anew_with_fewer_partitions_goes_on(
    proxied_kafka: tuple[KafkaCluster, Proxy], connect: Connect
) -> None:
    kafka, _ = proxied_kafka  # where the producer's asking for it does not make it
    topic = create(kafka.bootstrap, 4)
    with connect(kafka.url, metadata_age_max_ms=200, retry_backoff_max_ms=200) as client:
        producer = client.producer(topic, unknown_topic_ms=60_000)
        for number in range(4):
            producer.send(b"old", partition=number).result(LIMIT_S)
        delete(kafka.bootstrap, topic)
        receipts = [producer.send(b"waits", partition=number) for number in range(4)]
        client.create_topic(topic, 2)
        outcomes = [receipt.exception(LIMIT_S) for receipt in receipts]
        assert outcomes[:2] == [None, None]
        # One that was on its way when the topic went may have been stored in it.
        assert all(isinstance(outcome, MessageError | UnresolvedError) for outcome in outcomes[2:]), outcomes
        assert producer.send(b"goes on").result(LIMIT_S).partition < 2
        producer.flush(LIMIT_S)


def test_a_topic_that_nobody_may_make_is_said_to_be_missing(
    proxied_kafka: tuple[KafkaCluster, Proxy], connect: Connect
) -> None:
    topic = new_topic()
    with connect(proxied_kafka[0].url) as client:
        producer = client.producer(topic, unknown_topic_ms=300)
        receipt = producer.send(b"to nowhere")
        with pytest.raises(
            UnknownTopicError, match=f"UNKNOWN_TOPIC_OR_PARTITION: topic {topic}: there is no such topic"
        ):
            receipt.result(LIMIT_S)
        with pytest.raises(UnknownTopicError):
            producer.ready(LIMIT_S)
        bulk = producer.send_many([b"a", b"b"])
        assert [type(error) for error in bulk.errors(LIMIT_S).values()] == [UnknownTopicError] * 2
        assert receipt.exception(0).persisted is Persisted.NO  # type: ignore[union-attr]
        client.create_topic(topic, 3)
        producer.ready(LIMIT_S)
        assert producer.send(b"now").result(LIMIT_S).position == 0
        patient = client.producer(new_topic(), unknown_topic_ms=60_000)
        waiting = patient.send(b"x")
        patient.close(timeout=0)
        assert isinstance(waiting.exception(LIMIT_S), ClosedError)
