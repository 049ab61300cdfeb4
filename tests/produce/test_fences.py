"""Lanes that forward what another log has stored: a batch that is given up takes those behind it along, so that nothing
is stored without it; and what is forwarded is counted as long as it is on its way, and no longer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.errors import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    ExpiredError,
    NotLeaderError,
    PenstockError,
    RefusedError,
    SequenceError,
    TimedOutError,
    TransactionError,
)
from penstock.produce.batch import Batch
from penstock.produce.delivery import LaneDelivery, Settled
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.protocol import Identity, Stored
from tests.consume.batches import values
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit
from tests.produce.test_delivery import PRODUCER, launch_all, sealed

NEVER = RefusedError("never")


def fenced(*batches: Batch, in_flight_max: int = 5) -> LaneDelivery:
    """A lane that forwards, whose producer the broker knows already."""
    delivery = LaneDelivery(in_flight_max, lambda attempts: 0.0, fences=True)
    delivery._identity, delivery._proven = PRODUCER, True
    for batch in batches:
        delivery.add(batch)
    return delivery


def outcomes(settled: list[Settled]) -> list[tuple[Batch, type[Any]]]:
    return [(one.batch, type(one.outcome)) for one in settled]


# Given up


def test_a_batch_that_is_refused_takes_those_behind_it_along() -> None:
    one, two, three, four, five = (sealed() for _ in range(5))
    delivery = fenced(one, two, three, four, in_flight_max=3)
    launch_all(delivery)
    delivery.add(five)
    assert delivery.land(one, Stored(0), 0.0) == [Settled(one, Stored(0))]
    assert delivery.land(two, NEVER, 0.0) == []
    settled = delivery.land(three, SequenceError("gap"), 0.0)
    assert outcomes(settled) == [(two, RefusedError), (three, BusyError), (four, BusyError), (five, BusyError)]
    assert settled[0].outcome is NEVER, "the cause is told first"
    assert str(settled[1].outcome) == "not sent, since one before it was given up: never"
    assert settled[1].outcome.__cause__ is NEVER  # type: ignore[union-attr]
    assert delivery.is_idle


def test_what_comes_later_is_sent_again_and_gets_the_next_number() -> None:
    one, two, three = (sealed(2) for _ in range(3))
    delivery = fenced(one, two)
    launch_all(delivery)
    delivery.land(one, NEVER, 0.0)
    delivery.land(two, SequenceError("gap"), 0.0)
    delivery.add(three)
    assert launch_all(delivery) == [three]
    assert three.sequence == 0
    assert delivery.land(three, Stored(0), 0.0) == [Settled(three, Stored(0))]


def test_one_that_expired_before_it_left_takes_the_others_along() -> None:
    one, two, three = sealed(expires_at=5.0), sealed(expires_at=6.0), sealed(expires_at=7.0)
    delivery = fenced(one, two, three)
    assert outcomes(delivery.expire(5.0)) == [(one, ExpiredError), (two, BusyError), (three, BusyError)]
    assert delivery.is_idle
    assert delivery.is_at_rest


def test_one_that_expired_in_flight_and_failed_later_takes_the_others_along_then() -> None:
    one, two, three = sealed(expires_at=5.0), sealed(), sealed()
    delivery = fenced(one, two, in_flight_max=2)
    launch_all(delivery)
    delivery.add(three)
    assert outcomes(delivery.expire(5.0)) == [(one, TimedOutError)]
    assert delivery.land(one, BusyError("later"), 6.0) == []
    assert outcomes(delivery.land(two, SequenceError("gap"), 6.0)) == [(two, BusyError), (three, BusyError)]
    assert delivery.is_idle


def test_one_that_expired_in_flight_and_was_stored_harms_nobody() -> None:
    one, two = sealed(expires_at=5.0), sealed()
    delivery = fenced(one, two)
    launch_all(delivery)
    delivery.expire(5.0)
    assert delivery.land(one, Stored(0), 6.0) == []
    assert delivery.land(two, Stored(1), 6.0) == [Settled(two, Stored(1))]


def test_one_that_expired_in_flight_and_may_be_stored_takes_the_others_along() -> None:
    """Nobody knows the next number, and nothing of what was sent behind it is to be stored without it."""
    one, two = sealed(expires_at=5.0), sealed()
    delivery = fenced(one, two)
    launch_all(delivery)
    delivery.expire(5.0)
    delivery.land(one, ConnectionLostError("cut"), 6.0)
    assert outcomes(delivery.land(two, ConnectionLostError("cut"), 6.0)) == [(two, BusyError)]
    three = sealed()
    delivery.add(three)
    assert delivery.wants_identity, "the request that was lost may still be stored under the next number"
    assert launch_all(delivery, now=10.0) == []
    assert launch_all(delivery, Identity(7, 1), now=10.0) == [three]


# Not given up


@pytest.mark.parametrize("error", [BusyError("later"), NotLeaderError("moved"), ConnectionLostError("cut")], ids=repr)
def test_what_passes_takes_nobody_along(error: PenstockError) -> None:
    one, two = sealed(), sealed()
    delivery = fenced(one, two)
    launch_all(delivery)
    delivery.land(one, error, 0.0)
    assert delivery.land(two, SequenceError("gap"), 0.0) == []
    assert launch_all(delivery) == [one, two]
    delivery.land(one, Stored(0), 0.0)
    assert delivery.land(two, Stored(1), 0.0) == [Settled(two, Stored(1))]


def test_what_was_given_up_from_outside_is_forgotten_with_it() -> None:
    """As when a transaction is aborted: the next failure that passes must not take anybody along for that."""
    one, two, three = sealed(), sealed(), sealed()
    delivery = fenced(one)
    delivery.fail_waiting(TransactionError("aborted"))
    delivery.add(two)
    delivery.add(three)
    launch_all(delivery)
    delivery.land(two, BusyError("later"), 0.0)
    assert delivery.land(three, SequenceError("gap"), 0.0) == []
    assert launch_all(delivery) == [two, three]


def test_a_lane_that_does_not_forward_fences_nobody() -> None:
    one, two = sealed(), sealed()
    delivery = LaneDelivery(5, lambda attempts: 0.0)
    delivery._identity, delivery._proven = PRODUCER, True
    delivery.add(one)
    delivery.add(two)
    launch_all(delivery)
    delivery.land(one, NEVER, 0.0)
    assert delivery.land(two, SequenceError("gap"), 0.0) == [Settled(one, NEVER)]
    assert launch_all(delivery) == [two]


class LossyBroker:
    """One partition: stores a batch only behind the one before it; requests and answers get lost on the way."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log: list[Batch] = []
        self._known: dict[Identity, int] = {}

    def answer(self, batch: Batch) -> Any:
        assert batch.identity is not None
        fate = self.chance.choice(["stored", "stored", "answer lost", "request lost", "refused", "later"])
        if fate == "request lost":
            return ConnectionLostError("cut")
        if batch in self.log:
            return Stored(self.log.index(batch))
        if fate in ("refused", "later"):
            return NEVER if fate == "refused" else BusyError("later")
        if self._known.get(batch.identity, 0) != batch.sequence:
            return SequenceError("gap")
        self._known[batch.identity] = batch.sequence + batch.count
        self.log.append(batch)
        return Stored(len(self.log) - 1) if fate == "stored" else ConnectionLostError("cut")


