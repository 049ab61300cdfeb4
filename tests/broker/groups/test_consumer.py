"""A group whose partitions the broker shares out: joining, moving partitions, leaving, fencing."""

from __future__ import annotations

import pytest

from penstock.broker.groups.consumer import State
from penstock.broker.groups.questions import LEAVING, RETURNING, Beaten, Client
from penstock.broker.groups.standing import Progress
from penstock.broker.refusals import Refusal, Refused
from penstock.wire.protocol import NO_MEMBER, GroupMember, Partition
from tests.broker.groups.kit import REBALANCE_MS, START_MS, ConsumerTown, Reader, settle_readers

SESSION_S, REBALANCE_S = 45.0, REBALANCE_MS / 1000


# Joining


def test_the_first_member_is_given_everything_at_once() -> None:
    town = ConsumerTown()
    t = town.make("t", 2)
    assert town.join("m1", "t") == Beaten("m1", 1, 5_000, frozenset({(t, 0), (t, 1)}))
    assert town.is_in(State.STABLE)


def test_a_member_without_an_id_is_given_one() -> None:
    town = ConsumerTown()
    assert town.join("", "t").member == "id1"
    assert set(town.group.members) == {"id1"}


def test_a_member_of_a_topic_that_is_not_there_waits_for_it() -> None:
    town = ConsumerTown()
    reader = Reader(town, "m1", "t")
    assert (reader.epoch, reader.owned) == (1, frozenset())
    t = town.make("t", 1)
    assert reader.beat() == Beaten("m1", 2, 5_000, frozenset({(t, 0)}))


def test_assignments_are_told_when_they_changed_or_everything_was_told() -> None:
    town = ConsumerTown()
    town.make("t", 1)
    reader = Reader(town, "m1", "t")
    assert reader.beat(owned=None).assigned is None
    assert reader.beat().assigned is None
    everything = reader.beat(rebalance_ms=1, topics=frozenset({"t"}))
    assert everything.assigned == reader.owned
    assert reader.beat(rebalance_ms=1, pattern="").assigned == reader.owned


def test_a_full_group_takes_nobody_else() -> None:
    town = ConsumerTown(members_max=1)
    reader = Reader(town, "m1", "t")
    assert town.refusal("m2", 0, topics=frozenset({"t"})) is Refusal.GROUP_FULL
    reader.beat()


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [({"assignor": "magic"}, Refusal.UNSUPPORTED_ASSIGNOR), ({"pattern": "("}, Refusal.BAD_PATTERN)],
)
def test_a_refused_heartbeat_changes_nothing(changes: dict[str, str], refusal: Refusal) -> None:
    town = ConsumerTown()
    assert town.refusal("m1", 0, topics=frozenset({"t"}), **changes) is refusal
    assert (town.group.members, town.group.epoch, len(town.alarms)) == ({}, 0, 0)
    reader = Reader(town, "m1", "t")
    assert town.refusal("m1", reader.epoch, topics=frozenset({"u"}), **changes) is refusal
    assert town.group.members["m1"].wish.topics == {"t"}


# Moving partitions


def test_a_partition_goes_to_its_new_reader_only_when_the_old_one_has_let_go() -> None:
    town = ConsumerTown()
    t = town.make("t", 2)
    one = Reader(town, "m1", "t")
    two = Reader(town, "m2", "t")
    assert (two.epoch, two.owned) == (2, frozenset())
    assert two.beat().assigned is None
    assert town.is_in(State.RECONCILING)

    answer = one.beat(owned=None)
    assert (answer.epoch, len(answer.assigned or ())) == (1, 1)
    assert two.beat().assigned is None  # m1 was told, and has not said yet that it has let go

    assert one.beat().epoch == 2
    assert two.beat().assigned == frozenset({(t, 0), (t, 1)}) - one.owned
    assert town.is_in(State.STABLE)


def test_a_member_that_says_nothing_may_still_read_what_it_should_not() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    one = Reader(town, "m1", "t")
    two = Reader(town, "m2", "t")
    one.beat()
    for _ in range(3):
        assert one.beat(owned=None).epoch == 1
    assert two.beat().assigned is None
    assert one.beat().epoch == 2


def test_a_member_that_does_not_let_go_in_time_is_put_out() -> None:
    town = ConsumerTown()
    t = town.make("t", 2)
    one = Reader(town, "m1", "t")
    two = Reader(town, "m2", "t")
    had = one.owned
    town.beat("m1", 1, owned=had)
    for _ in range(2):
        town.wait(REBALANCE_S / 2)
        two.beat()
        if "m1" in town.group.members:
            town.beat("m1", 1, owned=had)
    town.wait(1)
    assert set(town.group.members) == {"m2"}
    assert town.refusal("m1", 1, owned=had) is Refusal.UNKNOWN_MEMBER
    two.beat()
    assert two.owned == {(t, 0), (t, 1)}


