"""The server properties of a Kafka node that is a broker and a controller at once."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokers.ports import LOOPBACK

# Small and quick: a cluster for tests has few clients, few topics, and groups that must not wait to be formed.
DEFAULTS = {
    "auto.create.topics.enable": "true",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.segment.delete.delay.ms": "1000",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "process.roles": "broker,controller",
    "share.coordinator.state.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Where a node listens."""

    broker: int
    controller: int


def node_properties(node: int, ports: Sequence[NodePorts], data: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The properties of one node out of as many as there are pairs of ports; `extra` wins over everything."""
    mine = ports[node - 1]
    copies = str(min(3, len(ports)))
    in_sync_min = str(min(2, len(ports)))
    return {
        **DEFAULTS,
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{i}@{LOOPBACK}:{each.controller}" for i, each in enumerate(ports, 1)),
        "listeners": f"BROKER://{LOOPBACK}:{mine.broker},CONTROLLER://{LOOPBACK}:{mine.controller}",
        "advertised.listeners": f"BROKER://{LOOPBACK}:{mine.broker}",
        "log.dirs": str(data),
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync_min,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        **extra,
    }


def render(properties: Mapping[str, str]) -> str:
    """The text of a properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them; never with a leading dash, which its own tools would take for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
