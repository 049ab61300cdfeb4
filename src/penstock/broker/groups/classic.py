"""A group whose members agree among themselves: who is in it, at which generation, and who leads.

The broker collects who wants to be in the next generation, names a leader, and passes on what the leader says about
each member's share. It understands none of it.

| state      | is left for | when                                                                                   |
|------------|-------------|----------------------------------------------------------------------------------------|
| EMPTY      | PREPARING   | somebody joins                                                                         |
| PREPARING  | COMPLETING  | all members have joined again, those too late are dropped: a new generation begins     |
| PREPARING  | EMPTY       | nobody is left: a new generation as well                                               |
| COMPLETING | STABLE      | the leader has brought the shares                                                      |
| COMPLETING | PREPARING   | a member joins, leaves, changes, is gone, or has not asked for its share in time       |
| STABLE     | PREPARING   | the same; or the leader joins again                                                    |
| any        | DEAD        | the group is deleted                                                                   |

A member with an instance name is *static*: when it comes again without its id it takes the place of the one before,
which is fenced, and keeps its share; it is not dropped for joining late, only when its session is over.

Answers are put into the roll's `replies`, for whoever called to hand out; each join and each sync gets exactly one. A
member's id is all that lets it speak for the group, so a member that is not known any more cannot harm it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from penstock.broker.groups.deadlines import Deadlines
from penstock.broker.groups.questions import (
    NO_SHARE,
    Join,
    Joined,
    Leaver,
    Moment,
    Peer,
    Reply,
    Share,
    Sync,
    Synced,
)
from penstock.broker.groups.roll import Member, Roll
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.refusals import Refusal, Refused
from penstock.wire.protocol import GroupMember, Partition


class State(enum.Enum):
    """Where a group is in its life."""

    EMPTY = "empty"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"
    DEAD = "dead"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset(),
}
ALONE_RETRY_S: Final = 1.0
"""At least so long until it is looked again whether anybody of a group of absent static members has come back."""


class Alarm(NamedTuple):
    """A deadline of a group: of one of its members, or of all of it."""

    group: str
    kind: str
    member: str = ""


SESSION, JOIN, SYNC = "session", "join", "sync"


class ClassicGroup:
    """One group. Runs on: the loop thread."""

    def __init__(
        self, name: str, settings: GroupSettings, alarms: Deadlines[Alarm], new_id: Callable[[str], str]
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.kind: str | None = None
        self.protocol: str | None = None
        self.roll = Roll()
        self.topics: frozenset[str] | None = None
        """The topics that its members want, where that is known."""
        self.reads_topics = False
        self.emptied_ms: int | None = None
        """Since when nobody is in it; None while somebody is, or when nobody ever was."""
        self._settings = settings
        self._alarms = alarms
        self._new_id = new_id
        self._named: set[str] = set()  # ids given to those who are to join again under them
        self._unsynced: set[str] = set()
        self._readers: dict[Partition, str] = {}
        self._is_first = False
        self._has_grown = False
        self._wait_left_ms = 0

    def restore(self, generation: int, kind: str | None, emptied_ms: int | None) -> None:
        """Go on as it was remembered: without members, and never at an earlier generation."""
        self.generation, self.kind, self.emptied_ms = generation, kind, emptied_ms

    def __repr__(self) -> str:
        return f"<ClassicGroup {self.name}, {self.state.value}, generation {self.generation}, {self.roll!r}>"

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        return self.state is State.EMPTY

    @property
    def is_expected(self) -> bool:
        """Whether somebody was given an id and is to join under it."""
        return bool(self._named)

    @property
    def changes(self) -> int:
        """How often somebody came or went."""
        return self.roll.changes

    @property
    def members(self) -> Mapping[str, Member]:
        """Its members by their ids."""
        return self.roll.members

    # Joining

    def join(self, question: Join, reply: Reply, at: Moment) -> None:
        """Take a member into the next generation; answered when that begins."""
        refusal = self._why_not_join(question)
        if refusal is not None:
            shown = "" if refusal is Refusal.GROUP_FULL else question.member
            self.roll.replies.append((reply, Joined(shown, refusal=refusal)))
        elif question.member:
            self._join_again(question, reply, at)
        elif question.instance is not None:
            self._join_static(question, reply, at)
        else:
            self._join_new(question, reply, at)

    def _why_not_join(self, question: Join) -> Refusal | None:
        if not self._settings.session_min_ms <= question.session_ms <= self._settings.session_max_ms:
            return Refusal.BAD_SESSION_TIMEOUT
        if not self._has_room(question.member):
            return Refusal.GROUP_FULL
        names = {offer.name for offer in question.offers}
        if self.state is State.EMPTY:
            return None if question.kind and names else Refusal.INCONSISTENT_PROTOCOL
        return None if question.kind == self.kind and self.roll.supports(names) else Refusal.INCONSISTENT_PROTOCOL

    def _has_room(self, member: str) -> bool:
        most = self._settings.members_max
        if not member and len(self._named) >= most:
            return False
        known = self.members.get(member)
        if self.state is State.PREPARING:
            return self.roll.joining < most or (known is not None and known.joining is not None)
        return known is not None or len(self.members) < most

    def _join_new(self, question: Join, reply: Reply, at: Moment) -> None:
        member = self._new_id(question.client.id)
        if not question.takes_id:
            self._add(question, member, reply, at)
            return
        self._named.add(member)
        self._alarms.set(Alarm(self.name, SESSION, member), at.now + question.session_ms / 1000)
        self.roll.replies.append((reply, Joined(member, refusal=Refusal.MEMBER_ID_NEEDED)))

    def _join_static(self, question: Join, reply: Reply, at: Moment) -> None:
        instance = question.instance or ""
        member = self._new_id(instance)
        before = self.roll.statics.get(instance)
        if before is None:
            self._add(question, member, reply, at)
        else:
            self._replace(before, member, question, reply, at)

    def _join_again(self, question: Join, reply: Reply, at: Moment) -> None:
        if question.member in self._named and question.instance is None:
            self._add(question, question.member, reply, at)
            return
        refusal = self.roll.why_not(question.member, question.instance)
        if refusal is not None:
            self.roll.replies.append((reply, Joined(question.member, refusal=refusal)))
            return
        member = self.members[question.member]
        is_same = member.offers == question.offers
        leads = self.roll.leader == member.id
        if (self.state is State.COMPLETING and is_same) or (self.state is State.STABLE and is_same and not leads):
            self.roll.replies.append((reply, self._joined(member)))  # it may have missed the answer that it was given
            return
        self._update(member, question, reply)
        self._rebalance_or_complete(at)

    def _add(self, question: Join, member_id: str, reply: Reply, at: Moment) -> None:
        member = Member(
            *(member_id, question.instance, question.client, question.offers),
            *(question.session_ms, question.rebalance_ms),
        )
        if not self.members:
            self.kind, self.reads_topics = question.kind, question.reads_topics
        self._named.discard(member_id)
        self.roll.add(member)
        self.roll.wait_to_join(member, reply)
        self._has_grown = self._is_first
        # It does not know its id yet, so it cannot send heartbeats: it is waited for as long as new members are.
        self._alarms.set(Alarm(self.name, SESSION, member_id), at.now + self._settings.new_member_ms / 1000)
        self._rebalance_or_complete(at)

    def _update(self, member: Member, question: Join, reply: Reply) -> None:
        self.roll.set_offers(member, question.offers)
        member.session_ms, member.rebalance_ms = question.session_ms, question.rebalance_ms
        self.roll.wait_to_join(member, reply)

    def _replace(self, before: str, after: str, question: Join, reply: Reply, at: Moment) -> None:
        """Put a static member that came again into the place of the one before, which is fenced."""
        leader = self.roll.leader or ""
        self._alarms.cancel(Alarm(self.name, SESSION, before))
        member = self.roll.replace(before, after, question.client)
        if before in self._unsynced:
            self._unsynced.remove(before)
            self._unsynced.add(after)
        self._arm_session(member, at)
        self._update(member, question, reply)
        if self.state is not State.STABLE:
            self._rebalance_or_complete(at)
        elif self.roll.choose() != self.protocol:
            self._rebalance(at)
        elif question.skips_assignment:
            leads = self.roll.leader == after
            self.roll.answer_join(member, self._joined(member)._replace(skip_assignment=leads))
        else:  # told that somebody else leads, it does not share out anew
            self.roll.answer_join(member, self._joined(member)._replace(leader=leader, peers=()))

    def _joined(self, member: Member) -> Joined:
        peers: tuple[Peer, ...] = ()
        if member.id == self.roll.leader:
            peers = tuple(Peer(it.id, it.instance, it.offer(self.protocol).metadata) for it in self.members.values())
        return Joined(member.id, self.generation, self.roll.leader or "", self.kind, self.protocol, peers)

    # Rebalancing

    def _rebalance_or_complete(self, at: Moment) -> None:
        if self.state is State.PREPARING:
            self._maybe_complete(at)
        else:
            self._rebalance(at)

    def _rebalance(self, at: Moment) -> None:
        """Have all members join again."""
        if self.state is State.COMPLETING:
            self._refuse_shares(at)
        self._unsynced.clear()
        self._alarms.cancel(Alarm(self.name, SYNC))
        self._is_first = self.state is State.EMPTY
        self._become(State.PREPARING, at)
        delay_ms = self._settings.first_rebalance_delay_ms
        if self._is_first and delay_ms:
            self._has_grown = False
            self._wait_left_ms = max(self.roll.rebalance_ms - delay_ms, 0)
            self._alarms.set(Alarm(self.name, JOIN), at.now + delay_ms / 1000)
        elif self._is_first or self._all_joined():
            self._complete_join(at)
        else:
            self._alarms.set(Alarm(self.name, JOIN), at.now + self.roll.rebalance_ms / 1000)

    def _refuse_shares(self, at: Moment) -> None:
        for member in self.members.values():
            member.share = NO_SHARE
            if self.roll.answer_sync(member, Synced(refusal=Refusal.REBALANCING)):
                self._arm_session(member, at)

    def _all_joined(self) -> bool:
        return self.roll.joining == len(self.members) and not self._named

    def _maybe_complete(self, at: Moment) -> None:
        if self.state is State.PREPARING and self._all_joined() and not self._is_first:
            self._complete_join(at)

    def _join_overdue(self, at: Moment) -> None:
        if self._is_first and self._has_grown and self._wait_left_ms:
            delay_ms = min(self._settings.first_rebalance_delay_ms, self._wait_left_ms)
            self._has_grown = False
            self._wait_left_ms -= delay_ms
            self._alarms.set(Alarm(self.name, JOIN), at.now + delay_ms / 1000)
        else:
            self._complete_join(at)

    def _complete_join(self, at: Moment) -> None:
        """Begin a new generation with those who have joined; static ones are waited for until their session is over."""
        self._alarms.cancel(Alarm(self.name, JOIN))
        for member in list(self.members.values()):
            if member.joining is None and member.instance is None:
                self._drop(member.id)
        if self.members and not self.roll.elect():
            wait = max(self.roll.rebalance_ms / 1000, ALONE_RETRY_S)
            self._alarms.set(Alarm(self.name, JOIN), at.now + wait)
            return
        self._is_first = False
        self.generation += 1
        self.protocol = self.roll.choose() if self.members else None
        self.topics = self.roll.topics(self.protocol) if self.reads_topics else None
        self._become(State.COMPLETING if self.members else State.EMPTY, at)
        for member in self.members.values():
            self.roll.answer_join(member, self._joined(member))
            self._arm_session(member, at)
            member.is_new = False
        self._unsynced = set(self.members)
        if self.members:
            self._alarms.set(Alarm(self.name, SYNC), at.now + self.roll.rebalance_ms / 1000)

    # Sharing out

    def sync(self, question: Sync, reply: Reply, at: Moment) -> None:
        """Give a member its share; answered when the leader has brought it."""
        refusal = self._why_not_sync(question)
        if refusal is not None:
            self.roll.replies.append((reply, Synced(refusal=refusal)))
            return
        member = self.members[question.member]
        self._unsynced.discard(member.id)
        if not self._unsynced:
            self._alarms.cancel(Alarm(self.name, SYNC))
        if self.state is State.STABLE:
            self.roll.replies.append((reply, self._synced(member)))
            return
        self.roll.wait_to_sync(member, reply)
        if member.id == self.roll.leader:
            self._share_out(question.shares, at)

    def _why_not_sync(self, question: Sync) -> Refusal | None:
        refusal = self.roll.why_not(question.member, question.instance)
        if refusal is not None:
            return refusal
        if question.generation != self.generation:
            return Refusal.ILLEGAL_GENERATION
        if question.kind not in (None, self.kind) or question.protocol not in (None, self.protocol):
            return Refusal.INCONSISTENT_PROTOCOL
        return Refusal.REBALANCING if self.state is State.PREPARING else None

    def _share_out(self, shares: Mapping[str, Share], at: Moment) -> None:
        self._become(State.STABLE, at)
        self._readers = {partition: member for member, share in shares.items() for partition in share.partitions}
        for member in self.members.values():
            member.share = shares.get(member.id, NO_SHARE)
            if self.roll.answer_sync(member, self._synced(member)):
                self._arm_session(member, at)

    def _synced(self, member: Member) -> Synced:
        return Synced(member.share.data, self.kind, self.protocol)

    # Staying and leaving

    def heartbeat(self, who: GroupMember, at: Moment) -> Refusal | None:
        """A member says that it lives; REBALANCING tells it to join again."""
        refusal = self.roll.why_not(who.member, who.instance)
        if refusal is not None:
            return refusal
        if who.generation != self.generation:
            return Refusal.ILLEGAL_GENERATION
        self._arm_session(self.members[who.member], at)
        return Refusal.REBALANCING if self.state is State.PREPARING else None

    def leave(self, leavers: Iterable[Leaver], at: Moment) -> list[Refusal | None]:
        """Let members go; what each is answered."""
        answers = [self._leave(leaver) for leaver in leavers]
        if None in answers:
            if self.state in (State.STABLE, State.COMPLETING):
                self._rebalance(at)
            else:
                self._maybe_complete(at)
        return answers

    def _leave(self, leaver: Leaver) -> Refusal | None:
        member = leaver.member
        if not member and leaver.instance is not None:
            member = self.roll.statics.get(leaver.instance, "")
        refusal = None if member in self._named else self.roll.why_not(member, leaver.instance)
        if refusal is None:
            self._drop(member)
        return refusal

    def expire(self, alarm: Alarm, at: Moment) -> None:
        """A deadline has come."""
        if alarm.kind == JOIN:
            self._join_overdue(at)
        elif alarm.kind == SYNC:
            for member in list(self._unsynced):
                self._drop(member)
            self._rebalance(at)
        elif alarm.member in self._named:
            self._drop(alarm.member)
            self._maybe_complete(at)
        elif not self.members[alarm.member].is_waiting:
            self._drop(alarm.member)
            if self.state is not State.PREPARING:
                self._rebalance(at)
            elif self._all_joined():
                self._complete_join(at)

    def die(self, at: Moment) -> None:
        """The group is deleted, while it is empty."""
        for member in list(self._named):
            self._drop(member)
        self._become(State.DEAD, at)

    def _drop(self, member_id: str) -> None:
        self._alarms.cancel(Alarm(self.name, SESSION, member_id))
        self._named.discard(member_id)
        self._unsynced.discard(member_id)
        self.roll.remove(member_id)

    # Committing

    def check_commit(self, who: GroupMember, transactional: bool, at: Moment) -> None:
        """Refused unless they may commit offsets: members at this generation, or anybody while the group is empty."""
        if who.generation < 0 and self.state is State.EMPTY:
            return
        if who.generation >= 0 or who.member or who.instance is not None:
            refusal = self.roll.why_not(who.member, who.instance)
            if refusal is not None:
                raise Refused(refusal)
            if who.generation != self.generation:
                raise Refused(Refusal.ILLEGAL_GENERATION)
        elif not transactional:
            raise Refused(Refusal.UNKNOWN_MEMBER)
        if transactional:
            return
        if self.state is State.COMPLETING:
            raise Refused(Refusal.REBALANCING)
        self._arm_session(self.members[who.member], at)

    def reader(self, partition: Partition) -> Member | None:
        """Who reads a partition, as the shares were last given out."""
        return self.members.get(self._readers.get(partition, ""))

    def wants(self, topic: str) -> bool:
        """Whether somebody in it reads the topic, or may, for all that is known."""
        if self.topics is None:
            return self.reads_topics and bool(self.members)
        return topic in self.topics

    def _arm_session(self, member: Member, at: Moment) -> None:
        self._alarms.set(Alarm(self.name, SESSION, member.id), at.now + member.session_ms / 1000)

    def _become(self, state: State, at: Moment) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state
        if state is State.EMPTY:
            self.emptied_ms = at.now_ms
        elif state is State.PREPARING:
            self.emptied_ms = None
