from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.server.service import Service
from tests.broker.batches import batch
from tests.broker.server.kafka.desk import APIS
from tests.broker.server.kafka.live import LiveClient


def versions(name: str) -> list[int]:
    return list(range(APIS[name].oldest, APIS[name].newest + 1))


def create(client: LiveClient, name: str, partitions: int = 1, version: int = 7, **configs: str) -> Any:
    row = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    (told,) = client.ask("CreateTopics", version, topics=[row]).topics
    return told


def produce(client: LiveClient, topic: str, *entries: bytes, number: int = 0) -> None:
    for entry in entries:
        data = [{"name": topic, "partition_data": [{"index": number, "records": entry}]}]
        told = client.ask("Produce", 9, acks=-1, timeout=1000, topic_data=data)
        assert told.responses[0].partition_responses[0].error_code.value == 0


# Metadata


@pytest.mark.parametrize("version", versions("Metadata"))
def test_metadata_tells_of_the_one_broker_and_its_topics(client: LiveClient, service: Service, version: int) -> None:
    create(client, "orders", 3)
    told = client.ask("Metadata", version, topics=[{"name": "orders"}])
    (broker,) = told.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, *service.address)
    (topic,) = told.topics
    assert (topic.error_code.value, topic.name) == (0, "orders")
    assert sorted(part.partition_index for part in topic.partitions) == [0, 1, 2]
    assert {part.leader_id for part in topic.partitions} == {1}
    assert topic.partitions[0].isr_nodes == (1,)
    if version >= 10:
        assert topic.topic_id is not None


@pytest.mark.parametrize("version", versions("Metadata"))
def test_all_topics_or_none_are_asked_for_in_each_versions_way(client: LiveClient, version: int) -> None:
    for name in ("a", "b"):
        create(client, name)
    everything = client.ask("Metadata", version, topics=() if version == 0 else None)
    assert {topic.name for topic in everything.topics} == {"a", "b"}
    if version > 0:
        assert client.ask("Metadata", version, topics=()).topics == ()


def test_unknown_topics_are_created_if_that_is_wanted(client: LiveClient) -> None:
    told = client.ask("Metadata", 12, topics=[{"name": "new"}], allow_auto_topic_creation=False)
    assert told.topics[0].error_code.value == 3
    told = client.ask("Metadata", 12, topics=[{"name": "new"}, {"name": "new"}, {"name": "bad name"}])
    assert [(topic.name, topic.error_code.value) for topic in told.topics] == [("new", 0), ("new", 0), ("bad name", 17)]
    by_id = client.ask("Metadata", 12, topics=[{"name": None, "topic_id": told.topics[0].topic_id}])
    assert by_id.topics[0].name == "new"


def test_a_broker_that_creates_nothing_says_so(serve: Callable[..., Service]) -> None:
    with LiveClient(serve(topics_auto_create=False).address) as client:
        assert client.ask("Metadata", 4, topics=[{"name": "new"}]).topics[0].error_code.value == 3


def test_a_topic_id_that_nobody_has(client: LiveClient) -> None:
    from uuid import UUID

    told = client.ask("Metadata", 12, topics=[{"name": None, "topic_id": UUID(int=5)}])
    assert told.topics[0].error_code.value == 100


def test_what_is_kept_of_a_topic_follows_its_changes(client: LiveClient) -> None:
    create(client, "orders")
    first = client.ask("Metadata", 12, topics=[{"name": "orders"}]).topics[0]
    client.ask("CreatePartitions", 3, topics=[{"name": "orders", "count": 4, "assignments": None}], timeout=1000)
    grown = client.ask("Metadata", 12, topics=[{"name": "orders"}]).topics[0]
    assert (len(first.partitions), len(grown.partitions)) == (1, 4)
    client.ask("DeleteTopics", 5, topic_names=["orders"], timeout=1000)
    create(client, "orders", 2)
    anew = client.ask("Metadata", 12, topics=[{"name": "orders"}]).topics[0]
    assert len(anew.partitions) == 2
    assert anew.topic_id != first.topic_id


@pytest.mark.parametrize("version", versions("DescribeCluster"))
def test_the_cluster_is_described(client: LiveClient, service: Service, version: int) -> None:
    told = client.ask("DescribeCluster", version, include_cluster_authorized_operations=True)
    assert (told.error_code.value, told.controller_id) == (0, 1)
    assert [(each.broker_id, each.host, each.port) for each in told.brokers] == [(1, *service.address)]
    assert told.cluster_authorized_operations > 0
    assert told.cluster_id
    if version >= 1:
        assert client.ask("DescribeCluster", version, endpoint_type=2).error_code.value == 114