@pytest.mark.parametrize("seed", range(300))
def test_what_is_stored_is_what_lies_before_the_first_that_was_given_up(seed: int) -> None:
    """Whoever forwards begins anew when something was given up and all has its outcome; up to then, nothing is stored
    behind what is missing."""
    chance = random.Random(seed)
    broker, delivery = LossyBroker(chance), LaneDelivery(chance.randint(1, 5), lambda attempts: 0.0, fences=True)
    attempts: list[list[Batch]] = [[]]
    flying: list[Batch] = []
    settled: list[Settled] = []
    identity = PRODUCER
    for step in range(400):
        has_failed = any(not isinstance(one.outcome, Stored) for one in settled)
        if has_failed and delivery.is_idle:
            attempts.append([])
            settled = []
        elif not has_failed and chance.random() < 0.4:
            attempts[-1].append(sealed(expires_at=step + chance.choice([15, 1000])))
            delivery.add(attempts[-1][-1])
        if delivery.wants_identity:
            identity = Identity(identity.producer, identity.epoch + 1)
        if chance.random() < 0.6 and (batch := delivery.launch(identity, step)) is not None:
            flying.append(batch)
        elif flying:
            batch = flying.pop(0)
            settled += delivery.land(batch, broker.answer(batch), step)
        settled += delivery.expire(step)
    assert len(set(broker.log)) == len(broker.log)
    assert sum(map(len, attempts)) > len(broker.log) > 0
    for batches in attempts:
        stored = [batch for batch in batches if batch in broker.log]
        assert stored == batches[: len(stored)]
        assert [batch for batch in broker.log if batch in batches] == stored


