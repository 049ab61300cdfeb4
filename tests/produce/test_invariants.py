"""The invariants of the design that concern the producer, each by its number; what has a file of its own is told there.

3, 4 and 12 are also checked at the end of each run of `test_chaos`, 10 in `test_full`, 11 in `test_sending`, 14 in
`test_undesignated`.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.errors import BatchTooLargeError, ClosedError, DeniedError, MessageError, NoRoomError, PenstockError
from penstock.produce.router import Routed, Single
from penstock.wire.entry import Scope
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit
from tests.produce.model import BAD, ModelBroker, ModelCluster

HELD = BatchPolicy(delay_ms=60_000)
ALONE = BatchPolicy(count_max=1)
RESTRICTED = {"region": ["us", "eu"], "version": ["1", "2"]}

# PIP-191's example: eight messages, five batches.
EXAMPLE = [
    {"region": "eu"},
    {"region": "eu"},
    {"region": "eu", "version": "1", "tag": "a"},
    {"region": "eu", "version": "1"},
    {"region": "us", "version": "1"},
    {"region": "us", "version": "2"},
    {"region": "us", "version": "5"},
    {"region": "us", "version": "6"},
]


def world(kit: Kit, partitions: int = 1, **options: Any) -> Harness:
    harness = Harness(kit, **options)
    harness.model.create("t", partitions)
    return harness


def proven(harness: Harness, policy: BatchPolicy = HELD, **options: Any) -> Line:
    """A producer of partition 0 that the broker knows."""
    line = harness.line(policy=policy, router=Single(0), **options)
    receipt = line.send(b"first")
    line.flush()
    harness.results([receipt])
    return line


# 1


@pytest.mark.parametrize("code", [2, 6, 7, 10, 13, 19, 20, 29, 45, 47, 56, 59, 87, -1])
@pytest.mark.parametrize("which", [0, 2, 4])
def test_1_what_is_in_flight_behind_a_failed_batch_is_sent_again_in_order(kit: Kit, which: int, code: int) -> None:
    harness = world(kit)
    line = proven(harness, ALONE)
    partition = harness.model.topics["t"][0]
    start = partition.attempts
    harness.model.refusal = lambda *_: code if partition.attempts == start + 1 + which else 0
    receipts = [line.send(b"%d" % number) for number in range(8)]
    harness.run(lambda: all(receipt.done() for receipt in receipts))
    stored = [number for number, receipt in enumerate(receipts) if receipt.exception(0) is None]
    assert set(stored) >= set(range(8)) - {which}
    values = harness.model.values("t")[1:]
    assert [value for value in values if int(value or b"") in stored] == [b"%d" % number for number in stored]
    assert len(set(values)) == len(values)
    assert [receipts[number].result(0).position for number in stored] == [
        values.index(b"%d" % number) + 1 for number in stored
    ]
    harness.check_idle()


def test_1_a_replay_is_judged_by_its_own_number_and_not_by_a_high_water_mark(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, ALONE)
    broker = harness.model.brokers[1]
    dropped: list[bytes] = []

    def drop_some(answer: bytes) -> list[tuple[float, bytes]]:
        if len(dropped) < 2:
            dropped.append(answer)
            return []
        return [(0.0, answer)]

    receipts = [line.send(b"%d" % number) for number in range(5)]
    broker.tamper = drop_some
    harness.results(receipts)
    assert harness.model.values("t")[1:] == [b"%d" % number for number in range(5)]
    assert [receipt.result(0).position for receipt in receipts] == [1, 2, 3, 4, 5]


# 2


def test_2_the_bytes_of_a_batch_that_expired_stay_as_they_are_until_the_transport_is_done_with_them(kit: Kit) -> None:
    harness = world(kit, request_timeout_ms=60_000)
    line = proven(harness, ALONE, delivery_timeout_ms=2000)
    (stream,) = [stream for stream in harness.network.streams if not stream.closed]
    stream.faults.stuck = True
    expired = [line.send(b"%d" % number * 500) for number in range(4)]
    harness.advance(3.0)
    assert all(receipt.exception(0) is not None for receipt in expired)
    assert harness.accumulator.budget.used == 0
    other = [line.send(b"%d" % number * 500) for number in range(4, 8)]
    stream.faults.stuck = False
    stream.faults.take_max = 100
    harness.run(lambda: all(receipt.done() for receipt in other))
    harness.advance(5.0)
    assert harness.model.values("t")[1:5] == [b"%d" % number * 500 for number in range(4)]


# 3


def test_3_every_reserved_byte_is_released_once_on_every_path(kit: Kit) -> None:
    harness = world(kit, partitions=2, request_timeout_ms=500)
    budget = harness.accumulator.budget
    line = proven(harness, delivery_timeout_ms=3000)

    def acked() -> None:
        line.send(b"v")
        line.flush()

    def refused_by_send() -> None:
        with pytest.raises(MessageError):
            line.send("text")

    def refused_by_the_broker() -> None:
        harness.model.refusal = lambda *_: 29
        line.send(b"v")
        line.flush()
        harness.model.refusal = lambda *_: 0

    def too_large() -> None:
        harness.model.message_bytes_max = 300
        for _ in range(5):
            line.send(b"x" * 100)
        line.send(b"x" * 500)
        line.flush()
        harness.model.message_bytes_max = 1 << 20

    def spoilt() -> None:
        line.send(b"good")
        line.send(BAD)
        line.flush()

    def expired() -> None:
        harness.model.brokers[1].die()
        line.send(b"v")
        line.flush()
        harness.model.brokers[1].revive()

    def expired_in_flight() -> None:
        harness.model.brokers[1].tamper = lambda answer: []
        line.send(b"v")
        line.flush()
        harness.model.brokers[1].tamper = lambda answer: [(0.0, answer)]
        harness.advance(1.0)

    def failed_while_open() -> None:
        line.send(b"v")
        line.outlet.fail(DeniedError("no"))

    for path in (
        acked,
        refused_by_send,
        refused_by_the_broker,
        too_large,
        spoilt,
        expired,
        expired_in_flight,
        failed_while_open,
        acked,
    ):
        path()
        assert budget.used == 0, path.__name__
    line.send(b"v")
    line.end_close()
    assert budget.used == 0
    harness.settle()
    harness.check_idle()


# 4


def test_4_each_send_has_one_outcome_and_a_throwing_callback_harms_nobody(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness)
    told: list[int] = []

    def callback(receipt: Any) -> None:
        told.append(receipt.index)
        if receipt.index % 2:
            raise ZeroDivisionError

    receipts = [line.send(b"%d" % number, callback=callback) for number in range(6)]
    harness.model.refusal = lambda *_: 29
    line.flush()
    assert told == list(range(6))
    errors = [receipt.exception(0) for receipt in receipts]
    assert {(type(error), str(error)) for error in errors} == {(DeniedError, str(errors[0]))}
    harness.model.refusal = lambda *_: 0
    receipt = line.send(b"next")
    line.flush()
    assert receipt.done()


def test_4_a_callback_may_send(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, BatchPolicy(delay_ms=5))
    again: list[Any] = []
    line.send(b"one", callback=lambda _: again.append(line.send(b"two")))
    harness.run(lambda: again and again[0].done())
    assert harness.model.values("t")[1:] == [b"one", b"two"]


# 5


def test_5_close_sends_what_is_open(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness)
    receipt = line.send(b"v")
    line.begin_close()
    harness.run(lambda: not line.lanes.unsettled, seconds=1.0)
    line.end_close()
    assert receipt.result(0).position == 1


def test_5_close_fails_what_cannot_be_sent_in_time_and_stops_no_other(kit: Kit) -> None:
    harness = world(kit, partitions=2)
    harness.model.create("u", 1)
    one, other = proven(harness), harness.line("u", HELD)
    harness.run(lambda: other.outlet.readiness.verdict is not None)
    harness.model.lead("t", 0, None)
    stuck = one.send(b"v")
    kept = other.send(b"v")
    one.begin_close()
    harness.advance(1.0)
    assert not stuck.done()
    one.end_close()
    assert isinstance(stuck.exception(0), PenstockError)
    with pytest.raises(ClosedError):
        one.send(b"w")
    other.flush()
    assert kept.result(0).position == 0
    harness.check_idle()


def test_5_close_from_a_callback_of_the_same_producer_works(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness)
    first = line.send(b"one", callback=lambda _: line.end_close())
    line.seal()
    second = line.send(b"two")
    harness.run(lambda: first.done() and second.done())
    assert isinstance(second.exception(0), ClosedError)
    harness.settle()
    harness.check_idle()


# 6


def test_6_batches_of_different_clusters_and_producers_never_mix(kit: Kit) -> None:
    harness = world(kit)
    elsewhere = ModelCluster(harness.manual, 1)
    broker = elsewhere.brokers[1]
    broker.endpoint = broker.endpoint._replace(host="elsewhere")
    elsewhere.create("t", 1)
    second = harness.connect("elsewhere", elsewhere)
    lines = [harness.line(policy=HELD), harness.line(policy=HELD), harness.line(policy=HELD, cluster=second)]
    receipts = [line.send(b"%d" % number) for number in range(10) for line in lines]
    for line in lines:
        line.seal()
    harness.results(receipts)
    here, there = harness.model.topics["t"][0].entries, elsewhere.topics["t"][0].entries
    assert [[row.value for row in entry.rows] for entry in here + there] == [[b"%d" % n for n in range(10)]] * 3
    assert len({entry.producer for entry in here}) == 2


# 7


def test_7_what_cannot_be_sent_is_said_before_anything_is_reserved_or_sealed(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness)
    line.send(b"open")
    used = harness.accumulator.budget.used
    for fields in ({"key": "text"}, {"partition": 99}, {"deliver_at": 1}, {"properties": {"a": 1}}):
        with pytest.raises(MessageError):
            line.send(b"v", **fields)
    assert harness.accumulator.budget.used == used
    assert len(line.lane(0).open) == 1
    assert line.reasons() == {"flush": 1}


def test_7_a_message_that_goes_alone_goes_after_all_that_is_open_in_its_lane(kit: Kit) -> None:
    harness = world(kit, total_bytes_max=20_000)
    policy = BatchPolicy(bytes_max=9000, delay_ms=60_000, same_properties={"g": ["1", "2"]}, order="group")
    line = proven(harness, policy, when_full="direct")
    for number in range(6):
        line.send(b"%d" % number, properties={"g": "12"[number % 2]})
    line.send(b"x" * 5000, properties={"g": "1"})
    line.send(b"alone" + b"x" * 5000, properties={"g": "2"})
    line.send(b"alone too" + b"x" * 9000, properties={"g": "1"})
    line.flush()
    values = [(value or b"")[:9].rstrip(b"x") for value in harness.model.values("t")[1:]]
    assert values.index(b"alone") > values.index(b"5")
    for group in ((b"0", b"2", b"4", b"", b"alone too"), (b"1", b"3", b"5", b"alone")):
        assert [value for value in values if value in group] == list(group)


# 8 and 9


def test_8_fields_of_a_batch_hold_for_every_member(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, BatchPolicy(delay_ms=60_000, same_properties={"region": ["eu", "us"]}))
    chance = harness.chance
    for number in range(200):
        tag = chance.choice([None, None, "red"])
        line.send(b"%d" % number, properties={"region": chance.choice(["eu", "us", "mars"])}, tag=tag)
    line.flush()
    entries = harness.model.topics["t"][0].entries[1:]
    assert len(entries) > 20
    for entry in entries:
        tags = {dict(row.properties).get("penstock.tag") for row in entry.rows}
        regions = {region for row in entry.rows if (region := dict(row.properties)["region"]) in (b"eu", b"us")}
        assert len(tags) == 1
        claimed = entry.claim.same["region"]
        assert regions <= {claimed.encode() if claimed else None}
    assert [row.value for entry in entries for row in entry.rows] == [b"%d" % number for number in range(200)]


def test_9_eight_messages_of_the_proposal_make_five_batches(kit: Kit) -> None:
    harness = world(kit)
    line = harness.line(policy=BatchPolicy(delay_ms=60_000, same_properties=RESTRICTED))
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    receipts = [
        line.send(b"msg%d" % number, properties=properties) for number, properties in enumerate(EXAMPLE, start=1)
    ]
    line.flush()
    found = [
        (dict(entry.claim.same), [row.value for row in entry.rows]) for entry in harness.model.topics["t"][0].entries
    ]
    assert found == [
        ({"region": "eu", "version": None}, [b"msg1", b"msg2"]),
        ({"region": "eu", "version": "1"}, [b"msg3", b"msg4"]),
        ({"region": "us", "version": "1"}, [b"msg5"]),
        ({"region": "us", "version": "2"}, [b"msg6"]),
        ({"region": "us", "version": None}, [b"msg7", b"msg8"]),
    ]
    assert [receipt.result(0).position for receipt in receipts] == list(range(8))
    shown = [tuple((name, value.encode()) for name, value in properties.items()) for properties in EXAMPLE]
    assert [row.properties for row in harness.model.rows("t")] == shown


def test_9_a_batch_of_one_looks_to_a_filter_like_a_batch_of_many(kit: Kit) -> None:
    harness = world(kit)
    policy = BatchPolicy(delay_ms=60_000, same_properties={"region": ["eu"]}, listed_properties=("city",))
    line = proven(harness, policy)
    for batch in ([{"region": "eu", "city": "oslo"}], [{"region": "eu", "city": "oslo"}] * 3):
        for properties in batch:
            line.send(b"v", properties=properties)
        line.flush()
    for properties in ({"region": "mars"}, {}):
        line.send(b"v", properties=properties)
        line.flush()
    one, many, unlisted, absent = harness.model.topics["t"][0].entries[1:]
    assert one.claim == many.claim
    assert one.claim.scope("region") is Scope.FOR_ALL
    assert one.claim.scope("city") is Scope.LISTED
    assert unlisted.claim.same == absent.claim.same == {"region": None}


# 10


def test_10_the_io_thread_never_waits_for_room(kit: Kit) -> None:
    harness = world(kit, total_bytes_max=20_000)
    line = proven(harness, BatchPolicy(bytes_max=9000, delay_ms=60_000), when_full="wait", full_timeout_ms=60_000)
    raised: list[Exception] = []

    def callback(_: Any) -> None:
        try:
            for _ in range(10):
                line.send(b"x" * 8000)
        except PenstockError as error:
            raised.append(error)

    def on_the_io_thread() -> None:
        raise ClosedError("waiting on the I/O thread")

    harness.home.meanwhile = on_the_io_thread
    line.send(b"v", callback=callback)
    line.seal()
    harness.run(lambda: raised)
    assert isinstance(raised[0], NoRoomError | ClosedError)
    line.flush()
    harness.check_idle()


def test_10_the_overhead_of_each_message_counts(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, BatchPolicy(bytes_max=1 << 20, delay_ms=60_000, count_max=1_000_000))
    for _ in range(10_000):
        line.send(b"")
    assert harness.accumulator.budget.used >= 10_000 * 7


# 11


def test_11_splitting_keeps_order_receipts_and_time_and_gets_smaller_each_time(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, delivery_timeout_ms=20_000)
    partition = harness.model.topics["t"][0]
    harness.model.message_bytes_max = 300
    sent_at = harness.now
    receipts = [line.send(b"%02d" % number * 40) for number in range(16)]
    line.flush()
    divided: list[Any] = [receipts[0].parcel]
    for batch in divided:
        parts: Any = batch.verdict.parts if isinstance(batch.verdict, kit.Moved) else []
        assert all(0 < part.count < batch.count for part in parts)
        divided += parts
    assert len(divided) > 8
    assert {batch.created_at for batch in divided} == {sent_at}
    assert {batch.expires_at for batch in divided} == {sent_at + 20.0}
    harness.results(receipts)
    assert harness.model.values("t")[1:] == [b"%02d" % number * 40 for number in range(16)]
    assert partition.attempts < 40
    attempts = partition.attempts
    large = line.send(b"y" * 1000)
    line.flush()
    assert isinstance(large.exception(0), BatchTooLargeError)
    assert partition.attempts <= attempts + 6


# 12


def test_12_a_retry_is_byte_identical(kit: Kit) -> None:
    harness = world(kit)
    line = proven(harness, compression="lz4")
    seen: list[bytes] = []
    store = ModelBroker._store

    def noted(broker: ModelBroker, topic: str, number: int, batch: bytes, acks: int) -> Any:
        seen.append(batch)
        return store(broker, topic, number, batch, acks)

    codes = [19, 7, 20, 13, 6]
    harness.model.refusal = lambda *_: codes.pop() if codes else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelBroker, "_store", noted)
        receipt = line.send(b"v" * 100)
        line.flush()
    assert receipt.done()
    assert len(seen) == 6
    assert len(set(seen)) == 1


def test_12_numbers_are_given_once_when_a_batch_leaves_and_survive_changes_of_leaders_and_partitions(kit: Kit) -> None:
    harness = world(kit, nodes=3, metadata_age_max_ms=200)
    line = proven(harness, ALONE)
    for number in range(12):
        line.send(b"%d" % number)
        line.flush()
        harness.model.lead("t", 0, number % 3 + 1)
        if number == 5:
            harness.model.grow("t", 4)
        harness.advance(0.3)
    entries = harness.model.topics["t"][0].entries
    assert [entry.sequence for entry in entries] == list(range(13))
    assert {entry.producer for entry in entries} == {1001}


# 13


def test_13_an_empty_key_is_a_key_and_a_router_is_asked_once_for_each_real_message(kit: Kit) -> None:
    harness = world(kit, partitions=2)
    asked: list[tuple[bytes | None, bytes | None]] = []

    def route(message: Routed) -> int:
        asked.append((message.value, message.key))
        return 0

    line = harness.line(policy=BatchPolicy(delay_ms=0, count_max=2), router=route)
    sent = [(b"%d" % number, (None, b"", b"k")[number % 3]) for number in range(12)]
    receipts = [line.send(value, key) for value, key in sent[:6]]
    harness.results(receipts)
    harness.results([line.send(value, key) for value, key in sent[6:]])
    assert asked == sent
    assert [(row.value, row.key) for row in harness.model.rows("t")] == sent


# 14


def test_14_opening_lanes_never_blocks_a_sender_and_keeps_order(kit: Kit) -> None:
    harness = Harness(kit)
    line = harness.line(policy=BatchPolicy(count_max=3))
    receipts = [line.send(b"%d" % number, partition=number % 2) for number in range(20)]
    assert harness.turns == 0, "nothing was asked of the network"
    assert harness.accumulator.lanes == 2
    harness.model.create("t", 2)
    harness.results(receipts)
    for partition in (0, 1):
        assert harness.model.values("t", partition) == [b"%d" % number for number in range(partition, 20, 2)]


def test_14_a_lane_is_opened_once_and_its_connection_too(kit: Kit) -> None:
    harness = world(kit, partitions=50)
    line = harness.line()
    harness.results([line.send(b"v", partition=number) for number in range(50)])
    assert len(harness.network.opened) == 1
    assert harness.model.identities == 1
