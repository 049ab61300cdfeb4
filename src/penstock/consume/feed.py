"""What was fetched and not yet handed out: the queue between the I/O thread and whoever reads.

An answer of a broker is a load; what it gave of one partition is a part of it. The views of all its entries are on one
buffer, which is free when the last part is done with; so a load counts in full until then. Bytes are counted by two
numbers that each have one writer: what was put, by the I/O thread, and what is done with, by the reading thread.

Two threads never miss each other: parts are put before listeners are taken, and a listener is put down before the
queue is looked at. In the same way the I/O thread says that it was held back before it looks for room again, and the
reading thread makes room before it looks whether somebody was held back.

Runs on: `put`, `end` and `has_room` on the I/O thread; the rest on the thread that reads, `drop` on any.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.wire.protocol import Aborted, Partition


@dataclass(slots=True, eq=False)
class Load:
    """One answer: its bytes, and how many parts of it are not done with."""

    size: int
    parts: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Entries of one partition out of one answer; none where the reader has only got further."""

    load: Load
    partition: Partition
    entries: Sequence[memoryview]
    first: int
    """The first position that is wanted of them."""
    end: int | None
    """The first position that is not wanted any more; None: all are."""
    next: int
    """Where reading goes on behind them."""
    first_epoch: int = -1
    last_epoch: int = -1
    aborted: Sequence[Aborted] = ()
    era: int = 0
    """How often the partition had been sent elsewhere when it was asked for."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Nothing more will come: everything was read, or this error is in the way."""

    error: PenstockError | None = None


Listener = Callable[[], None]


class Feed:
    """Parts in the order in which they were fetched, as many as take `bytes_max` bytes."""

    def __init__(self, bytes_max: int, wake: Callable[[], None]) -> None:
        """`wake` tells the I/O thread that there is room again."""
        self.bytes_max = bytes_max
        self._wake = wake
        self._parts: deque[Part] = deque()
        self._listeners: deque[Listener] = deque()
        self._ending: Ending | None = None
        self._is_held = False
        self._is_dropped = False
        self._put_bytes = 0
        self._done_bytes = 0

    def __repr__(self) -> str:
        state = "open" if self._ending is None else f"ending with {self._ending.error}"
        return f"<Feed of {len(self._parts)} parts, {self.used} of {self.bytes_max} bytes, {state}>"

    @property
    def used(self) -> int:
        """Bytes that are not done with."""
        return self._put_bytes - self._done_bytes

    # On the I/O thread

    def has_room(self, reserved: int, size: int) -> bool:
        """Whether so many bytes may be asked for while others are on their way; one who hears no is woken later."""
        if self._fits(reserved, size):
            return True
        self._is_held = True
        return self._fits(reserved, size)

    def put(self, parts: Sequence[Part]) -> None:
        """Hand over the parts of one answer."""
        if not parts or self._is_dropped:
            return
        load = parts[0].load
        load.parts = len(parts)
        self._put_bytes += load.size
        self._parts.extend(parts)
        if self._is_dropped:  # in the same moment
            self._parts.clear()
        self._announce()

    def end(self, error: PenstockError | None) -> None:
        """Nothing more will come. The first ending counts."""
        if self._ending is None:
            self._ending = Ending(error)
        self._announce()

    # On the thread that reads

    def take(self) -> Part | None:
        """The next part; None when there is none at the moment."""
        try:
            return self._parts.popleft()
        except IndexError:
            return None

    @property
    def ending(self) -> Ending | None:
        """How it ends, once everything before was taken."""
        ending = self._ending
        return None if self._parts else ending

    def done(self, part: Part) -> None:
        """Whoever took this part holds nothing of it any more."""
        part.load.parts -= 1
        if part.load.parts == 0:
            self._done_bytes += part.load.size
            if self._is_held:
                self._is_held = False
                self._wake()

    def listen(self, listener: Listener) -> None:
        """Have somebody told, once, when there is a part or an ending; at once if there is."""
        self._listeners.append(listener)
        if self._parts or self._ending is not None:
            self._announce()

    def unlisten(self, listener: Listener) -> None:
        """Whoever listened has gone."""
        try:
            self._listeners.remove(listener)
        except ValueError:
            return  # it was told just now

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is a part or an ending, for so many seconds; whether there is."""
        if self._parts or self._ending is not None:
            return True
        come = threading.Event()
        self.listen(come.set)
        if come.wait(timeout):
            return True
        self.unlisten(come.set)
        return bool(self._parts) or self._ending is not None

    def drop(self, error: PenstockError | None) -> None:
        """Nobody will read any more: let go of everything."""
        self._is_dropped = True
        self._ending = Ending(error)
        self._parts.clear()
        self._announce()

    def _fits(self, reserved: int, size: int) -> bool:
        waiting = self.used + reserved
        return waiting == 0 or waiting + size <= self.bytes_max

    def _announce(self) -> None:
        while True:
            try:
                told = self._listeners.popleft()
            except IndexError:
                return
            told()
