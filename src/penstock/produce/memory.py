"""The bytes that a client's messages may take, all producers together, and who waits when they are used up.

Room is given in the order in which it was asked for: whoever asks while others wait, waits behind them, so that a large
message is not starved by small ones. What is given is taken at that moment, on the waiter's behalf; every reserved
byte is released exactly once, by whoever got it.

What is sent directly may exceed the limit, by as much again. When that is used up too it is not done any more until
all who wait have their room, or whoever exceeds it would stay in the way of those who wait.

Runs on: any thread. The I/O thread only tries and releases, which never blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import BatchStateError


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody who waits for room; `granted` is called once, on the thread that released it."""

    size: int
    granted: Callable[[], None]
    is_granted: bool = False


class MemoryBudget:
    """So many bytes, and no more."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()  # guards the following
        self._used = 0
        self._waiters: deque[Waiter] = deque()
        self._exhausted = False  # as much again is used up as well

    def __repr__(self) -> str:
        return f"<MemoryBudget {self._used} of {self.bytes_max} bytes, {len(self._waiters)} waiting>"

    @property
    def used(self) -> int:
        """Bytes that are reserved now."""
        return self._used

    def try_reserve(self, size: int) -> bool:
        """Take room if there is some and nobody waits for it."""
        with self._lock:
            if self._waiters or self._used + size > self.bytes_max:
                return False
            self._used += size
            return True

    def try_exceed(self, size: int) -> bool:
        """Take room above the limit, up to twice as much."""
        with self._lock:
            self._exhausted = self._exhausted or self._used + size > 2 * self.bytes_max
            if not self._exhausted:
                self._used += size
            return not self._exhausted

    def reserve(self, size: int, timeout: float | None) -> bool:
        """Take room, waiting for it for at most `timeout` seconds; False if there was none in that time."""
        if self.try_reserve(size):
            return True
        room = threading.Event()
        waiter = self.wait(size, room.set)
        try:
            return room.wait(timeout) or not self.leave(waiter)
        except BaseException:  # as by Ctrl-C: nobody would use what is granted later
            self.give_up(waiter)
            raise

    def wait(self, size: int, granted: Callable[[], None]) -> Waiter:
        """Stand in line; `granted` is called when the room is theirs, perhaps before this returns."""
        waiter = Waiter(size, granted)
        with self._lock:
            self._waiters.append(waiter)
        self._serve()
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """Leave the line; False if the room had been granted meanwhile, and is theirs to use or release."""
        with self._lock:
            if waiter.is_granted or waiter not in self._waiters:
                return False
            self._waiters.remove(waiter)
        self._serve()
        return True

    def give_up(self, waiter: Waiter) -> None:
        """Leave the line, or give back what was granted."""
        if not self.leave(waiter):
            self.release(waiter.size)

    def force(self, size: int) -> None:
        """Take room that is needed at once, above the limit if it must be: what is on its way is not stopped."""
        with self._lock:
            self._used += size

    def release(self, size: int) -> None:
        """Give room back."""
        with self._lock:
            if size > self._used:
                raise BatchStateError(f"{size} bytes released, but only {self._used} are reserved")
            self._used -= size
        self._serve()

    def _serve(self) -> None:
        """Grant room to those at the head of the line; outside the lock, since they may ask again at once."""
        while True:
            with self._lock:
                self._exhausted = self._exhausted and bool(self._waiters)
                if not self._waiters or self._used + self._waiters[0].size > self.bytes_max:
                    return
                waiter = self._waiters.popleft()
                waiter.is_granted = True
                self._used += waiter.size
            waiter.granted()


class Purse:
    """Bytes that were reserved for messages before; what they do not need is given back in the end."""

    def __init__(self, budget: MemoryBudget, left: int) -> None:
        self._budget = budget
        self._left = left

    def pay(self, likely: int, least: int) -> int:
        """Have bytes: as many as are likely to be needed if so many are free, at least so many, or none (0)."""
        if self._left >= least:
            size = min(self._left, max(likely, least))
            self._left -= size
            return size
        return next((size for size in (max(likely, least), least) if self._budget.try_reserve(size)), 0)

    def add(self, size: int) -> None:
        """So many more were reserved."""
        self._left += size

    def empty(self) -> None:
        """Give back what is left."""
        if self._left:
            self._budget.release(self._left)
            self._left = 0
