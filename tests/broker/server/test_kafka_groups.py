"""The classic group requests and admin questions through the Kafka door, in all versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.groups import classic, consumer
from penstock.broker.refusals import Refusal
from penstock.broker.server.kafka.apis import TABLE
from penstock.broker.server.kafka.codes import NUMBERS
from penstock.broker.server.kafka.consumer_protocol import assigned_partitions, subscribed_topics
from penstock.broker.server.kafka.group_words import STATES, group_code
from penstock.wire.protocol import Partition
from tests.broker.server.kafka_groups_desk import PROTOCOLS, GroupDesk

NEWEST = {api.name: api.newest for api in TABLE}
ALL_OPERATIONS, NO_OPERATIONS = 3400, -(1 << 31)


def versions(name: str) -> list[int]:
    api = next(api for api in TABLE if api.name == name)
    return list(range(api.oldest, api.newest + 1))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[GroupDesk]:
    desk = GroupDesk(tmp_path)
    desk.make("t", 2)
    yield desk
    desk.close()


def code(answer: Any) -> str:
    """The name of an answer's code."""
    return str(answer.error_code.name).upper()


# Who coordinates


@pytest.mark.parametrize("version", versions("FindCoordinator"))
def test_this_broker_coordinates_everything(desk: GroupDesk, version: int) -> None:
    answer = desk.client().ask("FindCoordinator", version, key="g", key_type=0, coordinator_keys=("g", "h"))
    rows = [answer] if version < 4 else answer.coordinators
    assert [(row.node_id, row.host, row.port, code(row)) for row in rows] == [(1, "127.0.0.1", 9092, "NONE")] * len(
        rows
    )
    assert version < 4 or [row.key for row in rows] == ["g", "h"]


@pytest.mark.parametrize("version", [3, 6])
def test_nobody_coordinates_what_there_is_not(desk: GroupDesk, version: int) -> None:
    answer = desk.client().ask("FindCoordinator", version, key="g", key_type=2, coordinator_keys=("g",))
    row = answer if version < 4 else answer.coordinators[0]
    assert (row.node_id, row.host, row.port, code(row)) == (-1, "", -1, "INVALID_REQUEST")


# Joining


@pytest.mark.parametrize("version", versions("JoinGroup"))
def test_a_member_joins_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.join(version=version)
    (joined,) = client.answers()
    if version >= 4:
        assert code(joined) == "MEMBER_ID_REQUIRED"
        assert joined.generation_id == -1
        client.join(member=joined.member_id, version=version)
        (joined,) = client.answers()
    assert (code(joined), joined.generation_id, joined.protocol_name) == ("NONE", 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("test-")
    assert [(peer.member_id, peer.metadata) for peer in joined.members] == [
        (joined.member_id, PROTOCOLS[0]["metadata"])
    ]


@pytest.mark.parametrize("version", versions("SyncGroup"))
def test_a_member_gets_its_assignment_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.join(version=3)
    (joined,) = client.answers()
    client.sync(joined, version=version, assignments=({"member_id": joined.member_id, "assignment": b"mine"},))
    (synced,) = client.answers()
    assert (code(synced), synced.assignment) == ("NONE", b"mine")


def test_a_join_is_answered_when_its_generation_is_durable(desk: GroupDesk) -> None:
    client = desk.client()
    desk.is_held = True
    client.join(version=3)
    assert client.answers() == []
    desk.round()
    (joined,) = client.answers()
    assert joined.generation_id == 1


def test_members_wait_for_each_other_on_their_own_connections(desk: GroupDesk) -> None:
    one, two = desk.client(), desk.client()
    first = one.enter()
    two.join()
    (named,) = two.answers()
    two.join(member=named.member_id)
    assert two.answers() == []
    beaten = one.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id=first)
    assert code(beaten) == "REBALANCE_IN_PROGRESS"
    one.join(member=first)
    (leader,), (follower,) = one.answers(), two.answers()
    assert leader.generation_id == follower.generation_id == 2
    assert len(leader.members) == 2
    assert follower.members == ()
    two.sync(follower)
    assert two.answers() == []
    one.sync(leader, assignments=({"member_id": follower.member_id, "assignment": b"yours"},))
    (given,) = two.answers()
    assert given.assignment == b"yours"


