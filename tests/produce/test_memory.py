from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import BatchStateError
from penstock.produce.memory import MemoryBudget, Waiter


def test_room_is_given_up_to_the_limit() -> None:
    budget = MemoryBudget(100)
    assert budget.try_reserve(60)
    assert not budget.try_reserve(41)
    assert budget.try_reserve(40)
    assert budget.used == 100


def test_room_above_the_limit_is_given_up_to_as_much_again() -> None:
    budget = MemoryBudget(100)
    assert budget.try_reserve(100)
    assert budget.try_exceed(60)
    assert not budget.try_exceed(41)
    assert budget.used == 160


def test_when_that_is_used_up_too_nobody_exceeds_the_limit_before_those_who_wait_have_their_room() -> None:
    budget = MemoryBudget(100)
    served: list[str] = []
    assert budget.try_exceed(200)
    assert not budget.try_exceed(10)
    budget.wait(50, lambda: served.append("first"))
    budget.release(100)
    assert not budget.try_exceed(1), "whoever comes later would stay in the way"
    budget.release(50)
    assert served == ["first"]
    assert budget.try_exceed(60)


def test_who_waits_is_served_in_order_and_nobody_overtakes() -> None:
    budget = MemoryBudget(100)
    budget.try_reserve(100)
    served: list[str] = []
    budget.wait(80, lambda: served.append("large"))
    budget.wait(10, lambda: served.append("small"))
    budget.release(50)
    assert not budget.try_reserve(1)
    assert served == []
    budget.release(50)
    assert served == ["large", "small"]
    assert budget.used == 90


def test_a_waiter_that_leaves_lets_the_next_one_through() -> None:
    budget = MemoryBudget(100)
    budget.try_reserve(50)
    served: list[str] = []
    large = budget.wait(80, lambda: served.append("large"))
    budget.wait(50, lambda: served.append("small"))
    assert budget.leave(large)
    assert served == ["small"]


def test_leaving_after_the_room_was_granted_says_so() -> None:
    budget = MemoryBudget(100)
    waiter = budget.wait(80, lambda: None)
    assert not budget.leave(waiter)
    assert budget.used == 80


def test_waiting_without_success_takes_nothing() -> None:
    budget = MemoryBudget(100)
    budget.try_reserve(100)
    assert not budget.reserve(1, timeout=0)
    budget.release(100)
    assert budget.used == 0


def test_a_thread_that_waits_is_woken_by_a_release() -> None:
    budget = MemoryBudget(100)
    budget.try_reserve(100)
    got = []
    thread = threading.Thread(target=lambda: got.append(budget.reserve(70, timeout=60)))
    thread.start()
    budget.release(100)
    thread.join(60)
    assert got == [True]
    assert budget.used == 70


def test_many_threads_leave_nothing_behind() -> None:
    budget = MemoryBudget(1000)

    def work(size: int) -> None:
        for _ in range(300):
            assert budget.reserve(size, timeout=60)
            budget.release(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 10, 400, 999, 1000, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert budget.used == 0


def test_what_is_already_on_its_way_may_pass_the_limit() -> None:
    budget = MemoryBudget(100)
    budget.force(150)
    assert not budget.try_reserve(1)
    budget.release(150)
    assert budget.try_reserve(100)


def test_releasing_what_was_not_reserved_raises_with_its_story() -> None:
    with pytest.raises(BatchStateError, match="5 bytes released, but only 0 are reserved"):
        MemoryBudget(10).release(5)


class Accounting(RuleBasedStateMachine):
    """The budget against a list of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(100)
        self.held: list[int] = []
        self.line: list[Waiter] = []

    @rule(size=st.integers(0, 100))
    def ask(self, size: int) -> None:
        if self.budget.try_reserve(size):
            self.held.append(size)

    @rule(size=st.integers(0, 100))
    def wait(self, size: int) -> None:
        self.line.append(self.budget.wait(size, lambda: self.held.append(size)))

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.budget.leave(self.line.pop(data.draw(st.integers(0, len(self.line) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.budget.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def what_is_used_is_what_is_held(self) -> None:
        assert self.budget.used == sum(self.held) <= 100

    @invariant()
    def nobody_waits_without_need(self) -> None:
        waiting = [waiter for waiter in self.line if not waiter.is_granted]
        assert not waiting or self.budget.used + waiting[0].size > 100


TestAccounting = settings(max_examples=60, stateful_step_count=40, deadline=None)(Accounting).TestCase
