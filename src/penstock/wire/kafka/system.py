"""Kafka as a system: its name in URLs, its port, and its connections."""

from __future__ import annotations

from penstock.wire.kafka.connection import KafkaConnection


class KafkaWire:
    """The `Wire` of Kafka."""

    scheme = "kafka"
    port = 9092

    def __init__(self, software_version: str = "unknown") -> None:
        """`software_version` is told to brokers, which may log it or count by it."""
        self._software_version = software_version

    def connection(self, client_id: str, frame_bytes_max: int) -> KafkaConnection:
        """A connection that has said nothing yet."""
        return KafkaConnection(client_id, frame_bytes_max, self._software_version)
