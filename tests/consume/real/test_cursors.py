"""Cursors on a real Kafka are the committed offsets of a group, which official clients see and move."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokers.kafka import KafkaCluster
from penstock.errors import RefusedError
from penstock.wire.protocol import Mark
from tests.consume.real.comparing import LIMIT_S, reads
from tests.consume.real.conftest import Connect
from tests.produce.real.reading import create


def consumer_of(kafka: KafkaCluster, group: str) -> Consumer:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False}
    return Consumer({**settings, "auto.offset.reset": "earliest"})


def test_official_clients_and_cursors_see_each_others_positions(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic, group = create(real_kafka.bootstrap, 2), f"g-{uuid.uuid4().hex}"
    client = connect(real_kafka.url)
    cursor = client.cursor(topic, group)
    client.producer(topic).send_many([b"%d" % i for i in range(100)], partition=1).result(LIMIT_S)
    with client.reader(topic, cursor, {0: 0, 1: 30}) as reader:
        assert len(reads(reader)) == 30
        cursor.commit(reader.marks())
    cursor.commit({1: Mark(31, "a note")})
    consumer = consumer_of(real_kafka, group)
    try:
        found = consumer.committed([TopicPartition(topic, 1)], timeout=LIMIT_S)[0]
        assert (found.offset, found.metadata) == (31, "a note")
        consumer.commit(offsets=[TopicPartition(topic, 1, 55)], asynchronous=False)
    finally:
        consumer.close()
    assert cursor.positions() == {0: 0, 1: 55}
    assert cursor.backlog() == {0: 0, 1: 45}
    assert [read.offset for read in reads(client.reader(topic, cursor, "latest"))] == list(range(55, 100))


def test_a_group_with_members_refuses_a_cursor(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic, group = create(real_kafka.bootstrap, 1), f"g-{uuid.uuid4().hex}"
    cursor = connect(real_kafka.url).cursor(topic, group)
    consumer = consumer_of(real_kafka, group)
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        with pytest.raises(RefusedError, match="UNKNOWN_MEMBER_ID"):
            cursor.commit({0: 5})
        assert cursor.positions() == {}
    finally:
        consumer.close()
    cursor.commit({0: 5})
    assert cursor.positions() == {0: 5}
