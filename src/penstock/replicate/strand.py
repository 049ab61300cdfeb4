"""One partition's way from source to target, as a state table.

    CLAIMING ──> COPYING <──> CLOSING          each of them ──> ENDED
      │  ^          │            │
      v  │          v            │
     REWINDING <────┴────────────┘

| state | what happens | is left for | when |
|---|---|---|---|
| CLAIMING | the target is asked how far it has got | COPYING | it has told |
| COPYING | entries are forwarded as they come | CLOSING | it is time to commit, and that needs a halt |
| CLOSING | nothing is forwarded; all answers are awaited, then the position is committed | COPYING | it is |
| CLAIMING, COPYING, CLOSING | | REWINDING | something failed: what is on its way is given up, nothing of it counts |
| REWINDING | all outcomes are awaited, that of a commit too | CLAIMING | they are there, and a pause is over |
| ENDED | for good: all is copied, it was told to stop, another instance took its place, or it cannot go on | | |

Its positions, none larger than the one above it:

| position | all before it | held by |
|---|---|---|
| `position` | was forwarded, or is not wanted | the backlog |
| `stored` | is stored by the target | the wake |
| surely stored | is stored, and so is where it is in the copy: this may be committed | the wake |
| `committed` | is never read again: after a failure it goes on here | the target |

What keeps it from losing, repeating or swapping messages:

- The position moves only behind what the target has stored, and only as far as all before it is stored too.
- Nothing is forwarded before a position is committed: whoever starts anew goes on there, wherever the source is then.
- After a failure nothing that was asked, read or sent before counts any more. Reading goes on where the target says, in
  a new era; parts of the era before are dropped when they come.
- Each permit that is taken is given back with the outcome of what it was taken for, in every state.
- What is raised where an outcome is told ends it: it is never stuck.

Decisions are made here; what is done, and how it is waited for, is up to `Source` and `Passage`. Time is an argument.
Runs on: the I/O thread.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from penstock.consume.feed import Part
from penstock.consume.judge import Judge
from penstock.errors import (
    BatchTooLargeError,
    ClosedError,
    ConfigError,
    DeniedError,
    FencedError,
    PenstockError,
    RefusedError,
    UnforeseenError,
    UnknownTopicError,
)
from penstock.net.backoff import Backoff
from penstock.net.failures import InvariantError, because
from penstock.produce.receipts import Moved, Settlement, listen
from penstock.replicate.backlog import Backlog, Source
from penstock.replicate.commit_clock import CommitClock, Terms
from penstock.replicate.consignment import Consignment, Packer
from penstock.replicate.delay import Delay
from penstock.replicate.permits import Permits
from penstock.replicate.position_map import Point
from penstock.replicate.rate import Rate
from penstock.replicate.stats import Counts, StrandStats
from penstock.replicate.wake import Flight, Wake
from penstock.wire.protocol import Mark, Partition, Spoilt, Stored

ON_ITS_WAY_MAX: Final = 32
"""Batches of a partition that are on their way at once."""
TRIES_MAX: Final = 3
"""So many failures at one place, for a reason that will not pass, end the copy of a partition."""

Told = Callable[[PenstockError | None], None]


class State(enum.Enum):
    """What a strand does."""

    CLAIMING = "claiming"
    COPYING = "copying"
    CLOSING = "closing"
    REWINDING = "rewinding"
    ENDED = "ended"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.CLAIMING: frozenset({State.COPYING, State.REWINDING, State.ENDED}),
    State.COPYING: frozenset({State.CLOSING, State.REWINDING, State.ENDED}),
    State.CLOSING: frozenset({State.COPYING, State.REWINDING, State.ENDED}),
    State.REWINDING: frozenset({State.CLAIMING, State.ENDED}),
    State.ENDED: frozenset(),
}


class Claimed(NamedTuple):
    """How far the target has got: the mark that was committed, None where there is none; and where its log ends."""

    mark: Mark | None
    end: int


class Passage(Protocol):
    """The way to the target's partition."""

    halts: bool
    """Whether everything must have its answer before a position can be committed."""

    def claim(self, told: Callable[[Claimed | PenstockError], None]) -> None:
        """Take the place of whoever copied before, and find out how far it got."""

    def come_through(self, clusters: frozenset[str]) -> bool:
        """What is forwarded next came through these clusters; whether that must be committed first."""

    def forward(self, consignment: Consignment) -> Any:
        """Send a batch; the parcel that gets its verdict."""

    def stored_to(self, end: int) -> None:
        """Something was stored, up to this position of the target."""

    def tell_points(self, points: Sequence[Point]) -> Sequence[Any]:
        """Write down where messages are in the copy; the parcels that get the verdicts."""

    def commit(self, mark: Mark, told: Told) -> None:
        """Commit the source's position and its leader epoch, together with what was forwarded."""

    def give_up(self, told: Told) -> None:
        """Let nothing that was forwarded since the last commit count; told when all of it has its outcome."""

    def close(self) -> None:
        """It is not needed any more."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the strands of a replicator share."""

    permits: Permits
    messages_rate: Rate
    bytes_rate: Rate
    look: Callable[[Strand], None]
    """Have a strand worked on in this turn, or the next."""
    ended: Callable[[Strand], None]


