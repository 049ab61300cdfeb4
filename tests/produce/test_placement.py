"""Where a producer's messages end up, with what it knows of its topic and of its own queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config import BatchPolicy
from penstock.produce.router import MovesBy, PartialRoundRobin, Sticky, by_murmur2
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit

ALONE = BatchPolicy(count_max=1)


def ready(harness: Harness, **options: Any) -> Line:
    line = harness.line("t", **options)
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    return line


def places(harness: Harness, line: Line, count: int, key: bytes | None = None) -> Counter[int]:
    """How many of so many messages each partition got."""
    return Counter(harness.results([line.send(b"v", key)])[0].partition for _ in range(count))


def test_a_part_of_the_partitions_is_used_without_keys_and_all_of_them_with_keys(kit: Kit) -> None:
    harness = Harness(kit)
    harness.model.create("t", 12)
    router = PartialRoundRobin(3, harness.chance)
    line = ready(harness, policy=ALONE, router=router)
    assert places(harness, line, 30) == dict.fromkeys(router.part, 10)
    assert len(router.part) == 3
    keys = [b"%d" % number for number in range(100)]
    found = harness.results([line.send(b"v", key) for key in keys])
    found += harness.results(line.send_many([b"v"] * 100, keys))
    assert [at.partition for at in found] == [by_murmur2(key, 12) for key in keys] * 2
    assert {at.partition for at in found} == set(range(12))
    assert places(harness, line, 30) == dict.fromkeys(router.part, 10), "keys have not changed its part"


def test_the_part_grows_with_the_topic_up_to_its_limit(kit: Kit) -> None:
    harness = Harness(kit, metadata_age_max_ms=1000)
    harness.model.create("t", 1)
    router = PartialRoundRobin(3, harness.chance)
    line = ready(harness, policy=ALONE, router=router)
    assert places(harness, line, 10) == {0: 10}
    harness.model.grow("t", 2)
    harness.advance(2.0)
    assert places(harness, line, 10) == {0: 5, 1: 5}
    harness.model.grow("t", 9)
    harness.advance(2.0)
    assert places(harness, line, 30) == dict.fromkeys(router.part, 10)
    assert set(router.part) > {0, 1}
    assert len(router.part) == 3


class Watching(Sticky):
    """Notes what it is told of the queues."""

    moves_by: MovesBy = "batch"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[dict[int, int]] = []

    def choose(self, partitions: int, available: Sequence[int], queued: Mapping[int, int]) -> int:
        self.seen.append(dict(queued))
        return super().choose(partitions, available, queued)


def test_messages_without_a_key_avoid_a_partition_where_many_bytes_wait(kit: Kit) -> None:
    harness = Harness(kit, nodes=2)
    harness.model.create("t", 2)
    router = Watching(harness.chance)
    line = ready(harness, policy=ALONE, router=router)
    even = places(harness, line, 100)
    assert min(even[0], even[1]) > 25
    assert router.seen[-1] == {}
    slow = harness.model.brokers[2]
    slow.tamper = lambda answer: [(20.0, answer)]
    stuck = [line.send(b"x" * 1000, partition=1) for _ in range(25)]
    harness.settle()
    receipts = []
    for _ in range(100):
        receipts.append(line.send(b"v"))
        harness.settle()
    waiting = line.lane(1)
    assert router.seen[-1] == {1: waiting.queue_bytes()}
    assert waiting.queue_bytes() > 10_000
    assert Counter(receipt.parcel.partition for receipt in receipts)[1] <= 2
    harness.results(stuck)
