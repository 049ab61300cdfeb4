"""How fast copying may go: so many of something in a second. Time is an argument. Pure."""

from __future__ import annotations

import math

BURST_S = 0.1
"""What may go at once after a rest, as seconds of the rate."""


class Rate:
    """So many units in a second; None: as many as there are.

    Whatever is due goes whole, however large it is, and is paid for afterwards: nothing is too large to go at all.
    """

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._credit = 0.0
        self._at = -math.inf

    def __repr__(self) -> str:
        return f"<Rate of {self._per_second or 'any number'} in a second, credit {self._credit:.0f}>"

    def ready_at(self, now: float) -> float:
        """From when on the next may go."""
        if self._per_second is None:
            return now
        self._earn(now)
        return now if self._credit >= 0 else now - self._credit / self._per_second

    def take(self, units: int, now: float) -> None:
        """So many go now."""
        if self._per_second is not None:
            self._earn(now)
            self._credit -= units

    def _earn(self, now: float) -> None:
        assert self._per_second is not None
        if now > self._at:
            earned = (now - self._at) * self._per_second if self._at > -math.inf else 0.0
            self._credit = min(self._credit + earned, self._per_second * BURST_S)
            self._at = now
