"""Deadlines are due when they were last set to be, whatever was set before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.groups.deadlines import Deadlines

KEYS = st.sampled_from("abcd")


class DeadlinesModel(RuleBasedStateMachine):
    """The ten-line model is a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[str] = Deadlines()
        self.model: dict[str, float] = {}
        self.now = 0.0

    @rule(key=KEYS, wait=st.integers(0, 9))
    def set(self, key: str, wait: int) -> None:
        self.deadlines.set(key, self.now + wait)
        self.model[key] = self.now + wait

    @rule(key=KEYS)
    def cancel(self, key: str) -> None:
        self.deadlines.cancel(key)
        self.model.pop(key, None)

    @rule(wait=st.integers(0, 6))
    def due(self, wait: int) -> None:
        self.now += wait
        expected = {key: when for key, when in self.model.items() if when <= self.now}
        given = list(self.deadlines.due(self.now))
        assert sorted(given) == sorted(expected)
        assert [expected[key] for key in given] == sorted(expected.values())
        for key in given:
            del self.model[key]

    @invariant()
    def the_next_is_the_earliest(self) -> None:
        assert self.deadlines.next() == min(self.model.values(), default=None)
        assert len(self.deadlines) == len(self.model)


TestDeadlines = DeadlinesModel.TestCase


@given(st.lists(st.integers(0, 100), min_size=1))
def test_putting_off_leaves_one_place_in_the_heap(waits: list[int]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now, wait in enumerate(sorted(waits)):
        deadlines.set("a", now + wait)
    assert len(deadlines._heap) == 1


def test_what_is_set_while_others_are_due_waits_for_the_next_call() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1)
    deadlines.set("b", 2)
    seen = []
    for key in deadlines.due(5):
        seen.append(key)
        deadlines.set(key, 3)
    assert seen == ["a", "b"]
    assert list(deadlines.due(5)) == ["a", "b"]


def test_what_is_cancelled_while_others_are_due_is_not_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1)
    deadlines.set("b", 2)
    for key in deadlines.due(5):
        assert key == "a"
        deadlines.cancel("b")
    assert deadlines.next() is None
