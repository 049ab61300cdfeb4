"""A group whose partitions the broker shares out: who is in it, what each should read, and what each reads now.

Members come by with heartbeats. Three numbers tell how far things have come:

| number       | grows when                                                                                     |
|--------------|------------------------------------------------------------------------------------------------|
| group epoch  | a member comes, goes or wants other topics, or a topic that they want has come, gone or grown  |
| target epoch | the partitions have been shared out anew: it is then the group epoch                           |
| member epoch | the member reads nothing any more that others should: it is then the target epoch              |

How a member gets to what it should read is told in `standing.py`. A member that does not let go of a partition in time,
or does not come by any more, is put out. One with an instance name may leave with the word that it will be back: its
partitions are kept for it until its session is over.

A refused heartbeat changes nothing. What is answered is decided at once.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from penstock.broker.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Seat
from penstock.broker.groups.classic import SESSION, Alarm
from penstock.broker.groups.deadlines import Deadlines
from penstock.broker.groups.questions import JOINING, LEAVING, RETURNING, Beat, Beaten, Client, Moment, Slot
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.standing import NOTHING, Progress, Standing, Target
from penstock.broker.groups.topics import TopicWatch
from penstock.broker.refusals import Refusal, Refused
from penstock.wire.protocol import NO_MEMBER, GroupMember, Partition

REVOKE = "revoke"


class State(enum.Enum):
    """How a group is doing."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"


class Wish(NamedTuple):
    """The topics that a member wants: by name, and by a pattern if that is not empty."""

    topics: frozenset[str] = frozenset()
    pattern: str = ""


@dataclass(slots=True, eq=False)
class Member:
    """A member: what it wants, and where it stands."""

    id: str
    instance: str | None
    client: Client
    rebalance_ms: int = 0
    rack: str | None = None
    wish: Wish = Wish()  # noqa: RUF009  # a value
    assignor: str | None = None
    standing: Standing = Standing()  # noqa: RUF009  # a value


