"""Groups' offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Topics are named, or from version 10 on told by their ids. A commit is answered when it is durable, and so is a fetch
that came behind it.

| who commits and may not                  | before version 9    | since              |
|------------------------------------------|---------------------|--------------------|
| a member of no group                     | ILLEGAL_GENERATION  | GROUP_ID_NOT_FOUND |
| a member whose partitions are shared out | UNSUPPORTED_VERSION | as its epoch says  |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.questions import Fetched, Moment, Offset
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka.codes import CODES, NONE, NUMBERS
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.group_words import group_code
from penstock.broker.server.kafka.outcomes import Outcomes
from penstock.wire.protocol import GroupMember, Partition

IDS_FROM: Final = 10
EPOCHS_FROM: Final = 9
GROUPS_FROM: Final = 8
ERRORS_FROM: Final = 2
UNKNOWN_TOPIC_ID: Final = NUMBERS["UNKNOWN_TOPIC_ID"]
UNKNOWN_PARTITION: Final = CODES[Refusal.UNKNOWN_PARTITION]
NO_OFFSET: Final = -1
NO_RETENTION: Final = -1
LATEST_MS: Final = (1 << 63) - 1


class Asked:
    """The partitions that a request is about, and what each is answered."""

    def __init__(self, topics: Iterable[Any], context: Context) -> None:
        self.codes: dict[tuple[UUID | str | None, int], int] = {}
        self._context = context
        self._rows = [(self._key(topic), _topic_name(topic, context), topic) for topic in topics]

    def known(self) -> Iterable[tuple[Partition, Any]]:
        """The partitions that there are, with what was said of each; the others get their codes."""
        for key, name, topic in self._rows:
            for asked in topic.partitions:
                number = asked.partition_index
                if name is None:
                    self.codes[key, number] = UNKNOWN_TOPIC_ID
                elif not self._context.broker.has_partition(name, number):
                    self.codes[key, number] = UNKNOWN_PARTITION
                else:
                    yield Partition(name, number), asked

    def answer(self, codes: dict[Partition, int]) -> list[dict[str, Any]]:
        """The rows of the answer, with the codes of the partitions that there are."""
        return [
            {
                **self._told(key),
                "partitions": [
                    {"partition_index": asked.partition_index, "error_code": self._code(key, name, asked, codes)}
                    for asked in topic.partitions
                ],
            }
            for key, name, topic in self._rows
        ]

    def _code(self, key: UUID | str | None, name: str | None, asked: Any, codes: dict[Partition, int]) -> int:
        own = self.codes.get((key, asked.partition_index))
        return codes[Partition(name or "", asked.partition_index)] if own is None else own

    def _key(self, topic: Any) -> UUID | str | None:
        key: UUID | str | None = topic.topic_id if self._has_ids else topic.name
        return key

    def _told(self, key: UUID | str | None) -> dict[str, Any]:
        return {"topic_id": key} if self._has_ids else {"name": key}

    @property
    def _has_ids(self) -> bool:
        return self._context.version >= IDS_FROM


def offset_commit(request: Any, context: Context) -> None:
    """A member, or somebody who is none, commits offsets."""
    asked = Asked(request.topics, context)
    retention_ms = getattr(request, "retention_time", NO_RETENTION)
    expires_ms = None if retention_ms == NO_RETENTION else min(context.now_ms + retention_ms, LATEST_MS)
    offsets = {
        partition: Offset(
            told.committed_offset,
            getattr(told, "committed_leader_epoch", -1),
            told.committed_metadata or "",
            context.now_ms,
            expires_ms,
        )
        for partition, told in asked.known()
    }
    instance = getattr(request, "group_instance_id", None)
    who = GroupMember(request.generation_id_or_member_epoch, request.member_id, instance)

    def committed(outcomes: dict[Partition, Refusal | None]) -> None:
        context.answer(topics=asked.answer({it: group_code(refusal) for it, refusal in outcomes.items()}))

    if _is_too_old(request.group_id, who, context):
        context.answer(topics=asked.answer(dict.fromkeys(offsets, NUMBERS["UNSUPPORTED_VERSION"])))
        return
    try:
        context.broker.groups.commit(request.group_id, who, offsets, committed, Moment(context.now, context.now_ms))
    except Refused as refused:
        context.answer(topics=asked.answer(dict.fromkeys(offsets, _commit_code(refused.reason, context))))


def _is_too_old(name: str, who: GroupMember, context: Context) -> bool:
    """Whether the request has no room for what a member of that group must say."""
    group = context.broker.groups.find(name)
    return context.version < EPOCHS_FROM and isinstance(group, ConsumerGroup) and who.member in group.members


def _commit_code(refusal: Refusal, context: Context) -> int:
    if refusal is Refusal.UNKNOWN_GROUP and context.version < EPOCHS_FROM:
        return CODES[Refusal.ILLEGAL_GENERATION]
    return group_code(refusal)


def offset_fetch(request: Any, context: Context) -> None:
    """Offsets of a group, or of several."""
    stable_only = getattr(request, "require_stable", False)
    if context.version >= GROUPS_FROM:
        outcomes: Outcomes[dict[str, Any]] = Outcomes(len(request.groups), lambda rows: context.answer(groups=rows))
        for place, group in enumerate(request.groups):
            _fetch_group(group, place, stable_only, outcomes, context)
        outcomes.seal()
        return

    def fetched(found: Fetched | Refused) -> None:
        code = group_code(found.reason) if isinstance(found, Refused) else NONE
        context.answer(error_code=code, topics=_fetched_rows(request.topics, found, context))

    context.broker.groups.fetch(request.group_id, _wanted(request.topics, context), fetched, stable_only=stable_only)


def _fetch_group(
    group: Any, place: int, stable_only: bool, outcomes: Outcomes[dict[str, Any]], context: Context
) -> None:
    member, epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    who = None if member is None and epoch < 0 else GroupMember(epoch, member or "")

    def fetched(found: Fetched | Refused) -> None:
        told = {"group_id": group.group_id, "error_code": NONE}
        if isinstance(found, Refused):
            outcomes.set(place, {**told, "error_code": group_code(found.reason), "topics": ()})
        else:
            outcomes.set(place, {**told, "topics": _fetched_rows(group.topics, found, context)})

    context.broker.groups.fetch(group.group_id, _wanted(group.topics, context), fetched, who, stable_only)


def _wanted(topics: Sequence[Any] | None, context: Context) -> list[Partition] | None:
    """The partitions asked for, those of topics that there are not left out; None for all."""
    if topics is None:
        return None
    return [
        Partition(name, number)
        for topic in topics
        if (name := _topic_name(topic, context)) is not None
        for number in topic.partition_indexes
    ]


def _topic_name(topic: Any, context: Context) -> str | None:
    """What the topic is called here; None when there is none with that id."""
    if context.version < IDS_FROM:
        found = context.broker.topics.find(topic.name)
        return str(topic.name) if found is None else found.name
    found = None if topic.topic_id is None else context.broker.topics.by_id(topic.topic_id)
    return None if found is None else found.name


def _fetched_rows(topics: Sequence[Any] | None, found: Fetched | Refused, context: Context) -> list[dict[str, Any]]:
    if topics is None:
        return [] if isinstance(found, Refused) else _all_rows(found, context)
    rows = []
    for topic in topics:
        name = _topic_name(topic, context)
        told = {"topic_id": topic.topic_id} if context.version >= IDS_FROM else {"name": topic.name}
        partitions = [_fetched_row(name, number, found) for number in topic.partition_indexes]
        rows.append({**told, "partitions": partitions})
    return rows


def _all_rows(found: Fetched, context: Context) -> list[dict[str, Any]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for partition in sorted(found):
        rows.setdefault(partition.topic, []).append(_fetched_row(partition.topic, partition.number, found))
    if context.version < IDS_FROM:
        return [{"name": name, "partitions": partitions} for name, partitions in rows.items()]
    known = {name: context.broker.topics.find(name) for name in rows}
    return [{"topic_id": topic.id, "partitions": rows[name]} for name, topic in known.items() if topic is not None]


def _fetched_row(name: str | None, number: int, found: Fetched | Refused) -> dict[str, Any]:
    row = {"partition_index": number, "committed_offset": NO_OFFSET, "committed_leader_epoch": -1, "metadata": ""}
    if name is None:
        return {**row, "error_code": UNKNOWN_TOPIC_ID}
    if isinstance(found, Refused):
        return {**row, "error_code": group_code(found.reason)}
    offset = found.get(Partition(name, number))
    if isinstance(offset, Refusal):
        return {**row, "error_code": group_code(offset)}
    if offset is None:
        return {**row, "error_code": NONE}
    return {
        "partition_index": number,
        "committed_offset": offset.position,
        "committed_leader_epoch": offset.epoch,
        "metadata": offset.metadata,
        "error_code": NONE,
    }


def offset_delete(request: Any, context: Context) -> None:
    """Forget offsets where nobody in the group reads the topic."""
    if not request.group_id:
        raise Refused(Refusal.BAD_GROUP_NAME)
    asked = Asked(request.topics, context)
    partitions = [partition for partition, _told in asked.known()]

    def dropped(outcomes: dict[Partition, Refusal | None]) -> None:
        codes = {it: group_code(refusal) for it, refusal in outcomes.items()}
        context.answer(error_code=NONE, topics=asked.answer(codes))

    context.broker.groups.drop_offsets(request.group_id, partitions, dropped)
