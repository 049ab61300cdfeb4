"""Messages whose topic is not known yet: they wait in order, go where they belong, or hear why they cannot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.errors import BusyError, DeniedError, ExpiredError, MessageError, Persisted, UnknownTopicError
from penstock.produce.router import MovesBy, Routed, Single, by_crc32, by_murmur2
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit
from tests.produce.model import Row


def waiting(kit: Kit, policy: BatchPolicy | None = None, router: Any = None, **options: Any) -> tuple[Harness, Line]:
    """A producer of a topic that is not there yet."""
    harness = Harness(kit)
    line = harness.line("t", policy or BatchPolicy(), router=router, **options)
    harness.settle()
    assert line.lanes.directions.partitions == 0
    return harness, line


def test_messages_wait_in_one_lane_until_the_topic_is_known(kit: Kit) -> None:
    harness, line = waiting(kit)
    receipts = [line.send(b"%d" % number, b"k" if number % 2 else None) for number in range(4)]
    assert list(line.lanes.intake.lanes) == [-1]
    assert line.lanes.stats().lanes[-1].queue == 1
    assert not any(receipt.done() for receipt in receipts)
    harness.model.create("t", 2)
    harness.results(receipts)
    assert -1 not in line.lanes.intake.lanes
    harness.check_idle()


def test_messages_with_keys_go_to_the_partitions_of_their_keys_in_order(kit: Kit) -> None:
    harness, line = waiting(kit, hash="crc32")
    keys = [b"", b"a", b"bb", b"ccc"]
    receipts = [
        line.send(b"%d" % number, keys[number % 4], properties={"n": b"%d" % number}, event_time=number)
        for number in range(40)
    ]
    harness.model.create("t", 3)
    found = harness.results(receipts)
    expected: dict[int, list[Row]] = defaultdict(list)
    for number in range(40):
        partition = by_crc32(keys[number % 4], 3)
        row = Row(b"%d" % number, keys[number % 4], (("n", b"%d" % number),), number)
        assert (found[number].partition, found[number].position) == (partition, len(expected[partition]))
        expected[partition].append(row)
    assert {number: harness.model.rows("t", number) for number in expected} == expected


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("same", [{}, {"n": ["0", "1"]}], ids=["plain", "restricted"])
def test_a_topic_that_becomes_known_amid_a_call_for_many_has_them_where_their_keys_say(
    kit: Kit, arrow: bool, same: dict[str, list[str]]
) -> None:
    harness = Harness(kit, total_bytes_max=4000)
    line = harness.line("t", BatchPolicy(bytes_max=500, same_properties=same), full_timeout_ms=0)
    harness.settle()

    def known() -> None:
        """While room is waited for, which only those get who can leave."""
        if "t" not in harness.model.topics:
            harness.model.create("t", 3)
        harness.advance(1.0)

    harness.home.meanwhile = known
    keys = [b"%d" % (number % 7) for number in range(200)]
    values = [b"%03d" % number + b"x" * 40 for number in range(200)]
    properties = [{"n": b"%d" % (number // 50 % 2)} for number in range(200)]
    found = harness.results(line.send_many(values, keys, properties, arrow=arrow))
    assert [at.partition for at in found] == [by_murmur2(key, 3) for key in keys]
    for number, at in enumerate(found):
        assert isinstance(at.position, int)
        assert harness.model.values("t", at.partition)[at.position] == values[number]
    for partition in range(3):
        stored = [value or b"" for value in harness.model.values("t", partition)]
        assert stored == sorted(stored)
    harness.check_idle()


def test_a_router_that_fails_amid_a_call_for_many_is_told_to_those_that_were_not_taken(kit: Kit) -> None:
    def route(message: Routed) -> int:
        raise ValueError("nowhere")

    harness = Harness(kit, total_bytes_max=4000)
    line = harness.line("t", BatchPolicy(bytes_max=500), router=route, full_timeout_ms=0)
    harness.settle()

    def known() -> None:
        harness.model.create("t", 3)
        harness.advance(1.0)

    harness.home.meanwhile = known
    receipts = line.send_many([b"x" * 40] * 200)
    harness.run(lambda: all(receipt.done() for receipt in receipts))
    assert {type(receipt.exception(0)) for receipt in receipts} == {MessageError}
    assert harness.model.values("t") == []
    harness.check_idle()


def test_messages_without_a_key_among_them_go_together(kit: Kit) -> None:
    harness, line = waiting(kit, router=Single(2))
    receipts = [line.send(b"%d" % number, b"k" if number % 3 == 0 else None) for number in range(9)]
    harness.model.create("t", 5)
    found = harness.results(receipts)
    assert {at.partition for at in found[1::3] + found[2::3]} == {2}
    assert {at.partition for at in found[0::3]} == {by_murmur2(b"k", 5)}
    without_key = [row.value for row in harness.model.rows("t", 2) if row.key is None]
    assert without_key == [b"1", b"2", b"4", b"5", b"7", b"8"]


def test_those_that_came_before_leave_before_those_that_come_after(kit: Kit) -> None:
    harness, line = waiting(kit, BatchPolicy(delay_ms=20, count_max=3))
    receipts = [line.send(b"%d" % number, b"k") for number in range(10)]
    harness.model.create("t", 3)
    harness.run(lambda: line.lanes.directions.partitions)
    receipts += [line.send(b"%d" % number, b"k") for number in range(10, 15)]
    harness.results(receipts)
    assert harness.model.values("t", by_murmur2(b"k", 3)) == [b"%d" % number for number in range(15)]


def test_a_router_of_ones_own_is_asked_once_per_message_and_when_the_topic_is_known(kit: Kit) -> None:
    asked: list[Routed] = []

    def route(message: Routed) -> int:
        asked.append(message)
        if message.value == b"2":
            raise ValueError("nowhere")
        return 9 if message.value == b"4" else int(message.value or b"") % 2

    harness, line = waiting(kit, router=route)
    receipts = [line.send(b"%d" % number, b"k", properties={"n": "x"}) for number in range(6)]
    assert asked == []
    harness.model.create("t", 2)
    harness.run(lambda: all(receipt.done() for receipt in receipts))
    assert [message.value for message in asked] == [b"%d" % number for number in range(6)]
    assert asked[0] == Routed("t", b"0", b"k", {"n": b"x"}, 2)
    assert (harness.model.values("t", 0), harness.model.values("t", 1)) == ([b"0"], [b"1", b"3", b"5"])
    with pytest.raises(MessageError, match=r"the router raised ValueError\('nowhere'\)"):
        receipts[2].result(0)
    with pytest.raises(MessageError, match="partition: expected 0 to 1, found 9"):
        receipts[4].result(0)
    line.send(b"7")
    assert len(asked) == 7
    line.flush()
    harness.check_idle()


class Lost:
    """A spread that finds no partition."""

    moves_by: MovesBy = "batch"

    def choose(self, partitions: int, available: Sequence[int], queued: Mapping[int, int]) -> int:
        raise ValueError("nowhere")


@pytest.mark.parametrize("spread", [Single(7), Lost()], ids=["missing", "raises"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_spread_that_has_no_answer_fails_those_without_a_key_and_nobody_else(
    kit: Kit, spread: Any, mixed: bool
) -> None:
    harness, line = waiting(kit, router=spread)
    lost = [line.send(b"a"), line.send(b"b")]
    kept = [line.send(b"c", b"k"), line.send(b"d", b"k")] if mixed else []
    harness.model.create("t", 3)
    harness.run(lambda: all(receipt.done() for receipt in lost))
    for receipt in lost:
        with pytest.raises(MessageError, match=r"partition: (expected 0 to 2, found 7|the router raised ValueError)"):
            receipt.result(0)
    harness.results(kept)
    harness.results([line.send(b"e", b"k")])
    harness.check_idle()


def test_one_lane_is_enough_for_one_partition(kit: Kit) -> None:
    harness = Harness(kit, lanes_max=1)
    line = harness.line()
    harness.settle()
    receipts = [line.send(b"a"), line.send(b"b", b"k")]
    harness.model.create("t", 1)
    harness.results(receipts)


def test_where_no_lane_can_be_opened_those_without_a_key_hear_so(kit: Kit) -> None:
    harness = Harness(kit, lanes_max=2)
    harness.model.create("u", 1)
    other = harness.line("u", BatchPolicy(delay_ms=60_000))
    harness.run(lambda: other.outlet.readiness.verdict is not None)
    line = harness.line()
    harness.settle()
    first = line.send(b"a")
    harness.model.create("t", 1)
    held = other.send(b"b")
    line.lanes.accumulator.count_lane = lambda: _full()  # somebody else was quicker
    assert isinstance(harness.error(first), BusyError)
    assert not held.done()


def _full() -> None:
    raise BusyError("too many lanes")


def test_a_partition_that_was_named_waits_in_its_own_lane(kit: Kit) -> None:
    harness, line = waiting(kit)
    receipt = line.send(b"v", partition=1)
    assert list(line.lanes.intake.lanes) == [1]
    harness.advance(1.0)
    harness.model.create("t", 2)
    harness.results([receipt])
    assert harness.model.values("t", 1) == [b"v"]


@pytest.mark.parametrize("pause", [0.0, 1.0], ids=["open", "sealed"])
def test_a_partition_that_was_named_and_does_not_exist_fails_its_messages(kit: Kit, pause: float) -> None:
    harness, line = waiting(kit)
    told: list[Any] = []
    lost = line.send(b"v", partition=7, callback=lambda receipt: told.append(receipt.exception(0)))
    harness.advance(pause)
    kept = line.send(b"w")
    harness.model.create("t", 2)
    harness.results([kept])
    error = harness.error(lost)
    assert isinstance(error, MessageError)
    assert "partition: expected 0 to 1, found 7; the topic has 2" in str(error)
    assert len(told) == 1
    harness.check_idle()
    with pytest.raises(MessageError, match="found 7"):
        line.send(b"v", partition=7)


def test_a_producer_that_sends_nothing_notices_new_partitions_too(kit: Kit) -> None:
    harness = Harness(kit, metadata_age_max_ms=1000, lane_idle_ms=1000)
    harness.model.create("t", 2)
    line = harness.line()
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    harness.advance(10.0)
    harness.model.grow("t", 4)
    harness.advance(3.0)
    (place,) = harness.results([line.send(b"v", partition=3)])
    assert place.partition == 3


def test_a_topic_that_grows_is_noticed_and_used(kit: Kit) -> None:
    harness = Harness(kit, metadata_age_max_ms=1000)
    harness.model.create("t", 1)
    line = harness.line()
    harness.results([line.send(b"v")])
    with pytest.raises(MessageError):
        line.send(b"v", partition=2)
    harness.model.grow("t", 3)
    line.send(b"w")
    harness.advance(1.5)
    harness.results([line.send(b"v", partition=2)])


def test_a_topic_may_come_into_being_while_messages_wait_for_it(kit: Kit) -> None:
    harness, line = waiting(kit, unknown_topic_ms=10_000)
    receipt = line.send(b"v")
    harness.advance(9.0)
    assert not receipt.done()
    harness.model.create("t", 1)
    harness.results([receipt])


def test_a_topic_that_never_comes_fails_what_waits_and_the_next_message_asks_again(kit: Kit) -> None:
    harness, line = waiting(kit, unknown_topic_ms=10_000)
    told: list[Any] = []
    receipts = [line.send(b"v", callback=told.append), line.send(b"w", b"k"), line.send(b"x", partition=3)]
    readiness = line.outlet.readiness
    harness.advance(12.0)
    for receipt in receipts:
        error = receipt.exception(0)
        assert isinstance(error, UnknownTopicError)
        assert error.persisted is Persisted.NO
    assert told == [receipts[0]]
    assert isinstance(readiness.verdict, UnknownTopicError)
    harness.check_idle()
    harness.model.create("t", 4)
    harness.results([line.send(b"again"), line.send(b"again", partition=3)])
    assert line.outlet.readiness.verdict is not None


def test_a_topic_that_one_may_not_write_to_fails_what_waits_at_once(kit: Kit) -> None:
    harness, line = waiting(kit)
    receipt = line.send(b"v")
    harness.model.create("t", 1)
    harness.model.topic_error["t"] = 29
    assert isinstance(harness.error(receipt), DeniedError)
    del harness.model.topic_error["t"]
    harness.results([line.send(b"again")])
    harness.check_idle()


@pytest.mark.parametrize("sealed", [False, True])
def test_what_waits_for_its_topic_expires_with_the_story(kit: Kit, sealed: bool) -> None:
    harness, line = waiting(kit, unknown_topic_ms=1_000_000, delivery_timeout_ms=5000)
    early = line.send(b"v")
    if sealed:
        line.seal()
    harness.advance(2.0)
    late = line.send(b"w")
    harness.run(early.done)
    error = harness.error(early)
    assert isinstance(error, ExpiredError)
    assert "its delivery time is over before the partitions of t were known: UNKNOWN_TOPIC" in str(error)
    assert late.done() is not sealed
    assert isinstance(harness.error(late), ExpiredError)
    harness.check_idle()


def test_what_expired_before_its_topic_failed_is_told_once(kit: Kit) -> None:
    harness, line = waiting(kit, unknown_topic_ms=3000, delivery_timeout_ms=5000)
    told: list[Any] = []
    line.send(b"v", callback=told.append)
    harness.advance(4.0)
    line.send(b"w", callback=told.append)
    harness.advance(10.0)
    assert len(told) == 2
    harness.check_idle()


def test_a_topic_stays_wanted_as_long_as_messages_wait_for_it(kit: Kit) -> None:
    harness = Harness(kit, metadata_age_max_ms=500)
    line = harness.line(unknown_topic_ms=60_000)
    receipt = line.send(b"v")
    line.seal()
    harness.advance(20.0)
    harness.model.create("t", 1)
    harness.results([receipt])


def test_a_topic_that_nobody_can_be_asked_about_expires_with_what_was_tried(kit: Kit) -> None:
    harness = Harness(kit, request_timeout_ms=1000)
    harness.model.brokers[1].die()
    line = harness.line(delivery_timeout_ms=5000)
    error = harness.error(line.send(b"v"))
    assert isinstance(error, ExpiredError)
    assert "model cannot be reached: tried broker1:9092" in str(error)
