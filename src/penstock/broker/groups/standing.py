"""How a member gets from what it reads to what it should read, as a value that follows from another.

A partition is given to its new reader only when the old one has let go of it, so that no two read it at a time. On its
way a member is in one of these states, which it leaves when it comes by and:

| state      | the member                                             | goes on when                                 |
|------------|--------------------------------------------------------|----------------------------------------------|
| STABLE     | reads what it should, or has not heard of a change yet | the target's epoch has grown                 |
| UNREVOKED  | was told to let go of partitions                       | it says that it has none of them any more    |
| UNRELEASED | waits for partitions that others have                  | always, and gets those that have become free |

Only a member that has let go of all that others should read comes to the target's epoch. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.broker.groups.questions import Slot

NOTHING: frozenset[Slot] = frozenset()


class Progress(enum.Enum):
    """How far a member is on its way."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


class Target(NamedTuple):
    """What a member should read, as of an epoch."""

    epoch: int
    slots: frozenset[Slot]


@dataclass(frozen=True, slots=True)
class Standing:
    """The epoch a member is at and the one before, what it reads, and what it was told to let go of."""

    epoch: int = 0
    epoch_before: int = 0
    progress: Progress = Progress.STABLE
    assigned: frozenset[Slot] = NOTHING
    revoking: frozenset[Slot] = NOTHING

    @property
    def held(self) -> frozenset[Slot]:
        """What nobody else may read."""
        return self.assigned | self.revoking

    def is_at(self, epoch: int) -> bool:
        """Whether it has come to that epoch and waits for nothing."""
        return self.progress is Progress.STABLE and self.epoch == epoch

    def follow(self, target: Target, is_free: Callable[[Slot], bool], owned: frozenset[Slot] | None) -> Standing:
        """Where it stands when it comes by; `owned` is what it says it reads, None when it says nothing."""
        if self.is_at(target.epoch):
            return self
        if self.progress is Progress.UNREVOKED and _has_any(owned, self.revoking):
            return self
        kept = self.assigned & target.slots
        revoking = self.assigned - kept
        if revoking and _has_any(owned, revoking):
            return replace(self, progress=Progress.UNREVOKED, assigned=kept, revoking=revoking)
        missing = target.slots - kept
        free = frozenset(slot for slot in missing if slot in self.revoking or is_free(slot))
        progress = Progress.STABLE if free == missing else Progress.UNRELEASED
        before = self.epoch if self.epoch != target.epoch else self.epoch_before
        return Standing(target.epoch, before, progress, kept | free)

    def returning(self, epoch: int) -> Standing:
        """It leaves and will be back: what it reads is kept for it."""
        return Standing(epoch, epoch, assigned=self.assigned)

    def returned(self) -> Standing:
        """It is back, and has not been told anything yet."""
        return Standing(assigned=self.assigned)


def _has_any(owned: frozenset[Slot] | None, slots: frozenset[Slot]) -> bool:
    """Whether a member has one of these; one that says nothing may."""
    return owned is None or bool(owned & slots)
