from __future__ import annotations

import pytest

from penstock.errors import (
    BatchStateError,
    BusyError,
    ClosedError,
    ClosedInFlightError,
    ConnectionLostError,
    ExpiredError,
    NotLeaderError,
    Persisted,
    RefusedError,
    SequenceError,
    TimedOutError,
    UnresolvedError,
    UnsureError,
)
from penstock.produce.batch import TRANSITIONS, Batch, State
from penstock.produce.delivery import LaneDelivery, Settled
from penstock.produce.receipts import position_of
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.protocol import Identity, Spoilt, Stored

PRODUCER = Identity(7, 0)
BUMPED = Identity(7, 1)
STRANGER = Identity(8, 0)


def sealed(count: int = 1, expires_at: float = 1e9, created_at: float = 0.0) -> Batch:
    buffer = BatchBuffer()
    for _ in range(count):
        buffer.append(b"m")
    buffer.seal()
    batch = Batch(buffer, created_at, expires_at)
    batch.move(State.SEALED)
    return batch


def lane(*batches: Batch, in_flight_max: int = 5) -> LaneDelivery:
    """A lane whose producer the broker knows already, so that several of its batches may be in flight."""
    delivery = LaneDelivery(in_flight_max, lambda attempts: 0.0)
    delivery._identity, delivery._proven = PRODUCER, True
    for batch in batches:
        delivery.add(batch)
    return delivery


def launch_all(delivery: LaneDelivery, identity: Identity | None = PRODUCER, now: float = 0.0) -> list[Batch]:
    launched = []
    while (batch := delivery.launch(identity, now)) is not None:
        launched.append(batch)
    return launched


def numbers(batches: list[Batch]) -> list[int]:
    return [batch.sequence for batch in batches]


def test_batches_are_numbered_by_their_messages_as_they_leave() -> None:
    delivery = lane(sealed(3), sealed(2), sealed(4))
    assert numbers(launch_all(delivery)) == [0, 3, 5]


def test_no_more_leave_than_may_be_in_flight() -> None:
    delivery = lane(*(sealed() for _ in range(7)))
    first = launch_all(delivery)
    assert len(first) == 5
    delivery.land(first[0], Stored(0), 0.0)
    assert len(launch_all(delivery)) == 1


def test_sequences_start_again_at_zero_after_the_last() -> None:
    delivery = lane(sealed(2), sealed(2))
    delivery._identity, delivery._next_sequence = PRODUCER, (1 << 31) - 2
    assert numbers(launch_all(delivery)) == [(1 << 31) - 2, 0]


def test_a_failed_batch_and_those_refused_behind_it_are_sent_again_in_order_with_their_numbers() -> None:
    one, two, three = sealed(3), sealed(2), sealed(1)
    delivery = lane(one, two, three)
    launch_all(delivery)
    assert delivery.land(one, Stored(100), 0.0) == [Settled(one, Stored(100))]
    assert delivery.land(two, BusyError("later"), 0.0) == []
    four = sealed(1)
    delivery.add(four)
    assert delivery.launch(PRODUCER, 0.0) is None
    assert delivery.land(three, SequenceError("gap"), 0.0) == []
    again = launch_all(delivery)
    assert again == [two, three, four]
    assert numbers(again) == [3, 5, 6]


def test_a_batch_given_up_leaves_its_number_to_the_next() -> None:
    one, two, three = sealed(3), sealed(2), sealed(1)
    delivery = lane(one, two, three)
    launch_all(delivery)
    refused = RefusedError("too large")
    delivery.land(one, refused, 0.0)
    delivery.land(two, SequenceError("gap"), 0.0)
    assert delivery.land(three, SequenceError("gap"), 0.0) == [Settled(one, refused)]
    assert numbers(launch_all(delivery)) == [0, 2]


def test_numbers_of_lost_requests_are_not_given_to_others() -> None:
    one, two, three = sealed(2), sealed(1), sealed(1)
    delivery = lane(one, two, three)
    launch_all(delivery)
    delivery.land(one, RefusedError("never"), 0.0)
    delivery.land(two, ConnectionLostError("cut"), 0.0)
    delivery.land(three, SequenceError("gap"), 0.0)
    assert delivery.wants_identity, "the broker may still have the request with the second, and store it as the next"
    assert launch_all(delivery, PRODUCER) == []
    assert launch_all(delivery, BUMPED) == [two, three]


