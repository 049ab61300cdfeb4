"""When a batch is sealed, and what becomes of lanes that nobody uses."""

from __future__ import annotations

import logging

import pytest

from penstock.config import BatchPolicy
from penstock.errors import BusyError, ClosedError, DeniedError
from penstock.produce.router import RoundRobin, Single
from penstock.wire.protocol import Identity
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit


@pytest.fixture
def harness(kit: Kit) -> Harness:
    made = Harness(kit)
    made.model.create("t", 1)
    return made


def ready(harness: Harness, policy: BatchPolicy | None = None, topic: str = "t") -> Line:
    """A producer whose topic is known, and to which the broker has listened once."""
    line = harness.line(topic, policy or BatchPolicy(delay_ms=1000))
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    receipt = line.send(b"first", partition=0)
    line.flush()
    assert receipt.result(0).position == 0
    return line


def batches(harness: Harness, topic: str = "t", partition: int = 0) -> list[list[bytes | None]]:
    """What was stored after the first message, batch by batch."""
    return [[row.value for row in entry.rows] for entry in harness.model.topics[topic][partition].entries[1:]]


# Each reason


def test_a_batch_is_sealed_when_it_holds_enough_bytes(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(bytes_max=400, delay_ms=1000))
    for number in range(6):
        line.send(b"%d" % number * 100)
    harness.settle()
    assert [len(batch) for batch in batches(harness)] == [3]
    assert line.reasons() == {"flush": 1, "bytes": 1}
    line.flush()
    assert [len(batch) for batch in batches(harness)] == [3, 3]


def test_sizes_count_keys_properties_and_framing(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(bytes_max=400, delay_ms=1000))
    for _ in range(4):
        line.send(b"v", b"k" * 50, properties={"name" * 10: b"value" * 10})
    line.flush()
    assert [len(batch) for batch in batches(harness)] == [2, 2]


def test_a_batch_is_sealed_when_it_holds_enough_messages(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(count_max=3, delay_ms=1000))
    for number in range(7):
        line.send(b"%d" % number)
    harness.settle()
    assert batches(harness) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert line.reasons()["count"] == 2


def test_a_batch_is_sealed_when_its_delay_is_over(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=50))
    line.send(b"one")
    harness.advance(0.03)
    line.send(b"two")
    harness.advance(0.0199)
    assert batches(harness) == []
    harness.advance(0.0002)
    assert batches(harness) == [[b"one", b"two"]]
    assert line.reasons()["delay"] == 1


def test_without_a_delay_every_message_leaves_at_once_while_nothing_is_before_it(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=0))
    line.send(b"one")
    harness.settle()
    line.send(b"two")
    harness.settle()
    assert batches(harness) == [[b"one"], [b"two"]]


def test_batches_of_zero_bytes_send_each_message_alone(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(bytes_max=0, delay_ms=1000))
    line.send(b"one")
    line.send(b"two")
    harness.settle()
    assert batches(harness) == [[b"one"], [b"two"]]
    assert line.reasons()["bytes"] == 3


def test_a_batch_is_sealed_when_a_restricted_property_changes(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=1000, same_properties={"region": ["eu", "us"]}))
    for region in ("eu", "eu", "us", "mars"):
        line.send(region.encode(), properties={"region": region})
    harness.settle()
    assert batches(harness) == [[b"eu", b"eu"], [b"us"]]
    assert line.reasons()["properties"] == 2


def test_a_batch_is_sealed_when_a_field_of_the_whole_batch_changes(harness: Harness) -> None:
    line = ready(harness)
    line.send(b"plain")
    line.send(b"red", tag="red")
    line.send(b"red too", tag="red")
    line.send(b"sure", wait_for_store=True)
    harness.settle()
    assert batches(harness) == [[b"plain"], [b"red", b"red too"]]
    assert line.reasons()["field"] == 2


def test_a_batch_is_sealed_by_flush_and_by_close(harness: Harness) -> None:
    line = ready(harness)
    line.send(b"one")
    line.flush()
    receipt = line.send(b"two")
    line.begin_close()
    harness.run(receipt.done)
    assert batches(harness) == [[b"one"], [b"two"]]
    assert line.reasons() == {"flush": 2, "close": 1}
    with pytest.raises(ClosedError, match="the producer is closed"):
        line.send(b"three")


