"""Offsets are seen when they are durable, wait for their transactions, and are read back as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.groups.ledger import read_pending
from penstock.broker.groups.offsets import Offsets
from penstock.broker.groups.questions import Offset
from penstock.broker.store import Store, TopicRow, drop_topic
from penstock.errors import StorageFullError
from penstock.wire.protocol import Partition
from tests.broker.groups.kit import Asked, Rounds

T0, T1, U0 = Partition("t", 0), Partition("t", 1), Partition("u", 0)


class Books:
    """Offsets with a real store whose rounds are run by hand."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.rounds = Rounds(self.store)
        self.store.attach(self.rounds)
        self.offsets = self.read()

    def read(self) -> Offsets:
        """What a new start would know."""
        offsets = Offsets(self.store)
        offsets.load(self.store.offsets(), read_pending(self.store))
        return offsets

    def close(self) -> None:
        self.rounds.close()
        self.store.close()

    def commit(self, group: str, **positions: int) -> Asked:
        asked = Asked()
        self.offsets.commit(group, _offsets(positions), asked)
        return asked

    def promise(self, producer: int, group: str, **positions: int) -> Asked:
        asked = Asked()
        self.offsets.commit_pending(producer, group, _offsets(positions), asked)
        return asked

    def positions(self, group: str) -> dict[str, int]:
        return {str(it).replace("-", ""): offset.position for it, offset in self.offsets.of(group).items()}


def _offsets(positions: dict[str, int]) -> dict[Partition, Offset]:
    return {Partition(name[0], int(name[1])): Offset(position) for name, position in positions.items()}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    books = Books(tmp_path)
    yield books
    books.close()


def test_a_commit_is_seen_when_it_is_durable(books: Books) -> None:
    asked = books.commit("g", t0=5)
    assert books.positions("g") == {}
    assert books.offsets.is_writing("g")
    books.rounds.run()
    assert asked.answer is None
    assert books.positions("g") == {"t0": 5}
    assert not books.offsets.is_writing("g")


def test_everything_about_an_offset_is_kept(books: Books) -> None:
    offset = Offset(7, 3, "a note", 1234, 5678)
    books.offsets.commit("g", {T0: offset}, lambda _error: None)
    books.rounds.run()
    assert books.offsets.of("g") == {T0: offset}
    assert books.read().of("g") == {T0: offset}


def test_a_commit_that_failed_is_not_seen(books: Books) -> None:
    books.commit("g", t0=5)
    books.rounds.run()
    error = StorageFullError("full")
    asked = books.commit("g", t0=6)
    books.rounds.run(error)
    assert asked.answer is error
    assert books.positions("g") == {"t0": 5}
    books.commit("g", t0=7)
    books.rounds.run()
    assert books.positions("g") == {"t0": 7}


def test_who_reads_is_answered_behind_what_was_committed_before(books: Books) -> None:
    seen: list[dict[str, int]] = []
    books.offsets.when_settled("g", lambda: seen.append(books.positions("g")))
    assert seen == [{}]
    books.commit("g", t0=5)
    books.offsets.when_settled("g", lambda: seen.append(books.positions("g")))
    books.offsets.when_settled("other", lambda: seen.append({}))
    assert len(seen) == 2
    books.rounds.run()
    assert seen[2:] == [{"t0": 5}]


def test_offsets_of_a_transaction_wait_for_its_end(books: Books) -> None:
    asked = books.promise(1, "g", t0=5, u0=6)
    books.rounds.run()
    assert asked.answer is None
    assert books.positions("g") == {}
    assert set(books.offsets.pending_of("g")) == {T0, U0}
    assert books.offsets.producers() == {1}
    ended = Asked()
    books.offsets.end_transaction(1, commit=True, done=ended)
    assert not ended.is_answered
    books.rounds.run()
    assert ended.answer is None
    assert books.positions("g") == {"t0": 5, "u0": 6}
    assert set(books.offsets.pending_of("g")) == set()
    assert books.offsets.producers() == set()


def test_offsets_of_an_aborted_transaction_are_forgotten(books: Books) -> None:
    books.commit("g", t0=1)
    books.promise(1, "g", t0=5)
    books.promise(2, "h", t0=6)
    books.rounds.run()
    books.offsets.end_transaction(1, commit=False)
    books.rounds.run()
    assert books.positions("g") == {"t0": 1}
    assert books.offsets.producers() == {2}


def test_an_end_that_comes_before_the_offsets_are_durable_counts_for_them(books: Books) -> None:
    books.promise(1, "g", t0=5)
    books.offsets.end_transaction(1, commit=True)
    seen: list[dict[str, int]] = []
    books.offsets.when_settled("g", lambda: seen.append(books.positions("g")))
    books.rounds.run()
    assert seen == [{"t0": 5}]


def test_an_end_may_be_told_again_and_of_anybody(books: Books) -> None:
    books.promise(1, "g", t0=5)
    books.rounds.run()
    books.offsets.end_transaction(1, commit=True)
    books.offsets.end_transaction(1, commit=True)
    books.rounds.run()
    asked = Asked()
    books.offsets.end_transaction(1, commit=True, done=asked)
    assert asked.answer is None
    assert books.positions("g") == {"t0": 5}


