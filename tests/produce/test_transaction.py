"""Transactions on a model cluster: what is asked of it and in which order, and what comes of every kind of failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    DeniedError,
    FencedError,
    NotLeaderError,
    PenstockError,
    Persisted,
    RefusedError,
    TimedOutError,
    TransactionError,
    TransactionStateError,
    UnknownTopicError,
    UnresolvedError,
)
from penstock.produce.transactions.keeper import TRANSITIONS, State
from penstock.produce.transactions.transaction import TransactionCore
from penstock.wire.protocol import (
    CommitMarks,
    EndTransaction,
    Enlist,
    GroupMember,
    Identify,
    Mark,
    Partition,
    Publish,
    Request,
)
from tests.produce.books_model import by_group
from tests.produce.transactional import World

both = pytest.mark.parametrize("enlists", [True, False], ids=["the-broker-enlists", "the-client-enlists"])


def refuse(kind: type[Request[Any]], *errors: PenstockError) -> Callable[[int, Request[Any]], PenstockError | None]:
    """Answer the first requests of a kind with these errors."""
    left = list(errors)

    def refusal(node: int, request: Request[Any]) -> PenstockError | None:
        return left.pop(0) if left and isinstance(request, kind) else None

    return refusal


@both
def test_a_committed_transaction_is_seen_and_an_aborted_one_is_not(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    assert [receipt.done() for receipt in producer.commit(b"a", b"b")] == [True, True]
    transaction = producer.begin()
    receipt = producer.send(b"lost")
    world.run(receipt.done)
    world.done(transaction.roll_back())
    producer.commit(b"c")
    assert world.model.visible("t") == [b"a", b"b", b"c"]
    world.check_idle()


def test_where_the_broker_enlists_nothing_is_enlisted_by_us() -> None:
    world = World()
    producer = world.producer()
    transaction = producer.begin()
    producer.send(b"a")
    transaction.send_offsets({("source", 0): 7}, "group")
    world.done(transaction.commit())
    kinds = ["FindHome", "Identify", "Publish", "FindHome", "CommitMarks", "EndTransaction"]
    assert world.model.kinds() == kinds


def test_where_it_does_not_partitions_and_groups_are_enlisted_before_they_are_used() -> None:
    world = World(enlists=False)
    producer = world.producer()
    transaction = producer.begin()
    producer.send(b"a")
    transaction.send_offsets({("source", 0): 7}, "group")
    world.done(transaction.commit())
    kinds = ["FindHome", "Identify", "Enlist", "Publish", "FindHome", "EnlistGroup", "CommitMarks", "EndTransaction"]
    assert world.model.kinds() == kinds
    assert by_group(world.model.positions) == {("group", "source", 0): 7}


def test_partitions_that_are_ready_together_are_enlisted_together() -> None:
    world = World(enlists=False)
    producer = world.producer(partitions=4)
    world.run(lambda: producer.keeper.state is State.IDLE)
    transaction = producer.begin()
    for number in range(4):
        producer.send(b"a", partition=number)
    world.done(transaction.commit())
    enlisted = [request.partitions for _, request in world.model.asked if isinstance(request, Enlist)]
    assert enlisted == [[Partition("t", number) for number in range(4)]]


@both
def test_an_empty_transaction_is_not_told_to_the_broker(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    world.done(producer.begin().commit())
    world.done(producer.begin().roll_back())
    assert "EndTransaction" not in world.model.kinds()


@both
def test_many_transactions_in_a_row_need_one_identity(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    values = [b"%d" % number for number in range(50)]
    for value in values:
        producer.commit(value)
    assert world.model.visible("t") == values
    assert world.model.kinds().count("Identify") == 1
    page = world.model.pages["x"]
    assert page.epoch == (50 if enlists else 0)


@both
def test_first_batches_for_several_partitions_never_collide(enlists: bool) -> None:
    world = World(enlists, nodes=3)
    producer = world.producer(partitions=9)
    for _ in range(5):
        transaction = producer.begin()
        for number in range(90):
            producer.send(b"%d" % number, partition=number % 9)
            if number % 7 == 0:
                world.settle()
        world.done(transaction.commit())
    assert world.model.collisions == 0
    assert sum(len(world.model.visible("t", number)) for number in range(9)) == 450


@both
def test_producers_with_one_id_share_its_transaction(enlists: bool) -> None:
    world = World(enlists)
    one, two = world.producer("one"), world.producer("two")
    assert one.keeper is two.keeper
    transaction = one.begin()
    one.send(b"1")
    two.send(b"2")
    world.done(transaction.commit())
    assert (world.model.visible("one"), world.model.visible("two")) == ([b"1"], [b"2"])
    assert world.model.kinds().count("EndTransaction") == 1
    with pytest.raises(TransactionStateError):
        two.send(b"3")


def test_a_producer_made_within_a_transaction_is_part_of_it() -> None:
    world = World()
    one = world.producer("one")
    transaction = one.begin()
    two = world.producer("two")
    two.send(b"2")
    world.done(transaction.commit())
    assert world.model.visible("two") == [b"2"]


def test_two_producers_of_one_topic_cannot_share_an_id() -> None:
    world = World()
    world.producer("t")
    lanes = world.accumulator.lanes
    with pytest.raises(ConfigError, match="another id"):
        world.producer("t")
    with pytest.raises(ConfigError, match="both the same"):
        world.producer("u", transaction_timeout_ms=5)
    assert world.accumulator.lanes == lanes
    assert len(world.accumulator._members) == 1


@both
def test_what_comes_outside_of_a_transaction_is_refused_at_once(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    with pytest.raises(TransactionStateError, match="no transaction is open"):
        producer.send(b"a")
    transaction = producer.begin()
    producer.send(b"b")
    future = transaction.commit()
    with pytest.raises(TransactionStateError, match="no transaction is open"):
        producer.send(b"c")
    world.done(future)
    with pytest.raises(TransactionStateError, match="no transaction is open"):
        producer.send(b"d")
    assert world.model.visible("t") == [b"b"]
    world.check_idle()


def test_there_is_one_transaction_at_a_time() -> None:
    world = World()
    one, two = world.producer("one"), world.producer("two")
    transaction = one.begin()
    for producer in (one, two):
        with pytest.raises(TransactionStateError, match="only one"):
            producer.begin()
    future = transaction.commit()
    with pytest.raises(TransactionStateError, match="only one"):
        two.begin()
    world.done(future)
    world.done(two.begin().commit())


def test_a_transaction_is_used_once() -> None:
    world = World()
    producer = world.producer()
    transaction = producer.begin()
    with pytest.raises(TransactionStateError):
        transaction.begin()
    world.done(transaction.commit())
    for use in (transaction.commit, transaction.roll_back, lambda: transaction.send_offsets({("t", 0): 1}, "g")):
        with pytest.raises(TransactionStateError):
            use()


def test_the_first_transaction_waits_for_an_identity() -> None:
    world = World()
    world.model.refusals.append(refuse(Identify, BusyError("loading"), NotLeaderError("moved"), BusyError("loading")))
    producer = world.producer()
    producer.commit(b"a")
    assert world.model.visible("t") == [b"a"]
    assert world.model.kinds()[:6] == ["FindHome", "Identify", "Identify", "FindHome", "Identify", "Identify"]


def test_an_identity_that_is_refused_fails_the_transaction_and_is_asked_for_again() -> None:
    world = World()
    world.model.refusals.append(refuse(Identify, DeniedError("not you"), DeniedError("not you")))
    producer = world.producer()
    readiness = producer.outlet.readiness
    world.settle()
    world.run(lambda: readiness.verdict is not None)
    assert isinstance(readiness.verdict, DeniedError)
    with pytest.raises(DeniedError):
        producer.begin()
    producer.commit(b"a")
    assert world.model.visible("t") == [b"a"]


def test_an_identity_that_does_not_come_in_time_is_an_error_that_says_why() -> None:
    world = World()
    world.model.refusals.append(refuse(Identify, *[BusyError("still loading")] * 1000))
    producer = world.producer(delivery_timeout_ms=31_000)
    with pytest.raises(BusyError, match=r"no identity within 31.0 s.*still loading"):
        producer.begin()
    world.model.refusals.clear()
    producer.commit(b"a")


def test_whoever_does_not_wait_any_more_opens_nothing() -> None:
    world = World()
    world.model.refusals.append(refuse(Identify, BusyError("loading")))
    producer = world.producer()
    transaction = TransactionCore(producer.outlet)
    transaction.begin()
    world.settle()
    transaction.withdraw()
    producer.commit(b"a")
    late = TransactionCore(producer.outlet)
    future = late.begin()
    world.run(future.done)
    late.withdraw()
    world.settle()
    producer.commit(b"b")
    assert world.model.visible("t") == [b"a", b"b"]


# Failures of messages


@both
def test_a_message_that_failed_dooms_the_transaction(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    producer.commit(b"before")
    world.model.refusals.append(refuse(Publish, RefusedError("a bad batch")))
    transaction = producer.begin()
    bad = producer.send(b"bad")
    world.run(bad.done)
    with pytest.raises(TransactionError, match=r"can only be aborted.*a bad batch"):
        producer.send(b"more")
    error = world.error(transaction.commit())
    assert isinstance(error, TransactionError)
    assert isinstance(error.__cause__, RefusedError)
    assert error.persisted is Persisted.NO
    assert "nothing of the transaction is stored" in str(error)
    producer.commit(b"after")
    assert world.model.visible("t") == [b"before", b"after"]
    world.check_idle()


@both
def test_a_failure_of_one_producer_aborts_what_the_others_sent(enlists: bool) -> None:
    world = World(enlists)
    one, two = world.producer("one"), world.producer("two")
    transaction = one.begin()
    stored = one.send(b"1")
    world.run(stored.done)
    world.model.refusals.append(refuse(Publish, RefusedError("a bad batch")))
    two.send(b"2")
    error = world.error(transaction.commit())
    assert isinstance(error.__cause__, RefusedError)
    one.commit(b"3")
    assert (world.model.visible("one"), world.model.visible("two")) == ([b"3"], [])


@both
def test_an_abort_fails_what_has_not_left_and_awaits_what_has(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer(partitions=2)
    producer.commit(b"before")
    transaction = producer.begin()
    stored = producer.send(b"0", partition=0)
    world.run(stored.done)
    world.cluster.dead.add(1)
    waits = producer.send(b"1", partition=0)
    world.settle()
    world.cluster.dead.clear()
    future = transaction.roll_back()
    world.done(future)
    error = waits.exception(0)
    assert isinstance(error, TransactionError)
    assert error.persisted is Persisted.NO
    producer.commit(b"after")
    assert sorted(world.model.visible("t", 0) + world.model.visible("t", 1)) == [b"after", b"before"]
    world.check_idle()


@both
def test_an_abort_while_messages_fly_leaves_no_number_in_doubt(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    for number in range(20):
        cut = "before" if number % 3 else "after"
        transaction = producer.begin()
        receipts = [producer.send(b"lost") for _ in range(3)]
        world.turn()
        hits = [True]
        world.cluster.cuts = lambda node, request, cut=cut, hits=hits: (  # type: ignore[misc]
            cut if isinstance(request, Publish) and hits and hits.pop() else None
        )
        world.done(transaction.roll_back())
        assert all(receipt.done() for receipt in receipts)
        producer.commit(b"%d" % number)
    assert world.model.visible("t") == [b"%d" % number for number in range(20)]
    world.check_idle()


def test_numbers_in_doubt_are_replaced_by_a_new_identity_where_the_end_brings_none() -> None:
    world = World(enlists=False)
    producer = world.producer()
    producer.commit(b"a")
    transaction = producer.begin()
    producer.send(b"lost")
    world.cluster.cuts = lambda node, request: "after" if isinstance(request, Publish) else None
    world.run(lambda: world.model.kinds().count("Publish") == 2)
    world.cluster.cuts = lambda node, request: None
    world.done(transaction.roll_back())
    producer.commit(b"b")
    assert world.model.kinds().count("Identify") == 2
    assert world.model.pages["x"].epoch == 1
    assert world.model.visible("t") == [b"a", b"b"]


def test_numbers_of_what_was_certainly_not_stored_are_given_again() -> None:
    world = World(enlists=False)
    producer = world.producer()
    producer.commit(b"a")
    world.model.refusals.append(refuse(Publish, *[BusyError("later")] * 1000))
    transaction = producer.begin()
    producer.send(b"lost")
    world.run(lambda: world.model.kinds().count("Publish") == 3)
    world.done(transaction.roll_back())
    world.model.refusals.clear()
    producer.commit(b"b")
    assert world.model.visible("t") == [b"a", b"b"]
    assert world.model.kinds().count("Identify") == 1


@both
def test_the_end_waits_for_answers_to_messages_whose_time_is_over(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer(delivery_timeout_ms=10_000)
    producer.commit(b"a")
    world.cluster.silent = lambda node, request: isinstance(request, Publish)
    transaction = producer.begin()
    receipt = producer.send(b"lost")
    error = world.error(transaction.commit())
    assert isinstance(error.__cause__, TimedOutError)
    assert receipt.done()
    assert [sent for sent in world.cluster.pipelines[1].queue if isinstance(sent.request, Publish)] == []
    world.cluster.silent = lambda node, request: False
    producer.commit(b"b")
    assert world.model.visible("t") == [b"a", b"b"]


def test_a_lane_whose_numbers_have_parted_dooms_the_transaction_and_the_next_goes_on() -> None:
    world = World()
    producer = world.producer()
    transaction = producer.begin()
    world.run(producer.send(b"a").done)
    world.model.logs[Partition("t", 0)].numbers.clear()
    world.model.logs[Partition("t", 0)].last.clear()
    producer.send(b"b")
    error = world.error(transaction.commit())
    assert isinstance(error, TransactionError)
    assert "have parted" in str(error)
    producer.commit(b"c")
    assert world.model.visible("t") == [b"c"]


# Positions


@both
def test_positions_are_committed_with_the_transaction_or_not_at_all(enlists: bool) -> None:
    world = World(enlists, nodes=2)
    world.model.homes["billing"] = 2
    producer = world.producer()
    transaction = producer.begin()
    producer.send(b"a")
    transaction.send_offsets({("source", 0): 5, ("source", 1): Mark(6, "note")}, "billing")
    transaction.send_offsets({Partition("source", 0): 7}, "billing")
    transaction.send_offsets({("source", 0): 1}, "other", GroupMember(3, "me"))
    assert not world.model.positions
    world.done(transaction.commit())
    expected = {("billing", "source", 0): 7, ("billing", "source", 1): 6, ("other", "source", 0): 1}
    assert by_group(world.model.positions) == expected
    asked = [(node, request) for node, request in world.model.asked if isinstance(request, CommitMarks)]
    assert [(node, request.group, request.member.member) for node, request in asked] == [
        (2, "billing", ""),
        (1, "other", "me"),
    ]
    transaction = producer.begin()
    transaction.send_offsets({("source", 0): 99}, "billing")
    world.done(transaction.roll_back())
    assert by_group(world.model.positions) == expected


@both
def test_a_transaction_of_positions_alone_is_committed(enlists: bool) -> None:
    world = World(enlists)
    transaction = world.producer().begin()
    transaction.send_offsets({("source", 0): 5}, "billing")
    world.done(transaction.commit())
    assert by_group(world.model.positions) == {("billing", "source", 0): 5}


def test_positions_are_sent_when_all_messages_are_stored() -> None:
    world = World()
    producer = world.producer()
    transaction = producer.begin()
    transaction.send_offsets({("source", 0): 5}, "billing")
    world.model.refusals.append(refuse(Publish, *[BusyError("later")] * 5))
    producer.send(b"a")
    world.done(transaction.commit())
    kinds = [kind for kind in world.model.kinds() if kind in ("Publish", "CommitMarks")]
    assert kinds == ["Publish"] * 6 + ["CommitMarks"]


@both
def test_positions_that_are_refused_abort_the_transaction(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    world.model.refusals.append(refuse(CommitMarks, BusyError("loading"), RefusedError("another generation")))
    transaction = producer.begin()
    producer.send(b"lost")
    transaction.send_offsets({("source", 0): 5}, "billing")
    error = world.error(transaction.commit())
    assert isinstance(error, TransactionError)
    assert isinstance(error.__cause__, RefusedError)
    assert not world.model.positions
    producer.commit(b"a")
    assert world.model.visible("t") == [b"a"]


def test_a_topic_that_stays_unknown_aborts_the_transaction_after_its_time() -> None:
    world = World()
    producer = world.producer(unknown_topic_ms=2000)
    world.model.refusals.append(refuse(CommitMarks, *[UnknownTopicError("no such topic")] * 1000))
    transaction = producer.begin()
    transaction.send_offsets({("missing", 0): 5}, "billing")
    began = world.now
    error = world.error(transaction.commit())
    assert isinstance(error.__cause__, UnknownTopicError)
    assert 1 < world.now - began < 4


@pytest.mark.parametrize(
    ("positions", "group", "member"),
    [
        ({("t", -1): 1}, "g", None),
        ({("", 0): 1}, "g", None),
        ({"t": 1}, "g", None),
        ({("t", 0): -1}, "g", None),
        ({("t", 0): "1"}, "g", None),
        ({("t", 0): Mark(-5)}, "g", None),
        ({("t", 0): 1}, "", None),
        ({("t", 0): 1}, "g", "me"),
    ],
)
def test_positions_that_make_no_sense_are_named_at_once(positions: Any, group: Any, member: Any) -> None:
    world = World()
    transaction = world.producer().begin()
    arguments = {} if member is None else {"member": member}
    with pytest.raises(ConfigError, match="expected"):
        transaction.send_offsets(positions, group, **arguments)
    world.done(transaction.commit())
    assert "CommitMarks" not in world.model.kinds()


# The end


@both
@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_whose_answer_is_lost_is_asked_for_again_until_it_is_known(
    enlists: bool, cut: str, commit: bool
) -> None:
    world = World(enlists)
    producer = world.producer()
    transaction = producer.begin()
    receipt = producer.send(b"a")
    world.run(receipt.done)
    hits = [True]
    world.cluster.cuts = lambda node, request: (
        cut if isinstance(request, EndTransaction) and hits and hits.pop() else None
    )
    world.done(transaction.commit() if commit else transaction.roll_back())
    producer.commit(b"b")
    assert world.model.visible("t") == ([b"a", b"b"] if commit else [b"b"])


@both
@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_that_cannot_be_found_out_says_maybe(enlists: bool, cut: str) -> None:
    world = World(enlists)
    producer = world.producer()
    transaction = producer.begin()
    producer.send(b"a")
    world.cluster.cuts = lambda node, request: cut if isinstance(request, EndTransaction) else None
    error = world.error(transaction.commit())
    assert isinstance(error, UnresolvedError)
    assert error.persisted is Persisted.MAYBE
    assert "cannot be found out" in str(error)
    world.cluster.cuts = lambda node, request: None
    producer.commit(b"b")
    assert world.model.visible("t") in ([b"a", b"b"], [b"b"])


@both
def test_a_commit_that_never_left_was_certainly_not_done(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer()
    transaction = producer.begin()
    receipt = producer.send(b"a")
    world.run(receipt.done)
    world.cluster.dead.add(1)
    error = world.error(transaction.commit())
    assert isinstance(error, TransactionError)
    assert error.persisted is Persisted.NO
    world.cluster.dead.clear()
    producer.commit(b"b")
    assert world.model.visible("t") == [b"b"]


@both
def test_a_home_that_has_moved_is_found_again(enlists: bool) -> None:
    world = World(enlists, nodes=3)
    producer = world.producer(partitions=3)
    producer.commit(b"a")
    world.model.homes["x"] = 3
    not_home = lambda node, request: (  # noqa: E731
        NotLeaderError("not the home") if isinstance(request, EndTransaction | Enlist) and node != 3 else None
    )
    world.model.refusals.append(not_home)
    producer.commit(b"b")
    assert sorted(value for number in range(3) for value in world.model.visible("t", number)) == [b"a", b"b"]


@both
def test_a_home_that_is_gone_is_found_elsewhere_without_waiting_for_it(enlists: bool) -> None:
    world = World(enlists, nodes=3)
    world.model.homes["x"] = 3
    producer = world.producer(partitions=2)
    producer.commit(b"a")
    transaction = producer.begin()
    receipt = producer.send(b"b")
    world.run(receipt.done)
    world.cluster.dead.add(3)
    world.model.homes["x"] = 1
    began = world.now
    world.done(transaction.commit())
    assert world.now - began < 5


# Another instance, and time


@both
@pytest.mark.parametrize("moment", ["idle", "open", "sent"])
def test_an_instance_whose_id_was_taken_is_dead_for_good(enlists: bool, moment: str) -> None:
    world = World(enlists)
    producer = world.producer()
    producer.commit(b"a")
    transaction = producer.begin() if moment != "idle" else None
    if moment == "sent":
        world.run(producer.send(b"lost").done)
    new = world.other().producer()
    new.commit(b"new")
    transaction = transaction or producer.begin()
    late = producer.send(b"late") if moment != "sent" else None
    error = world.error(transaction.commit())
    assert isinstance(error, FencedError)
    assert "ended for good" in str(error)
    if late is not None:
        assert isinstance(late.exception(0), FencedError)
    for use in (producer.begin, lambda: producer.send(b"x")):
        with pytest.raises(FencedError, match="ended for good"):
            use()
    assert producer.keeper.state is State.DEAD
    new.commit(b"newer")
    assert world.model.visible("t") == [b"a", b"new", b"newer"]
    world.check_idle()


@both
def test_a_new_producer_takes_the_id_of_a_dead_one_back(enlists: bool) -> None:
    world = World(enlists)
    producer, second = world.producer("t"), world.producer("u")
    producer.commit(b"a")
    other = world.other().producer("t")
    other.commit(b"other")
    transaction = producer.begin()
    producer.send(b"lost")
    assert isinstance(world.error(transaction.commit()), FencedError)
    with pytest.raises(FencedError):
        second.begin()
    again = world.producer("t")
    again.commit(b"b")
    assert world.model.visible("t") == [b"a", b"other", b"b"]
    transaction = other.begin()
    other.send(b"lost")
    assert isinstance(world.error(transaction.commit()), FencedError)


@both
def test_a_transaction_that_was_open_for_too_long_says_so_and_the_next_goes_on(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer(transaction_timeout_ms=10_000)
    transaction = producer.begin()
    world.run(producer.send(b"lost").done)
    world.pass_time(11)
    late = producer.send(b"late")
    error = world.error(transaction.commit())
    assert isinstance(error, TransactionError)
    assert "transaction_timeout_ms=10000" in str(error)
    assert error.persisted is Persisted.NO
    assert isinstance(late.exception(0), TransactionError)
    producer.commit(b"a")
    assert world.model.visible("t") == [b"a"]


@both
def test_the_same_is_found_out_at_the_end_alone(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer(transaction_timeout_ms=10_000)
    transaction = producer.begin()
    world.run(producer.send(b"lost").done)
    world.pass_time(11)
    error = world.error(transaction.commit())
    assert isinstance(error, TransactionError)
    assert "transaction_timeout_ms=10000" in str(error)
    producer.commit(b"a")
    assert world.model.visible("t") == [b"a"]


@both
def test_one_that_was_fenced_after_that_time_finds_out_and_takes_nothing_back(enlists: bool) -> None:
    world = World(enlists)
    producer = world.producer(transaction_timeout_ms=10_000)
    transaction = producer.begin()
    world.run(producer.send(b"lost").done)
    world.pass_time(11)
    new = world.other().producer()
    new.commit(b"new")
    producer.send(b"late")
    assert isinstance(world.error(transaction.commit()), TransactionError | FencedError)
    with pytest.raises(FencedError):
        producer.begin()
    new.commit(b"newer")
    assert world.model.visible("t") == [b"new", b"newer"]


# Producers that end


@both
def test_a_producer_closed_within_a_transaction_leaves_what_it_sent_in_it(enlists: bool) -> None:
    world = World(enlists)
    one, two = world.producer("one"), world.producer("two")
    transaction = one.begin()
    two.send(b"2")
    two.close()
    with pytest.raises(ClosedError):
        two.send(b"3")
    world.done(transaction.commit())
    assert world.model.visible("two") == [b"2"]
    with pytest.raises(ClosedError):
        two.begin()


@both
def test_one_that_takes_the_place_of_a_closed_producer_numbers_anew(enlists: bool) -> None:
    world = World(enlists)
    one, two = world.producer("one"), world.producer("two")
    transaction = one.begin()
    two.send(b"2")
    world.done(transaction.commit())
    two.close()
    again = world.producer("two")
    assert again.keeper is one.keeper
    again.commit(b"3")
    assert world.model.visible("two") == [b"2", b"3"]


def test_a_keeper_ends_with_its_last_producer() -> None:
    world = World()
    one, two = world.producer("one"), world.producer("two")
    one.commit(b"1")
    keeper = one.keeper
    assert keeper in world.loop.parties
    one.close()
    assert keeper in world.loop.parties
    two.close()
    assert keeper not in world.loop.parties
    again = world.producer("one")
    assert again.keeper is not keeper
    again.commit(b"2")
    assert world.model.visible("one") == [b"1", b"2"]


def test_a_transaction_outlives_its_producers() -> None:
    world = World()
    one = world.producer("one")
    transaction = one.begin()
    one.send(b"1")
    one.close()
    world.done(transaction.commit())
    assert world.model.visible("one") == [b"1"]
    assert one.keeper not in world.loop.parties


@pytest.mark.parametrize("asked", [False, True])
def test_the_end_of_the_loop_is_told_to_whoever_waits(asked: bool) -> None:
    world = World()
    producer = world.producer()
    transaction = producer.begin()
    producer.send(b"a")
    if asked:
        world.cluster.silent = lambda node, request: isinstance(request, EndTransaction)
    future = transaction.commit()
    if asked:
        world.run(lambda: any(isinstance(sent.request, EndTransaction) for sent in world.cluster.pipelines[1].queue))
    else:
        world.turn()
    world.loop._end(ClosedError("the client was closed"))
    error = future.exception(0)
    assert isinstance(error, UnresolvedError if asked else ClosedError)


def test_states_follow_each_other_as_the_table_says() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(State.DEAD in follow for state, follow in TRANSITIONS.items() if state is not State.DEAD)
    assert not TRANSITIONS[State.DEAD]


def test_everything_tells_its_state() -> None:
    world = World()
    producer = world.producer()
    transaction = producer.begin()
    assert repr(producer.keeper) == "<TransactionKeeper of x, open, 1 producers>"
    assert repr(transaction) == "<Transaction of x, open>"
    assert repr(world.keepers) == "<Keepers of x>"
    world.done(transaction.commit())
    assert repr(transaction) == "<Transaction of x, ended>"