def test_a_message_that_nobody_waits_for_leaves_when_time_has_come_although_the_loop_sleeps(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=5))
    harness.advance(1.0)
    assert not harness.is_awake()
    receipt = line.send(b"one")
    harness.run(receipt.done, seconds=0.01)


# Deadlines


def test_deadlines_are_met_in_the_order_of_time_whatever_the_order_of_opening(kit: Kit) -> None:
    harness = Harness(kit)
    for name in ("slow", "quick"):
        harness.model.create(name, 1)
    slow, quick = (ready(harness, BatchPolicy(delay_ms=delay), name) for name, delay in (("slow", 500), ("quick", 20)))
    slow.send(b"one")
    quick.send(b"two")
    assert harness.accumulator.next_deadline() == harness.now + 0.02
    harness.advance(0.021)
    assert (batches(harness, "slow"), batches(harness, "quick")) == ([], [[b"two"]])
    harness.advance(0.48)
    assert batches(harness, "slow") == [[b"one"]]
    assert harness.accumulator.next_deadline() is None


def test_entries_of_batches_that_left_early_do_not_pile_up(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(count_max=2, delay_ms=900_000))
    for number in range(2000):
        line.send(b"%d" % number)
    assert len(harness.accumulator._deadlines) < 600
    line.flush()
    assert harness.accumulator.next_deadline() is None


# A backlog


def test_a_batch_that_is_due_behind_a_backlog_stays_open_and_is_sealed_when_the_backlog_has_left(
    harness: Harness,
) -> None:
    line = ready(harness, BatchPolicy(delay_ms=10))
    harness.model.lead("t", 0, None)
    harness.model.refusal = lambda *_: 6
    line.send(b"one")
    harness.advance(0.1)
    late = [line.send(b"two")]
    harness.advance(0.1)
    late.append(line.send(b"three"))
    harness.advance(0.1)
    assert line.reasons()["delay"] == 1
    assert line.lane(0).is_overdue
    harness.model.refusal = lambda *_: 0
    harness.model.lead("t", 0, 1)
    harness.results(late)
    assert batches(harness) == [[b"one"], [b"two", b"three"]]
    assert not line.lane(0).is_overdue


def test_a_batch_that_is_due_behind_one_that_fails_for_good_is_sealed_all_the_same(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=10))
    harness.model.refusal = lambda *_: 19
    first = line.send(b"one")
    harness.advance(0.05)
    second = line.send(b"two")
    harness.advance(0.05)
    assert line.lane(0).is_overdue
    codes = [29]
    harness.model.refusal = lambda *_: codes.pop() if codes else 0
    assert isinstance(harness.error(first), DeniedError)
    harness.results([second])
    assert batches(harness) == [[b"two"]]


def test_a_lane_whose_open_batch_failed_with_its_producer_takes_messages_again(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=50))
    lost = line.send(b"one")
    harness.loop.call(lambda: line.outlet.fail(DeniedError("no")))
    assert isinstance(harness.error(lost), DeniedError)
    assert not line.lane(0).has_backlog
    harness.results([line.send(b"two")])
    assert batches(harness) == [[b"two"]]


# Groups


def test_with_group_order_each_combination_has_its_own_open_batch(harness: Harness) -> None:
    line = ready(harness, BatchPolicy(delay_ms=1000, same_properties={"region": ["eu", "us"]}, order="group"))
    for number, region in enumerate(["eu", "us", "eu", "mars", "us", "eu"]):
        line.send(b"%d" % number, properties={"region": region})
    assert len(line.lane(0).open) == 3
    line.flush()
    assert batches(harness) == [[b"0", b"2", b"5"], [b"1", b"4"], [b"3"]]


def test_one_group_more_than_allowed_seals_the_oldest(harness: Harness) -> None:
    policy = BatchPolicy(delay_ms=1000, same_properties={"region": ["eu", "us"]}, order="group", groups_max=2)
    line = ready(harness, policy)
    for region in ("eu", "us", "mars"):
        line.send(region.encode(), properties={"region": region})
    assert len(line.lane(0).open) == 2
    harness.settle()
    assert batches(harness) == [[b"eu"]]


def test_a_property_that_makes_tiny_batches_is_named_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    line = ready(harness, BatchPolicy(same_properties={"region": ["eu", "us"], "version": ["1", "2"]}))
    with caplog.at_level(logging.WARNING, "penstock"):
        for number in range(1000):
            line.send(b"v", properties={"region": "eu", "version": "12"[number % 2]})
    (record,) = caplog.records
    assert "batches of t hold 1.0 messages on average, because the property 'version' changes" in record.getMessage()