def test_the_newest_offset_counts_whenever_its_transaction_ends(books: Books) -> None:
    books.promise(1, "g", t0=5)
    books.promise(2, "g", t0=6, t1=6)
    books.rounds.run()
    books.offsets.end_transaction(2, commit=True)
    books.offsets.end_transaction(1, commit=True)
    books.rounds.run()
    assert books.positions("g") == {"t0": 6, "t1": 6}
    books.promise(3, "g", t0=7)
    books.commit("g", t0=8)
    books.offsets.end_transaction(3, commit=True)
    books.rounds.run()
    assert books.positions("g")["t0"] == 8


def test_transactions_that_were_open_are_open_after_a_start(books: Books) -> None:
    books.promise(1, "g", t0=5)
    books.promise(2, "g", t0=6)
    books.rounds.run()
    books.offsets = books.read()
    assert books.offsets.producers() == {1, 2}
    books.offsets.end_transaction(2, commit=True)
    books.offsets.end_transaction(1, commit=True)
    books.rounds.run()
    assert books.positions("g") == {"t0": 6}


def test_offsets_go_with_their_topic(books: Books) -> None:
    books.commit("g", t0=1, t1=1, u0=1)
    books.commit("h", t0=1)
    books.promise(1, "g", t0=5, u0=5)
    books.rounds.run()
    books.offsets.topic_deleted("t")
    assert books.positions("g") == {"u0": 1}
    assert books.offsets.groups() == {"g"}
    assert set(books.offsets.pending_of("g")) == {U0}


def test_a_group_goes_with_all_its_offsets(books: Books) -> None:
    books.commit("g", t0=1)
    books.promise(1, "g", t1=5)
    books.rounds.run()
    books.offsets.drop_group("g")
    books.rounds.run()
    assert books.offsets.groups() == set()
    assert books.read().groups() == set()
    assert books.offsets.producers() == set()


TOPICS = st.sampled_from("tu")
GROUPS = st.sampled_from("gh")
PRODUCERS = st.integers(1, 3)
POSITIONS = st.dictionaries(st.sampled_from(["t0", "t1", "u0"]), st.integers(0, 99), min_size=1)


class BooksModel(RuleBasedStateMachine):
    """What is in memory is what a new start would read, and what a model of a few lines says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.books = Books(Path(self.folder.name))
        self.committed: dict[tuple[str, str], int] = {}
        self.pending: list[tuple[int, tuple[str, str], int]] = []

    @rule(group=GROUPS, positions=POSITIONS)
    def commit(self, group: str, positions: dict[str, int]) -> None:
        self.books.commit(group, **positions)
        for name, position in positions.items():
            self.put((group, name), position)

    @rule(producer=PRODUCERS, group=GROUPS, positions=POSITIONS)
    def promise(self, producer: int, group: str, positions: dict[str, int]) -> None:
        self.books.promise(producer, group, **positions)
        for name, position in positions.items():
            self.pending = [it for it in self.pending if it[:2] != (producer, (group, name))]
            self.pending.append((producer, (group, name), position))

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        self.books.offsets.end_transaction(producer, commit)
        for who, key, position in list(self.pending):
            if who == producer and commit and (who, key, position) in self.pending:
                self.put(key, position, self.pending.index((who, key, position)))
        self.pending = [it for it in self.pending if it[0] != producer]

    def put(self, key: tuple[str, str], position: int, before: int | None = None) -> None:
        self.committed[key] = position
        older = self.pending[:before]
        self.pending = [it for it in older if it[1] != key] + ([] if before is None else self.pending[before:])

    @rule(group=GROUPS)
    def drop_group(self, group: str) -> None:
        self.books.offsets.drop_group(group)
        self.keep(lambda key: key[0] != group)

    @rule(group=GROUPS, names=st.sets(st.sampled_from(["t0", "u0"])))
    def drop(self, group: str, names: set[str]) -> None:
        self.books.offsets.drop(group, list(_offsets(dict.fromkeys(names, 0))))
        self.keep(lambda key: key[0] != group or key[1] not in names)

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        row = TopicRow(_id(topic), topic, 2, True, 0)
        self.books.store.write(lambda db: drop_topic(db, row), lambda _error: self.books.offsets.topic_deleted(topic))
        self.keep(lambda key: key[1][0] != topic)

    def keep(self, is_kept: Any) -> None:
        self.committed = {key: position for key, position in self.committed.items() if is_kept(key)}
        self.pending = [it for it in self.pending if is_kept(it[1])]

    @rule()
    def run(self) -> None:
        self.books.rounds.run()
        for offsets in (self.books.offsets, self.books.read()):
            found = {(it.group, f"{it.topic}{it.partition}"): it.position for it in offsets.positions()}
            assert found == self.committed
            waiting = {(group, str(it).replace("-", "")) for group in "gh" for it in offsets.pending_of(group)}
            assert waiting == {key for _, key, _ in self.pending}
            assert offsets.producers() == {who for who, _, _ in self.pending}
            counts = Counter((key[1][0], key[0]) for key in [*self.committed, *(key for _, key, _ in self.pending)])
            held = {(topic, group): n for topic, groups in offsets._groups_in.items() for group, n in groups.items()}
            assert held == counts

    @invariant()
    def nothing_is_being_written_when_all_is_durable(self) -> None:
        if self.books.rounds.is_idle:
            assert not self.books.offsets._writing
            assert not self.books.offsets._promising

    def teardown(self) -> None:
        self.run()
        self.books.close()
        self.folder.cleanup()


def _id(topic: str) -> Any:
    import uuid

    return uuid.UUID(int=ord(topic))


TestOffsets = BooksModel.TestCase
TestOffsets.settings = settings(max_examples=50, stateful_step_count=30)
