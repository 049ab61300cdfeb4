"""What tests of groups share: a clock moved by hand, topics made by hand, and members that note their answers."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.broker.groups.classic import Alarm, ClassicGroup
from penstock.broker.groups.classic import State as ClassicState
from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.consumer import State as ConsumerState
from penstock.broker.groups.coordinator import Groups
from penstock.broker.groups.deadlines import Deadlines
from penstock.broker.groups.questions import (
    Beat,
    Beaten,
    Client,
    Join,
    Joined,
    Moment,
    Offer,
    Share,
    Slot,
    Sync,
)
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.topics import TopicWatch
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.store import Done, Store
from penstock.wire.protocol import GroupMember

SESSION_MS, REBALANCE_MS = 10_000, 60_000
START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class FakeTopic:
    id: UUID
    name: str
    partitions: int


class FakeTopics:
    """Topics made by hand; a topic that is made again has another id."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._topics: dict[str, FakeTopic] = {}

    def make(self, name: str, partitions: int) -> FakeTopic:
        self._topics[name] = FakeTopic(UUID(int=next(self._numbers)), name, partitions)
        return self._topics[name]

    def grow(self, name: str, partitions: int) -> FakeTopic:
        self._topics[name] = FakeTopic(self._topics[name].id, name, partitions)
        return self._topics[name]

    def drop(self, name: str) -> FakeTopic:
        return self._topics.pop(name)

    def find(self, name: str) -> FakeTopic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: UUID) -> FakeTopic | None:
        return next((topic for topic in self._topics.values() if topic.id == topic_id), None)

    def __iter__(self) -> Iterator[FakeTopic]:
        return iter(list(self._topics.values()))


class Rounds:
    """A commit thread that does its work when told to, or fails."""

    def __init__(self, store: Store) -> None:
        self._db = store.connect()
        self._db.execute("PRAGMA synchronous = OFF")
        self._waiting: list[tuple[Callable[[sqlite3.Connection], None] | None, Done | None]] = []
        self.rounds = 0

    def submit(self, work: Callable[[sqlite3.Connection], None] | None = None, done: Done | None = None) -> int:
        self._waiting.append((work, done))
        return self.rounds

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def run(self, error: Exception | None = None) -> None:
        """Do all that waits, in one transaction, or undo it with this error; then tell."""
        waiting, self._waiting = self._waiting, []
        self.rounds += 1
        if error is None:
            self._db.execute("BEGIN IMMEDIATE")
            for work, _done in waiting:
                if work is not None:
                    work(self._db)
            self._db.execute("COMMIT")
        for _work, done in waiting:
            if done is not None:
                done(error)

    def close(self) -> None:
        self._db.close()


@dataclass
class Asked:
    """A question's one answer."""

    answers: list[Any] = field(default_factory=list)

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def answer(self) -> Any:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]


class Ids:
    """Ids that can be told apart, and foretold."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"id{next(self._numbers)}"


def join_question(group: str, member: str = "", **changes: Any) -> Join:
    """A member's question, as a consumer of the newest version asks it."""
    topics = changes.pop("topics", frozenset({"t"}))
    values: dict[str, Any] = {
        "client": Client("app", "10.0.0.1"),
        "kind": "consumer",
        "offers": (Offer("range", b"about me", topics),),
        "session_ms": SESSION_MS,
        "rebalance_ms": REBALANCE_MS,
        "takes_id": True,
        "skips_assignment": True,
        "reads_topics": True,
    }
    return Join(group, member, **{**values, **changes})


class ClassicTown:
    """One classic group without a store, its clock, and what everybody was answered."""

    def __init__(self, **settings: Any) -> None:
        self.alarms: Deadlines[Alarm] = Deadlines()
        self.ids = Ids()
        self.group = ClassicGroup("g", GroupSettings(**settings), self.alarms, lambda prefix: f"{prefix}-{self.ids()}")
        self.now = 0.0
        self.generations: list[int] = []

    @property
    def at(self) -> Moment:
        return Moment(self.now, START_MS + int(self.now * 1000))

    def is_in(self, state: ClassicState) -> bool:
        return self.group.state is state

    def hand_out(self) -> None:
        replies, self.group.roll.replies = self.group.roll.replies, []
        for reply, answer in replies:
            reply(answer)

    def join(self, member: str = "", **changes: Any) -> Asked:
        asked = Asked()
        self.group.join(join_question("g", member, **changes), asked, self.at)
        self.hand_out()
        return asked

    def enter(self, **changes: Any) -> tuple[str, Asked]:
        """Join as a new member does: be given an id, and join again under it."""
        told: Joined = self.join(**changes).answer
        assert told.refusal is Refusal.MEMBER_ID_NEEDED
        return told.member, self.join(told.member, **changes)

    def sync(
        self, member: str, generation: int | None = None, shares: dict[str, Share] | None = None, **more: Any
    ) -> Asked:
        asked = Asked()
        generation = self.group.generation if generation is None else generation
        self.group.sync(Sync("g", member, generation, shares=shares or {}, **more), asked, self.at)
        self.hand_out()
        return asked

    def heartbeat(self, member: str, generation: int | None = None, instance: str | None = None) -> Refusal | None:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(GroupMember(generation, member, instance), self.at)

    def leave(self, *leavers: Any) -> list[Refusal | None]:
        answers = self.group.leave(leavers, self.at)
        self.hand_out()
        return answers

    def wait(self, seconds: float) -> None:
        """Let time pass, from deadline to deadline."""
        end = self.now + seconds
        while (due := self.alarms.next()) is not None and due <= end:
            self.now = max(self.now, due)
            for alarm in self.alarms.due(self.now):
                self.group.expire(alarm, self.at)
            self.hand_out()
        self.now = end

    def outlast(self, seconds: float, *members: str, instance: str | None = None) -> None:
        """Let time pass while these members send heartbeats."""
        for _ in range(math.ceil(seconds / 5)):
            for member in members:
                self.heartbeat(member, instance=instance)
            self.wait(5)

    def settle(self, *members: str) -> dict[str, Asked]:
        """Let members of a new generation ask for their shares, the leader last."""
        leader = self.group.roll.leader or ""
        asked = {member: self.sync(member) for member in members if member != leader}
        shares = {member: Share(f"share of {member}".encode()) for member in members}
        asked[leader] = self.sync(leader, shares=shares)
        return asked

    def stable(self, count: int = 1) -> list[str]:
        """A stable group of so many members, the first one leading."""
        members: list[str] = []
        for _ in range(count):
            member, asked = self.enter()
            waiting = [self.join(other) for other in members]
            members.append(member)
            assert all(each.is_answered for each in (asked, *waiting))
            self.settle(*members)
        return members


