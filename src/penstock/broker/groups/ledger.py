"""What the store remembers of groups: the statements for offsets whose transaction is open, and a group's few facts.

The rows of `pending` are in the order in which they were committed. An offset that is committed, with or without a
transaction, does away with all older ones that wait for theirs in the same group and partition: they could not win any
more. `offsets.py` does the same in memory, and a test compares the two.

Runs on: the commit thread, but for what is read at start.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from penstock.broker.store import OffsetRow, Store, put_offsets, storage_errors

_COLUMNS = '"group", topic, partition, position, epoch, metadata, committed_ms, expires_ms'


def put_pending(db: sqlite3.Connection, producer: int, rows: Iterable[OffsetRow]) -> None:
    """Remember offsets until the producer's transaction ends; they become the newest."""
    statement = f"INSERT OR REPLACE INTO pending (producer, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
    db.executemany(statement, [(producer, *row) for row in rows])


def put_committed(db: sqlite3.Connection, rows: Collection[OffsetRow]) -> None:
    """Remember offsets that were committed without a transaction."""
    put_offsets(db, rows)
    keys = [(row.group, row.topic, row.partition) for row in rows]
    db.executemany('DELETE FROM pending WHERE "group" = ? AND topic = ? AND partition = ?', keys)


def end_pending(db: sqlite3.Connection, producer: int, commit: bool) -> None:
    """The producer's transaction has ended."""
    if commit:
        question = f"SELECT {_COLUMNS}, number FROM pending WHERE producer = ? ORDER BY number"  # noqa: S608
        rows = db.execute(question, (producer,)).fetchall()
        put_offsets(db, [OffsetRow._make(row[:-1]) for row in rows])
        statement = 'DELETE FROM pending WHERE "group" = ? AND topic = ? AND partition = ? AND number <= ?'
        db.executemany(statement, [(*row[:3], row[-1]) for row in rows])
    else:
        db.execute("DELETE FROM pending WHERE producer = ?", (producer,))


def drop_pending(db: sqlite3.Connection, group: str, partitions: Iterable[tuple[str, int]]) -> None:
    """Forget what waits for the end of a transaction in a group's partitions."""
    keys = [(group, topic, partition) for topic, partition in partitions]
    db.executemany('DELETE FROM pending WHERE "group" = ? AND topic = ? AND partition = ?', keys)


def read_pending(store: Store) -> Iterator[tuple[int, OffsetRow]]:
    """All offsets whose transactions are open, the oldest first, with their producers. Runs on: the loop thread."""
    with closing(store.connect()) as db, storage_errors("reading the store"):
        rows = db.execute(f"SELECT producer, {_COLUMNS} FROM pending ORDER BY number").fetchall()  # noqa: S608
    for producer, *row in rows:
        yield producer, OffsetRow._make(row)


class GroupFacts(NamedTuple):
    """What a group remembers beside its offsets. Members are not remembered: they join again."""

    protocol: str
    generation: int
    kind: str | None = None
    emptied_ms: int | None = None

    def told(self) -> bytes:
        """As the store keeps it."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, state: bytes) -> GroupFacts:
        """From what the store kept."""
        return cls(**json.loads(state))
