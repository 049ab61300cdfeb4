"""Time, as an object that can be given: who needs the time takes a clock, and a test gives one it moves by hand.

Deadlines and durations use `monotonic`, which never goes back; only what other machines see (times of messages) uses
the wall clock, which may be set at any moment.
"""

from __future__ import annotations

import time
from typing import Protocol

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """What tells the time."""

    def monotonic(self) -> float:
        """Seconds since an unknown moment; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as set on this machine; may jump either way."""


class SystemClock:
    """The machine's time."""

    __slots__ = ()

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds of the wall clock."""
        return time.time_ns() // _NS_PER_MS

    def __repr__(self) -> str:
        return "SystemClock()"


class ManualClock:
    """Time that stands still until a test moves it.

    It counts whole nanoseconds, so that many small steps add up exactly.
    """

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, monotonic: float = 0.0, wall_ms: int = 0) -> None:
        self._monotonic_ns = round(monotonic * _NS_PER_S)
        self._wall_ns = wall_ms * _NS_PER_MS

    def monotonic(self) -> float:
        """Seconds moved so far, on top of where the clock started."""
        return self._monotonic_ns / _NS_PER_S

    def wall_ms(self) -> int:
        """Milliseconds of the wall clock, which moves along unless set."""
        return self._wall_ns // _NS_PER_MS

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if not seconds >= 0:
            raise ValueError(f"time passes forward only, not by {seconds} s; set_wall_ms sets the wall clock back")
        passed_ns = round(seconds * _NS_PER_S)
        self._monotonic_ns += passed_ns
        self._wall_ns += passed_ns

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock alone, forward or back, as an administrator or a time server would."""
        self._wall_ns = wall_ms * _NS_PER_MS

    def __repr__(self) -> str:
        return f"ManualClock(monotonic={self.monotonic()}, wall_ms={self.wall_ms()})"