class ConsumerGroup:
    """One group. Runs on: the loop thread."""

    def __init__(
        self,
        name: str,
        settings: GroupSettings,
        alarms: Deadlines[Alarm],
        watch: TopicWatch,
        new_id: Callable[[str], str],
    ) -> None:
        self.name = name
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, frozenset[Slot]] = {}
        self.changes = 0
        """How often somebody came or went."""
        self.emptied_ms: int | None = None
        """Since when nobody is in it; None while somebody is, or when nobody ever was."""
        self._settings = settings
        self._alarms = alarms
        self._watch = watch
        self._new_id = new_id
        self._statics: dict[str, str] = {}
        self._owners: dict[Slot, str] = {}
        self._wishes: Counter[Wish] = Counter()
        self._wanted: dict[Wish, frozenset[UUID]] = {}
        self._seen: dict[UUID, int] = {}
        self._version = -1

    def restore(self, epoch: int, emptied_ms: int | None) -> None:
        """Go on as it was remembered: without members, and never at an earlier epoch."""
        self.epoch = self.target_epoch = epoch
        self.emptied_ms = emptied_ms

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroup {self.name}, {self.state.value}, epoch {self.epoch}, target {self.target_epoch}, "
            f"{len(self.members)} members>"
        )

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        return not self.members

    @property
    def state(self) -> State:
        """How it is doing."""
        if not self.members:
            return State.EMPTY
        if self.epoch > self.target_epoch:
            return State.ASSIGNING
        stable = all(member.standing.is_at(self.target_epoch) for member in self.members.values())
        return State.STABLE if stable else State.RECONCILING

    @property
    def assignor(self) -> str:
        """The assignor that most of those members want who name one."""
        named = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return named.most_common(1)[0][0] if named else DEFAULT_ASSIGNOR

    # Coming by

    def beat(self, question: Beat, at: Moment) -> Beaten:
        """A member comes by; Refused when it may not."""
        if question.epoch in (LEAVING, RETURNING):
            return self._leave(question, at)
        self._check(question)
        member = self._member(question)
        wish_before, read_before = member.wish, member.standing.assigned
        self._update(member, question)
        self._look(member.wish != wish_before)
        if self.epoch > self.target_epoch:
            self._assign()
        self._follow(member, question.owned, at)
        self._alarms.set(Alarm(self.name, SESSION, member.id), at.now + self._settings.beat_session_ms / 1000)
        standing = member.standing
        shown = question.epoch == JOINING or question.tells_all or standing.assigned != read_before
        return Beaten(
            *(member.id, standing.epoch, self._settings.beat_interval_ms), standing.assigned if shown else None
        )

    def _check(self, question: Beat) -> None:
        """Refused unless the member may come by like this."""
        if question.assignor is not None and question.assignor not in ASSIGNORS:
            raise Refused(
                Refusal.UNSUPPORTED_ASSIGNOR, f"there is no assignor {question.assignor!r}; {', '.join(ASSIGNORS)} are"
            )
        if question.pattern:
            self._watch.check(question.pattern)
        before = self._before(question)
        if before is None:
            if question.epoch != JOINING:
                raise Refused(Refusal.UNKNOWN_MEMBER, f"{question.member} is no member of {self.name}")
            if len(self.members) >= self._settings.members_max:
                raise Refused(Refusal.GROUP_FULL, f"{self.name} has {self._settings.members_max} members already")
        elif before.id == question.member:
            self._check_epoch(before.standing, question)
        elif question.epoch != JOINING:
            raise Refused(Refusal.FENCED_INSTANCE, f"{before.id} has taken the place of {question.instance}")
        elif before.standing.epoch != RETURNING:
            raise Refused(
                Refusal.UNRELEASED_INSTANCE, f"{before.id} has the place of {question.instance} and has not left"
            )

    def _before(self, question: Beat) -> Member | None:
        """The member that it is, or whose place it would take."""
        if question.instance is None:
            return self.members.get(question.member)
        return self.members.get(self._statics.get(question.instance, ""))

    def _check_epoch(self, standing: Standing, question: Beat) -> None:
        """A member may be an epoch behind when it has not got the answer that told it the new one."""
        if question.epoch in (JOINING, standing.epoch):
            return
        may_have_missed = question.epoch == standing.epoch_before and question.owned is not None
        if not may_have_missed or not question.owned <= standing.assigned:  # type: ignore[operator]
            text = f"{question.member} is at epoch {standing.epoch}, not {question.epoch}; it must join anew"
            raise Refused(Refusal.FENCED_MEMBER_EPOCH, text)

    def _member(self, question: Beat) -> Member:
        """The member that it is, made if need be, or put into the place of the one that it follows."""
        before = self._before(question)
        member_id = question.member or self._new_id("")
        if before is None:
            member = Member(member_id, question.instance, question.client)
            self._wishes[member.wish] += 1
            self.emptied_ms = None
        elif before.id == member_id:
            return before
        else:
            member = before
            self._alarms.cancel(Alarm(self.name, SESSION, before.id))
            del self.members[before.id]
            self.targets[member_id] = self.targets.pop(before.id, NOTHING)
            member.id, member.standing = member_id, before.standing.returned()
            self._owners.update(dict.fromkeys(member.standing.held, member_id))
        self.members[member_id] = member
        self.changes += 1
        if question.instance is not None:
            self._statics[question.instance] = member_id
        return member

    def _update(self, member: Member, question: Beat) -> None:
        if member.client != question.client:
            member.client = question.client
            self.changes += 1
        if question.rack is not None:
            member.rack = question.rack
        if question.rebalance_ms is not None:
            member.rebalance_ms = question.rebalance_ms
        if question.assignor is not None:
            member.assignor = question.assignor
        topics = member.wish.topics if question.topics is None else question.topics
        pattern = member.wish.pattern if question.pattern is None else question.pattern
        self._set_wish(member, Wish(topics, pattern))

    def _set_wish(self, member: Member, wish: Wish) -> None:
        before = member.wish
        if wish == before:
            return
        if wish.pattern:
            self._watch.hold(wish.pattern)
        member.wish = wish
        self._wishes[wish] += 1
        self._forget_wish(before)

    def _forget_wish(self, wish: Wish) -> None:
        self._wishes[wish] -= 1
        if not self._wishes[wish]:
            del self._wishes[wish]
        if wish.pattern:
            self._watch.release(wish.pattern)

    # Sharing out

    def _look(self, has_changed: bool) -> None:
        """Begin a new epoch if what the members want, or the topics that they want, are not what they were."""
        if not has_changed and self._version == self._watch.version and self.epoch:
            return
        self._version = self._watch.version
        seen = self._see()
        if has_changed or seen != self._seen or not self.epoch:
            self._seen = seen
            self.epoch += 1

    def _see(self) -> dict[UUID, int]:
        """The topics that somebody wants, and their partitions."""
        seen: dict[UUID, int] = {}
        self._wanted = {}
        for wish in self._wishes:
            names = wish.topics | (self._watch.matching(wish.pattern) or frozenset() if wish.pattern else frozenset())
            topics = [topic for topic in map(self._watch.topics.find, names) if topic is not None]
            self._wanted[wish] = frozenset(topic.id for topic in topics)
            seen.update((topic.id, topic.partitions) for topic in topics)
        return seen

    def _assign(self) -> None:
        seats = [
            Seat(
                member.id,
                member.instance or member.id,
                self._wanted.get(member.wish, frozenset()),
                self.targets.get(member.id, NOTHING),
            )
            for member in self.members.values()
        ]
        self.targets = ASSIGNORS[self.assignor](seats, self._seen)
        self.target_epoch = self.epoch

    def _follow(self, member: Member, owned: frozenset[Slot] | None, at: Moment) -> None:
        """Bring a member nearer to what it should read."""
        target = Target(self.target_epoch, self.targets.get(member.id, NOTHING))
        standing = member.standing.follow(target, lambda slot: slot not in self._owners, owned)
        if standing == member.standing:
            return
        self._stand(member, standing)
        alarm = Alarm(self.name, REVOKE, member.id)
        if standing.progress is Progress.UNREVOKED:
            self._alarms.set(alarm, at.now + member.rebalance_ms / 1000)
        else:
            self._alarms.cancel(alarm)

    def _stand(self, member: Member, standing: Standing) -> None:
        before, after = member.standing.held, standing.held
        for slot in before - after:
            del self._owners[slot]
        for slot in after - before:
            if slot in self._owners:
                raise RuntimeError(f"{self!r}: {slot} is given to {member.id} while {self._owners[slot]} has it")
            self._owners[slot] = member.id
        member.standing = standing

    # Leaving

    def _leave(self, question: Beat, at: Moment) -> Beaten:
        member = self._before(question)
        if member is None:
            raise Refused(Refusal.UNKNOWN_MEMBER, f"{question.member} is no member of {self.name}")
        if member.id != question.member:
            raise Refused(Refusal.FENCED_INSTANCE, f"{member.id} has taken the place of {question.instance}")
        if question.epoch == RETURNING and member.instance is not None:
            self._alarms.cancel(Alarm(self.name, REVOKE, member.id))
            self._stand(member, member.standing.returning(RETURNING))
        else:
            self._remove(member, at)
        return Beaten(member.id, question.epoch)

    def expire(self, alarm: Alarm, at: Moment) -> None:
        """A member has not come by, or not let go, in time."""
        self._remove(self.members[alarm.member], at)

    def _remove(self, member: Member, at: Moment) -> None:
        for kind in (SESSION, REVOKE):
            self._alarms.cancel(Alarm(self.name, kind, member.id))
        self._stand(member, Standing())
        del self.members[member.id]
        self.changes += 1
        self.targets.pop(member.id, None)
        if member.instance is not None:
            del self._statics[member.instance]
        self._forget_wish(member.wish)
        self._seen = self._see()
        self.epoch += 1
        if not self.members:
            self.emptied_ms = at.now_ms

    # Committing and reading

    def check_commit(self, who: GroupMember, transactional: bool) -> None:
        """Refused unless they may commit offsets: members at their epoch, or anybody while the group is empty."""
        if (who.generation < 0 and not self.members) or (transactional and who == NO_MEMBER):
            return
        self.check_epoch(who)

    def check_epoch(self, who: GroupMember) -> None:
        """Refused unless they are a member at its epoch."""
        member = self.members.get(who.member)
        if member is None:
            raise Refused(Refusal.UNKNOWN_MEMBER, f"{who.member} is no member of {self.name}")
        if who.generation != member.standing.epoch:
            raise Refused(Refusal.STALE_MEMBER_EPOCH, f"{who.member} is at epoch {member.standing.epoch}")

    def reader(self, partition: Partition) -> Member | None:
        """Who reads a partition."""
        topic = self._watch.topics.find(partition.topic)
        return None if topic is None else self.members.get(self._owners.get((topic.id, partition.number), ""))

    def wants(self, topic: str) -> bool:
        """Whether somebody in it reads the topic."""
        known = self._watch.topics.find(topic)
        return bool(self.members) and known is not None and known.id in self._seen
