"""The coordinator of transactions: who has an id, what belongs to a transaction, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.refusals import Refusal
from penstock.broker.transactions import State
from penstock.broker.transactions.ids import BLOCK
from penstock.broker.transactions.page import EPOCH_MAX, Page
from penstock.errors import StorageFailedError, StorageFullError
from penstock.wire.protocol import Identity, Partition
from tests.broker.transactions_kit import A, B, C, Disk, World, reason

HOUR_S = 3600


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(Disk(tmp_path))
    yield made
    made.close()


def later(world: World, epochs: int) -> Identity:
    """Somebody who has the id at a high epoch."""
    identity = world.given()
    page = world.transactions.page("t")
    transaction = world.transactions._books.find("t")
    transaction.page = transaction.saved = Page("t", page.producer, epochs, timeout_ms=page.timeout_ms, changed_ms=1)
    return Identity(identity.producer, epochs)


# Who has an id


def test_producers_without_a_transactional_id_get_different_ids(world: World) -> None:
    told = [world.identify(None) for _ in range(3)]
    assert told == [[], [], []]
    world.settle()
    assert told == [[Identity(0, 0)], [Identity(1, 0)], [Identity(2, 0)]]
    assert world.identify(None) == [Identity(3, 0)]


def test_an_id_is_given_once_whatever_happens(world: World) -> None:
    first = world.given(None)
    again = world.restarted()
    assert again.given(None).producer == first.producer + BLOCK
    again.close()


def test_ids_do_not_run_out(world: World) -> None:
    given = {world.given(None).producer for _ in range(3 * BLOCK)}
    assert len(given) == 3 * BLOCK


def test_without_room_there_is_no_id(world: World) -> None:
    told = world.identify(None)
    world.round(fail=StorageFullError("no room"))
    assert reason(told) is Refusal.STORAGE_FULL
    assert world.given(None).producer >= 0


def test_each_who_asks_takes_the_id_from_the_one_before(world: World) -> None:
    assert [world.given().epoch for _ in range(3)] == [0, 1, 2]
    assert len({world.given(tid).producer for tid in ("t", "u", "v")}) == 3


def test_an_identity_is_told_when_it_is_durable(world: World) -> None:
    told = world.identify("t")
    world.round()
    assert told == []
    world.round()
    assert told == [Identity(0, 0)]


def test_an_identity_that_is_not_durable_was_never_given(world: World) -> None:
    told = world.identify("t")
    world.round()
    world.round(fail=StorageFullError("no room"))
    assert reason(told) is Refusal.STORAGE_FULL
    assert reason(world.end("t", Identity(0, 0))) is Refusal.WRONG_PRODUCER_ID
    assert world.given().epoch == 0


def test_two_who_ask_at_once_do_not_both_get_it(world: World) -> None:
    first = world.identify("t")
    assert reason(world.identify("t")) is Refusal.CONCURRENT_TRANSACTION
    world.settle()
    assert first == [Identity(0, 0)]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_transaction_cannot_take_any_time(world: World, timeout_ms: int) -> None:
    assert reason(world.identify("t", timeout_ms=timeout_ms)) is Refusal.BAD_TRANSACTION_TIMEOUT


def test_an_empty_id_is_refused(world: World) -> None:
    assert reason(world.identify("")) is Refusal.BAD_REQUEST
    assert reason(world.enlist("", Identity(0, 0), A)) is Refusal.BAD_REQUEST
    assert reason(world.end("", Identity(0, 0))) is Refusal.BAD_REQUEST


def test_who_has_the_id_may_renew_it(world: World) -> None:
    first = world.given()
    second = world.given(current=first)
    assert second == Identity(first.producer, 1)
    assert world.given(current=first) == second, "it missed the answer and asks again"
    assert world.given(current=second).epoch == 2
    assert reason(world.identify("t", current=first)) is Refusal.FENCED


def test_who_lost_the_id_cannot_renew_it(world: World) -> None:
    first = world.given()
    other = world.given()
    for current in (first, Identity(other.producer, 7), Identity(99, other.epoch)):
        assert reason(world.identify("t", current=current)) is Refusal.FENCED
    assert world.transactions.page("t").identity == other


def test_whoever_was_forgotten_may_go_on_as_somebody_new(world: World) -> None:
    assert world.given(current=Identity(77, 5)) == Identity(0, 0)


def test_epochs_that_are_used_up_bring_a_new_producer_id(world: World) -> None:
    last = later(world, EPOCH_MAX - 1)
    fresh = world.given(current=last)
    assert fresh == Identity(last.producer + 1, 0)
    assert world.given(current=last) == fresh
    assert reason(world.publish(A, last, 0, within=False)) is Refusal.STALE_EPOCH


# What is open


@pytest.mark.parametrize("renews", [False, True])
def test_asking_for_the_id_aborts_what_is_open(world: World, renews: bool) -> None:
    old = world.given()
    world.publish(A, old, 0, "lost")
    world.settle()
    told = world.identify("t")
    assert told == []
    world.settle()
    assert told == [Identity(old.producer, 2)]
    assert world.committed(A) == []
    assert world.partition(*A).stable == 2
    assert reason(world.publish(A, old, 1)) is Refusal.STALE_EPOCH
    assert reason(world.end("t", old, renews=renews)) is Refusal.FENCED


def test_renewing_the_id_aborts_what_is_open(world: World) -> None:
    old = world.given()
    world.publish(A, old, 0, "lost")
    world.settle()
    assert world.given(current=old) == Identity(old.producer, 1)
    assert world.given(current=old) == Identity(old.producer, 1)
    assert world.committed(A) == []


def test_who_lost_the_id_cannot_abort_what_is_open(world: World) -> None:
    old = world.given()
    new = world.given(current=old)
    world.publish(A, new, 0)
    world.settle()
    assert reason(world.identify("t", current=old)) is Refusal.FENCED
    assert world.state() is State.ONGOING


def test_a_partition_joins_by_its_first_entry(world: World) -> None:
    mine = world.given()
    told = world.publish(A, mine, 0)
    assert told == []
    world.round()
    assert told == [(0, 0)]
    assert world.transactions.page("t").partitions == {A}
    assert world.publish(A, mine, 1) == []
    assert world.transactions._books.find("t").draft is None, "it is written down already"


def test_partitions_that_join_in_one_turn_are_written_together(world: World) -> None:
    mine = world.given()
    for partition in (A, B, C):
        world.publish(partition, mine, 0)
    works = [work for work, _done in world._queue if work is not None]
    assert len(works) == 1
    world.settle()
    assert world.restarted().transactions.page("t").partitions == {A, B, C}


def test_a_partition_must_be_enlisted_by_who_does_not_count_on_joining(world: World) -> None:
    mine = world.given()
    assert reason(world.publish(A, mine, 0, joins=False)) is Refusal.NOT_ENLISTED
    enlisted = world.enlist("t", mine, A, B)
    assert enlisted == []
    world.round()
    assert enlisted == [None]
    assert world.enlist("t", mine, A) == [None]
    world.publish(A, mine, 0, joins=False)
    assert reason(world.publish(C, mine, 0, joins=False)) is Refusal.NOT_ENLISTED


def test_an_entry_is_acknowledged_only_with_its_partition_written_down(world: World) -> None:
    mine = world.given()
    told = world.publish(A, mine, 0, "x")
    world.refuse_work = StorageFullError("no room")
    world.round()
    assert reason(told) is Refusal.STORAGE_FULL
    world.refuse_work = None
    again = world.publish(A, mine, 0, "x")
    assert again == []
    world.round()
    assert again == [(0, 0)]
    assert world.restarted().transactions.page("t").partitions == {A}


def test_enlisting_waits_for_one_on_its_way(world: World) -> None:
    mine = world.given()
    first, second = world.enlist("t", mine, A), world.enlist("t", mine, A)
    world.round()
    assert (first, second) == ([None], [None])


def test_only_who_has_the_id_writes_under_it(world: World) -> None:
    mine = world.given()
    for other, expected in (
        (Identity(mine.producer, 1), Refusal.STALE_EPOCH),
        (Identity(mine.producer + 5, 0), Refusal.WRONG_PRODUCER_ID),
    ):
        assert reason(world.publish(A, other, 0)) is expected
        assert reason(world.commit_offset("t", other, "g", A, 1)) is expected
    assert reason(world.publish(A, mine, 0, tid="unknown")) is Refusal.WRONG_PRODUCER_ID
    assert reason(world.enlist("t", Identity(mine.producer, 1), A)) is Refusal.FENCED
    assert reason(world.enlist("t", Identity(99, 0), A)) is Refusal.WRONG_PRODUCER_ID
    assert reason(world.enlist("unknown", mine, A)) is Refusal.WRONG_PRODUCER_ID
    assert reason(world.enlist_group("t", Identity(mine.producer, 1), "g")) is Refusal.FENCED


def test_who_lost_the_id_writes_nothing_outside_of_transactions_either(world: World) -> None:
    old = world.given()
    world.publish(A, old, 0, within=False)
    world.settle()
    new = world.given()
    assert reason(world.publish(A, old, 1, within=False)) is Refusal.STALE_EPOCH
    assert reason(world.publish(B, old, 0, within=False)) is Refusal.STALE_EPOCH
    assert world.publish(A, new, 0, within=False) == []


def test_verifying_tells_what_belongs_to_the_transaction(world: World) -> None:
    mine = world.given()
    assert world.transactions.verify("t", mine, [A]) == set()
    world.enlist("t", mine, A)
    assert world.transactions.verify("t", mine, [A, B]) == {A}


# Its end


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_shows_or_hides_everything_at_once(world: World, commit: bool) -> None:
    mine = world.given()
    for partition in (A, B):
        world.publish(partition, mine, 0, "x")
    world.settle()
    assert world.committed(A) == world.committed(B) == []
    told = world.end("t", mine, commit)
    steps = []
    while not told:
        world.round()
        steps.append((tuple(world.committed(A)), tuple(world.committed(B)), world.state().value))
    seen = ("x",) if commit else ()
    decided, done = ("PrepareCommit", "CompleteCommit") if commit else ("PrepareAbort", "CompleteAbort")
    assert steps == [((), (), decided), (seen, seen, decided), (seen, seen, done)]
    assert told == [Identity(mine.producer, 1)]
    assert world.partition(*A).stable == 2


def test_who_renews_goes_on_with_another_epoch(world: World) -> None:
    mine = world.given()
    for turn in range(3):
        world.publish(A, mine, 0, str(turn))
        told = world.end("t", mine)
        world.settle()
        assert told == [Identity(mine.producer, mine.epoch + 1)]
        assert reason(world.publish(A, mine, 1)) is Refusal.STALE_EPOCH
        mine = told[0]
    assert world.committed(A) == ["0", "1", "2"]


def test_who_does_not_renew_keeps_its_epoch(world: World) -> None:
    mine = world.given()
    for turn in range(3):
        world.enlist("t", mine, A)
        world.settle()
        world.publish(A, mine, turn, str(turn), joins=False)
        told = world.end("t", mine, renews=False)
        world.settle()
        assert told == [mine]
        assert reason(world.publish(A, mine, turn + 1, joins=False)) is Refusal.NOT_ENLISTED
    assert world.committed(A) == ["0", "1", "2"]


def test_while_it_ends_nothing_else_begins(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0)
    world.settle()
    world.end("t", mine, renews=False)
    assert reason(world.publish(A, mine, 1)) is Refusal.CONCURRENT_TRANSACTION
    assert reason(world.enlist("t", mine, B)) is Refusal.CONCURRENT_TRANSACTION
    assert reason(world.identify("t")) is Refusal.CONCURRENT_TRANSACTION
    assert reason(world.end("t", mine, False, renews=False)) is Refusal.CONCURRENT_TRANSACTION
    world.round()
    assert reason(world.publish(A, mine, 1)) is Refusal.CONCURRENT_TRANSACTION
    assert reason(world.identify("t")) is Refusal.CONCURRENT_TRANSACTION
    assert reason(world.end("t", mine, False, renews=False)) is Refusal.BAD_TRANSACTION_STATE


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_asking_again_for_the_same_end_is_answered_the_same(world: World, commit: bool, renews: bool) -> None:
    mine = world.given()
    world.publish(A, mine, 0)
    world.settle()
    told = [world.end("t", mine, commit, renews)]
    for _ in range(3):
        told.append(world.end("t", mine, commit, renews))
        world.round()
    told.append(world.end("t", mine, commit, renews))
    assert told == [[Identity(mine.producer, int(renews))]] * 5
    assert [row.value for row in world.partition(*A).rows] == ["x", "commit" if commit else "abort"]
    assert reason(world.end("t", mine, not commit, renews)) is Refusal.BAD_TRANSACTION_STATE


def test_nothing_cannot_be_committed(world: World) -> None:
    mine = world.given()
    for renews in (False, True):
        assert reason(world.end("t", mine, True, renews)) is Refusal.BAD_TRANSACTION_STATE
    assert reason(world.end("t", mine, False, renews=False)) is Refusal.BAD_TRANSACTION_STATE


def test_nothing_can_be_aborted_by_who_renews(world: World) -> None:
    mine = world.given()
    for epoch in (1, 2):
        told = world.end("t", mine, commit=False)
        world.settle()
        assert told == [Identity(mine.producer, epoch)]
        again = world.end("t", mine, commit=False)
        assert again == told
        assert reason(world.end("t", mine, commit=True)) is Refusal.BAD_TRANSACTION_STATE
        mine = told[0]


def test_ends_are_refused_to_others(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0)
    world.settle()
    for renews in (False, True):
        assert reason(world.end("t", Identity(mine.producer, 1), True, renews)) is Refusal.FENCED
        assert reason(world.end("t", Identity(99, 0), True, renews)) is Refusal.WRONG_PRODUCER_ID
        assert reason(world.end("unknown", mine, True, renews)) is Refusal.WRONG_PRODUCER_ID


def test_an_older_end_is_not_told_again_once_the_next_transaction_is_open(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0)
    told = world.end("t", mine)
    world.settle()
    world.publish(A, told[0], 0)
    world.settle()
    assert reason(world.end("t", mine)) is Refusal.FENCED


def test_epochs_that_are_used_up_by_an_end_bring_a_new_producer_id(world: World) -> None:
    last = later(world, EPOCH_MAX - 1)
    world.publish(A, last, 0, "x")
    told = world.end("t", last)
    world.settle()
    assert told == [Identity(last.producer + 1, 0)]
    assert world.end("t", last) == told
    assert world.partition(*A).rows[-1].header.epoch == EPOCH_MAX
    world.publish(A, told[0], 0, "y")
    world.end("t", told[0])
    world.settle()
    assert world.committed(A) == ["x", "y"]


def test_fencing_with_the_last_epoch_brings_a_new_producer_id(world: World) -> None:
    last = later(world, EPOCH_MAX - 1)
    world.publish(A, last, 0, "lost")
    world.settle()
    assert world.given(current=last) == Identity(last.producer + 1, 0)
    assert world.given() == Identity(last.producer + 1, 1)
    assert world.committed(A) == []


# Groups


def test_offsets_wait_for_the_end(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0, "x")
    told = world.commit_offset("t", mine, "g", B, 7)
    world.settle()
    assert told == [None]
    assert world.offset("g", B) is None
    assert list(world.offsets.pending_of("g")) == [B]
    told = world.end("t", mine)
    seen = []
    while not told:
        world.round()
        seen.append((world.offset("g", B), world.committed(A)))
    assert seen == [(None, []), (None, []), (7, ["x"]), (7, ["x"])]
    assert list(world.offsets.pending_of("g")) == []


def test_offsets_of_an_aborted_transaction_are_forgotten(world: World) -> None:
    mine = world.given()
    world.commit_offset("t", mine, "g", B, 7)
    world.end("t", mine, commit=False)
    world.settle()
    assert world.offset("g", B) is None
    assert list(world.offsets.pending_of("g")) == []


def test_a_group_must_be_enlisted_by_who_does_not_count_on_joining(world: World) -> None:
    mine = world.given()
    assert reason(world.commit_offset("t", mine, "g", B, 7, joins=False)) is Refusal.NOT_ENLISTED
    enlisted = world.enlist_group("t", mine, "g")
    world.settle()
    assert enlisted == [None]
    assert world.enlist_group("t", mine, "g") == [None]
    told = world.commit_offset("t", mine, "g", B, 7, joins=False)
    world.settle()
    assert told == [None]
    assert reason(world.commit_offset("t", mine, "other", B, 7, joins=False)) is Refusal.NOT_ENLISTED


# Time


@pytest.mark.parametrize("renews", [False, True])
def test_a_transaction_that_takes_too_long_is_aborted(world: World, renews: bool) -> None:
    mine = world.given(timeout_ms=5000)
    world.publish(A, mine, 0, "late")
    world.commit_offset("t", mine, "g", B, 7)
    world.settle()
    world.pass_time(4.9)
    assert world.is_quiet
    world.pass_time(0.2)
    world.settle()
    assert world.state() is State.COMPLETE_ABORT
    assert world.committed(A) == []
    assert world.partition(*A).stable == 2
    assert world.offset("g", B) is None
    assert reason(world.publish(A, mine, 1)) is Refusal.STALE_EPOCH
    commit = world.end("t", mine, True, renews)
    assert reason(commit) is (Refusal.BAD_TRANSACTION_STATE if renews else Refusal.FENCED)
    if renews:
        assert world.end("t", mine, commit=False) == [Identity(mine.producer, 1)]
    assert world.given(current=mine) == Identity(mine.producer, 1)


def test_its_time_begins_with_its_first_partition(world: World) -> None:
    mine = world.given(timeout_ms=5000)
    world.pass_time(100)
    world.publish(A, mine, 0)
    world.settle()
    world.pass_time(3)
    world.publish(B, mine, 0)
    world.settle()
    assert world.transactions.turn(world.now, world.now_ms) == pytest.approx(world.now + 2)
    world.pass_time(2)
    world.settle()
    assert world.state() is State.COMPLETE_ABORT


def test_an_end_in_time_is_no_timeout(world: World) -> None:
    mine = world.given(timeout_ms=5000)
    world.publish(A, mine, 0, "x")
    world.settle()
    world.end("t", mine)
    world.settle()
    world.pass_time(10)
    world.settle()
    assert world.state() is State.COMPLETE_COMMIT
    assert world.committed(A) == ["x"]


def test_a_decision_that_is_being_saved_is_not_overtaken_by_time(world: World) -> None:
    mine = world.given(timeout_ms=5000)
    world.publish(A, mine, 0, "x")
    world.settle()
    told = world.end("t", mine)
    world.pass_time(10)
    world.settle()
    assert told == [Identity(mine.producer, 1)]
    assert world.committed(A) == ["x"]


def test_ids_that_nobody_uses_are_forgotten(world: World) -> None:
    world.given()
    world.given("open", timeout_ms=900_000)
    world.publish(A, world.transactions.page("open").identity, 0, tid="open")
    world.settle()
    world.pass_time(7 * 24 * HOUR_S + 1)
    world.settle()
    assert [page.transactional_id for page in world.transactions.pages()] == ["open"]
    again = world.restarted()
    assert [page.transactional_id for page in again.transactions.pages()] == ["open"]
    assert again.given().epoch == 0
    again.close()


def test_ids_that_are_used_are_not_forgotten(world: World) -> None:
    mine = world.given()
    for _ in range(5):
        world.pass_time(2 * 24 * HOUR_S)
        mine = world.given(current=mine)
    world.settle()
    assert mine.epoch == 5


def test_what_cannot_be_forgotten_now_is_later(world: World) -> None:
    mine = world.given()
    world.pass_time(8 * 24 * HOUR_S)
    assert reason(world.identify("t")) is Refusal.CONCURRENT_TRANSACTION
    world.round(fail=StorageFullError("no room"))
    assert world.given(current=mine).epoch == 1


# Trouble


def test_a_decision_that_is_not_durable_is_none(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0, "x")
    world.settle()
    told = world.end("t", mine)
    world.round(fail=StorageFullError("no room"))
    assert reason(told) is Refusal.STORAGE_FULL
    assert world.state() is State.ONGOING
    told = world.publish(A, mine, 1, "y")
    world.settle()
    assert told == [(1, 1)]
    told = world.end("t", mine, commit=False)
    world.settle()
    assert told == [Identity(mine.producer, 1)]
    assert world.committed(A) == []


def test_a_timeout_that_is_not_durable_is_tried_again(world: World) -> None:
    mine = world.given(timeout_ms=1000)
    world.publish(A, mine, 0)
    world.settle()
    world.pass_time(1)
    world.round(fail=StorageFullError("no room"))
    assert world.state() is State.ONGOING
    world.pass_time(1)
    world.settle()
    assert world.state() is State.COMPLETE_ABORT


def test_a_partition_without_room_delays_the_end_and_shows_nothing_by_halves(world: World) -> None:
    mine = world.given()
    for partition in (A, B):
        world.publish(partition, mine, 0, "x")
    world.settle()
    world.partition(*B).full = True
    told = world.end("t", mine)
    world.settle()
    assert reason(told) is Refusal.CONCURRENT_TRANSACTION
    assert (world.committed(A), world.committed(B)) == ([], [])
    again = world.end("t", mine)
    assert again == []
    world.partition(*B).full = False
    world.pass_time(1)
    world.settle()
    assert again == [Identity(mine.producer, 1)]
    assert (world.committed(A), world.committed(B)) == (["x"], ["x"])
    assert [row.value for row in world.partition(*A).rows] == ["x", "commit"]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_round_that_fails_while_it_ends_is_done_again(world: World, failing: int) -> None:
    mine = world.given()
    world.publish(A, mine, 0, "x")
    world.commit_offset("t", mine, "g", B, 7)
    world.settle()
    told = world.end("t", mine)
    for _ in range(failing):
        world.round()
    world.round(fail=StorageFailedError("broken"))
    assert reason(told) is Refusal.CONCURRENT_TRANSACTION
    world.pass_time(1)
    world.settle()
    assert world.state() is State.COMPLETE_COMMIT
    assert world.committed(A) == ["x"]
    assert world.offset("g", B) == 7
    assert world.end("t", mine) == [Identity(mine.producer, 1)]


def test_a_partition_that_is_gone_needs_no_marker(world: World) -> None:
    mine = world.given()
    for partition in (A, B):
        world.publish(partition, mine, 0, "x")
    world.settle()
    world.gone.add(B)
    told = world.end("t", mine)
    world.settle()
    assert told == [Identity(mine.producer, 1)]
    assert world.committed(A) == ["x"]


def test_what_was_written_and_cannot_be_read_is_forgotten(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.given()
    world.store.save_transaction("t", b"no page")
    world.settle()
    again = world.restarted()
    assert "forgotten" in caplog.text
    assert again.given().epoch == 0
    again.close()


def test_there_are_only_so_many_ids(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.transactions.books.IDS_MAX", 1)
    world.given()
    assert reason(world.identify("other")) is Refusal.NOT_ALLOWED


# Entries whose page was lost


def lose_page(world: World, identity: Identity, value: str) -> World:
    """The process ends after the entry was written and before its partition was written down."""
    world.publish(A, identity, 0, value)
    world.round(crash="between")
    return world.restarted()


def test_an_entry_that_its_page_does_not_know_is_taken_up(world: World) -> None:
    mine = world.given()
    again = lose_page(world, mine, "x")
    told = again.publish(A, mine, 0, "x")
    again.settle()
    assert told == [(0, 0)]
    again.end("t", mine)
    again.settle()
    assert again.committed(A) == ["x"]
    again.close()


def test_a_partition_that_is_opened_is_taken_up(world: World) -> None:
    mine = world.given()
    again = lose_page(world, mine, "x")
    assert again.committed(A) == []
    again.pass_time(0.1)
    again.settle()
    assert again.transactions.page("t").partitions == {A}
    again.pass_time(61)
    again.settle()
    assert again.state() is State.COMPLETE_ABORT
    assert again.partition(*A).stable == 2
    again.close()


def test_an_entry_whose_owner_has_gone_on_is_aborted(world: World) -> None:
    mine = world.given()
    again = lose_page(world, mine, "lost")
    new = again.given()
    assert again.committed(A) == []
    again.pass_time(0.1)
    again.settle()
    assert again.partition(*A).stable == 2
    told = again.publish(A, new, 0, "y")
    again.end("t", new)
    again.settle()
    assert told == [(2, 2)]
    assert again.committed(A) == ["y"]
    again.close()


def test_an_entry_that_has_no_owner_is_aborted(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0, "lost")
    world.settle()
    world.store.drop_transaction("t")
    world.settle()
    again = world.restarted()
    assert again.committed(A) == []
    again.partition(*A).full = True
    again.pass_time(0.1)
    again.partition(*A).full = False
    assert again.transactions.turn(again.now, again.now_ms) is not None
    again.pass_time(1.1)
    again.settle()
    assert again.committed(A) == []
    assert again.partition(*A).stable == 2
    assert again.transactions.turn(again.now, again.now_ms) is None
    again.close()


def test_offsets_that_have_no_owner_are_forgotten(world: World) -> None:
    mine = world.given()
    world.commit_offset("t", mine, "g", A, 7)
    world.settle()
    world.store.drop_transaction("t")
    world.settle()
    again = world.restarted()
    again.settle()
    assert again.offsets.producers() == set()
    assert again.offset("g", A) is None
    again.close()


def test_their_state_can_be_read(world: World) -> None:
    mine = world.given()
    world.publish(A, mine, 0)
    world.settle()
    transaction = world.transactions._books.find("t")
    assert repr(world.transactions) == "<Transactions of 1 ids, 1 open>"
    assert repr(transaction) == "<Transaction t, Ongoing, producer 0 at epoch 0>"
    world.end("t", mine)
    world.round()
    assert "<Ending of t, mark, 1 to mark>" in repr(transaction)
    assert "ready" in repr(world.transactions._ids)


def test_partitions_are_told_of_by_topic(world: World) -> None:
    mine = world.given()
    world.enlist("t", mine, A, Partition("topic", 9))
    world.settle()
    page = world.transactions.page("t")
    assert sorted(page.partitions) == [A, Partition("topic", 9)]