def test_topics_are_described_so_many_partitions_at_a_time(client: LiveClient) -> None:
    for name, count in (("a", 3), ("b", 5), ("c", 1)):
        create(client, name, count)
    found: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        told = client.ask("DescribeTopicPartitions", 0, topics=(), response_partition_limit=2, cursor=cursor)
        found += [(topic.name, part.partition_index) for topic in told.topics for part in topic.partitions]
        if told.next_cursor is None:
            break
        cursor = {"topic_name": told.next_cursor.topic_name, "partition_index": told.next_cursor.partition_index}
    assert found == [("a", 0), ("a", 1), ("a", 2), *(("b", number) for number in range(5)), ("c", 0)]
    told = client.ask("DescribeTopicPartitions", 0, topics=[{"name": "b"}, {"name": "x"}], response_partition_limit=100)
    assert [(topic.name, topic.error_code.value) for topic in told.topics] == [("b", 0), ("x", 3)]


# Topics


@pytest.mark.parametrize("version", versions("CreateTopics"))
def test_topics_are_created_grown_and_deleted(client: LiveClient, version: int) -> None:
    told = create(client, "orders", 2, version, retention_ms="5000")
    assert (told.name, told.error_code.value) == ("orders", 0)
    if version >= 5:
        assert (told.num_partitions, told.replication_factor) == (2, 1)
        assert {row.name: row.value for row in told.configs}["retention.ms"] == "5000"
    assert create(client, "orders", 2, version).error_code.value == 36


def test_what_cannot_be_created_is_told_and_the_rest_is(client: LiveClient) -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "num_partitions": 1, "replication_factor": 1} | more

    unassigned = {"num_partitions": -1, "replication_factor": -1}

    def assigned(*brokers: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"partition_index": number, "broker_ids": ids} for number, ids in enumerate(brokers)]

    topics = [
        row("good"),
        row("usual", **unassigned),
        row("twice"),
        row("twice"),
        row("bad/name"),
        row("none", num_partitions=0),
        row("replicas", replication_factor=3),
        row("assigned", **unassigned, assignments=assigned((1,), (1,))),
        row("elsewhere", **unassigned, assignments=assigned((2,))),
        row("both", assignments=assigned((1,))),
        row("unknown", configs=[{"name": "no.such", "value": "1"}]),
        row("wrong", configs=[{"name": "retention.ms", "value": "soon"}]),
        row("compacted", configs=[{"name": "cleanup.policy", "value": "compact"}]),
        row("fixed", configs=[{"name": "min.insync.replicas", "value": "2"}]),
        row("kept", configs=[{"name": "compression.type", "value": "gzip"}]),
        row("badly kept", configs=[{"name": "compression.type", "value": "zip"}]),
    ]
    told = client.ask("CreateTopics", 7, topics=topics, timeout=1000)
    codes = [(each.name, each.error_code.value) for each in told.topics]
    assert codes == [
        *(("good", 0), ("usual", 0), ("twice", 42), ("bad/name", 17), ("none", 37), ("replicas", 38)),
        *(("assigned", 0), ("elsewhere", 39), ("both", 42), ("unknown", 40), ("wrong", 40), ("compacted", 40)),
        *(("fixed", 40), ("kept", 0), ("badly kept", 40)),
    ]
    assert all(each.error_message for each in told.topics if each.error_code.value)
    names = {topic.name for topic in client.ask("Metadata", 12, topics=None).topics}
    assert names == {"good", "usual", "assigned", "kept"}


def test_what_is_only_to_be_checked_is_not_done(client: LiveClient) -> None:
    row = {"name": "orders", "num_partitions": 3, "replication_factor": 1}
    (told,) = client.ask("CreateTopics", 7, topics=[row], validate_only=True).topics
    assert (told.error_code.value, told.num_partitions) == (0, 3)
    assert client.ask("Metadata", 12, topics=None).topics == ()
    create(client, "orders")
    grow = [{"name": "orders", "count": 3, "assignments": None}]
    assert client.ask("CreatePartitions", 3, topics=grow, validate_only=True).results[0].error_code.value == 0
    assert len(client.ask("Metadata", 12, topics=None).topics[0].partitions) == 1