class Town:
    """All groups of a broker, with a real store whose rounds are run by hand; `restart` is a crash and a new start."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = GroupSettings(**settings)
        self.topics = FakeTopics()
        self.ids = Ids()
        self.now = 0.0
        self.wall_ms = START_MS
        self._open()

    def _open(self) -> None:
        self.store = Store(self.folder)
        self.rounds = Rounds(self.store)
        self.store.attach(self.rounds)
        self.groups = Groups(self.store, self.topics, self.settings, self.at, self.ids)

    @property
    def at(self) -> Moment:
        return Moment(self.now, self.wall_ms)

    def close(self) -> None:
        self.rounds.close()
        self.store.close()

    def restart(self) -> None:
        """End without a word, and start again: what was not durable is lost."""
        self.close()
        self._open()

    def wait(self, seconds: float) -> None:
        """Let time pass, from deadline to deadline, rounds included."""
        end, end_ms = self.now + seconds, self.wall_ms + int(seconds * 1000)
        while (due := self.groups.turn(self.now, self.wall_ms)) is not None and due <= end:
            self.wall_ms += int(max(due - self.now, 0) * 1000)
            self.now = max(self.now, due)
            self.rounds.run()
        self.rounds.run()
        self.now, self.wall_ms = end, end_ms


class ConsumerTown:
    """One group whose partitions the broker shares out, without a store."""

    def __init__(self, **settings: Any) -> None:
        self.topics = FakeTopics()
        self.watch = TopicWatch(self.topics)
        self.alarms: Deadlines[Alarm] = Deadlines()
        self.settings = GroupSettings(**settings)
        ids = Ids()
        self.group = ConsumerGroup("g", self.settings, self.alarms, self.watch, lambda prefix: f"{prefix}{ids()}")
        self.now = 0.0

    @property
    def at(self) -> Moment:
        return Moment(self.now, START_MS + int(self.now * 1000))

    def is_in(self, state: ConsumerState) -> bool:
        return self.group.state is state

    def make(self, name: str, partitions: int) -> UUID:
        topic = self.topics.make(name, partitions)
        self.watch.created(topic)
        self.watch.turn()
        return topic.id

    def grow(self, name: str, partitions: int) -> None:
        self.topics.grow(name, partitions)
        self.watch.grown()

    def drop(self, name: str) -> None:
        self.watch.deleted(self.topics.drop(name))

    def beat(self, member: str, epoch: int, **changes: Any) -> Beaten:
        return self.group.beat(Beat("g", member, epoch, **{"client": Client("app", "10.0.0.1"), **changes}), self.at)

    def refusal(self, member: str, epoch: int, **changes: Any) -> Refusal:
        """Why it is refused to come by."""
        try:
            answer = self.beat(member, epoch, **changes)
        except Refused as refused:
            return refused.reason
        raise AssertionError(answer)

    def join(self, member: str, *topics: str, **changes: Any) -> Beaten:
        values = {"rebalance_ms": REBALANCE_MS, "topics": frozenset(topics), "owned": frozenset()}
        return self.beat(member, 0, **{**values, **changes})

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.alarms.next()) is not None and due <= end:
            self.now = max(self.now, due)
            for alarm in self.alarms.due(self.now):
                self.group.expire(alarm, self.at)
        self.now = end


class Reader:
    """A member that behaves: reads what it is given, lets go of what it is not, and says so when it comes by next."""

    def __init__(self, town: ConsumerTown, member: str, *topics: str, **changes: Any) -> None:
        self.town, self.member = town, member
        self.instance: str | None = changes.get("instance")
        self.epoch = 0
        self.owned: frozenset[Slot] = frozenset()
        self._hear(town.join(member, *topics, **changes))

    def beat(self, **changes: Any) -> Beaten:
        """Come by, with what it reads."""
        return self._hear(self.town.beat(self.member, self.epoch, **{"owned": self.owned, **changes}))

    def _hear(self, answer: Beaten) -> Beaten:
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.owned = answer.assigned
        return answer


def settle_readers(*readers: Reader) -> None:
    """Let members come by until nothing changes any more."""
    for _ in range(10):
        before = [(reader.epoch, reader.owned) for reader in readers]
        for reader in readers:
            reader.beat()
        if before == [(reader.epoch, reader.owned) for reader in readers]:
            return
    raise AssertionError("the group does not come to rest")
