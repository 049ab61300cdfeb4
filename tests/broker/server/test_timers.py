from __future__ import annotations

from penstock.broker.server.memory import FIRST_BYTES, ROUND_BYTES, SPARES_MAX, RequestMemory
from penstock.broker.server.timers import SWEEP_AT, Timers


def test_what_is_due_is_called_in_order_and_once() -> None:
    timers, told = Timers(), []
    for when in (3.0, 1.0, 2.0, 1.0):
        timers.at(when, lambda when=when: told.append(when))  # type: ignore[misc]
    assert timers.next_deadline() == 1.0
    timers.run(2.0)
    assert told == [1.0, 1.0, 2.0]
    assert timers.next_deadline() == 3.0
    timers.run(2.9)
    timers.run(3.0)
    assert told == [1.0, 1.0, 2.0, 3.0]
    assert timers.next_deadline() is None


def test_a_cancelled_one_is_never_called_nor_waited_for() -> None:
    timers, told = Timers(), []
    first, second = timers.at(1.0, lambda: told.append(1)), timers.at(2.0, lambda: told.append(2))
    first.cancel()
    first.cancel()
    assert len(timers) == 1
    assert timers.next_deadline() == 2.0
    timers.run(5.0)
    second.cancel()
    assert told == [2]
    assert len(timers) == 0


def test_one_that_is_added_while_others_are_called_waits_for_its_time() -> None:
    timers, told = Timers(), []

    def call() -> None:
        timers.at(1.5, lambda: told.append("later"))

    timers.at(1.0, call)
    timers.run(1.0)
    assert told == []
    timers.run(1.5)
    assert told == ["later"]


def test_cancelled_ones_do_not_pile_up() -> None:
    timers = Timers()
    kept = timers.at(1e9, lambda: None)
    for _ in range(10 * SWEEP_AT):
        timers.at(1e9, lambda: None).cancel()
    assert len(timers) == 1
    assert len(timers._heap) <= 2 * SWEEP_AT
    kept.cancel()
    assert timers.next_deadline() is None


def test_memory_is_counted_and_used_again() -> None:
    memory = RequestMemory(1 << 20)
    first = memory.take(ROUND_BYTES, 2 * ROUND_BYTES)
    assert first is not None
    assert len(first) == 2 * ROUND_BYTES == memory.used
    memory.give(first)
    assert memory.used == 0
    assert memory.take(ROUND_BYTES, 2 * ROUND_BYTES) is first


def test_memory_is_given_as_bytes_arrive_and_never_beyond_the_limit() -> None:
    memory = RequestMemory(1 << 20)
    small = memory.take(4, 1 << 20)
    assert small is not None
    assert len(small) == FIRST_BYTES
    assert memory.take(1 << 20, 1 << 20) is None
    memory.give(small)
    whole = memory.take(1 << 20, 1 << 20)
    assert whole is not None
    assert memory.take(1, 100) is None


def test_only_a_few_spare_buffers_are_kept() -> None:
    memory = RequestMemory(1 << 30)
    taken = [memory.take(ROUND_BYTES, ROUND_BYTES) for _ in range(3 * SPARES_MAX)]
    for buffer in taken:
        assert buffer is not None
        memory.give(buffer)
    assert len(memory._spares) == SPARES_MAX
    assert memory.used == 0