def test_a_static_member_that_comes_again_is_told_to_share_nothing_out(desk: GroupDesk) -> None:
    one, two = desk.client(), desk.client()
    one.join(group_instance_id="a")
    (joined,) = one.answers()
    one.sync(joined, group_instance_id="a", assignments=({"member_id": joined.member_id, "assignment": b"mine"},))
    one.answers()
    two.join(group_instance_id="a")
    (again,) = two.answers()
    assert (code(again), again.skip_assignment, again.generation_id) == ("NONE", True, 1)
    beaten = one.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id=joined.member_id, group_instance_id="a")
    assert code(beaten) == "FENCED_INSTANCE_ID"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": ""}, "INVALID_GROUP_ID"),
        ({"member": "nobody"}, "UNKNOWN_MEMBER_ID"),
        ({"session_timeout": 1}, "INVALID_SESSION_TIMEOUT"),
        ({"protocols": ()}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_type": ""}, "INCONSISTENT_GROUP_PROTOCOL"),
    ],
)
@pytest.mark.parametrize("version", [6, 9])
def test_a_join_that_is_refused_says_why(desk: GroupDesk, version: int, changes: dict[str, Any], expected: str) -> None:
    client = desk.client()
    client.join(**{"version": version, **changes})
    (answer,) = client.answers()
    assert code(answer) == expected
    assert (answer.generation_id, answer.member_id, answer.members) == (-1, changes.get("member", ""), ())
    assert answer.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": ""}, "INVALID_GROUP_ID"),
        ({"group": "nowhere"}, "UNKNOWN_MEMBER_ID"),
        ({"generation_id": 7}, "ILLEGAL_GENERATION"),
        ({"protocol_name": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_type": None}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_name": None}, "INCONSISTENT_GROUP_PROTOCOL"),
    ],
)
def test_a_sync_that_is_refused_says_why(desk: GroupDesk, changes: dict[str, Any], expected: str) -> None:
    client = desk.client()
    client.join(version=3)
    (joined,) = client.answers()
    client.sync(joined, **changes)
    (answer,) = client.answers()
    assert (code(answer), answer.assignment) == (expected, b"")


# Staying and leaving


@pytest.mark.parametrize("version", versions("Heartbeat"))
def test_heartbeats_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    member = client.enter()
    ways = {("g", 1, member): "NONE", ("g", 2, member): "ILLEGAL_GENERATION", ("g", 1, "x"): "UNKNOWN_MEMBER_ID"}
    ways |= {("nowhere", 1, "x"): "UNKNOWN_MEMBER_ID", ("", 1, "x"): "INVALID_GROUP_ID"}
    for (group, generation, who), expected in ways.items():
        answer = client.ask("Heartbeat", version, group_id=group, generation_id=generation, member_id=who)
        assert code(answer) == expected


@pytest.mark.parametrize("version", versions("LeaveGroup"))
def test_members_leave_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    member = client.enter()
    members = ({"member_id": member}, {"member_id": "x"}, {"member_id": "", "group_instance_id": "z"})
    answer = client.ask("LeaveGroup", version, group_id="g", member_id=member, members=members)
    assert code(answer) == "NONE"
    if version >= 3:
        assert [code(row) for row in answer.members] == ["NONE", "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"]
        assert [row.group_instance_id for row in answer.members] == [None, None, "z"]
    again = client.ask("LeaveGroup", version, group_id="g", member_id=member, members=members[:1])
    assert code(again if version < 3 else again.members[0]) == "UNKNOWN_MEMBER_ID"
    assert code(client.ask("LeaveGroup", version, group_id="", member_id="x", members=())) == "INVALID_GROUP_ID"


def test_a_session_ends_without_heartbeats(desk: GroupDesk) -> None:
    client = desk.client()
    member = client.enter()
    desk.pass_time(10.1)
    answer = client.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id=member)
    assert code(answer) == "UNKNOWN_MEMBER_ID"


def test_after_a_start_members_are_told_to_join_again(desk: GroupDesk) -> None:
    member = desk.client().enter()
    desk.restart()
    client = desk.client()
    answer = client.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id=member)
    assert code(answer) == "UNKNOWN_MEMBER_ID"
    client.join(member=member)
    (joined,) = client.answers()
    assert code(joined) == "UNKNOWN_MEMBER_ID"
    client.join(version=3)
    (joined,) = client.answers()
    assert joined.generation_id == 2


# What admin tools ask


@pytest.mark.parametrize("version", versions("DescribeGroups"))
def test_groups_are_described_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    member = client.enter()
    client.beat(group="other")
    values = {"groups": ("g", "nowhere", "other", "g"), "include_authorized_operations": True}
    found, nowhere, other = client.ask("DescribeGroups", version, **values).groups
    assert (code(found), found.group_state, found.protocol_type, found.protocol_data) == (
        *("NONE", "Stable", "consumer"),
        "range",
    )
    (row,) = found.members
    assert (row.member_id, row.client_id, row.client_host) == (member, "test", "/127.0.0.1")
    assert row.member_metadata == PROTOCOLS[0]["metadata"]
    assert row.member_assignment.endswith(b"\0\0\0\0")
    unknown = "GROUP_ID_NOT_FOUND" if version >= 6 else "NONE"
    assert [(code(it), it.group_state, it.members) for it in (nowhere, other)] == [(unknown, "Dead", ())] * 2
    if version >= 3:
        assert [it.authorized_operations for it in (found, nowhere)] == [ALL_OPERATIONS, NO_OPERATIONS]


