"""What official clients would not say, or not in this order: the same requests by hand to both, the same answers."""

from __future__ import annotations

import datetime
import struct
import uuid
from typing import Any

import pytest

from tests.compat.confluent import TIME_MS, create, producer, send
from tests.compat.raw import Batch, ClosedError, Wire, api, fetch, produce, produce_request, records
from tests.compat.sides import Outcome, Side, Sides, until

MINUTE = datetime.timedelta(minutes=1)
TEN_S = datetime.timedelta(seconds=10)


def code(answer: Any) -> str:
    return str(answer.error_code.name)


# Frames


def head(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1)


FRAMES = {
    "a request that there is not": head(999, 0),
    "a negative request": head(-5, 0),
    "Metadata in version 99": head(3, 99) + b"\0" * 10,
    "Metadata cut short": head(3, 4) + b"\0\0",
    "Metadata with a count beyond its bytes": head(3, 4) + struct.pack(">i", 1 << 30),
    "Fetch of noise": head(1, 11) + b"\xff" * 40,
    "Produce of noise": head(0, 8) + b"\xff" * 40,
    "JoinGroup of noise": head(11, 5) + b"\x7f" * 40,
    "an empty frame": b"",
    "a frame shorter than a header": b"\0\x12",
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_nobody_understands(sides: Sides, name: str) -> None:
    def script(side: Side) -> Outcome:
        with Wire(side.address) as wire:
            try:
                wire.send_frame(FRAMES[name])
                told = f"answered with {len(wire.receive())} bytes"
            except ClosedError:
                told = "closed"
        with Wire(side.address) as other:
            alive = code(other.ask(api("api_versions", 0).ApiVersionsRequest()))
        return {"frame": told, "others": alive}

    assert sides.alike(script) == {"frame": "closed", "others": "none"}


@pytest.mark.parametrize("size", [-1, 2**31 - 1, 200 << 20])
def test_a_frame_of_impossible_size(sides: Sides, size: int) -> None:
    def script(side: Side) -> Outcome:
        with Wire(side.address) as wire:
            try:
                wire.send_bytes(struct.pack(">i", size))
                return {"frame": len(wire.receive())}
            except ClosedError:
                return {"frame": "closed"}

    assert sides.alike(script) == {"frame": "closed"}


def test_a_greeting_in_a_version_to_come_is_answered_with_what_there_is(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        with Wire(side.address) as wire:
            wire.send_frame(head(18, 99) + b"\0")
            answer = wire.receive()
            correlation, error, count = struct.unpack_from(">ihi", answer)
            after = code(
                wire.ask(
                    api("api_versions", 3).ApiVersionsRequest(client_software_name="a", client_software_version="1")
                )
            )
        return {"correlation": correlation, "error": error, "some": count > 0, "after": after}

    assert sides.alike(script) == {"correlation": 7, "error": 35, "some": True, "after": "none"}


@pytest.mark.parametrize("name", ["a b", "", "x" * 300, "ümlaut"])
def test_a_greeting_with_a_bad_name(sides: Sides, name: str) -> None:
    def script(side: Side) -> Outcome:
        with Wire(side.address) as wire:
            request = api("api_versions", 3).ApiVersionsRequest(client_software_name=name, client_software_version="1")
            try:
                return {"told": code(wire.ask(request))}
            except ClosedError:
                return {"told": "closed"}

    sides.alike(script)


def test_answers_come_in_the_order_of_the_requests(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        module = api("fetch", 4)
        part = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        slow = module.FetchRequest(
            max_wait=datetime.timedelta(milliseconds=300),
            min_bytes=1,
            max_bytes=1000,
            topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
        )
        with Wire(side.address) as wire:
            for request in (slow, api("api_versions", 0).ApiVersionsRequest(), slow):
                wire.send(request)
            return {"order": [struct.unpack_from(">i", wire.receive())[0] for _ in range(3)]}

    assert sides.alike(script) == {"order": [1, 2, 3]}


# Fetch sessions


def test_fetch_sessions(sides: Sides) -> None:
    module = api("fetch", 7)

    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        session = [0]

        def ask(wire: Wire, epoch: int, parts: dict[int, int], forget: tuple[int, ...] = ()) -> Any:
            rows = tuple(
                module.FetchPartition(
                    partition=at, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=1 << 20
                )
                for at, offset in parts.items()
            )
            answer = wire.ask(
                module.FetchRequest(
                    max_wait=datetime.timedelta(0),
                    min_bytes=0,
                    max_bytes=1 << 20,
                    session_id=session[0],
                    session_epoch=epoch,
                    topics=(module.FetchTopic(topic=topic, partitions=rows),) if rows else (),
                    forgotten_topics_data=(module.ForgottenTopic(topic=topic, partitions=forget),) if forget else (),
                )
            )
            told = [
                [part.partition_index, code(part), part.high_watermark, bool(part.records)]
                for each in answer.responses
                for part in each.partitions
            ]
            return [code(answer), answer.session_id != 0, sorted(told)], answer.session_id

        with Wire(side.address) as wire:
            told: Outcome = {}
            told["begin"], session[0] = ask(wire, 0, {0: 0, 1: 0})
            told["nothing new"], _ = ask(wire, 1, {})
            produce(wire, produce_request(topic, [Batch(records(2), 2).encode()]))
            told["something new"], _ = ask(wire, 2, {})
            told["read on"], _ = ask(wire, 3, {0: 2})
            told["quiet"], _ = ask(wire, 4, {})
            told["forget"], _ = ask(wire, 5, {}, (0,))
            told["wrong epoch"], _ = ask(wire, 3, {})
            told["out of range"], _ = ask(wire, 6, {1: 99})
            session[0] = 123456789
            told["unknown session"], _ = ask(wire, 1, {})
            session[0] = 0
            told["no session"], _ = ask(wire, -1, {0: 0})
        return told

    told = sides.alike(script)
    assert told["begin"][:2] == ["none", True]
    assert told["no session"][1] is False


# Places and topics


def test_places_by_every_kind_of_time(sides: Sides) -> None:
    times = [-1, -2, -3, -4, -5, -6, 0, TIME_MS, 2**62]

    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        send(producer(side), topic, [{"value": b"x", "timestamp": TIME_MS + n} for n in (0, 5, 3)])
        module = api("list_offsets", 11)
        told = {}
        with Wire(side.address) as wire:
            for time_ms in times:
                part = module.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=time_ms)
                (row,) = (
                    wire.ask(
                        module.ListOffsetsRequest(
                            replica_id=-1,
                            isolation_level=0,
                            timeout=TEN_S,
                            topics=(module.ListOffsetsTopic(name=topic, partitions=(part,)),),
                        )
                    )
                    .topics[0]
                    .partitions
                )
                told[str(time_ms)] = f"{code(row)} {row.offset} {row.timestamp}"
        return told

    assert sides.alike(script)["-1"].startswith("none 3")


def test_leader_epochs(sides: Sides) -> None:
    module, places = api("offset_for_leader_epoch", 3), api("list_offsets", 7)

    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        send(producer(side), topic, [b"x"] * 3)
        told = {}
        with Wire(side.address) as wire:
            for current, asked in ((-1, 0), (0, 0), (-1, 5), (-1, -1), (9, 0)):
                part = module.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=asked)
                topics = (module.OffsetForLeaderTopic(topic=topic, partitions=(part,)),)
                (row,) = wire.ask(module.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)).topics[0].partitions
                told[f"current {current}, asked {asked}"] = f"{code(row)} {row.leader_epoch} {row.end_offset}"
            part = places.ListOffsetsPartition(partition_index=0, current_leader_epoch=9, timestamp=-1)
            (row,) = (
                wire.ask(
                    places.ListOffsetsRequest(
                        replica_id=-1,
                        isolation_level=0,
                        topics=(places.ListOffsetsTopic(name=topic, partitions=(part,)),),
                    )
                )
                .topics[0]
                .partitions
            )
            told["places of a leader to come"] = code(row)
        return told

    sides.alike(script)


