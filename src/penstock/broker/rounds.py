"""The loop's turns as rounds of the commit thread: all that one turn hands over is made durable together.

The first thing that is handed over in a turn holds the commit thread back, the end of the turn lets it go. So a round
never begins with the first of many appends while the others are still being made. Runs on: the loop thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

from penstock.broker.log.commit import Committer, Done
from penstock.broker.log.partition import PartitionLog


class Rounds:
    """What a turn hands to the commit thread."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._hold: AbstractContextManager[None] | None = None
        self._holds_back = True

    def __repr__(self) -> str:
        return f"<Rounds {'held back' if self._hold is not None else 'let go'}, {self._committer!r}>"

    def submit(
        self,
        work: Callable[[sqlite3.Connection], None] | None = None,
        done: Done | None = None,
        log: PartitionLog | None = None,
    ) -> int:
        """Have it made durable with the others of this turn; see `Committer.submit`."""
        if self._hold is None and self._holds_back:
            self._hold = self._committer.hold()
            self._hold.__enter__()
        return self._committer.submit(work, done, log)

    def let_go(self) -> None:
        """The turn is over."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.__exit__(None, None, None)

    def stop(self) -> None:
        """There are no turns any more: somebody waits for rounds, and nothing may hold them back."""
        self._holds_back = False
        self.let_go()
