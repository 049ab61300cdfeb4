"""The two ways through `send`, on both twins: the quick one and the careful one do the same."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import time
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config import BatchPolicy
from penstock.errors import ClosedError, MessageError
from penstock.produce.kernel import Receipt
from penstock.produce.router import Single, by_crc32, by_murmur2
from tests.net.memory import Faults
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit
from tests.produce.model import Row

FAR_MS = 4_000_000_000_000
"""A wall clock far ahead of the machine's: no deadline is ever found passed in `send`."""


def quick(kit: Kit, policy: BatchPolicy | None = None, partitions: int = 3, **options: Any) -> tuple[Harness, Line]:
    """A producer on the quick way, its topic known."""
    harness = Harness(kit, fast=True, clock=ManualClock(1000.0, FAR_MS))
    harness.model.create("t", partitions)
    line = harness.line("t", policy or BatchPolicy(delay_ms=1000), **options)
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    assert line.lanes.intake.is_fast
    return harness, line


def slow_sends(line: Line) -> list[Any]:
    """What the careful way was given, from now on."""
    seen: list[Any] = []
    careful = line.lanes.intake.slow

    def noted(*arguments: Any) -> Receipt:
        seen.append(arguments)
        receipt: Receipt = careful(*arguments)
        return receipt

    line.lanes.intake.slow = noted
    return seen


@pytest.mark.parametrize("is_quick", [True, False])
def test_both_ways_store_the_same(kit: Kit, is_quick: bool) -> None:
    harness, line = quick(kit, BatchPolicy(delay_ms=1000, count_max=7), router=Single(1))
    line.lanes.intake.is_fast = is_quick
    expected: dict[int, list[Row]] = {0: [], 1: [], 2: []}
    receipts = []
    keys = (None, b"", b"a", b"longer")
    pairs: tuple[dict[str, Any] | None, ...] = (None, {}, {"a": "x"}, {"ä": None, "b": b"\xff"})
    values = (b"", b"v", None, b"x" * 300)
    for number, (value, key, properties) in enumerate(itertools.product(values, keys, pairs)):
        fields: dict[str, Any] = {"partition": 2} if number % 5 == 0 else {}
        receipts.append((line.send(value, key, properties=properties, event_time=number, **fields), fields))
        partition = 2 if fields else 1 if key is None else by_murmur2(key, 3)
        shown = tuple((n, v.encode() if isinstance(v, str) else v) for n, v in (properties or {}).items())
        at = receipts[-1][0]
        expected[partition].append(Row(value, key, shown, number))
        assert at.parcel.partition == partition
    line.flush()
    assert {number: harness.model.rows("t", number) for number in range(3)} == expected
    for number in range(3):
        assert [len(entry.rows) for entry in harness.model.topics["t"][number].entries[:-1]] == [
            7 for _ in harness.model.topics["t"][number].entries[:-1]
        ]
    harness.check_idle()


def test_plain_messages_take_the_quick_way_once_a_batch_is_open(kit: Kit) -> None:
    _, line = quick(kit)
    line.send(b"opens the batch")
    seen = slow_sends(line)
    receipts = [line.send(b"%d" % number) for number in range(10)]
    assert seen == []
    line.flush()
    assert [receipt.index for receipt in receipts] == list(range(1, 11))
    assert [receipt.result(0).position for receipt in receipts] == list(range(1, 11))


def test_the_compiled_way_takes_keys_properties_times_partitions_and_callbacks(kit: Kit) -> None:
    if kit.name != "_lane":
        pytest.skip("the plain twin leaves these to the careful way")
    harness, line = quick(kit, hash="crc32")
    told: list[Any] = []
    for partition in range(3):
        line.send(b"opens the batch", partition=partition)
    seen = slow_sends(line)
    receipt = line.send(b"v", b"key", properties={"a": "b"}, event_time=1234, callback=told.append)
    other = line.send(b"w", partition=2)
    assert seen == []
    line.flush()
    partition = by_crc32(b"key", 3)
    assert harness.model.rows("t", partition)[1] == Row(b"v", b"key", (("a", b"b"),), 1234)
    assert other.result(0).partition == 2
    assert told == [receipt]


REGIONS = {"region": ["us", "eu"], "version": ["1"]}


