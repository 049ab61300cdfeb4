"""Both brokers, with the settings that let a test see in a second what takes minutes by default.

With PENSTOCK_COMPAT_AGAINST=kafka a second real Kafka takes the place of `penstock serve`: a script that tells
something else there tells of chance, and must be mended before it can judge anybody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker
from tests.compat import raw
from tests.compat.sides import KAFKA, PENSTOCK, Broker, Sides

# Quick: who is silent is noticed within a second or two, not after a minute.
KAFKA_QUICK = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "3000",
    "log.retention.check.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}

PENSTOCK_QUICK = (
    *("--http-port", "none", "--set", "retention_check_ms=500", "--set", "group_session_min_ms=1000"),
    *("--set", "group_beat_interval_ms=300", "--set", "group_beat_session_ms=3000"),
)


@pytest.fixture(scope="session")
def quick_kafka(kafka_parts: None) -> Iterator[KafkaCluster]:
    """A real Kafka of one node that notices quickly."""
    with KafkaCluster(properties=KAFKA_QUICK) as cluster:
        raw.warm(cluster.address(1))
        yield cluster


@pytest.fixture(scope="session")
def served(kafka_parts: None) -> Iterator[PenstockBroker | KafkaCluster]:
    """`penstock serve` with the same settings."""
    if os.environ.get("PENSTOCK_COMPAT_AGAINST") == "kafka":
        with KafkaCluster(properties=KAFKA_QUICK) as cluster:
            raw.warm(cluster.address(1))
            yield cluster
    else:
        with PenstockBroker(PENSTOCK_QUICK) as broker:
            yield broker


@pytest.fixture(scope="session")
def both(quick_kafka: KafkaCluster, served: PenstockBroker | KafkaCluster) -> dict[str, Broker]:
    return {KAFKA: quick_kafka, PENSTOCK: served}


@pytest.fixture
def sides(both: dict[str, Broker], request: pytest.FixtureRequest) -> Sides:
    """Both brokers for this test."""
    return Sides(both, request.node.name)
