"""How far the copy of a partition is behind its source, as a time.

What was forwarded and is not committed tells its own time. What was not even read is as old as the moment at which the
log was first seen to reach that far. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SEEN_MAX: Final = 64
"""So many ends of a log are remembered, each with the moment at which it was first seen."""


class Delay:
    """The age of the oldest message that is not copied."""

    def __init__(self) -> None:
        self._oldest_ms: int | None = None
        self._seen: deque[tuple[int, float]] = deque()  # how far the log reached, and when that was first seen

    def __repr__(self) -> str:
        return f"<Delay, on their way since {self._oldest_ms} ms, {len(self._seen)} ends seen>"

    def sent(self, time_ms: int) -> None:
        """Messages of this time were forwarded."""
        self._oldest_ms = time_ms if self._oldest_ms is None else self._oldest_ms

    def committed(self, oldest_ms: int | None) -> None:
        """What was forwarded is committed, up to messages of this time; None: all, or none of it counts."""
        self._oldest_ms = oldest_ms

    def saw(self, reached: int, log_end: int, now: float) -> None:
        """The log ends there at this moment, and the copy has reached so far."""
        while self._seen and self._seen[0][0] <= reached:
            self._seen.popleft()
        if log_end > reached and (not self._seen or log_end > self._seen[-1][0]) and len(self._seen) < SEEN_MAX:
            self._seen.append((log_end, now))

    def ms(self, now: float, wall_ms: int, *, is_busy: bool) -> float:
        """The delay; never 0 where messages are not copied, or something is on its way."""
        if not self._seen and not is_busy:
            return 0.0
        waiting = max((now - self._seen[0][1]) * 1000, 1.0) if self._seen else 1.0
        return waiting if self._oldest_ms is None else max(waiting, float(wall_ms - self._oldest_ms))
