"""`kill -9` of the replicator, of its source and of its target under load: the copy is whole, nothing is twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker
from tests.replicate.real.raid import Raid, Victim

ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
EVERY: list[tuple[Victim, str]] = [
    ("copier", ONCE),
    ("copier", AT_LEAST_ONCE),
    ("source", ONCE),
    ("source", AT_LEAST_ONCE),
    ("target", ONCE),
    ("target", AT_LEAST_ONCE),
]
SOME: dict[tuple[Victim, str], int] = {
    ("copier", ONCE): 3,
    ("copier", AT_LEAST_ONCE): 2,
    ("source", ONCE): 2,
    ("target", ONCE): 2,
    ("zombie", ONCE): 1,
}
ON_KAFKA: dict[tuple[Victim, str], int] = {("copier", ONCE): 2, ("target", ONCE): 1}
"""How often; a real Kafka takes some seconds to come back."""
MANY = 50

Penstocks = tuple[PenstockBroker, PenstockBroker]


@pytest.fixture
def penstocks(tmp_path: Path) -> Iterator[Penstocks]:
    """Two embedded brokers, each a process of its own."""
    options = ["--http-port", "none"]
    with (
        PenstockBroker(options, data=tmp_path / "source") as source,
        PenstockBroker(options, data=tmp_path / "target") as target,
    ):
        yield source, target


@pytest.mark.parametrize(("victim", "delivery"), SOME)
def test_embedded_struck_a_few_times(penstocks: Penstocks, tmp_path: Path, victim: Victim, delivery: str) -> None:
    Raid(*penstocks, victim, delivery, SOME[victim, delivery], tmp_path).run()


@pytest.mark.parametrize(("victim", "delivery"), ON_KAFKA)
def test_kafka_struck_a_few_times(
    real_kafka: KafkaCluster, second_kafka: KafkaCluster, tmp_path: Path, victim: Victim, delivery: str
) -> None:
    Raid(real_kafka, second_kafka, victim, delivery, ON_KAFKA[victim, delivery], tmp_path).run()


def test_a_copier_that_enlists_partitions_itself_struck_a_few_times(
    real_kafka: KafkaCluster, second_kafka: KafkaCluster, tmp_path: Path
) -> None:
    Raid(real_kafka, second_kafka, "copier", ONCE, 2, tmp_path, old_way=True).run()


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("victim", "delivery"), [*EVERY, ("zombie", ONCE)])
def test_embedded_struck_many_times(penstocks: Penstocks, tmp_path: Path, victim: Victim, delivery: str) -> None:
    Raid(*penstocks, victim, delivery, MANY, tmp_path).run()


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("victim", "delivery"), [*EVERY, ("zombie", ONCE)])
def test_kafka_struck_many_times(
    real_kafka: KafkaCluster, second_kafka: KafkaCluster, tmp_path: Path, victim: Victim, delivery: str
) -> None:
    Raid(real_kafka, second_kafka, victim, delivery, MANY, tmp_path).run()


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("delivery", [ONCE, AT_LEAST_ONCE])
def test_nodes_of_a_cluster_struck_many_times(real_kafka_cluster: KafkaCluster, tmp_path: Path, delivery: str) -> None:
    impatient = {"request_timeout_ms": 1500}
    Raid(real_kafka_cluster, real_kafka_cluster, "node", delivery, MANY, tmp_path, impatient).run()


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", ["copier", "target", "zombie"])
def test_a_copier_that_enlists_partitions_itself_struck_many_times(
    real_kafka: KafkaCluster, second_kafka: KafkaCluster, tmp_path: Path, victim: Victim
) -> None:
    Raid(real_kafka, second_kafka, victim, ONCE, MANY // 2, tmp_path, old_way=True).run()
