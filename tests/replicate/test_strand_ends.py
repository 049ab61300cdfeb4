"""One partition's copy: how it fails, stops and commits, and what it tells of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.errors import (
    BatchTooLargeError,
    BusyError,
    ClosedError,
    ConfigError,
    DecodeError,
    DeniedError,
    FencedError,
    NoRoomError,
    PenstockError,
    RefusedError,
    TransactionError,
    UnforeseenError,
)
from penstock.produce.receipts import Moved
from penstock.replicate.commit_clock import Terms
from penstock.replicate.consignment import Packing
from penstock.replicate.position_map import Point
from penstock.replicate.strand import TRIES_MAX, State
from penstock.wire.compression import Codec
from penstock.wire.protocol import Spoilt, Stored
from tests.consume.batches import values
from tests.replicate.strand_kit import LOST, REFUSED, TENS, TERMS, Parcel, Rig, both_ways

# Failures and how they end


@pytest.mark.parametrize("error", [FencedError("another"), ClosedError("closed")], ids=repr)
@pytest.mark.parametrize("where", ["claim", "send", "answer", "point", "commit", "give up"])
def test_who_was_fenced_ends_for_good_wherever_it_is_told(error: PenstockError, where: str) -> None:
    rig = Rig()
    rig.passage.tells_points = where == "point"
    if where == "claim":
        rig.not_claimed(error)
    else:
        rig.claimed(0)
        rig.passage.refusal = error if where == "send" else None
        rig.read(2)
    if where == "answer":
        rig.settle_all({0: error})
    elif where == "point":
        rig.passage.points[0][1].settle(error)
    elif where == "commit":
        rig.store()
        rig.pass_time(1.0)
        rig.committed(error)
    elif where == "give up":
        rig.settle_all({0: LOST})
        rig.given_up(error)
    rig.settle()
    assert (rig.state, rig.one.error) == (State.ENDED, error)
    assert rig.passage.is_closed
    assert rig.passage.claims == []
    for sent in rig.passage.take():
        sent.failed(error)
    rig.check_given_back()


@pytest.mark.parametrize("error", [ConfigError("the note is too long"), DeniedError("no")], ids=repr)
def test_a_claim_that_cannot_succeed_ends_it(error: PenstockError) -> None:
    rig = Rig()
    rig.not_claimed(error)
    assert (rig.state, rig.one.error) == (State.ENDED, error)


@both_ways
def test_a_commit_that_can_never_be_made_ends_it(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read()
    rig.store()
    rig.pass_time(1.0)
    error = ConfigError("what is to be committed beside a position takes 5000 bytes")
    rig.committed(error)
    assert (rig.state, rig.one.error) == (State.ENDED, error)


def test_a_claim_that_fails_for_now_is_tried_again_after_longer_and_longer_pauses() -> None:
    rig = Rig()
    pauses = []
    for _ in range(4):
        rig.not_claimed(BusyError("loading"))
        assert rig.is_in(State.REWINDING)
        assert str(rig.one.trouble) == "loading"
        rig.given_up(TransactionError("none is open"))
        pauses.append(rig.next_moment() - rig.now)
        rig.pass_time(pauses[-1])
        assert rig.is_in(State.CLAIMING)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
    rig.claimed(0)
    assert rig.one.trouble is None


def test_a_commit_that_worked_makes_the_next_pause_short_again() -> None:
    rig = Rig()
    for _ in range(4):
        rig.not_claimed(BusyError("loading"))
        rig.given_up()
        rig.pass_time(2.0)
    rig.claimed(0)
    rig.read()
    rig.store()
    rig.pass_time(1.0)
    rig.committed()
    rig.read()
    rig.settle_all({0: LOST})
    rig.given_up()
    assert rig.next_moment() - rig.now == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize("error", [REFUSED, UnforeseenError("odd"), Spoilt(REFUSED, {3: "odd"})], ids=repr)
def test_what_the_target_refuses_again_and_again_ends_it_and_is_named(error: Any) -> None:
    rig = Rig()
    rig.copying(10)
    for tries in range(1, TRIES_MAX + 1):
        rig.read(2)
        rig.settle_all({0: error, 1: BusyError("fenced")})
        if tries < TRIES_MAX:
            rig.given_up()
            rig.pass_time(2.0)
            rig.claimed(10)
    assert rig.is_in(State.ENDED)
    assert isinstance(rig.one.error, RefusedError)
    assert "t-0: the target refuses positions 10 to 19, and copying cannot go on" in str(rig.one.error)
    rig.check_given_back()


def test_refusals_at_different_places_are_counted_apart() -> None:
    rig = Rig()
    rig.copying(0)
    for place in range(4):
        rig.read()
        rig.settle_all({0: REFUSED})
        rig.given_up()
        rig.pass_time(2.0)
        rig.claimed(10 * place)
        rig.read()
        rig.store()
        rig.pass_time(1.0)
        assert rig.committed() == 10 * place + 10
    assert rig.is_in(State.COPYING)


def test_a_batch_that_is_too_large_is_sent_again_in_smaller_ones() -> None:
    rig = Rig([values(0, 20)])
    rig.copying(0)
    for _ in range(2):
        rig.read()
        assert rig.is_in(State.COPYING)
        too_large = [sent.messages for sent in rig.passage.sent]
        rig.settle_all(dict.fromkeys(range(len(rig.passage.sent)), BatchTooLargeError("too large")))
        rig.given_up()
        rig.pass_time(2.0)
        rig.claimed(0)
    rig.read()
    smaller = rig.passage.messages
    assert len(smaller) > len(too_large) > 1
    assert [message for messages in smaller for message in messages] == list(range(20))
    assert rig.one.counts.rewinds == 2


def with_damage(halts: bool, whole: int = 1, **more: Any) -> Rig:
    """Copying a log whose last entry cannot be read."""
    damaged = bytearray(values(10 * whole, 10))
    damaged[-1] ^= 1
    rig = Rig(whole, halts=halts, **more)
    rig.source.entries.append((10 * whole, 10 * whole + 10, memoryview(damaged)))
    rig.copying(0)
    return rig


@both_ways
def test_an_entry_that_cannot_be_read_ends_it_once_what_lies_before_is_committed(halts: bool) -> None:
    rig = with_damage(halts)
    rig.read(1, entries=2)
    assert rig.passage.messages == TENS[:1]
    assert not rig.one.is_over
    rig.store()
    assert rig.committed() == 10
    assert isinstance(rig.one.error, DecodeError)
    assert "t-0, entry at position 10 or behind it" in str(rig.one.error)
    assert (rig.state, rig.one.committed, rig.passage.sent) == (State.ENDED, 10, [])
    rig.check_given_back()


@both_ways
def test_a_first_entry_that_cannot_be_read_ends_it_at_once(halts: bool) -> None:
    rig = with_damage(halts, whole=0)
    rig.read()
    assert isinstance(rig.one.error, DecodeError)
    assert rig.passage.commits == []


@both_ways
def test_what_lies_before_an_entry_that_cannot_be_read_is_forwarded_again_where_it_failed(halts: bool) -> None:
    rig = with_damage(halts)
    for verdict in (LOST, Stored(0)):
        rig.read(1, entries=2)
        assert rig.passage.messages == TENS[:1]
        rig.settle_all({0: verdict})
        if verdict is LOST:
            rig.given_up()
            rig.pass_time(1.0)
            rig.copying(0)
    assert rig.committed() == 10
    assert isinstance(rig.one.error, DecodeError)


@both_ways
@pytest.mark.parametrize("where", ["commit", "point", "points at once"])
def test_who_may_not_commit_or_tell_points_ends(where: str, halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.passage.tells_points = where == "point"
    rig.copying(0)
    rig.read()
    denied = DeniedError("not allowed")
    if where == "commit":
        rig.store()
        rig.pass_time(1.0)
        rig.committed(denied)
    elif where == "point":
        rig.passage.points.pop()[1].settle(denied)
    else:
        rig.passage.point_refusal = denied
        rig.store(first=7)
    assert (rig.state, rig.one.error) == (State.ENDED, denied)


# Mistakes


@both_ways
@pytest.mark.parametrize("where", ["claim", "answer", "point", "commit", "give up"])
def test_a_mistake_where_an_outcome_is_told_ends_it(where: str, halts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who tell outcomes would only log what is raised, and the strand would wait for ever."""
    rig = Rig(halts=halts)
    rig.passage.tells_points = where == "point"
    mistake = ZeroDivisionError("odd")

    def fail(*_: Any) -> Any:
        raise mistake

    if where == "claim":
        monkeypatch.setattr(rig.source, "seek", fail)
        rig.claimed(0)
    else:
        rig.copying(0)
        rig.read(2)
    if where == "answer":
        monkeypatch.setattr(rig.passage, "stored_to", fail)
        rig.settle_all({0: Stored(0), 1: Stored(10)})
    elif where == "point":
        monkeypatch.setattr("penstock.replicate.strand._error_of", fail)
        rig.passage.points.pop()[1].settle(Stored(0))
    elif where == "commit":
        rig.store()
        rig.pass_time(1.0)
        monkeypatch.setattr(rig.one, "_backoff", SimpleNamespace(reset=fail))
        rig.committed()
    elif where == "give up":
        late = BusyError("late")
        monkeypatch.setattr("penstock.replicate.strand._is_final", lambda error: fail() if error is late else False)
        rig.settle_all({0: LOST, 1: LOST})
        rig.given_up(late)
    assert rig.is_in(State.ENDED)
    assert rig.one.error is not None
    assert rig.one.error.__cause__ is mistake
    assert "t-0: copying cannot go on: ZeroDivisionError('odd')" in str(rig.one.error)
    assert rig.ended == [rig.one]