class Strand:
    """The copy of one partition."""

    def __init__(
        self,
        partition: Partition,
        ports: tuple[Source, Passage],
        judge: Judge,
        packer: Packer,
        terms: Terms,
        shared: Shared,
        backoff: Backoff,
    ) -> None:
        self.partition = partition
        self.counts = Counts()
        self.state = State.CLAIMING
        self.error: PenstockError | None = None
        """Why it ended; None: everything is copied, or it was told to stop."""
        self.trouble: PenstockError | None = None
        """What is in the way, as last told."""
        self.committed = -1
        """What the target has committed."""
        self._source, self._passage = ports
        self._packer = packer
        self._shared = shared
        self._backoff = backoff
        self._backlog = Backlog(partition.number, self._source, judge, packer, self.counts)
        self._wake = Wake(partition)
        self._clock = CommitClock(terms)
        self._delay = Delay()
        self._is_committing = False
        self._is_announced = False
        self._is_announcing = False  # the commit that is under way says all that is to be announced
        self._is_given_up = False
        self._resume_at = -math.inf
        self._tries = 0
        self._tried_at = -1
        self._is_stopping = False
        self._flaw: PenstockError | None = None  # with which it ends once all before it is committed

    def __repr__(self) -> str:
        return (
            f"<Strand of {self.partition} at {self.position}, {self.committed} committed, {self.state.value}, "
            f"{len(self._wake)} on their way>"
        )

    @property
    def position(self) -> int:
        """What is to be forwarded next."""
        return self._backlog.mark.position

    @property
    def stored(self) -> int:
        """All before this is stored by the target."""
        return self._wake.stored.position

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more."""
        return self.state is State.ENDED

    # What happens to it

    def begin(self) -> None:
        """Take its place at the target."""
        self._claim()

    def offer(self, part: Part) -> None:
        """Something of its partition was read."""
        if self._is_at_work():
            self._backlog.offer(part)
            self._shared.look(self)
        else:
            self._source.done(part)

    def come_through(self, clusters: frozenset[str]) -> None:
        """It is known now who wrote what was read: it came through these clusters."""
        if self._passage.come_through(clusters):
            self._is_announced = self._is_announcing = False
        self._shared.look(self)

    def stop(self) -> None:
        """Forward no more than the rest of what has no position in between, commit what was stored, and end."""
        self._is_stopping = True
        if not self._backlog.is_amid:
            self._backlog.drop()
        self._shared.look(self)

    def fail(self, error: PenstockError) -> None:
        """Its source cannot be read any more."""
        if not self.is_over:
            self._end(error)

    # The turn

    def work(self, now: float) -> float | None:
        """Do what can be done now; when to be looked at again at the latest."""
        if self.state is State.REWINDING:
            return self._maybe_claim(now)
        if self.state is State.CLAIMING:
            if self._is_stopping:
                self._end(None)
            return None
        self._clock.wind(now)
        wait = self._forward(now) if self.state is State.COPYING else None
        self._maybe_commit(now)
        if self.state is State.ENDED:
            return None
        deadlines = [moment for moment in (wait, self._commit_at()) if moment is not None]
        return min(deadlines, default=None)

    def delay_ms(self, now: float, wall_ms: int) -> float:
        """The age of the oldest message that is not copied; never 0 while there is one."""
        number = self.partition.number
        _, _, log_end = self._source.place(number)
        reached = self.committed if self.committed >= 0 else self._source.start(number).position
        self._delay.saw(reached, log_end, now)
        return self._delay.ms(now, wall_ms, is_busy=len(self._wake) > 0 or self.state is State.REWINDING)

    def stats(self, now: float, wall_ms: int) -> StrandStats:
        """Where it is now."""
        log_end = self._source.place(self.partition.number)[2]
        trouble = "" if self.trouble is None else str(self.trouble)
        where = (self.state.value, self.position, self.committed, log_end, self.delay_ms(now, wall_ms), trouble)
        return StrandStats(*where, self.counts.copy())

    @property
    def sifted(self) -> int:
        """Messages that were opened and dropped by the filter."""
        return self._packer.sifted

    # Claiming

    def _claim(self) -> None:
        self._passage.claim(self._safely(self._claimed))

    def _claimed(self, answer: Claimed | PenstockError) -> None:
        if self.is_over:
            return
        if isinstance(answer, PenstockError):
            self.trouble = answer
            if _is_final(answer) or isinstance(answer, UnknownTopicError) or not answer.retriable:
                self._end(answer)
            else:
                self._rewind()
            return
        self._backlog.begin(answer.mark)
        self.committed = self.position if answer.mark is not None else -1
        self._is_announced = answer.mark is not None and self._passage.halts
        self.trouble = None
        self._delay.committed(None)
        packing = self._packer.packing
        ends = {packing.partition: answer.end} if packing.route is None else {}
        point = self._wake.begin(self._backlog.mark, answer.end, ends)
        self._become(State.COPYING)
        self._source.hold(self.partition.number, False)
        self._tell([point], self._backlog.mark)
        self._shared.look(self)

    def _maybe_claim(self, now: float) -> float | None:
        if len(self._wake) or self._is_committing or not self._is_given_up:
            return None
        if self._is_stopping:
            self._end(None)
            return None
        if now < self._resume_at:
            return self._resume_at
        if self._resume_at == -math.inf:
            self._resume_at = now + self._backoff.next()
            return self._resume_at
        self._resume_at = -math.inf
        self._become(State.CLAIMING)
        self._claim()
        return None

    # Forwarding

    def _forward(self, now: float) -> float | None:
        """Forward what may be; when to go on, where only time is in the way."""
        while self.state is State.COPYING and self._may_forward():
            consignment = self._look_ahead(now)
            if consignment is None:
                return None
            ready_at = max(self._shared.messages_rate.ready_at(now), self._shared.bytes_rate.ready_at(now))
            if ready_at > now:
                return ready_at
            if not self._shared.permits.take(consignment.size):
                return None  # whoever gives one back has all strands looked at
            self._send(consignment, now)
        return None

    def _may_forward(self) -> bool:
        is_wanted = self._backlog.is_amid or not self._is_parting()
        return self._is_announced and len(self._wake) < ON_ITS_WAY_MAX and is_wanted

    def _look_ahead(self, now: float) -> Consignment | None:
        """What is to be forwarded next. What is not wanted before it is passed."""
        before = self.position
        consignment = self._backlog.peek()
        if self.position != before:
            self._clock.touched(now)
        self._wake.passed(self._backlog.mark)
        if self._backlog.failure is not None:
            self._cannot_read(self._backlog.failure)
        return consignment

    def _cannot_read(self, error: PenstockError) -> None:
        """What comes next cannot be read: commit what lies before it, then end."""
        if self._backlog.is_amid:  # what was forwarded of it must not be committed
            self._end(error)
        else:
            self._flaw = error
            self._backlog.drop()

    def _send(self, consignment: Consignment, now: float) -> None:
        self._shared.messages_rate.take(consignment.count, now)
        self._shared.bytes_rate.take(consignment.size, now)
        try:
            parcel = self._passage.forward(consignment)
        except PenstockError as error:
            self._shared.permits.give_back(consignment.size)
            self._failed(error, consignment)
            return
        self._backlog.pop()
        flight = self._wake.sent(consignment, parcel, self._backlog.mark)
        self._clock.touched(now, consignment.size)
        self._delay.sent(consignment.time_ms)
        listen(parcel, (self._safely(lambda: self._landed(flight)), None))

    def _landed(self, flight: Flight) -> None:
        """What was forwarded has its outcome. It counts as stored when all before it is stored too."""
        flight.has_landed = True
        self._shared.permits.give_back(flight.consignment.size)
        self._shared.look(self)
        error = _error_of(flight.parcel.verdict)
        if not self._is_at_work():
            self._wake.forget(flight)
        elif error is not None:
            self._failed(error, flight.consignment)
        else:
            for one in self._wake.landed():
                self._count(one)
            self._wake.passed(self._backlog.mark)

    def _count(self, flight: Flight) -> None:
        before = self._wake.stored
        try:
            points = self._wake.store(flight)
        except UnknownTopicError as error:
            self._failed(error, None)
            return
        self.counts.stored(flight.consignment)
        first = flight.parcel.verdict.first
        if isinstance(first, int):
            self._passage.stored_to(first + flight.consignment.count)
        self._tell(points, before)

    def _tell(self, points: Sequence[Point], before: Mark) -> None:
        """Have points written down; until that is done, only what is before this mark may be committed."""
        if not points:
            return
        try:
            parcels = self._passage.tell_points(points)
        except PenstockError as error:
            self._failed(error, None)
            return
        self._await_points(parcels, before)

    def _await_points(self, parcels: Sequence[Any], before: Mark) -> None:
        for parcel in parcels:
            self._wake.await_point(parcel, before)
        for parcel in parcels:
            listen(parcel, (self._safely(lambda parcel=parcel: self._point_told(parcel)), None))

    def _point_told(self, parcel: Any) -> None:
        before = self._wake.point_landed(parcel)
        if before is None:
            return
        error = _error_of(parcel.verdict)
        if error is not None:
            self._failed(error, None)
        elif isinstance(parcel.verdict, Moved):
            self._await_points(parcel.verdict.parts, before)
        self._shared.look(self)

    # Committing

    def _commit_at(self) -> float | None:
        """When the next commit is due; None while there is nothing to commit: what changes that has it looked at."""
        return self._clock.due_at(can_move=self._can_move()) if self._can_commit() else None

    def _can_commit(self) -> bool:
        return self.state is State.COPYING and not self._is_committing and not self._backlog.is_amid

    def _can_move(self) -> bool:
        """Whether a commit would say more than the last one, or will once all have their answers."""
        return self._passage.halts or self._wake.surely_stored.position != self.committed

    def _is_commit_due(self, now: float) -> bool:
        if not self._is_announced:
            return not self._is_committing
        is_pressing = self._is_parting() or self._backlog.is_at_end
        return self._can_commit() and self._clock.is_due(now, can_move=self._can_move(), is_pressing=is_pressing)

    def _maybe_commit(self, now: float) -> None:
        if self.state is State.COPYING and self._is_commit_due(now):
            if self._passage.halts:
                self._become(State.CLOSING)
            else:
                self._commit(now)
        if self.state is State.CLOSING and self._wake.is_at_rest and not self._is_committing:
            self._commit(now)
        self._maybe_end()

    def _commit(self, now: float) -> None:
        mark = self._backlog.mark if self._passage.halts else self._wake.surely_stored
        self._is_committing = self._is_announcing = True
        self._clock.committed(now, is_all=mark.position == self.position)
        self._passage.commit(mark, self._safely(lambda error: self._was_committed(mark.position, error)))

    def _was_committed(self, position: int, error: PenstockError | None) -> None:
        self._is_committing = False
        self._shared.look(self)
        if not self._is_at_work():
            return
        if error is not None:
            self._failed(error, None)
            return
        self.committed = position
        self._is_announced = self._is_announced or self._is_announcing
        self.counts.commits += 1
        self._delay.committed(self._wake.oldest_ms)
        self._backoff.reset()
        self.trouble = None
        if self._passage.halts:
            self._become(State.COPYING)

    # Failing

    def _failed(self, error: PenstockError, consignment: Consignment | None) -> None:
        """Something of it was not done: end, or go back."""
        if not self._is_at_work():
            return
        self.trouble = error
        if _is_final(error) or (consignment is None and isinstance(error, DeniedError)):
            self._end(error)
        elif isinstance(error, BatchTooLargeError) and consignment is not None and consignment.count > 1:
            self._packer.shrink(consignment.size)
            self._rewind()
        elif consignment is not None and _is_refusal(error) and self._is_poison():
            positions = f"positions {consignment.stretches.first} to {consignment.stretches.last}"
            text = f"{self.partition}: the target refuses {positions}, and copying cannot go on: {error}"
            self._end(because(RefusedError(text), error))
        else:
            self._rewind()

    def _is_poison(self) -> bool:
        """Whether it has failed at this place too often."""
        self._tries = self._tries + 1 if self._tried_at == self.committed else 1
        self._tried_at = self.committed
        return self._tries >= TRIES_MAX

    def _rewind(self) -> None:
        """Give up what is on its way, and begin again where the target says."""
        self.counts.rewinds += 1
        self._become(State.REWINDING)
        self._wake.give_up()
        self._backlog.drop()
        self._clock.reset()
        self._flaw = None  # it is found again, behind what is then forwarded again
        self._is_given_up = False
        self._passage.give_up(self._safely(self._given_up))

    def _given_up(self, error: PenstockError | None) -> None:
        self._is_given_up = True
        if error is not None and _is_final(error) and not self.is_over:
            self._end(error)
        self._shared.look(self)

    # The end

    def _is_parting(self) -> bool:
        """Whether it ends once what was forwarded is committed, wherever the source ends."""
        return self._is_stopping or self._flaw is not None

    def _maybe_end(self) -> None:
        is_done = self._is_parting() or self._backlog.is_at_end
        is_all_answered = self._wake.is_at_rest and not self._is_committing
        is_all_committed = not self._clock.is_touched or self._commit_at() is None
        is_whole = not self._backlog.is_amid
        if self.state is State.COPYING and is_done and is_all_answered and is_all_committed and is_whole:
            self._end(self._flaw)

    def _end(self, error: PenstockError | None) -> None:
        self.error = error
        self._become(State.ENDED)
        try:
            self._wake.give_up()
            self._backlog.drop()
            self._passage.close()
        finally:
            self._shared.ended(self)

    # Small things

    def _is_at_work(self) -> bool:
        """Whether what happens now counts: it is not going back, nor over."""
        return self.state in (State.COPYING, State.CLOSING)

    def _safely(self, act: Callable[..., None]) -> Callable[..., None]:
        """What is called by those who would only log what it raises: here that ends the strand."""

        def call(*outcome: Any) -> None:
            try:
                act(*outcome)
            except Exception as error:
                if self.is_over:
                    raise
                self._end(because(PenstockError(f"{self.partition}: copying cannot go on: {error!r}"), error))

        return call

    def _become(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(f"{self!r} cannot become {state.value}")
        self.state = state


def _is_final(error: PenstockError) -> bool:
    """Whether going back would not help: another took its place, the client was closed, or it cannot be done at all."""
    return isinstance(error, FencedError | ClosedError | ConfigError)


def _is_refusal(error: PenstockError) -> bool:
    """Whether the target will probably say so again."""
    return isinstance(error, RefusedError | DeniedError | UnforeseenError)


def _error_of(verdict: Settlement) -> PenstockError | None:
    """What is wrong with a parcel, or with some of its messages."""
    if isinstance(verdict, Moved):
        return next(iter(verdict.errors.values()), None)
    if isinstance(verdict, Spoilt):
        return verdict.error
    return None if isinstance(verdict, Stored) else verdict
