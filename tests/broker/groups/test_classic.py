"""A group whose members agree among themselves: every way from one state to another."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.groups.classic import TRANSITIONS, State
from penstock.broker.groups.questions import Client, Joined, Leaver, Offer, Peer, Share, Synced
from penstock.broker.refusals import Refusal, Refused
from penstock.wire.protocol import NO_MEMBER, GroupMember, Partition
from tests.broker.groups.kit import REBALANCE_MS, SESSION_MS, START_MS, ClassicTown

SESSION_S, REBALANCE_S = SESSION_MS / 1000, REBALANCE_MS / 1000


# Joining


def test_a_new_member_is_given_an_id_and_joins_again_under_it() -> None:
    town = ClassicTown()
    asked = town.join()
    assert asked.answer == Joined("app-id1", refusal=Refusal.MEMBER_ID_NEEDED)
    assert town.is_in(State.EMPTY)
    joined = town.join("app-id1").answer
    assert joined == Joined("app-id1", 1, "app-id1", "consumer", "range", (Peer("app-id1", None, b"about me"),))
    assert town.is_in(State.COMPLETING)


def test_a_member_that_does_not_know_about_ids_is_taken_at_once() -> None:
    town = ClassicTown()
    joined = town.join(takes_id=False).answer
    assert (joined.member, joined.generation, joined.refusal) == ("app-id1", 1, None)


def test_an_id_that_nobody_joins_under_is_forgotten_after_the_session() -> None:
    town = ClassicTown()
    member = town.join().answer.member
    town.wait(SESSION_S * 0.9)
    assert town.group.is_expected
    town.wait(SESSION_S * 0.1)
    assert not town.group.is_expected
    assert town.join(member).answer.refusal is Refusal.UNKNOWN_MEMBER


def test_only_the_leader_is_told_who_else_joined() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    second, follower = town.enter()
    leader = town.join(first)
    assert [peer.member for peer in leader.answer.peers] == [first, second]
    assert follower.answer.peers == ()
    assert leader.answer.leader == follower.answer.leader == first
    assert leader.answer.generation == follower.answer.generation == 2


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_shortest_and_the_longest_session_are_taken(session_ms: int) -> None:
    assert ClassicTown().join(session_ms=session_ms).answer.refusal is Refusal.MEMBER_ID_NEEDED


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_too_short_or_long_is_refused(session_ms: int) -> None:
    asked = ClassicTown().join("m", session_ms=session_ms)
    assert asked.answer == Joined("m", refusal=Refusal.BAD_SESSION_TIMEOUT)


@pytest.mark.parametrize(
    "changes",
    [{"kind": "connect"}, {"offers": (Offer("roundrobin", b""),)}, {"offers": ()}],
    ids=["another kind", "no protocol in common", "no protocol at all"],
)
def test_a_member_that_has_nothing_in_common_with_the_others_is_refused(changes: dict[str, Any]) -> None:
    town = ClassicTown()
    town.stable()
    assert town.join(**changes).answer.refusal is Refusal.INCONSISTENT_PROTOCOL
    assert town.is_in(State.STABLE)


@pytest.mark.parametrize("changes", [{"kind": ""}, {"offers": ()}])
def test_an_empty_group_takes_nobody_without_a_kind_or_a_protocol(changes: dict[str, Any]) -> None:
    assert ClassicTown().join(**changes).answer.refusal is Refusal.INCONSISTENT_PROTOCOL


def test_an_unknown_member_is_told_to_begin_anew() -> None:
    town = ClassicTown()
    assert town.join("nobody").answer == Joined("nobody", refusal=Refusal.UNKNOWN_MEMBER)
    town.stable()
    assert town.join("nobody").answer.refusal is Refusal.UNKNOWN_MEMBER


def test_a_full_group_takes_nobody_else() -> None:
    town = ClassicTown(members_max=2)
    members = town.stable(2)
    assert town.join().answer == Joined("", refusal=Refusal.GROUP_FULL)
    assert town.join(members[0]).answers == []  # the leader may rebalance, and everybody else may come back
    assert town.join(members[1]).answer.generation == 3


def test_no_more_join_a_generation_than_it_may_have_members() -> None:
    town = ClassicTown(members_max=2)
    first, second = town.stable(2)
    waiting = town.join(first)
    assert town.leave(Leaver(second)) == [None]
    assert waiting.answer.generation == 3
    third, asked = town.enter()
    assert town.join().answer.refusal is Refusal.MEMBER_ID_NEEDED  # one place is left while the first is not back
    town.join(first)
    assert town.join().answer.refusal is Refusal.GROUP_FULL
    assert not asked.is_answered
    assert town.join(third).answers == []  # who waits may ask again


def test_no_more_ids_are_given_than_there_may_be_members() -> None:
    town = ClassicTown(members_max=2)
    town.join()
    town.join()
    assert town.join().answer.refusal is Refusal.GROUP_FULL


def test_the_protocol_is_the_one_that_most_like_best_of_those_that_all_have() -> None:
    town = ClassicTown()
    a, b, c = Offer("a", b"a"), Offer("b", b"b"), Offer("c", b"c")
    one, _ = town.enter(offers=(a, b, c))
    two, _ = town.enter(offers=(c, b))
    town.join(one, offers=(a, b, c))
    assert town.group.protocol == "b"  # one prefers a, which two has not: then b; two votes for c: a draw, first wins
    town.settle(one, two)
    town.enter(offers=(c, b))
    town.join(one, offers=(a, b, c))
    town.join(two, offers=(c, b))
    assert town.group.protocol == "c"


def test_a_protocol_that_is_offered_twice_counts_once() -> None:
    town = ClassicTown()
    x, y = Offer("x", b""), Offer("y", b"")
    one, _ = town.enter(offers=(x, x, y))
    _two, asked = town.enter(offers=(y, y))
    town.join(one, offers=(x, y, y))
    assert asked.answer.protocol == "y"


# From state to state


def test_a_join_makes_all_join_again_and_begins_a_generation_when_they_have() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    second, asked = town.enter()
    assert town.is_in(State.PREPARING)
    assert not asked.is_answered
    assert town.heartbeat(first) is Refusal.REBALANCING
    again = town.join(first)
    assert (asked.answer.generation, again.answer.generation) == (2, 2)
    assert town.is_in(State.COMPLETING)
    assert second in town.group.members


def test_members_that_do_not_join_again_in_time_are_dropped() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    _third, asked = town.enter()
    town.join(first)
    town.outlast(REBALANCE_S, second)
    assert asked.answer.generation == 3
    assert set(town.group.members) == {first, _third}
    assert town.heartbeat(second) is Refusal.UNKNOWN_MEMBER


def test_an_id_given_to_somebody_is_waited_for_before_a_generation_begins() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    named = town.join().answer.member
    again = town.join(first)
    assert not again.is_answered
    joined = town.join(named)
    assert again.answer.generation == joined.answer.generation == 2


def test_a_leader_that_joins_again_makes_everybody_join_again() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    asked = town.join(first)
    assert town.is_in(State.PREPARING)
    follower = town.join(second)
    assert asked.answer.generation == follower.answer.generation == 3


def test_a_follower_that_joins_again_unchanged_is_told_what_it_may_have_missed() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    asked = town.join(second)
    assert asked.answer == Joined(second, 2, first, "consumer", "range")
    assert town.is_in(State.STABLE)


def test_a_follower_that_has_changed_makes_everybody_join_again() -> None:
    town = ClassicTown()
    _first, second = town.stable(2)
    town.join(second, offers=(Offer("range", b"something else", frozenset({"u"})),))
    assert town.is_in(State.PREPARING)


def test_while_shares_are_awaited_an_unchanged_member_is_told_again_and_a_changed_one_rebalances() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    assert town.join(first).answer.generation == 1
    assert town.is_in(State.COMPLETING)
    changed = town.join(first, offers=(Offer("range", b"something else"),))
    assert changed.answer.generation == 2


def test_a_member_that_joins_while_shares_are_awaited_sends_those_who_wait_back() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    town.join(first)
    town.join(second)
    waiting = town.sync(second)
    assert not waiting.is_answered
    town.enter()
    assert waiting.answer == Synced(refusal=Refusal.REBALANCING)
    assert town.is_in(State.PREPARING)


def test_who_asks_twice_for_the_same_member_is_answered_twice() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    early, late = town.join(first), town.join(first)
    assert early.answer == Joined(first, refusal=Refusal.REBALANCING)
    assert not late.is_answered
    town.join(second)
    assert late.answer.generation == 3
    first_sync, second_sync = town.sync(second), town.sync(second)
    assert first_sync.answer.refusal is Refusal.REBALANCING
    town.sync(first)
    assert second_sync.answer.refusal is None


def test_the_first_generation_waits_for_more_members_while_they_keep_coming() -> None:
    town = ClassicTown(first_rebalance_delay_ms=3_000)
    _, one = town.enter()
    town.wait(2)
    _, two = town.enter()
    town.wait(1)
    assert not one.is_answered  # one more came during the wait, so it is waited again
    town.wait(3)
    assert one.answer.generation == two.answer.generation == 1


def test_the_first_generation_waits_no_longer_than_a_rebalance_may_take() -> None:
    town = ClassicTown(first_rebalance_delay_ms=3_000)
    asked = [town.enter(rebalance_ms=10_000)[1]]
    for _ in range(4):
        town.wait(2.5)
        asked.append(town.enter(rebalance_ms=10_000)[1])
    assert asked[0].answer.generation == 1
    assert town.group.generation == 1


def test_a_first_member_that_leaves_during_the_wait_leaves_an_empty_group() -> None:
    town = ClassicTown(first_rebalance_delay_ms=3_000)
    member, asked = town.enter()
    assert town.leave(Leaver(member)) == [None]
    assert asked.answer.refusal is Refusal.UNKNOWN_MEMBER
    town.wait(3)
    assert town.is_in(State.EMPTY)


def test_a_group_that_everybody_left_is_empty_and_at_another_generation() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    town.wait(1)
    assert town.leave(Leaver(first), Leaver(second)) == [None, None]
    assert (town.group.state, town.group.generation, town.group.emptied_ms) == (State.EMPTY, 3, START_MS + 1000)
    assert town.group.protocol is None
    assert len(town.alarms) == 0


def test_generations_go_on_after_a_group_was_empty() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    town.leave(Leaver(first))
    _, asked = town.enter()
    assert asked.answer.generation == 3
    assert town.group.emptied_ms is None


def test_an_impossible_change_of_state_raises() -> None:
    town = ClassicTown()
    with pytest.raises(RuntimeError, match="cannot become stable"):
        town.group._become(State.STABLE, town.at)
    assert set(TRANSITIONS) == set(State)


# Shares


def test_members_wait_for_their_shares_until_the_leader_brings_them() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    second, _ = town.enter()
    town.join(first)
    follower = town.sync(second)
    assert not follower.is_answered
    leader = town.sync(first, shares={first: Share(b"one"), second: Share(b"two")})
    assert leader.answer == Synced(b"one", "consumer", "range")
    assert follower.answer == Synced(b"two", "consumer", "range")
    assert town.is_in(State.STABLE)
    assert town.sync(second).answer.data == b"two"  # again, as often as it likes


def test_a_member_whom_the_leader_forgot_gets_nothing() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    second, _ = town.enter()
    town.join(first)
    town.sync(first, shares={first: Share(b"one")})
    assert town.sync(second).answer == Synced(b"", "consumer", "range")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"member": "nobody"}, Refusal.UNKNOWN_MEMBER),
        ({"generation": 7}, Refusal.ILLEGAL_GENERATION),
        ({"kind": "connect"}, Refusal.INCONSISTENT_PROTOCOL),
        ({"protocol": "sticky"}, Refusal.INCONSISTENT_PROTOCOL),
    ],
)
def test_a_share_is_given_only_to_members_of_this_generation(changes: dict[str, object], refusal: Refusal) -> None:
    town = ClassicTown()
    (first,) = town.stable()
    assert town.sync(**{"member": first, **changes}).answer == Synced(refusal=refusal)  # type: ignore[arg-type]


def test_no_share_is_given_while_members_join() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    town.enter()
    assert town.sync(first).answer.refusal is Refusal.REBALANCING


def test_members_that_do_not_ask_for_their_share_in_time_are_dropped() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    second, _ = town.enter()
    town.join(first)
    waiting = town.sync(second)
    town.outlast(REBALANCE_S, first)
    assert set(town.group.members) == {second}
    assert waiting.answer.refusal is Refusal.REBALANCING
    assert town.is_in(State.PREPARING)


def test_a_stable_group_drops_who_never_asked_for_its_share() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    second, _ = town.enter()
    town.join(first)
    town.sync(first)
    town.outlast(REBALANCE_S, first, second)
    assert set(town.group.members) == {first}
    assert town.is_in(State.PREPARING)


def test_a_group_stays_stable_once_everybody_has_its_share() -> None:
    town = ClassicTown()
    members = town.stable(2)
    town.outlast(REBALANCE_S * 2, *members)
    assert town.is_in(State.STABLE)
    assert town.group.generation == 2


def test_who_reads_a_partition_is_known_from_the_shares() -> None:
    town = ClassicTown()
    first, _ = town.enter()
    second, _ = town.enter(client=Client("other", "10.0.0.2"))
    town.join(first)
    share = Share(b"", frozenset({Partition("t", 0)}))
    town.sync(first, shares={second: share})
    reader = town.group.reader(Partition("t", 0))
    assert reader is not None
    assert reader.client == Client("other", "10.0.0.2")
    assert town.group.reader(Partition("t", 1)) is None
    town.leave(Leaver(second))
    assert town.group.reader(Partition("t", 0)) is None


# Sessions


def test_heartbeats_keep_a_member() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    for _ in range(5):
        town.wait(SESSION_S * 0.9)
        assert town.heartbeat(first) is None
    town.wait(SESSION_S)
    assert town.heartbeat(first) is Refusal.UNKNOWN_MEMBER
    assert town.is_in(State.EMPTY)


@pytest.mark.parametrize(
    ("member", "generation", "refusal"),
    [("nobody", 1, Refusal.UNKNOWN_MEMBER), ("app-id1", 0, Refusal.ILLEGAL_GENERATION)],
)
def test_a_heartbeat_of_somebody_else_is_refused(member: str, generation: int, refusal: Refusal) -> None:
    town = ClassicTown()
    town.stable()
    assert town.heartbeat(member, generation) is refusal


def test_heartbeats_are_taken_while_shares_are_awaited() -> None:
    town = ClassicTown()
    member, _ = town.enter()
    assert town.is_in(State.COMPLETING)
    assert town.heartbeat(member) is None


def test_the_others_go_on_when_a_member_is_gone() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    town.wait(SESSION_S / 2)
    town.heartbeat(first)
    town.wait(SESSION_S / 2)
    assert set(town.group.members) == {first}
    assert town.heartbeat(first) is Refusal.REBALANCING
    assert town.join(first).answer.generation == 3
    assert town.heartbeat(second) is Refusal.UNKNOWN_MEMBER


def test_a_member_that_waits_for_the_others_needs_no_heartbeat() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    again = town.join(first)
    town.heartbeat(second)
    for _ in range(8):
        town.wait(SESSION_S * 0.6)
        town.heartbeat(second)
    assert not again.is_answered
    town.join(second)
    assert again.answer.generation == 3
    waiting = town.sync(second)
    for _ in range(5):
        town.wait(SESSION_S * 0.6)
        town.heartbeat(first)
    town.sync(first)
    assert waiting.answer.refusal is None


def test_a_member_that_waited_in_vain_has_a_session_again() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    town.join(first)
    town.join(second)
    waiting = town.sync(second)
    town.outlast(SESSION_S * 2, first)
    town.enter()
    assert waiting.answer.refusal is Refusal.REBALANCING
    town.outlast(SESSION_S, first)
    assert second not in town.group.members
    assert first in town.group.members


def test_a_new_member_is_sent_away_when_the_others_take_too_long() -> None:
    town = ClassicTown(new_member_ms=20_000)
    (first,) = town.stable()
    member, asked = town.enter()
    town.outlast(20, first)
    assert asked.answer == Joined("", refusal=Refusal.UNKNOWN_MEMBER)
    assert member not in town.group.members


def test_the_last_one_missing_is_gone_and_the_generation_begins() -> None:
    town = ClassicTown()
    first, _second = town.stable(2)
    again = town.join(first)
    town.wait(SESSION_S)
    assert again.answer.generation == 3
    assert set(town.group.members) == {first}


def test_a_leader_that_is_gone_has_a_successor() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    assert town.leave(Leaver(first)) == [None]
    again = town.join(second)
    assert again.answer.leader == second
    assert [peer.member for peer in again.answer.peers] == [second]


def test_a_leader_that_does_not_come_back_in_time_has_a_successor() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    town.join(second, offers=(Offer("range", b"changed", frozenset({"t"})),))
    town.outlast(REBALANCE_S, first)
    assert (town.group.roll.leader, town.group.generation) == (second, 3)


# Leaving


def test_each_leaver_is_answered_for_itself() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    named = town.join().answer.member
    answers = town.leave(Leaver(first), Leaver("nobody"), Leaver(named), Leaver("", "nowhere"), Leaver(""))
    assert answers == [None, Refusal.UNKNOWN_MEMBER, None, Refusal.UNKNOWN_MEMBER, Refusal.UNKNOWN_MEMBER]
    assert town.is_in(State.EMPTY)


def test_a_leaver_unknown_to_the_group_changes_nothing() -> None:
    town = ClassicTown()
    town.stable()
    town.leave(Leaver("nobody"))
    assert town.is_in(State.STABLE)


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    joining = town.join(first)
    town.leave(Leaver(first))
    assert joining.answer.refusal is Refusal.UNKNOWN_MEMBER
    town.join(second)
    third, _ = town.enter()
    town.join(second)
    syncing = town.sync(third)
    town.leave(Leaver(third))
    assert syncing.answer.refusal is Refusal.UNKNOWN_MEMBER


def test_the_last_one_missing_leaves_and_the_generation_begins() -> None:
    town = ClassicTown()
    first, second = town.stable(2)
    again = town.join(first)
    town.leave(Leaver(second))
    assert again.answer.generation == 3


def test_a_named_one_that_leaves_is_not_waited_for() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    named = town.join().answer.member
    again = town.join(first)
    assert not again.is_answered
    town.leave(Leaver(named))
    assert again.answer.generation == 2


# Topics and commits


def test_the_topics_that_members_want_are_known_unless_one_does_not_tell() -> None:
    town = ClassicTown()
    first, _ = town.enter(topics=frozenset({"t"}))
    second, _ = town.enter(topics=frozenset({"u"}))
    town.join(first, topics=frozenset({"t"}))
    assert town.group.topics == frozenset({"t", "u"})
    assert (town.group.wants("u"), town.group.wants("v")) == (True, False)
    town.join(second, topics=None)
    town.join(first, topics=frozenset({"t"}))
    assert town.group.topics is None
    assert town.group.wants("v")  # for all that is known
    town.leave(Leaver(first), Leaver(second))
    assert not town.group.wants("t")


def test_a_group_of_another_kind_reads_no_topics() -> None:
    town = ClassicTown()
    town.join(takes_id=False, kind="connect", reads_topics=False)
    assert town.group.topics is None
    assert not town.group.wants("t")


def test_an_empty_group_lets_anybody_commit() -> None:
    town = ClassicTown()
    town.group.check_commit(NO_MEMBER, False, town.at)
    town.group.check_commit(GroupMember(-1, "somebody"), False, town.at)


@pytest.mark.parametrize(
    ("who", "refusal"),
    [
        (NO_MEMBER, Refusal.UNKNOWN_MEMBER),
        (GroupMember(1, "nobody"), Refusal.UNKNOWN_MEMBER),
        (GroupMember(-1, "app-id1"), Refusal.ILLEGAL_GENERATION),
        (GroupMember(0, "app-id1"), Refusal.ILLEGAL_GENERATION),
        (GroupMember(1, "app-id1", "nowhere"), Refusal.UNKNOWN_MEMBER),
        (GroupMember(1, ""), Refusal.UNKNOWN_MEMBER),
    ],
)
def test_only_members_of_this_generation_commit(who: GroupMember, refusal: Refusal) -> None:
    town = ClassicTown()
    town.stable()
    with pytest.raises(Refused) as caught:
        town.group.check_commit(who, False, town.at)
    assert caught.value.reason is refusal


def test_a_transaction_commits_without_a_member_and_while_shares_are_awaited() -> None:
    town = ClassicTown()
    member, _ = town.enter()
    town.group.check_commit(NO_MEMBER, True, town.at)
    town.group.check_commit(GroupMember(1, member), True, town.at)
    with pytest.raises(Refused) as caught:
        town.group.check_commit(GroupMember(1, member), False, town.at)
    assert caught.value.reason is Refusal.REBALANCING
    with pytest.raises(Refused):
        town.group.check_commit(GroupMember(0, member), True, town.at)


def test_members_commit_while_the_others_join_again_and_are_kept_by_it() -> None:
    town = ClassicTown()
    (first,) = town.stable()
    town.enter()
    for _ in range(4):
        town.wait(SESSION_S * 0.9)
        town.group.check_commit(GroupMember(1, first), False, town.at)
    assert first in town.group.members


# The end


def test_a_deleted_group_has_no_deadlines() -> None:
    town = ClassicTown()
    town.join()
    town.group.die(town.at)
    assert town.is_in(State.DEAD)
    assert len(town.alarms) == 0
