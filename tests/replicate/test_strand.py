"""One partition's copy, step by step: its table of states, and the ways in which copiers have lost messages or hung."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.errors import (
    BusyError,
    ClosedError,
    GapError,
    NoRoomError,
    RefusedError,
    TimedOutError,
    TransactionError,
)
from penstock.net.failures import InvariantError
from penstock.replicate import backlog
from penstock.replicate import strand as module
from penstock.replicate.commit_clock import Terms
from penstock.replicate.strand import ON_ITS_WAY_MAX, TRANSITIONS, State
from penstock.wire.entry import Stamp
from penstock.wire.protocol import Mark, Spoilt, Stored
from tests.consume.batches import values
from tests.replicate.strand_kit import LOST, REFUSED, TENS, Desk, HandPassage, HandSource, Rig, both_ways

# The table


def test_the_table_is_the_code() -> None:
    told: dict[State, set[State]] = {state: set() for state in State}
    for sources, targets in re.findall(r"^\| ([A-Z, ]+) \|[^|]*\| ([A-Z]*) ?\|", module.__doc__ or "", re.MULTILINE):
        for source in sources.split(", "):
            told[State[source]] |= {State[targets]} if targets else set()
    for state in State:
        told[state] |= {State.ENDED} if state is not State.ENDED else set()
    assert told == {state: set(TRANSITIONS[state]) for state in State}


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_what_is_not_in_the_table_cannot_be(before: State, after: State) -> None:
    rig = Rig()
    rig.one.state = before
    if after in TRANSITIONS[before]:
        rig.one._become(after)
        assert rig.state is after
    else:
        with pytest.raises(InvariantError, match=f"{before.value}, 0 on their way> cannot become {after.value}"):
            rig.one._become(after)


def test_claiming_copying_closing_and_copying_again() -> None:
    rig = Rig()
    assert rig.is_in(State.CLAIMING)
    assert rig.source.is_held
    rig.claimed(20)
    assert (rig.state, rig.one.position, rig.one.committed, rig.source.seeks) == (State.COPYING, 20, 20, [20])
    assert not rig.source.is_held
    rig.read(2)
    assert rig.passage.messages == TENS[2:4]
    rig.pass_time(1.0)
    assert rig.is_in(State.CLOSING)
    rig.read()
    assert rig.passage.messages == TENS[2:4], "nothing is forwarded while it closes"
    assert rig.passage.commits == [], "nothing is committed before all have their answers"
    rig.store()
    assert rig.committed() == 40
    assert (rig.state, rig.one.committed) == (State.COPYING, 40)
    assert rig.passage.messages == TENS[4:5]


def test_without_transactions_it_is_announced_first_and_commits_while_it_copies() -> None:
    rig = Rig(halts=False)
    rig.claimed()
    rig.read(3)
    assert rig.passage.sent == [], "the position is committed before anything is written"
    assert rig.committed() == 0
    assert rig.passage.messages == TENS[:3]
    rig.store(2)
    rig.pass_time(1.0)
    assert rig.is_in(State.COPYING)
    rig.read()
    assert rig.committed() == 20, "as far as all before it is stored"
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 40


def test_the_position_never_passes_what_is_not_stored() -> None:
    rig = Rig(halts=False)
    rig.copying()
    rig.read(4)
    rig.settle_all({1: Stored(10), 2: Stored(20), 3: Stored(30)})
    rig.pass_time(5.0)
    assert rig.passage.commits == []
    assert rig.one.stored == 0
    rig.settle_all({0: Stored(0)})
    assert rig.committed() == 40


@both_ways
def test_it_rests_while_answers_are_awaited(halts: bool) -> None:
    """Whoever is due and can do nothing must not be worked on again and again."""
    rig = Rig(halts=halts)
    rig.copying()
    rig.read(2)
    rig.pass_time(100.0)
    assert rig.next_moment() > rig.now
    rig.store()
    assert rig.committed() == 20


def test_everything_that_was_there_is_copied_and_then_it_ends() -> None:
    rig = Rig(3, end=25)
    rig.copying()
    rig.read(3)
    assert rig.passage.messages == [*TENS[:2], TENS[2][:5]]
    rig.store()
    assert rig.committed() == 25, "at the end nobody waits for the time to commit"
    assert (rig.state, rig.one.error, rig.ended) == (State.ENDED, None, [rig.one])
    assert rig.passage.is_closed
    assert rig.source.is_held
    rig.check_given_back()


@both_ways
def test_where_nothing_is_to_be_copied_it_ends_at_once(halts: bool) -> None:
    rig = Rig(3, end=20, halts=halts)
    rig.copying(20)
    assert rig.is_in(State.ENDED)
    assert rig.one.error is None


def test_what_was_skipped_is_passed_too() -> None:
    """Entries that came from the target, and the holes behind them: the position moves, and is committed."""
    own = [values(10 * i, 10, stamp=Stamp(7, 0, 0)) for i in range(3)]
    rig = Rig([values(0, 10), *own[1:]], end=40)
    rig.source.returning.add(7)
    rig.copying()
    rig.read(1, entries=3)
    assert rig.passage.messages == TENS[:1]
    assert (rig.one.counts.entries_returned, rig.one.counts.messages_returned) == (2, 20)
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 30


@both_ways
def test_where_everything_is_skipped_the_position_is_committed_all_the_same(halts: bool) -> None:
    rig = Rig([values(10 * i, 10, stamp=Stamp(7, 0, 0)) for i in range(3)], halts=halts)
    rig.source.returning.add(7)
    rig.copying(0)
    rig.read(3)
    assert rig.passage.sent == []
    rig.pass_time(1.0)
    assert rig.committed() == 30


def test_it_waits_until_it_is_known_who_wrote_what_was_read() -> None:
    rig = Rig([values(0, 10, stamp=Stamp(7, 0, 0)), values(10, 10)])
    rig.source.unknown.add(7)
    rig.copying()
    rig.read(2)
    assert rig.passage.sent == []
    rig.source.unknown.clear()
    rig.one.come_through(frozenset({"west"}))
    rig.settle()
    assert rig.passage.messages == TENS[:2]
    assert rig.passage.comes_through == [{"west"}]


def test_where_messages_came_through_is_committed_before_they_are_forwarded() -> None:
    rig = Rig(halts=False)
    rig.copying()
    rig.one.come_through(frozenset({"west"}))
    rig.settle()
    rig.read()
    assert rig.passage.sent == []
    rig.committed()
    assert rig.passage.messages == TENS[:1]


def test_a_commit_that_was_asked_for_before_says_nothing_of_that() -> None:
    rig = Rig(halts=False)
    rig.copying()
    rig.read()
    rig.store()
    rig.pass_time(1.0)
    rig.one.come_through(frozenset({"west"}))
    rig.read()
    assert rig.committed() == 10, "it left with the note as it was"
    assert rig.passage.sent == []
    rig.committed()
    assert rig.passage.messages == TENS[1:2]


@both_ways
def test_where_it_starts_is_committed_before_anything_is_forwarded(halts: bool) -> None:
    """Else one that starts at the end of the source, and is killed, would start behind what came meanwhile."""
    rig = Rig(halts=halts)
    rig.source.first = rig.source.position = 20
    rig.claimed(None)
    rig.read(2)
    assert rig.passage.sent == []
    assert rig.committed() == 20
    assert (rig.one.committed, rig.passage.messages) == (20, TENS[2:4])


def test_within_transactions_a_position_that_is_committed_is_not_committed_again_at_the_start() -> None:
    rig = Rig()
    rig.claimed(20)
    rig.pass_time(10.0)
    assert rig.passage.commits == []


@both_ways
def test_who_is_told_to_stop_before_its_start_is_committed_commits_it(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.claimed(None)
    rig.one.stop()
    rig.settle()
    assert rig.committed() == 0
    assert (rig.state, rig.one.error) == (State.ENDED, None)


# Leader epochs


@both_ways
def test_the_leader_epoch_is_committed_with_the_position(halts: bool) -> None:
    """So that one who starts anew notices that the source was cut meanwhile."""
    rig = Rig(halts=halts)
    rig.source.epochs = {0: 4, 10: 4, 20: 5}
    rig.copying(0)
    rig.read(1, entries=3)
    rig.store()
    rig.pass_time(1.0)
    assert [commit.mark for commit in rig.passage.commits] == [Mark(30, "", 5)]


@pytest.mark.parametrize(("epochs", "known"), [({0: 4, 10: 4, 20: 4}, 4), ({0: 4, 10: 4, 20: 5}, -1)])
def test_the_leader_epoch_within_a_part_is_known_where_there_is_only_one(epochs: dict[int, int], known: int) -> None:
    rig = Rig(halts=False)
    rig.source.epochs = epochs
    rig.copying(0)
    rig.read(1, entries=3)
    rig.store(2)
    rig.pass_time(1.0)
    assert [commit.mark for commit in rig.passage.commits] == [Mark(20, "", known)]


def test_the_leader_epoch_that_was_committed_is_committed_again() -> None:
    rig = Rig(halts=False)
    rig.passage.claims.pop()(module.Claimed(Mark(20, "", 4), 0))
    rig.settle()
    assert [commit.mark for commit in rig.passage.commits] == [Mark(20, "", 4)]


# 1. A failed middle entry with later ones stored


def test_story_1_nothing_is_judged_by_a_high_water_mark() -> None:
    """E3 fails although E4 and E5 are stored: all from the last commit on is forwarded again, in order."""
    rig = Rig()
    rig.copying(10)
    rig.read(5)
    rig.settle_all({0: Stored(10), 1: Stored(20), 3: Stored(40), 4: Stored(50)})
    rig.settle_all({0: RefusedError("this one")})
    assert rig.is_in(State.REWINDING)
    rig.given_up()
    rig.pass_time(1.0)
    rig.claimed(10, end=60)
    assert rig.source.seeks == [10, 10]
    rig.read(5)
    assert rig.passage.messages == TENS[1:]
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 60


def test_story_1_without_transactions_it_goes_on_at_what_is_surely_stored() -> None:
    rig = Rig(halts=False)
    rig.copying()
    rig.read(5)
    rig.settle_all({0: Stored(0), 1: Stored(10)})
    rig.pass_time(1.0)
    rig.settle_all({1: Stored(30), 2: Stored(40)})
    rig.settle_all({0: TimedOutError("no answer")})
    assert rig.committed() == 20
    rig.given_up()
    rig.pass_time(1.0)
    rig.copying(20)
    rig.read(4)
    assert rig.passage.messages == TENS[2:]


def test_story_1_those_who_were_judged_in_one_moment() -> None:
    """A lane that fails settles many batches at once: verdicts are there before their listeners are told."""
    rig = Rig()
    rig.copying(0)
    rig.read(4)
    rig.settle_all({0: LOST, 1: Stored(0), 2: BusyError("fenced"), 3: BusyError("fenced")})
    assert rig.is_in(State.REWINDING)
    rig.given_up()
    rig.pass_time(1.0)
    assert rig.is_in(State.CLAIMING)
    rig.check_given_back()


# 2. Permits that two take


def test_story_2_permits_are_taken_when_something_is_forwarded_and_not_before() -> None:
    """Two strands look at the same permits: together they never have more on their way than is allowed."""
    desk = Desk(permits=(1 << 20, 3))
    rigs = [(HandSource([values(10 * i, 10) for i in range(4)]), HandPassage()) for _ in range(2)]
    strands = [desk.strand(source, passage, number=number) for number, (source, passage) in enumerate(rigs)]
    for strand, (_, passage) in zip(strands, rigs, strict=True):
        strand.begin()
        passage.claims.pop()(module.Claimed(Mark(0), 0))
    for strand, (source, _) in zip(strands, rigs, strict=True):
        for _ in range(4):
            source.hand_over(source.read(), strand)
    seen = 0
    while desk.turn() or any(passage.sent for _, passage in rigs):
        on_its_way = sum(len(passage.sent) for _, passage in rigs)
        assert on_its_way == desk.permits.entries <= 3
        if not desk.looked:
            seen += on_its_way
            for sent in [sent for _, passage in rigs for sent in passage.take()]:
                sent.stored()
    assert seen == 8
    assert (desk.permits.entries, desk.permits.bytes) == (0, 0)


def test_one_that_is_larger_than_all_permits_goes_alone() -> None:
    rig = Rig(3, permits=(100, 10))
    rig.copying()
    rig.read(3)
    for place in range(3):
        assert rig.passage.messages == [TENS[place]]
        rig.store()


# 3. The rate limiter says no


@both_ways
def test_story_3_a_rate_that_says_no_is_asked_again_in_time(halts: bool) -> None:
    rig = Rig(4, halts=halts, rates=(10.0, None), terms=Terms(1000.0, 1 << 30, 10_000.0))
    rig.copying()
    rig.read(4)
    assert rig.passage.messages == TENS[:1], "it goes whole, and is paid for afterwards"
    rig.store()
    for place in range(1, 4):
        wait = rig.next_moment() - rig.now
        assert wait == pytest.approx(1.0)
        rig.pass_time(wait / 2)
        assert rig.passage.sent == []
        rig.pass_time(wait / 2)
        assert rig.passage.messages == [TENS[place]]
        rig.store()


def test_story_3_what_waits_for_its_time_holds_no_permit_and_no_commit() -> None:
    rig = Rig(4, rates=(None, 100.0))
    rig.copying()
    rig.read(4)
    rig.store()
    assert (rig.permits.entries, rig.permits.bytes) == (0, 0)
    rig.pass_time(1.0)
    assert rig.committed() == 10
    rig.pass_time(10.0)
    rig.store()
    assert rig.committed() == 20, "what had waited was sent and is committed"


# 4. A failed publish and its permit


@pytest.mark.parametrize("error", [LOST, REFUSED, BusyError("later"), Spoilt(REFUSED, {0: "no key"})], ids=repr)
def test_story_4_every_outcome_gives_its_permit_back(error: Any) -> None:
    rig = Rig()
    rig.copying(0)
    rig.read(3)
    assert rig.permits.entries == 3
    rig.settle_all({0: error, 1: BusyError("fenced"), 2: BusyError("fenced")})
    rig.check_given_back()
    assert rig.is_in(State.REWINDING)


def test_story_4_one_that_could_not_even_be_sent_gives_its_permit_back() -> None:
    rig = Rig()
    rig.copying(0)
    rig.passage.refusal = NoRoomError("full")
    rig.read(2)
    assert rig.is_in(State.REWINDING)
    rig.check_given_back()
    rig.passage.refusal = None
    rig.given_up()
    rig.pass_time(1.0)
    rig.claimed(0)
    rig.read()
    assert rig.passage.messages == TENS[:1]


@both_ways
def test_story_4_late_outcomes_give_theirs_back_in_every_state(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read(4)
    late = rig.passage.take()
    late[0].failed(LOST)
    rig.given_up()
    rig.pass_time(5.0)
    assert rig.is_in(State.REWINDING), "not before all have their outcome"
    late[1].stored()
    rig.one.fail(GapError("t-0", 5, 9, "deleted"))
    late[2].stored()
    late[3].failed(LOST)
    rig.settle()
    rig.check_given_back()


# 5. A rewind, and what completes late


def test_story_5_a_late_read_does_not_move_a_strand_that_went_back() -> None:
    rig = Rig()
    rig.copying(0)
    rig.read(2)
    late = rig.source.read()
    rig.settle_all({0: LOST, 1: BusyError("fenced")})
    rig.given_up()
    rig.pass_time(1.0)
    later = rig.source.read()
    assert later is None, "nothing is read before it is known where"
    rig.claimed(0)
    rig.source.hand_over(late, rig.one)
    rig.settle()
    assert rig.passage.sent == []
    rig.read(6)
    assert rig.passage.messages == TENS


def test_story_5_parts_that_come_while_it_goes_back_are_given_back() -> None:
    rig = Rig()
    rig.copying(0)
    rig.read()
    late = rig.source.read()
    rig.settle_all({0: LOST})
    rig.source.hand_over(late, rig.one)
    rig.given_up()
    rig.source.hand_over(rig.source.read(), rig.one)
    rig.check_given_back()


def test_story_5_the_first_transaction_may_fail_too() -> None:
    """The target knows of no commit: it begins again where it began, and not where reading has come to."""
    rig = Rig()
    rig.copying(None)
    rig.read(3)
    rig.settle_all({0: Stored(0), 1: LOST, 2: BusyError("fenced")})
    late = rig.source.read()
    rig.given_up()
    rig.pass_time(1.0)
    rig.copying(None)
    rig.source.hand_over(late, rig.one)
    rig.read(6)
    assert rig.passage.messages == TENS
    assert rig.one.position == 60


@both_ways
def test_story_5_a_late_commit_is_awaited_too(halts: bool) -> None:
    """A commit that is under way when something fails must not speak for what comes after."""
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read(2)
    rig.store(None if halts else 1)
    rig.pass_time(1.0)
    (commit,) = rig.passage.commits
    rig.passage.commits.clear()
    if halts:
        rig.one.fail(GapError("t-0", 5, 9, "deleted"))
        commit.told(None)
        assert rig.is_in(State.ENDED)
        return
    rig.settle_all({0: LOST})
    rig.given_up()
    rig.pass_time(5.0)
    assert rig.is_in(State.REWINDING)
    commit.told(None)
    rig.pass_time(1.0)
    rig.claimed(10)
    assert len(rig.passage.commits) == 1


# 6. What was copied before is read back from the target, always


@both_ways
def test_story_6_the_position_is_always_read_back_from_the_target(halts: bool) -> None:
    """Whatever is remembered here does not count: the target may have got further, or less far."""
    rig = Rig(halts=halts)
    rig.copying(0)
    rig.read(2)
    rig.store()
    rig.pass_time(1.0)
    rig.committed(TransactionError("whether it was committed cannot be found out"))
    assert rig.is_in(State.REWINDING)
    rig.given_up()
    rig.pass_time(1.0)
    rig.copying(20)
    rig.read(2)
    assert rig.passage.messages == TENS[2:4], "it was committed: nothing is repeated"
    rig.settle_all({0: LOST, 1: BusyError("fenced")})
    rig.given_up()
    rig.pass_time(1.0)
    rig.copying(10)
    rig.read(2)
    assert rig.passage.messages == TENS[1:3], "the target has lost something: nothing is left out"


# 7. The own limits


def test_story_7_a_strand_that_had_no_permit_goes_on_when_there_is_one() -> None:
    desk = Desk(permits=(1 << 20, 2))
    ends = [(HandSource([values(10 * i, 10) for i in range(4)]), HandPassage()) for _ in range(2)]
    first, second = (desk.strand(source, passage, number=number) for number, (source, passage) in enumerate(ends))
    for strand, (source, passage) in zip((first, second), ends, strict=True):
        strand.begin()
        passage.claims.pop()(module.Claimed(Mark(0), 0))
        for _ in range(2):
            source.hand_over(source.read(), strand)
        desk.settle()
    assert [len(passage.sent) for _, passage in ends] == [2, 0]
    first.fail(GapError("t-0", 5, 9, "deleted"))
    desk.settle()
    assert ends[1][1].sent == []
    for sent in ends[0][1].take():
        sent.failed(ClosedError("closed"))
    desk.settle()
    assert len(ends[1][1].sent) == 2


def test_story_7_reading_is_held_when_much_waits_and_goes_on_when_it_has_left() -> None:
    large = [values(10 * i, 10) for i in range(3)]
    size = len(large[0])
    rig = Rig(large, permits=(1 << 20, 1))
    rig.copying()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "AHEAD_BYTES", size)
        rig.read(1)
        assert not rig.source.is_held
        rig.read(1)
        assert rig.source.is_held
        rig.store()
        assert not rig.source.is_held
        rig.read(1)
        assert rig.source.is_held
        rig.store()
        assert not rig.source.is_held
    assert rig.passage.messages == TENS[2:3]


def test_story_7_not_more_than_so_many_are_on_their_way() -> None:
    rig = Rig([values(i, 1) for i in range(ON_ITS_WAY_MAX + 5)])
    rig.copying()
    rig.read(1, entries=100)
    assert len(rig.passage.sent) == ON_ITS_WAY_MAX
    rig.store(1)
    assert len(rig.passage.sent) == ON_ITS_WAY_MAX
    rig.store()
    assert len(rig.passage.sent) == 4


# 8. A source that is not the one it was

ALIVE = [(state, halts) for state in State for halts in (True, False) if state is not State.ENDED]
ALIVE.remove((State.CLOSING, False))  # only transactions are closed


@pytest.mark.parametrize(("state", "halts"), ALIVE, ids=lambda one: getattr(one, "value", one))
def test_story_8_a_source_that_was_cut_or_made_anew_ends_the_copy_whatever_it_does(state: State, halts: bool) -> None:
    rig = Rig(halts=halts)
    if state is not State.CLAIMING:
        rig.copying(0)
        rig.read(3)
        rig.store(1)
    if state is State.CLOSING:
        rig.pass_time(1.0)
    if state is State.REWINDING:
        rig.settle_all({0: LOST})
    assert rig.is_in(state)
    gap = GapError("t-0", 5, None, "the topic was made anew")
    rig.one.fail(gap)
    assert (rig.state, rig.one.error, rig.ended) == (State.ENDED, gap, [rig.one])
    rig.one.fail(GapError("t-0", 6, None, "again"))
    assert rig.one.error is gap
    for sent in rig.passage.take():
        sent.failed(LOST)
    rig.settle()
    assert rig.passage.sent == []
    assert rig.passage.commits == []
    rig.check_given_back()


def test_story_8_a_position_of_another_topic_is_not_gone_on_from() -> None:
    rig = Rig()
    gap = GapError("t-0", 30, None, "the topic was deleted and created again")
    rig.not_claimed(gap)
    assert (rig.state, rig.one.error) == (State.ENDED, gap)
    assert rig.source.seeks == []


def test_where_one_is_told_to_go_on_the_position_may_fall() -> None:
    """The log was cut and it is told to go on: what is committed is where reading is, not the highest that was."""
    rig = Rig(halts=False)
    rig.copying(0)
    rig.read(3)
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 30
    rig.source.entries[1:] = []
    rig.source.write(values(10, 5))
    rig.source.position = 10
    rig.read()
    assert rig.passage.messages == [TENS[1][:5]]
    rig.store()
    rig.pass_time(1.0)
    assert rig.committed() == 15


# A target that is not the one it was


@both_ways
def test_a_target_that_stores_where_it_had_stored_before_was_made_anew_or_cut(halts: bool) -> None:
    rig = Rig(halts=halts)
    rig.claimed(10, end=100)
    if not halts:
        rig.committed()
    rig.read(2)
    rig.store(1, first=100)
    assert rig.is_in(State.COPYING)
    rig.store(1, first=0)
    assert rig.is_in(State.REWINDING)
    assert "the target stores at position 0 what comes behind 110: it was made anew, or cut" in str(rig.one.trouble)
    rig.given_up()
    rig.pass_time(1.0)
    rig.claimed(None)
    assert rig.one.position == 0, "it is filled from the beginning"
