"""How long to pause before trying again: twice as long each time, jittered, up to a limit. Moments compared. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

JITTER: Final = 0.2
PAUSE_MIN: Final = 0.001
"""Seconds; also where no pause is asked for, since a broker that refuses at once would keep a core busy."""
_DOUBLINGS_MAX: Final = 32

RandomSource: TypeAlias = Callable[[], float]
"""Gives numbers from 0 up to but not including 1, as `random.Random().random` does."""


def pause(failures: int, first: float, longest: float, random: RandomSource) -> float:
    """The seconds to pause after so many failures in a row."""
    doubled = first * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX)
    nominal = min(doubled, longest / (1 + JITTER))
    return max(nominal * (1 + JITTER * (2 * random() - 1)), PAUSE_MIN)


def earliest(moments: Iterable[float | None]) -> float | None:
    """The first of these moments; None stands for never."""
    found = None
    for moment in moments:
        if moment is not None and (found is None or moment < found):
            found = moment
    return found


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
        self._failures += 1
        return pause(self._failures, self.first, self._longest, self._random)

    def reset(self) -> None:
        """It worked: the next pause is the first one again."""
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Backoff after {self._failures} failures, {self.first} to {self._longest} s>"
