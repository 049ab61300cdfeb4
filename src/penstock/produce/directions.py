"""Where the messages of one producer go, with what is known of the topic at the moment.

A router is asked once per message. While the number of partitions is not known there is no answer, and the message
waits in the undesignated lane.

Runs on: any thread; what ends in `_locked` under the lock of the producer's lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from penstock.errors import PenstockError
from penstock.message import Properties
from penstock.produce.incoming import Incoming
from penstock.produce.regroup import NOWHERE, Arrivals, as_routed
from penstock.produce.router import KeyHash, OwnRouter, Routed, Spread, Sticky, check_partition, contains


class Directions:
    """The router of a producer, and the partition that messages without a key go to at present."""

    def __init__(self, topic: str, router: Spread | OwnRouter, hash_key: KeyHash, bytes_max: int) -> None:
        self.own_router, self._spread = _kinds(router)
        self.partitions = 0
        """Of the topic; 0 while that is not known."""
        self.available: Sequence[int] = ()
        """Partitions with a leader, in rising order."""
        self.hash_key = hash_key
        self._topic = topic
        self._bytes_max = bytes_max
        self._present: int | None = None
        self._bytes = 0

    def __repr__(self) -> str:
        router = self.own_router or self._spread
        return f"<Directions of {self._topic}, {self.partitions} partitions, {router!r}, now to {self._present}>"

    def routed(self, message: Incoming) -> Incoming:
        """The message with its partition; without one while that is not known, and if nothing but the spread says.

        Who has a partition keeps it. That the number of partitions becomes known between two looks is no harm, as long
        as the last look is under the lock.
        """
        if message.partition is not None:
            if self.partitions:
                check_partition(message.partition, self.partitions)
            return message
        if not self.partitions or (self.own_router is None and message.key is None):
            return message
        if self.own_router is not None:
            return message._replace(partition=self.ask_router(message.value, message.key, message.properties))
        return message._replace(partition=self.hash_key(cast(bytes, message.key), self.partitions))

    def ask_router(self, value: bytes | None, key: bytes | None, properties: Properties | None) -> int:
        """What the user's own router says."""
        asked = cast(OwnRouter, self.own_router)
        shown = Routed(self._topic, value, key, properties or {}, self.partitions)
        return check_partition(asked(shown), self.partitions)

    def present_locked(self, queued: Callable[[], Mapping[int, int]]) -> int:
        """The partition of messages without a key; it changes only between two batches, so that batches fill up."""
        if self._present is None or self._present >= self.partitions:
            chosen = self._spread.choose(self.partitions, self.available, queued())
            self._present = check_partition(chosen, self.partitions)
            self._bytes = 0
        return self._present

    def learn_locked(self, partitions: int, available: Sequence[int]) -> bool:
        """The topic has so many partitions, and these have a leader; whether messages without a key now go elsewhere.

        Those that are in a partition without a leader stay there. Where no partition has one, waiting for another would
        be as good as waiting here.
        """
        self.partitions, self.available = partitions, available
        if self._present is not None and available and not contains(available, self._present):
            self._present = None
        return self._present is None

    def sealed_locked(self, partition: int, size: int) -> bool:
        """A batch of so many bytes was sealed there; whether messages without a key now go elsewhere."""
        if partition != self._present:
            return False
        self._bytes += size
        moves_by = self._spread.moves_by
        if moves_by == "batch" or (moves_by == "bytes" and self._bytes >= self._bytes_max):
            self._present = None
        return self._present is None

    def arrivals_locked(self, columns: Any, queued: Callable[[], Mapping[int, int]]) -> Arrivals:
        """Which partition each message of these columns goes to."""
        if self.own_router is not None:
            return Arrivals.of(columns, self.partitions, self.hash_key, None, self.ask_router)
        lost: PenstockError | None = None
        try:
            without_key = self.present_locked(queued)
        except Exception as error:  # noqa: BLE001  # of a user's spread; those with a key need not bear it
            without_key, lost = NOWHERE, as_routed(error)
        arrivals = Arrivals.of(columns, self.partitions, self.hash_key, without_key, self.ask_router)
        if lost is None:
            return arrivals
        return arrivals._replace(errors=dict.fromkeys(np.flatnonzero(arrivals.places == NOWHERE).tolist(), lost))


def _kinds(router: Spread | OwnRouter) -> tuple[OwnRouter | None, Spread]:
    """A user's own router, if it is one, and where messages without a key go otherwise."""
    if hasattr(router, "choose"):
        return None, cast(Spread, router)
    return router, Sticky()
