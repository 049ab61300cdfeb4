"""Groups whose partitions the broker shares out (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

A member tells everything when it joins and after a failure, and otherwise only what has changed; so is it answered.
What makes no sense is INVALID_REQUEST, with a text that says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from penstock.broker.groups.consumer import ConsumerGroup, Member
from penstock.broker.groups.questions import JOINING, LEAVING, RETURNING, Beat, Beaten, Moment, Slot
from penstock.broker.groups.registry import Group
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka.codes import CODES, NONE
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.group_words import (
    NO_OPERATIONS,
    OPERATIONS,
    STATES,
    client_of,
    group_code,
    shown_host,
)

IDS_NEEDED_FROM: Final = 1
UNCHANGED: Final = -1
CONSUMER_MEMBER: Final = 1


def consumer_group_heartbeat(request: Any, context: Context) -> None:
    """A member comes by; answered when what it is told is durable."""
    _check(request, context.version)
    names, owned = request.subscribed_topic_names, request.topic_partitions
    timeout_ms = request.rebalance_timeout
    question = Beat(
        group=request.group_id,
        member=request.member_id,
        epoch=request.member_epoch,
        client=client_of(context),
        instance=request.instance_id,
        rack=request.rack_id,
        rebalance_ms=None if timeout_ms == UNCHANGED else max(timeout_ms, 0),
        topics=None if names is None else frozenset(names),
        pattern=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None if owned is None else _slots(owned),
    )
    at = Moment(context.now, context.now_ms)
    context.broker.groups.beat(question, lambda beaten: _answer(beaten, context), at)


def _check(request: Any, version: int) -> None:
    """Refused when the request makes no sense, whatever the group."""
    is_joining, is_leaving = request.member_epoch == JOINING, request.member_epoch in (LEAVING, RETURNING)
    wanted = (request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", None))
    senseless = (
        (not request.group_id, "GroupId can't be empty."),
        (not request.member_id and (version >= IDS_NEEDED_FROM or not is_joining), "MemberId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (request.member_epoch < 0 and not is_leaving, "MemberEpoch is invalid."),
        (request.member_epoch == RETURNING and request.instance_id is None, "InstanceId can't be null."),
        (is_joining and request.rebalance_timeout == UNCHANGED, "RebalanceTimeoutMs must be told when joining."),
        (
            is_joining and wanted == (None, None),
            "SubscribedTopicNames or SubscribedTopicRegex must be told when joining.",
        ),
        (is_joining and request.topic_partitions != (), "TopicPartitions must be empty when joining."),
    )
    for is_senseless, why in senseless:
        if is_senseless:
            raise Refused(Refusal.BAD_REQUEST, why)


def _slots(owned: Iterable[Any]) -> frozenset[Slot]:
    return frozenset(
        (topic.topic_id, number) for topic in owned if topic.topic_id is not None for number in topic.partitions
    )


def _answer(beaten: Beaten, context: Context) -> None:
    if beaten.refused is not None:
        context.answer(error_code=group_code(beaten.refused.reason), error_message=beaten.refused.text)
        return
    assigned = None if beaten.assigned is None else {"topic_partitions": _by_topic(beaten.assigned)}
    context.answer(
        error_code=NONE,
        member_id=beaten.member,
        member_epoch=beaten.epoch,
        heartbeat_interval=beaten.interval_ms,
        assignment=assigned,
    )


def _by_topic(slots: frozenset[Slot]) -> list[dict[str, Any]]:
    topics: dict[UUID, list[int]] = {}
    for topic, number in sorted(slots):
        topics.setdefault(topic, []).append(number)
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in topics.items()]


def consumer_group_describe(request: Any, context: Context) -> None:
    """Groups whose partitions the broker shares out, with their members."""
    operations = OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    found = {name: context.broker.groups.find(name) for name in dict.fromkeys(request.group_ids)}
    context.answer(groups=[_described(name, group, operations, context) for name, group in found.items()])


def _described(name: str, group: Group | None, operations: int, context: Context) -> dict[str, Any]:
    if not isinstance(group, ConsumerGroup):
        code = CODES[Refusal.UNKNOWN_GROUP if name else Refusal.BAD_GROUP_NAME]
        why = f"There is no group {name}." if group is None else f"Group {name} is not a consumer group."
        return {
            "error_code": code,
            "error_message": why if name else None,
            "group_id": name,
            "authorized_operations": NO_OPERATIONS,
        }
    return {
        "error_code": NONE,
        "group_id": name,
        "group_state": STATES[group.state],
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_described_member(member, group, context) for member in group.members.values()],
        "authorized_operations": operations,
    }


def _described_member(member: Member, group: ConsumerGroup, context: Context) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance,
        "rack_id": member.rack,
        "member_epoch": member.standing.epoch,
        "client_id": member.client.id,
        "client_host": shown_host(member.client),
        "subscribed_topic_names": sorted(member.wish.topics),
        "subscribed_topic_regex": member.wish.pattern,
        "assignment": _described_slots(member.standing.assigned, context),
        "target_assignment": _described_slots(group.targets.get(member.id, frozenset()), context),
        "member_type": CONSUMER_MEMBER,
    }


def _described_slots(slots: frozenset[Slot], context: Context) -> dict[str, Any]:
    """Topics that have been deleted meanwhile are left out: they have no name any more."""
    rows = []
    for row in _by_topic(slots):
        topic = context.broker.topics.by_id(row["topic_id"])
        if topic is not None:
            rows.append({**row, "topic_name": topic.name})
    return {"topic_partitions": rows}
