"""The Kafka door: what all its connections share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from penstock.broker.server.connection import Connection
from penstock.broker.server.kafka.dispatch import KafkaSession
from penstock.broker.server.kafka.fetch_parts import SessionRoom
from penstock.broker.server.kafka.metadata import TopicBytes
from penstock.broker.server.loop import Loop, PlainDoor

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topics import Topic

IDS_MAX = 10_000
WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not bound to


class KafkaDoor(PlainDoor):
    """Kafka's protocol on one port. Runs on: the loop thread."""

    def __init__(self, broker: Broker, loop: Loop, advertised: tuple[str, int] | None = None) -> None:
        self.broker = broker
        self.loop = loop
        self.limits = loop.limits
        self.node_id = broker.settings.node_id
        self.cluster_id = broker.cluster_id
        self.topic_bytes = TopicBytes(self.node_id)
        self.session_room = SessionRoom()
        self._ids: dict[bytes, UUID] = {}
        self._advertised = advertised
        self._bound = ("", 0)

    def __repr__(self) -> str:
        return f"<KafkaDoor at {self._bound}>"

    def open(self, host: str, port: int) -> int:
        """Take connections; the port."""
        port = self.loop.listen(self, host, port)
        self._bound = (host, port)
        return port

    def session(self, connection: Connection) -> KafkaSession:
        """Its side of a new connection."""
        return KafkaSession(self, connection)

    def topic_by_id(self, raw: bytes) -> Topic | None:
        """The topic with this id, as it stands in requests."""
        found = self._ids.get(raw)
        if found is None:  # making one takes longer than all the rest
            if len(self._ids) >= IDS_MAX:
                self._ids.clear()
            found = self._ids[raw] = UUID(bytes=raw)
        return self.broker.topics.by_id(found)

    def address(self, connection: Connection) -> tuple[str, int]:
        """Where this client finds the broker: as told to us, else as bound, else as it found us."""
        if self._advertised is not None:
            return self._advertised
        host, port = self._bound
        return (connection.transport.local_host(), port) if host in WILDCARDS else (host, port)