def test_spoilt_messages_settle_their_batch_and_no_other() -> None:
    one, two = sealed(3), sealed(2)
    delivery = lane(one, two)
    launch_all(delivery)
    spoilt = Spoilt(RefusedError("no key"), {1: "no key"})
    assert delivery.land(one, spoilt, 0.0) == [], "held until all in flight is answered"
    assert delivery.land(two, SequenceError("gap"), 0.0) == [Settled(one, spoilt)]
    assert launch_all(delivery) == [two]
    assert two.sequence == 0


def test_a_lost_connection_sends_the_same_numbers_again() -> None:
    batches = [sealed(2) for _ in range(5)]
    delivery = lane(*batches)
    launch_all(delivery)
    for batch in batches:
        delivery.land(batch, ConnectionLostError("cut"), 0.0)
    assert launch_all(delivery) == batches
    assert numbers(batches) == [0, 2, 4, 6, 8]


def test_expired_before_it_left_is_certainly_not_stored() -> None:
    one, two = sealed(expires_at=5.0), sealed()
    delivery = lane(one, two)
    (settled,) = delivery.expire(5.0)
    assert settled.batch is one
    assert isinstance(settled.outcome, ExpiredError)
    assert numbers(launch_all(delivery)) == [0]


def test_expired_after_it_was_refused_leaves_its_number_to_the_next() -> None:
    one, two = sealed(4, expires_at=5.0), sealed(3)
    delivery = lane(one, two)
    launch_all(delivery)
    delivery.land(one, BusyError("later"), 1.0)
    delivery.land(two, SequenceError("gap"), 1.0)
    (settled,) = delivery.expire(5.0)
    assert isinstance(settled.outcome, ExpiredError)
    assert numbers(launch_all(delivery, now=5.0)) == [0]


def test_a_leader_that_steps_down_may_have_stored_what_it_refuses() -> None:
    one = sealed(4, expires_at=5.0)
    delivery = lane(one)
    launch_all(delivery)
    delivery.land(one, NotLeaderError("not any more"), 1.0)
    (settled,) = delivery.expire(5.0)
    assert isinstance(settled.outcome, TimedOutError)
    delivery.add(sealed(4))
    assert launch_all(delivery, PRODUCER, now=5.0) == [], "the broker would take it for the one before"
    assert numbers(launch_all(delivery, BUMPED, now=5.0)) == [0]


def test_expired_after_it_was_lost_may_be_stored_and_the_next_one_tells() -> None:
    one, two, three = sealed(4, expires_at=5.0), sealed(3), sealed(2)
    delivery = lane(one, two, in_flight_max=2)
    launch_all(delivery)
    delivery.land(one, ConnectionLostError("cut"), 1.0)
    delivery.land(two, ConnectionLostError("cut"), 1.0)
    delivery.add(three)
    (settled,) = delivery.expire(5.0)
    assert settled.outcome is not None
    assert isinstance(settled.outcome, TimedOutError)
    assert launch_all(delivery, now=5.0) == [two]
    assert two.sequence == 4
    delivery.land(two, Stored(104), 5.0)
    assert not delivery.wants_identity
    assert launch_all(delivery, now=5.0) == [three]
    assert three.sequence == 7


def test_expired_after_it_was_lost_and_the_next_one_refused_takes_a_new_identity() -> None:
    one, two, three = sealed(4, expires_at=5.0), sealed(3), sealed(2)
    delivery = lane(one, two)
    launch_all(delivery)
    delivery.land(one, ConnectionLostError("cut"), 1.0)
    delivery.land(two, ConnectionLostError("cut"), 1.0)
    delivery.add(three)
    delivery.expire(5.0)
    assert launch_all(delivery, now=5.0) == [two]
    assert delivery.land(two, SequenceError("gap"), 5.0) == []
    assert delivery.wants_identity
    assert launch_all(delivery, PRODUCER, now=5.0) == []
    assert launch_all(delivery, BUMPED, now=5.0) == [two, three]
    assert [(batch.identity, batch.sequence) for batch in (two, three)] == [(BUMPED, 0), (BUMPED, 3)]


