"""From sealed batches to answers: requests per broker, failures and what they mean for each message."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import BatchIo, BatchPolicy
from penstock.errors import (
    BatchStateError,
    BatchTooLargeError,
    ClosedError,
    ClosedInFlightError,
    DeniedError,
    ExpiredError,
    MessageError,
    Persisted,
    RefusedError,
    TimedOutError,
)
from penstock.produce.router import Single
from penstock.wire.kafka.versions import PRODUCE
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit
from tests.produce.model import BAD, ModelBroker

HELD = BatchPolicy(delay_ms=60_000)


def world(kit: Kit, partitions: int = 1, nodes: int = 1, **options: Any) -> Harness:
    harness = Harness(kit, nodes=nodes, **options)
    harness.model.create("t", partitions)
    return harness


def proven(harness: Harness, line: Line, *partitions: int) -> Line:
    """The producer, when the brokers know it in these partitions."""
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    receipts = [line.send(b"first", partition=number) for number in partitions or (0,)]
    line.flush()
    harness.results(receipts)
    return line


def produced(broker: ModelBroker) -> list[int]:
    """How many batches each produce request brought."""
    return [batches for key, batches in broker.requests if key == PRODUCE.key]


# Requests


def test_one_request_brings_batches_of_many_partitions_to_their_broker(kit: Kit) -> None:
    harness = world(kit, partitions=6, nodes=2)
    line = proven(harness, harness.line(policy=HELD), *range(6))
    for broker in harness.model.brokers.values():
        broker.requests.clear()
    for number in range(6):
        line.send(b"v", partition=number)
    line.flush()
    assert [produced(broker) for broker in harness.model.brokers.values()] == [[3], [3]]


def test_several_producers_share_a_request_but_not_a_partition_in_it(kit: Kit) -> None:
    harness = world(kit, partitions=2)
    lines = [proven(harness, harness.line(policy=HELD), 0, 1) for _ in range(2)]
    broker = harness.model.brokers[1]
    broker.requests.clear()
    for line in lines:
        for number in (0, 1):
            line.send(b"v", partition=number)
    for line in lines:
        line.seal()
    harness.settle()
    assert produced(broker) == [2, 2]


def test_a_request_is_no_larger_than_asked_but_takes_one_batch_at_least(kit: Kit) -> None:
    harness = world(kit, partitions=3, request_bytes_max=2500)
    line = proven(harness, harness.line(policy=HELD), 0, 1, 2)
    broker = harness.model.brokers[1]
    broker.requests.clear()
    for number, size in enumerate((1000, 1000, 4000)):
        line.send(b"x" * size, partition=number)
    line.flush()
    assert sorted(produced(broker)) == [1, 2]


def test_batches_that_ask_for_other_acknowledgements_travel_apart(kit: Kit) -> None:
    harness = world(kit, partitions=2)
    line = harness.line(policy=HELD, idempotence=False, acks="leader")
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    line.send(b"v", partition=0, wait_for_store=True)
    line.send(b"v", partition=1)
    line.flush()
    assert produced(harness.model.brokers[1]) == [1, 1]


@pytest.mark.parametrize(
    ("acks", "wait_for_store", "asked"),
    [
        ("leader", None, 1),
        ("leader", True, -1),
        ("leader", False, 1),
        ("all", None, -1),
        ("all", True, -1),
        ("all", False, 1),
    ],
)
def test_who_must_have_a_message_is_up_to_the_message_then_to_the_producer(
    kit: Kit, acks: str, wait_for_store: bool | None, asked: int
) -> None:
    harness = world(kit)
    line = harness.line(idempotence=False, acks=acks)
    harness.results([line.send(b"v", wait_for_store=wait_for_store)])
    assert [entry.acks for entry in harness.model.topics["t"][0].entries] == [asked]


def test_a_batch_that_cannot_be_sent_fails_alone(kit: Kit) -> None:
    harness = world(kit, partitions=2)
    line = proven(harness, harness.line(policy=HELD), 0, 1)
    lost, kept = line.send(b"lost", partition=0), line.send(b"kept", partition=1)
    parcel: Any = lost.parcel
    line.seal()
    parcel.buffer.clear()
    assert isinstance(harness.error(lost), BatchStateError)
    harness.results([kept])
    harness.results([line.send(b"next", partition=0), line.send(b"next", partition=1)])
    assert harness.model.values("t", 0) == [b"first", b"next"]
    assert harness.model.values("t", 1) == [b"first", b"kept", b"next"]
    harness.check_idle()


def test_no_more_requests_than_allowed_are_in_flight(kit: Kit) -> None:
    harness = world(kit, in_flight_max=2)
    line = proven(harness, harness.line(policy=BatchPolicy(count_max=1)))
    held: list[tuple[float, bytes]] = []

    def hold(answer: bytes) -> list[tuple[float, bytes]]:
        held.append((0.0, answer))
        return []

    broker = harness.model.brokers[1]
    broker.tamper = hold
    for number in range(5):
        line.send(b"%d" % number)
    harness.settle()
    assert len(held) == 2
    broker.tamper = lambda answer: [*held, (0.0, answer)] if held else [(0.0, answer)]


def test_without_acknowledgements_a_message_is_done_when_it_is_written(kit: Kit) -> None:
    harness = world(kit)
    line = harness.line(idempotence=False, acks="none")
    receipt = line.send(b"v")
    (found,) = harness.results([receipt])
    assert (found.topic, found.partition, found.position) == ("t", 0, None)
    assert harness.model.values("t") == [b"v"]


def test_a_broker_that_asks_to_be_left_alone_is(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=BatchPolicy(count_max=1)))
    harness.model.brokers[1].throttle_ms = 3000
    harness.results([line.send(b"one")])
    second = line.send(b"two")
    harness.advance(2.9)
    assert not second.done()
    harness.advance(0.2)
    assert second.done()


def test_frames_wait_in_the_gate_and_leave_in_one_write(kit: Kit) -> None:
    harness = world(kit, partitions=1)
    line = proven(harness, harness.line(policy=BatchPolicy(count_max=1), io=BatchIo(delay_ms=100)))
    (pipeline,) = harness.cluster._links.pipelines()
    writes = pipeline.writes
    receipts = []
    for number in range(3):
        receipts.append(line.send(b"%d" % number))
        harness.settle()
    assert pipeline.bytes_waiting > 0
    assert harness.io_memory.used == pipeline.bytes_waiting
    harness.results(receipts)
    assert pipeline.writes == writes + 1
    assert harness.io_memory.used == pipeline.bytes_waiting == 0


def test_a_gate_holds_the_batches_of_no_other_producer(kit: Kit) -> None:
    harness = world(kit, partitions=2)
    patient = proven(harness, harness.line(policy=HELD, io=BatchIo(delay_ms=60_000)), 0)
    other = proven(harness, harness.line(policy=HELD), 1)
    held, quick = patient.send(b"held", partition=0), other.send(b"quick", partition=1)
    patient.seal()
    other.seal()
    harness.settle()
    assert quick.done()
    harness.results([held])


def test_a_gate_that_no_more_requests_may_join_opens(kit: Kit) -> None:
    harness = world(kit, partitions=3, in_flight_max=2)
    patient = proven(harness, harness.line(policy=HELD, io=BatchIo(delay_ms=60_000)), 0, 1)
    other = proven(harness, harness.line(policy=HELD), 2)
    for partition in (0, 1):
        patient.send(b"held", partition=partition)
        patient.seal()
        harness.settle()
    quick = other.send(b"quick", partition=2)
    other.seal()
    harness.settle()
    assert quick.done()


def test_nothing_waits_in_a_gate_while_somebody_flushes(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD, io=BatchIo(delay_ms=60_000)))
    receipt = line.send(b"v")
    line.flush(seconds=1.0)
    assert receipt.done()


# Leaders


def test_a_partition_without_a_leader_harms_no_other(kit: Kit) -> None:
    harness = world(kit, partitions=2, nodes=2)
    line = proven(harness, harness.line(), 0, 1)
    harness.model.lead("t", 1, None)
    stuck = line.send(b"v", partition=1)
    harness.advance(1.0)
    for _ in range(20):
        harness.results([line.send(b"v", partition=0)])
    assert not stuck.done()
    harness.model.lead("t", 1, 1)
    harness.results([stuck])


def test_a_topic_whose_leader_is_waited_for_stays_wanted(kit: Kit) -> None:
    harness = world(kit, nodes=2, metadata_age_max_ms=300)
    line = proven(harness, harness.line())
    harness.model.lead("t", 0, None)
    stuck = line.send(b"v")
    harness.advance(20.0)
    assert not stuck.done()
    harness.model.lead("t", 0, 2)
    harness.run(stuck.done, seconds=3.0)


def test_a_slow_broker_harms_no_other(kit: Kit) -> None:
    harness = world(kit, partitions=2, nodes=2)
    line = proven(harness, harness.line(), 0, 1)
    slow = harness.model.brokers[2]
    slow.tamper = lambda answer: [(20.0, answer)]
    stuck = line.send(b"v", partition=1)
    started = harness.now
    for _ in range(20):
        harness.results([line.send(b"v", partition=0)])
    assert harness.now - started < 1.0
    assert not stuck.done()
    harness.results([stuck])


def test_a_new_leader_is_found_and_order_is_kept(kit: Kit) -> None:
    harness = world(kit, nodes=3)
    line = proven(harness, harness.line(policy=BatchPolicy(count_max=2)))
    receipts = []
    for number in range(60):
        receipts.append(line.send(b"%d" % number))
        if number % 20 == 10:
            harness.model.lead("t", 0, number // 20 + 1)
        harness.advance(0.05)
    harness.results(receipts)
    assert harness.model.values("t")[1:] == [b"%d" % number for number in range(60)]


def test_a_broker_that_dies_with_requests_in_flight_costs_no_message_and_no_order(kit: Kit) -> None:
    harness = world(kit, nodes=2)
    line = proven(harness, harness.line(policy=BatchPolicy(count_max=1)))
    broker = harness.model.brokers[1]
    broker.tamper = lambda answer: []
    receipts = [line.send(b"%d" % number) for number in range(10)]
    harness.settle()
    broker.die()
    harness.model.lead("t", 0, 2)
    harness.results(receipts)
    assert harness.model.values("t")[1:] == [b"%d" % number for number in range(10)]


# Time runs out


def test_a_message_that_never_left_expires_as_not_stored_and_says_why(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(delivery_timeout_ms=5000))
    harness.model.brokers[1].die()
    sent_at = harness.now
    error = harness.error(line.send(b"v"))
    assert isinstance(error, ExpiredError)
    assert error.persisted is Persisted.NO
    assert "its delivery time is over: model cannot be reached: tried broker1:9092" in str(error)
    assert harness.now - sent_at == pytest.approx(5.0, abs=0.01)
    harness.check_idle()


def test_a_message_without_a_leader_expires_with_that_story(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(delivery_timeout_ms=5000))
    harness.model.lead("t", 0, None)
    error = harness.error(line.send(b"v"))
    assert isinstance(error, TimedOutError), "who does not lead any more may have stored it before"
    assert "after 1 attempts: NOT_LEADER_OR_FOLLOWER" in str(error)
    second = harness.error(line.send(b"w"))
    assert isinstance(second, ExpiredError)
    assert second.persisted is Persisted.NO
    assert "its delivery time is over: t-0 has no leader" in str(second)


def test_a_message_that_was_refused_again_and_again_expires_with_the_last_answer(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(delivery_timeout_ms=5000))
    harness.model.refusal = lambda *_: 19
    error = harness.error(line.send(b"v"))
    assert isinstance(error, ExpiredError)
    assert "NOT_ENOUGH_REPLICAS: t-0: fewer replicas are in step" in str(error)
    assert "attempts" in str(error)


def test_a_message_whose_answer_is_awaited_expires_as_possibly_stored(kit: Kit) -> None:
    harness = world(kit, request_timeout_ms=60_000)
    line = proven(harness, harness.line(delivery_timeout_ms=5000))
    broker = harness.model.brokers[1]
    broker.tamper = lambda answer: [(20.0, answer)]
    told: list[Any] = []
    receipt = line.send(b"v", callback=told.append)
    error = harness.error(receipt)
    assert isinstance(error, TimedOutError)
    assert error.persisted is Persisted.MAYBE
    assert "its delivery time ended while the broker's answer was awaited" in str(error)
    broker.tamper = lambda answer: [(0.0, answer)]
    harness.advance(30.0)
    assert told == [receipt]
    assert harness.model.values("t") == [b"first", b"v"]
    harness.results([line.send(b"w")])
    assert harness.model.identities == 1, "the late answer told that the number was taken"
    harness.check_idle()


def test_delivery_time_counts_from_send_also_for_a_batch_that_stayed_open_behind_others(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=BatchPolicy(delay_ms=10), delivery_timeout_ms=5000))
    harness.model.brokers[1].die()
    first = line.send(b"one")
    harness.advance(2.0)
    second = line.send(b"two")
    sent_at = harness.now
    harness.error(first)
    harness.error(second)
    assert harness.now - sent_at == pytest.approx(5.0, abs=0.05)
    harness.check_idle()


# Batches that are refused for what is in them


def test_a_batch_that_is_too_large_is_split_until_the_one_message_is_left_that_is(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD, compression="lz4"))
    harness.model.message_bytes_max = 600
    told: list[Any] = []
    receipts = []
    for number in range(20):
        value = harness.chance.randbytes(1000) if number == 13 else b"%d" % number + bytes(range(number, number + 60))
        properties = {"n": b"%d" % number}
        receipts.append(line.send(value, b"k", properties=properties, event_time=number, callback=told.append))
    line.flush()
    for number, receipt in enumerate(receipts):
        if number == 13:
            assert isinstance(receipt.exception(0), BatchTooLargeError)
        else:
            position = receipt.result(0).position
            assert isinstance(position, int)
            row = harness.model.rows("t")[position]
            assert (row.properties, row.time_ms) == ((("n", b"%d" % number),), number)
    times = [row.time_ms for row in harness.model.rows("t")[1:]]
    assert times == [number for number in range(20) if number != 13]
    assert sorted(told, key=receipts.index) == receipts
    assert harness.model.identities == 1, "numbers are rewound, no new identity is needed"
    harness.check_idle()


def test_a_single_message_that_is_too_large_for_the_broker_fails_at_once(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line())
    harness.model.message_bytes_max = 600
    attempts = harness.model.topics["t"][0].attempts
    assert isinstance(harness.error(line.send(b"x" * 1000)), BatchTooLargeError)
    assert harness.model.topics["t"][0].attempts == attempts + 1


def test_messages_that_spoil_their_batch_are_left_out_and_hear_their_own_word(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD))
    receipts = [line.send((BAD if number in (2, 5) else b"") + b"%d" % number) for number in range(8)]
    after = line.send(b"after", tag="of another batch")
    line.flush()
    assert harness.model.values("t")[1:] == [b"0", b"1", b"3", b"4", b"6", b"7", b"after"]
    for number in (2, 5):
        error = receipts[number].exception(0)
        assert isinstance(error, RefusedError)
        assert error.code == "INVALID_RECORD"
        assert f"message {number} of its batch: bad" in str(error)
    assert receipts[7].result(0).position == 6
    assert after.result(0).position == 7
    harness.check_idle()


def test_a_batch_of_nothing_but_spoilt_messages_fails_as_a_whole(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD))
    receipts = [line.send(BAD + b"%d" % number) for number in range(3)]
    line.flush()
    assert {type(receipt.exception(0)) for receipt in receipts} == {RefusedError}
    assert all(f"message {n} of its batch: bad" in str(r.exception(0)) for n, r in enumerate(receipts))
    harness.check_idle()


def test_what_is_claimed_of_a_batch_holds_for_its_parts(kit: Kit) -> None:
    harness = world(kit)
    policy = BatchPolicy(delay_ms=60_000, same_properties={"region": ["eu"]}, listed_properties=("city",))
    line = proven(harness, harness.line(policy=policy))
    harness.model.message_bytes_max = 400
    for number in range(8):
        line.send(b"%d" % number * 60, properties={"region": "eu", "city": "oslo" if number % 2 else "rome"})
    line.flush()
    entries = harness.model.topics["t"][0].entries[1:]
    assert len(entries) > 1
    for entry in entries:
        assert dict(entry.claim.same) == {"region": "eu"}
        assert {row.properties for row in entry.rows} <= {
            (("region", b"eu"), ("city", city)) for city in (b"oslo", b"rome")
        }
        assert entry.claim.values("city") == frozenset({"oslo", "rome"})


def test_a_batch_that_stayed_open_because_one_before_it_seemed_to_wait_is_sealed_when_that_is_given_up(
    kit: Kit,
) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=BatchPolicy(delay_ms=0)))
    late: list[Any] = []

    def judged(*arguments: Any) -> None:
        """What another thread does while a batch that was refused is back among those that wait."""
        late.append(line.send(b"late"))

    harness.sender._divide = judged  # type: ignore[method-assign, assignment]
    harness.model.message_bytes_max = 600
    assert isinstance(harness.error(line.send(b"x" * 1000)), BatchTooLargeError)
    harness.run(late[0].done, seconds=1.0)
    harness.check_idle()


# Batches that cannot be sealed


def test_a_batch_that_cannot_be_sealed_fails_alone(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD))
    codec, line.lanes._codec = line.lanes._codec, None
    lost = [line.send(b"a"), line.send(b"b")]
    line.flush()
    line.lanes._codec = codec
    for receipt in lost:
        with pytest.raises(MessageError, match="its batch cannot be sealed"):
            receipt.result(0)
    kept = line.send(b"c")
    line.flush()
    assert kept.result(0).position == 1
    harness.check_idle()


def test_what_stayed_open_behind_a_batch_that_cannot_be_sealed_is_sealed(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=BatchPolicy(delay_ms=10)))
    lanes, codec = line.lanes, line.lanes._codec
    compress = lanes.compress
    late: list[Any] = []

    def fail_slowly(batch: Any) -> None:
        """While it is sealed another batch is opened and falls due."""
        lanes.compress = compress
        late.append(line.send(b"late"))
        harness.manual.advance(0.02)
        for lane, due in harness.accumulator.due(harness.now):
            lanes.due(lane, due)
        assert line.lane(0).is_overdue
        lanes._codec = None
        compress(batch)
        lanes._codec = codec

    lanes.compress = fail_slowly
    lost = line.send(b"lost")
    line.seal()
    assert isinstance(harness.error(lost), MessageError)
    harness.results(late)


def test_a_batch_that_cannot_be_sealed_is_settled_under_the_lock(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD))
    held: list[bool] = []
    settle = kit.Batch.settle

    def settled(batch: Any, *arguments: Any) -> None:
        held.append(line.lanes.lock._is_owned())
        settle(batch, *arguments)

    monkeypatch.setattr(kit.Batch, "settle", settled)
    line.lanes._codec = None
    lost = line.send(b"a")
    line.seal()
    assert isinstance(harness.error(lost), MessageError)
    assert held == [True], "the I/O thread may be settling it at the same moment"


def test_a_part_that_cannot_be_sealed_fails_and_its_lane_goes_on(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line(policy=HELD))
    harness.model.message_bytes_max = 300
    receipts = [line.send(b"%d" % number * 60) for number in range(8)]
    line.seal()
    codec, line.lanes._codec = line.lanes._codec, None
    harness.run(lambda: all(receipt.done() for receipt in receipts))
    line.lanes._codec = codec
    assert {type(receipt.exception(0)) for receipt in receipts} == {MessageError}
    kept = line.send(b"next")
    line.flush()
    assert kept.result(0).position == 1
    harness.check_idle()


# Identities


def test_a_producer_goes_on_asking_who_it_is_without_keeping_a_core_busy(kit: Kit) -> None:
    harness = world(kit)
    harness.model.identities_code = 14
    line = harness.line()
    receipt = line.send(b"v")
    harness.advance(20.0)
    assert harness.model.identities < 60
    assert line.outlet.readiness.verdict is None
    harness.model.identities_code = 0
    harness.results([receipt])
    assert line.outlet.readiness.verdict is not None


def test_a_producer_that_may_not_be_one_fails_what_waits_and_tries_again_with_the_next_message(kit: Kit) -> None:
    harness = world(kit)
    harness.model.identities_code = 31
    line = harness.line()
    error = harness.error(line.send(b"v"))
    assert isinstance(error, DeniedError)
    harness.model.identities_code = 0
    harness.advance(2.0)
    harness.results([line.send(b"w")])
    harness.check_idle()


def test_a_lane_that_cannot_go_on_takes_the_next_epoch_and_the_others_follow(kit: Kit) -> None:
    harness = world(kit, partitions=2, request_timeout_ms=1000)
    line = proven(harness, harness.line(delivery_timeout_ms=3000), 0, 1)
    broker = harness.model.brokers[1]
    broker.tamper = lambda answer: []
    lost = line.send(b"lost", partition=0)
    harness.run(lost.done)
    broker.tamper = lambda answer: [(0.0, answer)]
    harness.advance(2.0)
    harness.results([line.send(b"next", partition=0), line.send(b"next", partition=1)])
    assert harness.model.values("t", 0) == [b"first", b"lost", b"next"]
    shown = [
        [(entry.producer, entry.epoch, entry.sequence) for entry in partition.entries]
        for partition in harness.model.topics["t"]
    ]
    assert shown == [[(1001, 0, 0), (1001, 0, 1), (1001, 1, 0)], [(1001, 0, 0), (1001, 1, 0)]]


# The end


def test_a_producer_that_ends_tells_each_message_what_is_known(kit: Kit) -> None:
    harness = world(kit, partitions=3)
    line = proven(harness, harness.line(policy=HELD), 0, 1, 2)
    harness.model.brokers[1].tamper = lambda answer: []
    flying = line.send(b"flying", partition=0)
    line.seal()
    harness.settle()
    sealed = line.send(b"sealed", partition=1)
    line.seal()
    open_ = line.send(b"open", partition=2)
    line.end_close()
    for receipt, persisted in ((flying, Persisted.MAYBE), (sealed, Persisted.NO), (open_, Persisted.NO)):
        error = receipt.exception(0)
        assert isinstance(error, ClosedInFlightError if persisted is Persisted.MAYBE else ClosedError)
        assert error.persisted is persisted
    assert harness.model.values("t", 0) == [b"first", b"flying"]
    harness.advance(100.0)
    harness.check_idle()


def test_the_end_of_the_loop_settles_everything(kit: Kit) -> None:
    harness = world(kit)
    line = harness.line(policy=HELD)
    harness.turn()
    receipts = [line.send(b"v"), line.send(b"v", partition=0)]
    harness.sender.abort(ClosedError("the loop has ended"))
    assert all(isinstance(receipt.exception(0), ClosedError) for receipt in receipts)
    assert harness.accumulator.budget.used == harness.accumulator.lanes == 0


def test_late_answers_of_a_producer_that_is_gone_harm_nobody(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line())
    other = proven(harness, harness.line())
    harness.model.brokers[1].tamper = lambda answer: [(1.0, answer)]
    line.send(b"v")
    line.seal()
    harness.settle()
    line.end_close()
    harness.results([other.send(b"w")])
    harness.advance(5.0)
    harness.check_idle()


def test_the_end_of_the_loop_ends_the_taking_of_messages(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, harness.line())
    harness.sender.abort(ClosedError("the loop has ended"))
    with pytest.raises(ClosedError, match="the loop has ended"):
        line.send(b"v")


def test_messages_without_a_key_leave_a_partition_that_has_lost_its_leader(kit: Kit) -> None:
    harness = world(kit, partitions=2, nodes=2)
    line = proven(harness, harness.line(policy=BatchPolicy(delay_ms=0)), 0, 1)
    lost = harness.results([line.send(b"v")])[0].partition
    harness.model.lead("t", lost, None)
    stuck = line.send(b"stays")
    harness.advance(5.0)
    for _ in range(10):
        (place,) = harness.results([line.send(b"goes elsewhere")])
        assert place.partition != lost
    assert not stuck.done()
    harness.model.lead("t", lost, 1)
    (place,) = harness.results([stuck])
    assert place.partition == lost


def test_messages_without_a_key_stay_where_they_are_while_no_partition_has_a_leader(kit: Kit) -> None:
    harness = world(kit, partitions=3, nodes=2)
    line = proven(harness, harness.line(policy=HELD), 0, 1, 2)
    before = line.send(b"v").parcel.partition
    for number in range(3):
        harness.model.lead("t", number, None)
    harness.cluster.refresh("t")
    harness.advance(5.0)
    assert {line.send(b"w").parcel.partition for _ in range(10)} == {before}


def test_messages_without_a_key_keep_to_a_partition_with_a_leader(kit: Kit) -> None:
    harness = world(kit, partitions=3, nodes=3)
    harness.model.lead("t", 0, None)
    harness.model.lead("t", 2, None)
    line = harness.line(policy=BatchPolicy(count_max=2))
    found = harness.results([line.send(b"v") for _ in range(40)])
    assert {at.partition for at in found} == {1}


def test_a_single_partition_is_used_whatever_happens(kit: Kit) -> None:
    harness = world(kit, partitions=5)
    line = harness.line(policy=BatchPolicy(count_max=2), router=Single(3))
    assert {at.partition for at in harness.results([line.send(b"v") for _ in range(20)])} == {3}
