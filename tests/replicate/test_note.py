"""What stands beside a copier's position: written, read, compared, and kept within its limits."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.replicate.note import (
    NOTE_BYTES_MAX,
    WRITERS_MAX,
    SourceNote,
    Writer,
    check_name,
    group_of,
    pipeline_of,
    transactional_id,
    version_of,
)

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
PLAIN = SourceNote("west", "orders", OLD_ID, 3)
FULL = SourceNote("west", "orders", OLD_ID, 3, (Writer(7, 100), Writer(9)), 50, frozenset({"south", "north"}))
TEXT = (
    '{"penstock":1,"cluster":"west","topic":"orders","id":"00000000-0000-0000-0000-000000000001","partition":3,'
    '"writers":[7,100,9],"known_from":50,"through":["north","south"]}'
)

names = st.text(min_size=1, max_size=10)
numbers = st.integers(0, 2**63 - 1)
ended = st.lists(st.builds(Writer, numbers, numbers), max_size=WRITERS_MAX - 1)
writers = st.one_of(st.just(()), st.builds(lambda before, last: (*before, Writer(last)), ended, numbers))
notes = st.builds(
    SourceNote,
    *(names, names, st.none() | st.uuids(), numbers),
    *(writers, numbers, st.frozensets(names, max_size=3)),
)


# As text


def test_a_note_is_compact_json() -> None:
    assert FULL.encode() == TEXT
    assert SourceNote.decode(TEXT) == FULL
    assert version_of(TEXT) == 1


def test_what_is_nothing_is_not_written() -> None:
    assert json.loads(PLAIN.encode()).keys() == {"penstock", "cluster", "topic", "id", "partition", "writers"}
    assert json.loads(SourceNote("west", "orders", None, 3).encode())["id"] is None


@given(notes)
def test_a_note_comes_back_as_it_was(note: SourceNote) -> None:
    assert SourceNote.decode(note.encode()) == note


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert SourceNote.decode(text) is None
    assert version_of(text) is None


FOREIGN = ["", "a note", "null", "5", "[]", "{}", '{"penstock":true}', '{"penstock":"1"}', "[" * 100_000, "9" * 10_000]


@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_what_somebody_else_wrote_is_no_note(text: str) -> None:
    assert SourceNote.decode(text) is None
    assert version_of(text) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("cluster", value) for value in (None, 5, "")),
        *(("topic", value) for value in (None, 5, "")),
        *(("id", value) for value in (5, "", "no uuid")),
        *(("partition", value) for value in (None, "3", -1, True, 1.5)),
        *(("writers", value) for value in (None, 7, [7, 100], ["7"], [-1], [7, None, 9], [True])),
        *(("known_from", value) for value in (None, "5", -1)),
        *(("through", value) for value in (None, "north", [5], [""])),
    ],
)
def test_a_field_that_is_not_what_it_should_be_spoils_the_note(field: str, value: Any) -> None:
    spoilt = json.dumps(json.loads(TEXT) | {field: value})
    assert SourceNote.decode(spoilt) is None
    assert version_of(spoilt) == 1


@pytest.mark.parametrize("field", ["cluster", "topic", "id", "partition", "writers"])
def test_a_field_that_is_missing_spoils_the_note(field: str) -> None:
    said = json.loads(TEXT)
    del said[field]
    assert SourceNote.decode(json.dumps(said)) is None


def test_a_note_of_a_later_version_is_known_as_one_and_not_read() -> None:
    later = json.dumps(json.loads(TEXT) | {"penstock": 2})
    assert SourceNote.decode(later) is None
    assert version_of(later) == 2


def test_fields_of_which_nothing_is_known_are_passed_over() -> None:
    assert SourceNote.decode(json.dumps(json.loads(TEXT) | {"more": []})) == FULL


# How it changes


def test_another_producer_id_ends_the_one_before() -> None:
    first = PLAIN.written_by(7, 0)
    assert first.writers == (Writer(7),)
    assert first.written_by(7, 999) is first
    second = first.written_by(9, 100)
    assert second.writers == (Writer(7, 100), Writer(9))
    assert second.written_by(7, 200).writers == (Writer(9, 200), Writer(7))


def test_too_many_producer_ids_are_forgotten_from_the_oldest_on_and_that_is_told() -> None:
    note = PLAIN
    for producer in range(WRITERS_MAX + 3):
        note = note.written_by(producer, producer * 10)
    assert [writer.producer for writer in note.writers] == list(range(3, WRITERS_MAX + 3))
    assert note.known_from == 30


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 5)), max_size=200))
def test_whoever_wrote_behind_known_from_is_named(runs: list[tuple[int, int]]) -> None:
    log: list[int] = []
    note = PLAIN
    for producer, count in runs:
        note = note.written_by(producer, len(log))
        log += [producer] * count
    assert set(log[note.known_from :]) <= note.producers
    assert len(note.writers) <= WRITERS_MAX


def test_the_largest_note_that_is_bounded_fits() -> None:
    note = SourceNote("c" * 22, "t" * 249, OLD_ID, 99_999).coming_through(f"cluster-{i:014}" for i in range(60))
    for producer in range(10**18, 10**18 + 200):
        note = note.written_by(producer, producer)
    assert NOTE_BYTES_MAX - 100 < len(note.encode()) <= NOTE_BYTES_MAX
    assert note.known_from == note.writers[0].producer
    assert 2 < len(note.writers) < WRITERS_MAX


def test_more_clusters_make_room_by_forgetting_producer_ids() -> None:
    note = SourceNote("c" * 22, "t" * 249, OLD_ID, 99_999)
    for producer in range(10**18, 10**18 + WRITERS_MAX):
        note = note.written_by(producer, producer)
    grown = note.coming_through(f"cluster-{i:014}" for i in range(60))
    assert len(grown.writers) < len(note.writers)
    assert grown.known_from == grown.writers[0].producer
    assert grown.coming_through(["cluster-00000000000000"]) is grown
    grown.encode()


def test_a_note_that_cannot_be_made_to_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"orders-3 of cluster west: .* 4096 are the limit; .* through 500 clusters"):
        PLAIN.coming_through(str(number) * 10 for number in range(500)).encode()


def test_who_takes_over_still_names_who_wrote_before() -> None:
    again = SourceNote("west", "orders", NEW_ID, 3, through=frozenset({"east"})).succeeding(FULL)
    assert (again.topic_id, again.writers, again.known_from) == (NEW_ID, FULL.writers, 50)
    assert again.through == {"east", "north", "south"}


def test_who_copies_from_another_cluster_does_not_take_over() -> None:
    with pytest.raises(ConfigError, match="the position is one of orders-3 of cluster west, and the source is cluster"):
        SourceNote("east", "orders", NEW_ID, 3).succeeding(FULL)


# What it is compared with


@pytest.mark.parametrize(
    "other",
    [
        PLAIN,
        FULL,
        SourceNote("west", "orders", None, 3),
        SourceNote("west", "renamed", OLD_ID, 3),
    ],
)
def test_it_is_the_same_source(other: SourceNote) -> None:
    assert PLAIN.same_source(other)
    assert other.same_source(PLAIN)
    assert PLAIN.difference(other) is None


MADE_ANEW = (
    "topic orders was deleted and created again since the position was committed (its id was "
    f"{NEW_ID} and is {OLD_ID}), and the position means nothing in the new one"
)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            SourceNote("east", "orders", OLD_ID, 3),
            "the position is one of orders-3 of cluster east, and the source is cluster west",
        ),
        (SourceNote("west", "orders", NEW_ID, 3), MADE_ANEW),
        (
            SourceNote("west", "payments", NEW_ID, 3),
            "the position is one of payments-3 of cluster west, and the source is orders-3",
        ),
        (
            SourceNote("west", "payments", None, 3),
            "the position is one of payments-3 of cluster west, and the source is orders-3",
        ),
        (
            SourceNote("west", "orders", OLD_ID, 4),
            "the position is one of orders-4 of cluster west, and the source is orders-3",
        ),
    ],
)
def test_another_source_is_told_in_words(found: SourceNote, text: str) -> None:
    assert not PLAIN.same_source(found)
    assert PLAIN.difference(found) == text


# Names


def test_a_pipeline_has_a_group_of_its_own() -> None:
    assert group_of("to-east") == "penstock.to-east"
    assert pipeline_of("penstock.to-east") == "to-east"
    assert pipeline_of("payments") is None


@pytest.mark.parametrize("name", ["a", "to-east", "a.b_c", "x" * 100])
def test_names_of_pipelines(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "a\n", "x" * 101, None, 5])
def test_what_is_no_name_of_a_pipeline_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="name: a pipeline is called by 1 to 100 letters"):
        check_name(name)


pipelines = st.from_regex(r"[a-c._-]{1,4}", fullmatch=True)
strands = st.tuples(pipelines, st.from_regex(r"[a-c./_-]{1,6}", fullmatch=True), st.integers(0, 20))


@given(strands, strands)
def test_no_two_copiers_fence_each_other(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert (transactional_id(*one) == transactional_id(*other)) == (one == other)