def test_a_mistake_on_its_last_way_out_does_not_keep_others_from_hearing_that_it_ended() -> None:
    rig = Rig()
    rig.copying(0)
    rig.passage.close = lambda: 1 / 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        rig.one.fail(REFUSED)
    assert rig.ended == [rig.one]


# Stopping


@both_ways
def test_it_stops_with_what_is_stored_committed(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read(2)
    rig.one.stop()
    rig.read(2)
    assert rig.passage.messages == TENS[:2]
    rig.store()
    assert rig.committed() == 20
    assert (rig.state, rig.one.error) == (State.ENDED, None)
    rig.check_given_back()


@both_ways
def test_it_stops_at_once_where_nothing_is_on_its_way(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.one.stop()
    rig.settle()
    assert rig.is_in(State.ENDED)


def test_it_stops_while_it_claims() -> None:
    rig = Rig()
    rig.one.stop()
    rig.settle()
    assert rig.is_in(State.ENDED)
    rig.claimed(0)
    assert rig.source.seeks == []


def test_it_stops_while_it_goes_back() -> None:
    rig = Rig()
    rig.copying(0)
    rig.read(2)
    rig.settle_all({0: LOST})
    rig.one.stop()
    rig.given_up()
    assert rig.is_in(State.REWINDING)
    rig.settle_all({0: BusyError("fenced")})
    assert (rig.state, rig.one.error) == (State.ENDED, None)
    rig.check_given_back()


# Committing


def test_many_bytes_are_committed_before_the_time_has_come() -> None:
    rig = Rig(terms=Terms(1000.0, 400, 10_000.0))
    rig.copying(0)
    rig.read(4, entries=1)
    assert rig.is_in(State.CLOSING)
    assert 400 <= sum(sent.consignment.size for sent in rig.passage.sent) < 800


@both_ways
def test_a_position_that_does_not_move_is_renewed_in_time(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read()
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 10
    for _ in range(3):
        wait = rig.next_moment() - rig.now
        assert wait <= TERMS.renew_after
        rig.pass_time(wait - 1.0)
        assert rig.passage.commits == []
        rig.pass_time(1.0)
        assert rig.committed() == 10


# Points


def test_points_tell_where_each_message_is() -> None:
    rig = Rig()
    rig.passage.tells_points = True
    rig.claimed(10, end=500)
    assert [points for points, _ in rig.passage.points] == [[Point(10, 500)]]
    rig.read(3)
    rig.settle_all({0: Stored(500), 1: Stored(510), 2: Stored(521)})
    assert [points for points, _ in rig.passage.points[1:]] == [[Point(30, 521)]]
    assert rig.passage.end == 531


@both_ways
def test_no_position_is_committed_whose_points_are_not_told(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.passage.tells_points = True
    rig.copying(0)
    rig.passage.points.pop()[1].settle(Stored(0))
    rig.read(2)
    rig.settle_all({0: Stored(0), 1: Stored(100)})
    rig.pass_time(1.0)
    ((points, parcel),) = rig.passage.points
    assert points == [Point(10, 100)]
    if halts:
        assert rig.passage.commits == []
        parcel.settle(Stored(7))
        rig.settle()
    else:
        assert rig.committed() == 10
        parcel.settle(Stored(7))
        rig.pass_time(1.0)
    assert rig.committed() == 20


@both_ways
def test_points_that_could_not_be_told_send_it_back(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.passage.tells_points = True
    rig.copying(0)
    rig.passage.points.pop()[1].settle(LOST)
    assert rig.is_in(State.REWINDING)


@both_ways
def test_points_of_before_do_not_matter_after_it_went_back(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.passage.tells_points = True
    rig.copying(0)
    (_, before) = rig.passage.points.pop()
    rig.read()
    rig.settle_all({0: LOST})
    rig.given_up()
    rig.pass_time(1.0)
    rig.copying(0)
    rig.passage.points.pop()[1].settle(Stored(0))
    rig.read()
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 10
    before.settle(LOST)
    rig.settle()
    assert rig.is_in(State.COPYING)


@both_ways
def test_points_that_are_refused_at_once_send_it_back(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read(3)
    rig.passage.point_refusal = NoRoomError("full")
    rig.settle_all({0: Stored(100), 1: Stored(200), 2: Stored(300)})
    assert rig.is_in(State.REWINDING)
    rig.check_given_back()
    rig.given_up()
    rig.pass_time(2.0)
    rig.claimed(0)
    assert rig.is_in(State.REWINDING), "the first point is refused too"
    assert rig.source.is_held
    rig.passage.point_refusal = None
    rig.given_up()
    rig.pass_time(2.0)
    rig.claimed(0)
    assert rig.is_in(State.COPYING)


# What is told of it


def test_the_delay_is_the_age_of_what_is_not_copied_and_never_zero_while_there_is_something() -> None:
    rig = Rig(3)
    rig.claimed(0)
    assert rig.one.delay_ms(rig.now, 1_000_000) >= 1.0
    rig.now += 5.0
    assert rig.one.delay_ms(rig.now, 1_000_000) == pytest.approx(5000.0)
    rig.read(3)
    assert rig.one.delay_ms(rig.now, 1_000_000) == 1_000_000 - 9, "its first batch is as old as that"
    rig.store()
    rig.pass_time(1.0)
    assert rig.one.delay_ms(rig.now, 1_000_000) > 0, "stored is not committed"
    rig.committed()
    assert rig.one.delay_ms(rig.now, 1_000_000) == 0.0


def test_the_delay_tells_of_what_is_on_its_way_after_a_commit_too() -> None:
    rig = Rig(3, halts=False)
    rig.copying(0)
    rig.read(3)
    rig.store(2)
    rig.pass_time(1.0)
    assert rig.committed() == 20
    assert rig.one.delay_ms(rig.now, 1_000_000) == 1_000_000 - 29


def test_the_delay_of_a_source_that_is_written_to_all_the_time_does_not_grow_for_ever() -> None:
    rig = Rig(1)
    rig.claimed(0)
    for second in range(1, 50):
        rig.one.delay_ms(rig.now, 1000 * second)
        rig.read(2)
        rig.store()
        rig.pass_time(1.0)
        rig.source.write(values(10 * second, 10))
        assert rig.one.delay_ms(rig.now, 1000 * second) > 0
        rig.committed()
    assert rig.one.delay_ms(rig.now, 50_000) <= 3000.0


def test_an_empty_source_is_not_behind() -> None:
    rig = Rig(0)
    rig.claimed(None)
    rig.pass_time(5.0)
    assert rig.one.delay_ms(rig.now, 1_000_000) == 0.0


def test_a_stuck_strand_is_behind_although_nothing_is_to_be_read() -> None:
    rig = Rig(1)
    rig.claimed(0)
    rig.read()
    rig.settle_all({0: LOST})
    assert rig.one.delay_ms(rig.now, 1_000_000) >= 1.0


def test_numbers_tell_what_was_stored_and_how() -> None:
    entries = [values(0, 10, codec=Codec.LZ4), values(10, 10), values(20, 10)]
    rig = Rig(entries, end=25)
    rig.copying(0)
    rig.read(1, entries=3)
    size = sum(sent.consignment.size for sent in rig.passage.sent)
    rig.store()
    rig.committed()
    counts = rig.one.counts
    assert (counts.entries_copied, counts.entries_unopened, counts.messages_copied) == (3, 2, 25)
    assert (counts.batches, counts.bytes_copied, counts.commits, counts.rewinds) == (3, size, 1, 0)
    assert {reason.value: count for reason, count in counts.opened.items()} == {"cut": 1}


def test_it_can_be_told_what_it_does() -> None:
    rig = Rig()
    rig.copying(10)
    rig.read(2)
    assert repr(rig.one) == "<Strand of t-0 at 30, 10 committed, copying, 2 on their way>"


def test_routed_messages_are_committed_only_with_all_of_their_entry() -> None:
    """An entry whose messages go to several partitions is committed whole: its position tells nothing in between."""
    packing = Packing(0, repack="never", route=lambda columns: np.arange(len(columns), dtype=np.int32) % 3)
    rig = Rig(2, packing=packing, permits=(1 << 20, 2))
    rig.copying(0)
    rig.read()
    assert len(rig.passage.sent) == 2
    rig.pass_time(1.0)
    assert rig.passage.commits == []
    rig.store()
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 10


def test_routed_messages_are_all_sent_before_it_stops() -> None:
    """Within a transaction an entry is copied whole or not at all, also where one stops in the midst of it."""
    packing = Packing(0, repack="never", route=lambda columns: np.arange(len(columns), dtype=np.int32) % 3)
    rig = Rig(2, packing=packing, permits=(1 << 20, 2))
    rig.copying(0)
    rig.read(2)
    rig.one.stop()
    rig.store()
    assert [sent.consignment.partition for sent in rig.passage.sent] == [2], "the rest of the first entry"
    rig.store()
    assert rig.committed() == 10
    assert rig.is_in(State.ENDED)
    rig.check_given_back()


@both_ways
def test_points_that_went_on_in_other_batches_are_awaited_there(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.passage.tells_points = True
    rig.copying(0)
    parts: list[Any] = [Parcel(), Parcel()]
    rig.passage.points.pop()[1].settle(Moved(parts, np.zeros(2, np.int32), np.zeros(2, np.int32), {}))
    rig.read()
    rig.store()
    parts[0].settle(Stored(0))
    rig.pass_time(1.0)
    assert rig.passage.commits == []
    parts[1].settle(Stored(1))
    rig.settle()
    assert rig.committed() == 10


def test_points_some_of_which_are_lost_send_it_back() -> None:
    rig = Rig()
    rig.passage.tells_points = True
    rig.copying(0)
    lost = Moved([], np.full(1, -1, np.int32), np.zeros(1, np.int32), {0: RefusedError("spoilt")})
    rig.passage.points.pop()[1].settle(lost)
    assert rig.is_in(State.REWINDING)
