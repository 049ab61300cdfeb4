"""Looking up, creating, growing and deleting topics of a real Kafka, in every version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers.kafka import KafkaCluster
from penstock.errors import RefusedError, UnknownTopicError
from penstock.wire.kafka.versions import (
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FIND_COORDINATOR,
    METADATA,
)
from penstock.wire.protocol import (
    ClusterView,
    CreateTopic,
    DeleteTopic,
    Done,
    Endpoint,
    FindHome,
    GrowTopic,
    LookUp,
    PartitionView,
)
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.real import look_up, new_name, new_topic, versions_of
from tests.wire.kafka.talk import Talk, talk


@pytest.fixture(name="broker")
def newest(real_kafka: KafkaCluster) -> Iterator[Talk]:
    with talk(real_kafka.address(1)) as broker:
        yield broker


@pytest.mark.parametrize("version", versions_of(METADATA))
def test_a_cluster_is_looked_up_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic, missing = new_topic(broker, 2), new_name("missing")
    with talk(real_kafka.address(1), pinned(METADATA, version)) as old:
        cluster = old.ask(LookUp(frozenset({topic, missing})))
        assert isinstance(cluster, ClusterView)
        assert cluster.nodes == {1: Endpoint(*real_kafka.address(1))}
        assert cluster.controller == 1
        assert (cluster.cluster_id is None) == (version < 2)
        epoch = 0 if version >= 7 else -1
        assert cluster.topics[topic].partitions == {0: PartitionView(1, epoch), 1: PartitionView(1, epoch)}
        assert cluster.topics[topic].error is None
        if version >= 4:  # before, looking up creates
            assert isinstance(cluster.topics[missing].error, UnknownTopicError)
        assert topic in old.ask(LookUp(None)).topics
        assert old.ask(LookUp(frozenset())).topics == {}


@pytest.mark.parametrize("version", versions_of(CREATE_TOPICS))
def test_a_topic_is_created_once_in_every_version(real_kafka: KafkaCluster, version: int) -> None:
    with talk(real_kafka.address(1), pinned(CREATE_TOPICS, version)) as old:
        topic = new_name("created")
        request = CreateTopic(topic, 3, 1, {"max.message.bytes": "1000"})
        assert old.ask(request) == Done()
        again = old.ask(request)
        assert isinstance(again, RefusedError)
        assert again.code == "TOPIC_ALREADY_EXISTS"
        assert topic in str(again)


def test_numbers_are_left_to_the_cluster(broker: Talk) -> None:
    topic = new_name("left")
    assert broker.ask(CreateTopic(topic)) == Done()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (CreateTopic("a", 0, 1), "INVALID_PARTITIONS"),
        (CreateTopic("b", 1, 5), "INVALID_REPLICATION_FACTOR"),
        (CreateTopic("not/a/name", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (CreateTopic("c", 1, 1, {"no.such.setting": "1"}), "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(broker: Talk, request_: CreateTopic, code: str) -> None:
    told = broker.ask(request_)
    assert isinstance(told, RefusedError)
    assert told.code == code


@pytest.mark.parametrize("version", versions_of(CREATE_PARTITIONS))
def test_a_topic_grows_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker)
    with talk(real_kafka.address(1), pinned(CREATE_PARTITIONS, version)) as old:
        assert old.ask(GrowTopic(topic, 4)) == Done()
        while len(look_up(broker, topic).partitions) != 4:
            pass
        told = old.ask(GrowTopic(topic, 2))
        assert isinstance(told, RefusedError)
        assert told.code == "INVALID_PARTITIONS"
        assert isinstance(old.ask_once(GrowTopic(new_name("missing"), 2)), UnknownTopicError)


@pytest.mark.parametrize("version", versions_of(DELETE_TOPICS))
def test_a_topic_is_deleted_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker)
    with talk(real_kafka.address(1), pinned(DELETE_TOPICS, version)) as old:
        assert old.ask(DeleteTopic(topic)) == Done()
        assert isinstance(old.ask_once(DeleteTopic(topic)), UnknownTopicError)


@pytest.mark.parametrize("version", versions_of(FIND_COORDINATOR))
def test_the_home_of_a_name_is_found_in_every_version(real_kafka: KafkaCluster, version: int) -> None:
    with talk(real_kafka.address(1), pinned(FIND_COORDINATOR, version)) as old:
        home = (1, Endpoint(*real_kafka.address(1)))
        assert old.ask(FindHome("some group", of_group=True)) == home
        if version >= 1:
            assert old.ask(FindHome("some id")) == home


def test_a_greeting_in_version_0_is_answered(real_kafka: KafkaCluster) -> None:
    with talk(real_kafka.address(1), pinned(API_VERSIONS, 0)) as old:
        old.socket.sendall(b"".join(old.connection._greet(0)))
        (event,) = old.events()
        assert event.features == {}  # type: ignore[union-attr]
        assert old.connection.versions.choose(METADATA) == 13


def test_a_broker_refuses_a_version_that_it_does_not_know_as_the_greeting_expects(real_kafka: KafkaCluster) -> None:
    with talk(real_kafka.address(1), pinned(API_VERSIONS, 0)) as old:
        frame = bytearray(b"".join(old.connection.greet()))
        frame[6:8] = (99).to_bytes(2, "big")
        old.socket.sendall(frame)
        (event,) = old.events()
        old.socket.sendall(b"".join(event.buffers))  # type: ignore[union-attr]
        (event,) = old.events()
        assert old.connection.versions.choose(METADATA) == 13
