"""Fetch, positions, groups, marks and settings asked of a real Kafka, in every version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers.kafka import KafkaCluster
from penstock.errors import PenstockError, PositionError, UnknownTopicError
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.header import peek
from penstock.wire.kafka.versions import (
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from penstock.wire.protocol import (
    EpochEnd,
    Fetch,
    Fetched,
    FindEpochEnds,
    FindHome,
    FindPositions,
    Found,
    ListGroups,
    Mark,
    Outgoing,
    Partition,
    ReadMarks,
    ReadSettings,
    Spot,
    StoreMarks,
    TopicSettings,
    Wanted,
)
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.real import batch, look_up, new_name, new_topic, publish, versions_of
from tests.wire.kafka.talk import Talk, talk


@pytest.fixture(name="broker")
def newest(real_kafka: KafkaCluster) -> Iterator[Talk]:
    with talk(real_kafka.address(1)) as broker:
        yield broker


def fetched(asked: Talk, topic: str, position: int = 0, bytes_max: int = 1 << 20) -> Fetched:
    view = look_up(asked, topic)
    partition = Partition(topic, 0)
    epoch = view.partitions[0].leader_epoch
    told = asked.ask(Fetch({partition: Wanted(position, bytes_max, epoch)}, {topic: view.id}, bytes_max, wait_ms=5000))
    assert isinstance(told[partition], Fetched), told
    return told[partition]  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", versions_of(FETCH))
def test_batches_are_fetched_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker)
    for number in range(3):
        publish(broker, batch(topic, b"%d" % number, b"x" * 100))
    with talk(real_kafka.address(1), pinned(FETCH, version)) as old:
        all_of_it = fetched(old, topic)
        assert [peek(entry).first for entry in all_of_it.entries] == [0, 2, 4]
        assert (all_of_it.next, all_of_it.end, all_of_it.stable) == (6, 6, 6)
        assert all_of_it.start == (0 if version >= 5 else -1)
        assert (all_of_it.first_epoch, all_of_it.last_epoch) == (0, 0)
        assert fetched(old, topic, 3).next == 6
        assert [peek(entry).first for entry in fetched(old, topic, 3).entries] == [2, 4]
        cut = fetched(old, topic, 0, 200)
        assert len(cut.entries) == 1
        assert 0 < cut.size <= 200
        assert len(fetched(old, topic, 0, 1).entries) == 1, "the first comes whole"


@pytest.mark.parametrize("version", [4, 9, 12, 13, 17])
def test_what_is_wrong_is_told_of_each_partition(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker)
    publish(broker, batch(topic, b"x"))
    view = look_up(broker, topic)
    there, missing = Partition(topic, 0), Partition(topic, 9)
    with talk(real_kafka.address(1), pinned(FETCH, version)) as old:
        told = old.ask_once(Fetch({there: Wanted(99, 1000), missing: Wanted(0, 1000)}, {topic: view.id}))
        assert isinstance(told[there], PositionError)
        assert told[there].position == 99
        assert isinstance(told[missing], UnknownTopicError)
        if version >= 9:
            told = old.ask_once(Fetch({there: Wanted(0, 1000, 77)}, {topic: view.id}))
            assert told[there].code == "UNKNOWN_LEADER_EPOCH"


@pytest.mark.parametrize("version", versions_of(LIST_OFFSETS))
def test_spots_and_times_are_found_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker, 1, {"retention.ms": "-1"})
    partition = Partition(topic, 0)
    for number in range(3):
        buffer = BatchBuffer(1000)
        buffer.append(b"x", event_time_ms=1000 + number)
        buffer.seal()
        publish(broker, Outgoing(partition, *buffer.stamp()))
    with talk(real_kafka.address(1), pinned(LIST_OFFSETS, version)) as old:

        def find(spot: Spot | int) -> Found:
            told = old.ask(FindPositions({partition: spot}))
            assert isinstance(told[partition], Found), told
            return told[partition]  # type: ignore[no-any-return]

        assert [find(spot).position for spot in (Spot.EARLIEST, Spot.LATEST, Spot.AT_HAND)] == [0, 3, 0]
        assert [find(time_ms).position for time_ms in (0, 1000, 1001, 1002, 1003)] == [0, 0, 1, 2, None]
        assert find(1001).time_ms == 1001
        told = old.ask_once(FindPositions({Partition(topic, 7): Spot.LATEST}))
        assert isinstance(told[Partition(topic, 7)], UnknownTopicError)


@pytest.mark.parametrize("version", versions_of(OFFSET_FOR_LEADER_EPOCH))
def test_the_end_of_an_epoch_is_found_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic = new_topic(broker)
    publish(broker, batch(topic, b"x", b"y"))
    partition = Partition(topic, 0)
    with talk(real_kafka.address(1), pinned(OFFSET_FOR_LEADER_EPOCH, version)) as old:
        assert old.ask(FindEpochEnds({partition: 0}, {partition: 0})) == {partition: EpochEnd(0, 2)}
        assert old.ask(FindEpochEnds({partition: 5}, {partition: 0})) == {partition: EpochEnd(-1, -1)}


@pytest.mark.parametrize("version", range(2, 10))
def test_marks_are_stored_and_read_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic, group = new_topic(broker, 2), new_name("group")
    ranges = pinned(OFFSET_COMMIT, version) | {OFFSET_FETCH.key: (version, version)}
    first, second = Partition(topic, 0), Partition(topic, 1)
    with talk(real_kafka.address(1), ranges) as old:
        old.ask(FindHome(group, of_group=True))
        assert old.ask(ReadMarks(group, [first, second])) == {}
        assert old.ask(StoreMarks(group, {first: Mark(123, "a note", 4)})) == {}
        epoch = 4 if version >= 6 else -1
        assert old.ask(ReadMarks(group, [first, second])) == {first: Mark(123, "a note", epoch)}
        told = old.ask_once(StoreMarks(group, {Partition(new_name("missing"), 0): Mark(1), second: Mark(2)}))
        assert [type(error) for error in told.values()] == [UnknownTopicError]
        assert old.ask(ReadMarks(group, [second]))[second].position == 2
        assert isinstance(old.ask_once(StoreMarks(group, {first: Mark(1, "x" * 4097)}))[first], PenstockError)


@pytest.mark.parametrize("version", versions_of(LIST_GROUPS))
def test_groups_are_listed_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    topic, group = new_topic(broker), new_name("group")
    broker.ask(FindHome(group, of_group=True))
    assert broker.ask(StoreMarks(group, {Partition(topic, 0): Mark(1)})) == {}
    with talk(real_kafka.address(1), pinned(LIST_GROUPS, version)) as old:
        told = old.ask(ListGroups())
        assert group in told
        assert new_name("group") not in told


@pytest.mark.parametrize("version", versions_of(DESCRIBE_CONFIGS))
def test_settings_are_told_in_every_version(real_kafka: KafkaCluster, broker: Talk, version: int) -> None:
    plain, compacted = new_topic(broker), new_topic(broker, 1, {"cleanup.policy": "compact"})
    with talk(real_kafka.address(1), pinned(DESCRIBE_CONFIGS, version)) as old:
        told = old.ask(ReadSettings(plain))
        assert isinstance(told, TopicSettings)
        assert (told.is_compacted, told.values["cleanup.policy"]) == (False, "delete")
        assert old.ask(ReadSettings(compacted)).is_compacted
        assert isinstance(old.ask_once(ReadSettings(new_name("missing"))), UnknownTopicError)
