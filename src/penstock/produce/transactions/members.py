"""The producers that share a transactional id: what holds for all of them at once.

Runs on: any thread, but for what is said to run on the I/O thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from penstock.errors import PenstockError
from penstock.produce.batch import SealReason
from penstock.produce.outlet import Outlet

Refusal: TypeAlias = Callable[[], PenstockError]
"""Makes the error of a message that is not taken."""


class Members:
    """So many producers, which take messages together or not at all."""

    def __init__(self, refusal: Refusal) -> None:
        self._lock = threading.Lock()  # guards the following
        self._outlets: list[Outlet] = []
        self._refusal: Refusal | None = refusal
        self._is_closed = False

    def __iter__(self) -> Iterator[Outlet]:
        with self._lock:
            return iter(list(self._outlets))

    def __len__(self) -> int:
        return len(self._outlets)

    def join(self, outlet: Outlet) -> bool:
        """One more belongs to them; False when none can any more."""
        with self._lock:
            if self._is_closed:
                return False
            self._outlets.append(outlet)
            outlet.lanes.refuse(self._refusal)
            return True

    def leave(self, outlet: Outlet) -> bool:
        """One is gone; False if it was before."""
        with self._lock:
            if outlet not in self._outlets:
                return False
            self._outlets.remove(outlet)
            return True

    def close(self) -> None:
        """None can join any more."""
        with self._lock:
            self._is_closed = True

    def close_if_empty(self) -> bool:
        """None can join any more if there is none; whether that is so."""
        with self._lock:
            self._is_closed = self._is_closed or not self._outlets
            return not self._outlets

    def refuse(self, refusal: Refusal | None) -> None:
        """Take no messages from now on, for this reason; None: take them."""
        with self._lock:
            self._refusal = refusal
            for outlet in self._outlets:
                outlet.lanes.refuse(refusal)

    def seal(self) -> None:
        """Let all that is open leave."""
        for outlet in self:
            outlet.lanes.seal_open(SealReason.FLUSH)

    # On the I/O thread

    def forget_failures(self) -> None:
        """Whatever failed before does not count."""
        for outlet in self:
            outlet.lanes.failure = None

    def failure(self) -> PenstockError | None:
        """An error that a message has met."""
        return next((outlet.lanes.failure for outlet in self if outlet.lanes.failure is not None), None)

    def fail(self, error: PenstockError) -> None:
        """All that waits has failed for this reason."""
        for outlet in self:
            outlet.fail(error)

    def fail_waiting(self, error: PenstockError) -> None:
        """What has not left has failed for this reason."""
        for outlet in self:
            if outlet.lanes.unsettled:
                outlet.fail_waiting(error)

    def are_at_rest(self) -> bool:
        """Whether no message is on its way any more."""
        return all(outlet.is_at_rest() for outlet in self)

    def are_in_doubt(self) -> bool:
        """Whether a lane does not know its next number."""
        return any(outlet.is_in_doubt() for outlet in self)
