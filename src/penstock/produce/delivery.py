"""The sealed batches of one lane until each has exactly one outcome, in order, whatever the broker says.

Batches leave in order, several in flight. A broker that remembers its producers stores a batch only if its sequence
follows the last one stored for this identity, answers a batch it has already stored as stored, and refuses the rest.
Everything here follows from that rule:

- One failed answer holds the lane. When all that is in flight is answered, what failed goes back to the head, in the
  old order and with the old numbers, and is sent again byte for byte. Those that were refused because the one before
  them failed are part of it.
- A batch that is given up and was certainly not stored leaves its number to the next: all behind it are numbered anew,
  which is safe, since none of them can have been stored without it. If one of them was sent without an answer they get
  a new identity too: the broker may still have that request, and would take it for the new owner of its number.
- A batch that is given up and may have been stored leaves the lane *unresolved*: nobody knows the next number. Batches
  behind it that were in flight too are sent again as they were, and tell: stored means that it was stored as well,
  refused means that neither was. If there are none, or they were refused, the lane goes on with a new identity.
- A batch whose time runs out in flight has its outcome at once; its answer still counts for the numbers.

The rule has a hole: a broker takes any number from a producer that it does not know. So the first batch of a producer
in a lane goes alone; else its followers would be stored although it was refused, and it would come after them. Alone
goes also a batch that is asked about again although later ones were stored: brokers remember the last few batches only,
and more behind it could make this one forgotten.

Without an identity there are no numbers, and a batch that is sent again can be stored after, or beside, its followers.

Pure: events in, decisions out, time is an argument. Runs on: the I/O thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import (
    BusyError,
    ClosedError,
    ClosedInFlightError,
    ExpiredError,
    NotLeaderError,
    PenstockError,
    Persisted,
    SequenceError,
    TimedOutError,
    UnresolvedError,
)
from penstock.net.failures import because
from penstock.produce.batch import Batch, State
from penstock.produce.receipts import Moved, Settlement
from penstock.wire.protocol import Identity, Spoilt, Stored, Verdict

SEQUENCES = 1 << 31
"""Sequence numbers start again at 0 after this many."""


class Settled(NamedTuple):
    """A batch that has its outcome."""

    batch: Batch
    outcome: Settlement


class Division(NamedTuple):
    """The batches that go in place of one, in order, and where its messages went."""

    parts: Sequence[Batch]
    moved: Moved


Divide = Callable[[Batch, PenstockError | Spoilt], "Division | None"]
"""What may be sent in place of a batch that was refused: smaller ones, or one without the messages that are to blame.
None: nothing, its messages share its verdict."""


def undivided(batch: Batch, verdict: PenstockError | Spoilt) -> Division | None:
    """Let no batch be divided."""
    return None


class LaneDelivery:
    """What is on its way from one lane."""

    def __init__(
        self,
        in_flight_max: int,
        backoff: Callable[[int], float],
        divide: Divide = undivided,
        *,
        fences: bool = False,
    ) -> None:
        """`fences`: a batch that is given up takes those behind it along, so that nothing is stored without it."""
        self._fences = fences
        self._lost: PenstockError | None = None  # why a batch was given up whose followers are still to go with it
        self._in_flight_max = in_flight_max
        self._backoff = backoff
        self._divide = divide
        self._waiting: deque[Batch] = deque()
        self._flying: deque[Batch] = deque()
        self._failed: dict[Batch, PenstockError | Spoilt] = {}
        self._not_before = 0.0
        self._identity: Identity | None = None
        self._next_sequence = 0
        self._proven = False  # the broker has stored something of the producer, and refuses what does not follow
        self._unresolved = False
        self._spent = False  # the identity cannot number any further batch of this lane

    def __repr__(self) -> str:
        words = [f"{len(self._waiting)} waiting", f"{len(self._flying)} in flight", f"{len(self._failed)} failed"]
        words += ["unresolved"] * self._unresolved + ["wants a new identity"] * self.wants_identity
        return f"<LaneDelivery {', '.join(words)}>"

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an outcome."""
        return not self._waiting and not self._flying

    @property
    def wants_identity(self) -> bool:
        """Whether the lane can only go on with an identity other than the one it has."""
        return (self._spent or self._unresolved) and not self._flying and self._head_is_new()

    @property
    def identity(self) -> Identity | None:
        """The identity that its last batch was numbered for."""
        return self._identity

    def add(self, batch: Batch) -> None:
        """A sealed batch, behind all others."""
        self._waiting.append(batch)

    def ready_at(self) -> float | None:
        """From when on the next batch may leave; None while none may."""
        if not self._waiting or self._failed or len(self._flying) >= self._in_flight_max:
            return None
        if self._head_is_new() and self._flying and (self._spent or self._unresolved):
            return None
        if self._flying and self._flying[0].identity is not None and self._goes_alone(self._flying[0]):
            return None
        return self._not_before

    def launch(self, identity: Identity | None, now: float) -> Batch | None:
        """Take the next batch to be sent, numbered for this identity if it has no number yet."""
        ready_at = self.ready_at()
        if ready_at is None or now < ready_at:
            return None
        batch = self._waiting[0]
        if batch.sequence < 0 and identity is not None:
            if (identity != self._identity and self._flying) or (self.wants_identity and identity == self._identity):
                return None
            self._number(batch, identity)
        self._waiting.popleft()
        self._flying.append(batch)
        batch.attempts += 1
        batch.move(State.IN_FLIGHT)
        return batch

    def land(self, batch: Batch, verdict: Verdict, now: float) -> list[Settled]:
        """The answer to a batch in flight (or the news that there will be none): what is settled by it."""
        settled: list[Settled] = []
        if isinstance(verdict, Stored):
            self._note_stored(batch)
            if batch.verdict is None:
                settled.append(self._settle(batch, State.ACKED, verdict))
        else:
            self._failed[batch] = verdict
            batch.trouble = _error_of(verdict)
            batch.maybe_stored |= _may_be_stored(_error_of(verdict))
        if self._failed and len(self._failed) == len(self._flying):
            settled += self._regroup(now)
        return settled

    def expire(self, now: float, why: str = "") -> list[Settled]:
        """Settle the batches whose time is up; `why` says what kept those that did not fail themselves."""
        settled = []
        for batch in [batch for batch in self._waiting if batch.expires_at <= now]:
            self._give_up(batch)
            error = TimedOutError if batch.maybe_stored else ExpiredError
            text = _story("its delivery time is over", batch, why)
            settled.append(self._settle(batch, State.FAILED, because(error(text), batch.trouble)))
        settled += self._fenced()
        for batch in self._flying:
            if batch.expires_at <= now and batch.verdict is None:
                text = _story("its delivery time ended while the broker's answer was awaited", batch, why)
                settled.append(self._settle(batch, State.FAILED, because(TimedOutError(text), batch.trouble)))
        return settled

    @property
    def head(self) -> Batch | None:
        """The next batch to be sent."""
        return self._waiting[0] if self._waiting else None

    @property
    def has_waiting(self) -> bool:
        """Whether batches wait to be sent."""
        return bool(self._waiting)

    @property
    def in_flight(self) -> int:
        """Batches that were sent and not answered."""
        return len(self._flying)

    @property
    def bytes_waiting(self) -> int:
        """Bytes of the batches that wait to be sent."""
        return sum(batch.reserved for batch in list(self._waiting))  # asked by other threads too

    def next_expiry(self) -> float | None:
        """When the next batch's time is up."""
        return min(
            (batch.expires_at for batch in (*self._flying, *self._waiting) if batch.verdict is None), default=None
        )

    @property
    def is_at_rest(self) -> bool:
        """Whether the lane can be dropped and opened again with nothing but its `memory`."""
        return self.is_idle and not self._unresolved and not self._spent

    def memory(self) -> tuple[Identity, int] | None:
        """What a lane at rest must remember to be opened again: for whom it numbered, and the next number."""
        return None if self._identity is None else (self._identity, self._next_sequence)

    def remember(self, memory: tuple[Identity, int]) -> None:
        """Go on where a lane of the same partition ended."""
        self._identity, self._next_sequence = memory
        self._proven = self._next_sequence > 0

    def fail_all(self, error: PenstockError) -> list[Settled]:
        """Settle everything with one error: the end of the producer, or of its identity."""
        unsettled = [batch for batch in (*self._flying, *self._waiting) if batch.verdict is None]
        self._waiting.clear()
        return [self._settle(batch, State.FAILED, self._as_of(batch, error)) for batch in unsettled]

    def fail_waiting(self, error: PenstockError) -> list[Settled]:
        """Settle what is not in flight with one error, as when a transaction is aborted; the rest is still answered."""
        settled = []
        for batch in list(self._waiting):
            self._give_up(batch)
            settled.append(self._settle(batch, State.FAILED, error))
        self._lost = None  # it has no followers left
        return settled

    def _as_of(self, batch: Batch, error: PenstockError) -> PenstockError:
        """The error that ends a batch, which may have been stored although the error is not about that."""
        may_be_stored = batch.maybe_stored or batch.state is State.IN_FLIGHT
        if not may_be_stored or error.persisted is not Persisted.NO:
            return error
        if isinstance(error, ClosedError):
            return because(ClosedInFlightError(f"sent, but its answer was not awaited: {error}"), error)
        return _unresolved("given up", error)

    def _goes_alone(self, batch: Batch) -> bool:
        """Whether nothing may be sent behind a batch in flight."""
        return not self._proven or batch.surely_stored

    def _head_is_new(self) -> bool:
        return not self._waiting or self._waiting[0].sequence < 0

    def _number(self, batch: Batch, identity: Identity) -> None:
        if identity != self._identity:
            self._proven &= self._identity is not None and self._identity.producer == identity.producer
            self._identity = identity
            self._next_sequence = 0
            self._unresolved = self._spent = False
        batch.number(identity, self._next_sequence)
        self._next_sequence = (self._next_sequence + batch.count) % SEQUENCES

    def _settle(self, batch: Batch, state: State, outcome: Settlement) -> Settled:
        batch.settle(state, outcome)
        return Settled(batch, outcome)

    def _note_stored(self, batch: Batch) -> None:
        self._unresolved = False
        if batch.identity is not None:
            self._proven |= batch.identity == self._identity
            for earlier in self._flying:
                if earlier is batch:
                    break
                earlier.surely_stored = True
        self._flying.remove(batch)

    def _regroup(self, now: float) -> list[Settled]:
        """All in flight is answered and some of it failed: put back what is sent again, settle what is given up."""
        failed = [(batch, self._failed[batch]) for batch in self._flying]
        self._flying.clear()
        self._failed.clear()
        self._waiting.extendleft(batch for batch, _ in reversed(failed))
        settled: list[Settled] = []
        outcome: Settlement | None
        first, _ = failed[0]
        numbered = first.sequence >= 0
        for batch, verdict in failed:
            if isinstance(verdict, SequenceError) and numbered and batch.verdict is None:
                outcome = self._refused(batch) if batch is first else None
            else:
                outcome = self._judge(batch, verdict)
            if outcome is not None:
                settled.append(self._settle(batch, State.FAILED, outcome))
        for batch in self._waiting:
            if batch.state is State.IN_FLIGHT:
                batch.move(State.SEALED)
                self._not_before = max(self._not_before, now + self._backoff(batch.attempts))
        return settled + self._fenced()

    def _fenced(self) -> list[Settled]:
        """What was given up takes along all that waits behind it, where that is asked for."""
        cause, self._lost = self._lost, None
        if not self._fences or cause is None:
            return []
        return self.fail_waiting(because(BusyError(f"not sent, since one before it was given up: {cause}"), cause))

    def _judge(self, batch: Batch, verdict: PenstockError | Spoilt) -> Settlement | None:
        """What becomes of a batch that failed; None: it is sent again, or has its outcome already."""
        error = _error_of(verdict)
        if batch.verdict is not None:
            self._give_up(batch)
            return None
        if error.retriable:
            return None
        if batch.maybe_stored:
            self._give_up(batch)
            return verdict if error.persisted is Persisted.MAYBE else _unresolved("refused", error)
        division = self._divide(batch, verdict)
        self._give_up(batch, division.parts if division else ())
        return division.moved if division else verdict

    def _refused(self, batch: Batch) -> PenstockError | None:
        """A batch did not fit in though nothing before it failed now: the broker's memory and ours have parted.

        If one before it was given up unresolved, that one was not stored and neither was this. Otherwise the broker has
        forgotten the producer, and a batch that may have been stored before cannot be told from one that was not.
        """
        forgotten = batch.maybe_stored and not self._unresolved
        self._spent = True
        self._unresolved = False
        if forgotten:
            self._waiting.remove(batch)
            return UnresolvedError("sent without an answer, and the broker has forgotten this producer since")
        self._unnumber(self._waiting.index(batch))
        return None

    def _give_up(self, batch: Batch, instead: Sequence[Batch] = ()) -> None:
        """A batch at rest will not be sent again, others perhaps instead: what becomes of the numbers behind it."""
        place = self._waiting.index(batch)
        del self._waiting[place]
        self._lost = self._lost or batch.trouble or ExpiredError("its delivery time was over")
        for part in reversed(instead):
            self._waiting.insert(place, part)
        if batch.sequence < 0 or batch.surely_stored:
            return
        if batch.maybe_stored:
            self._unresolved = True
        else:
            self._spent |= any(later.maybe_stored for later in itertools.islice(self._waiting, place, None))
            self._next_sequence = batch.sequence
            self._unnumber(place)

    def _unnumber(self, start: int) -> None:
        """The batches from here on were not stored, and get other numbers when they leave again."""
        for batch in list(self._waiting)[start:]:
            batch.number(None, -1)
            batch.maybe_stored = False


def _unresolved(what: str, error: PenstockError) -> UnresolvedError:
    return because(UnresolvedError(f"sent without an answer, then {what}: {error}"), error)


def _may_be_stored(error: PenstockError) -> bool:
    """Whether a batch may be stored that was answered so.

    A leader stores a batch, waits for its replicas and, when it has to step down meanwhile, says that it does not lead:
    the next leader may have the batch all the same.
    """
    return error.persisted is Persisted.MAYBE or isinstance(error, NotLeaderError)


def _error_of(verdict: PenstockError | Spoilt) -> PenstockError:
    return verdict.error if isinstance(verdict, Spoilt) else verdict


def _story(text: str, batch: Batch, why: str) -> str:
    told = str(batch.trouble) if batch.trouble is not None else why
    tries = f" after {batch.attempts} attempts" if batch.attempts else ""
    return f"{text}{tries}: {told}" if told else f"{text}{tries}"
