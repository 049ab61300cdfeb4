"""Whatever members do, and in whatever order: each question has one answer, and generations only grow."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.groups.classic import SESSION, Alarm, State
from penstock.broker.groups.questions import Joined, Leaver, Offer, Share, Synced
from penstock.broker.refusals import Refusal
from tests.broker.groups.kit import Asked, ClassicTown

WHO = st.integers(0, 3)
X, Y = Offer("x", b"1"), Offer("y", b"2")
OFFERS = st.sampled_from([(X,), (X, Y), (Y, X), (Y,), (Offer("z", b""),)])
INSTANCES = [None, None, "a", "b"]
SELDOM = st.sampled_from([False] * 5 + [True])


class Clients(RuleBasedStateMachine):
    """Four clients that behave now and then, two of them static."""

    delay_ms = 0

    def __init__(self) -> None:
        super().__init__()
        self.town = ClassicTown(members_max=3, first_rebalance_delay_ms=self.delay_ms)
        self.ids = ["", "", "", ""]
        self.offers: list[tuple[Offer, ...]] = [(X, Y)] * 4
        self.generations = [-1, -1, -1, -1]
        self.asked: list[Asked] = []
        self.highest = 0

    def note(self, who: int, asked: Asked) -> None:
        self.asked.append(asked)
        self.hear(who, asked)

    def hear(self, who: int, asked: Asked) -> None:
        if not asked.is_answered:
            asked.answers = _Heard(self, who)
        elif isinstance(asked.answer, Joined):
            self.learn(who, asked.answer)

    def learn(self, who: int, answer: Joined | Synced) -> None:
        if not isinstance(answer, Joined):
            return
        if answer.refusal in (None, Refusal.MEMBER_ID_NEEDED):
            self.ids[who] = answer.member
            self.generations[who] = answer.generation
        elif answer.refusal is Refusal.UNKNOWN_MEMBER:
            self.ids[who] = ""

    @rule(who=WHO, is_fresh=SELDOM, is_old=SELDOM)
    def join(self, who: int, is_fresh: bool, is_old: bool) -> None:
        member = "" if is_fresh else self.ids[who]
        changes: dict[str, Any] = {"offers": self.offers[who], "instance": INSTANCES[who], "takes_id": not is_old}
        self.note(who, self.town.join(member, **changes))

    @rule()
    def all_join(self) -> None:
        for who in range(4):
            self.join(who, is_fresh=False, is_old=False)

    @rule()
    def all_sync(self) -> None:
        for who in range(4):
            self.sync(who)

    @rule(who=WHO, offers=OFFERS)
    def change(self, who: int, offers: tuple[Offer, ...]) -> None:
        self.offers[who] = offers

    @rule(who=WHO)
    def sync(self, who: int) -> None:
        shares = {member: Share(member.encode()) for member in self.town.group.members}
        asked = self.town.sync(self.ids[who], self.generations[who], shares, instance=INSTANCES[who])
        self.note(who, asked)
        if asked.is_answered and asked.answer.refusal is None:
            assert asked.answer.data in (b"", self.ids[who].encode())

    @rule(who=WHO)
    def heartbeat(self, who: int) -> None:
        self.town.heartbeat(self.ids[who], self.generations[who], INSTANCES[who])

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.town.leave(Leaver(self.ids[who], INSTANCES[who]))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 4.0, 11.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.town.wait(seconds)

    @invariant()
    def each_question_has_at_most_one_answer(self) -> None:
        assert all(len(asked.answers) <= 1 for asked in self.asked)

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.town.group.generation >= self.highest
        self.highest = self.town.group.generation

    @invariant()
    def the_books_add_up(self) -> None:
        group = self.town.group
        roll = group.roll
        assert roll.joining == sum(member.joining is not None for member in group.members.values())
        assert (group.state is State.EMPTY) <= (not group.members)
        assert (roll.leader in group.members) if group.members else roll.leader is None
        assert set(roll.statics.values()) == {it.id for it in group.members.values() if it.instance is not None}
        waiting = [it for it in group.members.values() if it.joining is not None]
        assert not waiting or group.state is State.PREPARING
        syncing = [it for it in group.members.values() if it.syncing is not None]
        assert not syncing or group.state is State.COMPLETING

    @invariant()
    def nobody_waits_without_a_deadline(self) -> None:
        group = self.town.group
        if group.state in (State.PREPARING, State.COMPLETING):
            assert len(self.town.alarms) > 0
        for member in group.members.values():
            assert Alarm("g", SESSION, member.id) in self.town.alarms or member.is_waiting

    def teardown(self) -> None:
        """When everybody is gone, everybody has an answer."""
        self.town.wait(10_000)
        assert self.town.group.state is State.EMPTY
        assert [asked for asked in self.asked if len(asked.answers) != 1] == []
        assert len(self.town.alarms) == 0


class _Heard(list[Any]):
    """Answers that a client learns from when they come."""

    def __init__(self, clients: Clients, who: int) -> None:
        super().__init__()
        self._clients, self._who = clients, who

    def append(self, answer: Any) -> None:
        super().append(answer)
        self._clients.learn(self._who, answer)


class PatientClients(Clients):
    """The same in a group that waits for its first members."""

    delay_ms = 1_000


TestClassicGroup = Clients.TestCase
TestPatientClassicGroup = PatientClients.TestCase
TestClassicGroup.settings = TestPatientClassicGroup.settings = settings(stateful_step_count=60)
