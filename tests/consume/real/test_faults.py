"""Readers of a real Kafka that is killed, restarted, and whose leaders move: everything is read, once and in order."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from brokers.kafka import KafkaCluster
from penstock.errors import GapError, UnknownTopicError
from tests.consume.faces import new_id
from tests.consume.real.comparing import LIMIT_S, check_order, in_order, reads
from tests.consume.real.conftest import Connect
from tests.produce.real.proxy import Proxy
from tests.produce.real.reading import create, delete, read_all

PARTITIONS = 4
PATIENT = {"retry_backoff_max_ms": 300}


class Sending:
    """Messages that are sent on a thread of their own, until told to stop."""

    def __init__(self, url: str, topic: str, partitions: int = PARTITIONS) -> None:
        self._client = penstock.connect(url, client_id=new_id(), **PATIENT)
        self._topic = topic
        self._partitions = partitions
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.count = 0

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def _send(self) -> None:
        producer = self._client.producer(self._topic)
        while not self._over.is_set():
            for number in range(self._partitions):
                producer.send(b"%d" % self.count, partition=number)
                self.count += 1
            time.sleep(0.001)  # a steady stream, not a flood
        producer.flush()


def read_more(reader: Any, items: list[Any], count: int) -> None:
    """Read until so many more messages were handed out."""
    more = 0
    while more < count:
        items.append(reader.read(LIMIT_S))
        more += items[-1].num_rows


def read_rest(reader: Any, items: list[Any], total: int) -> None:
    read_more(reader, items, total - sum(item.num_rows for item in items))


def test_a_topic_is_followed_while_it_is_written(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, PARTITIONS)
    with connect(real_kafka.url).reader(topic) as reader:
        items: list[Any] = []
        with Sending(real_kafka.url, topic) as sending:
            read_more(reader, items, 3000)
        read_rest(reader, items, sending.count)
    found = reads(items)
    check_order(found)
    assert in_order(found) == in_order(read_all(real_kafka.bootstrap, topic))


def test_a_broker_is_killed_and_restarted(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, PARTITIONS)
    client = connect(real_kafka.url, **PATIENT)
    cursor = client.cursor(topic, "mine")
    items: list[Any] = []
    with Sending(real_kafka.url, topic) as sending, client.reader(topic) as reader:
        for _ in range(2):
            read_more(reader, items, 1000)
            cursor.commit(reader.marks(), LIMIT_S)
            committed = reader.positions()
            real_kafka.kill(1)
            real_kafka.restart(1)
            read_more(reader, items, 1000)
            assert cursor.positions(LIMIT_S) == committed, "what was committed survives"
    total = sending.count
    with client.reader(topic, start=cursor, end="latest") as rest:
        tail = reads(rest)
    found = [read for read in reads(items) if read.offset < committed[read.partition]] + tail
    check_order(found)
    assert len(found) == total
    assert in_order(found) == in_order(read_all(real_kafka.bootstrap, topic))


def test_leaders_move(real_kafka_cluster: KafkaCluster, connect: Connect) -> None:
    kafka = real_kafka_cluster
    topic = create(kafka.bootstrap, PARTITIONS, 3)
    client = connect(kafka.url, **PATIENT)
    items: list[Any] = []
    with Sending(kafka.url, topic) as sending, client.reader(topic) as reader:
        for node in (1, 2, 3):
            read_more(reader, items, 500)
            kafka.kill(node) if node != 2 else kafka.shut_down(node)
            read_more(reader, items, 1000)
            kafka.restart(node)
            read_more(reader, items, 500)
        assert reader.stats().missing == 0
    total = sending.count
    with client.reader(topic, end="latest") as again:
        everything = reads(again)
    assert len(everything) == total
    check_order(everything)
    found = reads(items)
    check_order(found)
    last = {number: max(read.offset for read in found if read.partition == number) for number in range(PARTITIONS)}
    assert in_order(found) == [read for read in in_order(everything) if read.offset <= last[read.partition]]


def test_a_broker_that_is_paused_is_waited_for(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    client = connect(real_kafka.url, request_timeout_ms=1000, **PATIENT)
    items: list[Any] = []
    with Sending(real_kafka.url, topic, 1) as sending, client.reader(topic) as reader:
        read_more(reader, items, 100)
        real_kafka.pause(1)
        with pytest.raises(TimeoutError):
            items += iter(lambda: reader.read(2.5), None)
        real_kafka.resume(1)
        read_more(reader, items, 100)
    assert sending.count > 200
    check_order(reads(items))


def test_connections_are_cut_anywhere(proxied_kafka: tuple[KafkaCluster, Proxy], connect: Connect) -> None:
    kafka, proxy = proxied_kafka
    topic = create(kafka.bootstrap, 1)
    values = [b"%d" % i * 20 for i in range(20_000)]
    url = f"kafka://127.0.0.1:{proxy.port}"
    connect(url).producer(topic, batch_bytes_max=5000, compression="none").send_many(values).result(LIMIT_S)
    chance = random.Random(5)
    reader = connect(url, retry_backoff_ms=1, retry_backoff_max_ms=5).reader(
        topic, end="latest", partition_bytes_max=20_000, prefetch_bytes_max=64 << 10
    )
    items: list[Any] = []
    while True:
        direction, most = chance.choice([("there", 300), ("back", 100_000)])
        proxy.cut_after(chance.randrange(most), direction)
        item = reader.read(LIMIT_S)
        if item is None:
            break
        items.append(item)
    proxy.spare()
    assert proxy.cuts > 20
    assert [read.value for read in reads(items)] == values


def test_messages_that_were_deleted_are_named(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    client = connect(real_kafka.url)
    producer = client.producer(topic)
    producer.send_many([b"%d" % i for i in range(100)]).result(LIMIT_S)
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 40)]).values():
        future.result(LIMIT_S)
    with pytest.raises(GapError, match="positions 10 to 39 are missing: they were deleted") as caught:
        client.reader(topic, start={0: 10}).read(LIMIT_S)
    assert (caught.value.first, caught.value.next) == (10, 40)
    reader = client.reader(topic, start={0: 10}, end={0: 50}, on_gap="skip")
    assert [read.offset for read in reads(reader)] == list(range(40, 50))
    assert reader.stats().missing == 30
    assert reads(client.reader(topic, end="latest"))[0].offset == 40


def test_a_topic_made_anew_is_noticed(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    client = connect(real_kafka.url)
    client.producer(topic).send_many([b"old"] * 10).result(LIMIT_S)
    reader = client.reader(topic)
    assert reader.read(LIMIT_S) is not None
    delete(real_kafka.bootstrap, topic)
    client.create_topic(topic, 1)
    with penstock.connect(real_kafka.url, client_id=new_id()) as other:
        other.producer(topic).send_many([b"new"] * 30).result(LIMIT_S)
    with pytest.raises(GapError, match="the topic was deleted and made anew"):
        reader.read(LIMIT_S)


def test_a_topic_that_is_deleted_ends_its_readers(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    client = connect(real_kafka.url, unknown_topic_ms=500)
    reader = client.reader(topic)
    reader.ready(LIMIT_S)
    delete(real_kafka.bootstrap, topic)
    with pytest.raises(UnknownTopicError):
        reader.read(LIMIT_S)
