"""Static members: one that comes again takes its place and keeps its share."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.groups.classic import State
from penstock.broker.groups.questions import Joined, Leaver, Offer, Peer, Share, Synced
from penstock.broker.refusals import Refusal
from tests.broker.groups.kit import REBALANCE_MS, SESSION_MS, ClassicTown

SESSION_S, REBALANCE_S = SESSION_MS / 1000, REBALANCE_MS / 1000


def two_statics(town: ClassicTown) -> tuple[str, str]:
    """A stable group of two: the leader of instance a, and b."""
    a = town.join(instance="a").answer.member
    asked = town.join(instance="b")
    town.join(a, instance="a")
    b = asked.answer.member
    town.sync(b, instance="b")
    town.sync(a, instance="a", shares={a: Share(b"for a"), b: Share(b"for b")})
    assert town.is_in(State.STABLE)
    return a, b


def test_a_static_member_needs_no_second_join() -> None:
    town = ClassicTown()
    joined = town.join(instance="a").answer
    assert joined == Joined("a-id1", 1, "a-id1", "consumer", "range", (Peer("a-id1", "a", b"about me"),))


def test_a_follower_that_comes_again_keeps_its_share_without_a_rebalance() -> None:
    town = ClassicTown()
    a, b = two_statics(town)
    again = town.join(instance="b").answer
    assert again == Joined("b-id3", 2, a, "consumer", "range")
    assert town.is_in(State.STABLE)
    assert town.sync("b-id3", instance="b").answer.data == b"for b"
    assert town.heartbeat(b, instance="b") is Refusal.FENCED_INSTANCE
    assert town.heartbeat(b) is Refusal.UNKNOWN_MEMBER
    assert town.heartbeat("b-id3", instance="b") is None


def test_a_leader_that_comes_again_is_told_to_share_nothing_out() -> None:
    town = ClassicTown()
    _a, b = two_statics(town)
    again = town.join(instance="a").answer
    assert again.leader == again.member == "a-id3"
    assert again.skip_assignment
    assert {peer.member for peer in again.peers} == {b, "a-id3"}
    assert town.is_in(State.STABLE)


def test_a_leader_of_an_older_kind_is_told_that_its_predecessor_leads() -> None:
    town = ClassicTown()
    a, _b = two_statics(town)
    again = town.join(instance="a", skips_assignment=False).answer
    assert (again.member, again.leader, again.peers, again.skip_assignment) == ("a-id3", a, (), False)
    assert town.group.roll.leader == "a-id3"


def test_one_that_comes_again_with_another_protocol_rebalances() -> None:
    town = ClassicTown()
    x, y = Offer("x", b""), Offer("y", b"")
    a = town.join(instance="a", offers=(x, y)).answer.member
    town.sync(a, instance="a")
    assert town.group.protocol == "x"
    again = town.join(instance="a", offers=(y, x))
    assert (again.answer.generation, again.answer.protocol) == (2, "y")


def test_one_that_comes_again_while_shares_are_awaited_rebalances() -> None:
    town = ClassicTown()
    town.join(instance="a")
    assert town.is_in(State.COMPLETING)
    again = town.join(instance="a")
    assert again.answer.generation == 2


def test_who_waits_under_the_old_id_is_fenced() -> None:
    town = ClassicTown()
    a, b = two_statics(town)
    waiting = town.join(a, instance="a")
    again = town.join(instance="a")
    assert waiting.answer == Joined(a, refusal=Refusal.FENCED_INSTANCE)
    town.join(b, instance="b")
    assert again.answer.generation == 3
    syncing = town.sync(b, instance="b")
    town.join(instance="b")
    assert syncing.answer == Synced(refusal=Refusal.FENCED_INSTANCE)


@pytest.mark.parametrize("how", ["join", "sync", "leave"])
def test_the_old_id_cannot_speak_for_the_instance(how: str) -> None:
    town = ClassicTown()
    a, _b = two_statics(town)
    town.join(instance="a")
    ways: dict[str, Any] = {
        "join": lambda: town.join(a, instance="a").answer.refusal,
        "sync": lambda: town.sync(a, instance="a").answer.refusal,
        "leave": lambda: town.leave(Leaver(a, "a"))[0],
    }
    assert ways[how]() is Refusal.FENCED_INSTANCE


def test_a_static_member_that_joins_late_is_waited_for_until_its_session_is_over() -> None:
    town = ClassicTown()
    a, b = two_statics(town)
    _new, asked = town.enter()
    town.join(a, instance="a")
    town.outlast(REBALANCE_S, b, instance="b")
    assert asked.answer.generation == 3
    assert b in town.group.members  # though it has not joined again
    town.wait(SESSION_S)
    assert b not in town.group.members


def test_when_only_absent_static_members_are_left_the_generation_waits_for_one() -> None:
    town = ClassicTown()
    a, b = two_statics(town)
    town.leave(Leaver(b, "b"))
    town.outlast(REBALANCE_S + 10, a, instance="a")
    assert (town.group.state, town.group.generation) == (State.PREPARING, 2)
    assert town.join(a, instance="a").answer.generation == 3


def test_a_member_that_comes_to_absent_static_ones_waits_no_longer_than_a_rebalance() -> None:
    town = ClassicTown()
    a, b = two_statics(town)
    town.leave(Leaver(b, "b"))
    town.outlast(REBALANCE_S + 5, a, instance="a")
    _new, asked = town.enter()
    assert not asked.is_answered
    town.outlast(REBALANCE_S, a, instance="a")
    assert asked.answer.generation == 3
    assert asked.answer.leader == _new


def test_a_static_leader_that_is_away_has_a_successor() -> None:
    town = ClassicTown()
    a, b = two_statics(town)
    _new, asked = town.enter()
    again = town.join(b, instance="b")
    town.outlast(REBALANCE_S, a, instance="a")
    assert a in town.group.members
    assert asked.answer.leader == again.answer.leader == b
    assert {peer.member for peer in again.answer.peers} == {a, b, _new}


def test_a_static_member_leaves_by_its_instance_alone() -> None:
    town = ClassicTown()
    _a, b = two_statics(town)
    assert town.leave(Leaver("", "a")) == [None]
    assert set(town.group.members) == {b}
    assert town.join(instance="a").answers == []  # a new member now, which waits for the others


def test_an_instance_unknown_to_the_group_is_refused() -> None:
    town = ClassicTown()
    a, _b = two_statics(town)
    assert town.heartbeat(a, instance="z") is Refusal.UNKNOWN_MEMBER
    assert town.join(a, instance="z").answer.refusal is Refusal.UNKNOWN_MEMBER


def test_one_that_comes_again_during_a_rebalance_counts_as_joined() -> None:
    town = ClassicTown()
    a, _b = two_statics(town)
    _new, asked = town.enter()
    town.join(a, instance="a")
    again = town.join(instance="b")
    assert again.answer.generation == asked.answer.generation == 3
