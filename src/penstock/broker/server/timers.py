"""Deadlines in one heap: what is to be called when. Nothing runs while none is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

SWEEP_AT = 1024


class Timer:
    """One deadline; cancelled, it is never called."""

    __slots__ = ("_timers", "call", "when")

    def __init__(self, when: float, call: Callable[[], None], timers: Timers) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call
        self._timers = timers

    def cancel(self) -> None:
        """Do not call it, if it was not called yet."""
        if self.call is not None:
            self.call = None
            self._timers.cancelled()

    def __repr__(self) -> str:
        return f"<Timer at {self.when}{', over' if self.call is None else ''}>"


class Timers:
    """All deadlines of a loop. Runs on: the loop thread.

    Most are cancelled before they are due, as a long poll's is when data comes; a cancelled one stays in the heap until
    its time, or until half of the heap is cancelled.
    """

    __slots__ = ("_cancelled", "_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call this at that time, in monotonic seconds."""
        timer = Timer(when, call, self)
        heapq.heappush(self._heap, (when, next(self._numbers), timer))
        return timer

    def next_deadline(self) -> float | None:
        """When the next one is due."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Call what is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled -= 1
            else:
                call()

    def cancelled(self) -> None:
        """One more is cancelled."""
        self._cancelled += 1
        if self._cancelled > SWEEP_AT and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
