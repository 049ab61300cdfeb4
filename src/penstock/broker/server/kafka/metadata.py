"""Who serves what: Metadata, DescribeCluster, DescribeTopicPartitions. There is one broker, and it leads everything.

A topic's part of an answer is written once for each version and kept, as long as the topic stays as it is: clients of
many topics ask again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from penstock.broker.refusals import Refused
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.codes import NONE, NUMBERS, code_of
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.outcomes import Outcomes
from penstock.broker.topics import Topic
from penstock.wire.kafka.writer import writer_of

LEADER_EPOCH: Final = 0
NOT_TOLD: Final = -(1 << 31)
TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""Everything that can be done to a topic: read, write, create, delete, alter, describe, and its settings."""
CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""The same for the cluster: create, alter, describe, cluster action, settings, idempotent write."""
BROKERS, CONTROLLERS = 1, 2
KEPT_BYTES_MAX: Final = 16 << 20
PARTITIONS_PER_ANSWER: Final = 2000


class TopicBytes:
    """Topics as they stand in answers, kept. Runs on: the loop thread."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._kept: dict[tuple[UUID, int, int, bool], bytes] = {}
        self._size = 0

    def of(self, topic: Topic, context: Context, operations: bool) -> bytes:
        """A topic's part of an answer of Metadata."""
        key = (topic.id, topic.partitions, context.version, operations)
        found = self._kept.get(key)
        return found if found is not None else self._keep(key, self._written(topic, context, operations))

    def _keep(self, key: tuple[UUID, int, int, bool], written: bytes) -> bytes:
        if self._size + len(written) > KEPT_BYTES_MAX:
            self._kept.clear()
            self._size = 0
        self._kept[key] = written
        self._size += len(written)
        return written

    def _written(self, topic: Topic, context: Context, operations: bool) -> bytes:
        out = bytearray()
        kind = codec.part_of(context.api, context.version, "response", "MetadataResponseTopic")
        writer_of(kind)(  # type: ignore[arg-type]
            out,
            {
                "error_code": NONE,
                "name": topic.name,
                "topic_id": topic.id,
                "partitions": [partition_row(self._node_id, number) for number in range(topic.partitions)],
                "topic_authorized_operations": TOPIC_OPERATIONS if operations else NOT_TOLD,
            },
        )
        return bytes(out)


def partition_row(node_id: int, number: int) -> dict[str, Any]:
    """A partition as Metadata and DescribeTopicPartitions tell of it."""
    return {
        "error_code": NONE,
        "partition_index": number,
        "leader_id": node_id,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": (node_id,),
        "isr_nodes": (node_id,),
    }


def metadata(request: Any, context: Context) -> None:
    """The broker, and the topics asked for, created if they are not there and that is wanted."""
    topics = context.broker.topics
    operations = getattr(request, "include_topic_authorized_operations", False)
    kept = context.door.topic_bytes
    if request.topics is None or (context.version == 0 and not request.topics):
        _answer(request, context, [kept.of(topic, context, operations) for topic in topics])
        return
    outcomes: Outcomes[Any] = Outcomes(len(request.topics), lambda rows: _answer(request, context, rows))

    def tell(index: int, name: str | None, found: Topic | Exception) -> None:
        told = kept.of(found, context, operations) if isinstance(found, Topic) else _unknown(code_of(found), name)
        outcomes.set(index, told)

    creates = getattr(request, "allow_auto_topic_creation", True)
    for index, asked in enumerate(request.topics):
        topic_id = getattr(asked, "topic_id", None)
        if asked.name is None:
            found = topics.by_id(topic_id) if topic_id is not None else None
            if found is not None:
                tell(index, None, found)
            else:
                outcomes.set(index, _unknown(NUMBERS["UNKNOWN_TOPIC_ID"], None, topic_id))
            continue
        try:
            if creates:
                name = asked.name
                done = lambda found, index=index, name=name: tell(index, name, found)  # noqa: E731
                topics.ensure(name, now_ms=context.now_ms, done=done)
            else:
                tell(index, asked.name, topics.get(asked.name))
        except Refused as error:
            tell(index, asked.name, error)
    outcomes.seal()


def _unknown(code: int, name: str | None, topic_id: UUID | None = None) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": topic_id}


def _answer(request: Any, context: Context, topics: Sequence[Any]) -> None:
    host, port = context.address
    operations = getattr(request, "include_cluster_authorized_operations", False)
    context.answer(
        brokers=[{"node_id": context.door.node_id, "host": host, "port": port}],
        cluster_id=context.door.cluster_id,
        controller_id=context.door.node_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if operations else NOT_TOLD,
    )


def describe_cluster(request: Any, context: Context) -> None:
    """The broker, for administration tools."""
    endpoint_type = getattr(request, "endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        is_known = endpoint_type == CONTROLLERS
        code = NUMBERS["MISMATCHED_ENDPOINT_TYPE" if is_known else "UNSUPPORTED_ENDPOINT_TYPE"]
        context.answer(error_code=code, endpoint_type=endpoint_type, error_message="brokers can be asked for here")
        return
    host, port = context.address
    operations = request.include_cluster_authorized_operations
    context.answer(
        cluster_id=context.door.cluster_id,
        controller_id=context.door.node_id,
        brokers=[{"broker_id": context.door.node_id, "host": host, "port": port}],
        cluster_authorized_operations=CLUSTER_OPERATIONS if operations else NOT_TOLD,
    )


def describe_topic_partitions(request: Any, context: Context) -> None:
    """Topics by name, so many partitions at a time, and where to go on."""
    topics, cursor = context.broker.topics, request.cursor
    names = {asked.name for asked in request.topics} or {topic.name for topic in topics}
    first = ("", 0) if cursor is None else (cursor.topic_name, max(cursor.partition_index, 0))
    left = max(1, min(request.response_partition_limit, PARTITIONS_PER_ANSWER))
    rows: list[dict[str, Any]] = []
    for name in sorted(name for name in names if name >= first[0]):
        start = first[1] if name == first[0] else 0
        if not left:
            context.answer(topics=rows, next_cursor={"topic_name": name, "partition_index": start})
            return
        try:
            topic = topics.get(name)
        except Refused as error:
            rows.append({"error_code": code_of(error), "name": name})
            continue
        end = min(topic.partitions, start + left)
        rows.append(_described(topic, context.door.node_id, start, end))
        left -= max(end - start, 0)
        if end < topic.partitions:
            context.answer(topics=rows, next_cursor={"topic_name": name, "partition_index": end})
            return
    context.answer(topics=rows)


def _described(topic: Topic, node_id: int, start: int, end: int) -> dict[str, Any]:
    none: dict[str, Any] = {"eligible_leader_replicas": (), "last_known_elr": ()}
    return {
        "error_code": NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "partitions": [partition_row(node_id, number) | none for number in range(start, end)],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
