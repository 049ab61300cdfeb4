"""Requests that look for their broker: whom they are for, why they are made, and until when they are tried."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from penstock.errors import BusyError
from penstock.wire.protocol import NodeId, Partition, Ready, Request

ASKS_MAX: Final = 10_000


class Whom(enum.Enum):
    """Who should have a request, where it is neither a broker by its id nor the leader of a partition."""

    ANYBODY = "anybody"
    CONTROLLER = "the controller"

    def __str__(self) -> str:
        return self.value


Target: TypeAlias = Whom | Partition | NodeId
"""Anybody, the controller, the leader of a partition, or a broker by its id."""


class Why(enum.Enum):
    """What the answer to a request is for."""

    ASKED = "asked"
    """Somebody above wants it."""
    LOOK_UP = "look-up"
    """It tells leaders."""
    INTRODUCTION = "introduction"
    """It tells whether the connection leads to the right cluster."""


@dataclass(slots=True, eq=False)
class Ask:
    """A request on its way, and the token by which its outcome is known again."""

    request: Request[Any]
    token: object
    target: Target
    deadline: float
    why: Why = Why.ASKED
    ready: Ready | None = None
    """What the greeting said, for an introduction."""

    def __str__(self) -> str:
        name = type(self.request).__name__
        return f"{name} for {'broker ' if isinstance(self.target, int) else ''}{self.target}"


class Asks:
    """Those that wait for a connection, at most `ASKS_MAX`. Runs on: the I/O thread."""

    def __init__(self) -> None:
        self._waiting: list[Ask] = []

    def check_room(self, name: str) -> None:
        """Raise `BusyError` when no more may wait."""
        if len(self._waiting) >= ASKS_MAX:
            raise BusyError(f"{ASKS_MAX} requests wait for {name}, which is the limit")

    def add(self, ask: Ask) -> None:
        """Let it wait."""
        self._waiting.append(ask)

    def take(self) -> list[Ask]:
        """All of them; those that must wait longer are added again."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def next_deadline(self) -> float | None:
        """When the first of them has waited long enough."""
        return min((ask.deadline for ask in self._waiting), default=None)

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Asks, {len(self._waiting)} waiting>"
