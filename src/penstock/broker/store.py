"""What a broker must remember beside its logs: one SQLite file in WAL mode.

| table        | one row per                | holds                                                                    |
|--------------|----------------------------|--------------------------------------------------------------------------|
| facts        | name                       | the cluster's id                                                         |
| counters     | name                       | the next number to be given: ids are reserved in blocks                  |
| topics       | topic                      | id, name, partitions; the row is the topic: files without one are swept  |
| settings     | scope, name                | what was set for the broker, a namespace, a topic, a group, as JSON      |
| cursors      | topic, partition, name     | position and acknowledged ranges                                         |
| offsets      | group, topic, partition    | a group's committed position                                             |
| pending      | the same, and producer     | a position whose transaction is open yet; later rows are newer           |
| groups       | group                      | what a group must remember beside its offsets, as its owner wrote it     |
| transactions | transactional id           | a transaction's state, as the coordinator wrote it                       |
| producers    | topic, partition           | the producers of a partition up to a position                            |

The loop thread keeps all of this in memory; it reads the file at start, and a row of `producers` when it opens a
partition. Every change is a statement that runs on the commit thread, in the transaction of a round, in the order in
which changes were handed over; `done` is called on the loop thread once the round is durable, or with the error that
undid it. Several statements that must hold together or not at all are one piece of work: the `put_` and `drop_`
functions are those statements, and `Store.write` takes any function that calls them.

A change is synced before it is told, whatever the broker's fsync policy says of entries.

But for `sweep`, at start, nothing is changed but through `write`. Runs on: the loop thread, `put_` and
`drop_` functions on the commit thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from penstock.broker.store_schema import migrate
from penstock.errors import (
    StorageDamagedError,
    StorageError,
    StorageFailedError,
    StorageFullError,
    StorageReadOnlyError,
)

FILE = "store.sqlite"

Work: TypeAlias = Callable[[sqlite3.Connection], object]
Done: TypeAlias = Callable[[Exception | None], None]
"""Called once on the loop thread: None when it is durable, the error when it was undone."""


class Commits(Protocol):
    """Who makes things durable; `log.commit.Committer` is one."""

    def submit(self, work: Callable[[sqlite3.Connection], None] | None = None, done: Done | None = None) -> int:
        """Take work for the next round, and whom to tell."""


class TopicRow(NamedTuple):
    """A topic as the store knows it."""

    id: UUID
    name: str
    partitions: int
    partitioned: bool
    created_ms: int


class CursorRow(NamedTuple):
    """A cursor: all below `position` is acknowledged, and the ranges."""

    topic_id: UUID
    partition: int
    name: str
    position: int
    ranges: bytes
    changed_ms: int


class OffsetRow(NamedTuple):
    """A group's committed position: that of the next message wanted."""

    group: str
    topic: str
    partition: int
    position: int
    epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int | None = None


class Scope(NamedTuple):
    """For whom something is set: `Scope("broker")`, `Scope("namespace", "tenant/name")`, `Scope("topic", name)`."""

    kind: str
    name: str = ""


