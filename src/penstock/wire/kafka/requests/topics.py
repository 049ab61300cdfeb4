"""What is asked about topics: who leads their partitions, how they are set, that they be created, deleted or grown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.errors import DecodeError, PenstockError, RefusedError
from penstock.wire.kafka import schema
from penstock.wire.kafka.codes import error_of
from penstock.wire.kafka.requests.exchange import control, elements, only
from penstock.wire.kafka.versions import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, METADATA
from penstock.wire.protocol import (
    ClusterView,
    CreateTopic,
    DeleteTopic,
    Done,
    Endpoint,
    GrowTopic,
    LookUp,
    NodeId,
    PartitionView,
    ReadSettings,
    TopicSettings,
    TopicView,
)

CHOSEN_BY_CLUSTER = -1
CHOSEN_BY_CLUSTER_FROM = 4
TOPIC_STATES_FROM = 6
TOPIC_RESOURCE = 2
CLEANUP, COMPACT = "cleanup.policy", "compact"
BATCH_BYTES_MAX = "max.message.bytes"
FOR_COPIES = frozenset(
    {
        CLEANUP,
        BATCH_BYTES_MAX,
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.difference.max.ms",
        "retention.ms",
        "retention.bytes",
    }
)
"""Settings by which brokers refuse, rewrite, thin out or drop batches. Not among them: `compression.type`, since its
default keeps batches as they come, which is what a copy is to do whatever the source does."""
A_DEFAULT = 5
"""Where a value comes from: Kafka's own default, rather than the topic's or the broker's settings."""


