"""Groups with confluent-kafka: members join and leave, commit, come back, are static, are fenced; both protocols."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from tests.compat.confluent import (
    admin,
    consumer,
    create,
    outcome,
    outcome_of,
    positions,
    producer,
    read,
    send,
    take,
    values,
)
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides, shared_out

PARTITIONS = 4
COUNT = 25
PROTOCOLS = ("classic", "consumer")
CLASSIC = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300}


def topic_of(side: Side) -> str:
    """A topic with as many messages in each partition."""
    topic = create(side, "t", PARTITIONS)
    for number in range(PARTITIONS):
        send(producer(side), topic, [b"%d-%d" % (number, n) for n in range(COUNT)], partition=number)
    return topic


def settings_of(protocol: str, **more: Any) -> dict[str, Any]:
    """A member that is noticed quickly when it is silent; the newer protocol leaves that to the broker."""
    quick = {**CLASSIC, "partition_assignment_strategy": "range"} if protocol == "classic" else {}
    return {"group_protocol": protocol, **quick, **more}


@contextmanager
def member(side: Side, topic: str, **settings: Any) -> Iterator[Consumer]:
    with consumer(side, **settings) as source:
        source.subscribe([topic])
        yield source


def held(members: Iterable[Consumer]) -> list[list[int]]:
    return [sorted(each.partition for each in source.assignment()) for source in members]


def settle(members: Sequence[Consumer]) -> list[list[int]]:
    """Poll until the members share all partitions; what each holds. Messages that come meanwhile are read again."""
    over = time.monotonic() + LIMIT_S
    while not shared_out(held(members), PARTITIONS) and time.monotonic() < over:
        for source in members:
            source.poll(0.05)
    return held(members)


def sizes(parts: Sequence[Sequence[int]]) -> list[int]:
    """How many each holds; who holds which is chance, because member ids are."""
    return sorted(map(len, parts))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_join_and_leave(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        told: Outcome = {}
        with ExitStack() as joined:
            one = joined.enter_context(member(side, topic, **settings_of(protocol)))
            told["alone"] = settle([one])
            with member(side, topic, **settings_of(protocol)) as two:
                told["two"] = sizes(settle([one, two]))
                three = joined.enter_context(member(side, topic, **settings_of(protocol)))
                told["three"] = sizes(settle([one, two, three]))
            told["one left"] = sizes(settle([one, three]))
        return told

    told = sides.alike(script)
    assert told == {"alone": [[0, 1, 2, 3]], "two": [2, 2], "three": [1, 1, 2], "one left": [2, 2]}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_way_to_share(sides: Sides, strategy: str) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        settings = settings_of("classic", partition_assignment_strategy=strategy)
        with member(side, topic, **settings) as one, member(side, topic, **settings) as two:
            told = {"two": sizes(settle([one, two]))}
            described = outcome_of(
                admin(side).describe_consumer_groups([side.name("group")])[side.name("group")], told_of
            )
        return {**told, "described": described}

    told = sides.alike(script)
    assert told["two"] == [2, 2]


def told_of(group: Any) -> Outcome:
    """A described group without what is chance: which partitions a member holds, though not how many."""
    members = sorted(
        (
            [len(one.assignment.topic_partitions), one.group_instance_id, one.client_id, one.host]
            for one in group.members
        ),
        key=str,
    )
    return {
        "state": group.state.name,
        "assignor": group.partition_assignor,
        "type": group.type.name,
        "simple": group.is_simple_consumer_group,
        "members": members,
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_is_described_in_each_of_its_states(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic, group = topic_of(side), side.name("group")
        client = admin(side)

        def described() -> Any:
            return outcome_of(client.describe_consumer_groups([group])[group], told_of)

        told = {"before": described()}
        with member(side, topic, **settings_of(protocol, client_id="me")) as one:
            settle([one])
            told["stable"] = described()
            one.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
            listed = outcome_of(
                client.list_consumer_groups(),
                lambda found: sorted(
                    [each.group_id, each.state.name, each.type.name] for each in found.valid if each.group_id == group
                ),
            )
            told["listed"] = listed
            told["deleted too soon"] = outcome_of(client.delete_consumer_groups([group])[group])
        told["empty"] = described()
        told["deleted"] = outcome_of(client.delete_consumer_groups([group])[group])
        told["deleted twice"] = outcome_of(client.delete_consumer_groups([group])[group])
        told["after"] = described()
        return told

    told = sides.alike(script)
    assert (told["stable"]["state"], told["empty"]["state"]) == ("STABLE", "EMPTY")
    assert told["deleted too soon"] == {"error": "NON_EMPTY_GROUP"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_was_committed_is_where_the_next_goes_on(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        told: Outcome = {}
        with member(side, topic, **settings_of(protocol)) as one:
            settle([one])
            told["before"] = positions(one.committed(places, LIMIT_S))
            one.commit(offsets=[TopicPartition(topic, 0, 10, "note"), TopicPartition(topic, 1, 20)], asynchronous=False)
            told["committed"] = positions(one.committed(places, LIMIT_S))
            one.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
            told["back"] = positions(one.committed(places, LIMIT_S))
        with member(side, topic, **settings_of(protocol)) as two:
            found = take(two, 20 + 5 + 2 * COUNT)
            told["read"] = sorted(str(value) for value in values(found))
            told["lag"] = [
                two.get_watermark_offsets(place, LIMIT_S)[1] - max(place.offset, 0)
                for place in two.committed(places, LIMIT_S)
            ]
        return told

    told = sides.alike(script)
    assert told["committed"] == {"0": [10, "note"], "1": 20, "2": -1001, "3": -1001}
    assert told["lag"] == [20, 5, 25, 25]
    assert "0-5" in told["read"]
    assert "0-4" not in told["read"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_commit_by_themselves(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        settings = settings_of(protocol, enable_auto_commit=True, auto_commit_interval_ms=200)
        with member(side, topic, **settings) as one:
            found = take(one, PARTITIONS * COUNT)
        with consumer(side) as asking:
            committed = asking.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], LIMIT_S)
        return {"read": len(found), "committed": positions(committed)}

    assert sides.alike(script) == {"read": 100, "committed": {str(number): 25 for number in range(4)}}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_static_members_come_back_to_what_they_had(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        with member(side, topic, **settings_of(protocol, group_instance_id="a")) as one:
            with member(side, topic, **settings_of(protocol, group_instance_id="b")) as two:
                first = settle([one, two])
            with member(side, topic, **settings_of(protocol, group_instance_id="b")) as two:
                again = settle([one, two])
                described = outcome_of(
                    admin(side).describe_consumer_groups([side.name("group")])[side.name("group")], told_of
                )
        return {
            "the same": first == again,
            "sizes": sizes(first),
            "instances": sorted(each[1] for each in described["members"]),
        }

    assert sides.alike(script) == {"the same": True, "sizes": [2, 2], "instances": ["a", "b"]}


def test_a_second_member_with_the_same_static_name_fences_the_first(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        settings = settings_of("classic", group_instance_id="a")
        with member(side, topic, **settings) as one:
            settle([one])
            with member(side, topic, **settings) as two:
                settle([two])
                fenced = errors_of(one)
        return {"first": fenced}

    assert sides.alike(script)["first"] == "_FATAL"


def errors_of(source: Consumer) -> str:
    """The first error that polling or committing brings."""
    over = time.monotonic() + LIMIT_S
    while time.monotonic() < over:
        message = source.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            return str(error.name())
    return "none"


def test_a_member_that_is_silent_is_left_out(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        settings = settings_of("classic", max_poll_interval_ms=6000)
        with member(side, topic, **settings) as silent, member(side, topic, **settings) as one:
            settle([silent, one])
            over = time.monotonic() + LIMIT_S
            while len(one.assignment()) < PARTITIONS and time.monotonic() < over:
                one.poll(0.1)
            return {"one": held([one]), "silent": errors_of(silent)}

    assert sides.alike(script) == {"one": [[0, 1, 2, 3]], "silent": "_MAX_POLL_EXCEEDED"}


def test_offsets_of_a_group_without_members(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, group = topic_of(side), side.name("group")
        client = admin(side)
        with consumer(side) as source:
            source.assign([TopicPartition(topic, 0, 5)])
            source.commit(offsets=[TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 8, "m")], asynchronous=False)

        def listed() -> Any:
            return outcome_of(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group], shown)

        def shown(found: Any) -> dict[str, Any]:
            return positions(sorted(found.topic_partitions, key=lambda each: each.partition))

        told = {"committed": listed()}
        altered = client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 2), TopicPartition(topic, 3, 1)])]
        )
        told["alter"] = outcome_of(altered[group], shown)
        told["altered"] = listed()
        told["state"] = outcome_of(client.describe_consumer_groups([group])[group], told_of)
        unknown = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(side.name("none"))])
        told["unknown group"] = outcome_of(unknown[side.name("none")], shown)
        return told

    told = sides.alike(script)
    assert told["altered"] == {"0": 7, "1": 2, "3": 1}


def test_who_is_no_member_cannot_commit_for_a_group_that_has_some(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, group = topic_of(side), side.name("group")
        with member(side, topic, **settings_of("classic")) as one:
            settle([one])
            with consumer(side) as stranger:
                strange = outcome(lambda: stranger.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False))
            client = admin(side)
            altered = client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 2)])]
            )
            return {
                "stranger": strange,
                "altered": outcome_of(altered[group], lambda each: positions(each.topic_partitions)),
            }

    assert sides.alike(script)["stranger"] == {"error": "UNKNOWN_MEMBER_ID"}


def test_a_group_follows_a_pattern_and_new_partitions(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "pattern-1", 1)
        with consumer(side, **settings_of("classic", topic_metadata_refresh_interval_ms=200)) as source:
            source.subscribe([f"^{side.name('pattern')}.*"])
            over = time.monotonic() + LIMIT_S

            def wait_for(count: int) -> list[list[Any]]:
                while len(source.assignment()) < count and time.monotonic() < over:
                    source.poll(0.05)
                return sorted([each.topic, each.partition] for each in source.assignment())

            told = {"first": wait_for(1)}
            create(side, "pattern-2", 1)
            told["another topic"] = wait_for(2)
            admin(side).create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT_S)
            told["more partitions"] = wait_for(4)
        return told

    assert len(sides.alike(script)["more partitions"]) == 4


def test_everything_is_read_once_by_a_group_that_grows_and_shrinks(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = topic_of(side)
        settings = settings_of(
            "classic",
            partition_assignment_strategy="cooperative-sticky",
            enable_auto_commit=True,
            auto_commit_interval_ms=100,
        )
        found: list[Any] = []
        with member(side, topic, **settings) as one:
            found += take(one, 10)
            with member(side, topic, **settings) as two:
                over = time.monotonic() + LIMIT_S
                while not shared_out(held([one, two]), PARTITIONS) and time.monotonic() < over:
                    found += [each for source in (one, two) if (each := source.poll(0.05))]
            while (
                len({(each.partition(), each.offset()) for each in found}) < PARTITIONS * COUNT
                and time.monotonic() < over
            ):
                found += one.consume(100, 0.1)
        assert all(each.error() is None or each.error().code() == KafkaError._PARTITION_EOF for each in found)
        return {"read": sorted({str(value) for value in values(found)}), "all": values(read(side, topic, PARTITIONS))}

    told = sides.alike(script)
    assert told["read"] == sorted(told["all"])
