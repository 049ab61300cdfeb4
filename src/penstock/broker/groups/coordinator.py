"""All groups of a broker: found by name, kept in the store, told of time and of topics.

A group has one of two protocols, `classic.py` or `consumer.py`; it can change while it is empty, and not otherwise. A
group that nobody ever joined exists because somebody has committed offsets for it.

What a group remembers is its offsets, and the number of its generation, which never goes back; not its members: after
a start they are unknown, and join again. An answer that tells a new generation waits until that is durable. When the
store fails it is told anyway: readers go on reading while a disk is full, and a number that comes twice after a crash
harms nobody, since members are known by their ids.

Groups and offsets that nobody needs are dropped: each group is looked at now and then, none in every turn. Runs on: the
loop thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias

from penstock.broker.groups.classic import Alarm, ClassicGroup
from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.deadlines import Deadlines
from penstock.broker.groups.ledger import GroupFacts, read_pending
from penstock.broker.groups.offsets import Offsets
from penstock.broker.groups.questions import (
    Beat,
    Beaten,
    Client,
    Fetched,
    GroupPosition,
    GroupSeen,
    Join,
    Joined,
    Leaver,
    Moment,
    Offset,
    Replies,
    Sync,
    Synced,
)
from penstock.broker.groups.registry import LOOK, Group, Registry
from penstock.broker.groups.retention import overdue
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.topics import TopicSeen, TopicsSeen, TopicWatch
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.store import Scope, Store
from penstock.wire.protocol import GroupMember, Partition

_log = logging.getLogger("penstock.broker")

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
ALARMS_MAX: Final = 1000
"""How many deadlines are seen to in one turn."""

Outcome: TypeAlias = Callable[[Refused | None], None]
Outcomes: TypeAlias = Callable[[dict[Partition, Refusal | None]], None]
"""What became of each."""


class Groups:
    """All groups."""

    def __init__(
        self,
        store: Store,
        topics: TopicsSeen,
        settings: GroupSettings,
        at: Moment,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.offsets = Offsets(store)
        self._store = store
        self._settings = settings
        self._watch = TopicWatch(topics)
        self._alarms: Deadlines[Alarm] = Deadlines()
        self._registry = Registry(settings, self._alarms, self._watch, new_id)
        self._kept: dict[str, GroupFacts] = {}
        self._load(at)

    def __repr__(self) -> str:
        return f"<Groups {self._registry!r}, {self.offsets!r}, {self._alarms!r}>"

    def _load(self, at: Moment) -> None:
        self.offsets.load(self._store.offsets(), read_pending(self._store))
        for name, state in self._store.groups():
            facts = self._kept[name] = GroupFacts.read(state)
            emptied_ms = at.now_ms if facts.emptied_ms is None else facts.emptied_ms
            if facts.protocol == CONSUMER:
                self._registry.add_consumer(name).restore(facts.generation, emptied_ms)
            else:
                self._registry.add_classic(name).restore(facts.generation, facts.kind, emptied_ms)
        for name in self.offsets.groups() - self._kept.keys():
            self._registry.add_classic(name)
        wait = self._settings.retention_check_ms / 1000 / max(len(self), 1)
        for place, group in enumerate(self, 1):
            self._alarms.set(Alarm(group.name, LOOK), at.now + wait * place)

    # Finding

    def __len__(self) -> int:
        return len(self._registry)

    def __iter__(self) -> Iterator[Group]:
        """All groups, in no order."""
        return iter(self._registry)

    def find(self, name: str) -> Group | None:
        """The group of that name."""
        return self._registry.find(name)

    def get(self, name: str) -> Group:
        """The group of that name; Refused when there is none."""
        group = self.find(name)
        if group is None:
            raise Refused(Refusal.UNKNOWN_GROUP, f"there is no group {name!r}")
        return group

    def seen(self) -> Iterator[GroupSeen]:
        """All groups, as a list tells of them."""
        for group in self:
            protocol, kind = (CLASSIC, group.kind or "") if isinstance(group, ClassicGroup) else (CONSUMER, CONSUMER)
            yield GroupSeen(group.name, protocol, kind, group.state.value, len(group.members))

    def positions(self) -> Iterator[GroupPosition]:
        """How far all groups have come."""
        return self.offsets.positions()

    def groups_reading(self, client_id: str, host: str, topic: str, partition: int) -> set[str]:
        """The groups in which a client of that id, at that host, reads the partition."""
        return self._registry.readers.reading(Client(client_id, host), Partition(topic, partition))

    # Members that agree among themselves

    def join(self, question: Join, reply: Callable[[Joined], None], at: Moment) -> None:
        """Take a member into the next generation of its group; answered when that begins."""
        try:
            group = self._registry.classic(question, at)
        except Refused as refused:
            reply(Joined(question.member, refusal=refused.reason))
            return
        group.join(question, reply, at)
        self._settle(group)
        self._drop_unused(group, at)

    def sync(self, question: Sync, reply: Callable[[Synced], None], at: Moment) -> None:
        """Give a member its share; answered when the leader has brought it."""
        group = self.find(question.group)
        if not isinstance(group, ClassicGroup):
            reply(Synced(refusal=Refusal.UNKNOWN_MEMBER))
            return
        group.sync(question, reply, at)
        self._settle(group)

    def heartbeat(self, name: str, who: GroupMember, at: Moment) -> Refusal | None:
        """A member says that it lives; REBALANCING tells it to join again."""
        group = self.find(name)
        if not isinstance(group, ClassicGroup):
            return Refusal.UNKNOWN_MEMBER
        return group.heartbeat(who, at)

    def leave(self, name: str, leavers: Iterable[Leaver], at: Moment) -> list[Refusal | None]:
        """Let members go; what each is answered."""
        group = self.find(name)
        if not isinstance(group, ClassicGroup):
            return [Refusal.UNKNOWN_MEMBER for _ in leavers]
        answers = group.leave(leavers, at)
        self._settle(group)
        return answers

    # Members whose partitions the broker shares out

    def beat(self, question: Beat, reply: Callable[[Beaten], None], at: Moment) -> None:
        """A member comes by; answered when what it is told is durable."""
        group = None
        try:
            group = self._registry.consumer(question, at)
            self._settle(group, [(reply, group.beat(question, at))])
        except Refused as refused:
            reply(Beaten(question.member, refused=refused))
            if group is not None:
                self._drop_unused(group, at)

    # Offsets

    def commit(
        self, name: str, who: GroupMember, offsets: Mapping[Partition, Offset], reply: Outcomes, at: Moment
    ) -> None:
        """Commit offsets; answered, for each, when they are durable. Refused at once when none can be."""
        group = self.find(name)
        if group is None:
            if who.generation >= 0:
                raise Refused(Refusal.UNKNOWN_GROUP, f"there is no group {name!r}")
            group = self._registry.new_classic(name, at)
        self._check_commit(group, who, at, transactional=False)
        taken, outcomes = self._take(offsets)
        self.offsets.commit(name, taken, lambda error: reply(_told(outcomes, error)))

    def commit_pending(
        self,
        name: str,
        who: GroupMember,
        producer: int,
        offsets: Mapping[Partition, Offset],
        reply: Outcomes,
        at: Moment,
    ) -> None:
        """Commit offsets when the producer's transaction commits; answered as `commit` does."""
        group = self.find(name)
        if group is None:
            if who.generation >= 0:
                raise Refused(Refusal.ILLEGAL_GENERATION, f"there is no group {name!r}")
            group = self._registry.new_classic(name, at)
        self._check_commit(group, who, at, transactional=True)
        taken, outcomes = self._take(offsets)
        self.offsets.commit_pending(producer, name, taken, lambda error: reply(_told(outcomes, error)))

    def _take(
        self, offsets: Mapping[Partition, Offset]
    ) -> tuple[dict[Partition, Offset], dict[Partition, Refusal | None]]:
        """Those that can be committed, and what each is to be answered then."""
        most = self._settings.offset_metadata_max
        outcomes = {
            partition: Refusal.OFFSET_METADATA_TOO_LARGE if len(offset.metadata) > most else None
            for partition, offset in offsets.items()
        }
        return {it: offset for it, offset in offsets.items() if outcomes[it] is None}, outcomes

    def fetch(
        self,
        name: str,
        partitions: Iterable[Partition] | None,
        reply: Callable[[Fetched | Refused], None],
        who: GroupMember | None = None,
        stable_only: bool = False,
    ) -> None:
        """A group's offsets, all if no partitions are named; answered behind the commits that came before.

        With `stable_only` one that waits for the end of a transaction is not told, but UNSTABLE_OFFSET.
        """

        def tell() -> None:
            group = self.find(name)
            try:
                if isinstance(group, ConsumerGroup) and who is not None:
                    group.check_epoch(who)
            except Refused as refused:
                reply(refused)
                return
            offsets, pending = self.offsets.of(name), self.offsets.pending_of(name) if stable_only else ()
            asked = {*offsets, *pending} if partitions is None else partitions
            reply({it: Refusal.UNSTABLE_OFFSET if it in pending else offsets.get(it) for it in asked})

        self.offsets.when_settled(name, tell)

    def drop_offsets(self, name: str, partitions: Collection[Partition], reply: Outcomes) -> None:
        """Forget offsets; answered, for each partition, when that is durable. Refused at once when none can be."""
        group = self.get(name)
        if isinstance(group, ClassicGroup) and not group.is_empty and not group.reads_topics:
            raise Refused(Refusal.GROUP_NOT_EMPTY, f"{name} has members")
        outcomes = {it: Refusal.GROUP_SUBSCRIBED if group.wants(it.topic) else None for it in partitions}
        gone = [partition for partition, refusal in outcomes.items() if refusal is None]
        self.offsets.drop(name, gone, lambda error: reply(_told(outcomes, error)))

    def delete(self, name: str, reply: Outcome, at: Moment) -> None:
        """Forget a group with its offsets; answered when that is durable. Refused at once when it has members."""
        group = self.get(name)
        if not group.is_empty:
            raise Refused(Refusal.GROUP_NOT_EMPTY, f"{name} has members")

        facts = self._kept.get(name)

        def deleted(error: Exception | None) -> None:
            is_as_it_was = self.find(name) is group and group.is_empty and self._kept.get(name) is facts
            if error is None and is_as_it_was and not self.offsets.is_writing(name):
                self._remove(group, at)
            reply(None if error is None else refusal_of(error))

        self.offsets.drop_group(name, deleted)

    # Time and topics

    def turn(self, now: float, now_ms: int) -> float | None:
        """See to what is due; returns when to be called again."""
        at = Moment(now, now_ms)
        for alarm in islice(self._alarms.due(now), ALARMS_MAX):
            group = self.get(alarm.group)
            if alarm.kind == LOOK:
                self._look(group, at)
            else:
                group.expire(alarm, at)
                self._settle(group)
        return now if self._watch.turn() else self._alarms.next()

    def topic_created(self, topic: TopicSeen) -> None:
        """There is a new topic, which members may have waited for."""
        self._watch.created(topic)

    def topic_grown(self, topic: TopicSeen) -> None:
        """A topic has more partitions, to be shared out."""
        self._watch.grown()

    def topic_deleted(self, topic: TopicSeen) -> None:
        """A topic is gone, and with it all offsets there."""
        self._watch.deleted(topic)
        self.offsets.topic_deleted(topic.name)

    def settings_changed(self, scope: Scope, values: Mapping[str, object], unset: Collection[str]) -> None:
        """Nothing to do: no setting of a topic is of concern here."""

    # Pieces

    def _settle(self, group: Group, replies: Replies | None = None) -> None:
        """Hand out what a group has answered, as soon as what it tells is durable."""
        if isinstance(group, ClassicGroup):
            replies, group.roll.replies = group.roll.replies, []
            facts = GroupFacts(CLASSIC, group.generation, group.kind, group.emptied_ms)
        else:
            facts = GroupFacts(CONSUMER, group.epoch, CONSUMER, group.emptied_ms)
        self._registry.note(group)
        held = replies or []
        kept = self._kept.get(group.name)
        if facts.generation == (kept.generation if kept else 0):
            _hand_out(held)
            return
        self._kept[group.name] = facts
        self._store.save_group(group.name, facts.told(), lambda _error: _hand_out(held))

    def _check_commit(self, group: Group, who: GroupMember, at: Moment, transactional: bool) -> None:
        if isinstance(group, ClassicGroup):
            group.check_commit(who, transactional, at)
        else:
            group.check_commit(who, transactional)

    # What nobody needs any more

    def _is_unused(self, group: Group) -> bool:
        """Whether nobody is in it or about to be, and nothing is committed or about to be."""
        is_expected = isinstance(group, ClassicGroup) and group.is_expected
        if not group.is_empty or is_expected or self.offsets.is_writing(group.name):
            return False
        return not self.offsets.of(group.name) and not self.offsets.pending_of(group.name)

    def _remove(self, group: Group, at: Moment) -> None:
        """Let go of an empty group that the store does not know any more."""
        self._registry.remove(group, at)
        self._kept.pop(group.name, None)

    def _drop_unused(self, group: Group, at: Moment) -> None:
        """Let go of a group that was made for somebody who was then refused."""
        if group.name not in self._kept and self._is_unused(group):
            self._remove(group, at)

    def _look(self, group: Group, at: Moment) -> None:
        """Drop offsets whose time is over, and the group when nothing is left of it."""
        self._registry.look_later(group.name, at)
        if self.offsets.is_writing(group.name):  # it may be about to have what is looked for
            return
        gone = overdue(group, self.offsets, self._settings.offsets_retention_ms, at.now_ms)
        if gone:
            self.offsets.drop(group.name, gone)
            return
        if self._is_unused(group):
            self.delete(group.name, lambda _refused: None, at)


def _told(outcomes: dict[Partition, Refusal | None], error: Exception | None) -> dict[Partition, Refusal | None]:
    """What became of each, now that those without a refusal are durable, or are not."""
    if error is None:
        return outcomes
    failure = refusal_of(error).reason
    return {partition: refusal or failure for partition, refusal in outcomes.items()}


def _hand_out(replies: Replies) -> None:
    """Answer everybody; an answer that cannot be given harms nobody else."""
    for reply, answer in replies:
        try:
            reply(answer)
        except Exception:  # noqa: BLE001
            _log.exception("%r could not be answered", answer)
