"""What transactions are made of, each part alone."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from penstock.errors import (
    BusyError,
    ConnectionLostError,
    PenstockError,
    RefusedError,
    TransactionError,
    TransactionStateError,
)
from penstock.net.cluster import Cluster
from penstock.net.errand import Ask, Errand, Pause, Steps, Until
from penstock.net.pipeline import Lost
from penstock.produce.batch import Batch, State
from penstock.produce.delivery import LaneDelivery
from penstock.produce.transactions.books import Books
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.protocol import Answered, FindHome, Identity, Partition, Request, Stored
from tests.net.worlds import learn, make_world
from tests.produce.harness import Harness

ONE, TWO, OTHER = Partition("t", 1), Partition("t", 2), Partition("u", 1)


def test_where_brokers_enlist_one_request_at_a_time_lets_partitions_join() -> None:
    books = Books()
    assert books.may_launch(ONE, True)
    assert books.may_launch(TWO, True)
    books.launched(ONE, 5.0)
    assert not books.may_launch(TWO, True)
    assert not books.may_launch(ONE, True)
    books.landed(ONE, is_stored=False)
    assert books.may_launch(ONE, True)
    books.launched(ONE, 6.0)
    books.landed(ONE, is_stored=True)
    books.launched(TWO, 7.0)
    assert books.may_launch(ONE, True)
    assert not books.may_launch(OTHER, True)
    books.forget("t")
    assert books.may_launch(OTHER, True)
    assert (books.touched_at, books.open_for(9.0)) == (5.0, 4.0)
    assert not books.wanted


def test_where_they_do_not_a_partition_is_wanted_until_it_is_enlisted() -> None:
    books = Books()
    assert not books.may_launch(ONE, False)
    assert not books.may_launch(OTHER, False)
    assert books.wanted == {ONE, OTHER}
    books.forget("u")
    books.enlisted([ONE])
    assert books.wanted == set()
    assert books.may_launch(ONE, False)
    assert books.touched_at is None
    assert books.open_for(9.0) == 0.0


def test_a_leader_that_cannot_be_reached_yet_makes_nobody_wait_for_it() -> None:
    books = Books()
    assert books.may_launch(ONE, None)
    assert not books.wanted


class Somebody:
    """A cluster that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request[Any], Any]] = []
        self.is_full = False

    def ask(self, request: Request[Any], token: Any, target: Any, now: float) -> None:
        if self.is_full:
            raise BusyError("full")
        self.asked.append((request, target))


def errand(steps: Steps[None]) -> tuple[Errand, Somebody, list[PenstockError | None]]:
    somebody = Somebody()
    ends: list[PenstockError | None] = []
    return Errand(cast(Cluster, somebody), steps, ends.append), somebody, ends


def test_an_errand_takes_its_steps_as_what_it_waits_for_comes() -> None:
    heard: list[Any] = []
    holds = [False]

    def steps() -> Steps[None]:
        heard.append((yield Ask(FindHome("a"), 1)))
        yield Pause(10.0)
        yield Until(lambda now: holds[0])
        heard.append((yield Ask(FindHome("b"), 2)))

    run, somebody, ends = errand(steps())
    run.begin(0.0)
    assert run.work(0.0) is None
    run.landed(Answered(run, "answer"), 1.0)
    assert run.work(2.0) == 10.0
    assert run.work(10.0) is None
    holds[0] = True
    assert run.work(10.0) is None
    error = RefusedError("no")
    run.landed(Lost(run, error), 11.0)
    assert heard == ["answer", error]
    assert somebody.asked == [(FindHome("a"), 1), (FindHome("b"), 2)]
    assert ends == [None]


def test_an_errand_hears_of_what_cannot_be_asked_and_ends_with_its_error() -> None:
    def steps() -> Steps[None]:
        answer = yield Ask(FindHome("a"), 1)
        raise answer

    run, somebody, ends = errand(steps())
    somebody.is_full = True
    run.begin(0.0)
    assert isinstance(ends[0], BusyError)


def test_an_errand_that_was_dropped_tells_nobody() -> None:
    def steps() -> Steps[None]:
        yield Ask(FindHome("a"), 1)

    run, _, ends = errand(steps())
    run.begin(0.0)
    run.drop()
    run.landed(Answered(run, None), 1.0)
    assert run.work(2.0) is None
    assert ends == []


def sealed(value: bytes) -> Batch:
    buffer = BatchBuffer()
    buffer.append(value)
    buffer.seal()
    batch = Batch(buffer, 0.0, math.inf)
    batch.move(State.SEALED)
    return batch


