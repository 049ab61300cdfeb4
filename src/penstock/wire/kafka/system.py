"""Kafka as a system: its name in URLs, its port, its connections and batches, and fields of a message that it lacks.

Kafka's records have no place for some fields of a message; these travel among its properties, for any client to see:

    field       property        value
    tag         penstock.tag    the tag
    keys        penstock.keys   all keys, one space between two, as RocketMQ joins them
    deliver_at  -               refused: a record can be read as soon as it is stored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import MessageError
from penstock.message import Properties
from penstock.wire.entry import Buffer
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.connection import KafkaConnection
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.kafka.stored import StoredBatch

TAG_PROPERTY = "penstock.tag"
KEYS_PROPERTY = "penstock.keys"


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

    def buffer(self, bytes_max: int) -> BatchBuffer:
        """An empty batch that may grow to `bytes_max`."""
        return BatchBuffer(bytes_max)

    def stored_batch(self, entry: Buffer, count: int) -> StoredBatch:
        """A batch that was read and judged, as one to be sent."""
        return StoredBatch(entry, count)

    def stored_entries(self) -> KafkaEntries:
        """How batches that were read are judged and opened."""
        return KafkaEntries()

    def labelled(
        self, properties: Properties | None, tag: str | None, keys: Sequence[str], deliver_at_ms: int | None
    ) -> Properties | None:
        """The properties with what Kafka has no field for among them; the same object where there is nothing to add."""
        if deliver_at_ms is not None:
            raise MessageError("deliver_at: Kafka delivers at once; leave it out, or send the message when it is due")
        if tag is not None:
            properties = _with(properties, "tag", TAG_PROPERTY, _checked_tag(tag))
        if keys:
            properties = _with(properties, "keys", KEYS_PROPERTY, _joined(keys))
        return properties


def _with(properties: Properties | None, field: str, name: str, value: str) -> Properties:
    own = properties or {}
    if not isinstance(own, Mapping):
        return own  # framing says what is wrong with it
    if name in own:
        raise MessageError(
            f"{field}: the property {name!r}, which carries it on Kafka, is set too; give one of the two"
        )
    return {**own, name: value}


def _checked_tag(tag: str) -> str:
    if not isinstance(tag, str) or not tag:
        raise MessageError(f"tag: expected a text that is not empty, found {tag!r}")
    return tag


def _joined(keys: Sequence[str]) -> str:
    if isinstance(keys, str):
        raise MessageError(f"keys: expected a list of texts, found the text {keys!r}; put it into a list")
    for key in keys:
        if not isinstance(key, str) or not key or " " in key:
            raise MessageError(f"keys: expected texts that are not empty and have no space, found {key!r}")
    return " ".join(keys)
