"""Whatever members do, and whatever is lost on the way: no partition has two readers, and epochs only grow.

Here members are slow and forgetful: they hear an answer or miss it, and let go of a partition when they feel like it.
A partition has two readers if two of them, none of which was put out, read it at the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.groups.questions import LEAVING, RETURNING, Beaten, Slot
from penstock.broker.groups.standing import Progress
from penstock.broker.refusals import Refused
from tests.broker.groups.kit import REBALANCE_MS, ConsumerTown

WHO = st.integers(0, 3)
NAMES = ["a", "b", "c"]
WISHES = st.frozensets(st.sampled_from(NAMES), min_size=1)


@dataclass
class Slow:
    """A member as its own process sees it."""

    number: int
    instance: str | None
    lives: int = 0
    epoch: int = 0
    wish: frozenset[str] = frozenset({"a"})
    reads: frozenset[Slot] = frozenset()
    should: frozenset[Slot] = field(default_factory=frozenset)

    @property
    def id(self) -> str:
        return f"m{self.number}.{self.lives}"


class SlowReaders(RuleBasedStateMachine):
    """Four members, one of them static, three topics that come, go and grow."""

    def __init__(self) -> None:
        super().__init__()
        self.town = ConsumerTown(members_max=3)
        self.town.make("a", 3)
        self.readers = [Slow(number, "x" if number == 3 else None) for number in range(4)]
        self.epoch = 0

    def tell(self, reader: Slow, hears: bool, **changes: Any) -> None:
        try:
            answer = self.town.beat(reader.id, reader.epoch, instance=reader.instance, **changes)
        except Refused:
            if hears:
                self.start_anew(reader)
            return
        if hears:
            self.hear(reader, answer)

    def hear(self, reader: Slow, answer: Beaten) -> None:
        reader.epoch = answer.epoch
        if answer.assigned is not None:
            reader.should = answer.assigned
            reader.reads |= answer.assigned - reader.reads

    def start_anew(self, reader: Slow) -> None:
        reader.epoch, reader.reads, reader.should = 0, frozenset(), frozenset()

    @rule(who=WHO, hears=st.booleans(), says=st.booleans())
    def beat(self, who: int, hears: bool, says: bool) -> None:
        reader = self.readers[who]
        if reader.epoch == 0:
            values = {"rebalance_ms": REBALANCE_MS, "topics": reader.wish, "owned": frozenset[Slot]()}
        elif says or not hears:  # one that missed an answer tells everything the next time
            values = {"rebalance_ms": REBALANCE_MS, "topics": reader.wish, "owned": reader.reads}
        else:
            values = {}
        self.tell(reader, hears, **values)

    @rule(who=WHO)
    def let_go(self, who: int) -> None:
        self.readers[who].reads &= self.readers[who].should

    @rule(who=WHO, wish=WISHES)
    def want(self, who: int, wish: frozenset[str]) -> None:
        self.readers[who].wish = wish

    @rule(who=WHO, is_last=st.booleans())
    def leave(self, who: int, is_last: bool) -> None:
        reader = self.readers[who]
        reader.reads = frozenset()  # a member lets go before it leaves
        reader.epoch = LEAVING if is_last or reader.instance is None else RETURNING
        self.tell(reader, hears=False)
        reader.lives += 1
        self.start_anew(reader)

    @rule(who=WHO)
    def crash(self, who: int) -> None:
        self.readers[who].lives += 1
        self.start_anew(self.readers[who])

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 5))
    def change_topic(self, name: str, partitions: int) -> None:
        topic = self.town.topics.find(name)
        if topic is None:
            self.town.make(name, partitions)
        elif topic.partitions < partitions:
            self.town.grow(name, partitions)
        else:
            self.town.drop(name)

    @rule(seconds=st.sampled_from([1.0, 20.0, 50.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.town.wait(seconds)
        for reader in self.readers:  # a session is over for the member as well
            if reader.id not in self.town.group.members:
                self.start_anew(reader)

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        seen: dict[Slot, str] = {}
        for reader in self.readers:
            if reader.id in self.town.group.members:
                for slot in reader.reads:
                    assert seen.setdefault(slot, reader.id) == reader.id

    @invariant()
    def the_books_add_up(self) -> None:
        group = self.town.group
        owners = {slot: member.id for member in group.members.values() for slot in member.standing.held}
        assert owners == group._owners
        assert sum(len(member.standing.held) for member in group.members.values()) == len(owners)
        for member in group.members.values():
            assert (member.standing.progress is Progress.UNREVOKED) <= bool(member.standing.revoking)
            assert member.standing.epoch <= group.target_epoch <= group.epoch
        assert sum(group._wishes.values()) == len(group.members)

    @invariant()
    def epochs_only_grow(self) -> None:
        assert self.town.group.epoch >= self.epoch
        self.epoch = self.town.group.epoch

    def teardown(self) -> None:
        """Members that behave come to rest, each partition with a reader if somebody wants it."""
        for _ in range(10):
            self.town.wait(10)
            for reader in self.readers:
                reader.reads &= reader.should
                joining = {"rebalance_ms": REBALANCE_MS, "topics": reader.wish}
                self.tell(reader, hears=True, owned=reader.reads, **joining)
        group = self.town.group
        wanted = {name for member in group.members.values() for name in member.wish.topics}
        expected = {
            (topic.id, number)
            for topic in self.town.topics
            if topic.name in wanted
            for number in range(topic.partitions)
        }
        assert set(group._owners) == expected
        assert all(member.standing.is_at(group.epoch) for member in group.members.values())


TestConsumerGroup = SlowReaders.TestCase