@pytest.mark.parametrize("version", versions("CreatePartitions"))
def test_topics_grow_but_do_not_shrink(client: LiveClient, version: int) -> None:
    for name in ("a", "b", "c"):
        create(client, name, 2)

    def row(name: str, count: int, *brokers: int) -> dict[str, Any]:
        return {"name": name, "count": count, "assignments": [{"broker_ids": (each,)} for each in brokers] or None}

    topics = [row("a", 3), row("b", 2), row("c", 4, 1), row("x", 2)]
    told = client.ask("CreatePartitions", version, topics=topics, timeout=1000)
    assert [each.error_code.value for each in told.results] == [0, 37, 39, 3]
    told = client.ask("CreatePartitions", version, topics=[row("c", 4, 1, 1)], timeout=1000)
    assert told.results[0].error_code.value == 0


@pytest.mark.parametrize("version", versions("DeleteTopics"))
def test_topics_are_deleted(client: LiveClient, version: int) -> None:
    create(client, "a")
    asked: dict[str, Any] = {"topic_names": ["a", "x"]}
    if version >= 6:
        asked = {"topics": [{"name": "a", "topic_id": None}, {"name": "x", "topic_id": None}]}
    told = client.ask("DeleteTopics", version, timeout=1000, **asked)
    assert [(each.name, each.error_code.value) for each in told.responses] == [("a", 0), ("x", 3)]
    assert client.ask("Metadata", 12, topics=None).topics == ()


def test_topics_are_deleted_by_their_id(client: LiveClient) -> None:
    from uuid import UUID

    created = create(client, "a")
    asked = [{"name": None, "topic_id": created.topic_id}, {"name": None, "topic_id": UUID(int=9)}]
    told = client.ask("DeleteTopics", 6, timeout=1000, topics=asked)
    assert [each.error_code.value for each in told.responses] == [0, 100]
    assert told.responses[0].name == "a"


@pytest.mark.parametrize("version", versions("DeleteRecords"))
def test_logs_are_cut(client: LiveClient, version: int) -> None:
    create(client, "orders", 2)
    produce(client, "orders", batch(5), batch(5))
    rows = [{"partition_index": number, "offset": offset} for number, offset in ((0, 7), (1, 3), (2, 0))]
    told = client.ask("DeleteRecords", version, topics=[{"name": "orders", "partitions": rows}], timeout=1000)
    (topic,) = told.topics
    found = [(each.partition_index, each.low_watermark, each.error_code.value) for each in topic.partitions]
    assert found == [(0, 7, 0), (1, -1, 1), (2, -1, 3)]
    everything = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": -1}]}]
    told = client.ask("DeleteRecords", version, topics=everything, timeout=1000)
    assert told.topics[0].partitions[0].low_watermark == 10


# What tools ask beside


@pytest.mark.parametrize("version", versions("ElectLeaders"))
def test_nobody_needs_to_be_elected(client: LiveClient, version: int) -> None:
    create(client, "orders", 2)
    asked = [{"topic": "orders", "partitions": (0, 9)}]
    told = client.ask("ElectLeaders", version, topic_partitions=asked, timeout=1000)
    (topic,) = told.replica_election_results
    assert [each.error_code.value for each in topic.partition_result] == [84, 3]


def test_nothing_is_reassigned(client: LiveClient) -> None:
    told = client.ask("ListPartitionReassignments", 0, topics=None, timeout=1000)
    assert (told.error_code.value, told.topics) == (0, ())


@pytest.mark.parametrize("version", versions("DescribeLogDirs"))
def test_the_size_of_partitions_is_told(client: LiveClient, service: Service, version: int) -> None:
    create(client, "orders", 250)
    produce(client, "orders", batch(5, size=5000))
    told = client.ask("DescribeLogDirs", version, topics=None)
    (folder,) = told.results
    assert folder.log_dir == str(service.settings.folder)
    sizes = {part.partition_index: part.partition_size for part in folder.topics[0].partitions}
    assert len(sizes) == 250
    assert sizes[0] >= 5000
    some = client.ask("DescribeLogDirs", version, topics=[{"topic": "orders", "partitions": (0, 999)}])
    assert [part.partition_index for part in some.results[0].topics[0].partitions] == [0]
    if version >= 4:
        assert folder.total_bytes >= folder.usable_bytes > 0


