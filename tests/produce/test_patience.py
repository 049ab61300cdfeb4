"""A batch that somebody waits for is held back by its delay only where that has brought it more messages."""

from __future__ import annotations

import pytest

from penstock.config import BatchPolicy
from penstock.produce.kernel import Receipt
from penstock.produce.patience import TRIAL_EVERY, VAIN_MAX
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit

DELAY_S = 1.0


@pytest.fixture
def harness(kit: Kit) -> Harness:
    made = Harness(kit)
    made.model.create("t", 2)
    return made


@pytest.fixture
def line(harness: Harness) -> Line:
    made = harness.line("t", BatchPolicy(delay_ms=DELAY_S * 1000))
    harness.run(lambda: made.outlet.readiness.verdict is not None)
    made.send(b"first", partition=0)
    made.send(b"first", partition=1)
    made.flush()
    return made


def wait_for(receipt: Receipt) -> None:
    """What `result` and `await` do before they wait."""
    if receipt.parcel.watcher is not None:
        receipt.parcel.watcher(receipt.parcel)


def took(harness: Harness, line: Line, joins: bool = False) -> float:
    """Send, wait, and perhaps send once more while that is waited for: how long it takes."""
    began = harness.now
    receipt = line.send(b"v", partition=0)
    wait_for(receipt)
    harness.settle()
    if joins and not receipt.done():
        line.send(b"w", partition=0)
    harness.run(receipt.done)
    return harness.now - began


def learn_that_it_is_in_vain(harness: Harness, line: Line) -> None:
    assert [took(harness, line) >= DELAY_S for _ in range(VAIN_MAX)] == [True] * VAIN_MAX


def test_a_batch_leaves_at_once_where_waiting_has_been_in_vain(harness: Harness, line: Line) -> None:
    learn_that_it_is_in_vain(harness, line)
    before = line.reasons()
    assert took(harness, line) < DELAY_S / 2
    assert line.reasons() == {**before, "awaited": 1}


def test_a_batch_that_nobody_waits_for_has_its_whole_delay(harness: Harness, line: Line) -> None:
    learn_that_it_is_in_vain(harness, line)
    receipt = line.send(b"v", partition=0)
    harness.advance(DELAY_S * 0.9)
    assert not receipt.done()
    harness.advance(DELAY_S * 0.2)
    assert receipt.done()


def test_batches_are_held_back_where_others_join_them(harness: Harness, line: Line) -> None:
    assert [took(harness, line, joins=True) >= DELAY_S for _ in range(10)] == [True] * 10
    assert "awaited" not in line.reasons()


def test_now_and_then_one_is_held_back_to_see_whether_that_has_changed(harness: Harness, line: Line) -> None:
    learn_that_it_is_in_vain(harness, line)
    waits = [took(harness, line, joins=True) >= DELAY_S for _ in range(TRIAL_EVERY + 5)]
    assert waits == [False] * (TRIAL_EVERY - 1) + [True] * 6


def test_what_is_sent_after_an_awaited_message_is_awaited_as_well(harness: Harness, line: Line) -> None:
    learn_that_it_is_in_vain(harness, line)
    began = harness.now
    first = line.send(b"v", partition=1)
    line.seal()
    later = line.send(b"w", partition=1)
    wait_for(first)
    harness.run(later.done)
    assert harness.now - began < DELAY_S / 2


def test_an_awaited_batch_behind_others_still_leaves_when_they_have(harness: Harness, line: Line) -> None:
    learn_that_it_is_in_vain(harness, line)
    harness.model.delay = lambda: DELAY_S / 10
    for number in range(8):
        line.send(b"%d" % number, partition=0)
        line.seal()
    harness.settle()
    began = harness.now
    last = line.send(b"last", partition=0)
    wait_for(last)
    harness.settle()
    line.send(b"joins", partition=0)
    harness.run(last.done)
    assert DELAY_S / 2 > harness.now - began > DELAY_S / 10
    assert harness.model.values("t", 0)[-2:] == [b"last", b"joins"]
    assert line.reasons()["awaited"] == 1


def test_waiting_for_what_has_left_or_is_gone_changes_nothing(harness: Harness, line: Line) -> None:
    receipt = line.send(b"v", partition=0)
    watcher, batch = receipt.parcel.watcher, receipt.parcel
    line.flush()
    assert watcher is not None
    watcher(batch)
    line.end_close()
    watcher(batch)
    harness.settle()
    harness.check_idle()
