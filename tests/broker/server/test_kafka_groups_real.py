"""The same questions about groups to a real Kafka and to `penstock serve`: the same answers.

Left out is what is chance (ids, the order of rows) and what is told in words. Where the two differ on purpose it is not
asked here, and `docs/compatibility.md` tells of it: epochs have other numbers, because a real Kafka shares partitions
out some time after a member joined.
"""

from __future__ import annotations

import dataclasses
import enum
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from kio.serial import entity_reader

from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.apis import TABLE
from tests.broker.server.kafka.samples import fill, kio_bytes

APIS = {api.name: api for api in TABLE}
CHANCE = frozenset({"error_message", "throttle_time", "topic_id", "port"})
RANGE = ({"name": "range", "metadata": b""},)
LIMIT_S = 60.0


class Wire:
    """One connection, one question at a time; ids are told as the order in which they came up."""

    def __init__(self, address: tuple[str, int], prefix: str) -> None:
        self._socket = socket.create_connection(address, LIMIT_S)
        self._prefix = prefix
        self._members: dict[str, str] = {}
        self.story: list[tuple[str, Any]] = []

    def close(self) -> None:
        self._socket.close()

    def ask(self, name: str, version: int, **values: Any) -> Any:
        api = APIS[name]
        kind = codec.schema_of(api, version, "request")
        tags = b"\0" if api.is_flexible(version) else b""
        head = struct.pack(">hhih", api.key, version, 7, 5) + b"probe" + tags
        body = kio_bytes(fill(kind, values))
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        data = self._receive(int.from_bytes(self._receive(4), "big"))
        kind = codec.schema_of(api, version, "response")
        return entity_reader(kind)(data, 5 if kind.__flexible__ else 4)[0]

    def note(self, label: str, name: str, version: int, **values: Any) -> Any:
        """Ask, and remember what was answered."""
        answer = self.ask(name, version, **values)
        self.story.append((label, self._told(answer)))
        return answer

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "the broker closed the connection"
            data += part
        return data

    def _told(self, value: Any, name: str = "") -> Any:
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value) if field.name not in CHANCE]
            return {field: self._told(getattr(value, field), field) for field in fields}
        if isinstance(value, tuple):
            return sorted((self._told(each) for each in value), key=str)
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, timedelta):
            return value.total_seconds()
        if name in ("member_id", "leader") and value and value.startswith("probe-"):
            return self._members.setdefault(value, f"member {len(self._members)}")
        return value.replace(self._prefix, "") if isinstance(value, str) else value


Script = Callable[[Wire, str], None]


@pytest.fixture(scope="module")
def served() -> Iterator[PenstockBroker]:
    with PenstockBroker() as broker:
        yield broker


def prepare(wire: Wire, prefix: str) -> None:
    """Make the topic, and wait until it and the groups' coordinators are there: a new Kafka takes a while for that."""
    topic = f"{prefix}t"
    row = {"name": topic, "num_partitions": 2, "replication_factor": 1}
    wire.ask("CreateTopics", 7, topics=(row,), timeout=30_000)
    groups = [f"{prefix}{suffix}" for suffix in ("", "x", "y", "s", "n", "c", "nope")]
    asked = [{"group_id": group, "topics": None, "member_epoch": -1} for group in groups]
    until(
        lambda: [
            *wire.ask("FindCoordinator", 4, coordinator_keys=groups).coordinators,
            *wire.ask("OffsetFetch", 8, groups=asked).groups,
            *wire.ask("Metadata", 12, topics=({"topic_id": None, "name": topic},)).topics,
        ]
    )


def until(look: Callable[[], list[Any]]) -> None:
    """Look again until nothing that is seen has an error."""
    over = time.monotonic() + LIMIT_S
    while any(seen.error_code.value for seen in look()):
        assert time.monotonic() < over
        time.sleep(0.02)