def test_messages_that_share_what_the_open_batch_shares_take_the_quick_way(kit: Kit) -> None:
    if kit.name != "_lane":
        pytest.skip("the plain twin leaves these to the careful way")
    _, line = quick(kit, BatchPolicy(delay_ms=1000, same_properties=REGIONS), router=Single(1))
    opened = line.send(b"opens the batch", properties={"region": "eu"}).parcel
    seen = slow_sends(line)
    for same in ({"region": "eu"}, {"region": b"eu", "other": "x"}, {"region": "eu", "version": "2"}):
        assert line.send(b"joins it", properties=same).parcel is opened
    assert seen == []
    for other in ({"region": "us"}, {"region": "eu", "version": "1"}, None, {"region": "br"}):
        line.send(b"opens another", properties=other)
    assert len(seen) == 3, "a value that is not listed counts as absent"
    line.flush()


@pytest.mark.parametrize("is_quick", [True, False])
def test_both_ways_part_messages_by_what_they_share(kit: Kit, is_quick: bool) -> None:
    harness, line = quick(kit, BatchPolicy(delay_ms=1000, same_properties=REGIONS), router=Single(1))
    line.lanes.intake.is_fast = is_quick
    chance = random.Random(5)
    parcels: list[tuple[Any, Any]] = []
    for number in range(300):
        region, version = chance.choice(["us", "us", b"us", "eu", "br", None]), chance.choice(["1", "1", "2"])
        properties = {"region": region, "version": version} if region is not None else None
        assert line.lanes.restriction is not None
        shared = line.lanes.restriction.shared(properties)
        parcels.append((line.send(b"%d" % number, properties=properties).parcel, shared))
    line.flush()
    assert [row.value for row in harness.model.rows("t", 1)] == [b"%d" % number for number in range(300)]
    for (batch, shared), (following, other) in itertools.pairwise(parcels):
        assert (batch is following) == (shared == other)
        assert batch.shared == shared
    harness.check_idle()


def test_a_property_that_is_looked_up_by_foreign_code_is_put_where_it_belongs(kit: Kit) -> None:
    class Odd(str):
        """Equal to a restricted property's name, by code of its own."""

        def __eq__(self, other: object) -> bool:
            line.flush()  # whatever is open in the lane is gone now
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    harness, line = quick(kit, BatchPolicy(delay_ms=1000, same_properties={"region": ["us"]}), router=Single(1))
    line.send(b"opens the batch", properties={"region": "us"})
    receipt: Any = line.send(b"odd", properties={Odd("region"): "us"})
    assert receipt.parcel.shared == ("us",)
    line.flush()
    assert [row.value for row in harness.model.rows("t", 1)] == [b"opens the batch", b"odd"]
    harness.check_idle()


@pytest.mark.parametrize("fields", [{"wait_for_store": False}, {"wait_for_store": True}, {"tag": "x"}])
def test_a_plain_message_does_not_join_a_batch_with_a_field(kit: Kit, fields: dict[str, Any]) -> None:
    harness, line = quick(kit, idempotence=False)
    first: Any = line.send(b"with a field", partition=0, **fields)
    plain: Any = line.send(b"plain", partition=0)
    again: Any = line.send(b"with a field again", partition=0, **fields)
    assert plain.parcel is not first.parcel
    assert plain.parcel.fields == (None, None)
    assert again.parcel is not plain.parcel
    line.flush()
    assert [row.value for row in harness.model.rows("t", 0)] == [b"with a field", b"plain", b"with a field again"]


def test_a_callback_is_told_also_where_the_outcome_comes_in_the_moment_it_is_noted(kit: Kit) -> None:
    """Noting it takes memory, for which the garbage collector may run: foreign code, which lets other threads in."""
    harness, line = quick(kit)
    batch: Any = line.send(b"opens the batch").parcel
    told: list[Any] = []

    kept: list[Any] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if batch.verdict is None and batch.count == 2:
            line.flush()
        kept.extend([(number, number) for number in range(5000)])  # none is at hand, so that the next one is made anew

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        receipt = line.lanes.intake.send(b"v", callback=told.append)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert receipt.done(), "the collector has not run in between"
    assert told == [receipt]
    harness.check_idle()


