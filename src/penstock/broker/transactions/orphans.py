"""Open transactions in partitions that no page knows of: taken up by their owner, or aborted where they are.

They are looked for when a partition is opened, and seen to in the turn after, when it can be written to.
Runs on: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.log.partition import Place
from penstock.broker.producers import PartitionProducers
from penstock.broker.transactions.seams import Marker, PartitionEnd, Surroundings
from penstock.broker.transactions.transaction import Transaction
from penstock.errors import PenstockError
from penstock.wire.protocol import Partition

_log = logging.getLogger("penstock.broker")

RETRY_S: Final = 1.0


class Orphan(NamedTuple):
    """A producer whose transaction is open in a partition."""

    partition: Partition
    producer: int


class Orphans:
    """What was found, until it is seen to."""

    def __init__(
        self,
        broker: Surroundings,
        owner_of: Callable[[int], Transaction | None],
        take_up: Callable[[Transaction, Partition], None],
    ) -> None:
        self._broker = broker
        self._owner_of = owner_of
        self._take_up = take_up
        self._found: dict[Orphan, PartitionProducers] = {}
        self._due = 0.0

    def __len__(self) -> int:
        return len(self._found)

    def look(self, partition: Partition, producers: PartitionProducers) -> None:
        """A partition was opened: remember what must be seen to."""
        for producer in producers.open_transactions():
            owner = self._owner_of(producer)
            if owner is None or partition not in owner.page.partitions:
                self._found[Orphan(partition, producer)] = producers
                self._due = 0.0

    def turn(self, now: float, now_ms: int) -> float | None:
        """See to what was found; returns when to come back."""
        if not self._found:
            return None
        if now < self._due:
            return self._due
        self._due = now + RETRY_S
        for orphan, producers in list(self._found.items()):
            if self._see_to(orphan, producers, now_ms):
                del self._found[orphan]
        return self._due if self._found else None

    def _see_to(self, orphan: Orphan, producers: PartitionProducers, now_ms: int) -> bool:
        known = producers.get(orphan.producer)
        owner = self._owner_of(orphan.producer)
        if known is None or known.open_at is None:
            return True
        if owner is None or owner.page.producer != orphan.producer or owner.page.epoch > known.epoch:
            epoch = known.epoch
            if owner is not None and owner.page.producer == orphan.producer:
                epoch = owner.page.epoch
            return self._abort(orphan, Marker(orphan.producer, epoch, committed=False), now_ms)
        if owner.is_busy or owner.page.is_decided:
            return orphan.partition in owner.page.partitions
        if orphan.partition not in owner.page.partitions:
            _log.info("%s is taken up by the transaction of %s", orphan.partition, owner.page.transactional_id)
            self._take_up(owner, orphan.partition)
        return True

    def _abort(self, orphan: Orphan, marker: Marker, now_ms: int) -> bool:
        _log.warning("%s: the transaction of producer %s has no owner, and is aborted", *orphan)
        try:
            state = self._broker.partition(*orphan.partition)
            state.mark(marker, now_ms, lambda outcome: self._aborted(state, orphan, outcome))
        except PenstockError as error:
            _log.warning("%s: that could not be done: %s", orphan.partition, error)
            return False
        return True

    def _aborted(self, state: PartitionEnd, orphan: Orphan, outcome: Place | Exception) -> None:
        if not isinstance(outcome, Exception):
            state.release(orphan.producer)
