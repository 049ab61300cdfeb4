"""Groups as Kafka's clients see them: who coordinates, the classic protocol, and what admin tools ask.

| request         | is answered                                               |
|-----------------|-----------------------------------------------------------|
| JoinGroup       | when the next generation begins and its number is durable |
| SyncGroup       | when the leader has brought the assignments               |
| DeleteGroups    | when that is durable                                      |
| everything else | at once                                                   |

Groups whose partitions the broker shares out are served by `group_beats`, offsets by `group_offsets`.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.groups.classic import ClassicGroup, State
from penstock.broker.groups.questions import Join, Joined, Leaver, Moment, Offer, Share, Sync, Synced
from penstock.broker.groups.registry import Group
from penstock.broker.groups.roll import Member
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka.codes import CODES, NONE, NUMBERS
from penstock.broker.server.kafka.consumer_protocol import CONSUMER, assigned_partitions, subscribed_topics
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.group_beats import consumer_group_describe, consumer_group_heartbeat
from penstock.broker.server.kafka.group_offsets import offset_commit, offset_delete, offset_fetch
from penstock.broker.server.kafka.group_words import (
    NO_OPERATIONS,
    OPERATIONS,
    STATES,
    client_of,
    group_code,
    shown_host,
)
from penstock.broker.server.kafka.outcomes import Outcomes
from penstock.wire.protocol import GroupMember

GROUP_KEY, TRANSACTION_KEY = 0, 1
NAMED_MANY_FROM: Final = 4
TAKES_ID_FROM: Final = 4
NULL_PROTOCOL_FROM: Final = 7
SKIPS_ASSIGNMENT_FROM: Final = 9
NAMES_PROTOCOL_FROM: Final = 5
LEAVES_MANY_FROM: Final = 3
TELLS_UNKNOWN_FROM: Final = 6
DEAD: Final = "Dead"
METADATA_READ_MAX: Final = 256 << 10
ASSIGNMENTS_READ_MAX: Final = 1 << 20
"""Bytes between members that are read here; of more it is not known what they say, which nothing depends upon."""


# Who coordinates


def find_coordinator(request: Any, context: Context) -> None:
    """This broker, for every group and every transactional id."""
    is_known = getattr(request, "key_type", GROUP_KEY) in (GROUP_KEY, TRANSACTION_KEY)
    host, port = context.address
    here: dict[str, Any] = {"node_id": context.door.node_id, "host": host, "port": port, "error_code": NONE}
    nowhere = {"node_id": -1, "host": "", "port": -1, "error_code": NUMBERS["INVALID_REQUEST"]}
    found = here if is_known else nowhere
    if context.version >= NAMED_MANY_FROM:
        context.answer(coordinators=[{"key": key, **found, "error_message": ""} for key in request.coordinator_keys])
    else:
        context.answer(**found, error_message="NONE" if is_known else "there is no such kind of coordinator")


# Members that agree among themselves


def join_group(request: Any, context: Context) -> None:
    """A member joins; answered when the next generation begins."""
    if not request.group_id:
        _answer_join(Joined(request.member_id, refusal=Refusal.BAD_GROUP_NAME), context)
        return
    reads_topics = request.protocol_type == CONSUMER
    is_read = reads_topics and sum(len(offer.metadata) for offer in request.protocols) <= METADATA_READ_MAX
    offers = tuple(
        Offer(offer.name, offer.metadata, subscribed_topics(offer.metadata) if is_read else None)
        for offer in request.protocols
    )
    question = Join(
        group=request.group_id,
        member=request.member_id,
        client=client_of(context),
        kind=request.protocol_type,
        offers=offers,
        session_ms=request.session_timeout,
        rebalance_ms=max(getattr(request, "rebalance_timeout", request.session_timeout), 0),
        instance=getattr(request, "group_instance_id", None),
        takes_id=context.version >= TAKES_ID_FROM,
        skips_assignment=context.version >= SKIPS_ASSIGNMENT_FROM,
        reads_topics=reads_topics,
    )
    at = Moment(context.now, context.now_ms)
    context.broker.groups.join(question, lambda joined: _answer_join(joined, context), at)


def _answer_join(joined: Joined, context: Context) -> None:
    no_protocol = None if context.version >= NULL_PROTOCOL_FROM else ""
    context.answer(
        error_code=group_code(joined.refusal),
        generation_id=joined.generation,
        protocol_type=joined.kind,
        protocol_name=no_protocol if joined.protocol is None else joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member,
        members=[
            {"member_id": peer.member, "group_instance_id": peer.instance, "metadata": peer.metadata}
            for peer in joined.peers
        ],
    )


def sync_group(request: Any, context: Context) -> None:
    """A member asks for its assignment; answered when the leader has brought it."""
    kind, protocol = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    if not request.group_id:
        _answer_sync(Synced(refusal=Refusal.BAD_GROUP_NAME), context)
        return
    if context.version >= NAMES_PROTOCOL_FROM and (kind is None or protocol is None):
        _answer_sync(Synced(refusal=Refusal.INCONSISTENT_PROTOCOL), context)
        return
    is_read = _are_assignments_read(request, context)
    shares = {
        given.member_id: Share(given.assignment, assigned_partitions(given.assignment) if is_read else frozenset())
        for given in request.assignments
    }
    instance = getattr(request, "group_instance_id", None)
    question = Sync(request.group_id, request.member_id, request.generation_id, instance, kind, protocol, shares)
    at = Moment(context.now, context.now_ms)
    context.broker.groups.sync(question, lambda synced: _answer_sync(synced, context), at)


def _are_assignments_read(request: Any, context: Context) -> bool:
    """Whether it is worth while: those of a leader, if they are not too many."""
    group = context.broker.groups.find(request.group_id)
    if not isinstance(group, ClassicGroup) or not group.reads_topics or request.member_id != group.roll.leader:
        return False
    return sum(len(given.assignment) for given in request.assignments) <= ASSIGNMENTS_READ_MAX


def _answer_sync(synced: Synced, context: Context) -> None:
    context.answer(
        error_code=group_code(synced.refusal),
        protocol_type=synced.kind,
        protocol_name=synced.protocol,
        assignment=synced.data,
    )


def heartbeat(request: Any, context: Context) -> None:
    """A member says that it lives."""
    who = GroupMember(request.generation_id, request.member_id, getattr(request, "group_instance_id", None))
    if not request.group_id:
        raise Refused(Refusal.BAD_GROUP_NAME)
    at = Moment(context.now, context.now_ms)
    context.answer(error_code=group_code(context.broker.groups.heartbeat(request.group_id, who, at)))


def leave_group(request: Any, context: Context) -> None:
    """Members leave, each with an answer of its own where the version has room for it."""
    if not request.group_id:
        raise Refused(Refusal.BAD_GROUP_NAME)
    at = Moment(context.now, context.now_ms)
    if context.version < LEAVES_MANY_FROM:
        (refusal,) = context.broker.groups.leave(request.group_id, [Leaver(request.member_id)], at)
        context.answer(error_code=group_code(refusal))
        return
    leavers = [Leaver(member.member_id, member.group_instance_id) for member in request.members]
    answers = context.broker.groups.leave(request.group_id, leavers, at)
    context.answer(
        error_code=NONE,
        members=[
            {"member_id": who.member, "group_instance_id": who.instance, "error_code": group_code(refusal)}
            for who, refusal in zip(leavers, answers, strict=True)
        ],
    )


# What admin tools ask


def describe_groups(request: Any, context: Context) -> None:
    """Groups whose members agree among themselves, with their members."""
    operations = OPERATIONS if getattr(request, "include_authorized_operations", False) else NO_OPERATIONS
    found = {name: context.broker.groups.find(name) for name in dict.fromkeys(request.groups)}
    context.answer(groups=[_described(name, group, operations, context) for name, group in found.items()])


def _described(name: str, group: Group | None, operations: int, context: Context) -> dict[str, Any]:
    if not isinstance(group, ClassicGroup):
        why = f"There is no group {name}." if group is None else f"Group {name} is not a classic group."
        is_told = context.version >= TELLS_UNKNOWN_FROM
        told = {"error_code": CODES[Refusal.UNKNOWN_GROUP], "error_message": why} if is_told else {"error_code": NONE}
        return {**told, "group_id": name, "group_state": DEAD, "authorized_operations": NO_OPERATIONS}
    is_stable = group.state is State.STABLE
    return {
        "error_code": NONE,
        "group_id": name,
        "group_state": STATES[group.state],
        "protocol_type": group.kind or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": [
            _described_member(member, group.protocol if is_stable else None) for member in group.members.values()
        ],
        "authorized_operations": operations,
    }


def _described_member(member: Member, protocol: str | None) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance,
        "client_id": member.client.id,
        "client_host": shown_host(member.client),
        "member_metadata": member.offer(protocol).metadata,
        "member_assignment": member.share.data,
    }


def list_groups(request: Any, context: Context) -> None:
    """All groups, or those of some states and protocols."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    protocols = {protocol.lower() for protocol in getattr(request, "types_filter", ())}
    groups = []
    for group, seen in zip(context.broker.groups, context.broker.groups.seen(), strict=True):
        state = STATES[group.state]
        if (not states or state.lower() in states) and (not protocols or seen.protocol in protocols):
            row = {"group_id": seen.name, "protocol_type": seen.kind, "group_state": state, "group_type": seen.protocol}
            groups.append(row)
    context.answer(error_code=NONE, groups=groups)


def delete_groups(request: Any, context: Context) -> None:
    """Groups and their offsets; answered when all of that is durable."""
    names = list(dict.fromkeys(request.groups_names))
    outcomes: Outcomes[int] = Outcomes(
        len(names),
        lambda codes: context.answer(
            results=[{"group_id": name, "error_code": code} for name, code in zip(names, codes, strict=True)]
        ),
    )
    at = Moment(context.now, context.now_ms)
    for place, name in enumerate(names):
        _delete(name, place, outcomes, at, context)
    outcomes.seal()


def _delete(name: str, place: int, outcomes: Outcomes[int], at: Moment, context: Context) -> None:
    def deleted(refused: Refused | None) -> None:
        outcomes.set(place, group_code(refused.reason if refused else None))

    try:
        context.broker.groups.delete(name, deleted, at)
    except Refused as refused:
        deleted(refused)


__all__ = [
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "delete_groups",
    "describe_groups",
    "find_coordinator",
    "heartbeat",
    "join_group",
    "leave_group",
    "list_groups",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "sync_group",
]
