"""Filters on a real Kafka, which does not filter: readers judge for themselves, and nobody is asked to."""

from __future__ import annotations

import uuid

import pytest

import penstock
from brokers.kafka import KafkaCluster
from penstock.errors import RefusedError
from tests.consume.real.comparing import LIMIT_S, reads
from tests.consume.real.conftest import Connect
from tests.produce.real.reading import create
from tests.wire.kafka.talk import talk

SAME = penstock.BatchPolicy(same_properties={"region": ["us", "eu"]})


def test_a_reader_at_a_cursor_filters_by_itself(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic, group = create(real_kafka.bootstrap, 1), f"g-{uuid.uuid4().hex}"
    client = connect(real_kafka.url)
    with client.producer(topic, batch=SAME) as producer:
        for number in range(100):
            producer.send(b"%d" % number, properties={"region": "us" if number < 60 else "eu"})
    cursor = client.cursor(topic, group)
    with client.reader(topic, cursor, "latest", filter="region = eu") as reader:
        assert [read.offset for read in reads(reader)] == list(range(60, 100))
        stats = reader.stats()
        cursor.commit(reader.marks())
    assert (stats.messages_filtered, stats.skipped) == (60, 0)
    assert cursor.positions() == {0: 100}


def test_a_filter_cannot_be_set_for_a_cursor(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 1)
    cursor = connect(real_kafka.url).cursor(topic, f"g-{uuid.uuid4().hex}")
    with pytest.raises(RefusedError, match="the broker does not filter for it, give readers the filter"):
        cursor.set_filter("region = eu", LIMIT_S)
    with pytest.raises(RefusedError, match="the broker does not filter for it, give readers the filter"):
        cursor.filter(LIMIT_S)
    assert cursor.positions() == {}


def test_it_does_not_say_that_it_filters(real_kafka: KafkaCluster) -> None:
    with talk(real_kafka.address(1)) as connection:
        assert connection.ready is not None
        assert not connection.ready.filters
