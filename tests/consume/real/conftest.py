"""What tests of readers on a real Kafka begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers.kafka import KafkaCluster
from tests.produce.real.conftest import Connect as Connect
from tests.produce.real.conftest import connect as connect
from tests.produce.real.conftest import proxied_kafka as proxied_kafka


@pytest.fixture(scope="session")
def cleaning_kafka(kafka_parts: None) -> Iterator[KafkaCluster]:
    """A Kafka of one node that compacts as soon as there is something to compact."""
    settings = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.0"}
    with KafkaCluster(properties=settings) as kafka:
        yield kafka
