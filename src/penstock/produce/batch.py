"""A batch between its first message and the one outcome of each.

    OPEN ──> SEALED ──> IN_FLIGHT ──> ACKED
      │         │ ^         │  │
      │         │ └─ again ─┘  │
      └─────────┴──> FAILED <──┘

A batch that is too large for the broker, or holds messages that are to blame, ends as FAILED with the verdict `Moved`:
its messages go on in others.

Pure: time is an argument, and who waits for an outcome is told by whoever settles it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from penstock.errors import BatchStateError, PenstockError
from penstock.produce.claims import Listing, Shared
from penstock.produce.kernel import Parcel
from penstock.produce.receipts import Home, Settlement
from penstock.wire.entry import BatchBuffer, Stamp
from penstock.wire.protocol import Identity


class State(enum.Enum):
    """Where a batch is in its life."""

    __hash__ = object.__hash__  # members are what they are; Enum's own hash takes longer than all of `move`

    OPEN = "open"
    SEALED = "sealed"
    IN_FLIGHT = "in flight"
    ACKED = "acked"
    FAILED = "failed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.SEALED, State.FAILED}),
    State.SEALED: frozenset({State.IN_FLIGHT, State.FAILED}),
    State.IN_FLIGHT: frozenset({State.ACKED, State.SEALED, State.FAILED}),
    State.ACKED: frozenset(),
    State.FAILED: frozenset(),
}


class SealReason(enum.Enum):
    """Why a batch was sealed."""

    __hash__ = object.__hash__

    BYTES = "bytes"
    COUNT = "count"
    DELAY = "delay"
    AWAITED = "awaited"
    PROPERTIES = "properties"
    FIELD = "field"
    FLUSH = "flush"
    CLOSE = "close"
    MEMORY = "memory"
    DIRECT = "direct"


class Fields(NamedTuple):
    """What holds for all messages of a batch beside its lane and its properties."""

    tag: str | None = None
    wait_for_store: bool | None = None


NO_FIELDS = Fields()


class Batch(Parcel):
    """Messages of one lane that leave together.

    Runs on: the thread that appends until it is sealed, then the I/O thread.
    """

    def __init__(
        self,
        buffer: BatchBuffer,
        created_at: float,
        expires_at: float,
        topic: str = "",
        partition: int = -1,
        home: Home | None = None,
    ) -> None:
        super().__init__(topic, partition, home)
        self.buffer = buffer
        self.created_at = created_at
        self.expires_at = expires_at
        self.due_at = created_at
        """When its delay is over."""
        self.awaited_count = -1
        """How many messages it had when somebody first waited for it; -1: nobody did while it was open."""
        self.is_hurried = False
        """It leaves before its delay is over, since somebody waits for it."""
        self.state = State.OPEN
        self.reason: SealReason | None = None
        self.fields = NO_FIELDS
        self.shared: Shared = ()
        self.listing: Listing | None = None
        self.reserved = 0
        """Bytes of the client's memory that it holds."""
        self.sealed_at = created_at
        self.identity: Identity | None = None
        self.sequence = -1
        self.attempts = 0
        self.maybe_stored = False
        """An attempt ended without an answer: the broker may have it."""
        self.surely_stored = False
        """A later batch was stored, which it cannot have been without this one."""
        self.trouble: PenstockError | None = None
        """Why the last attempt failed."""
        self._count = -1

    def __repr__(self) -> str:
        number = f", {self.identity.producer}:{self.identity.epoch}:{self.sequence}" if self.identity else ""
        return f"<Batch {self.state.value}, {self.count} messages{number}, {self.attempts} attempts>"

    @property
    def count(self) -> int:
        """Messages in it."""
        return self._count if self._count >= 0 else self.buffer.count

    def let_go(self) -> None:
        """Its bytes are not needed any more: receipts that are kept must not keep them."""
        if self._count < 0:
            self._count = self.buffer.count
            del self.buffer

    def move(self, state: State) -> None:
        """Take the next step of its life; an impossible one raises with its story."""
        if state not in TRANSITIONS[self.state]:
            raise BatchStateError(f"{self!r} cannot become {state.value}")
        self.state = state

    def settle(self, state: State, verdict: Settlement) -> None:
        """End its life; its receipts have their outcome from now on."""
        self.move(state)
        self.verdict = verdict

    def number(self, identity: Identity | None, sequence: int) -> None:
        """Give it its place in its producer's order."""
        self.identity = identity
        self.sequence = sequence

    def stamp(self, transactional: bool) -> Stamp:
        """What goes into its header."""
        if self.identity is None:
            return Stamp()
        return Stamp(self.identity.producer, self.identity.epoch, self.sequence, transactional)
