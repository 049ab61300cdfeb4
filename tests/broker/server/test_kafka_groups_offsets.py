"""Groups' offsets through the Kafka door, in all versions."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.groups.questions import Moment, Offset
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.apis import TABLE
from penstock.broker.server.kafka.codes import NUMBERS
from penstock.wire.protocol import NO_MEMBER, Partition
from tests.broker.server.kafka.desk import APIS, NOW_MS
from tests.broker.server.kafka.samples import fill, kio_bytes
from tests.broker.server.kafka_groups_desk import GroupDesk

T0 = Partition("t", 0)


def versions(name: str) -> list[int]:
    api = next(api for api in TABLE if api.name == name)
    return list(range(api.oldest, api.newest + 1))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[GroupDesk]:
    desk = GroupDesk(tmp_path)
    desk.make("t", 2)
    yield desk
    desk.close()


def offset_of(broker: Broker, group: str = "g", partition: Partition = T0) -> Offset | None:
    return broker.groups.offsets.of(group).get(partition)


def topic_row(desk: GroupDesk, version: int, name: str = "t") -> dict[str, Any]:
    topic = desk.broker.topics.find(name)
    return {"topic_id": topic.id if topic else uuid.uuid4()} if version >= 10 else {"name": name}


@pytest.mark.parametrize("version", versions("OffsetCommit"))
def test_offsets_are_committed_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    note = {"committed_metadata": "note", "committed_leader_epoch": 3}
    known = [{"partition_index": 0, "committed_offset": 7, **note}, {"partition_index": 1, "committed_offset": 8}]
    unknown = {"partition_index": 9, "committed_offset": 1}
    topics = (
        {**topic_row(desk, version), "partitions": (*known, unknown)},
        {**topic_row(desk, version, "nowhere"), "partitions": (unknown,)},
    )
    answer = client.ask(
        *("OffsetCommit", version), group_id="g", generation_id_or_member_epoch=-1, topics=topics, retention_time=-1
    )
    codes = [[row.error_code.value for row in topic.partitions] for topic in answer.topics]
    nowhere = "UNKNOWN_TOPIC_ID" if version >= 10 else "UNKNOWN_TOPIC_OR_PARTITION"
    assert codes == [[0, 0, NUMBERS["UNKNOWN_TOPIC_OR_PARTITION"]], [NUMBERS[nowhere]]]
    assert offset_of(desk.broker) == Offset(7, 3 if version >= 6 else -1, "note", NOW_MS)
    assert offset_of(desk.broker, "g", Partition("t", 1)) == Offset(8, -1, "", NOW_MS)


def test_a_commit_is_answered_when_it_is_durable_and_what_reads_it_behind_it(desk: GroupDesk) -> None:
    client, other = desk.client(), desk.client()
    desk.is_held = True
    client.commit(5)
    client.send("OffsetFetch", 7, group_id="g", topics=({"name": "t", "partition_indexes": (0,)},))
    other.send("OffsetFetch", 8, groups=({"group_id": "g", "topics": None}, {"group_id": "h", "topics": None}))
    assert client.answers() == other.answers() == []
    desk.round()
    committed, fetched = client.answers()
    assert committed.topics[0].partitions[0].error_code.value == 0
    assert fetched.topics[0].partitions[0].committed_offset == 5
    (both,) = other.answers()
    assert [len(group.topics) for group in both.groups] == [1, 0]


def test_offsets_survive_a_start(desk: GroupDesk) -> None:
    assert desk.client().committed(5) == 0
    desk.restart()
    assert desk.client().position() == 5


def test_a_client_may_say_how_long_its_offset_is_kept(desk: GroupDesk) -> None:
    desk.client().committed(5, version=3, retention_time=60_000)
    assert offset_of(desk.broker) == Offset(5, -1, "note", NOW_MS, NOW_MS + 60_000)


@pytest.mark.parametrize("retention_ms", [(1 << 63) - 1, -5])
def test_a_time_out_of_all_bounds_is_cut(desk: GroupDesk, retention_ms: int) -> None:
    client = desk.client()
    partitions = ({"partition_index": 0, "committed_offset": 5},)
    values = {"group_id": "g", "generation_id_or_member_epoch": -1, "retention_time": 60_000}
    kind = codec.schema_of(APIS["OffsetCommit"], 2, "request")
    body = kio_bytes(fill(kind, {**values, "topics": ({"name": "t", "partitions": partitions},)}))
    client.send_body("OffsetCommit", 2, body.replace(struct.pack(">q", 60_000), struct.pack(">q", retention_ms)))
    (answer,) = client.answers()
    assert answer.topics[0].partitions[0].error_code.value == 0
    offset = offset_of(desk.broker)
    assert offset is not None
    assert offset.expires_ms == min(NOW_MS + retention_ms, (1 << 63) - 1)


def test_any_text_is_kept_as_it_is(desk: GroupDesk) -> None:
    text = "a\0b\U0001f600 é"
    partitions = ({"partition_index": 0, "committed_offset": 5, "committed_metadata": text},)
    assert desk.client().committed(5, topics=({"name": "t", "partitions": partitions},)) == 0
    desk.restart()
    offset = offset_of(desk.broker)
    assert offset is not None
    assert offset.metadata == text


def test_a_name_in_full_means_the_same_topic(desk: GroupDesk) -> None:
    client = desk.client()
    partitions = ({"partition_index": 0, "committed_offset": 6},)
    name = "public/default/t"
    assert desk.broker.topics.find(name) is not None
    assert client.committed(6, topics=({"name": name, "partitions": partitions},)) == 0
    assert client.position() == 6
    answer = client.ask("OffsetFetch", 7, group_id="g", topics=({"name": name, "partition_indexes": (0,)},))
    assert (answer.topics[0].name, answer.topics[0].partitions[0].committed_offset) == (name, 6)


@pytest.mark.parametrize(
    ("version", "changes", "expected"),
    [
        (9, {"group": "nowhere", "generation_id_or_member_epoch": 1, "member_id": "m"}, "GROUP_ID_NOT_FOUND"),
        (8, {"group": "nowhere", "generation_id_or_member_epoch": 1, "member_id": "m"}, "ILLEGAL_GENERATION"),
        (9, {}, "UNKNOWN_MEMBER_ID"),
        (9, {"generation_id_or_member_epoch": 1, "member_id": "m"}, "UNKNOWN_MEMBER_ID"),
        (8, {"group": "next", "generation_id_or_member_epoch": 1, "member_id": "m"}, "UNSUPPORTED_VERSION"),
        (8, {"group": "next", "generation_id_or_member_epoch": 1, "member_id": "x"}, "UNKNOWN_MEMBER_ID"),
        (9, {"group": "next", "generation_id_or_member_epoch": 2, "member_id": "m"}, "STALE_MEMBER_EPOCH"),
        (9, {"group": "next", "generation_id_or_member_epoch": 1, "member_id": "m"}, "NONE"),
    ],
)
def test_who_may_not_commit_is_told_why(desk: GroupDesk, version: int, changes: dict[str, Any], expected: str) -> None:
    client = desk.client()
    client.enter("g")
    client.beat(group="next")
    assert client.committed(1, version=version, **changes) == NUMBERS.get(expected, 0)


def test_a_text_too_long_is_refused_for_its_partition(desk: GroupDesk) -> None:
    long = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 5000}
    topics = ({"name": "t", "partitions": (long, {"partition_index": 1, "committed_offset": 2})},)
    client = desk.client()
    client.commit(0, topics=topics)
    (answer,) = client.answers()
    codes = [row.error_code.value for row in answer.topics[0].partitions]
    assert codes == [NUMBERS["OFFSET_METADATA_TOO_LARGE"], 0]


@pytest.mark.parametrize("version", versions("OffsetFetch"))
def test_offsets_are_read_in_every_version(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.committed(5)
    asked = (
        {**topic_row(desk, version), "partition_indexes": (0, 1, 9)},
        {**topic_row(desk, version, "nowhere"), "partition_indexes": (0,)},
    )
    groups = ({"group_id": "g", "topics": asked, "member_epoch": -1}, {"group_id": "h", "topics": asked[:1]})
    answer = client.ask("OffsetFetch", version, group_id="g", topics=asked, groups=groups)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    rows = [(row.partition_index, row.committed_offset, row.metadata) for row in topics[0].partitions]
    assert rows == [(0, 5, "note"), (1, -1, ""), (9, -1, "")]
    codes = [row.error_code.value for topic in topics for row in topic.partitions]
    assert codes == [0, 0, 0, NUMBERS["UNKNOWN_TOPIC_ID"] if version >= 10 else 0]
    if version >= 5:
        assert topics[0].partitions[0].committed_leader_epoch == -1
    if version >= 8:
        assert [group.error_code.value for group in answer.groups] == [0, 0]
        assert {row.committed_offset for row in answer.groups[1].topics[0].partitions} == {-1}


@pytest.mark.parametrize("version", versions("OffsetFetch")[1:])
def test_all_offsets_are_read_when_none_is_named(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.committed(5)
    groups = ({"group_id": "g", "topics": None, "member_epoch": -1},)
    answer = client.ask("OffsetFetch", version, group_id="g", topics=None, groups=groups)
    (topic,) = answer.topics if version < 8 else answer.groups[0].topics
    assert [(row.partition_index, row.committed_offset) for row in topic.partitions] == [(0, 5)]
    t = desk.broker.topics.find("t")
    assert t is not None
    assert topic.topic_id == t.id if version >= 10 else topic.name == "t"


@pytest.mark.parametrize(
    ("member", "epoch", "expected"),
    [
        ("m", 1, "NONE"),
        (None, -1, "NONE"),
        ("m", 0, "STALE_MEMBER_EPOCH"),
        ("x", 1, "UNKNOWN_MEMBER_ID"),
        ("", -1, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_a_member_whose_partitions_are_shared_out_reads_at_its_epoch(
    desk: GroupDesk, member: str | None, epoch: int, expected: str
) -> None:
    client = desk.client()
    client.beat()
    topics = ({"name": "t", "partition_indexes": (0,)},)
    groups = ({"group_id": "g", "topics": topics, "member_id": member, "member_epoch": epoch},)
    answer = client.ask("OffsetFetch", 9, groups=groups)
    assert answer.groups[0].error_code.value == NUMBERS.get(expected, 0)
    assert len(answer.groups[0].topics) == (expected == "NONE")


@pytest.mark.parametrize("version", [7, 9])
def test_an_offset_that_waits_for_a_transaction_is_unstable(desk: GroupDesk, version: int) -> None:
    client = desk.client()
    client.committed(5)
    at = Moment(desk.hub.now, desk.hub.now_ms)
    desk.broker.groups.commit_pending("g", NO_MEMBER, 9, {T0: Offset(8)}, lambda _: None, at)
    desk.turn()
    topics = ({"name": "t", "partition_indexes": (0, 1)},)
    groups = ({"group_id": "g", "topics": topics, "member_epoch": -1},)

    def read(stable: bool) -> list[tuple[int, int]]:
        answer = client.ask(
            *("OffsetFetch", version), group_id="g", topics=topics, groups=groups, require_stable=stable
        )
        found = answer.topics if version < 8 else answer.groups[0].topics
        return [(row.error_code.value, row.committed_offset) for row in found[0].partitions]

    assert read(stable=False) == [(0, 5), (0, -1)]
    assert read(stable=True) == [(NUMBERS["UNSTABLE_OFFSET_COMMIT"], -1), (0, -1)]
    desk.broker.groups.offsets.end_transaction(9, commit=True)
    desk.turn()
    assert read(stable=True) == [(0, 8), (0, -1)]


def delete(desk: GroupDesk, group: str) -> Any:
    topics = (
        {"name": "t", "partitions": ({"partition_index": 0}, {"partition_index": 9})},
        {"name": "u", "partitions": ({"partition_index": 0},)},
    )
    return desk.client().ask("OffsetDelete", 0, group_id=group, topics=topics)


def test_offsets_are_deleted_where_nobody_reads(desk: GroupDesk) -> None:
    desk.make("u", 1)
    client = desk.client()
    client.committed(5)
    answer = delete(desk, "g")
    assert answer.error_code.value == 0
    unknown = NUMBERS["UNKNOWN_TOPIC_OR_PARTITION"]
    codes = [[row.error_code.value for row in topic.partitions] for topic in answer.topics]
    assert codes == [[0, unknown], [0]]
    assert client.position() == -1
    client.enter()
    codes = [[row.error_code.value for row in topic.partitions] for topic in delete(desk, "g").topics]
    assert codes == [[NUMBERS["GROUP_SUBSCRIBED_TO_TOPIC"], unknown], [0]]


@pytest.mark.parametrize(("group", "expected"), [("", "INVALID_GROUP_ID"), ("nowhere", "GROUP_ID_NOT_FOUND")])
def test_offsets_of_no_group_are_not_deleted(desk: GroupDesk, group: str, expected: str) -> None:
    answer = delete(desk, group)
    assert (answer.error_code.value, answer.topics) == (NUMBERS[expected], ())


def test_offsets_go_with_their_topic(desk: GroupDesk) -> None:
    client = desk.client()
    client.committed(5)
    desk.broker.topics.delete("t", lambda _: None)
    desk.turn()
    desk.make("t", 2)
    assert client.position() == -1
    desk.restart()
    assert desk.client().position() == -1