def classic(wire: Wire, g: str) -> None:
    """A member's life in the classic protocol, and what goes wrong in it."""
    join = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer", "protocols": RANGE}
    wire.note("no group", "JoinGroup", 9, group_id="", **join)
    wire.note("unknown member", "JoinGroup", 9, group_id=f"{g}x", member_id="foo", **join)
    wire.note("short session", "JoinGroup", 9, group_id=f"{g}x", **{**join, "session_timeout": 1})
    wire.note("no protocols", "JoinGroup", 9, group_id=f"{g}x", **{**join, "protocols": ()})
    wire.note("no kind", "JoinGroup", 9, group_id=f"{g}x", **{**join, "protocol_type": ""})
    for version in range(4, 10):
        wire.note(f"id needed in {version}", "JoinGroup", version, group_id=f"{g}y", **join)
    member = wire.note("named", "JoinGroup", 9, group_id=g, **join).member_id
    wire.note("joined", "JoinGroup", 9, group_id=g, member_id=member, **join)
    wire.note("another kind", "JoinGroup", 9, group_id=g, **{**join, "protocol_type": "connect"})
    wire.note("completing", "DescribeGroups", 5, groups=(g,), include_authorized_operations=True)
    sync = {"group_id": g, "member_id": member, "protocol_type": "consumer", "protocol_name": "range"}
    wire.note("sync, generation", "SyncGroup", 5, **{**sync, "generation_id": 7})
    wire.note("sync, protocol", "SyncGroup", 5, **{**sync, "generation_id": 1, "protocol_name": "foo"})
    wire.note("sync, no protocol", "SyncGroup", 5, **{**sync, "generation_id": 1, "protocol_name": None})
    commit = {"group_id": g, "generation_id_or_member_epoch": 1, "member_id": member}
    known = {"name": f"{g}t", "partitions": ({"partition_index": 0, "committed_offset": 1},)}
    wire.note("commit while completing", "OffsetCommit", 9, topics=(known,), **commit)
    mine = ({"member_id": member, "assignment": b"abc"},)
    wire.note("synced", "SyncGroup", 5, **sync, generation_id=1, assignments=mine)
    for version in (5, 6):
        wire.note(f"described in {version}", "DescribeGroups", version, groups=(g, f"{g}nope", ""))
    for label, generation, who, group in (
        *(("lives", 1, member, g), ("wrong generation", 2, member, g), ("nobody", 1, "x", g)),
        *(("nowhere", 1, "x", f"{g}nope"), ("no name", 1, "x", "")),
    ):
        wire.note(label, "Heartbeat", 4, group_id=group, generation_id=generation, member_id=who)
    wire.note("leave nowhere", "LeaveGroup", 5, group_id=f"{g}nope", members=({"member_id": "x"}, {"member_id": "y"}))
    wire.note("leave nowhere in 2", "LeaveGroup", 2, group_id=f"{g}nope", member_id="x")
    wire.note("leave, unknown", "LeaveGroup", 2, group_id=g, member_id="x")
    offsets(wire, g, commit)
    wire.note("delete", "DeleteGroups", 2, groups_names=(g, f"{g}nope", f"{g}s"))
    leavers = ({"member_id": member}, {"member_id": member}, {"member_id": "", "group_instance_id": "q"})
    wire.note("leave", "LeaveGroup", 5, group_id=g, members=leavers)
    wire.note("empty", "DescribeGroups", 6, groups=(g,))
    wire.note("deleted", "DeleteGroups", 2, groups_names=(g, g))


def offsets(wire: Wire, g: str, commit: dict[str, Any]) -> None:
    """Offsets of a classic group."""
    rows = (
        {"partition_index": 0, "committed_offset": 1, "committed_metadata": "hi", "committed_leader_epoch": 0},
        {"partition_index": 5, "committed_offset": 1},
        {"partition_index": 1, "committed_offset": 1, "committed_metadata": "x" * 5000},
        {"partition_index": -1, "committed_offset": -5},
    )
    topics = ({"name": f"{g}t", "partitions": rows}, {"name": f"{g}nope", "partitions": rows[:1]})
    one = ({"name": f"{g}t", "partitions": rows[:1]},)
    wire.note("committed", "OffsetCommit", 9, topics=topics, **commit)
    nobody = {"generation_id_or_member_epoch": -1, "member_id": ""}
    wire.note("commit, generation", "OffsetCommit", 9, topics=one, **{**commit, "generation_id_or_member_epoch": 4})
    wire.note("commit, nobody", "OffsetCommit", 9, topics=one, **{**commit, **nobody})
    for version in (8, 9):
        wire.note(
            f"commit nowhere in {version}", "OffsetCommit", version, topics=one, **{**commit, "group_id": f"{g}n"}
        )
    below_zero = ({"name": f"{g}t", "partitions": ({"partition_index": 0, "committed_offset": -7},)},)
    wire.note("commit below zero", "OffsetCommit", 9, topics=below_zero, group_id=f"{g}s", **nobody)
    asked = ({"name": f"{g}t", "partition_indexes": (0, 1, 9)}, {"name": f"{g}nope", "partition_indexes": (0,)})
    groups = [{"group_id": name, "topics": asked, "member_epoch": -1} for name in (g, f"{g}nope")]
    everything = {"group_id": g, "topics": None, "member_epoch": -1}
    wire.note("fetched", "OffsetFetch", 9, groups=(*groups, everything), require_stable=True)
    wire.note("fetched, epoch", "OffsetFetch", 9, groups=({**everything, "member_id": "z", "member_epoch": 5},))
    for version in (1, 2, 7):
        wire.note(f"fetched in {version}", "OffsetFetch", version, group_id=g, topics=asked)
    gone = {"partitions": ({"partition_index": 0}, {"partition_index": 7})}
    for name in (g, f"{g}nope", ""):
        wire.note(f"delete of {name[len(g) :]}", "OffsetDelete", 0, group_id=name, topics=({"name": f"{g}t", **gone},))


