"""What is due when: one heap for all groups, so that a turn costs nothing where nothing is due.

Most deadlines are put off again and again, a session's by every heartbeat. Putting one off only notes the later time;
the heap learns of it when the old time has come. So a key has one place in the heap, not one for each heartbeat.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """Keys and the moments at which they are due."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._places: dict[Key, tuple[float, int]] = {}  # what stands in the heap for a key; other entries are stale
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._due)}, the next at {self.next()}>"

    def set(self, key: Key, when: float) -> None:
        """Have it due at that moment, whatever was set before."""
        self._due[key] = when
        place = self._places.get(key)
        if place is None or when < place[0]:
            self._place(key, when)

    def cancel(self, key: Key) -> None:
        """Have it not due at all."""
        self._due.pop(key, None)

    def next(self) -> float | None:
        """The moment at which something is due."""
        heap = self._heap
        while heap:
            when, number, key = heap[0]
            due = self._due.get(key)
            if self._places.get(key) != (when, number):
                heappop(heap)
            elif due is None:
                heappop(heap)
                del self._places[key]
            elif due > when:
                self._places[key] = (due, number)
                heapreplace(heap, (due, number, key))
            else:
                return when
        return None

    def due(self, now: float) -> Iterator[Key]:
        """The keys that are due, the earliest first; each is forgotten before it is given.

        What is set while this goes on is left to the next call, even if it is due at once: a turn has an end.
        """
        latest = next(self._numbers)
        while (when := self.next()) is not None and when <= now and self._heap[0][1] < latest:
            _when, _number, key = heappop(self._heap)
            del self._places[key], self._due[key]
            yield key

    def _place(self, key: Key, when: float) -> None:
        number = next(self._numbers)
        self._places[key] = (when, number)
        heappush(self._heap, (when, number, key))