def test_metadata_of_what_is_not_there(sides: Sides) -> None:
    module = api("metadata", 12)

    def script(side: Side) -> Outcome:
        create(side, "t")

        def ask(wire: Wire, *topics: Any) -> list[str]:
            answer = wire.ask(
                module.MetadataRequest(
                    topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
                )
            )
            return [f"{code(each)} {each.name} {len(each.partitions)}" for each in answer.topics]

        zero = uuid.UUID(int=0)
        with Wire(side.address) as wire:
            return {
                "unknown name": ask(wire, module.MetadataRequestTopic(topic_id=zero, name=side.name("nothing"))),
                "bad name": ask(wire, module.MetadataRequestTopic(topic_id=zero, name="a b")),
                "unknown id": ask(wire, module.MetadataRequestTopic(topic_id=uuid.UUID(int=77), name=None)),
                "none at all": ask(wire),
            }

    sides.alike(script)


# Groups


def test_a_group_member_by_hand(sides: Sides) -> None:
    join, sync, beat, leave = api("join_group", 5), api("sync_group", 3), api("heartbeat", 3), api("leave_group", 3)

    def joining(
        side: Side,
        member: str = "",
        session: datetime.timedelta = TEN_S,
        kind: str = "consumer",
        names: tuple[str, ...] = ("range",),
    ) -> Any:
        return join.JoinGroupRequest(
            group_id=side.name("group"),
            session_timeout=session,
            rebalance_timeout=TEN_S,
            member_id=member,
            group_instance_id=None,
            protocol_type=kind,
            protocols=tuple(join.JoinGroupRequestProtocol(name=name, metadata=b"") for name in names),
        )

    def script(side: Side) -> Outcome:
        group = side.name("group")
        with Wire(side.address) as wire:
            told: Outcome = {
                "session too short": code(wire.ask(joining(side, session=datetime.timedelta(milliseconds=1))))
            }
            told["session too long"] = code(wire.ask(joining(side, session=datetime.timedelta(days=20))))
            told["without protocols"] = code(wire.ask(joining(side, names=())))
            told["unknown member"] = code(wire.ask(joining(side, "nobody")))
            first = wire.ask(joining(side))
            told["needs an id"] = [code(first), first.member_id.startswith("raw-")]
            joined = wire.ask(joining(side, first.member_id))
            me = joined.member_id
            told["joined"] = [
                code(joined),
                joined.generation_id,
                joined.protocol_name,
                joined.leader == me,
                len(joined.members),
            ]

            def beating(generation: int = 1, member: str = me, of: str = group) -> str:
                return code(
                    wire.ask(
                        beat.HeartbeatRequest(
                            group_id=of, generation_id=generation, member_id=member, group_instance_id=None
                        )
                    )
                )

            def syncing(generation: int = 1, member: str = me) -> str:
                mine = (sync.SyncGroupRequestAssignment(member_id=me, assignment=b"mine"),)
                answer = wire.ask(
                    sync.SyncGroupRequest(
                        group_id=group,
                        generation_id=generation,
                        member_id=member,
                        group_instance_id=None,
                        assignments=mine,
                    )
                )
                return f"{code(answer)} {answer.assignment!r}"

            told["beat before sync"] = beating()
            told["sync of another generation"] = syncing(5)
            told["sync of a stranger"] = syncing(member="nobody")
            told["sync"] = syncing()
            told["sync again"] = syncing()
            told["beats"] = [
                beating(),
                beating(5),
                beating(member="nobody"),
                beating(of=side.name("none")),
                beating(of=""),
            ]
            told["another kind"] = code(wire.ask(joining(side, kind="connect")))
            told["no common protocol"] = code(wire.ask(joining(side, names=("other",))))
            stranger = leave.MemberIdentity(member_id="nobody", group_instance_id=None)
            mine = leave.MemberIdentity(member_id=me, group_instance_id=None)
            left = wire.ask(leave.LeaveGroupRequest(group_id=group, members=(stranger, mine)))
            told["leave"] = [code(left), [code(each) for each in left.members]]
            told["beat after"] = beating()
        return told

    told = sides.alike(script)
    assert told["joined"] == ["none", 1, "range", True, 1]
    assert told["sync"] == "none b'mine'"


