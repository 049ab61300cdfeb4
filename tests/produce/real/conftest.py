"""Clients of ours for tests with brokers that nobody here wrote."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from brokers.kafka import KafkaCluster
from brokers.ports import LOOPBACK, free_ports
from tests.produce.real.proxy import Proxy

Connect = Callable[..., penstock.Client]
numbers = itertools.count()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`penstock.connect` with an id that no other test has; what is left open is closed without waiting."""
    clients: list[penstock.Client] = []

    def connect(url: str, **options: Any) -> penstock.Client:
        clients.append(penstock.connect(url, **{"client_id": f"real-{next(numbers)}", **options}))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


@pytest.fixture(scope="session")
def proxied_kafka(kafka_parts: None) -> Iterator[tuple[KafkaCluster, Proxy]]:
    """A Kafka of one node that tells its clients to come through a proxy, and makes no topic by itself."""
    (port,) = free_ports(1)
    with Proxy((LOOPBACK, port)) as proxy:
        settings = {
            "advertised.listeners": f"BROKER://{LOOPBACK}:{proxy.port}",
            "auto.create.topics.enable": "false",
        }
        with KafkaCluster(port=port, properties=settings) as kafka:
            yield kafka, proxy