# Settings


TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(client: LiveClient, kind: int, name: str, version: int = 4, **more: Any) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None} | more
    told = client.ask("DescribeConfigs", version, resources=[resource], include_synonyms=True)
    (result,) = told.results
    assert result.error_code.value == 0, result.error_message
    return {row.name: row for row in result.configs}


def alter(client: LiveClient, kind: int, name: str, *configs: tuple[str, int, str | None], **more: Any) -> int:
    rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    (told,) = client.ask("IncrementalAlterConfigs", 1, resources=[resource], **more).responses
    return int(told.error_code.value)


@pytest.mark.parametrize("version", versions("DescribeConfigs"))
def test_a_topics_settings_are_described(client: LiveClient, version: int) -> None:
    create(client, "orders", retention_ms="5000")
    told = describe(client, TOPIC, "orders", version)
    assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("5000", 1)
    assert [row.value for row in told["retention.ms"].synonyms] == ["5000", "604800000"]
    assert (told["retention.bytes"].value, told["retention.bytes"].config_source) == ("-1", 5)
    assert told["cleanup.policy"].value == "delete"
    assert told["message.timestamp.type"].value == "CreateTime"
    assert told["message.timestamp.before.max.ms"].value == "9223372036854775807"
    assert (told["min.insync.replicas"].value, told["min.insync.replicas"].read_only) == ("1", True)
    some = describe(client, TOPIC, "orders", version, configuration_keys=("retention.ms", "no.such"))
    assert list(some) == ["retention.ms"]


def test_documentation_is_told_to_who_asks(client: LiveClient) -> None:
    create(client, "orders")
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": ("retention.ms",)}
    (told,) = client.ask("DescribeConfigs", 4, resources=[resource], include_documentation=True).results
    assert told.configs[0].documentation
    assert told.configs[0].synonyms == ()


def test_the_settings_of_many_topics_are_described_in_one_answer(client: LiveClient) -> None:
    names = [f"topic-{number}" for number in range(50)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    client.ask("CreateTopics", 7, topics=topics, timeout=1000)
    resources = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": ("retention.ms",)} for name in names
    ]
    told = client.ask("DescribeConfigs", 4, resources=resources)
    assert [(each.resource_name, each.configs[0].value) for each in told.results] == [
        (name, "604800000") for name in names
    ]
    rows = [{"partition_index": 0, "timestamp": -1}]
    listed = client.ask(
        "ListOffsets", 8, replica_id=-1, topics=[{"name": name, "partitions": rows * 3} for name in names]
    )
    assert [(each.name, [part.offset for part in each.partitions]) for each in listed.topics] == [
        (name, [0, 0, 0]) for name in names
    ]


def test_settings_are_changed_one_by_one(client: LiveClient) -> None:
    create(client, "orders", retention_ms="5000", segment_bytes="100000")
    changes = (
        *(("retention.ms", DELETE, None), ("retention.bytes", SET, "7000")),
        *(("message.timestamp.type", SET, "LogAppendTime"), ("cleanup.policy", APPEND, "delete")),
    )
    assert alter(client, TOPIC, "orders", *changes, validate_only=True) == 0
    assert describe(client, TOPIC, "orders")["retention.ms"].value == "5000"
    assert alter(client, TOPIC, "orders", *changes) == 0
    told = describe(client, TOPIC, "orders")
    assert told["retention.ms"].value == "604800000"
    assert told["retention.bytes"].value == "7000"
    assert told["message.timestamp.type"].value == "LogAppendTime"
    assert told["segment.bytes"].value == "100000"
    assert alter(client, TOPIC, "orders", ("retention.bytes", SET, "-1")) == 0
    assert describe(client, TOPIC, "orders")["retention.bytes"].value == "-1"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "soon"), 40),
        (("no.such", SET, "1"), 40),
        (("no.such", DELETE, None), 40),
        (("retention.ms", SET, None), 40),
        (("retention.ms", APPEND, "5"), 40),
        (("cleanup.policy", SUBTRACT, "delete"), 40),
        (("min.insync.replicas", SET, "2"), 40),
        (("min.insync.replicas", SET, "1"), 0),
        (("preallocate", SET, "true"), 0),
        (("preallocate", SET, "maybe"), 40),
        (("preallocate", DELETE, None), 0),
        (("segment.jitter.ms", SET, "-5"), 40),
        (("min.cleanable.dirty.ratio", SET, "0.9"), 0),
        (("min.cleanable.dirty.ratio", SET, "2"), 40),
        (("flush.messages", SET, "1"), 0),
        (("flush.messages", SET, "0"), 40),
        (("retention.bytes", SET, "-2"), 0),
        (("retention.ms", SET, "-2"), 40),
    ],
)
def test_changes_that_cannot_be_are_refused(client: LiveClient, change: tuple[str, int, str | None], code: int) -> None:
    create(client, "orders")
    assert alter(client, TOPIC, "orders", change) == code


