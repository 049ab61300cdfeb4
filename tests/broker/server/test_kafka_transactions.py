"""Transactions through the Kafka door, request by request: the answers that a real Kafka gives, and what is seen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokers.kafka import KafkaCluster
from penstock.broker.server.service import ServerSettings, Service
from penstock.broker.settings import BrokerSettings
from penstock.wire.entry import Stamp
from tests.broker.server.transactions_raw import Raw
from tests.broker.server.transactions_stories import STORIES, Teller


@pytest.fixture(params=["group", "system", "always"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    settings = BrokerSettings(tmp_path / "data", fsync=request.param, topics_auto_create=False)
    with Service(settings, ServerSettings(port=0)) as service:
        yield service


def told(name: str, address: tuple[str, int]) -> list[tuple[str, Any]]:
    with Raw(address) as raw:
        tell = Teller(raw)
        STORIES[name][0](tell)
    return tell.notes


@pytest.mark.parametrize("name", STORIES)
def test_answers_are_those_of_kafka(service: Service, name: str) -> None:
    assert told(name, service.address) == STORIES[name][1]


@pytest.mark.parametrize("name", STORIES)
def test_kafka_answers_so(real_kafka: KafkaCluster, name: str) -> None:
    assert told(name, real_kafka.address(1)) == STORIES[name][1]


def test_markers_stand_in_the_segments_of_the_entries(service: Service) -> None:
    with Raw(service.address) as raw:
        tell = Teller(raw)
        topic, tid = tell.topic("topic", 1), tell.name("t")
        producer, epoch = tell.begin(tid, 5)
        for _ in range(3):
            assert raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid, 12)[0] == 0
            _, producer, epoch = raw.end(tid, producer, epoch, True, 5)
    assert len(list((service.settings.folder / "topics").glob("*/*.log"))) == 1


def test_long_lists_are_whole(service: Service) -> None:
    names = [f"t{number:03}" for number in range(450)]
    with Raw(service.address) as raw:
        for name in names:
            raw.send("InitProducerId", 1, transactional_id=name, transaction_timeout=timedelta(seconds=1))
        for _ in names:
            assert raw.receive("InitProducerId", 1).error_code == 0
        listed = raw.ask("ListTransactions", 0, state_filters=(), producer_id_filters=()).transaction_states
        assert [row.transactional_id for row in listed] == names
        topic = Teller(raw).topic("topic", 12)
        asked = [{"name": topic, "partition_indexes": tuple(range(13))}]
        (told,) = raw.ask("DescribeProducers", 0, topics=asked).topics
    assert [part.partition_index for part in told.partitions] == list(range(13))
    assert [int(part.error_code) for part in told.partitions] == [0] * 12 + [3]
