"""The store: what it remembers, in which order, and which files it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.broker.store import (
    FILE,
    CursorRow,
    OffsetRow,
    Scope,
    Store,
    TopicRow,
    drop_cursors,
    drop_settings,
    drop_topic,
    put_cursors,
    put_fact,
    put_offsets,
    put_producers,
    put_settings,
    put_topic,
    put_transaction,
    storage_error,
)
from penstock.broker.store_schema import APPLICATION_ID, SCHEMA_VERSION
from penstock.errors import (
    FolderFormatError,
    StorageDamagedError,
    StorageError,
    StorageFailedError,
    StorageFullError,
    StorageReadOnlyError,
)
from tests.broker.rounds import HandRounds

ORDERS = TopicRow(uuid4(), "orders", 3, True, 5)
BILLS = TopicRow(uuid4(), "acme/sales/bills", 1, False, 6)


class Kept:
    """A store with rounds by hand, that can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()

    def open(self) -> None:
        self.store = Store(self.folder)
        self.rounds = HandRounds(self.store)

    def close(self) -> None:
        self.store.close()
        self.rounds.close()

    def again(self) -> Store:
        self.rounds.run_all()
        self.close()
        self.open()
        return self.store


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.close()


def test_a_new_store_is_empty(kept: Kept) -> None:
    store = kept.store
    assert store.fact("cluster_id") is None
    assert [*store.topics(), *store.cursors(), *store.offsets(), *store.groups(), *store.transactions()] == []
    assert store.settings() == {}
    assert store.producers(ORDERS.id, 0) is None


def test_topics_come_back(kept: Kept) -> None:
    kept.store.write(lambda db: put_topic(db, ORDERS))
    kept.store.write(lambda db: put_topic(db, BILLS))
    assert list(kept.again().topics()) == [BILLS, ORDERS]
    kept.store.write(lambda db: put_topic(db, ORDERS._replace(partitions=9)))
    assert list(kept.again().topics()) == [BILLS, ORDERS._replace(partitions=9)]


def test_two_topics_cannot_have_one_name(kept: Kept) -> None:
    kept.store.write(lambda db: put_topic(db, ORDERS))
    kept.store.write(lambda db: put_topic(db, ORDERS._replace(id=uuid4())))
    with pytest.raises(sqlite3.IntegrityError):
        kept.rounds.run()


def test_a_deleted_topic_takes_along_what_belongs_to_it(kept: Kept) -> None:
    def fill(db: sqlite3.Connection) -> None:
        for row in (ORDERS, BILLS):
            put_topic(db, row)
            put_settings(db, Scope("topic", row.name), {"retention_ms": 1})
            put_cursors(db, [CursorRow(row.id, 0, "reader", 4, b"\x00", 1)])
            put_offsets(db, [OffsetRow("group", row.name, 0, 4, -1, "", 1)])
            put_producers(db, row.id, 0, 4, b"state")

    kept.store.write(fill)
    kept.store.write(lambda db: drop_topic(db, ORDERS))
    store = kept.again()
    assert list(store.topics()) == [BILLS]
    assert store.settings() == {Scope("topic", BILLS.name): {"retention_ms": 1}}
    assert [row.topic_id for row in store.cursors()] == [BILLS.id]
    assert [row.topic for row in store.offsets()] == [BILLS.name]
    assert store.producers(ORDERS.id, 0) is None
    assert store.producers(BILLS.id, 0) == (4, b"state")


def test_what_is_written_for_a_deleted_topic_is_not_kept(kept: Kept) -> None:
    kept.store.write(lambda db: put_topic(db, ORDERS))
    kept.store.write(lambda db: drop_topic(db, ORDERS))
    kept.store.write(lambda db: put_cursors(db, [CursorRow(ORDERS.id, 0, "reader", 4, b"\x00", 1)]))
    kept.store.write(lambda db: put_producers(db, ORDERS.id, 0, 4, b"state"))
    store = kept.again()
    assert list(store.cursors()) == []
    assert store.producers(ORDERS.id, 0) is None


def test_settings_of_any_kind_come_back(kept: Kept) -> None:
    values: dict[str, object] = {"retention_ms": None, "segment_ms": 1, "time_type": "log", "keep_unread": True}
    kept.store.write(lambda db: put_settings(db, Scope("broker"), values))
    assert kept.again().settings() == {Scope("broker"): values}
    kept.store.write(lambda db: drop_settings(db, Scope("broker"), ["retention_ms", "unknown"]))
    del values["retention_ms"]
    assert kept.again().settings() == {Scope("broker"): values}


def test_cursors_come_back_until_they_are_dropped(kept: Kept) -> None:
    first = CursorRow(ORDERS.id, 0, "first", 4, b"\x00", 1)
    second = CursorRow(ORDERS.id, 1, "first", 1 << 62, b"\x01\x02\x03", 2)
    kept.store.write(lambda db: put_topic(db, ORDERS))
    kept.store.write(lambda db: put_cursors(db, [first, second]))
    assert sorted(kept.again().cursors()) == sorted([first, second])
    kept.store.write(lambda db: put_cursors(db, [first._replace(position=9)]))
    kept.store.write(lambda db: drop_cursors(db, [(ORDERS.id, 1, "first"), (ORDERS.id, 7, "none")]))
    assert list(kept.again().cursors()) == [first._replace(position=9)]