def test_what_a_member_says_of_itself_is_shown_when_the_group_is_stable(desk: GroupDesk) -> None:
    client = desk.client()
    client.join(version=3)
    client.answers()
    (found,) = client.ask("DescribeGroups", 5, groups=("g",)).groups
    assert (found.group_state, found.protocol_data, found.members[0].member_metadata) == (
        "CompletingRebalance",
        "",
        b"",
    )
    assert found.authorized_operations == NO_OPERATIONS


@pytest.mark.parametrize("version", versions("ListGroups"))
def test_groups_are_listed_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.enter("one")
    client.beat(group="two")
    client.committed(1, group="three")
    answer = client.ask("ListGroups", version)
    assert code(answer) == "NONE"
    rows = {row.group_id: row for row in answer.groups}
    assert {name: row.protocol_type for name, row in rows.items()} == {
        "one": "consumer",
        "two": "consumer",
        "three": "",
    }
    if version >= 4:
        assert {name: row.group_state for name, row in rows.items()} == {
            "one": "Stable",
            "two": "Stable",
            "three": "Empty",
        }
    if version >= 5:
        assert [rows[name].group_type for name in ("one", "two", "three")] == ["classic", "consumer", "classic"]


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (("stable",), (), {"one", "two"}),
        (("Empty", "Dead"), (), {"three"}),
        ((), ("Consumer",), {"two"}),
        (("Stable",), ("classic",), {"one"}),
        (("nonsense",), (), set()),
    ],
)
def test_groups_are_listed_by_state_and_protocol(
    desk: GroupDesk, states: tuple[str, ...], types: tuple[str, ...], expected: set[str]
) -> None:
    client = desk.client()
    client.enter("one")
    client.beat(group="two")
    client.committed(1, group="three")
    answer = client.ask("ListGroups", 5, states_filter=states, types_filter=types)
    assert {row.group_id for row in answer.groups} == expected


@pytest.mark.parametrize("version", versions("DeleteGroups"))
def test_groups_are_deleted_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.enter("busy")
    client.committed(1, group="idle")
    desk.is_held = True
    client.send("DeleteGroups", version, groups_names=("idle", "busy", "nowhere", "idle"))
    assert client.answers() == []  # not before it is durable
    desk.round()
    (answer,) = client.answers()
    assert [(row.group_id, code(row)) for row in answer.results] == [
        *[("idle", "NONE"), ("busy", "NON_EMPTY_GROUP")],
        ("nowhere", "GROUP_ID_NOT_FOUND"),
    ]
    assert client.position("idle") == -1


def test_what_members_tell_each_other_is_read_within_bounds(desk: GroupDesk) -> None:
    client = desk.client()
    client.enter("small")
    small = desk.broker.groups.find("small")
    assert isinstance(small, classic.ClassicGroup)
    assert small.topics == frozenset({"t"})
    assert desk.broker.groups.groups_reading("test", "127.0.0.1", "t", 0) == {"small"}
    padded = {"name": "range", "metadata": PROTOCOLS[0]["metadata"] + bytes(300_000)}
    client.enter("large", protocols=(padded,))
    large = desk.broker.groups.find("large")
    assert isinstance(large, classic.ClassicGroup)
    assert large.topics is None
    assert large.wants("anything")


# Kafka's words


def test_every_state_and_every_refusal_has_a_word() -> None:
    assert set(STATES) == {*classic.State, *consumer.State}
    assert all(group_code(refusal) > 0 for refusal in Refusal if refusal is not Refusal.NOT_ALLOWED)
    assert group_code(Refusal.STORAGE_FULL) == NUMBERS["COORDINATOR_NOT_AVAILABLE"]
    assert group_code(None) == 0


def test_what_consumers_tell_each_other_is_read() -> None:
    metadata = PROTOCOLS[0]["metadata"]
    assert isinstance(metadata, bytes)
    assert subscribed_topics(metadata) == frozenset({"t"})
    assignment = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\5" + b"more"
    assert assigned_partitions(assignment) == {Partition("t", 0), Partition("t", 5)}


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", b"\0\0\0\0\0\5", b"\0\0\0\0\0\1\0\5t", b"\0\0\x7f\xff\xff\xff\0\0", b"\0\0\0\0\0\1\0\1\xff"]
)
def test_what_cannot_be_read_is_not_known(data: bytes) -> None:
    assert subscribed_topics(data) is None
    assert assigned_partitions(data) == frozenset()
