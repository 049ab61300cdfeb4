"""A batch between its first message and the one outcome of each.

    OPEN ──> SEALED ──> IN_FLIGHT ──> ACKED
      │         │ ^         │  │
      │         │ └─ again ─┘  │
      └─────────┴──> FAILED <──┘

Pure: time is an argument, and who waits for an outcome is told by whoever settles it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from penstock.errors import BatchStateError
from penstock.message import Position
from penstock.wire.entry import BatchBuffer, Stamp
from penstock.wire.protocol import Identity, Verdict


class State(enum.Enum):
    """Where a batch is in its life."""

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

    BYTES = "bytes"
    COUNT = "count"
    DELAY = "delay"
    PROPERTIES = "properties"
    FIELD = "field"
    FLUSH = "flush"
    CLOSE = "close"
    MEMORY = "memory"
    DIRECT = "direct"


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one lane that leave together."""

    buffer: BatchBuffer
    created_at: float
    expires_at: float
    state: State = State.OPEN
    reason: SealReason | None = None
    identity: Identity | None = None
    sequence: int = -1
    attempts: int = 0
    maybe_stored: bool = False
    """An attempt ended without an answer: the broker may have it."""
    surely_stored: bool = False
    """A later batch was stored, which it cannot have been without this one."""
    outcome: Verdict | None = None

    def __repr__(self) -> str:
        number = f", {self.identity.producer}:{self.identity.epoch}:{self.sequence}" if self.identity else ""
        return f"<Batch {self.state.value}, {self.buffer.count} messages{number}, {self.attempts} attempts>"

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.buffer.count

    def move(self, state: State) -> None:
        """Take the next step of its life; an impossible one raises with its story."""
        if state not in TRANSITIONS[self.state]:
            raise BatchStateError(f"{self!r} cannot become {state.value}")
        self.state = state

    def number(self, identity: Identity | None, sequence: int) -> None:
        """Give it its place in its producer's order."""
        self.identity = identity
        self.sequence = sequence

    def stamp(self, transactional: bool) -> Stamp:
        """What goes into its header."""
        if self.identity is None:
            return Stamp()
        return Stamp(self.identity.producer, self.identity.epoch, self.sequence, transactional)


def position_of(first: Position | None, index: int) -> Position | None:
    """The position of a message, from its batch's first and its index."""
    if first is None:
        return None
    return first + index if isinstance(first, int) else (*first, index)
