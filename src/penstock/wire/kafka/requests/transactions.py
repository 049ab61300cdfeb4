"""Who a producer is, and its transactions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.errors import DecodeError, PenstockError, RefusedError
from penstock.wire.kafka import schema
from penstock.wire.kafka.codes import error_of
from penstock.wire.kafka.requests.exchange import by_topic, check_told, control, elements, only
from penstock.wire.kafka.versions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from penstock.wire.protocol import (
    NO_MEMBER,
    CommitMarks,
    Done,
    Endpoint,
    EndTransaction,
    Enlist,
    EnlistGroup,
    FindHome,
    Identify,
    Identity,
    NodeId,
    Partition,
)

GROUP, TRANSACTION = 0, 1
KEY_TYPES_FROM = 1
MANY_KEYS_FROM = 4
MEMBERS_FROM = 3
CURRENT_FROM = 3
NOBODY = Identity(-1, -1)


def say_identify(request: Identify, version: int) -> Any:
    """A producer without a transactional id gets another id each time; it may count its epoch up by itself instead.

    Before version 3 the current identity cannot be told; with a transactional id the request would mean something else.
    """
    if version < CURRENT_FROM and request.current is not None and request.transactional_id is not None:
        raise RefusedError(
            f"transactional id {request.transactional_id}: this broker cannot renew an identity, it only takes the id "
            "from whoever has it; make another producer for that"
        )
    current = request.current or NOBODY
    return schema.entity(
        INIT_PRODUCER_ID,
        version,
        "InitProducerIdRequest",
        transactional_id=request.transactional_id,
        transaction_timeout=timedelta(milliseconds=request.transaction_timeout_ms),
        producer_id=current.producer,
        producer_epoch=current.epoch,
    )


def hear_identify(request: Identify, answer: Any) -> Identity | PenstockError:
    """An error must be seen: a batch without a producer's id is outside any transaction, whatever its flags say."""
    about = "producer" if request.transactional_id is None else f"transactional id {request.transactional_id}"
    return error_of(answer.error_code, about) or Identity(answer.producer_id, answer.producer_epoch)


def say_find(request: FindHome, version: int) -> Any:
    """Before version 1 only groups have one; from version 4 on many can be asked for."""
    if version < KEY_TYPES_FROM and not request.of_group:
        raise RefusedError(f"transactional id {request.name}: this broker knows no transactions")
    return schema.entity(
        FIND_COORDINATOR,
        version,
        "FindCoordinatorRequest",
        key=request.name,
        key_type=GROUP if request.of_group else TRANSACTION,
        coordinator_keys=(request.name,),
    )


def hear_find(request: FindHome, answer: Any) -> tuple[NodeId, Endpoint] | PenstockError:
    """Both layouts of the answer."""
    found = answer
    if hasattr(answer, "coordinators"):
        found = only(answer.coordinators, "coordinators")
        if found.key != request.name:
            raise DecodeError(0, "coordinator key", request.name, found.key)
    about = f"{'group' if request.of_group else 'transactional id'} {request.name}"
    error = error_of(found.error_code, about, getattr(found, "error_message", None))
    return error or (found.node_id, Endpoint(found.host, found.port))


def say_enlist(request: Enlist, version: int) -> Any:
    """Brokers use later versions among themselves."""
    topics = tuple(
        schema.entity(
            ADD_PARTITIONS_TO_TXN,
            version,
            "AddPartitionsToTxnTopic",
            name=topic,
            partitions=tuple(partition.number for partition in partitions),
        )
        for topic, partitions in by_topic(request.partitions).items()
    )
    return schema.entity(
        ADD_PARTITIONS_TO_TXN,
        version,
        "AddPartitionsToTxnRequest",
        v3_and_below_transactional_id=request.transactional_id,
        v3_and_below_producer_id=request.identity.producer,
        v3_and_below_producer_epoch=request.identity.epoch,
        v3_and_below_topics=topics,
    )