def say_look_up(request: LookUp, version: int) -> Any:
    """Before version 4 a broker that may create topics does so whatever is asked."""
    topics = None
    if request.topics is not None:
        names = sorted(request.topics)
        topics = tuple(schema.entity(METADATA, version, "MetadataRequestTopic", name=n, topic_id=None) for n in names)
    return schema.entity(
        METADATA,
        version,
        "MetadataRequest",
        topics=topics,
        allow_auto_topic_creation=request.create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def hear_look_up(request: LookUp, answer: Any) -> ClusterView | PenstockError:
    """A partition whose leader is not among the brokers has none."""
    error = error_of(getattr(answer, "error_code", 0), "the cluster")
    if error is not None:
        return error
    nodes: dict[NodeId, Endpoint] = {
        broker.node_id: Endpoint(broker.host, broker.port) for broker in elements(answer.brokers, "brokers")
    }
    topics = {_name(topic): _topic_view(topic, nodes) for topic in elements(answer.topics, "topics")}
    controller = answer.controller_id if answer.controller_id in nodes else None
    return ClusterView(getattr(answer, "cluster_id", None), nodes, topics, controller)


def _name(topic: Any) -> str:
    name: str | None = topic.name
    if name is None:
        raise DecodeError(0, "topic name", "a string", "null")
    return name


def _topic_view(topic: Any, nodes: dict[NodeId, Endpoint]) -> TopicView:
    partitions = {
        partition.partition_index: PartitionView(
            partition.leader_id if partition.leader_id in nodes else None, getattr(partition, "leader_epoch", -1)
        )
        for partition in elements(topic.partitions, "partitions")
    }
    return TopicView(partitions, error_of(topic.error_code, f"topic {topic.name}"), getattr(topic, "topic_id", None))


def say_create(request: CreateTopic, version: int) -> Any:
    """Before version 4 the cluster does not choose numbers by itself."""
    if version < CHOSEN_BY_CLUSTER_FROM and CHOSEN_BY_CLUSTER in (request.partitions, request.replicas):
        raise RefusedError(f"topic {request.name}: this broker must be told the number of partitions and of replicas")
    configs = tuple(
        schema.entity(CREATE_TOPICS, version, "CreatableTopicConfig", name=name, value=value)
        for name, value in request.settings.items()
    )
    topic = schema.entity(
        CREATE_TOPICS,
        version,
        "CreatableTopic",
        name=request.name,
        num_partitions=request.partitions,
        replication_factor=request.replicas,
        assignments=(),
        configs=configs,
    )
    timeout = timedelta(milliseconds=request.timeout_ms)
    return schema.entity(
        CREATE_TOPICS, version, "CreateTopicsRequest", topics=(topic,), timeout=timeout, validate_only=False
    )


def hear_create(request: CreateTopic, answer: Any) -> Done | PenstockError:
    """Done, or why not."""
    return _outcome(request.name, only(answer.topics, "topics"))


def say_delete(request: DeleteTopic, version: int) -> Any:
    """From version 6 on topics are named by structures."""
    topics: tuple[Any, ...] = ()
    if version >= TOPIC_STATES_FROM:
        topics = (schema.entity(DELETE_TOPICS, version, "DeleteTopicState", name=request.name, topic_id=None),)
    timeout = timedelta(milliseconds=request.timeout_ms)
    return schema.entity(
        DELETE_TOPICS, version, "DeleteTopicsRequest", topics=topics, topic_names=(request.name,), timeout=timeout
    )


def hear_delete(request: DeleteTopic, answer: Any) -> Done | PenstockError:
    """Done, or why not."""
    return _outcome(request.name, only(answer.responses, "responses"))


def say_grow(request: GrowTopic, version: int) -> Any:
    """The cluster chooses where the new partitions go."""
    topic = schema.entity(
        CREATE_PARTITIONS,
        version,
        "CreatePartitionsTopic",
        name=request.name,
        count=request.partitions,
        assignments=None,
    )
    timeout = timedelta(milliseconds=request.timeout_ms)
    return schema.entity(
        CREATE_PARTITIONS, version, "CreatePartitionsRequest", topics=(topic,), timeout=timeout, validate_only=False
    )


def hear_grow(request: GrowTopic, answer: Any) -> Done | PenstockError:
    """Done, or why not."""
    return _outcome(request.name, only(answer.results, "results"))


def say_read(request: ReadSettings, version: int) -> Any:
    """All settings of one topic."""
    resource = schema.entity(
        DESCRIBE_CONFIGS,
        version,
        "DescribeConfigsResource",
        resource_type=TOPIC_RESOURCE,
        resource_name=request.topic,
        configuration_keys=None,
    )
    return schema.entity(DESCRIBE_CONFIGS, version, "DescribeConfigsRequest", resources=(resource,))


def hear_read(request: ReadSettings, answer: Any) -> TopicSettings | PenstockError:
    """The settings, or why they cannot be told."""
    result = only(answer.results, "results")
    if result.resource_name != request.topic:
        raise DecodeError(0, "topic name", request.topic, result.resource_name)
    error = error_of(result.error_code, f"topic {request.topic}", result.error_message)
    if error is not None:
        return error
    values = {setting.name: setting.value for setting in elements(result.configs, "settings")}
    own = {
        setting.name: setting.value
        for setting in result.configs
        if setting.name in FOR_COPIES and setting.value is not None and setting.config_source != A_DEFAULT
    }
    largest = values.get(BATCH_BYTES_MAX)
    bytes_max = int(largest) if largest is not None and largest.isdecimal() else None
    return TopicSettings(values, COMPACT in (values.get(CLEANUP) or ""), own, bytes_max)


def _outcome(name: str, result: Any) -> Done | PenstockError:
    if result.name != name:
        raise DecodeError(0, "topic name", name, result.name)
    return error_of(result.error_code, f"topic {name}", getattr(result, "error_message", None)) or Done()


LOOK_UP = control(METADATA, say_look_up, hear_look_up)
CREATE = control(CREATE_TOPICS, say_create, hear_create)
DELETE = control(DELETE_TOPICS, say_delete, hear_delete)
GROW = control(CREATE_PARTITIONS, say_grow, hear_grow)
READ_SETTINGS = control(DESCRIBE_CONFIGS, say_read, hear_read)
