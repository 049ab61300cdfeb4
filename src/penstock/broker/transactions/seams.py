"""What the coordinator of transactions asks of the broker around it, and what it hands out.

A produced entry passes the coordinator before its partition: `Transactions.admit` raises, or gives None, or gives an
`Enlisting` when the entry makes its partition part of the transaction. That is written down while the entry is; whoever
sent it may be told of success only when both are durable:

    enlisting = transactions.admit(header, partition, transactional_id, joins, now, now_ms)
    if enlisting is not None:
        done = enlisting.gate(done)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from penstock.broker.log.partition import Place
from penstock.broker.store import Done

Outcome = TypeVar("Outcome")


class Marker(NamedTuple):
    """The end of a transaction, as it is written to each of its partitions."""

    producer: int
    epoch: int
    committed: bool
    coordinator_epoch: int = 0


class PartitionEnd(Protocol):
    """A partition, as far as the coordinator sees it; `PartitionState` is one."""

    def mark(self, marker: Marker, now_ms: int, done: Callable[[Place | Exception], None] | None = None) -> None:
        """Append a marker, and tell `producers.ended` of it, held; StorageError when that cannot be done now."""

    def release(self, producer: int) -> None:
        """Tell `producers.release`, and wake readers who wait for what is stable."""


class Surroundings(Protocol):
    """The broker, as far as the coordinator sees it."""

    def partition(self, topic: str, number: int) -> PartitionEnd:
        """Open a partition; Refused when there is none."""


class PendingOffsets(Protocol):
    """Groups' offsets that wait for the end of a transaction; `groups.offsets.Offsets` has them."""

    def end_transaction(self, producer: int, commit: bool, done: Done | None = None) -> None:
        """Commit or forget what the producer has waiting. May be said again."""

    def producers(self) -> Iterable[int]:
        """Producers that have something waiting."""


class NoOffsets:
    """Of a broker without groups."""

    def end_transaction(self, producer: int, commit: bool, done: Done | None = None) -> None:
        """Nothing is waiting."""
        if done is not None:
            done(None)

    def producers(self) -> Iterable[int]:
        """None."""
        return ()


class Enlisting:
    """A partition's or group's way into a transaction: over when it is written down, or could not be."""

    __slots__ = ("_failure", "_waiting")

    def __init__(self) -> None:
        self._failure: Exception | None = None
        self._waiting: list[Callable[[], None]] | None = []

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known."""
        return self._waiting is None

    def gate(self, done: Callable[[Outcome | Exception], None]) -> Callable[[Outcome | Exception], None]:
        """`done`, called when this is known too: with the outcome it is given, or with why this failed."""

        def gated(outcome: Outcome | Exception) -> None:
            if self._waiting is not None:
                self._waiting.append(lambda: gated(outcome))
            elif self._failure is not None and not isinstance(outcome, Exception):
                done(self._failure)
            else:
                done(outcome)

        return gated

    def settle(self, failure: Exception | None) -> None:
        """It is durable, or was undone; those who waited are told."""
        waiting, self._waiting = self._waiting or [], None
        self._failure = failure
        for tell in waiting:
            tell()