def consumer(wire: Wire, g: str) -> None:
    """What makes no sense in the newer protocol, who is refused, and what a group looks like to the older one."""
    beat = "ConsumerGroupHeartbeat"
    join: dict[str, Any] = {"member_id": "m1", "member_epoch": 0, "rebalance_timeout": 30_000, "topic_partitions": ()}
    join |= {"group_id": g, "subscribed_topic_names": (f"{g}t",)}
    owned = ({"topic_id": uuid4(), "partitions": (0,)},)
    senseless: dict[str, dict[str, Any]] = {
        "no group": {"group_id": ""},
        "no member": {"member_id": ""},
        "no instance": {"instance_id": ""},
        "no rack": {"rack_id": ""},
        "no timeout": {"rebalance_timeout": -1},
        "no topics": {"subscribed_topic_names": None},
        "says nothing": {"topic_partitions": None},
        "has some": {"topic_partitions": owned},
        "bad epoch": {"member_epoch": -3},
        "returning": {"member_epoch": -2},
        "bad assignor": {"server_assignor": "magic"},
        "empty assignor": {"server_assignor": ""},
        "bad pattern": {"subscribed_topic_regex": "("},
    }
    for label, changes in senseless.items():
        wire.note(label, beat, 1, **{**join, **changes})
    epoch = wire.ask(beat, 1, **join).member_epoch
    later = {"group_id": g, "rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    wire.note("ahead", beat, 1, member_id="m1", member_epoch=epoch + 3, **later)
    wire.note("unknown", beat, 1, member_id="zz", member_epoch=1, **later)
    for version in (5, 6):
        wire.note(f"described in {version}", "DescribeGroups", version, groups=(g,))
    wire.note("unknown groups", "ConsumerGroupDescribe", 1, group_ids=(f"{g}nope", ""))
    rows = ({"partition_index": 0, "committed_offset": 1}, {"partition_index": 9, "committed_offset": 1})
    topics = ({"name": f"{g}t", "partitions": rows},)
    for version, who, told in ((8, "m1", epoch), (8, "x", epoch), (9, "m1", epoch), (9, "m1", epoch + 9), (9, "", -1)):
        said = {"group_id": g, "generation_id_or_member_epoch": told, "member_id": who, "topics": topics}
        wire.note(f"commit {version} {who} {told < 0 or told - epoch}", "OffsetCommit", version, **said)
    readers: dict[str, tuple[str | None, int]] = {"m1": ("m1", epoch), "stale": ("m1", 0), "x": ("x", epoch)}
    for label, (member, told) in {**readers, "admin": (None, -1)}.items():
        group = {"group_id": g, "topics": None, "member_id": member, "member_epoch": told}
        wire.note(f"fetch by {label}", "OffsetFetch", 9, groups=(group,))
    wire.note("classic heartbeat", "Heartbeat", 4, group_id=g, generation_id=1, member_id="q")
    wire.note("classic leave", "LeaveGroup", 5, group_id=g, members=({"member_id": "q"},))
    wire.note("delete", "DeleteGroups", 2, groups_names=(g,))
    static = {**join, "instance_id": "i1"}
    wire.ask(beat, 1, **{**static, "member_id": "s1"})
    wire.note("taken", beat, 1, **{**static, "member_id": "s2"})
    wire.note("leaves", beat, 1, member_id="s1", instance_id="i1", member_epoch=-2, **later)
    wire.note("behind", beat, 1, member_id="s1", instance_id="i1", member_epoch=3, **later)
    wire.ask(beat, 1, **{**static, "member_id": "s2"})
    wire.note("fenced", beat, 1, member_id="s1", instance_id="i1", member_epoch=3, **later)
    wire.note("left", beat, 1, member_id="m1", member_epoch=-1, **later)
    other = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "connect", "group_id": f"{g}c"}
    other["protocols"] = RANGE
    member = wire.ask("JoinGroup", 5, **other).member_id
    wire.ask("JoinGroup", 5, **other, member_id=member)
    wire.note("on a classic group", beat, 1, **{**join, "group_id": f"{g}c"})
    wire.note("a classic group", "ConsumerGroupDescribe", 1, group_ids=(f"{g}c",))


@pytest.mark.parametrize("script", [classic, consumer])
def test_both_answer_alike(real_kafka: KafkaCluster, served: PenstockBroker, script: Script) -> None:
    stories = []
    for broker in (real_kafka, served):
        prefix = f"{script.__name__}-{uuid4().hex[:8]}-"
        wire = Wire(broker.address(1), prefix)
        prepare(wire, prefix)
        script(wire, prefix)
        stories.append(dict(wire.story))
        wire.close()
    kafka, ours = stories
    assert {label: (told, ours[label]) for label, told in kafka.items() if told != ours[label]} == {}