def test_commits_by_hand(sides: Sides) -> None:
    module, asking, finding = api("offset_commit", 7), api("offset_fetch", 7), api("find_coordinator", 2)

    def script(side: Side) -> Outcome:
        topic, group = create(side, "t"), side.name("group")

        def commit(
            wire: Wire,
            name: str = topic,
            partition: int = 0,
            of: str = group,
            member: str = "",
            generation: int = -1,
            note: str | None = "",
        ) -> str:
            part = module.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=5, committed_leader_epoch=-1, committed_metadata=note
            )
            request = module.OffsetCommitRequest(
                group_id=of,
                generation_id_or_member_epoch=generation,
                member_id=member,
                group_instance_id=None,
                topics=(module.OffsetCommitRequestTopic(name=name, partitions=(part,)),),
            )
            return code(wire.ask(request).topics[0].partitions[0])

        with Wire(side.address) as wire:
            told: Outcome = {
                "plain": commit(wire),
                "null note": commit(wire, note=None),
                "long note": commit(wire, note="x" * 5000),
                "unknown topic": commit(wire, side.name("nothing")),
                "unknown partition": commit(wire, partition=9),
                "of a member": commit(wire, member="nobody", generation=3),
                "of a new group's member": commit(wire, of=side.name("other"), member="nobody", generation=3),
                "of no group": commit(wire, of=""),
            }
            topics = (asking.OffsetFetchRequestTopic(name=topic, partition_indexes=(0, 9)),)
            found = wire.ask(asking.OffsetFetchRequest(group_id=group, topics=topics, require_stable=True))
            told["fetched"] = [
                f"{code(part)} {part.committed_offset} {part.metadata!r}" for part in found.topics[0].partitions
            ]
            told["coordinators"] = [
                code(wire.ask(finding.FindCoordinatorRequest(key=key, key_type=kind)))
                for key, kind in ((group, 0), ("", 0), (group, 1), (group, 9))
            ]
        return told

    assert sides.alike(script)["plain"] == "none"


