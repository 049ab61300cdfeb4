"""How long to pause before trying again: twice as long each time, jittered, up to a limit. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

JITTER: Final = 0.2
PAUSE_MIN: Final = 0.001
"""Seconds; also where no pause is asked for, since a broker that refuses at once would keep a core busy."""
_DOUBLINGS_MAX: Final = 32

RandomSource: TypeAlias = Callable[[], float]
"""Gives numbers from 0 up to but not including 1, as `random.Random().random` does."""


class Backoff:
    """The pauses of one thing that is tried again and again.

    A pause lies within a fifth of its nominal length. It is jittered below the limit too, since clients that all wait
    exactly the limit come back together. Runs on: the I/O thread.
    """

    __slots__ = ("_failures", "_longest", "_random", "first")

    def __init__(self, first: float, longest: float, random: RandomSource) -> None:
        self.first = first
        self._longest = longest
        self._random = random
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def next(self) -> float:
        """Count a failure; the seconds to pause before the next attempt."""
        doubled = self.first * 2.0 ** min(self._failures, _DOUBLINGS_MAX)
        self._failures += 1
        nominal = min(doubled, self._longest / (1 + JITTER))
        return max(nominal * (1 + JITTER * (2 * self._random() - 1)), PAUSE_MIN)

    def reset(self) -> None:
        """It worked: the next pause is the first one again."""
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Backoff after {self._failures} failures, {self.first} to {self._longest} s>"
