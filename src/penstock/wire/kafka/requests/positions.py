"""Where things are in a log: spots and times, ends of leaders' epochs, and the positions that groups have committed.

Times that ListOffsets knows as numbers: -1 latest, -2 earliest, -4 earliest on the leader's own disk (from version 8
on; brokers before it keep nothing elsewhere, so that -2 is the same).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.errors import DecodeError, PenstockError, RefusedError
from penstock.wire.kafka import schema
from penstock.wire.kafka.codes import error_of
from penstock.wire.kafka.requests.exchange import by_topic, check_told, control, elements, only
from penstock.wire.kafka.versions import LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, OFFSET_FOR_LEADER_EPOCH
from penstock.wire.protocol import (
    NO_MEMBER,
    EpochEnd,
    FindEpochEnds,
    FindPositions,
    Found,
    Mark,
    Partition,
    ReadMarks,
    Spot,
    StoreMarks,
)

CONSUMER = -1
TIMES = {Spot.LATEST: -1, Spot.EARLIEST: -2, Spot.AT_HAND: -4}
AT_HAND_FROM = 8
GROUPS_FROM = 8
INSTANCES_FROM = 7


def say_find(request: FindPositions, version: int) -> Any:
    """Spots as the times that stand for them."""
    topics = tuple(
        schema.entity(
            LIST_OFFSETS,
            version,
            "ListOffsetsTopic",
            name=topic,
            partitions=tuple(
                schema.entity(
                    LIST_OFFSETS,
                    version,
                    "ListOffsetsPartition",
                    partition_index=partition.number,
                    timestamp=_time(request.spots[partition], version),
                )
                for partition in partitions
            ),
        )
        for topic, partitions in by_topic(request.spots).items()
    )
    return schema.entity(
        LIST_OFFSETS,
        version,
        "ListOffsetsRequest",
        replica_id=CONSUMER,
        isolation_level=int(request.committed),
        topics=topics,
        timeout=timedelta(milliseconds=request.timeout_ms),
    )


def _time(spot: Spot | int, version: int) -> int:
    if spot is Spot.AT_HAND and version < AT_HAND_FROM:
        spot = Spot.EARLIEST
    return TIMES[spot] if isinstance(spot, Spot) else spot


def hear_find(request: FindPositions, answer: Any) -> dict[Partition, Found | PenstockError]:
    """A position of -1 is none."""
    found: dict[Partition, Found | PenstockError] = {}
    for topic in elements(answer.topics, "topics"):
        for told in elements(topic.partitions, "partitions"):
            partition = Partition(topic.name, told.partition_index)
            found[partition] = error_of(told.error_code, str(partition)) or Found(
                None if told.offset < 0 else told.offset,
                None if told.timestamp < 0 else told.timestamp,
                getattr(told, "leader_epoch", -1),
            )
    check_told(request.spots, found)
    return found


def say_find_ends(request: FindEpochEnds, version: int) -> Any:
    """From version 3 on a consumer says that it is one."""
    topics = tuple(
        schema.entity(
            OFFSET_FOR_LEADER_EPOCH,
            version,
            "OffsetForLeaderTopic",
            topic=topic,
            partitions=tuple(
                schema.entity(
                    OFFSET_FOR_LEADER_EPOCH,
                    version,
                    "OffsetForLeaderPartition",
                    partition=partition.number,
                    current_leader_epoch=request.current.get(partition, -1),
                    leader_epoch=request.epochs[partition],
                )
                for partition in partitions
            ),
        )
        for topic, partitions in by_topic(request.epochs).items()
    )
    return schema.entity(
        OFFSET_FOR_LEADER_EPOCH, version, "OffsetForLeaderEpochRequest", replica_id=CONSUMER, topics=topics
    )


def hear_find_ends(request: FindEpochEnds, answer: Any) -> dict[Partition, EpochEnd | PenstockError]:
    """The ends, or why they cannot be told."""
    found: dict[Partition, EpochEnd | PenstockError] = {}
    for topic in elements(answer.topics, "topics"):
        for told in elements(topic.partitions, "partitions"):
            partition = Partition(topic.topic, told.partition)
            error = error_of(told.error_code, str(partition))
            found[partition] = error or EpochEnd(told.leader_epoch, told.end_offset)
    check_told(request.epochs, found)
    return found


def say_read_marks(request: ReadMarks, version: int) -> Any:
    """From version 8 on many groups can be asked for; before version 7 open transactions are not told."""
    structure = "OffsetFetchRequestTopics" if version >= GROUPS_FROM else "OffsetFetchRequestTopic"
    topics = tuple(
        schema.entity(
            OFFSET_FETCH,
            version,
            structure,
            name=topic,
            partition_indexes=tuple(partition.number for partition in partitions),
        )
        for topic, partitions in by_topic(request.partitions).items()
    )
    if version < GROUPS_FROM:
        return schema.entity(
            OFFSET_FETCH,
            version,
            "OffsetFetchRequest",
            group_id=request.group,
            topics=topics,
            require_stable=True,
        )
    group = schema.entity(OFFSET_FETCH, version, "OffsetFetchRequestGroup", group_id=request.group, topics=topics)
    return schema.entity(OFFSET_FETCH, version, "OffsetFetchRequest", groups=(group,), require_stable=True)


def hear_read_marks(request: ReadMarks, answer: Any) -> dict[Partition, Mark] | PenstockError:
    """Both layouts of the answer; what is wrong with one partition is wrong with the whole."""
    told = answer
    if hasattr(answer, "groups"):
        told = only(answer.groups, "groups")
        if told.group_id != request.group:
            raise DecodeError(0, "group", request.group, told.group_id)
    error = error_of(getattr(told, "error_code", 0), f"group {request.group}")
    if error is not None:
        return error
    errors: list[PenstockError] = []
    marks: dict[Partition, Mark | None] = {}
    for topic in elements(told.topics, "topics"):
        for row in elements(topic.partitions, "partitions"):
            partition = Partition(topic.name, row.partition_index)
            failed = error_of(row.error_code, f"group {request.group}, {partition}")
            if failed is not None:
                errors.append(failed)
            epoch = getattr(row, "committed_leader_epoch", -1)
            marks[partition] = (
                None if row.committed_offset < 0 else Mark(row.committed_offset, row.metadata or "", epoch)
            )
    check_told(request.partitions, marks)
    if errors:
        return min(errors, key=lambda failed: failed.retriable)
    return {partition: mark for partition, mark in marks.items() if mark is not None}


def say_store_marks(request: StoreMarks, version: int) -> Any:
    """Before version 7 nothing tells which instance commits."""
    member = request.member
    if version < INSTANCES_FROM and member.instance != NO_MEMBER.instance:
        raise RefusedError(f"group {request.group}: this broker cannot tell which instance commits")
    topics = tuple(
        schema.entity(
            OFFSET_COMMIT,
            version,
            "OffsetCommitRequestTopic",
            name=topic,
            partitions=tuple(
                _say_mark(request.marks[partition], partition.number, version) for partition in partitions
            ),
        )
        for topic, partitions in by_topic(request.marks).items()
    )
    return schema.entity(
        OFFSET_COMMIT,
        version,
        "OffsetCommitRequest",
        group_id=request.group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member,
        group_instance_id=member.instance,
        topics=topics,
    )


def _say_mark(mark: Mark, number: int, version: int) -> Any:
    return schema.entity(
        OFFSET_COMMIT,
        version,
        "OffsetCommitRequestPartition",
        partition_index=number,
        committed_offset=mark.position,
        committed_leader_epoch=mark.leader_epoch,
        committed_metadata=mark.note,
    )


def hear_store_marks(request: StoreMarks, answer: Any) -> dict[Partition, PenstockError]:
    """The partitions whose positions could not be committed."""
    codes = {
        Partition(topic.name, partition.partition_index): partition.error_code
        for topic in elements(answer.topics, "topics")
        for partition in elements(topic.partitions, "partitions")
    }
    check_told(request.marks, codes)
    about = f"group {request.group}"
    return {
        partition: error
        for partition, code in codes.items()
        if (error := error_of(code, f"{about}, {partition}")) is not None
    }


FIND = control(LIST_OFFSETS, say_find, hear_find)
FIND_ENDS = control(OFFSET_FOR_LEADER_EPOCH, say_find_ends, hear_find_ends)
READ_MARKS = control(OFFSET_FETCH, say_read_marks, hear_read_marks)
STORE_MARKS = control(OFFSET_COMMIT, say_store_marks, hear_store_marks)
