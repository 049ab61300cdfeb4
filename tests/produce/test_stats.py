from __future__ import annotations

from penstock.config import BatchPolicy
from penstock.errors import DeniedError
from penstock.produce.router import Single
from tests.produce.harness import Harness
from tests.produce.kits import Kit


def test_the_numbers_of_a_producer_tell_what_it_did(kit: Kit) -> None:
    harness = Harness(kit)
    harness.model.create("t", 3)
    line = harness.line(policy=BatchPolicy(count_max=4, delay_ms=1000), router=Single(1))
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    empty = line.lanes.stats()
    assert (empty.topic, empty.partitions, empty.open_lanes) == ("t", 3, 0)
    assert (empty.total.average_messages, empty.total.average_bytes) == (0.0, 0.0)
    for number in range(10):
        line.send(b"%d" % number)
    line.send(b"other", partition=2)
    stats = line.lanes.stats()
    assert set(stats.lanes) == {1, 2}
    assert (stats.lanes[1].queue, stats.lanes[1].batches, stats.lanes[1].messages) == (3, 2, 8)
    assert stats.lanes[1].seal_reasons == {"count": 2}
    assert stats.lanes[1].average_messages == 4
    assert stats.lanes[2].queue == 1
    assert stats.total.queue_bytes == harness.accumulator.budget.used > 0
    line.flush()
    stats = line.lanes.stats()
    assert (stats.acked, stats.failed) == (11, 0)
    assert (stats.total.batches, stats.total.messages, stats.total.queue, stats.total.queue_bytes) == (4, 11, 0, 0)
    assert stats.total.seal_reasons == {"count": 2, "flush": 2}
    assert stats.total.average_bytes == stats.total.bytes / 4


def test_messages_that_failed_are_counted_once_each(kit: Kit) -> None:
    harness = Harness(kit)
    harness.model.create("t", 1)
    line = harness.line(policy=BatchPolicy(delay_ms=1000))
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    harness.model.message_bytes_max = 300
    for size in (50, 50, 400, 50, 50):
        line.send(b"x" * size)
    line.flush()
    assert (line.lanes.stats().acked, line.lanes.stats().failed) == (4, 1)
    line.send(b"v")
    line.outlet.fail(DeniedError("no"))
    assert line.lanes.stats().failed == 2


def test_messages_that_wait_for_their_topic_are_seen_in_the_undesignated_lane(kit: Kit) -> None:
    harness = Harness(kit)
    line = harness.line()
    harness.settle()
    line.send(b"a", b"k")
    stats = line.lanes.stats()
    assert (stats.partitions, list(stats.lanes)) == (None, [-1])
    harness.model.create("t", 2)
    line.flush()
    stats = line.lanes.stats()
    assert stats.partitions == 2
    assert stats.total.messages == stats.acked == 1
    assert stats.failed == 0