def hear_enlist(request: Enlist, answer: Any) -> dict[Partition, PenstockError]:
    """The partitions that could not be enlisted."""
    codes = {
        Partition(topic.name, partition.partition_index): partition.partition_error_code
        for topic in elements(answer.results_by_topic_v3_and_below, "topics")
        for partition in elements(topic.results_by_partition, "partitions")
    }
    check_told(request.partitions, codes)
    return _failed(codes)


def say_enlist_group(request: EnlistGroup, version: int) -> Any:
    """The group's positions become part of the transaction."""
    return schema.entity(
        ADD_OFFSETS_TO_TXN,
        version,
        "AddOffsetsToTxnRequest",
        transactional_id=request.transactional_id,
        producer_id=request.identity.producer,
        producer_epoch=request.identity.epoch,
        group_id=request.group,
    )


def hear_enlist_group(request: EnlistGroup, answer: Any) -> Done | PenstockError:
    """Done, or why not."""
    return error_of(answer.error_code, f"group {request.group}") or Done()


def say_commit(request: CommitMarks, version: int) -> Any:
    """Before version 3 nothing tells which member of the group commits."""
    if version < MEMBERS_FROM and request.member != NO_MEMBER:
        raise RefusedError(f"group {request.group}: this broker cannot tell which member commits")
    topics = tuple(
        schema.entity(
            TXN_OFFSET_COMMIT,
            version,
            "TxnOffsetCommitRequestTopic",
            name=topic,
            partitions=tuple(_say_mark(request, version, partition) for partition in partitions),
        )
        for topic, partitions in by_topic(request.marks).items()
    )
    return schema.entity(
        TXN_OFFSET_COMMIT,
        version,
        "TxnOffsetCommitRequest",
        transactional_id=request.transactional_id,
        group_id=request.group,
        producer_id=request.identity.producer,
        producer_epoch=request.identity.epoch,
        generation_id=request.member.generation,
        member_id=request.member.member,
        group_instance_id=request.member.instance,
        topics=topics,
    )


def _say_mark(request: CommitMarks, version: int, partition: Partition) -> Any:
    mark = request.marks[partition]
    return schema.entity(
        TXN_OFFSET_COMMIT,
        version,
        "TxnOffsetCommitRequestPartition",
        partition_index=partition.number,
        committed_offset=mark.position,
        committed_leader_epoch=mark.leader_epoch,
        committed_metadata=mark.note,
    )


def hear_commit(request: CommitMarks, answer: Any) -> dict[Partition, PenstockError]:
    """The partitions whose positions could not be committed."""
    codes = {
        Partition(topic.name, partition.partition_index): partition.error_code
        for topic in elements(answer.topics, "topics")
        for partition in elements(topic.partitions, "partitions")
    }
    check_told(request.marks, codes)
    return _failed(codes)


def say_end(request: EndTransaction, version: int) -> Any:
    """Commit or abort."""
    return schema.entity(
        END_TXN,
        version,
        "EndTxnRequest",
        transactional_id=request.transactional_id,
        producer_id=request.identity.producer,
        producer_epoch=request.identity.epoch,
        committed=request.commit,
    )


def hear_end(request: EndTransaction, answer: Any) -> Identity | PenstockError:
    """From version 5 on the broker tells the identity to go on with; before it stays as it is."""
    error = error_of(answer.error_code, f"transactional id {request.transactional_id}")
    if error is not None:
        return error
    if getattr(answer, "producer_id", -1) < 0:
        return request.identity
    return Identity(answer.producer_id, answer.producer_epoch)


def _failed(codes: dict[Partition, int]) -> dict[Partition, PenstockError]:
    return {
        partition: error for partition, code in codes.items() if (error := error_of(code, str(partition))) is not None
    }


IDENTIFY = control(INIT_PRODUCER_ID, say_identify, hear_identify)
FIND = control(FIND_COORDINATOR, say_find, hear_find)
ENLIST = control(ADD_PARTITIONS_TO_TXN, say_enlist, hear_enlist)
ENLIST_GROUP = control(ADD_OFFSETS_TO_TXN, say_enlist_group, hear_enlist_group)
COMMIT_MARKS = control(TXN_OFFSET_COMMIT, say_commit, hear_commit)
END = control(END_TXN, say_end, hear_end)
