"""Two real Kafkas with a pipeline between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from brokers.kafka import KafkaCluster
from tests.conftest import run
from tests.consume.real.conftest import cleaning_kafka as cleaning_kafka
from tests.replicate.pair import Pair

pytest.register_assert_rewrite(
    "tests.replicate.real.equality", "tests.replicate.real.raid", "tests.replicate.real.copier_process"
)


@pytest.fixture(scope="session")
def second_kafka(kafka_parts: None) -> Iterator[KafkaCluster]:
    """Another real Kafka of one node, to copy to."""
    yield from run(nodes=1)


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    """The URL of an embedded broker."""
    with penstock.embedded() as broker:
        yield broker.url


@pytest.fixture(scope="module")
def kafkas(real_kafka: KafkaCluster, second_kafka: KafkaCluster) -> Iterator[Pair]:
    """From one real Kafka to another."""
    yield from paired(real_kafka.url, second_kafka.url)


@pytest.fixture(scope="module", params=["kafka to kafka", "kafka to embedded", "embedded to kafka"])
def pair(request: pytest.FixtureRequest, real_kafka: KafkaCluster, embedded: str) -> Iterator[Pair]:
    """All pairs in which a real Kafka takes part."""
    if request.param == "kafka to embedded":
        yield from paired(real_kafka.url, embedded)
    else:
        second: KafkaCluster = request.getfixturevalue("second_kafka")
        yield from paired(real_kafka.url if request.param == "kafka to kafka" else embedded, second.url)


def paired(source: str, target: str) -> Iterator[Pair]:
    made = Pair(source, target)
    yield made
    made.close()