@pytest.mark.parametrize(
    "fields",
    [
        {"value": bytearray(b"v")},
        {"value": memoryview(b"v")},
        {"value": type("B", (bytes,), {})(b"v")},
        {"tag": "x"},
        {"keys": ["x"]},
        {"wait_for_store": True},
        {"properties": type("D", (dict,), {})({"a": "b"})},
        {"event_time": type("I", (int,), {})(5)},
        {"partition": type("I", (int,), {})(0)},
        {"key": bytearray(b"v")},
    ],
    ids=lambda fields: " ".join(f"{name}: {type(value).__name__}" for name, value in fields.items()),
)
def test_whatever_may_run_foreign_code_takes_the_careful_way_and_is_stored(kit: Kit, fields: dict[str, Any]) -> None:
    harness, line = quick(kit)
    line.send(b"opens the batch")
    seen = slow_sends(line)
    receipt = line.send(**{"value": b"v"} | fields)
    assert len(seen) == 1
    line.flush()
    at = receipt.result(0)
    assert isinstance(at.position, int)
    assert harness.model.rows("t", at.partition)[at.position].value == b"v"
    harness.check_idle()


@pytest.mark.parametrize(
    "fields",
    [
        {"value": "text"},
        {"key": 5},
        {"properties": [1]},
        {"properties": {1: "x"}},
        {"properties": {"x": 1}},
        {"properties": {"x": "\ud800"}},
        {"event_time": -5},
        {"event_time": 1 << 70},
        {"event_time": True},
        {"partition": -1},
        {"partition": 3},
        {"partition": 1 << 70},
        {"partition": 0.0},
        {"partition": True},
        {"deliver_at": 5},
    ],
    ids=str,
)
def test_what_is_wrong_is_said_by_both_ways_and_leaves_nothing_behind(kit: Kit, fields: dict[str, Any]) -> None:
    harness, line = quick(kit)
    receipt = line.send(b"opens the batch", partition=0)
    used = harness.accumulator.budget.used
    for is_quick in (True, False):
        line.lanes.intake.is_fast = is_quick
        with pytest.raises(MessageError):
            line.send(**{"value": b"v"} | fields)
    assert receipt.parcel.buffer.count == 1  # type: ignore[attr-defined]
    assert harness.accumulator.budget.used == used
    line.flush()
    harness.check_idle()


def test_a_full_batch_gives_way_to_the_next(kit: Kit) -> None:
    harness, line = quick(kit, BatchPolicy(bytes_max=1000, delay_ms=1000), router=Single(0))
    receipts = [line.send(b"%03d" % number * 20, event_time=None) for number in range(200)]
    line.flush()
    assert [receipt.result(0).position for receipt in receipts] == list(range(200))
    sizes = {len(entry.rows) for entry in harness.model.topics["t"][0].entries[:-1]}
    assert sizes == {12}
    assert line.reasons()["bytes"] == len(harness.model.topics["t"][0].entries) - 1


def test_a_batch_with_enough_messages_is_sealed_on_the_thread_that_sends(kit: Kit) -> None:
    _, line = quick(kit, BatchPolicy(count_max=5, delay_ms=1000), router=Single(0))
    receipts = [line.send(b"v") for _ in range(12)]
    states = [receipt.parcel.state.value for receipt in receipts]  # type: ignore[attr-defined]
    assert states == ["sealed"] * 10 + ["open"] * 2


