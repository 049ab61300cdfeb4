"""Groups whose partitions the broker shares out, through the Kafka door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.broker.server.kafka.codes import NUMBERS
from tests.broker.server.kafka_groups_desk import GroupDesk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[GroupDesk]:
    desk = GroupDesk(tmp_path)
    desk.make("t", 2)
    yield desk
    desk.close()


def id_of(desk: GroupDesk, name: str = "t") -> UUID:
    topic = desk.broker.topics.find(name)
    assert topic is not None
    return topic.id


def assigned(answer: Any) -> dict[UUID, tuple[int, ...]] | None:
    if answer.assignment is None:
        return None
    return {row.topic_id: row.partitions for row in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_and_is_given_partitions(desk: GroupDesk, version: int) -> None:
    answer = desk.client().beat(version=version)
    assert (answer.error_code.value, answer.member_id, answer.member_epoch) == (0, "m", 1)
    assert answer.heartbeat_interval.total_seconds() == 5
    assert assigned(answer) == {id_of(desk): (0, 1)}


def test_a_member_of_the_first_version_is_given_an_id(desk: GroupDesk) -> None:
    answer = desk.client().beat("", version=0)
    assert answer.error_code.value == 0
    UUID(answer.member_id)


def test_an_answer_comes_when_what_it_tells_is_durable(desk: GroupDesk) -> None:
    client = desk.client()
    desk.is_held = True
    values = {"group_id": "g", "member_id": "m", "rebalance_timeout": 1, "subscribed_topic_names": ("t",)}
    client.send("ConsumerGroupHeartbeat", 1, **values, topic_partitions=())
    assert client.answers() == []
    desk.round()
    (answer,) = client.answers()
    assert answer.member_epoch == 1


def test_partitions_move_when_they_are_let_go_of(desk: GroupDesk) -> None:
    client, t = desk.client(), id_of(desk)
    client.beat("m1")
    assert assigned(client.beat("m2")) == {}
    told = client.beat("m1", 1)
    assert (told.member_epoch, assigned(told)) == (1, {t: (0,)})
    assert assigned(client.beat("m2", 2)) is None
    let_go = client.beat("m1", 1, topic_partitions=({"topic_id": t, "partitions": (0,)},))
    assert let_go.member_epoch == 2
    assert assigned(client.beat("m2", 2)) == {t: (1,)}


def test_topics_by_pattern(desk: GroupDesk) -> None:
    client = desk.client()
    u = desk.make("logs-1", 1)
    answer = client.beat(subscribed_topic_names=None, subscribed_topic_regex="logs-.*")
    assert assigned(answer) == {u.id: (0,)}
    v = desk.make("logs-2", 1)
    assert assigned(client.beat(epoch=1)) == {u.id: (0,), v.id: (0,)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": ""}, "INVALID_REQUEST"),
        ({"member": ""}, "INVALID_REQUEST"),
        ({"instance_id": ""}, "INVALID_REQUEST"),
        ({"rack_id": ""}, "INVALID_REQUEST"),
        ({"rebalance_timeout": -1}, "INVALID_REQUEST"),
        ({"subscribed_topic_names": None}, "INVALID_REQUEST"),
        ({"topic_partitions": None}, "INVALID_REQUEST"),
        ({"topic_partitions": ({"topic_id": uuid4(), "partitions": (0,)},)}, "INVALID_REQUEST"),
        ({"epoch": -3}, "INVALID_REQUEST"),
        ({"epoch": -2}, "INVALID_REQUEST"),
        ({"epoch": 3}, "UNKNOWN_MEMBER_ID"),
        ({"epoch": -1}, "UNKNOWN_MEMBER_ID"),
        ({"server_assignor": "magic"}, "UNSUPPORTED_ASSIGNOR"),
        ({"server_assignor": ""}, "UNSUPPORTED_ASSIGNOR"),
        ({"subscribed_topic_regex": "("}, "INVALID_REGULAR_EXPRESSION"),
        ({"group": "classic"}, "GROUP_ID_NOT_FOUND"),
    ],
)
def test_what_is_refused_says_why(desk: GroupDesk, changes: dict[str, Any], expected: str) -> None:
    client = desk.client()
    client.enter("classic")
    answer = client.beat(**changes)
    assert answer.error_code.value == NUMBERS[expected]
    assert answer.error_message
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)


def test_members_leave_and_static_ones_come_back(desk: GroupDesk) -> None:
    client, t = desk.client(), id_of(desk)
    client.beat("m1", instance_id="a")
    taken = client.beat("m2", instance_id="a")
    assert taken.error_code.value == NUMBERS["UNRELEASED_INSTANCE_ID"]
    left = client.beat("m1", -2, instance_id="a")
    assert (left.error_code.value, left.member_epoch, left.heartbeat_interval.total_seconds()) == (0, -2, 0)
    assert assigned(client.beat("m2", instance_id="a")) == {t: (0, 1)}
    fenced = client.beat("m1", 1, instance_id="a")
    assert fenced.error_code.value == NUMBERS["FENCED_INSTANCE_ID"]
    assert client.beat("m2", -1, instance_id="a").member_epoch == -1


def test_a_member_that_does_not_come_by_is_put_out(desk: GroupDesk) -> None:
    client = desk.client()
    client.beat()
    desk.pass_time(45.1)
    assert client.beat(epoch=1).error_code.value == NUMBERS["UNKNOWN_MEMBER_ID"]


def test_after_a_start_members_join_again(desk: GroupDesk) -> None:
    desk.client().beat()
    desk.restart()
    client = desk.client()
    assert client.beat(epoch=1).error_code.value == NUMBERS["UNKNOWN_MEMBER_ID"]
    assert client.beat().member_epoch == 2


def test_a_topic_deleted_and_created_again_is_given_anew(desk: GroupDesk) -> None:
    client = desk.client()
    before = id_of(desk)
    client.beat()
    desk.broker.topics.delete("t", lambda _: None)
    desk.turn()
    desk.make("t", 1)
    assert assigned(client.beat(epoch=1)) == {}
    again = client.beat(epoch=1, topic_partitions=())
    assert assigned(again) == {id_of(desk): (0,)}
    assert id_of(desk) != before


@pytest.mark.parametrize("version", [0, 1])
def test_groups_are_described(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.beat("m1", rack_id="r", instance_id="a", subscribed_topic_regex="t.*")
    client.beat("m2")
    client.enter("classic")
    asked = {"group_ids": ("g", "nowhere", "", "classic"), "include_authorized_operations": True}
    found, nowhere, empty, classic = client.ask("ConsumerGroupDescribe", version, **asked).groups
    assert (found.error_code.value, found.group_state, found.assignor_name) == (0, "Reconciling", "uniform")
    assert (found.group_epoch, found.assignment_epoch, found.authorized_operations) == (2, 2, 3400)
    first = next(member for member in found.members if member.member_id == "m1")
    assert (first.instance_id, first.rack_id, first.member_epoch) == ("a", "r", 1)
    assert (first.client_id, first.client_host) == ("test", "/127.0.0.1")
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (("t",), "t.*")
    rows = [(row.topic_name, row.topic_id, row.partitions) for row in first.assignment.topic_partitions]
    assert rows == [("t", id_of(desk), (0, 1))]
    assert [row.partitions for row in first.target_assignment.topic_partitions] == [(0,)]
    assert version == 0 or first.member_type == 1
    unknown = NUMBERS["GROUP_ID_NOT_FOUND"]
    codes = [group.error_code.value for group in (nowhere, empty, classic)]
    assert codes == [unknown, NUMBERS["INVALID_GROUP_ID"], unknown]


def test_a_deleted_topic_is_not_described(desk: GroupDesk) -> None:
    client = desk.client()
    client.beat()
    desk.broker.topics.delete("t", lambda _: None)
    desk.turn()
    (found,) = client.ask("ConsumerGroupDescribe", 1, group_ids=("g",)).groups
    assert found.members[0].assignment.topic_partitions == ()


def test_a_classic_member_cannot_join_and_the_group_cannot_be_deleted(desk: GroupDesk) -> None:
    client = desk.client()
    client.beat()
    client.join()
    (joined,) = client.answers()
    assert joined.error_code.value == NUMBERS["INCONSISTENT_GROUP_PROTOCOL"]
    answer = client.ask("DeleteGroups", 2, groups_names=("g",))
    assert answer.results[0].error_code.value == NUMBERS["NON_EMPTY_GROUP"]
