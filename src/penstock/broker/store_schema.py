"""The tables of the store, and how a file gets them: what each holds is told in `store`.

A file says in its header whose it is and of which version. One of an older version is brought to the present one in one
transaction; one of a newer version, or of another program, is refused and left as it is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from penstock.errors import FolderFormatError

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x50656E53
"""What the file says it belongs to: "PenS"."""

FIRST: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE topics (
  id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, partitioned INTEGER NOT NULL,
  created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE settings (
  kind TEXT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, scope, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE cursors (
  topic_id BLOB NOT NULL, partition INTEGER NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL,
  ranges BLOB NOT NULL, changed_ms INTEGER NOT NULL, PRIMARY KEY (topic_id, partition, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE offsets (
  "group" TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
  epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL, expires_ms INTEGER,
  PRIMARY KEY ("group", topic, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX offsets_by_topic ON offsets (topic);
CREATE TABLE pending (
  number INTEGER PRIMARY KEY AUTOINCREMENT, producer INTEGER NOT NULL,
  "group" TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
  epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL, expires_ms INTEGER,
  UNIQUE (producer, "group", topic, partition)
) STRICT;
CREATE INDEX pending_by_group ON pending ("group", topic, partition);
CREATE INDEX pending_by_topic ON pending (topic);
CREATE TABLE groups (name TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE transactions (id TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE producers (
  topic_id BLOB NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL, state BLOB NOT NULL,
  PRIMARY KEY (topic_id, partition)
) STRICT;
"""

MIGRATIONS: Final = (FIRST,)
"""What brings a file from one version to the next; the first makes it."""


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Bring a file to the present version, a new one included; FolderFormatError when that cannot be."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    owner = db.execute("PRAGMA application_id").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if owner != APPLICATION_ID and (owner or version or tables):
        raise FolderFormatError(f"{path} is a database of something else")
    if version > SCHEMA_VERSION:
        raise FolderFormatError(
            f"{path} is of version {version}, made by a newer Penstock; this one reads {SCHEMA_VERSION}"
        )
    if version == SCHEMA_VERSION:
        return
    steps = "".join(MIGRATIONS[version:])
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
    db.executescript(f"BEGIN IMMEDIATE; {steps} {marks} COMMIT;")
