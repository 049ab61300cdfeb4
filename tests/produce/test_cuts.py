"""A connection that is cut after any byte, either way, and answers that come twice, swapped, late, damaged or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.produce.router import Single
from tests.net.memory import Faults
from tests.produce.harness import Harness
from tests.produce.kits import Kit, load_kit

COUNT = 6
Tamper = Callable[[bytes], list[tuple[float, bytes]]]


def deliver(
    kit: Kit | None,
    first: Faults | None = None,
    tamper: Callable[[int], Tamper | None] | None = None,
    damage: Callable[[bytes, int], bytes] | None = None,
) -> Harness:
    """Send some messages over a connection that is like this, or with answers treated so; all must arrive once."""
    harness = Harness(kit, request_timeout_ms=1000, retry_backoff_ms=10, retry_backoff_max_ms=50)
    harness.model.create("t", 1)
    faults = [first] if first is not None else []
    broker = harness.model.brokers[1]
    broker.faults = lambda: faults.pop() if faults else Faults()
    if tamper is not None:
        numbers = iter(range(1_000_000))

        def treat(answer: bytes) -> list[tuple[float, bytes]]:
            treatment = tamper(next(numbers))
            return treatment(answer) if treatment is not None else [(0.0, answer)]

        broker.tamper = treat
    if damage is not None:
        broker.damage = damage
    line = harness.line(policy=BatchPolicy(count_max=2, delay_ms=0), router=Single(0))
    receipts = [line.send(b"%d" % number) for number in range(COUNT)]
    found = harness.results(receipts)
    assert harness.model.values("t") == [b"%d" % number for number in range(COUNT)]
    assert [at.position for at in found] == list(range(COUNT))
    harness.settle()
    harness.check_idle()
    return harness


def test_the_conversation_is_as_short_as_is_thought_here(kit: Kit) -> None:
    harness = deliver(kit)
    (stream,) = harness.network.streams
    assert len(stream.sent) < SENT_MAX
    assert stream.given < GIVEN_MAX


SENT_MAX, GIVEN_MAX, CHUNK = 500, 500, 50


@pytest.mark.parametrize("start", range(1, SENT_MAX, CHUNK))
def test_a_connection_cut_after_any_byte_that_was_sent_costs_nothing(start: int) -> None:
    for cut in range(start, start + CHUNK):
        deliver(None, Faults(cut_after_sent=cut))


@pytest.mark.parametrize("start", range(1, GIVEN_MAX, CHUNK))
def test_a_connection_cut_after_any_byte_that_was_received_costs_nothing(start: int) -> None:
    for cut in range(start, start + CHUNK):
        deliver(None, Faults(cut_after_given=cut))


@pytest.mark.parametrize("size", [1, 2, 7, 61, 100])
def test_bytes_that_go_in_small_pieces_arrive_all_the_same(kit: Kit, size: int) -> None:
    deliver(kit, Faults(take_max=size, give_max=size))


def only(which: int, tamper: Tamper) -> Callable[[int], Tamper | None]:
    return lambda number: tamper if number == which else None


TREATMENTS: dict[str, Tamper] = {
    "twice": lambda answer: [(0.0, answer), (0.0, answer)],
    "never": lambda answer: [],
    "late": lambda answer: [(0.5, answer)],
    "too late": lambda answer: [(5.0, answer)],
    "damaged": lambda answer: [(0.0, answer[:4] + b"\xff" * (len(answer) - 4))],
    "too long": lambda answer: [(0.0, b"\x7f\xff\xff\xff" + answer[4:])],
    "with bytes behind it": lambda answer: [(0.0, answer + b"\x00\x00\x00\x01x")],
}


@pytest.mark.parametrize("which", range(8))
@pytest.mark.parametrize("treatment", TREATMENTS)
def test_an_answer_treated_badly_costs_nothing(kit: Kit, treatment: str, which: int) -> None:
    deliver(kit, tamper=only(which, TREATMENTS[treatment]))


class OneBit:
    """Turns one bit of one answer, of those that tell what it answers."""

    def __init__(self, which: int, place: int) -> None:
        self._before = which
        self._place = place
        self.bits = 0
        """How many there are."""

    def __call__(self, answer: bytes, telling: int) -> bytes:
        self._before -= 1
        if self._before != -1:
            return answer
        self.bits = 8 * telling
        broken = bytearray(answer)
        broken[self._place // 8] ^= 1 << self._place % 8
        return bytes(broken)


@pytest.mark.parametrize("which", range(7))
def test_one_bit_turned_where_an_answer_tells_what_it_answers_costs_nothing(which: int) -> None:
    """Its length, its number, and in answers to produce the topics and partitions: nothing else would be noticed."""
    place, bits = 0, 1
    while place < bits:
        turned = OneBit(which, place)
        deliver(None, damage=turned)
        place, bits = place + 1, turned.bits
    assert bits > 64 or which < 4, "the last ones answer what was sent"


@pytest.mark.parametrize("which", range(7))
def test_answers_that_come_in_another_order_cost_nothing(kit: Kit, which: int) -> None:
    held: list[bytes] = []

    def swap(number: int) -> Tamper | None:
        def hold(answer: bytes) -> list[tuple[float, bytes]]:
            held.append(answer)
            return []

        if number == which:
            return hold
        return (lambda answer: [(0.0, answer), (0.0, held.pop())]) if held else None

    deliver(kit, tamper=swap)


def test_a_broker_that_answers_nothing_for_a_while_costs_nothing_but_time() -> None:
    quiet: list[Any] = [lambda answer: []] * 12
    harness = deliver(load_kit("lane"), tamper=lambda number: quiet.pop() if quiet and number > 3 else None)
    assert harness.now > 1005.0
