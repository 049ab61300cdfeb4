"""Producer ids, each given once: reserved in blocks, and none is given before its block is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.broker.refusals import refusal_of
from penstock.broker.store import Store

COUNTER: Final = "producer_ids"
BLOCK: Final = 1000
LOW: Final = BLOCK // 4
"""With so few left the next block is reserved."""

Taken: TypeAlias = Callable[[int | Exception], None]


class ProducerIds:
    """The ids that can be given, and who waits for one. Runs on: the loop thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ready: deque[int] = deque()
        self._waiting: deque[Taken] = deque()
        self._reserving = False

    def __repr__(self) -> str:
        return f"<ProducerIds {len(self._ready)} ready, {len(self._waiting)} waiting>"

    def take(self, then: Taken) -> None:
        """Give an id: at once, or when there is one; or the error because of which there is none."""
        if self._ready:
            then(self._ready.popleft())
        else:
            self._waiting.append(then)
        if len(self._ready) < LOW and not self._reserving:
            self._reserving = True
            block = self._store.reserve(COUNTER, BLOCK, lambda error: self._reserved(block, error))

    def _reserved(self, block: range, error: Exception | None) -> None:
        self._reserving = False
        if error is None:
            self._ready.extend(block)
        while self._waiting and (self._ready or error is not None):
            self._waiting.popleft()(self._ready.popleft() if self._ready else refusal_of(error or RuntimeError()))