def test_a_member_that_lets_go_in_time_stays() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    one, two = Reader(town, "m1", "t"), Reader(town, "m2", "t")
    town.beat("m1", 1, owned=one.owned)
    for _ in range(5):
        town.wait(REBALANCE_S * 0.15)
        town.beat("m1", one.epoch, owned=one.owned)
        two.beat()
    one.owned = town.group.members["m1"].standing.assigned
    for _ in range(5):
        one.beat()
        two.beat()
        town.wait(REBALANCE_S * 0.5)
    assert set(town.group.members) == {"m1", "m2"}


def test_a_member_may_take_back_what_it_was_to_let_go_of() -> None:
    town = ConsumerTown()
    t = town.make("t", 2)
    one = Reader(town, "m1", "t")
    Reader(town, "m2", "t")
    had = one.owned
    town.beat("m1", 1, owned=had)
    assert town.group.members["m1"].standing.progress is Progress.UNREVOKED
    town.beat("m2", LEAVING)
    answer = town.beat("m1", 1, owned=frozenset())
    assert (answer.epoch, answer.assigned) == (3, frozenset({(t, 0), (t, 1)}))


def test_three_members_come_to_rest_with_two_partitions_each() -> None:
    town = ConsumerTown()
    town.make("t", 6)
    readers = [Reader(town, name, "t") for name in ("m1", "m2", "m3")]
    settle_readers(*readers)
    assert [len(reader.owned) for reader in readers] == [2, 2, 2]
    assert len(frozenset().union(*(reader.owned for reader in readers))) == 6
    assert {reader.epoch for reader in readers} == {3}


def test_new_partitions_and_deleted_topics_are_noticed() -> None:
    town = ConsumerTown()
    t, u = town.make("t", 1), town.make("u", 1)
    reader = Reader(town, "m1", "t", "u")
    town.grow("t", 3)
    assert reader.beat().assigned == frozenset({(t, 0), (t, 1), (t, 2), (u, 0)})
    town.drop("u")
    assert reader.beat().assigned == frozenset({(t, 0), (t, 1), (t, 2)})
    assert reader.beat().epoch == 3


def test_a_topic_that_is_created_again_is_another_one() -> None:
    town = ConsumerTown()
    before = town.make("t", 1)
    reader = Reader(town, "m1", "t")
    town.drop("t")
    after = town.make("t", 1)
    assert before != after
    settle_readers(reader)
    assert reader.owned == {(after, 0)}


def test_topics_that_nobody_wants_change_nothing() -> None:
    town = ConsumerTown()
    town.make("t", 1)
    reader = Reader(town, "m1", "t")
    town.make("other", 1)
    assert reader.beat().epoch == 1


def test_a_member_that_wants_other_topics_gets_those() -> None:
    town = ConsumerTown()
    town.make("t", 1)
    u = town.make("u", 1)
    reader = Reader(town, "m1", "t")
    reader.beat(topics=frozenset({"u"}))
    settle_readers(reader)
    assert reader.owned == {(u, 0)}


# Patterns


def test_a_pattern_is_the_topics_that_match_it_now_and_later() -> None:
    town = ConsumerTown()
    t1 = town.make("logs-1", 1)
    town.make("other", 1)
    reader = Reader(town, "m1", pattern="logs-.*")
    assert reader.owned == {(t1, 0)}
    t2 = town.make("logs-2", 1)
    assert reader.beat().assigned == frozenset({(t1, 0), (t2, 0)})
    town.drop("logs-1")
    settle_readers(reader)
    assert reader.owned == {(t2, 0)}


def test_a_pattern_can_be_changed_and_taken_back() -> None:
    town = ConsumerTown()
    a, b = town.make("a", 1), town.make("b", 1)
    reader = Reader(town, "m1", "b", pattern="a")
    assert reader.owned == {(a, 0), (b, 0)}
    reader.beat(pattern="")
    settle_readers(reader)
    assert reader.owned == {(b, 0)}
    reader.beat(pattern="a|x")
    settle_readers(reader)
    assert reader.owned == {(a, 0), (b, 0)}
    town.beat("m1", LEAVING)
    assert repr(town.watch) == "<TopicWatch of 0 patterns, 0 unfinished>"


# Assignors


def test_the_assignor_is_the_one_that_most_name() -> None:
    town = ConsumerTown()
    t = town.make("t", 4)
    one, two = Reader(town, "m1", "t", assignor="range"), Reader(town, "m2", "t")
    settle_readers(one, two)
    assert town.group.assignor == "range"
    assert one.owned == {(t, 0), (t, 1)}
    readers = [one, two, *(Reader(town, name, "t", assignor="uniform") for name in ("m3", "m4"))]
    settle_readers(*readers)
    assert town.group.assignor == "uniform"


