"""The bytes that a client's messages may take, all producers together, and who waits when they are used up.

Room is given in the order in which it was asked for: whoever asks while others wait, waits behind them, so that a large
message is not starved by small ones. What is given is taken at that moment, on the waiter's behalf; every reserved
byte is released exactly once, by whoever got it.

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

    def reserve(self, size: int, timeout: float | None) -> bool:
        """Take room, waiting for it for at most `timeout` seconds; False if there was none in that time."""
        if self.try_reserve(size):
            return True
        room = threading.Event()
        waiter = self.wait(size, room.set)
        return room.wait(timeout) or not self.leave(waiter)

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
                if not self._waiters or self._used + self._waiters[0].size > self.bytes_max:
                    return
                waiter = self._waiters.popleft()
                waiter.is_granted = True
                self._used += waiter.size
            waiter.granted()