def test_expired_after_it_was_lost_with_nothing_behind_it_takes_a_new_identity() -> None:
    one, two = sealed(4, expires_at=5.0), sealed(3)
    delivery = lane(one)
    launch_all(delivery)
    delivery.land(one, ConnectionLostError("cut"), 1.0)
    delivery.expire(5.0)
    delivery.add(two)
    assert delivery.wants_identity
    assert launch_all(delivery, PRODUCER, now=5.0) == []
    assert launch_all(delivery, BUMPED, now=5.0) == [two]


def test_expired_in_flight_has_its_outcome_at_once_and_its_answer_changes_nothing_but_the_numbers() -> None:
    one, two = sealed(4, expires_at=5.0), sealed(3)
    delivery = lane(one, two)
    launch_all(delivery)
    (settled,) = delivery.expire(5.0)
    assert isinstance(settled.outcome, TimedOutError)
    assert delivery.land(one, Stored(0), 6.0) == []
    assert one.verdict is settled.outcome
    delivery.land(two, BusyError("later"), 6.0)
    assert numbers(launch_all(delivery, now=6.0)) == [4]


def test_a_later_batch_that_was_stored_tells_of_the_lost_one_before_it() -> None:
    one, two, three = sealed(4, expires_at=5.0), sealed(3), sealed(1)
    delivery = lane(one, two)
    launch_all(delivery)
    delivery.expire(5.0)
    delivery.land(two, Stored(4), 6.0)
    delivery.land(one, ConnectionLostError("cut"), 6.0)
    delivery.add(three)
    assert not delivery.wants_identity
    assert numbers(launch_all(delivery, now=6.0)) == [7]


def test_a_broker_that_forgot_the_producer_gets_unsent_batches_under_a_new_identity() -> None:
    one, two = sealed(4), sealed(3)
    delivery = lane(one, two)
    launch_all(delivery)
    delivery.land(one, SequenceError("unknown producer"), 0.0)
    assert delivery.land(two, SequenceError("unknown producer"), 0.0) == []
    assert delivery.wants_identity
    assert launch_all(delivery, BUMPED) == [one, two]
    assert numbers([one, two]) == [0, 4]


def test_a_broker_that_forgot_a_lost_batch_leaves_it_unresolved() -> None:
    one, two = sealed(4), sealed(3)
    delivery = lane(one)
    launch_all(delivery)
    delivery.land(one, ConnectionLostError("cut"), 0.0)
    launch_all(delivery)
    (settled,) = delivery.land(one, SequenceError("unknown producer"), 0.0)
    assert isinstance(settled.outcome, UnresolvedError)
    delivery.add(two)
    assert launch_all(delivery, BUMPED) == [two]


def test_another_producer_has_to_prove_itself_but_not_another_epoch_of_the_same() -> None:
    for identity, launched in ((BUMPED, 2), (STRANGER, 1)):
        batches = [sealed(), sealed()]
        assert len(launch_all(lane(*batches), identity)) == launched


def test_the_first_batch_of_a_producer_goes_alone_since_brokers_take_any_number_from_strangers() -> None:
    one, two, three = sealed(2), sealed(1), sealed(1)
    delivery = LaneDelivery(5, lambda attempts: 0.0)
    for batch in (one, two, three):
        delivery.add(batch)
    assert launch_all(delivery) == [one]
    assert delivery.land(one, BusyError("later"), 0.0) == []
    assert launch_all(delivery) == [one]
    delivery.land(one, Stored(0), 0.0)
    assert launch_all(delivery) == [two, three]
    assert numbers([one, two, three]) == [0, 2, 3]


def test_a_lane_opened_again_with_its_memory_need_not_prove_itself_anew() -> None:
    delivery = LaneDelivery(5, lambda attempts: 0.0)
    delivery.remember((PRODUCER, 7))
    delivery.add(sealed(2))
    delivery.add(sealed())
    assert numbers(launch_all(delivery)) == [7, 9]


