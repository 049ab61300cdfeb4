"""When a position is to be committed.

| what happened | when a commit is due |
|---|---|
| the position moved | an interval after it first did |
| many bytes left since the last commit, or there is nothing more to wait for | at once |
| nothing | when what was committed would soon be forgotten: it is renewed |

Whether a commit could be made, and of what, is not known here. Pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """How a strand copies."""

    commit_interval: float
    """Seconds between commits."""
    transaction_bytes_max: int
    """Bytes after which a commit is due at once."""
    renew_after: float
    """Seconds after which a position is committed again although it has not moved."""


class CommitClock:
    """What was passed since the last commit, and since when."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._touched_at: float | None = None
        self._committed_at: float | None = None
        self._bytes_since = 0

    def __repr__(self) -> str:
        return f"<CommitClock, {self._bytes_since} bytes since {self._touched_at}, committed at {self._committed_at}>"

    @property
    def is_touched(self) -> bool:
        """Whether something was passed that is not committed."""
        return self._touched_at is not None

    def reset(self) -> None:
        """What was passed does not count: there is nothing to commit."""
        self._touched_at = self._committed_at = None
        self._bytes_since = 0

    def wind(self, now: float) -> None:
        """It runs from now on, unless it does already: what was found committed is taken for as old as this."""
        self._committed_at = now if self._committed_at is None else self._committed_at

    def touched(self, now: float, size: int = 0) -> None:
        """The position moved, or so many bytes left."""
        self._touched_at = now if self._touched_at is None else self._touched_at
        self._bytes_since += size

    def committed(self, now: float, *, is_all: bool) -> None:
        """A commit leaves; `is_all`: of all that was passed."""
        self._touched_at = None if is_all else now
        self._committed_at = now
        self._bytes_since = 0

    def due_at(self, *, can_move: bool) -> float | None:
        """When the next commit is due; None while it would only say again what the last one said."""
        if self._touched_at is not None:
            return self._touched_at + self._terms.commit_interval if can_move else None
        return None if self._committed_at is None else self._committed_at + self._terms.renew_after

    def is_due(self, now: float, *, can_move: bool, is_pressing: bool) -> bool:
        """Whether it is time; `is_pressing`: nothing that is worth waiting for comes."""
        due_at = self.due_at(can_move=can_move)
        if due_at is None:
            return False
        is_pressing = is_pressing or self._bytes_since >= self._terms.transaction_bytes_max
        return now >= due_at or (is_pressing and self.is_touched)
