"""Producers' identities and transactions, as Kafka's clients and tools ask for them.

From some version of each request on the client counts on the broker to enlist partitions and groups by itself and to
give it another epoch with each end (KIP-890): Produce 12, TxnOffsetCommit 5, EndTxn 5. Older versions of the same
requests mean that it does not; both ways are served beside each other.

| what is refused                             | older versions         | code since                             |
|---------------------------------------------|------------------------|----------------------------------------|
| an identity that somebody else has now      | INVALID_PRODUCER_EPOCH | PRODUCER_FENCED: InitProducerId 4,     |
|                                             |                        | the others 2                           |
| offsets of a group that was not enlisted    | INVALID_TXN_STATE      | TRANSACTION_ABORTABLE: 4               |
| offsets while a transaction is being ended  |                        | COORDINATOR_LOAD_IN_PROGRESS: try again |
| anything, while the disk is full or failing |                        | COORDINATOR_NOT_AVAILABLE: try again   |

EndTxn is answered when all of it is durable and seen; Kafka answers as soon as it is decided. InitProducerId that finds
a transaction open is answered when that is aborted; Kafka tells the client to try again until it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from penstock.broker.groups.questions import Moment, Offset
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.server.kafka.codes import CODES, NONE, NUMBERS, code_of
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.group_offsets import Asked
from penstock.broker.server.kafka.group_words import group_code
from penstock.broker.server.kafka.outcomes import Outcomes
from penstock.errors import PenstockError
from penstock.wire.protocol import GroupMember, Identity, Partition

NOBODY: Final = -1
FENCED_FROM: Final = 2
IDENTITY_FENCED_FROM: Final = 4
BATCHED_FROM: Final = 4
ABORTABLE_FROM: Final = 4
ENLISTS_FROM: Final = 5
RENEWS_FROM: Final = 5
NOT_ATTEMPTED: Final = NUMBERS["OPERATION_NOT_ATTEMPTED"]
UNKNOWN_PARTITION: Final = CODES[Refusal.UNKNOWN_PARTITION]
NOT_VERIFIED: Final = NUMBERS["TRANSACTION_ABORTABLE"]


def _code(error: Exception, version: int, fenced_from: int = FENCED_FROM) -> int:
    reason = refusal_of(error).reason if isinstance(error, PenstockError) else None
    if reason in (Refusal.STORAGE_FULL, Refusal.STORAGE_FAILED):
        return NUMBERS["COORDINATOR_NOT_AVAILABLE"]
    if reason is Refusal.FENCED and version < fenced_from:
        return CODES[Refusal.STALE_EPOCH]
    return code_of(error)


# Identities


def init_producer_id(request: Any, context: Context) -> None:
    """Tell a producer who it is."""

    def answer(outcome: Identity | Exception) -> None:
        if isinstance(outcome, Exception):
            code = _code(outcome, context.version, IDENTITY_FENCED_FROM)
            context.answer(error_code=code, producer_id=NOBODY, producer_epoch=NOBODY)
        else:
            context.answer(error_code=NONE, producer_id=outcome.producer, producer_epoch=outcome.epoch)

    try:
        current = _current(getattr(request, "producer_id", NOBODY), getattr(request, "producer_epoch", NOBODY))
        context.broker.transactions.identify(
            *(request.transactional_id, request.transaction_timeout, current, context.now, context.now_ms),
            reply=answer,
        )
    except Refused as refused:
        answer(refused)


def _current(producer: int, epoch: int) -> Identity | None:
    if producer == NOBODY and epoch == NOBODY:
        return None
    if NOBODY in (producer, epoch):
        raise Refused(Refusal.BAD_REQUEST, "an identity is a producer id and an epoch")
    return Identity(producer, epoch)


# What belongs to a transaction


def add_partitions_to_txn(request: Any, context: Context) -> None:
    """Enlist partitions, or from version 4 on for several transactions, or verify that they are enlisted."""
    if context.version < BATCHED_FROM:
        outcomes: Outcomes[list[dict[str, Any]]] = Outcomes(
            1, lambda parts: context.answer(results_by_topic_v3_and_below=parts[0])
        )
        topics, tid = request.v3_and_below_topics, request.v3_and_below_transactional_id
        identity = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        _add_partitions(tid, identity, topics, False, 0, outcomes, context)
        outcomes.seal()
        return

    def answer(parts: Sequence[list[dict[str, Any]]]) -> None:
        names = [asked.transactional_id for asked in request.transactions]
        rows = [{"transactional_id": name, "topic_results": part} for name, part in zip(names, parts, strict=True)]
        context.answer(error_code=NONE, results_by_transaction=rows)

    outcomes = Outcomes(len(request.transactions), answer)
    for place, asked in enumerate(request.transactions):
        identity = Identity(asked.producer_id, asked.producer_epoch)
        _add_partitions(*(asked.transactional_id, identity, asked.topics, asked.verify_only, place), outcomes, context)
    outcomes.seal()


def _add_partitions(
    tid: str,
    identity: Identity,
    topics: Sequence[Any],
    only_verify: bool,
    place: int,
    outcomes: Outcomes[list[dict[str, Any]]],
    context: Context,
) -> None:
    transactions, broker = context.broker.transactions, context.broker
    partitions = [Partition(topic.name, number) for topic in topics for number in topic.partitions]
    unknown = [partition for partition in partitions if not broker.has_partition(*partition)]

    def set_all(error: Exception | None) -> None:
        code = NONE if error is None else _code(error, context.version)
        outcomes.set(place, _partition_rows(topics, dict.fromkeys(partitions, code)))

    try:
        if only_verify:
            found = transactions.verify(tid, identity, partitions)
            codes = {partition: NONE if partition in found else NOT_VERIFIED for partition in partitions}
            outcomes.set(place, _partition_rows(topics, codes))
        elif unknown:
            codes = dict.fromkeys(partitions, NOT_ATTEMPTED) | dict.fromkeys(unknown, UNKNOWN_PARTITION)
            outcomes.set(place, _partition_rows(topics, codes))
        else:
            transactions.enlist(tid, identity, partitions, context.now, context.now_ms, set_all)
    except Refused as refused:
        set_all(refused)


def _partition_rows(topics: Iterable[Any], codes: dict[Partition, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": codes[Partition(topic.name, number)]}
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]


def add_offsets_to_txn(request: Any, context: Context) -> None:
    """Enlist a group's offsets."""

    def answer(error: Exception | None) -> None:
        context.answer(error_code=NONE if error is None else _code(error, context.version))

    identity = Identity(request.producer_id, request.producer_epoch)
    try:
        context.broker.transactions.enlist_group(
            request.transactional_id, identity, request.group_id, context.now, context.now_ms, answer
        )
    except Refused as refused:
        answer(refused)