# Identities and transactions


def test_identities_by_hand(sides: Sides) -> None:
    module = api("init_producer_id", 3)

    def script(side: Side) -> Outcome:
        def identify(
            wire: Wire, name: str | None, producer: int = -1, epoch: int = -1, timeout: datetime.timedelta = MINUTE
        ) -> Any:
            return wire.ask(
                module.InitProducerIdRequest(
                    transactional_id=name, transaction_timeout=timeout, producer_id=producer, producer_epoch=epoch
                )
            )

        name = side.name("tx")
        with Wire(side.address) as wire:
            one, two = identify(wire, None), identify(wire, None)
            first = identify(wire, name)
            second = identify(wire, name)
            mine = second.producer_id
            return {
                "idempotent": [code(one), one.producer_epoch, one.producer_id != two.producer_id],
                "first": [code(first), first.producer_epoch],
                "second": [code(second), second.producer_epoch, first.producer_id == mine],
                "with its epoch": [code(answer := identify(wire, name, mine, 1)), answer.producer_epoch],
                "again with it": [code(answer := identify(wire, name, mine, 1)), answer.producer_epoch],
                "with an old epoch": code(identify(wire, name, mine, 0)),
                "with a strange id": code(identify(wire, name, mine + 1000, 2)),
                "empty name": code(identify(wire, "")),
                "no time": code(identify(wire, name, timeout=datetime.timedelta(0))),
                "too much time": code(identify(wire, name, timeout=datetime.timedelta(hours=1))),
                "id without epoch": code(identify(wire, name, mine, -1)),
            }

    told = sides.alike(script)
    assert told["second"] == ["none", 1, True]


def test_transactions_by_hand(sides: Sides) -> None:
    identity, adding, ending = api("init_producer_id", 3), api("add_partitions_to_txn", 2), api("end_txn", 2)

    def script(side: Side) -> Outcome:
        topic, name = create(side, "t"), side.name("tx")
        with Wire(side.address) as wire:
            me = wire.ask(identity.InitProducerIdRequest(transactional_id=name, transaction_timeout=MINUTE))
            pid = me.producer_id

            def end(commit: bool, epoch: int = 0, producer: int = pid, of: str = name) -> str:
                request = ending.EndTxnRequest(
                    transactional_id=of, producer_id=producer, producer_epoch=epoch, committed=commit
                )
                return until(lambda: code(wire.ask(request)), lambda told: told != "concurrent_transactions")

            def add(partition: int = 0, epoch: int = 0, producer: int = pid, of: str = topic, to: str = name) -> str:
                topics = (adding.AddPartitionsToTxnTopic(name=of, partitions=(partition,)),)
                answer = wire.ask(
                    adding.AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=to,
                        v3_and_below_producer_id=producer,
                        v3_and_below_producer_epoch=epoch,
                        v3_and_below_topics=topics,
                    )
                )
                return str(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code.name)

            def put(sequence: int, epoch: int = 0) -> str:
                batch = Batch(
                    records(2), 2, attributes=0x10, producer_id=pid, producer_epoch=epoch, base_sequence=sequence
                )
                answer = produce(wire, produce_request(topic, [batch.encode()], transactional_id=name))
                return f"{code(answer)} {answer.base_offset}"

            told: Outcome = {"end before begin": end(True), "put before add": put(0)}
            told["adds"] = [
                add(),
                add(),
                add(9),
                add(of=side.name("nothing")),
                add(epoch=5),
                add(producer=pid + 1000),
                add(to=side.name("nobody")),
            ]
            told["puts"] = [put(0), put(0), put(2), put(9)]
            told["ends"] = [
                end(True, epoch=5),
                end(True, producer=pid + 1000),
                end(True, of=side.name("nobody")),
                end(True),
                end(True),
                end(False),
            ]
            (part,) = until(lambda: fetch(wire, topic), lambda parts: parts[0].last_stable_offset == 5)
            told["log"] = [part.high_watermark, part.last_stable_offset]
        return told

    told = sides.alike(script)
    assert told["puts"][0] == "none 0"
