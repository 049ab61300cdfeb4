"""What the producers of one client share: the memory of their messages, the deadlines of their open batches, and the
number of their lanes.

Each producer keeps its own lanes (`lanes`); here is what makes them one accumulator. Deadlines are in a heap, so that a
turn of the loop costs as much as there are batches due, not as there are lanes. An entry of a batch that was sealed for
another reason stays until its time or until such entries outnumber the others.

Runs on: any thread.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import BusyError
from penstock.produce.batch import Batch, State
from penstock.produce.memory import MemoryBudget

if TYPE_CHECKING:
    from penstock.produce.lanes import Lanes, ProducerLane

STALE_MIN = 256


class Accumulator:
    """Memory, deadlines and the number of lanes."""

    def __init__(self, bytes_max: int, lanes_max: int, wake: Callable[[float], None]) -> None:
        """`wake` gets the loop to turn at this moment at the latest."""
        self.budget = MemoryBudget(bytes_max)
        self.sealed: deque[ProducerLane] = deque()
        """Lanes with batches that can be sent; filled by whoever seals, emptied by the sender."""
        self._wake = wake
        self._lanes_max = lanes_max
        self._order = itertools.count()
        self._lock = threading.Lock()  # guards the following
        self._deadlines: list[tuple[float, int, ProducerLane, Batch]] = []
        self._lanes = 0
        self._members: list[Lanes] = []

    def __repr__(self) -> str:
        return f"<Accumulator of {len(self._members)} producers, {self._lanes} lanes, {self.budget!r}>"

    @property
    def lanes(self) -> int:
        """Lanes that are open now."""
        return self._lanes

    def join(self, lanes: Lanes) -> None:
        """A producer's lanes belong to it."""
        with self._lock:
            self._members.append(lanes)

    def leave(self, lanes: Lanes) -> None:
        """A producer is gone, and its lanes with it."""
        with self._lock:
            self._members.remove(lanes)

    def count_lane(self) -> None:
        """One more lane is opened; `BusyError` when there are too many, after idle ones were dropped."""
        if self._try_count():
            return
        for lanes in list(self._members):
            lanes.drop_idle(float("inf"))
        if not self._try_count():
            raise BusyError(
                f"{self._lanes_max} lanes are open, which is the limit (lanes_max): send to fewer partitions, or "
                "raise it"
            )

    def discount_lanes(self, count: int) -> None:
        """Lanes were dropped."""
        with self._lock:
            self._lanes -= count

    def opened(self, lane: ProducerLane, batch: Batch) -> None:
        """A batch was opened in this lane; it is due later."""
        with self._lock:
            if len(self._deadlines) > STALE_MIN + 2 * self._lanes:
                self._deadlines = [entry for entry in self._deadlines if entry[3].reason is None]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (batch.due_at, next(self._order), lane, batch))
        self._wake(batch.due_at)

    def due(self, now: float) -> list[tuple[ProducerLane, Batch]]:
        """The open batches whose delay is over; each is told once."""
        due = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                _, _, lane, batch = heapq.heappop(self._deadlines)
                if batch.reason is None and batch.state is State.OPEN:
                    due.append((lane, batch))
        return due

    def next_deadline(self) -> float | None:
        """When the next batch is due."""
        with self._lock:
            while self._deadlines and self._deadlines[0][3].reason is not None:
                heapq.heappop(self._deadlines)
            return self._deadlines[0][0] if self._deadlines else None

    def ready(self, lane: ProducerLane) -> None:
        """A batch of this lane was sealed."""
        self.sealed.append(lane)
        self._wake(float("-inf"))

    def press(self) -> None:
        """Memory is used up: seal what is open, so that it is sent and gives room, if most of it is there.

        Else what is on its way gives room soon, and sealing would only make tiny batches, message by message.
        """
        members = list(self._members)
        if 2 * sum(lanes.open_bytes() for lanes in members) > self.budget.used:
            for lanes in members:
                lanes.press()

    def drop_idle(self, before: float) -> None:
        """Drop the lanes that were last used before this moment."""
        for lanes in list(self._members):
            lanes.drop_idle(before)

    def _try_count(self) -> bool:
        with self._lock:
            if self._lanes >= self._lanes_max:
                return False
            self._lanes += 1
            return True