def test_a_batch_whose_deadline_has_passed_is_sealed_on_the_thread_that_sends(kit: Kit) -> None:
    harness, line = quick(kit, BatchPolicy(delay_ms=5), router=Single(0))
    harness.manual.set_wall_ms(time.time_ns() // 1_000_000 - 1000)
    receipts = [line.send(b"one"), line.send(b"two")]
    assert receipts[0].parcel is receipts[1].parcel
    assert receipts[0].parcel.state.value == "sealed"  # type: ignore[attr-defined]
    assert line.reasons() == {"delay": 1}


def test_times_are_those_of_the_machine_where_none_is_given(kit: Kit) -> None:
    harness, line = quick(kit)
    line.send(b"opens the batch", event_time=1)
    before = time.time_ns() // 1_000_000
    at = line.send(b"v")
    after = time.time_ns() // 1_000_000
    line.flush()
    assert before <= harness.model.rows("t", at.result(0).partition)[1].time_ms <= after


def test_a_closed_producer_takes_nothing_by_either_way(kit: Kit) -> None:
    _, line = quick(kit)
    line.send(b"v")
    line.begin_close()
    for is_quick in (True, False):
        line.lanes.intake.is_fast = is_quick
        with pytest.raises(ClosedError):
            line.send(b"w")


def test_a_policy_that_looks_at_each_message_closes_the_quick_way(kit: Kit) -> None:
    harness = Harness(kit, fast=True)
    for policy in (
        BatchPolicy(same_properties={"a": ["b"]}, order="group"),
        BatchPolicy(same_properties={f"p{number}": ["b"] for number in range(9)}),
        BatchPolicy(listed_properties=("a",)),
        BatchPolicy(count_max=1),
        BatchPolicy(bytes_max=0),
    ):
        assert not harness.line("t", policy).lanes.intake.is_fast
    assert not harness.line("t", router=lambda message: 0).lanes.intake.is_fast
    assert harness.line("t").lanes.intake.is_fast


def test_an_intake_that_nobody_stands_behind_says_so(kit: Kit) -> None:
    intake = kit.Intake(lambda lane, batch: None, by_murmur2, threading.RLock())
    if kit.name == "lane":
        with pytest.raises(RuntimeError, match="nobody takes messages here yet"):
            intake.send(b"v")
    assert intake.lanes == {}


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("policy", [BatchPolicy(delay_ms=1, count_max=50), BatchPolicy(delay_ms=0, bytes_max=2000)])
def test_nothing_is_lost_or_doubled_when_many_threads_send_at_once(
    kit: Kit, policy: BatchPolicy, is_quick: bool
) -> None:
    harness, line = quick(kit, policy, compression="lz4")
    line.lanes.intake.is_fast = is_quick
    count, crowd = 300, 6
    sent: list[list[Receipt]] = [[] for _ in range(crowd)]
    told: list[Receipt] = []

    def work(number: int) -> None:
        for index in range(count):
            key = b"%d" % (index % 5) if index % 3 == 0 else None
            callback = told.append if index % 10 == 0 else None
            sent[number].append(line.send(b"%d.%d" % (number, index), key, callback=callback))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(crowd)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            harness.advance(0.001)
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    line.flush()
    stored = [harness.model.values("t", number) for number in range(3)]
    assert sorted(value for values in stored for value in values if value) == sorted(
        b"%d.%d" % (number, index) for number in range(crowd) for index in range(count)
    )
    for number, receipts in enumerate(sent):
        for index, receipt in enumerate(receipts):
            at = receipt.result(0)
            assert isinstance(at.position, int)
            assert stored[at.partition][at.position] == b"%d.%d" % (number, index)
        for values in stored:
            pairs = [(value or b"").split(b".") for value in values]
            own = [int(index) for thread_number, index in pairs if int(thread_number) == number]
            assert own == sorted(own), "each thread's messages keep their order in a lane"
    assert len(told) == crowd * count // 10
    harness.check_idle()


@pytest.mark.parametrize("seed", range(5))
def test_many_threads_on_a_bad_network_with_little_memory_lose_and_double_nothing(kit: Kit, seed: int) -> None:
    chance = random.Random(seed)
    harness = Harness(
        kit,
        fast=True,
        clock=ManualClock(1000.0, FAR_MS),
        seed=seed,
        nodes=2,
        total_bytes_max=6000,
        request_timeout_ms=500,
        retry_backoff_ms=10,
        retry_backoff_max_ms=50,
    )
    harness.model.create("t", 2)
    harness.home.meanwhile = lambda: None
    for broker in harness.model.brokers.values():
        broker.faults = lambda: Faults(cut_after_sent=chance.randrange(100, 3000), take_max=chance.choice([50, 1000]))
    line = harness.line(policy=BatchPolicy(bytes_max=700, delay_ms=2), full_timeout_ms=60_000)
    count, crowd = 60, 4
    sent: list[list[Receipt]] = [[] for _ in range(crowd)]

    def work(number: int) -> None:
        for index in range(count):
            sent[number].append(line.send(b"%d.%d" % (number, index), partition=index % 2))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(crowd)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        harness.advance(0.01)
    for thread in threads:
        thread.join()
    line.flush()
    for partition in (0, 1):
        pairs = [tuple(map(int, (value or b"").split(b"."))) for value in harness.model.values("t", partition)]
        assert sorted(pairs) == [(number, index) for number in range(crowd) for index in range(partition, count, 2)]
        for number in range(crowd):
            own = [index for thread_number, index in pairs if thread_number == number]
            assert own == sorted(own)
    assert all(receipt.exception(0) is None for receipts in sent for receipt in receipts)
    harness.check_idle()
