"""What a process holds while it works: its resident memory, looked at again and again by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from brokers.process import PAGE_BYTES

EVERY_S = 0.05
EARLY, LATE = 0.1, 0.5
"""Until which part of the time memory counts as that of the beginning, and from which as that of the end."""


class Scales:
    """Weighs this process from when it is entered until it is left, if it is to be weighed at all."""

    def __init__(self, is_used: bool = True) -> None:
        self.weights: list[float] = []
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._weigh, name="scales", daemon=True) if is_used else None

    def __enter__(self) -> Scales:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_done.set()
        if self._thread is not None:
            self._thread.join()

    def _weigh(self) -> None:
        while True:
            self.weights.append(resident_mb())
            if self._is_done.wait(EVERY_S):
                return

    def told(self) -> dict[str, float]:
        """The most that was held at the beginning, and towards the end."""
        return beginning_and_end(self.weights) if self.weights else {}


def beginning_and_end(weights: Sequence[float]) -> dict[str, float]:
    """The largest of the first weights and of the last."""
    early, late = weights[: max(1, int(len(weights) * EARLY))], weights[int(len(weights) * LATE) :]
    return {"early_mb": max(early), "late_mb": max(late)}


def resident_mb() -> float:
    """The resident memory of this process, in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6
