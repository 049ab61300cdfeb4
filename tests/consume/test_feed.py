"""What was fetched and not yet handed out: bytes counted, nobody forgotten."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consume.feed import Feed, Load, Part
from penstock.errors import BusyError
from penstock.wire.protocol import Partition

T0 = Partition("t", 0)


def parts(size: int, count: int = 1) -> list[Part]:
    load = Load(size)
    return [Part(load, T0, (), 0, None, number) for number in range(count)]


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_parts_come_out_in_the_order_in_which_they_were_put() -> None:
    feed = Feed(100, Woken())
    first, second = parts(10, 3), parts(5, 2)
    feed.put(first)
    feed.put(second)
    taken = [feed.take() for _ in range(6)]
    assert taken == [*first, *second, None]


def test_an_answer_counts_until_its_last_part_is_done_with() -> None:
    feed = Feed(100, Woken())
    feed.put(parts(60, 2))
    assert feed.used == 60
    one, other = feed.take(), feed.take()
    assert one is not None
    assert other is not None
    feed.done(one)
    assert feed.used == 60
    feed.done(other)
    assert feed.used == 0


def test_who_was_held_back_is_woken_once_there_is_room() -> None:
    woken = Woken()
    feed = Feed(100, woken)
    assert feed.has_room(0, 1000), "the first is always taken"
    feed.put(parts(60))
    assert feed.has_room(0, 40)
    assert not feed.has_room(0, 41)
    assert not feed.has_room(30, 11)
    part = feed.take()
    assert part is not None
    assert woken.times == 0
    feed.done(part)
    assert woken.times == 1
    feed.put(parts(1))
    again = feed.take()
    assert again is not None
    feed.done(again)
    assert woken.times == 1, "nobody was held back since"


def test_the_ending_comes_behind_the_last_part() -> None:
    feed = Feed(100, Woken())
    feed.put(parts(1))
    feed.end(BusyError("over"))
    feed.end(None)
    assert feed.ending is None
    feed.take()
    assert feed.ending is not None
    assert isinstance(feed.ending.error, BusyError)


def test_listeners_are_told_once() -> None:
    feed = Feed(100, Woken())
    one, two = Woken(), Woken()
    feed.listen(one)
    feed.listen(two)
    feed.unlisten(two)
    feed.put(parts(1, 2))
    feed.put(parts(1))
    assert (one.times, two.times) == (1, 0)
    feed.listen(two)
    assert two.times == 1, "there is something already"
    feed.unlisten(two)


def test_waiting_ends_with_a_part_an_ending_or_the_time() -> None:
    feed = Feed(100, Woken())
    assert not feed.wait(0)
    assert not feed._listeners
    threading.Timer(0.01, feed.put, [parts(1)]).start()
    assert feed.wait(60)
    feed.take()
    threading.Timer(0.01, feed.end, [None]).start()
    assert feed.wait(60)
    assert feed.wait(0)


def test_what_was_dropped_is_gone_and_nothing_comes_any_more() -> None:
    feed = Feed(100, Woken())
    told = Woken()
    feed.put(parts(10))
    feed.take()
    feed.listen(told)
    feed.put(parts(10, 3))
    feed.drop(None)
    assert (told.times, feed.take()) == (1, None)
    feed.put(parts(10))
    assert feed.take() is None
    assert feed.ending is not None


@given(st.lists(st.tuples(st.sampled_from("ptd"), st.integers(0, 50), st.integers(1, 3)), max_size=40))
def test_bytes_add_up(steps: list[tuple[str, int, int]]) -> None:
    feed = Feed(100, Woken())
    waiting: list[Part] = []
    held: list[Part] = []
    for step, size, count in steps:
        if step == "p":
            new = parts(size, count)
            feed.put(new)
            waiting += new
        elif step == "t" and waiting:
            part = feed.take()
            assert part is waiting.pop(0)
            held.append(part)
        elif step == "d" and held:
            feed.done(held.pop(size % len(held)))
        loads = {part.load for part in (*waiting, *held)}
        assert feed.used == sum(load.size for load in loads)


@pytest.mark.parametrize("rounds", [2000])
def test_two_threads_never_miss_each_other(rounds: int) -> None:
    feed = Feed(1, lambda: room.set())
    room = threading.Event()
    taken: list[int] = []

    def read() -> None:
        while len(taken) < rounds:
            assert feed.wait(60)
            while (part := feed.take()) is not None:
                taken.append(part.next)
                feed.done(part)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(rounds):
        room.clear()
        if not feed.has_room(0, 1):
            assert room.wait(60), "held back for ever"
        feed.put([Part(Load(1), T0, (), 0, None, number)])
    reader.join(60)
    assert taken == list(range(rounds))
