"""Groups by their names: found, made, turned from one protocol to the other, and let go.

A group has one protocol at a time and changes it only while it is empty; its generation goes on. This is where it is
seen to that no client can have too many groups, members or bytes here. Runs on: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from penstock.broker.groups.classic import Alarm, ClassicGroup
from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.deadlines import Deadlines
from penstock.broker.groups.questions import JOINING, Beat, Join, Moment
from penstock.broker.groups.readers import Readers
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.topics import TopicWatch
from penstock.broker.refusals import Refusal, Refused

LOOK: Final = "look"
"""A deadline at which it is seen whether somebody still needs the group."""
NAME_MAX: Final = 1000
"""The longest name of a group, a member or an instance: it must fit into every answer of every door."""
PREFIX_MAX: Final = 200
"""How much of a client's id is part of the ids of its members."""

Group: TypeAlias = ClassicGroup | ConsumerGroup


class Registry:
    """All groups that there are."""

    def __init__(
        self, settings: GroupSettings, alarms: Deadlines[Alarm], watch: TopicWatch, new_id: Callable[[], str]
    ) -> None:
        self.readers = Readers()
        self._settings = settings
        self._alarms = alarms
        self._watch = watch
        self._new_id = new_id
        self._groups: dict[str, Group] = {}
        self._sizes: dict[str, int] = {}
        self._members = 0

    def __repr__(self) -> str:
        return f"<Registry of {len(self._groups)} with {self._members} members>"

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        """All groups, in no order."""
        return iter(list(self._groups.values()))

    def find(self, name: str) -> Group | None:
        """The group of that name."""
        return self._groups.get(name)

    # For those who come to a group

    def classic(self, question: Join, at: Moment) -> ClassicGroup:
        """The group to be joined, made if need be; Refused when it cannot be joined like this."""
        self._check_room(question)
        name, group = question.group, self._groups.get(question.group)
        if isinstance(group, ClassicGroup):
            return group
        if group is None:
            if question.member:
                raise Refused(Refusal.UNKNOWN_MEMBER, f"there is no group {name!r}")
            return self.new_classic(name, at)
        if not group.is_empty:
            raise Refused(Refusal.INCONSISTENT_PROTOCOL, f"the members of {name} have their partitions shared out")
        classic = self.add_classic(name)
        classic.restore(group.epoch, None, group.emptied_ms)
        return classic

    def consumer(self, question: Beat, at: Moment) -> ConsumerGroup:
        """The group that a member comes by at, made if need be; Refused when it cannot be joined like this."""
        self._check_room(question)
        name, group = question.group, self._groups.get(question.group)
        if isinstance(group, ConsumerGroup):
            return group
        if group is not None and not group.is_empty:
            raise Refused(Refusal.UNKNOWN_GROUP, f"the members of {name} share their partitions out among themselves")
        if question.epoch != JOINING:
            raise Refused(Refusal.UNKNOWN_MEMBER, f"{question.member} is no member of {name}")
        if group is None:
            self._check_new(name, at)
            return self.add_consumer(name)
        group.die(at)
        consumer = self.add_consumer(name)
        consumer.restore(group.generation, group.emptied_ms)
        return consumer

    def new_classic(self, name: str, at: Moment) -> ClassicGroup:
        """A group that was not there before; Refused when there can be none of that name, or no more at all."""
        self._check_new(name, at)
        return self.add_classic(name)

    def _check_new(self, name: str, at: Moment) -> None:
        _check_name(name)
        if len(self._groups) >= self._settings.groups_max:
            raise Refused(Refusal.TOO_MANY_GROUPS, f"there are {self._settings.groups_max} groups already")
        self.look_later(name, at)

    def _check_room(self, question: Join | Beat) -> None:
        """Refused when a member says too much, or is one too many for all groups together."""
        _check_name(question.group)
        if max(len(question.member), len(question.instance or "")) > NAME_MAX:
            raise Refused(Refusal.BAD_REQUEST, f"the name of a member or instance has {NAME_MAX} characters at most")
        if question.size > self._settings.member_bytes_max:
            raise Refused(Refusal.BAD_REQUEST, f"a member may say {self._settings.member_bytes_max} bytes of itself")
        group = self._groups.get(question.group)
        is_known = group is not None and question.member in group.members
        if self._members >= self._settings.members_total_max and not is_known:
            raise Refused(Refusal.GROUP_FULL, f"all groups have {self._settings.members_total_max} members already")

    # Without asking

    def add_classic(self, name: str) -> ClassicGroup:
        """A group without members, in place of the one that there may have been."""
        group = self._groups[name] = ClassicGroup(name, self._settings, self._alarms, self._member_id)
        return group

    def add_consumer(self, name: str) -> ConsumerGroup:
        """The same with the other protocol."""
        group = self._groups[name] = ConsumerGroup(name, self._settings, self._alarms, self._watch, self._member_id)
        return group

    def look_later(self, name: str, at: Moment) -> None:
        """Have it seen, after a while, whether somebody still needs the group."""
        self._alarms.set(Alarm(name, LOOK), at.now + self._settings.retention_check_ms / 1000)

    def note(self, group: Group) -> None:
        """See who has come or gone."""
        self.readers.note(group)
        self._members += len(group.members) - self._sizes.get(group.name, 0)
        self._sizes[group.name] = len(group.members)

    def remove(self, group: Group, at: Moment) -> None:
        """Let go of an empty group."""
        if isinstance(group, ClassicGroup):
            group.die(at)
        self._alarms.cancel(Alarm(group.name, LOOK))
        self._sizes.pop(group.name, None)
        del self._groups[group.name]

    def _member_id(self, prefix: str) -> str:
        return f"{prefix[:PREFIX_MAX]}-{self._new_id()}" if prefix else self._new_id()


def _check_name(name: str) -> None:
    if len(name) > NAME_MAX:
        raise Refused(Refusal.BAD_GROUP_NAME, f"the name of a group has {NAME_MAX} characters at most")
