"""The client's memory is used up: a message waits, goes directly, or is refused; and every byte comes back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.errors import MessageError, MessageTooLargeError, NoRoomError
from penstock.produce.kernel import Receipt
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit

LIMIT = 4000


def full(kit: Kit, policy: BatchPolicy | None = None, total: int = LIMIT, **options: Any) -> tuple[Harness, Line]:
    """A producer that soon has no room."""
    harness = Harness(kit, total_bytes_max=total)
    harness.model.create("t", 2)
    line = harness.line("t", policy or BatchPolicy(bytes_max=1000, delay_ms=1000), **options)
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    return harness, line


def fill(line: Line) -> int:
    """Send until there is no room; how many were taken."""
    for number in range(1000):
        try:
            line.send(b"%d" % number + b"x" * 100, partition=0)
        except NoRoomError:
            return number
    raise AssertionError("there is no limit")


def test_fail_refuses_the_message_and_says_what_to_do(kit: Kit) -> None:
    harness, line = full(kit, when_full="fail")
    taken = fill(line)
    assert harness.accumulator.budget.used <= LIMIT
    with pytest.raises(NoRoomError, match=r"of 4000 bytes .total_bytes_max.*when_full=fail: send slower, or raise"):
        line.send(b"x" * 200, partition=0)
    line.flush()
    assert len(harness.model.values("t")) == taken
    assert fill(line) > 0
    line.flush()
    harness.check_idle()


def test_wait_waits_for_what_is_on_its_way(kit: Kit) -> None:
    harness, line = full(kit, when_full="wait", full_timeout_ms=0)
    waited = []

    def meanwhile() -> None:
        waited.append(harness.accumulator.budget.used)
        harness.advance(0.5)

    harness.home.meanwhile = meanwhile
    receipts = [line.send(b"%d" % number + b"x" * 100, partition=0) for number in range(100)]
    assert waited
    line.flush()
    harness.results(receipts)
    assert [value and value[:4].rstrip(b"x") for value in harness.model.values("t")] == [b"%d" % n for n in range(100)]
    harness.check_idle()


def test_wait_gives_up_in_time_with_nothing_reserved(kit: Kit) -> None:
    harness, line = full(kit, when_full="wait", full_timeout_ms=0)
    harness.home.meanwhile = lambda: None
    taken = fill(line)
    used = harness.accumulator.budget.used
    with pytest.raises(NoRoomError, match="none became free within full_timeout_ms=0"):
        line.send(b"x" * 500, partition=1)
    assert harness.accumulator.budget.used == used
    line.flush()
    assert len(harness.model.values("t")) == taken
    harness.check_idle()


def test_who_may_not_block_is_told_how_much_is_wanted_and_brings_it_along(kit: Kit) -> None:
    harness, line = full(kit, when_full="wait")
    line.entrance.may_block = False
    wanted = kit.modules["entrance"].RoomWanted
    taken = 0
    asked: Any = None
    while asked is None:
        try:
            line.send(b"%d" % taken + b"x" * 100, partition=0)
            taken += 1
        except wanted as error:
            asked = error
    granted: list[int] = []
    budget = harness.accumulator.budget
    budget.wait(asked.size, lambda: granted.append(1))
    harness.run(lambda: granted)
    receipt = line.entrance.put(asked.message, asked.size)
    line.flush()
    assert receipt.result(0).position == taken
    harness.check_idle()


def test_room_that_was_brought_along_and_is_not_needed_is_given_back(kit: Kit) -> None:
    harness, line = full(kit)
    message = kit.modules["entrance"].check(line.lanes.wire, b"v", None, None, None, 0)
    line.send(b"opens a batch", partition=0)
    used = harness.accumulator.budget.used
    assert harness.accumulator.budget.try_reserve(600)
    line.entrance.put(message, 600)
    assert harness.accumulator.budget.used == used


def test_direct_sends_the_message_alone_after_all_that_is_open_in_its_lane(kit: Kit) -> None:
    harness, line = full(kit, BatchPolicy(bytes_max=10_000, delay_ms=1000), when_full="direct", total=21_000)
    line.send(b"x" * 10, partition=0)
    line.send(b"x" * 20, partition=0)
    other = line.send(b"x" * 30, partition=1)
    assert harness.accumulator.budget.used == 20_000
    direct = [line.send(b"y" * 6000, partition=0), line.send(b"z" * 6000, partition=0)]
    assert harness.accumulator.budget.used > 6000
    harness.results(direct)
    entries = harness.model.topics["t"][0].entries
    assert [[len(row.value or b"") for row in entry.rows] for entry in entries] == [[10, 20, 6000], [6000]]
    assert line.reasons()["direct"] == 1
    assert not other.done(), "other lanes are left alone"
    line.flush()
    harness.check_idle()


def test_directly_as_much_again_may_be_on_its_way_then_messages_wait(kit: Kit) -> None:
    harness, line = full(kit, when_full="direct", full_timeout_ms=0)
    harness.model.brokers[1].tamper = lambda answer: []
    harness.home.meanwhile = lambda: None
    taken = fill(line)
    budget = harness.accumulator.budget
    assert LIMIT < budget.used <= 2 * LIMIT
    with pytest.raises(NoRoomError, match=r"of twice 4000 bytes .*none became free within full_timeout_ms=0"):
        line.send(b"x" * 200, partition=1)
    harness.model.brokers[1].tamper = lambda answer: [(0.0, answer)]
    harness.home.meanwhile = lambda: harness.advance(60.0)
    receipt = line.send(b"goes on", partition=1)
    line.flush()
    assert receipt.done()
    assert len(harness.model.values("t")) == taken
    harness.check_idle()


def test_directly_who_may_not_block_is_told_how_much_is_wanted_when_that_is_used_up_too(kit: Kit) -> None:
    harness, line = full(kit, when_full="direct")
    harness.model.brokers[1].tamper = lambda answer: []
    line.entrance.may_block = False
    with pytest.raises(kit.modules["entrance"].RoomWanted):
        fill(line)
    assert LIMIT < harness.accumulator.budget.used <= 2 * LIMIT


@pytest.mark.parametrize("arrow", [False, True])
def test_directly_many_leave_at_once_in_batches_of_their_own(kit: Kit, arrow: bool) -> None:
    harness, line = full(kit, BatchPolicy(bytes_max=1000, delay_ms=60_000), when_full="direct")
    assert harness.accumulator.budget.try_reserve(LIMIT), "other producers have it all"
    receipts = line.send_many([b"%d" % number for number in range(3)], arrow=arrow)
    harness.settle()
    assert all(receipt.done() for receipt in receipts)
    assert line.reasons() == {"direct": 1}
    harness.accumulator.budget.release(LIMIT)
    harness.check_idle()


def test_directly_many_have_a_limit_too(kit: Kit) -> None:
    harness, line = full(kit, when_full="direct", full_timeout_ms=0)
    harness.model.brokers[1].tamper = lambda answer: []
    harness.home.meanwhile = lambda: None
    receipts = line.send_many([b"x" * 100] * 1000)
    assert harness.accumulator.budget.used <= 2 * LIMIT
    errors = [receipt.exception(0) if receipt.done() else None for receipt in receipts]
    assert errors[0] is None
    assert isinstance(errors[-1], NoRoomError)


def test_memory_pressure_seals_what_is_open_in_all_producers(kit: Kit) -> None:
    harness, line = full(kit, when_full="wait", full_timeout_ms=0)
    harness.model.create("u", 2)
    other = harness.line("u", BatchPolicy(bytes_max=2000, delay_ms=60_000))
    harness.run(lambda: other.outlet.readiness.verdict is not None)
    waiting = [other.send(b"held", partition=number) for number in range(2)]
    harness.home.meanwhile = lambda: harness.advance(0.01)
    for number in range(10):
        line.send(b"%d" % number * 300, partition=0)
    assert all(receipt.done() for receipt in waiting)
    assert other.reasons() == {"memory": 2}


def test_memory_that_is_on_its_way_gives_room_and_nothing_is_sealed_for_it(kit: Kit) -> None:
    harness, line = full(kit, when_full="wait", full_timeout_ms=0)
    harness.model.create("u", 1)
    other = harness.line("u", BatchPolicy(bytes_max=500, delay_ms=60_000))
    harness.run(lambda: other.outlet.readiness.verdict is not None)
    held = other.send(b"held")
    harness.home.meanwhile = lambda: harness.advance(0.01)
    for number in range(20):
        line.send(b"%d" % number * 300, partition=0)
    assert not held.done(), "tiny batches would keep the memory full"
    assert "memory" not in other.reasons()


def test_a_batch_that_the_client_has_no_more_room_for_is_sealed_early(kit: Kit) -> None:
    harness, line = full(
        kit, BatchPolicy(bytes_max=100_000, delay_ms=1000), total=20_000, when_full="wait", full_timeout_ms=0
    )
    harness.home.meanwhile = lambda: harness.advance(0.01)
    for _ in range(30):
        line.send(b"x" * 1000, partition=0)
    assert set(line.reasons()) == {"memory"}
    line.flush()
    assert len(harness.model.values("t")) == 30


def test_a_sealed_batch_gives_back_what_it_does_not_need(kit: Kit) -> None:
    harness, line = full(kit, BatchPolicy(bytes_max=100_000, delay_ms=1000), total=1 << 20, compression="lz4")
    line.send(b"x" * 10_000, partition=0)
    before = harness.accumulator.budget.used
    line.seal()
    assert harness.accumulator.budget.used < 500 < before
    line.flush()
    harness.check_idle()


def test_what_no_memory_could_ever_hold_is_refused_at_once(kit: Kit) -> None:
    harness, line = full(kit, message_bytes_max=500)
    for value in (b"x" * 501, b"x" * 470):
        with pytest.raises(MessageTooLargeError, match="message_bytes_max is 500"):
            line.send(value)
    assert harness.accumulator.budget.used == 0
    assert line.lanes.intake.lanes == {}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"value": "text"}, "value: expected bytes or None, found str; encode it or give a serializer"),
        ({"key": 5}, "key: expected bytes or None, found int"),
        ({"properties": {1: "x"}}, "properties: expected names of type str, found 1"),
        ({"properties": {"x": 1}}, "properties: expected str, bytes or None for 'x', found int"),
        ({"properties": [("x", "y")]}, "properties: expected a mapping"),
        ({"properties": {"x": "\ud800"}}, "'x' cannot be written as UTF-8"),
        ({"event_time": "now"}, "event_time: expected milliseconds as an int"),
        ({"event_time": -1}, "event_time: expected 0 to"),
        ({"partition": -1}, "partition: expected 0 or more, found -1"),
        ({"partition": True}, "partition: expected an int, found bool"),
        ({"partition": 2}, "partition: expected 0 to 1, found 2"),
        ({"tag": 1}, "tag: expected a str"),
        ({"keys": 1}, "keys: expected a str or a sequence"),
        ({"deliver_at": 1}, "deliver_at: Kafka delivers at once"),
        ({"wait_for_store": 1}, "wait_for_store: expected True, False or None"),
        ({"wait_for_store": False}, "wait_for_store: False needs idempotence=False"),
    ],
)
def test_a_message_that_cannot_be_sent_is_named_with_nothing_reserved(
    kit: Kit, fields: dict[str, Any], text: str
) -> None:
    harness, line = full(kit)
    with pytest.raises(MessageError, match=text.replace("(", r"\(")):
        line.send(**{"value": b"v"} | fields)
    assert harness.accumulator.budget.used == 0
    assert not line.lanes.unsettled


def test_a_thread_that_waits_for_room_is_woken_by_an_answer(kit: Kit) -> None:
    harness, line = full(kit, when_full="wait", full_timeout_ms=60_000)
    harness.home.meanwhile = lambda: None
    sent: list[Receipt] = []
    done = threading.Event()

    def work() -> None:
        sent.extend(line.send(b"%d" % number + b"x" * 100, partition=0) for number in range(200))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        harness.advance(0.001)
    thread.join()
    line.flush()
    harness.results(sent)
    assert [receipt.result(0).position for receipt in sent] == list(range(200))
    harness.check_idle()
