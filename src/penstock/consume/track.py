"""One partition that is read, as a state table. Time is an argument. Pure.

| stage | is left for | when |
|---|---|---|
| READY | ASKED | a request for it has left |
| READY | DOUBTED | its leader has changed: is what was read still what the log holds? |
| ASKED | READY | it was answered, or passed over |
| ASKED | PAUSED | it was refused for a reason that passes, or no answer came |
| ASKED | DOUBTED | its position is outside of the log, or nothing is there although the log goes on |
| ASKED, DOUBTED | DONE | its end is reached |
| PAUSED | READY | the pause is over |
| DOUBTED | READY, PAUSED | somebody found out, and where to go on |
| READY, PAUSED | DONE | it was sent to its end |
| DONE | READY | it was sent back to be read again |

A partition that is read for ever is never DONE. One that is sent elsewhere while it is ASKED or DOUBTED stays so until
the answer is there, which does not count any more.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from penstock.errors import PenstockError
from penstock.net.backoff import Backoff
from penstock.net.failures import InvariantError
from penstock.wire.protocol import Fetched, Partition, Wanted


class Stage(enum.Enum):
    """What a partition waits for."""

    READY = "ready"
    ASKED = "asked"
    PAUSED = "paused"
    DOUBTED = "doubted"
    DONE = "done"


TRANSITIONS: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.READY: frozenset({Stage.ASKED, Stage.DOUBTED, Stage.DONE}),
    Stage.ASKED: frozenset({Stage.READY, Stage.PAUSED, Stage.DOUBTED, Stage.DONE}),
    Stage.PAUSED: frozenset({Stage.READY, Stage.DONE}),
    Stage.DOUBTED: frozenset({Stage.READY, Stage.PAUSED, Stage.DONE}),
    Stage.DONE: frozenset({Stage.READY}),
}


class Track:
    """Where reading a partition is, and where it ends. Runs on: the I/O thread."""

    __slots__ = (
        "_backoff",
        "_stage",
        "end",
        "epoch",
        "era",
        "is_held",
        "is_loose",
        "leader_epoch",
        "log_end",
        "partition",
        "position",
        "resume_at",
        "since",
        "trouble",
    )

    def __init__(
        self, partition: Partition, position: int, end: int | None, backoff: Backoff, *, epoch: int = -1, loose: bool
    ) -> None:
        """`epoch`: the leader of the entry before the position, as far as known; `loose`: nobody asked for just it."""
        self.partition = partition
        self.position = position
        """What is to be read next."""
        self.end = end
        """What is not to be read any more; None: everything is."""
        self.epoch = epoch
        """The leader under whom the entry before the position was stored; -1 where that is not known."""
        self.leader_epoch = -1
        """The leader under whom it was last made sure that the log still holds what was read."""
        self.is_loose = loose
        """Whether the position may be moved where the log begins or ends elsewhere: nothing was read yet, and nobody
        asked for just this position."""
        self.is_held = False
        """Whether nothing of it is asked for at present, since what came of it was not taken yet."""
        self.era = 0
        """How often it was sent elsewhere: what was asked before that does not count any more."""
        self.log_end = position
        """Where the log ends, as last told."""
        self.resume_at = 0.0
        self.trouble: PenstockError | None = None
        """Why it does not get on, as last told."""
        self.since: float | None = None
        """Since when it does not."""
        self._backoff = backoff
        self._stage = Stage.DONE if self.is_at_end else Stage.READY

    def __repr__(self) -> str:
        to = "" if self.end is None else f" of {self.end}"
        return f"<Track of {self.partition} at {self.position}{to}, {self._stage.value}>"

    @property
    def stage(self) -> Stage:
        """What it waits for."""
        return self._stage

    @property
    def is_at_end(self) -> bool:
        """Whether everything that was asked for is read."""
        return self.end is not None and self.position >= self.end

    def wanted(self, bytes_max: int) -> Wanted:
        """It is being asked for."""
        self._become(Stage.ASKED)
        return Wanted(self.position, bytes_max, self.leader_epoch)

    def passed_over(self) -> None:
        """The answer says nothing of it, or does not count any more."""
        self._become(Stage.DONE if self.is_at_end else Stage.READY)

    def landed(self, given: Fetched) -> None:
        """Entries came; reading goes on behind them."""
        self._works()
        self.position = max(self.position, given.next) if self.end is None else min(given.next, self.end)
        self.epoch = given.last_epoch
        self.is_loose = False
        self._become(Stage.DONE if self.is_at_end else Stage.READY)

    def found_nothing(self) -> None:
        """There is nothing to be read at the moment."""
        self._works()
        self._become(Stage.READY)

    def doubt(self) -> None:
        """Something must be found out before it is read on."""
        self._become(Stage.DOUBTED)

    def go_on(self, position: int) -> None:
        """It was found out: reading goes on there, or is over."""
        self.position = position if self.end is None else min(position, self.end)
        self._become(Stage.DONE if self.is_at_end else Stage.READY)

    def seek(self, position: int, epoch: int) -> None:
        """Read on there; an answer that is on its way does not count any more."""
        self.position = position
        self.epoch = epoch
        self.leader_epoch = -1
        self.is_loose = False
        self.era += 1
        if self._stage not in (Stage.ASKED, Stage.DOUBTED) and self.is_at_end is not (self._stage is Stage.DONE):
            self._become(Stage.DONE if self.is_at_end else Stage.READY)

    def pause(self, error: PenstockError, now: float) -> None:
        """It does not get on, for this reason: a pause, longer than the last one."""
        self.stuck(error, now)
        self.resume_at = now + self._backoff.next()
        self._become(Stage.PAUSED)

    def stuck(self, error: PenstockError, now: float) -> None:
        """It does not get on, for this reason."""
        self.trouble = error
        self.since = now if self.since is None else self.since

    def resume(self) -> None:
        """The pause is over; so may be the partition, if it was sent to its end meanwhile."""
        self._become(Stage.DONE if self.is_at_end else Stage.READY)

    def _works(self) -> None:
        self.trouble = self.since = None
        self._backoff.reset()

    def _become(self, stage: Stage) -> None:
        if stage not in TRANSITIONS[self._stage]:
            raise InvariantError(f"{self!r} cannot become {stage.value}")
        self._stage = stage