# A producer that forwards


def forwarding(harness: Harness, **policy: Any) -> Line:
    harness.model.create("t", 2)
    line = harness.line("t", BatchPolicy(**policy))
    line.lanes.forwards = True
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    return line


def stored_batch(first: int, count: int = 3) -> Any:
    return KafkaWire().stored_batch(memoryview(values(first, count)), count)


def values_at(harness: Harness, partition: int = 0) -> list[int]:
    entries = harness.model.topics["t"][partition].entries
    return [int(row.value or b"") for entry in entries for row in entry.rows]


def test_batches_are_forwarded_as_they_are_and_their_memory_is_given_back(kit: Kit) -> None:
    harness = Harness(kit)
    line = forwarding(harness)
    batches = [line.lanes.forward(stored_batch(10 * i), i % 2) for i in range(8)]
    assert harness.accumulator.budget.used == sum(batch.reserved for batch in batches) > 0
    harness.run(lambda: all(batch.verdict is not None for batch in batches))
    assert [batch.verdict.first for batch in batches] == [0, 0, 3, 3, 6, 6, 9, 9]
    assert values_at(harness) == [10 * i + j for i in range(0, 8, 2) for j in range(3)]
    assert harness.accumulator.budget.used == 0
    assert not line.lanes.unsettled
    assert line.reasons() == {"direct": 8}


def test_nobody_waits_for_memory(kit: Kit) -> None:
    harness = Harness(kit, total_bytes_max=100_000)
    line = forwarding(harness)
    large = [line.lanes.forward(stored_batch(1000 * i, 1000), 0) for i in range(20)]
    assert harness.accumulator.budget.used > 100_000
    harness.run(lambda: all(batch.verdict is not None for batch in large))
    assert harness.accumulator.budget.used == 0


def test_what_could_not_be_stored_gives_its_memory_back_too(kit: Kit) -> None:
    harness = Harness(kit)
    line = forwarding(harness)
    first = line.lanes.forward(stored_batch(0), 0)
    harness.run(lambda: first.verdict is not None)
    harness.model.message_bytes_max = 200
    counts = [3, 100, 3, 3, 3]
    batches = [line.lanes.forward(stored_batch(10 * i, count), 0) for i, count in enumerate(counts, 1)]
    harness.run(lambda: all(batch.verdict is not None for batch in batches))
    told = [type(batch.verdict).__name__ for batch in batches]
    assert told == ["Stored", "BatchTooLargeError", "BusyError", "BusyError", "BusyError"], "none is divided"
    assert values_at(harness) == [0, 1, 2, 10, 11, 12]
    assert harness.accumulator.budget.used == 0
    again = [line.lanes.forward(stored_batch(100 + 10 * i), 0) for i in range(2)]
    harness.run(lambda: all(batch.verdict is not None for batch in again))
    assert values_at(harness)[6:] == [100, 101, 102, 110, 111, 112]


def test_a_closed_producer_forwards_nothing_and_reserves_nothing(kit: Kit) -> None:
    harness = Harness(kit)
    line = forwarding(harness)
    on_its_way = line.lanes.forward(stored_batch(0), 0)
    line.end_close()
    assert type(on_its_way.verdict).__name__ in ("ClosedError", "ClosedInFlightError")
    with pytest.raises(ClosedError):
        line.lanes.forward(stored_batch(3), 0)
    assert harness.accumulator.budget.used == 0