# Epochs


@pytest.mark.parametrize("epoch", [2, 99])
def test_an_epoch_that_is_ahead_is_fenced(epoch: int) -> None:
    town = ConsumerTown()
    Reader(town, "m1", "t")
    assert town.refusal("m1", epoch, owned=frozenset()) is Refusal.FENCED_MEMBER_EPOCH


def test_an_epoch_that_is_one_behind_is_taken_from_one_who_missed_the_answer() -> None:
    town = ConsumerTown()
    t = town.make("t", 1)
    reader = Reader(town, "m1", "t")
    before = reader.owned
    town.grow("t", 2)
    reader.beat()
    assert reader.epoch == 2
    assert town.refusal("m1", 1) is Refusal.FENCED_MEMBER_EPOCH  # it does not say what it reads
    assert town.refusal("m1", 1, owned=frozenset({(t, 7)})) is Refusal.FENCED_MEMBER_EPOCH
    assert town.refusal("m1", 3, owned=before) is Refusal.FENCED_MEMBER_EPOCH
    assert town.beat("m1", 1, owned=before).epoch == 2
    assert town.beat("m1", 1, owned=reader.owned).epoch == 2
    town.grow("t", 3)
    reader.beat()
    assert town.refusal("m1", 1, owned=before) is Refusal.FENCED_MEMBER_EPOCH


def test_a_member_that_joins_again_is_given_back_what_it_had() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    reader = Reader(town, "m1", "t")
    again = town.join("m1", "t")
    assert (again.epoch, again.assigned) == (1, reader.owned)


def test_an_unknown_member_is_told_to_join() -> None:
    town = ConsumerTown()
    assert town.refusal("m1", 1) is Refusal.UNKNOWN_MEMBER
    assert town.refusal("m1", LEAVING) is Refusal.UNKNOWN_MEMBER


# Sessions and leaving


def test_a_member_that_does_not_come_by_is_put_out() -> None:
    town = ConsumerTown()
    t = town.make("t", 2)
    one = Reader(town, "m1", "t")
    two = Reader(town, "m2", "t")
    settle_readers(one, two)
    town.wait(SESSION_S / 2)
    two.beat()
    town.wait(SESSION_S / 2)
    assert set(town.group.members) == {"m2"}
    assert town.is_in(State.ASSIGNING)
    assert two.beat().assigned == frozenset({(t, 0), (t, 1)})


def test_a_member_that_leaves_leaves_its_partitions() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    one = Reader(town, "m1", "t")
    town.wait(3)
    assert town.beat("m1", LEAVING) == Beaten("m1", LEAVING)
    assert (town.group.state, town.group.epoch, town.group.emptied_ms) == (State.EMPTY, 2, START_MS + 3000)
    assert len(town.alarms) == 0
    two = Reader(town, "m2", "t")
    assert two.owned == one.owned
    assert town.group.emptied_ms is None


def test_epochs_go_on_where_they_were() -> None:
    town = ConsumerTown()
    town.make("t", 1)
    town.group.restore(41, START_MS)
    reader = Reader(town, "m1", "t")
    assert (reader.epoch, len(reader.owned)) == (42, 1)


# Static members


def test_a_static_member_that_comes_back_finds_what_it_had() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    one, two = Reader(town, "m1", "t", instance="a"), Reader(town, "m2", "t", instance="b")
    settle_readers(one, two)
    assert town.beat("m1", RETURNING, instance="a") == Beaten("m1", RETURNING)
    assert two.beat().assigned is None
    back = Reader(town, "m1b", "t", instance="a")
    assert (back.owned, back.epoch) == (one.owned, 2)
    assert two.beat().assigned is None
    assert town.group.epoch == 2
    assert town.refusal("m1", 2, instance="a") is Refusal.FENCED_INSTANCE
    assert town.refusal("m1", LEAVING, instance="a") is Refusal.FENCED_INSTANCE
    assert town.refusal("m1", 2) is Refusal.UNKNOWN_MEMBER


def test_a_static_member_that_does_not_come_back_loses_its_partitions() -> None:
    town = ConsumerTown()
    t = town.make("t", 2)
    one, two = Reader(town, "m1", "t", instance="a"), Reader(town, "m2", "t")
    settle_readers(one, two)
    town.beat("m1", RETURNING, instance="a")
    for _ in range(4):
        town.wait(SESSION_S / 3)
        two.beat()
    assert set(town.group.members) == {"m2"}
    assert two.owned == {(t, 0), (t, 1)}