def test_groups_and_their_offsets_come_back(kept: Kept) -> None:
    rows = [
        OffsetRow("a", "orders", 0, 10, 3, "text", 7, 8),
        OffsetRow("a", "orders", 1, 11, -1, "", 7),
        OffsetRow("b", "orders", 0, 12, -1, "", 7),
    ]
    kept.store.save_offsets(rows)
    kept.store.save_group("a", b"members")
    store = kept.again()
    assert list(store.offsets()) == rows
    assert list(store.groups()) == [("a", b"members")]
    kept.store.save_offsets([rows[0]._replace(position=99)])
    kept.store.drop_offsets("a", [("orders", 1), ("nothing", 0)])
    assert list(kept.again().offsets()) == [rows[0]._replace(position=99), rows[2]]
    kept.store.write(lambda db: put_settings(db, Scope("group", "a"), {"entry_filters": "none"}))
    kept.store.drop_group("a")
    store = kept.again()
    assert list(store.offsets()) == [rows[2]]
    assert list(store.groups()) == []
    assert store.settings() == {Scope("group", "a"): {"entry_filters": "none"}}


def test_transactions_come_back(kept: Kept) -> None:
    kept.store.save_transaction("mine", b"one")
    kept.store.save_transaction("other", b"two")
    kept.store.save_transaction("mine", b"three")
    kept.store.drop_transaction("other")
    assert list(kept.again().transactions()) == [("mine", b"three")]


def test_numbers_are_given_once(kept: Kept) -> None:
    assert kept.store.reserve("producer", 1000) == range(1000)
    assert kept.store.reserve("producer", 10) == range(1000, 1010)
    assert kept.store.reserve("other", 1) == range(1)
    assert kept.again().reserve("producer", 1) == range(1010, 1011)


def test_numbers_whose_round_failed_are_not_given_again(kept: Kept) -> None:
    told: list[Exception | None] = []
    kept.rounds.fail_with = StorageFullError("full")
    assert kept.store.reserve("producer", 10, told.append) == range(10)
    kept.rounds.run()
    assert kept.store.reserve("producer", 10, told.append) == range(10, 20)
    kept.rounds.run()
    assert isinstance(told[0], StorageFullError)
    assert told[1] is None


def test_work_is_all_or_nothing(kept: Kept) -> None:
    def work(db: sqlite3.Connection) -> None:
        put_transaction(db, "mine", b"ended")
        put_offsets(db, [OffsetRow("a", "orders", 0, 10, -1, "", 7)])

    told: list[Exception | None] = []
    kept.rounds.fail_with = sqlite3.OperationalError("disk I/O error")
    kept.store.write(work, told.append)
    store = kept.again()
    assert [*store.transactions(), *store.offsets()] == []
    assert isinstance(told[0], StorageFailedError)
    kept.store.write(work, told.append)
    store = kept.again()
    assert len([*store.transactions(), *store.offsets()]) == 2
    assert told[1] is None


def test_an_error_that_is_not_the_stores_is_told_as_it_is(kept: Kept) -> None:
    told: list[Exception | None] = []
    kept.rounds.fail_with = StorageReadOnlyError("a log")
    kept.store.write(lambda db: None, told.append)
    kept.rounds.run()
    assert isinstance(told[0], StorageReadOnlyError)


def test_nothing_is_written_without_a_commit_thread(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError, match="no commit thread"):
        store.write(lambda db: None)
    store.close()


def test_what_belongs_to_no_topic_is_swept(kept: Kept) -> None:
    kept.store.write(lambda db: put_topic(db, ORDERS))
    kept.store.save_offsets([OffsetRow("a", "orders", 0, 1, -1, "", 7), OffsetRow("a", "gone", 0, 1, -1, "", 7)])
    kept.store.write(lambda db: put_settings(db, Scope("topic", "gone"), {"segment_ms": 1}))
    kept.store.write(lambda db: put_settings(db, Scope("namespace", "gone/too"), {"segment_ms": 1}))
    store = kept.again()
    store.sweep()
    assert [row.topic for row in store.offsets()] == ["orders"]
    assert list(store.settings()) == [Scope("namespace", "gone/too")]


def test_it_syncs_and_writes_ahead(kept: Kept) -> None:
    db = kept.store.connect()
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    db.close()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    change(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(FolderFormatError, match=f"version {SCHEMA_VERSION + 1}, made by a newer Penstock"):
        Store(tmp_path)


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE theirs (id)")
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(FolderFormatError, match="a database of something else"):
        Store(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database, surely" * 1000)
    with pytest.raises(StorageDamagedError, match="not a database"):
        Store(tmp_path)


def test_a_missing_folder_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="unable to open"):
        Store(tmp_path / "nowhere")


def test_a_store_half_made_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    Store(tmp_path).close()
    store = Store(tmp_path)
    assert list(store.topics()) == []
    store.close()


def test_a_full_disk_is_told_as_such(kept: Kept) -> None:
    db = kept.store.connect()
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    kept.rounds.close()
    kept.rounds = HandRounds(kept.store)
    kept.rounds._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError) as full:
        kept.rounds._db.execute("INSERT INTO facts VALUES ('x', ?)", ("x" * 100_000,))
    assert isinstance(storage_error(full.value), StorageFullError)
    kept.store.write(lambda db: put_fact(db, "small", "x"))
    kept.rounds.run()
    assert kept.store.fact("small") == "x"
    db.close()


def change(folder: Path, statement: str) -> None:
    db = sqlite3.connect(folder / FILE)
    db.execute(statement)
    db.commit()
    db.close()
