"""Which entries are copies, and of what: judged by notes, and notes found on a model of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError, DeniedError, TimedOutError, UnsupportedError
from penstock.net.homes import Homes
from penstock.replicate.note import SourceNote, Writer
from penstock.replicate.origins import (
    STRANGERS_MAX,
    Descent,
    Destination,
    Feeder,
    OriginFinder,
    Origins,
    Whence,
    refuse_rings,
)
from penstock.wire.kafka.versions import FIND_COORDINATOR, LIST_GROUPS, OFFSET_FETCH
from penstock.wire.protocol import Partition
from tests.consume.harness import UNKNOWN_TOPIC_S, Harness

HERE, THERE = "here", Destination("there", "t")
T0, T1 = Partition("t", 0), Partition("t", 1)


def note(cluster: str, *producers: int, through: str = "", topic: str = "t", known_from: int = 0) -> SourceNote:
    writers = tuple(Writer(producer, 10 * place) for place, producer in enumerate(producers, 1))
    last = (Writer(producers[-1]),) if producers else ()
    return SourceNote(cluster, topic, None, 0, writers[:-1] + last, known_from, frozenset(through.split()))


def origins(*notes: SourceNote, cluster: str = HERE, is_complete: bool = True) -> Origins:
    feeders = [Feeder(f"p{place}", each) for place, each in enumerate(notes)]
    return Origins(cluster, {T0: feeders, T1: []}, is_complete)


def descent(*notes: SourceNote, stable: int = 100, target: Destination = THERE) -> Descent:
    made = Descent("mine", T0, target)
    made.learn(origins(*notes), (), stable)
    return made


def clusters(*names: str) -> frozenset[str]:
    return frozenset(names)


# What notes say


def test_copies_are_known_by_their_producer() -> None:
    known = origins(note("there", 5, 6), note("west", 7, through="north south"))
    assert known.came_from(T0, 5) == known.came_from(T0, 6) == clusters("there")
    assert known.came_from(T0, 7) == clusters("west", "north", "south")
    assert known.came_from(T0, 8) is None
    assert known.came_from(T1, 5) is None
    assert known.came_from(Partition("other", 0), 5) is None


def test_a_message_that_is_copied_on_has_come_through_all_clusters_before() -> None:
    assert origins().through(THERE) == frozenset()
    assert origins(note("west", 7, through="north"), note("south")).through(THERE) == {"west", "north", "south"}


def test_what_came_straight_from_the_target_is_not_copied_on_and_counts_for_nothing() -> None:
    known = origins(note("there", 5, through="north there"))
    assert known.through(THERE) == frozenset()
    assert known.rings(THERE) == []


def test_a_ring_is_refused_with_the_names_of_those_who_make_it() -> None:
    ring = origins(note("north", 5), note("west", 7, through="there north"))
    assert [feeder.pipeline for feeder in ring.rings(THERE)] == ["p1"]
    with pytest.raises(ConfigError) as raised:
        refuse_rings("mine", ring, THERE)
    assert str(raised.value) == (
        "pipeline mine: what pipeline p1 brings from t-0 of cluster west came through cluster there before, which is "
        "the target here, and messages must not return there: leave out one of the pipelines of this ring, or let one "
        "of them write to a topic that no other of them reads"
    )
    refuse_rings("mine", ring, Destination("south", "t"))


def test_within_one_cluster_only_the_target_topic_itself_is_not_returned_to() -> None:
    known = origins(note(HERE, 5, topic="first"))
    assert descent(note(HERE, 5, topic="first"), target=Destination(HERE, "last")).judge(5, 0) is Whence.ELSEWHERE
    assert descent(note(HERE, 5, topic="first"), target=Destination(HERE, "first")).judge(5, 0) is Whence.TARGET
    assert known.rings(Destination(HERE, "first")) == known.rings(Destination(HERE, "last")) == []
    assert known.through(Destination(HERE, "last")) == {HERE}


# Entries


def test_an_entry_is_judged_by_its_producer() -> None:
    known = descent(note("there", 5), note("west", 7))
    assert known.judge(5, 0) is Whence.TARGET
    assert known.judge(7, 0) is Whence.ELSEWHERE
    assert known.judge(8, 0) is Whence.ELSEWHERE
    assert known.through == {"west"}


def test_an_entry_without_a_producer_is_never_a_copy() -> None:
    assert Descent("mine", T0, THERE).judge(-1, 0) is Whence.ELSEWHERE
    assert descent(note("there", 5, known_from=50)).judge(-1, 0) is Whence.ELSEWHERE


def test_a_producer_is_asked_for_once() -> None:
    known = Descent("mine", T0, THERE)
    assert known.judge(8, 0) is Whence.UNASKED
    known.learn(origins(), [8], 20)
    assert known.judge(8, 999) is Whence.ELSEWHERE
    assert known.judge(9, 19) is Whence.ELSEWHERE  # it had written before the notes were read
    assert known.judge(9, 20) is Whence.UNASKED


def test_a_producer_that_turns_out_to_be_a_copier_is_no_stranger() -> None:
    known = Descent("mine", T0, THERE)
    known.learn(origins(note("there", 5)), [5, 8], 0)
    assert known.judge(5, 0) is Whence.TARGET
    assert known.judge(8, 0) is Whence.ELSEWHERE


def test_strangers_are_forgotten_when_there_are_too_many() -> None:
    known = Descent("mine", T0, THERE)
    known.learn(origins(), range(STRANGERS_MAX), 0)
    assert known.judge(5, 0) is Whence.ELSEWHERE
    known.learn(origins(), [STRANGERS_MAX], 0)
    assert known.judge(STRANGERS_MAX, 0) is Whence.ELSEWHERE
    assert known.judge(5, 0) is Whence.UNASKED


def test_a_copy_from_elsewhere_is_judged_by_notes_as_new_as_it_is() -> None:
    known = descent(note("west", 7), note("there", 5), stable=20)
    assert known.judge(7, 19) is Whence.ELSEWHERE
    assert known.judge(7, 20) is Whence.UNASKED
    assert known.judge(5, 20) is Whence.TARGET
    assert known.is_copier(7)
    known.learn(origins(note("west", 7, through="north"), is_complete=False), [7], 30)
    assert known.judge(7, 29) is Whence.ELSEWHERE
    assert known.through == {"west", "north"}


def test_notes_of_known_pipelines_alone_say_nothing_about_others() -> None:
    known = descent(stable=20)
    known.learn(origins(is_complete=False), [8], 30)
    assert known.judge(8, 25) is Whence.UNASKED
    assert not known.is_copier(8)


def test_a_ring_that_closes_later_is_refused_before_anything_returns() -> None:
    known = descent(note("west", 7), stable=20)
    with pytest.raises(ConfigError, match="ring"):
        known.learn(origins(note("west", 7, through="there")), [7], 30)
    assert known.judge(7, 25) is Whence.UNASKED


def test_what_is_older_than_the_ids_that_are_named_cannot_be_told() -> None:
    known = descent(note("there", 5, known_from=50), note("west", 7, known_from=70))
    assert known.judge(8, 49) is Whence.FORGOTTEN
    assert known.judge(8, 50) is Whence.ELSEWHERE
    assert known.judge(5, 49) is Whence.TARGET
    assert known.judge(7, 49) is Whence.ELSEWHERE
    assert str(known.forgotten(49)) == (
        "pipeline mine: whether position 49 of t-0 was copied from the target, cluster there, cannot be told any more, "
        "and messages must not return there: start this pipeline at position 50 of t-0 or later"
    )


def test_what_was_known_once_stays_known() -> None:
    known = descent(note("there", 4, 5), stable=100)
    known.learn(origins(note("there", 5, known_from=90)), (), 200)
    assert known.judge(8, 10) is Whence.ELSEWHERE
    assert known.judge(4, 10) is Whence.TARGET
    known.learn(origins(note("there", 6, known_from=300)), (), 400)
    assert known.judge(8, 250) is Whence.FORGOTTEN
    assert known.judge(8, 300) is Whence.ELSEWHERE


# Finding notes


class Rig:
    """A model of a source cluster with notes in it, and a finder."""

    def __init__(self, nodes: int = 3, partitions: int = 2) -> None:
        self.harness = Harness(nodes=nodes)
        self.model = self.harness.model
        self.harness.topic("t", partitions)
        self.partitions = [Partition("t", number) for number in range(partitions)]
        self.finder = self.new_finder()

    def new_finder(self) -> OriginFinder:
        harness = self.harness
        tools = (harness.cluster, harness.clock, harness.backoff)
        return OriginFinder(*tools, Homes(*tools, UNKNOWN_TOPIC_S), "mine")

    def commit(self, pipeline: str, partition: Partition, text: str | SourceNote, home: int | None = 1) -> None:
        group = f"penstock.{pipeline}"
        text = text if isinstance(text, str) else text.encode()
        self.model.marks[group, partition.topic, partition.number] = (1, text, -1)
        self.model.homes[group] = home

    def begin(self, seconds: float = 60.0, **how: Any) -> Any:
        steps = self.finder.find(self.partitions, self.harness.now + seconds, **how)
        return self.harness.errands.run(self.harness.cluster, steps)

    def find(self, **how: Any) -> Origins:
        found: Origins = self.harness.result(self.begin(**how))
        return found

    def asked(self, kind: str) -> list[Any]:
        every = (request for broker in self.model.brokers.values() for request in broker.asked)
        return [request for request in every if type(request).__name__ == kind]


def test_notes_of_all_pipelines_are_found_wherever_their_books_are_kept() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5), home=1)
    rig.commit("b", T0, note("south", 6), home=2)
    rig.commit("b", T1, note("south", 7), home=2)
    rig.commit("c", Partition("other", 0), note("north", 8), home=3)
    rig.model.marks["payments", "t", 0] = (1, note("east", 9).encode(), -1)
    found = rig.find()
    assert found == Origins(
        "model",
        {T0: [Feeder("a", note("west", 5)), Feeder("b", note("south", 6))], T1: [Feeder("b", note("south", 7))]},
    )


def test_where_nobody_copies_to_nothing_is_found() -> None:
    assert Rig().find() == Origins("model", {T0: [], T1: []})


def test_what_others_committed_is_passed_over() -> None:
    rig = Rig()
    rig.commit("a", T0, "a note")
    rig.commit("b", T0, "")
    assert rig.find() == Origins("model", {T0: [], T1: []})


def test_a_note_of_a_later_version_is_not_passed_over() -> None:
    rig = Rig()
    rig.commit("a", T0, '{"penstock":2}')
    with pytest.raises(UnsupportedError, match=r"note of group penstock\.a for t-0.*version 1"):
        rig.find()


def test_a_group_that_no_broker_names_for_a_moment_is_found() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5), home=None)
    finding = rig.begin()
    rig.harness.run(lambda: len(rig.asked("ListGroupsRequest")) == 3)
    rig.model.homes["penstock.a"] = 2
    assert rig.harness.result(finding).came_from(T0, 5) == clusters("west")


def test_a_group_that_was_named_once_is_asked_for_although_nobody_names_it() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5), home=2)
    rig.find()
    rig.model.homes["penstock.a"] = None
    rig.commit("a", T0, note("west", 5, 6), home=None)
    finding = rig.begin()
    rig.harness.advance(5)
    assert not finding.done()
    rig.model.homes["penstock.a"] = 3
    assert rig.harness.result(finding).came_from(T0, 6) == clusters("west")


def test_the_pipeline_of_the_own_name_is_asked_for_although_nobody_names_it() -> None:
    rig = Rig()
    rig.find()
    assert {request.group_id for request in rig.asked("OffsetFetchRequest")} == {"penstock.mine"}


def test_groups_are_listed_twice_at_first_and_once_thereafter() -> None:
    rig = Rig(nodes=3)
    rig.find()
    assert len(rig.asked("ListGroupsRequest")) == 6
    rig.find()
    assert len(rig.asked("ListGroupsRequest")) == 9


def test_notes_of_known_pipelines_are_read_without_listing_groups() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5))
    assert rig.find(known_only=True).is_complete  # nothing was known before
    listed = len(rig.asked("ListGroupsRequest"))
    rig.commit("a", T0, note("west", 6))
    rig.commit("b", T0, note("south", 7))
    again = rig.find(known_only=True)
    assert not again.is_complete
    assert again.came_from(T0, 6) == clusters("west")
    assert again.came_from(T0, 7) is None
    assert len(rig.asked("ListGroupsRequest")) == listed
    assert rig.find().came_from(T0, 7) == clusters("south")


def test_a_broker_that_is_still_reading_its_books_is_waited_for() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5), home=2)
    rig.model.codes[LIST_GROUPS.key] = lambda: 14
    finding = rig.begin()
    rig.harness.advance(5)
    assert not finding.done()
    assert rig.finder.trouble is not None
    del rig.model.codes[LIST_GROUPS.key]
    assert rig.harness.result(finding).came_from(T0, 5) == clusters("west")
    assert rig.finder.trouble is None


def test_a_broker_that_is_down_is_waited_for_until_the_cluster_names_it_no_more() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5), home=3)
    rig.model.brokers[3].die()
    rig.model.brokers[3].is_up = True  # as the others still tell
    finding = rig.begin(600)
    rig.harness.advance(20)
    assert not finding.done()
    rig.model.brokers[3].is_up = False
    rig.model.homes["penstock.a"] = 2
    assert rig.harness.result(finding).came_from(T0, 5) == clusters("west")


def test_positions_of_open_transactions_are_waited_for() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5))
    rig.model.unstable.add(("penstock.a", "t", 0))
    finding = rig.begin()
    rig.harness.advance(5)
    assert not finding.done()
    rig.commit("a", T0, note("west", 5, 6))
    rig.model.unstable.clear()
    assert rig.harness.result(finding).came_from(T0, 6) == clusters("west")


def test_copiers_of_which_one_always_commits_are_read_nevertheless() -> None:
    rig = Rig(partitions=8)
    for partition in rig.partitions:
        rig.commit("a", partition, note("west", 5 + partition.number))
    unstable = rig.model.unstable

    def shift(turn: int = 0) -> None:
        unstable.clear()
        unstable.update(("penstock.a", "t", number) for number in (turn % 8, (turn + 3) % 8))
        rig.model.at(rig.harness.now + 0.03, lambda: shift(turn + 1))

    rig.model.delay = lambda: 0.01
    shift()
    began = rig.harness.now
    found = rig.find()
    assert rig.harness.now - began < 10
    for partition in rig.partitions:
        assert found.came_from(partition, 5 + partition.number) == clusters("west")


@pytest.mark.parametrize("key", [LIST_GROUPS.key, FIND_COORDINATOR.key, OFFSET_FETCH.key])
def test_what_cannot_be_found_out_in_time_is_an_error(key: int) -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5))
    rig.model.codes[key] = lambda: 15
    with pytest.raises(TimedOutError, match="who copies to model could not be found out in time: COORDINATOR_NOT_AVAI"):
        rig.harness.result(rig.begin(5), 60)


@pytest.mark.parametrize(("key", "code"), [(LIST_GROUPS.key, 31), (OFFSET_FETCH.key, 30)])
def test_who_may_not_ask_is_told_at_once(key: int, code: int) -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5))
    rig.model.codes[key] = lambda: code
    began = rig.harness.now
    with pytest.raises(DeniedError):
        rig.find()
    assert rig.harness.now - began < 5


def test_a_cluster_that_is_away_is_given_up_in_time() -> None:
    rig = Rig(nodes=1)
    rig.model.brokers[1].die()
    with pytest.raises(TimedOutError, match="could not be found out in time"):
        rig.harness.result(rig.begin(5), 120)


def test_a_finder_tells_how_many_groups_it_knows() -> None:
    rig = Rig()
    rig.commit("a", T0, note("west", 5))
    rig.find()
    assert repr(rig.finder) == "<OriginFinder in model, 2 groups>"
    assert repr(descent(note("west", 5))) == "<Descent of t-0, 1 ids of copiers, all known before 100>"
