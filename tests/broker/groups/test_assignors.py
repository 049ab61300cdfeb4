"""Each partition has one reader that wants it, shares are even, and little is moved."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.assignors import ASSIGNORS, Assigned, Seat, assign_by_range, assign_uniformly

TOPICS = [UUID(int=number) for number in range(1, 5)]
A, B, C, D = TOPICS
WANTS = st.frozensets(st.sampled_from(TOPICS))
PARTITIONS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7))
MEMBERS = [f"m{number}" for number in range(6)]


def seats(wants: dict[str, frozenset[UUID]], held: Assigned | None = None) -> list[Seat]:
    return [Seat(member, member, topics, (held or {}).get(member, frozenset())) for member, topics in wants.items()]


@pytest.mark.parametrize("name", ASSIGNORS)
@given(wants=st.dictionaries(st.sampled_from(MEMBERS), WANTS), partitions=PARTITIONS, later=PARTITIONS)
def test_each_partition_has_one_reader_if_somebody_wants_it(
    name: str, wants: dict[str, frozenset[UUID]], partitions: dict[UUID, int], later: dict[UUID, int]
) -> None:
    before = ASSIGNORS[name](seats(wants), partitions)
    for given_to, there in ((before, partitions), (ASSIGNORS[name](seats(wants, before), later), later)):
        wanted = frozenset[UUID]().union(*wants.values())
        expected = {(topic, number) for topic, count in there.items() if topic in wanted for number in range(count)}
        readers = Counter(slot for slots in given_to.values() for slot in slots)
        assert set(readers) == expected
        assert set(readers.values()) <= {1}
        assert set(given_to) == set(wants)
        assert all(topic in wants[member] for member, slots in given_to.items() for topic, _ in slots)


@given(
    members=st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1),
    later_members=st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1),
    partitions=PARTITIONS,
    later=PARTITIONS,
)
def test_members_that_want_the_same_get_as_many_and_keep_what_they_may(
    members: list[str], later_members: list[str], partitions: dict[UUID, int], later: dict[UUID, int]
) -> None:
    everything = frozenset(TOPICS)
    before = assign_uniformly(seats(dict.fromkeys(members, everything)), partitions)
    after = assign_uniformly(seats(dict.fromkeys(later_members, everything), before), later)
    sizes = [len(slots) for slots in after.values()]
    assert max(sizes) - min(sizes) <= 1
    least, extra = divmod(sum(sizes), len(sizes))
    had = {it: {(topic, n) for topic, n in before.get(it, ()) if n < later.get(topic, 0)} for it in later_members}
    kept = sum(len(had[member] & after[member]) for member in later_members)
    most = sum(min(len(slots), least) for slots in had.values())
    assert kept == most + min(extra, sum(len(slots) > least for slots in had.values()))


@given(members=st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1), partitions=PARTITIONS)
def test_what_has_not_changed_is_not_moved(members: list[str], partitions: dict[UUID, int]) -> None:
    wants = dict.fromkeys(members, frozenset(TOPICS))
    once = assign_uniformly(seats(wants), partitions)
    assert assign_uniformly(list(reversed(seats(wants, once))), partitions) == once


@given(
    before=st.dictionaries(st.sampled_from(MEMBERS), WANTS),
    wants=st.dictionaries(st.sampled_from(MEMBERS), WANTS, min_size=1),
    partitions=PARTITIONS,
)
def test_nobody_could_take_a_partition_from_one_who_has_two_more(
    before: dict[str, frozenset[UUID]], wants: dict[str, frozenset[UUID]], partitions: dict[UUID, int]
) -> None:
    given_to = assign_uniformly(seats(wants, assign_uniformly(seats(before), partitions)), partitions)
    for rich, slots in given_to.items():
        for topic, _number in slots:
            for poor in (member for member in wants if topic in wants[member]):
                assert len(given_to[rich]) - len(given_to[poor]) <= 1


def test_a_new_member_takes_no_more_than_its_share() -> None:
    wants = dict.fromkeys(("m1", "m2"), frozenset({A}))
    before = assign_uniformly(seats(wants), {A: 6})
    after = assign_uniformly(seats({**wants, "m3": frozenset({A})}, before), {A: 6})
    assert after["m1"] < before["m1"]
    assert after["m2"] < before["m2"]
    assert len(after["m3"]) == 2


def test_a_partition_that_two_had_goes_to_one() -> None:
    slot = frozenset({(A, 0)})
    given_to = assign_uniformly(
        [Seat("m1", "m1", frozenset({A}), slot), Seat("m2", "m2", frozenset({A}), slot)], {A: 2}
    )
    assert given_to == {"m1": slot, "m2": frozenset({(A, 1)})}


def test_ranges_are_runs_and_cut_alike_in_topics_of_one_size() -> None:
    wants = dict.fromkeys(("m1", "m2", "m3"), frozenset({A, B}))
    given_to = assign_by_range(seats(wants), {A: 5, B: 5})
    assert given_to["m1"] == {(A, 0), (A, 1), (B, 0), (B, 1)}
    assert given_to["m2"] == {(A, 2), (A, 3), (B, 2), (B, 3)}
    assert given_to["m3"] == {(A, 4), (B, 4)}


def test_a_static_members_successor_takes_its_range() -> None:
    one, two = Seat("x", "a", frozenset({A})), Seat("b", "b", frozenset({A}))
    assert assign_by_range([two, one], {A: 2}) == {"x": {(A, 0)}, "b": {(A, 1)}}