def test_batches_of_a_fair_size_are_not_warned_of(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    line = ready(harness, BatchPolicy(same_properties={"region": ["eu", "us"]}))
    with caplog.at_level(logging.WARNING, "penstock"):
        for number in range(10_000):
            line.send(b"v", properties={"region": ["eu", "us"][number // 20 % 2]})
    assert caplog.records == []


# Lanes come and go


def test_only_partitions_in_use_have_a_lane(kit: Kit) -> None:
    harness = Harness(kit)
    harness.model.create("t", 10_000)
    line = harness.line()
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    receipts = [line.send(b"v", partition=number * 400) for number in range(24)]
    harness.results(receipts)
    assert harness.accumulator.lanes == len(line.lanes.intake.lanes) == line.lanes.stats().open_lanes == 24


def test_an_idle_lane_is_dropped_and_numbers_go_on_when_it_is_opened_again(kit: Kit) -> None:
    harness = Harness(kit, lane_idle_ms=1000)
    harness.model.create("t", 1)
    line = ready(harness)
    (entry,) = harness.model.topics["t"][0].entries
    harness.advance(2.0)
    assert harness.accumulator.lanes == 0
    assert line.lanes.memories == {0: (Identity(int(entry.producer or 0), 0), 1)}
    receipt = line.send(b"again")
    line.flush()
    assert receipt.result(0).position == 1
    assert harness.model.topics["t"][0].entries[1].sequence == 1
    assert harness.model.identities == 1
    assert line.reasons() == {"flush": 2}, "what a dropped lane did still counts"


def test_a_lane_in_use_is_not_dropped(kit: Kit) -> None:
    harness = Harness(kit, lane_idle_ms=1000)
    harness.model.create("t", 1)
    line = ready(harness, BatchPolicy(delay_ms=60_000))
    line.send(b"open")
    harness.advance(30.0)
    assert harness.accumulator.lanes == 1


def test_a_dropped_lane_of_an_identity_that_is_gone_numbers_from_the_start(kit: Kit) -> None:
    harness = Harness(kit, lane_idle_ms=1000)
    harness.model.create("t", 2)
    line = ready(harness)
    harness.results([line.send(b"other", partition=1)])
    harness.advance(3.0)
    assert set(line.lanes.memories) == {0, 1}
    codes = [59]
    harness.model.refusal = lambda *_: codes.pop() if codes else 0
    harness.results([line.send(b"again", partition=1)])
    harness.results([line.send(b"again", partition=0)])
    first, second = (harness.model.topics["t"][number].entries[-1] for number in (0, 1))
    assert [(entry.producer, entry.epoch, entry.sequence) for entry in (first, second)] == [(1001, 1, 0)] * 2


def test_too_many_lanes_are_refused_by_send_with_nothing_reserved(kit: Kit) -> None:
    harness = Harness(kit, lanes_max=2)
    harness.model.create("t", 4)
    line = harness.line(policy=BatchPolicy(delay_ms=1000), router=Single(0))
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    for partition in (0, 1):
        line.send(b"v", partition=partition)
    used = harness.accumulator.budget.used
    with pytest.raises(BusyError, match=r"2 lanes are open, which is the limit \(lanes_max\)"):
        line.send(b"v", partition=2)
    assert harness.accumulator.budget.used == used
    line.flush()
    harness.results([line.send(b"v", partition=2)])
    assert harness.accumulator.lanes <= 2, "idle ones made room"


def test_a_batch_whose_lane_cannot_be_opened_when_its_topic_is_known_fails_and_harms_no_other(kit: Kit) -> None:
    harness = Harness(kit, lanes_max=1)
    line = harness.line(policy=BatchPolicy(delay_ms=1000), router=RoundRobin(harness.chance))
    harness.settle()
    receipts = [line.send(b"v%d" % number, b"k%d" % number) for number in range(8)]
    harness.model.create("t", 4)
    harness.run(lambda: all(receipt.done() for receipt in receipts))
    errors = [receipt.exception(0) for receipt in receipts]
    assert {type(error) for error in errors if error is not None} == {BusyError}
    stored = [value for number in range(4) for value in harness.model.values("t", number)]
    assert sorted(v for v in stored if v) == [b"v%d" % n for n, error in enumerate(errors) if error is None]
    line.flush()
    harness.check_idle()