class Store:
    """The store of one data folder. `connect` gives the commit thread its own connection."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._commits: Commits | None = None
        self._counters: dict[str, int] = {}
        with storage_errors(f"opening {self._path}"), ExitStack() as undo:
            self._db = self.connect()
            undo.callback(self._db.close)
            migrate(self._db, self._path)
            self._db.execute("PRAGMA journal_mode = WAL")  # which the file remembers
            self._counters.update(self._db.execute("SELECT name, next FROM counters"))
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<Store {self._path}>"

    def connect(self) -> sqlite3.Connection:
        """A new connection to the file, without a transaction begun, for any one thread; errors are SQLite's own."""
        with ExitStack() as undo:
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
            undo.callback(db.close)
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA cache_size = -1024")
            db.execute("PRAGMA busy_timeout = 5000")
            undo.pop_all()
        return db

    def sweep(self) -> None:
        """Forget what belongs to no topic; for a start, before anything is read."""
        with storage_errors(f"sweeping {self._path}"):
            self._db.execute("BEGIN IMMEDIATE")
            drop_orphans(self._db)
            self._db.execute("COMMIT")

    def attach(self, commits: Commits) -> None:
        """Name who makes changes durable."""
        self._commits = commits

    def write(self, work: Work, done: Done | None = None) -> int:
        """Have `work` done in the next round, and `done` called when it is durable; returns the ticket.

        Work that raises is undone, and so may be all of its round: it should raise for the disk's sake only.
        """
        if self._commits is None:
            raise RuntimeError("the store has no commit thread yet")
        told = None if done is None else lambda error: done(None if error is None else storage_error(error))
        return self._commits.submit(lambda db: void(work(db)), told)

    def close(self) -> None:
        """Let go of the file; what was handed over is the commit thread's business."""
        self._db.close()

    # What is read at start

    def fact(self, name: str) -> str | None:
        """One remembered text."""
        row = self._read("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def topics(self) -> Iterator[TopicRow]:
        """All topics, by name."""
        for row in self._read("SELECT id, name, partitions, partitioned, created_ms FROM topics ORDER BY name"):
            yield TopicRow(UUID(bytes=row[0]), row[1], row[2], bool(row[3]), row[4])

    def settings(self) -> dict[Scope, dict[str, object]]:
        """All that was set, by scope."""
        found: dict[Scope, dict[str, object]] = {}
        for kind, scope, name, value in self._read("SELECT kind, scope, name, value FROM settings"):
            found.setdefault(Scope(kind, scope), {})[name] = json.loads(value)
        return found

    def cursors(self) -> Iterator[CursorRow]:
        """All cursors."""
        for row in self._read("SELECT topic_id, partition, name, position, ranges, changed_ms FROM cursors"):
            yield CursorRow(UUID(bytes=row[0]), *row[1:])

    def offsets(self) -> Iterator[OffsetRow]:
        """All groups' committed positions, group by group."""
        yield from map(OffsetRow._make, self._read('SELECT * FROM offsets ORDER BY "group", topic, partition'))

    def groups(self) -> Iterator[tuple[str, bytes]]:
        """What each group remembers."""
        yield from self._read("SELECT name, state FROM groups ORDER BY name")

    def transactions(self) -> Iterator[tuple[str, bytes]]:
        """The state of each transactional id."""
        yield from self._read("SELECT id, state FROM transactions ORDER BY id")

    def producers(self, topic_id: UUID, partition: int) -> tuple[int, bytes] | None:
        """The producers of a partition as they were once all entries below the position given were stored."""
        question = "SELECT position, state FROM producers WHERE topic_id = ? AND partition = ?"
        row = self._read(question, (topic_id.bytes, partition)).fetchone()
        return None if row is None else (row[0], row[1])

    # What is changed

    def reserve(self, counter: str, numbers: int, done: Done | None = None) -> range:
        """Take the next numbers of a counter, from 0 on; whoever is given one must wait for `done`."""
        first = self._counters.get(counter, 0)
        self._counters[counter] = first + numbers
        self.write(lambda db: put_counter(db, counter, first + numbers), done)
        return range(first, first + numbers)

    def save_offsets(self, rows: Sequence[OffsetRow], done: Done | None = None) -> None:
        """Remember committed positions."""
        self.write(lambda db: put_offsets(db, rows), done)

    def drop_offsets(self, group: str, partitions: Sequence[tuple[str, int]], done: Done | None = None) -> None:
        """Forget a group's positions in these (topic, partition)s."""
        self.write(lambda db: drop_offsets(db, group, partitions), done)

    def save_group(self, group: str, state: bytes, done: Done | None = None) -> None:
        """Remember a group."""
        self.write(lambda db: put_group(db, group, state), done)

    def drop_group(self, group: str, done: Done | None = None) -> None:
        """Forget a group with its offsets; what was set for one of that name stays."""
        self.write(lambda db: drop_group(db, group), done)

    def save_transaction(self, transactional_id: str, state: bytes, done: Done | None = None) -> None:
        """Remember a transaction's state."""
        self.write(lambda db: put_transaction(db, transactional_id, state), done)

    def drop_transaction(self, transactional_id: str, done: Done | None = None) -> None:
        """Forget a transactional id."""
        self.write(lambda db: drop_transaction(db, transactional_id), done)

    def _read(self, question: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        with storage_errors(f"reading {self._path}"):
            return self._db.execute(question, values)


# The statements: each is part of some work, on the commit thread.


def put_fact(db: sqlite3.Connection, name: str, value: str) -> None:
    """Remember one text."""
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def put_counter(db: sqlite3.Connection, name: str, next_number: int) -> None:
    """Remember which number is the next; it never goes back."""
    db.execute(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET next = max(next, excluded.next)",
        (name, next_number),
    )


def put_topic(db: sqlite3.Connection, row: TopicRow) -> None:
    """Remember a topic, new or changed."""
    values = (row.id.bytes, row.name, row.partitions, int(row.partitioned), row.created_ms)
    db.execute(
        "INSERT INTO topics VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET partitions = excluded.partitions",
        values,
    )


def drop_topic(db: sqlite3.Connection, row: TopicRow) -> None:
    """Forget a topic with its settings, its cursors, its producers and the groups' offsets in it."""
    for table in ("cursors", "producers"):
        db.execute(f"DELETE FROM {table} WHERE topic_id = ?", (row.id.bytes,))  # noqa: S608
    db.execute("DELETE FROM offsets WHERE topic = ?", (row.name,))
    db.execute("DELETE FROM pending WHERE topic = ?", (row.name,))
    db.execute("DELETE FROM settings WHERE kind = 'topic' AND scope = ?", (row.name,))
    db.execute("DELETE FROM topics WHERE id = ?", (row.id.bytes,))


def put_settings(db: sqlite3.Connection, scope: Scope, values: Mapping[str, object]) -> None:
    """Remember what is set."""
    rows = [(*scope, name, json.dumps(value)) for name, value in values.items()]
    db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?, ?, ?)", rows)


def drop_settings(db: sqlite3.Connection, scope: Scope, names: Iterable[str]) -> None:
    """Take back what was set."""
    rows = [(*scope, name) for name in names]
    db.executemany("DELETE FROM settings WHERE kind = ? AND scope = ? AND name = ?", rows)


def put_cursors(db: sqlite3.Connection, rows: Iterable[CursorRow]) -> None:
    """Remember cursors, but for those whose topic is gone meanwhile."""
    known = "SELECT 1 FROM topics WHERE id = ?1"
    statement = f"INSERT OR REPLACE INTO cursors SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS ({known})"
    db.executemany(statement, [(row.topic_id.bytes, *row[1:]) for row in rows])


def drop_cursors(db: sqlite3.Connection, keys: Iterable[tuple[UUID, int, str]]) -> None:
    """Forget cursors, each by topic, partition and name."""
    values = [(topic_id.bytes, partition, name) for topic_id, partition, name in keys]
    db.executemany("DELETE FROM cursors WHERE topic_id = ? AND partition = ? AND name = ?", values)


def put_offsets(db: sqlite3.Connection, rows: Iterable[OffsetRow]) -> None:
    """Remember committed positions."""
    db.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def drop_offsets(db: sqlite3.Connection, group: str, partitions: Iterable[tuple[str, int]]) -> None:
    """Forget a group's positions in these (topic, partition)s."""
    values = [(group, topic, partition) for topic, partition in partitions]
    db.executemany('DELETE FROM offsets WHERE "group" = ? AND topic = ? AND partition = ?', values)


def put_group(db: sqlite3.Connection, group: str, state: bytes) -> None:
    """Remember a group."""
    db.execute("INSERT OR REPLACE INTO groups VALUES (?, ?)", (group, state))


def drop_group(db: sqlite3.Connection, group: str) -> None:
    """Forget a group with its offsets; what was set for one of that name stays."""
    db.execute('DELETE FROM offsets WHERE "group" = ?', (group,))
    db.execute('DELETE FROM pending WHERE "group" = ?', (group,))
    db.execute("DELETE FROM groups WHERE name = ?", (group,))


def put_transaction(db: sqlite3.Connection, transactional_id: str, state: bytes) -> None:
    """Remember a transaction's state."""
    db.execute("INSERT OR REPLACE INTO transactions VALUES (?, ?)", (transactional_id, state))


def drop_transaction(db: sqlite3.Connection, transactional_id: str) -> None:
    """Forget a transactional id."""
    db.execute("DELETE FROM transactions WHERE id = ?", (transactional_id,))


def put_producers(db: sqlite3.Connection, topic_id: UUID, partition: int, position: int, state: bytes) -> None:
    """Remember the producers of a partition as of a position; nothing if the topic is gone meanwhile."""
    db.execute(
        "INSERT OR REPLACE INTO producers SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM topics WHERE id = ?1)",
        (topic_id.bytes, partition, position, state),
    )


def drop_orphans(db: sqlite3.Connection) -> None:
    """Forget what belongs to no topic."""
    for table in ("cursors", "producers"):
        db.execute(f"DELETE FROM {table} WHERE topic_id NOT IN (SELECT id FROM topics)")  # noqa: S608
    for table in ("offsets", "pending"):
        db.execute(f"DELETE FROM {table} WHERE topic NOT IN (SELECT name FROM topics)")  # noqa: S608
    db.execute("DELETE FROM settings WHERE kind = 'topic' AND scope NOT IN (SELECT name FROM topics)")


def void(_: object) -> None:
    """Nothing, whatever was given."""


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn what SQLite raises into an error of the storage tree."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(error, doing) from error


_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}
_READ_ONLY = {"SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM"}
_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


def storage_error(error: Exception, doing: str = "writing the store") -> Exception:
    """The error of the storage tree that one of SQLite's amounts to; any other as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    name = getattr(error, "sqlite_errorname", "") or ""
    kind: type[StorageError] = StorageFailedError
    for names, meant in (
        (_FULL, StorageFullError),
        (_READ_ONLY, StorageReadOnlyError),
        (_DAMAGED, StorageDamagedError),
    ):
        if any(name == known or name.startswith(f"{known}_") for known in names):
            kind = meant
    wrapped = kind(f"{doing}: {error}")
    wrapped.__cause__ = error
    return wrapped
