"""All groups together: what lasts, what a start finds, which protocol a group has, and when nobody needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.groups.classic import ClassicGroup
from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.coordinator import CLASSIC
from penstock.broker.groups.questions import (
    LEAVING,
    Beat,
    Beaten,
    Client,
    GroupPosition,
    GroupSeen,
    Joined,
    Leaver,
    Offer,
    Offset,
    Share,
    Sync,
)
from penstock.broker.groups.settings import GROUP_TABLE, GroupSettings
from penstock.broker.refusals import Refusal, Refused
from penstock.errors import ConfigError, StorageFullError
from penstock.wire.protocol import NO_MEMBER, GroupMember, Partition
from tests.broker.groups.kit import SESSION_MS, START_MS, Asked, Town, join_question

T0, T1, U0 = Partition("t", 0), Partition("t", 1), Partition("u", 0)
DAY_S = 24 * 3600.0


class Square(Town):
    """All groups, and shorter ways to ask them."""

    def join(self, group: str = "g", member: str = "", **changes: Any) -> Asked:
        asked = Asked()
        self.groups.join(join_question(group, member, **{"takes_id": False, **changes}), asked, self.at)
        return asked

    def enter(self, group: str = "g", **changes: Any) -> Joined:
        """Be the only member of a stable group."""
        asked = self.join(group, **changes)
        self.rounds.run()
        joined: Joined = asked.answer
        partitions = changes.pop("partitions", frozenset({T0}))
        sync = Sync(group, joined.member, joined.generation, shares={joined.member: Share(b"", partitions)})
        self.groups.sync(sync, Asked(), self.at)
        return joined

    def beat(self, member: str = "m", epoch: int = 0, group: str = "g", **changes: Any) -> Asked:
        asked = Asked()
        values = {"client": Client("app", "10.0.0.1"), "rebalance_ms": 60_000, "topics": frozenset({"t"})}
        self.groups.beat(Beat(group, member, epoch, **{**values, "owned": frozenset(), **changes}), asked, self.at)
        return asked

    def reader(self, member: str = "m", group: str = "g") -> Beaten:
        asked = self.beat(member, group=group)
        self.rounds.run()
        answer: Beaten = asked.answer
        return answer

    def commit(self, group: str = "g", who: GroupMember = NO_MEMBER, **positions: int) -> Asked:
        asked = Asked()
        offsets = {Partition(it[0], int(it[1])): Offset(n, -1, "", self.wall_ms) for it, n in positions.items()}
        self.groups.commit(group, who, offsets, asked, self.at)
        return asked

    def fetch(self, group: str = "g", *partitions: Partition, **changes: Any) -> Asked:
        asked = Asked()
        self.groups.fetch(group, partitions or None, asked, **changes)
        return asked

    def positions(self, group: str = "g") -> dict[Partition, int]:
        return {partition: offset.position for partition, offset in self.groups.offsets.of(group).items()}


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Square]:
    town = Square(tmp_path)
    town.topics.make("t", 2)
    town.topics.make("u", 1)
    yield town
    town.close()


# What lasts


def test_a_generation_is_told_when_it_is_durable(town: Square) -> None:
    asked = town.join()
    assert not asked.is_answered
    town.rounds.run()
    assert asked.answer.generation == 1


def test_a_generation_is_told_though_the_disk_is_full(town: Square) -> None:
    asked = town.join()
    town.rounds.run(StorageFullError("full"))
    assert asked.answer.generation == 1
    assert asked.answer.refusal is None


def test_after_a_start_members_are_gone_and_generations_go_on(town: Square) -> None:
    joined = town.enter()
    town.restart()
    who = GroupMember(joined.generation, joined.member)
    assert town.groups.heartbeat("g", who, town.at) is Refusal.UNKNOWN_MEMBER
    again = town.join(member=joined.member)
    assert again.answer == Joined(joined.member, refusal=Refusal.UNKNOWN_MEMBER)
    assert town.enter().generation == 2


def test_a_generation_that_was_not_durable_was_not_told(town: Square) -> None:
    town.enter()
    leader = town.join()
    town.restart()
    assert not leader.is_answered
    assert town.enter().generation == 2


def test_after_a_start_epochs_go_on(town: Square) -> None:
    first = town.reader()
    town.restart()
    asked = town.beat("m", first.epoch)
    assert asked.answer.refused.reason is Refusal.UNKNOWN_MEMBER
    assert town.reader().epoch == first.epoch + 1


def test_offsets_survive_a_start_and_their_group_with_them(town: Square) -> None:
    town.commit("simple", t0=7)
    town.enter("joined")
    town.rounds.run()
    town.restart()
    assert town.positions("simple") == {T0: 7}
    seen = {group.name: group for group in town.groups.seen()}
    assert seen["simple"] == GroupSeen("simple", CLASSIC, "", "empty", 0)
    assert seen["joined"] == GroupSeen("joined", CLASSIC, "consumer", "empty", 0)
    assert list(town.groups.positions()) == [GroupPosition("simple", "t", 0, 7)]


def test_what_was_committed_but_not_durable_is_lost_and_was_not_answered(town: Square) -> None:
    asked = town.commit(t0=7)
    town.restart()
    assert not asked.is_answered
    assert town.positions() == {}
    assert len(town.groups) == 0


# Committing and reading


def test_commits_are_answered_when_they_are_durable(town: Square) -> None:
    asked = town.commit(t0=1, t1=2)
    assert not asked.is_answered
    town.rounds.run()
    assert asked.answer == {T0: None, T1: None}


def test_a_commit_that_fails_is_answered_so(town: Square) -> None:
    asked = town.commit(t0=1)
    town.rounds.run(StorageFullError("full"))
    assert asked.answer == {T0: Refusal.STORAGE_FULL}


def test_a_text_that_is_too_long_is_refused_for_its_partition_alone(town: Square) -> None:
    asked = Asked()
    offsets = {T0: Offset(1, metadata="x" * 4097), T1: Offset(2, metadata="x" * 4096)}
    town.groups.commit("g", NO_MEMBER, offsets, asked, town.at)
    town.rounds.run()
    assert asked.answer == {T0: Refusal.OFFSET_METADATA_TOO_LARGE, T1: None}
    assert town.positions() == {T1: 2}


def test_who_is_no_member_commits_only_while_the_group_is_empty(town: Square) -> None:
    joined = town.enter()
    with pytest.raises(Refused) as caught:
        town.commit(t0=1)
    assert caught.value.reason is Refusal.UNKNOWN_MEMBER
    town.commit(who=GroupMember(joined.generation, joined.member), t0=2)
    town.rounds.run()
    assert town.positions() == {T0: 2}


def test_a_member_of_no_group_commits_nothing(town: Square) -> None:
    with pytest.raises(Refused) as caught:
        town.commit("nowhere", GroupMember(3, "m"), t0=1)
    assert caught.value.reason is Refusal.UNKNOWN_GROUP
    with pytest.raises(Refused) as caught:
        town.groups.commit_pending("nowhere", GroupMember(3, "m"), 1, {T0: Offset(1)}, Asked(), town.at)
    assert caught.value.reason is Refusal.ILLEGAL_GENERATION
    assert len(town.groups) == 0


def test_a_transaction_commits_for_members_at_their_generation(town: Square) -> None:
    joined = town.enter()
    asked = Asked()
    town.groups.commit_pending("g", GroupMember(1, joined.member), 9, {T0: Offset(1)}, asked, town.at)
    town.rounds.run()
    assert asked.answer == {T0: None}
    with pytest.raises(Refused) as caught:
        town.groups.commit_pending("g", GroupMember(0, joined.member), 9, {T0: Offset(1)}, Asked(), town.at)
    assert caught.value.reason is Refusal.ILLEGAL_GENERATION


def test_a_share_is_given_through_the_group(town: Square) -> None:
    asked = town.join()
    town.rounds.run()
    synced = Asked()
    shares = {asked.answer.member: Share(b"mine")}
    town.groups.sync(Sync("g", asked.answer.member, 1, shares=shares), synced, town.at)
    assert synced.answer.data == b"mine"


def test_who_reads_sees_what_was_committed_before(town: Square) -> None:
    town.commit(t0=1)
    asked = town.fetch("g", T0, U0)
    assert not asked.is_answered
    town.rounds.run()
    assert asked.answer == {T0: Offset(1, -1, "", START_MS), U0: None}
    assert town.fetch("g").answer == {T0: Offset(1, -1, "", START_MS)}
    assert town.fetch("nowhere", T0).answer == {T0: None}


def test_an_offset_that_waits_for_a_transaction_is_unstable(town: Square) -> None:
    town.commit(t0=1, t1=1)
    town.groups.commit_pending("g", NO_MEMBER, 9, {T0: Offset(5), U0: Offset(5)}, Asked(), town.at)
    town.rounds.run()
    assert town.fetch("g", T0).answer[T0].position == 1
    assert town.fetch("g", T0, stable_only=True).answer == {T0: Refusal.UNSTABLE_OFFSET}
    everything = town.fetch("g", stable_only=True).answer
    assert {it: answer for it, answer in everything.items() if isinstance(answer, Refusal)} == {
        T0: Refusal.UNSTABLE_OFFSET,
        U0: Refusal.UNSTABLE_OFFSET,
    }
    town.groups.offsets.end_transaction(9, commit=True)
    town.rounds.run()
    assert town.fetch("g", T0, stable_only=True).answer[T0].position == 5


def test_members_whose_partitions_are_shared_out_read_and_commit_at_their_epoch(town: Square) -> None:
    epoch = town.reader().epoch
    town.commit(who=GroupMember(epoch, "m"), t0=3)
    town.rounds.run()
    assert town.fetch("g", T0, who=GroupMember(epoch, "m")).answer[T0].position == 3
    assert town.fetch("g", T0).answer[T0].position == 3
    assert town.fetch("g", T0, who=GroupMember(epoch + 1, "m")).answer.reason is Refusal.STALE_MEMBER_EPOCH
    assert town.fetch("g", T0, who=GroupMember(epoch, "x")).answer.reason is Refusal.UNKNOWN_MEMBER
    with pytest.raises(Refused) as caught:
        town.commit(who=GroupMember(epoch + 1, "m"), t0=3)
    assert caught.value.reason is Refusal.STALE_MEMBER_EPOCH


# Dropping


def test_offsets_are_dropped_where_nobody_reads_the_topic(town: Square) -> None:
    joined = town.enter()
    town.commit(who=GroupMember(joined.generation, joined.member), t0=1, u0=1)
    town.rounds.run()
    asked = Asked()
    town.groups.drop_offsets("g", [T0, U0], asked)
    town.rounds.run()
    assert asked.answer == {T0: Refusal.GROUP_SUBSCRIBED, U0: None}
    assert town.positions() == {T0: 1}


def test_no_offset_is_dropped_of_a_group_that_does_not_tell_what_it_reads(town: Square) -> None:
    town.enter(kind="connect", reads_topics=False)
    with pytest.raises(Refused) as caught:
        town.groups.drop_offsets("g", [T0], Asked())
    assert caught.value.reason is Refusal.GROUP_NOT_EMPTY
    with pytest.raises(Refused) as caught:
        town.groups.drop_offsets("nowhere", [T0], Asked())
    assert caught.value.reason is Refusal.UNKNOWN_GROUP


def test_a_group_is_deleted_with_its_offsets_when_it_is_empty(town: Square) -> None:
    joined = town.enter()
    town.commit(who=GroupMember(joined.generation, joined.member), t0=1)
    with pytest.raises(Refused) as caught:
        town.groups.delete("g", Asked(), town.at)
    assert caught.value.reason is Refusal.GROUP_NOT_EMPTY
    town.groups.leave("g", [Leaver(joined.member)], town.at)
    asked = Asked()
    town.groups.delete("g", asked, town.at)
    town.rounds.run()
    assert asked.answer is None
    assert town.groups.find("g") is None
    town.restart()
    assert (len(town.groups), town.positions()) == (0, {})
    with pytest.raises(Refused) as caught:
        town.groups.delete("g", Asked(), town.at)
    assert caught.value.reason is Refusal.UNKNOWN_GROUP


def test_an_id_given_to_somebody_goes_with_the_group(town: Square) -> None:
    town.commit(t0=1)
    town.rounds.run()
    member = town.join(takes_id=True).answer.member
    town.groups.delete("g", Asked(), town.at)
    town.rounds.run()
    town.wait(SESSION_MS / 1000 + 1)
    assert town.groups.find("g") is None
    assert town.join(member=member).answer.refusal is Refusal.UNKNOWN_MEMBER


def test_an_id_given_to_somebody_goes_when_the_protocol_changes(town: Square) -> None:
    town.join(takes_id=True)
    epoch = town.reader().epoch
    town.wait(SESSION_MS / 1000 + 1)
    assert town.beat("m", epoch).answer.refused is None


def test_a_group_that_is_joined_while_it_is_deleted_stays(town: Square) -> None:
    town.groups.leave("g", [Leaver(town.enter().member)], town.at)
    town.groups.delete("g", Asked(), town.at)
    joined = town.join()
    town.rounds.run()
    assert joined.answer.generation == 3
    town.restart()
    assert town.enter().generation == 4


def test_a_group_that_is_joined_and_left_while_it_is_deleted_is_there_after_a_start_too(town: Square) -> None:
    town.groups.leave("g", [Leaver(town.enter().member)], town.at)
    town.rounds.run()
    town.groups.delete("g", Asked(), town.at)
    member = town.join()
    group = town.groups.find("g")
    assert group is not None
    town.groups.leave("g", [Leaver(next(iter(group.members)))], town.at)
    town.rounds.run()
    assert member.answer.generation == 3
    assert town.groups.find("g") is group
    town.restart()
    assert town.enter().generation == 5


def test_a_group_made_anew_after_its_deletion_is_remembered(town: Square) -> None:
    town.groups.leave("g", [Leaver(town.enter().member)], town.at)
    town.groups.delete("g", Asked(), town.at)
    town.rounds.run()
    assert town.enter().generation == 1
    town.restart()
    assert town.enter().generation == 2


def test_a_commit_behind_a_deletion_makes_the_group_anew(town: Square) -> None:
    town.commit(t0=1)
    town.rounds.run()
    town.groups.delete("g", Asked(), town.at)
    town.commit(t1=2)
    town.rounds.run()
    assert town.positions() == {T1: 2}
    assert town.groups.find("g") is not None


def test_a_deletion_that_fails_leaves_the_group(town: Square) -> None:
    town.commit(t0=1)
    town.rounds.run()
    asked = Asked()
    town.groups.delete("g", asked, town.at)
    town.rounds.run(StorageFullError("full"))
    assert asked.answer.reason is Refusal.STORAGE_FULL
    assert town.positions() == {T0: 1}


def test_offsets_go_with_their_topic(town: Square) -> None:
    town.commit(t0=1, u0=2)
    town.rounds.run()
    town.groups.topic_deleted(town.topics.drop("t"))
    assert town.positions() == {U0: 2}


# Two protocols


def test_an_empty_group_changes_its_protocol_and_its_generation_goes_on(town: Square) -> None:
    town.groups.leave("g", [Leaver(town.enter().member)], town.at)
    answer = town.reader()
    assert isinstance(town.groups.find("g"), ConsumerGroup)
    assert answer.epoch == 3
    left = town.beat("m", LEAVING)
    town.rounds.run()
    assert left.answer.epoch == LEAVING
    assert town.enter().generation == 5
    assert isinstance(town.groups.find("g"), ClassicGroup)


def test_a_group_with_members_keeps_its_protocol(town: Square) -> None:
    town.enter("classic")
    assert town.beat(group="classic").answer.refused.reason is Refusal.UNKNOWN_GROUP
    town.reader(group="consumer")
    assert town.join("consumer").answer.refusal is Refusal.INCONSISTENT_PROTOCOL
    assert town.groups.heartbeat("consumer", GroupMember(1, "m"), town.at) is Refusal.UNKNOWN_MEMBER
    assert town.groups.leave("consumer", [Leaver("m")], town.at) == [Refusal.UNKNOWN_MEMBER]
    asked = Asked()
    town.groups.sync(Sync("consumer", "m", 1), asked, town.at)
    assert asked.answer.refusal is Refusal.UNKNOWN_MEMBER


def test_offsets_stay_when_the_protocol_changes(town: Square) -> None:
    town.commit(t0=4)
    town.rounds.run()
    town.reader()
    assert town.positions() == {T0: 4}


def test_nobody_makes_a_group_by_being_refused(town: Square) -> None:
    assert town.join(session_ms=1).answer.refusal is Refusal.BAD_SESSION_TIMEOUT
    assert len(town.groups) == 0
    assert town.join(member="m").answer.refusal is Refusal.UNKNOWN_MEMBER
    assert town.beat(pattern="(").answer.refused.reason is Refusal.BAD_PATTERN
    assert town.beat(epoch=3).answer.refused.reason is Refusal.UNKNOWN_MEMBER
    assert len(town.groups) == 0


def test_there_are_no_more_groups_than_there_may_be(tmp_path: Path) -> None:
    town = Square(tmp_path, groups_max=1)
    town.commit("one", t0=1)
    assert town.join("two").answer.refusal is Refusal.TOO_MANY_GROUPS
    assert town.beat(group="two").answer.refused.reason is Refusal.TOO_MANY_GROUPS
    with pytest.raises(Refused):
        town.commit("two", t0=1)
    town.close()


def test_there_are_no_more_members_than_there_may_be_in_all_groups(tmp_path: Path) -> None:
    town = Square(tmp_path, members_total_max=2)
    joined = town.enter("one")
    epoch = town.reader(group="two").epoch
    assert town.join("three").answer.refusal is Refusal.GROUP_FULL
    assert town.beat("m2", group="two").answer.refused.reason is Refusal.GROUP_FULL
    assert town.join("one", joined.member).answers == []  # who is there may go on
    town.rounds.run()
    assert town.beat("m", epoch, group="two").answer.refused is None
    town.groups.leave("one", [Leaver(joined.member)], town.at)
    town.enter("three")
    town.close()


def test_a_member_that_says_too_much_about_itself_is_refused(tmp_path: Path) -> None:
    town = Square(tmp_path, member_bytes_max=20)
    assert town.join(offers=(Offer("range", b"x" * 16),)).answer.refusal is Refusal.BAD_REQUEST
    assert town.join(offers=(Offer("range", b"x" * 15),), session_ms=1).answer.refusal is Refusal.BAD_SESSION_TIMEOUT
    assert town.beat(topics=frozenset({"t" * 21})).answer.refused.reason is Refusal.BAD_REQUEST
    assert len(town.groups) == 0
    town.close()


def test_names_that_fit_into_no_answer_are_refused(town: Square) -> None:
    town.commit("x" * 1000, t0=1)
    town.enter("y" * 1000, instance="z" * 1000)
    long = "x" * 1001
    assert town.join(long).answer.refusal is Refusal.BAD_GROUP_NAME
    assert town.join(instance=long).answer.refusal is Refusal.BAD_REQUEST
    assert town.beat(long).answer.refused.reason is Refusal.BAD_REQUEST
    with pytest.raises(Refused) as caught:
        town.commit(long, t0=1)
    assert caught.value.reason is Refusal.BAD_GROUP_NAME
    asked = town.join(client=Client(long, "10.0.0.1"))
    town.rounds.run()
    assert asked.answer.member == f"{'x' * 200}-id2"


def test_an_answer_that_cannot_be_given_harms_nobody_else(town: Square, caplog: pytest.LogCaptureFixture) -> None:
    joined = town.enter()
    asked = Asked()

    def fail(_: object) -> None:
        raise ValueError("no answer")

    town.groups.join(join_question("g", takes_id=False), fail, town.at)
    town.groups.join(join_question("g", joined.member), asked, town.at)
    town.rounds.run()
    assert asked.answer.generation == 2
    assert "could not be answered" in caplog.text


# Time


def test_a_session_that_is_over_ends_in_a_turn(town: Square) -> None:
    town.enter()
    town.wait(SESSION_MS / 1000 + 1)
    group = town.groups.find("g")
    assert group is not None
    assert group.is_empty
    town.restart()
    assert town.enter().generation == 3


def test_offsets_of_an_empty_group_end_after_the_retention(town: Square) -> None:
    joined = town.enter()
    town.commit(who=GroupMember(joined.generation, joined.member), t0=1)
    town.rounds.run()
    town.wait(3 * DAY_S)  # the member is gone after its session
    assert town.positions() == {T0: 1}
    town.wait(3.9 * DAY_S)
    assert town.positions() == {T0: 1}
    town.wait(0.2 * DAY_S)
    assert town.positions() == {}
    assert town.groups.find("g") is None
    town.restart()
    assert len(town.groups) == 0


def test_the_retention_counts_from_when_the_group_became_empty(town: Square) -> None:
    joined = town.enter()
    who = GroupMember(joined.generation, joined.member)
    town.commit(who=who, t0=1)
    for _ in range(200):
        town.wait(SESSION_MS / 1000 * 0.9)
        assert town.groups.heartbeat("g", who, town.at) is None
    town.wall_ms += int(8 * DAY_S * 1000)  # eight days pass, and the member lives all the time
    town.groups.heartbeat("g", who, town.at)
    town.wait(1)
    assert town.positions() == {T0: 1}
    town.groups.leave("g", [Leaver(joined.member)], town.at)
    town.wait(6.9 * DAY_S)
    assert town.positions() == {T0: 1}
    town.wait(0.2 * DAY_S)
    assert town.positions() == {}


def test_the_retention_goes_on_over_a_start(town: Square) -> None:
    town.commit(t0=1)
    town.rounds.run()
    town.wait(5 * DAY_S)
    town.restart()
    town.wait(1.9 * DAY_S)
    assert town.positions() == {T0: 1}
    town.wait(0.2 * DAY_S)
    assert town.positions() == {}


def test_a_group_that_lived_when_the_process_ended_is_empty_since_the_start(town: Square) -> None:
    joined = town.enter()
    town.commit(who=GroupMember(joined.generation, joined.member), t0=1)
    town.rounds.run()
    town.wall_ms += int(30 * DAY_S * 1000)
    town.restart()
    town.wait(6.9 * DAY_S)
    assert town.positions() == {T0: 1}


def test_offsets_in_topics_that_nobody_reads_any_more_end_though_the_group_lives(town: Square) -> None:
    joined = town.enter()
    who = GroupMember(joined.generation, joined.member)
    town.commit(who=who, t0=1, u0=1)
    town.rounds.run()
    town.wall_ms += int(8 * DAY_S * 1000)
    for _ in range(100):
        town.groups.heartbeat("g", who, town.at)
        town.wait(SESSION_MS / 1000 * 0.9)
    assert town.positions() == {T0: 1}


@pytest.mark.parametrize("is_known", [True, False])
def test_no_offset_ends_while_it_is_not_known_who_reads_it(town: Square, is_known: bool) -> None:
    topics = frozenset({"t"}) if is_known else None
    joined = town.enter(topics=topics)
    who = GroupMember(joined.generation, joined.member)
    town.commit(who=who, u0=1)
    town.rounds.run()
    if is_known:
        town.join(rebalance_ms=3_600_000)  # a second member waits for the first one to join again
    town.wall_ms += int(8 * DAY_S * 1000)
    for _ in range(100):
        town.groups.heartbeat("g", who, town.at)
        town.wait(SESSION_MS / 1000 * 0.7)
    assert town.positions() == {U0: 1}


def test_an_offset_ends_when_its_member_said_so(town: Square) -> None:
    offsets = {T0: Offset(1, -1, "", town.wall_ms, town.wall_ms + 60_000), T1: Offset(1, -1, "", town.wall_ms)}
    town.groups.commit("g", NO_MEMBER, offsets, Asked(), town.at)
    town.rounds.run()
    town.wait(DAY_S)
    assert town.positions() == {T1: 1}


def test_an_offset_that_a_transaction_may_change_does_not_end(town: Square) -> None:
    town.commit(t0=1, t1=1)
    town.groups.commit_pending("g", NO_MEMBER, 9, {T0: Offset(5)}, Asked(), town.at)
    town.rounds.run()
    town.wait(8 * DAY_S)
    assert town.positions() == {T0: 1}


def test_an_empty_group_without_offsets_goes_after_a_while(town: Square) -> None:
    town.groups.leave("g", [Leaver(town.enter().member)], town.at)
    town.rounds.run()
    town.wait(601)
    assert town.groups.find("g") is None


def test_a_first_commit_on_its_way_keeps_its_group(town: Square) -> None:
    town.groups.leave("g", [Leaver(town.enter().member)], town.at)
    town.rounds.run()
    town.now += 599.0
    town.commit(t0=1)
    town.now += 2
    town.groups.turn(town.now, town.wall_ms)
    town.rounds.run()
    assert town.positions() == {T0: 1}
    town.restart()
    assert town.positions() == {T0: 1}


def test_an_id_given_to_somebody_keeps_the_group(town: Square) -> None:
    member = town.join(takes_id=True, session_ms=1_000_000).answer.member
    town.wait(700)
    asked = town.join(member=member)
    town.rounds.run()
    assert asked.answer.generation == 1


def test_a_turn_tells_when_to_come_back(town: Square) -> None:
    assert town.groups.turn(0.0, START_MS) is None
    town.enter()
    assert town.groups.turn(0.0, START_MS) == SESSION_MS / 1000


def test_groups_of_an_earlier_life_are_not_all_looked_at_in_one_turn(town: Square) -> None:
    for number in range(10):
        town.commit(f"g{number}", t0=1)
    town.rounds.run()
    town.restart()
    dues = set()
    due = town.groups.turn(town.now, town.wall_ms)
    while due is not None and due <= 600:
        dues.add(due)
        due = town.groups.turn(due, town.wall_ms)
    assert len(dues) == 10


# Topics and clients


def test_members_learn_of_topics(town: Square) -> None:
    t = town.topics.find("t")
    assert t is not None
    assert town.reader().assigned == frozenset({(t.id, 0), (t.id, 1)})
    town.groups.topic_grown(town.topics.grow("t", 3))
    asked = town.beat("m", 1, owned=frozenset())
    town.rounds.run()
    assert asked.answer.assigned == {(t.id, 0), (t.id, 1), (t.id, 2)}
    town.groups.topic_created(town.topics.make("v", 1))
    assert town.beat("m", 2).answer.epoch == 2


def test_who_reads_a_partition_is_known_by_client(town: Square) -> None:
    client = Client("app", "10.0.0.1")
    joined = town.enter("classic")
    town.reader(group="consumer")
    assert town.groups.groups_reading(*client, "t", 0) == {"classic", "consumer"}
    assert town.groups.groups_reading(*client, "t", 1) == {"consumer"}
    assert town.groups.groups_reading(*client, "u", 0) == set()
    assert town.groups.groups_reading("app", "10.0.0.2", "t", 0) == set()
    town.groups.leave("classic", [Leaver(joined.member)], town.at)
    town.beat("m", LEAVING, group="consumer")
    assert town.groups.groups_reading(*client, "t", 0) == set()
    assert repr(town.groups._registry.readers) == "<Readers 0 clients in 0 groups>"


# Settings


def test_settings_are_read_from_their_table() -> None:
    settings = GroupSettings(beat_interval_ms="3000")  # type: ignore[arg-type]
    assert settings.beat_interval_ms == 3000
    assert len(GROUP_TABLE) == len(GroupSettings.__dataclass_fields__)


@pytest.mark.parametrize(
    "values",
    [
        {"members_max": 0},
        {"session_min_ms": 5, "session_max_ms": 4},
        {"beat_interval_ms": 45_000},
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        GroupSettings(**values)