def test_a_batch_that_is_surely_stored_is_asked_about_alone_so_that_the_broker_still_remembers_it() -> None:
    batches = [sealed() for _ in range(5)]
    delivery = lane(*batches)
    launch_all(delivery)
    delivery.land(batches[0], UnsureError("too few replicas"), 0.0)
    for batch in batches[1:]:
        delivery.land(batch, Stored(0), 0.0)
    later = sealed()
    delivery.add(later)
    assert launch_all(delivery) == [batches[0]]
    delivery.land(batches[0], Stored(0), 0.0)
    assert launch_all(delivery) == [later]


@pytest.mark.parametrize("refusal", [RefusedError("never"), Spoilt(RefusedError("bad"), {0: "bad"})])
def test_refused_after_an_attempt_that_was_not_answered_may_be_stored_all_the_same(
    refusal: RefusedError | Spoilt,
) -> None:
    one = sealed(2)
    delivery = LaneDelivery(5, lambda attempts: 0.0, divide=lambda batch, verdict: pytest.fail("divided"))
    delivery.add(one)
    launch_all(delivery)
    delivery.land(one, ConnectionLostError("cut"), 0.0)
    launch_all(delivery)
    (settled,) = delivery.land(one, refusal, 0.0)
    assert isinstance(settled.outcome, UnresolvedError)
    assert settled.outcome.persisted is Persisted.MAYBE
    assert isinstance(settled.outcome.__cause__, RefusedError)


def test_an_end_with_batches_in_flight_says_that_they_may_be_stored() -> None:
    lost, flying, waiting = sealed(), sealed(), sealed()
    delivery = lane(lost, in_flight_max=1)
    launch_all(delivery)
    delivery.land(lost, ConnectionLostError("cut"), 0.0)
    again = lane(flying, waiting, in_flight_max=1)
    launch_all(again)
    end = ClosedError("closed")
    outcomes = [settled.outcome for settled in (*delivery.fail_all(end), *again.fail_all(end))]
    assert outcomes[2] is end
    for outcome in outcomes[:2]:
        assert isinstance(outcome, ClosedInFlightError)
        assert outcome.persisted is Persisted.MAYBE
        assert outcome.__cause__ is end


def test_the_back_off_holds_the_lane() -> None:
    delivery = LaneDelivery(5, lambda attempts: 10.0 * attempts)
    one = sealed()
    delivery.add(one)
    launch_all(delivery)
    delivery.land(one, BusyError("later"), 1.0)
    assert delivery.ready_at() == 11.0
    assert delivery.launch(PRODUCER, 10.9) is None
    assert delivery.launch(PRODUCER, 11.0) is one


def test_without_an_identity_nothing_is_numbered() -> None:
    delivery = lane(sealed(), sealed())
    assert numbers(launch_all(delivery, None)) == [-1, -1]


def test_without_an_identity_talk_of_numbers_settles_the_one_batch_it_is_about() -> None:
    one, two = sealed(), sealed()
    delivery = LaneDelivery(5, lambda attempts: 0.0)
    delivery.add(one)
    delivery.add(two)
    launch_all(delivery, None)
    error = SequenceError("what numbers?")
    delivery.land(one, error, 0.0)
    assert delivery.land(two, ConnectionLostError("cut"), 0.0) == [Settled(one, error)]
    assert two.maybe_stored
    assert launch_all(delivery, None) == [two]


def test_fail_all_settles_each_once() -> None:
    batches = [sealed() for _ in range(7)]
    delivery = lane(*batches)
    launch_all(delivery)
    error = RefusedError("closed")
    assert [settled.batch for settled in delivery.fail_all(error)] == batches
    assert delivery.fail_all(error) == []
    for batch in batches[:5]:
        assert delivery.land(batch, Stored(0), 0.0) == []
    assert delivery.is_idle


@pytest.mark.parametrize("state", State)
def test_an_impossible_step_raises_with_its_story(state: State) -> None:
    for following in set(State) - TRANSITIONS[state]:
        batch = sealed()
        batch.state = state
        with pytest.raises(BatchStateError, match=f"Batch {state.value}, 1 messages.* cannot become {following.value}"):
            batch.move(following)


def test_the_position_of_a_message_follows_from_its_batch() -> None:
    assert position_of(100, 3) == 103
    assert position_of((5, 17), 3) == (5, 17, 3)
    assert position_of(None, 3) is None