def test_one_that_is_back_reads_what_it_had_for_all_to_see() -> None:
    town = ConsumerTown()
    town.make("t", 1)
    Reader(town, "m1", "t", instance="a", rack="r1")
    town.beat("m1", RETURNING, instance="a")
    changes = town.group.changes
    back = Reader(town, "m2", "t", instance="a", client=Client("next", "10.0.0.9"))
    for _ in range(4):
        town.wait(SESSION_S / 2)
        back.beat(client=Client("next", "10.0.0.9"))
    reader = town.group.reader(Partition("t", 0))
    assert reader is not None
    assert (reader.id, reader.client, reader.rack) == ("m2", Client("next", "10.0.0.9"), "r1")
    assert town.group.changes > changes


def test_one_that_left_while_it_was_to_let_go_is_waited_for() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    one, two = Reader(town, "m1", "t", instance="a", rebalance_ms=10_000), Reader(town, "m2", "t")
    town.beat("m1", 1, owned=one.owned)
    town.beat("m1", RETURNING, instance="a")
    town.wait(20)
    two.beat()
    assert "m1" in town.group.members


def test_a_client_that_calls_itself_otherwise_is_noted() -> None:
    town = ConsumerTown()
    reader = Reader(town, "m1", "t")
    changes = town.group.changes
    reader.beat()
    assert town.group.changes == changes
    reader.beat(client=Client("other", "10.0.0.1"), rack="r2")
    member = town.group.members["m1"]
    assert (town.group.changes > changes, member.client.id, member.rack) == (True, "other", "r2")


def test_an_instance_is_not_given_away_before_its_member_left() -> None:
    town = ConsumerTown()
    Reader(town, "m1", "t", instance="a")
    assert town.refusal("m2", 0, instance="a", topics=frozenset({"t"})) is Refusal.UNRELEASED_INSTANCE
    town.beat("m1", LEAVING, instance="a")
    Reader(town, "m2", "t", instance="a")


def test_an_instance_unknown_to_the_group_is_refused() -> None:
    town = ConsumerTown()
    reader = Reader(town, "m1", "t", instance="a")
    assert town.refusal("m1", reader.epoch, instance="z") is Refusal.UNKNOWN_MEMBER
    reader.beat()  # without its instance, which has not changed
    reader.beat(instance="a")


def test_one_that_will_be_back_lets_go_of_what_it_was_to_let_go_of() -> None:
    town = ConsumerTown()
    town.make("t", 2)
    one = Reader(town, "m1", "t", instance="a")
    two = Reader(town, "m2", "t")
    town.beat("m1", 1, owned=one.owned)
    assert two.beat().assigned is None
    town.beat("m1", RETURNING, instance="a")
    assert len(two.beat().assigned or ()) == 1


def test_one_without_an_instance_that_says_it_will_be_back_is_gone() -> None:
    town = ConsumerTown()
    Reader(town, "m1", "t")
    assert town.beat("m1", RETURNING).epoch == RETURNING
    assert town.group.members == {}


# Committing


def test_members_commit_at_their_epoch() -> None:
    town = ConsumerTown()
    town.group.check_commit(NO_MEMBER, False)
    reader = Reader(town, "m1", "t")
    town.group.check_commit(GroupMember(reader.epoch, "m1"), False)
    town.group.check_commit(NO_MEMBER, True)


@pytest.mark.parametrize(
    ("who", "transactional", "refusal"),
    [
        (NO_MEMBER, False, Refusal.UNKNOWN_MEMBER),
        (GroupMember(1, "nobody"), False, Refusal.UNKNOWN_MEMBER),
        (GroupMember(0, "m1"), False, Refusal.STALE_MEMBER_EPOCH),
        (GroupMember(2, "m1"), True, Refusal.STALE_MEMBER_EPOCH),
    ],
)
def test_others_do_not_commit(who: GroupMember, transactional: bool, refusal: Refusal) -> None:
    town = ConsumerTown()
    Reader(town, "m1", "t")
    with pytest.raises(Refused) as caught:
        town.group.check_commit(who, transactional)
    assert caught.value.reason is refusal


def test_who_reads_a_partition_is_known() -> None:
    town = ConsumerTown()
    town.make("t", 1)
    Reader(town, "m1", "t", client=Client("other", "10.0.0.2"))
    reader = town.group.reader(Partition("t", 0))
    assert reader is not None
    assert reader.client == Client("other", "10.0.0.2")
    assert town.group.reader(Partition("t", 1)) is None
    assert town.group.reader(Partition("u", 0)) is None
    assert town.group.wants("t")
    town.beat("m1", LEAVING)
    assert not town.group.wants("t")