def txn_offset_commit(request: Any, context: Context) -> None:
    """Commit offsets when the transaction commits."""
    asked = Asked(request.topics, context)
    offsets = {
        partition: Offset(
            told.committed_offset,
            getattr(told, "committed_leader_epoch", -1),
            told.committed_metadata or "",
            context.now_ms,
        )
        for partition, told in asked.known()
    }

    def answer(outcome: dict[Partition, Refusal | None] | Exception) -> None:
        if isinstance(outcome, Exception):
            context.answer(topics=asked.answer(dict.fromkeys(offsets, _offset_code(outcome, context.version))))
        else:
            context.answer(topics=asked.answer({it: group_code(refusal) for it, refusal in outcome.items()}))

    try:
        _commit_offsets(request, offsets, answer, context)
    except Refused as refused:
        answer(refused)


def _commit_offsets(request: Any, offsets: dict[Partition, Offset], answer: Any, context: Context) -> None:
    identity = Identity(request.producer_id, request.producer_epoch)
    group, joins = request.group_id, context.version >= ENLISTS_FROM
    if not group:
        raise Refused(Refusal.BAD_GROUP_NAME)
    enlisting = context.broker.transactions.admit_group(
        request.transactional_id, identity, group, joins, context.now, context.now_ms
    )
    done = answer if enlisting is None else enlisting.gate(answer)
    who = GroupMember(
        getattr(request, "generation_id", -1),
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
    )
    at = Moment(context.now, context.now_ms)
    context.broker.groups.commit_pending(group, who, identity.producer, offsets, done, at)


def _offset_code(error: Exception, version: int) -> int:
    if isinstance(error, Refused):
        if error.reason is Refusal.CONCURRENT_TRANSACTION:
            return NUMBERS["COORDINATOR_LOAD_IN_PROGRESS"]
        if error.reason is Refusal.NOT_ENLISTED and version >= ABORTABLE_FROM:
            return NUMBERS["TRANSACTION_ABORTABLE"]
    return _code(error, version)


# Its end


def end_txn(request: Any, context: Context) -> None:
    """Commit or abort; the identity to go on with is told to who counts on that."""

    def answer(outcome: Identity | Exception) -> None:
        if isinstance(outcome, Exception):
            context.answer(error_code=_code(outcome, context.version), producer_id=NOBODY, producer_epoch=NOBODY)
        else:
            context.answer(error_code=NONE, producer_id=outcome.producer, producer_epoch=outcome.epoch)

    identity = Identity(request.producer_id, request.producer_epoch)
    renews = context.version >= RENEWS_FROM
    try:
        context.broker.transactions.end(
            *(request.transactional_id, identity, request.committed, renews, context.now, context.now_ms),
            reply=answer,
        )
    except Refused as refused:
        answer(refused)