def test_what_has_no_effect_is_remembered_all_the_same(client: LiveClient) -> None:
    create(client, "orders", compression_type="zstd", preallocate="TRUE")
    told = describe(client, TOPIC, "orders")
    assert (told["compression.type"].value, told["compression.type"].config_source) == ("zstd", 1)
    assert (told["preallocate"].value, told["segment.jitter.ms"].value) == ("true", "0")
    assert alter(client, TOPIC, "orders", ("preallocate", DELETE, None), ("segment.jitter.ms", SET, "5")) == 0
    told = describe(client, TOPIC, "orders")
    assert [told[name].value for name in ("compression.type", "preallocate", "segment.jitter.ms")] == [
        "zstd",
        "false",
        "5",
    ]
    gone = [("compression.type", DELETE, None), ("segment.jitter.ms", DELETE, None)]
    assert alter(client, TOPIC, "orders", *gone) == 0
    assert {row.config_source for row in describe(client, TOPIC, "orders").values()} == {5}


def test_a_broker_that_does_not_sync_promises_no_syncing(serve: Callable[..., Service]) -> None:
    with LiveClient(serve(fsync="system").address) as client:
        create(client, "orders")
        assert alter(client, TOPIC, "orders", ("flush.messages", SET, "1")) == 40
        assert alter(client, TOPIC, "orders", ("flush.messages", SET, str(2**63 - 1))) == 0


def test_resources_that_do_not_exist(client: LiveClient) -> None:
    assert alter(client, TOPIC, "nowhere", ("retention.ms", SET, "5")) == 3
    assert alter(client, BROKER, "9", ("log.retention.ms", SET, "5")) == 42
    assert alter(client, 99, "x", ("a", SET, "5")) == 42
    resources = [{"resource_type": kind, "resource_name": name} for kind, name in ((2, "nowhere"), (4, "9"), (99, "x"))]
    told = client.ask("DescribeConfigs", 4, resources=resources)
    assert [each.error_code.value for each in told.results] == [3, 42, 42]


def test_the_brokers_settings_hold_for_topics_that_say_nothing(client: LiveClient) -> None:
    create(client, "orders")
    assert alter(client, BROKER, "", ("log.retention.ms", SET, "9000")) == 0
    assert describe(client, TOPIC, "orders")["retention.ms"].value == "9000"
    broker = describe(client, BROKER, "1")
    assert (broker["log.retention.ms"].value, broker["log.retention.ms"].config_source) == ("9000", 3)
    assert (broker["node.id"].value, broker["node.id"].read_only) == ("1", True)
    assert broker["auto.create.topics.enable"].value == "true"
    assert list(describe(client, BROKER, "")) == ["log.retention.ms"]


def test_a_groups_filters_are_set(client: LiveClient) -> None:
    assert alter(client, GROUP, "readers", ("penstock.entry.filters", SET, "property(region in eu)")) == 0
    assert describe(client, GROUP, "readers")["penstock.entry.filters"].value == "property(region in eu)"
    assert alter(client, GROUP, "readers", ("penstock.entry.filters", SET, "no_such_filter")) == 40
    assert alter(client, GROUP, "readers", ("retention.ms", SET, "5")) == 40


@pytest.mark.parametrize("version", versions("AlterConfigs"))
def test_all_settings_are_replaced(client: LiveClient, version: int) -> None:
    create(client, "orders", retention_ms="5000")
    rows = [{"name": "segment.bytes", "value": "200000"}]
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": rows}
    (told,) = client.ask("AlterConfigs", version, resources=[resource]).responses
    assert told.error_code.value == 0
    found = describe(client, TOPIC, "orders")
    assert (found["retention.ms"].value, found["segment.bytes"].value) == ("604800000", "200000")