def test_what_waits_can_be_given_up_while_the_rest_flies() -> None:
    me = Identity(1, 0)
    delivery = LaneDelivery(5, lambda attempts: 0.0)
    batches = [sealed(b"%d" % number) for number in range(4)]
    for batch in batches:
        delivery.add(batch)
    first = delivery.launch(me, 0.0)
    assert first is batches[0]
    error = TransactionError("aborted")
    assert [settled.batch for settled in delivery.fail_waiting(error)] == batches[1:]
    assert [batch.verdict for batch in batches] == [None, error, error, error]
    assert delivery.land(first, Stored(0), 1.0)[0].batch is first
    assert delivery.is_at_rest
    assert delivery.memory() == (me, 1)


def test_a_number_that_was_given_up_is_in_doubt_only_where_it_may_be_taken() -> None:
    for error, doubtful in ((BusyError("later"), False), (ConnectionLostError("cut"), True)):
        delivery = LaneDelivery(5, lambda attempts: 0.0)
        batch = sealed(b"a")
        delivery.add(batch)
        delivery.launch(Identity(1, 0), 0.0)
        delivery.land(batch, error, 1.0)
        delivery.fail_waiting(TransactionError("aborted"))
        assert delivery.is_at_rest is not doubtful
        if not doubtful:
            assert delivery.memory() == (Identity(1, 0), 0)


def test_a_cluster_tells_of_a_broker_it_is_connected_to_whether_it_enlists() -> None:
    world = learn(make_world())
    assert world.cluster.enlists(3) is None
    assert world.cluster.enlists(2) is None
    world.connection(2)
    assert world.cluster.enlists(2) is False


@pytest.mark.parametrize("fast", [False, True])
def test_lanes_that_refuse_take_nothing_on_any_way(fast: bool) -> None:
    harness = Harness(fast=fast)
    harness.model.create("t", 1)
    line = harness.line()
    harness.settle()
    assert line.send(b"a")
    line.lanes.refuse(lambda: TransactionStateError("not now"))
    for fields in ({}, {"tag": "x"}, {"key": b"k"}, {"partition": 0}):
        with pytest.raises(TransactionStateError, match="not now"):
            line.send(b"b", **cast(Any, fields))
    line.lanes.refuse(None)
    assert line.lanes.intake.is_fast is fast
    line.send(b"c")
    line.flush()
    assert harness.model.values("t") == [b"a", b"c"]
    harness.check_idle()


def test_lanes_that_are_closed_stay_closed() -> None:
    harness = Harness(fast=True)
    harness.model.create("t", 1)
    line = harness.line()
    harness.settle()
    line.begin_close()
    line.lanes.refuse(None)
    assert not line.lanes.intake.is_fast


def test_the_first_failure_of_a_producer_is_kept_until_it_is_forgotten() -> None:
    harness = Harness()
    harness.model.create("t", 1)
    line = harness.line()
    harness.model.refusal = lambda broker, topic, partition, stored: 29
    receipts = [line.send(b"a"), line.send(b"b")]
    line.flush()
    assert line.lanes.failure is not None
    assert str(line.lanes.failure) == str(receipts[0].exception(0))
    line.lanes.failure = None
    harness.model.refusal = lambda broker, topic, partition, stored: 0
    line.send(b"c")
    line.flush()
    assert line.lanes.failure is None


def test_messages_that_were_to_blame_are_counted_as_failed() -> None:
    harness = Harness()
    harness.model.create("t", 1)
    line = harness.line()
    for value in (b"a", b"BAD", b"b"):
        line.send(value)
    line.flush()
    assert harness.model.values("t") == [b"a", b"b"]
    assert (line.lanes.acked, line.lanes.failed) == (2, 1)
    assert line.lanes.failure is not None


def test_a_producer_is_ready_when_its_identity_comes_last() -> None:
    harness = Harness()
    harness.model.create("t", 1)
    harness.model.identities_code = 14
    line = harness.line()
    harness.advance(1.0)
    assert line.outlet.readiness.verdict is None
    harness.model.identities_code = 0
    harness.run(lambda: line.outlet.readiness.verdict is not None, 5.0)


def test_what_failed_with_its_topic_does_not_fail_again_when_its_time_is_over() -> None:
    harness = Harness()
    line = harness.line(unknown_topic_ms=1000)
    receipt = line.send(b"a")
    harness.error(receipt)
    harness.advance(200.0)
    harness.model.create("t", 1)
    again = line.send(b"b")
    assert harness.results([again])
    harness.check_idle()
