"""Rounds by hand: a store's work is done when a test says so, and fails when a test wants that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from penstock.broker.store import Done, Store

Work = Callable[[sqlite3.Connection], None]


class HandRounds:
    """What the commit thread does with statements, one transaction a round, on the calling thread."""

    def __init__(self, store: Store) -> None:
        self._db = store.connect()
        self._waiting: list[tuple[Work | None, Done | None]] = []
        self.fail_with: Exception | None = None
        store.attach(self)

    def submit(self, work: Work | None = None, done: Done | None = None) -> int:
        self._waiting.append((work, done))
        return len(self._waiting)

    def run(self) -> None:
        """One round: all of it durable, or all of it undone."""
        waiting, self._waiting = self._waiting, []
        self._db.execute("BEGIN IMMEDIATE")
        for work, _ in waiting:
            if work is not None:
                work(self._db)
        self._db.execute("COMMIT" if self.fail_with is None else "ROLLBACK")
        error, self.fail_with = self.fail_with, None
        for _, done in waiting:
            if done is not None:
                done(error)

    def run_all(self) -> None:
        """Rounds until nothing is left; at most a hundred."""
        for _ in range(100):
            if not self._waiting:
                return
            self.run()
        raise AssertionError("there is always more to do")

    def close(self) -> None:
        self._db.close()
