"""The sealed batches of one lane until each has exactly one outcome, in order, whatever the broker says.

Batches leave in order, several in flight. A broker that remembers its producers stores a batch only if its sequence
follows the last one stored for this identity, answers a batch it has already stored as stored, and refuses the rest.
Everything here follows from that rule:

- One failed answer holds the lane. When all that is in flight is answered, what failed goes back to the head, in the
  old order and with the old numbers, and is sent again byte for byte. Those that were refused because the one before
  them failed are part of it.
- A batch that is given up and was certainly not stored leaves its number to the next: all behind it are numbered anew,
  which is safe, since none of them can have been stored without it.
- A batch that is given up and may have been stored leaves the lane *unresolved*: nobody knows the next number. Batches
  behind it that were in flight too are sent again as they were, and tell: stored means that it was stored as well,
  refused means that neither was. If there are none, or they were refused, the lane goes on with a new identity.
- A batch whose time runs out in flight has its outcome at once; its answer still counts for the numbers.

Without an identity there are no numbers, and a batch that is sent again can be stored after, or beside, its followers.

Pure: events in, decisions out, time is an argument. Runs on: the I/O thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import ExpiredError, PenstockError, Persisted, SequenceError, TimedOutError, UnresolvedError
from penstock.produce.batch import Batch, State
from penstock.wire.protocol import Identity, Spoilt, Stored, Verdict

SEQUENCES = 1 << 31
"""Sequence numbers start again at 0 after this many."""


class Settled(NamedTuple):
    """A batch that has its outcome."""

    batch: Batch
    outcome: Verdict


class LaneDelivery:
    """What is on its way from one lane."""

    def __init__(self, in_flight_max: int, backoff: Callable[[int], float]) -> None:
        self._in_flight_max = in_flight_max
        self._backoff = backoff
        self._waiting: deque[Batch] = deque()
        self._flying: deque[Batch] = deque()
        self._failed: dict[Batch, PenstockError] = {}
        self._not_before = 0.0
        self._identity: Identity | None = None
        self._next_sequence = 0
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
            if batch.outcome is None:
                settled.append(self._settle(batch, State.ACKED, verdict))
        else:
            error = verdict.error if isinstance(verdict, Spoilt) else verdict
            self._failed[batch] = error
            batch.maybe_stored |= error.persisted is Persisted.MAYBE
            if isinstance(verdict, Spoilt) and batch.outcome is None:
                settled.append(self._settle(batch, State.FAILED, verdict))
        if self._failed and len(self._failed) == len(self._flying):
            settled += self._regroup(now)
        return settled

    def expire(self, now: float) -> list[Settled]:
        """Settle the batches whose time is up."""
        settled = []
        for batch in [batch for batch in self._waiting if batch.expires_at <= now]:
            self._give_up(batch)
            error = TimedOutError if batch.maybe_stored else ExpiredError
            settled.append(self._settle(batch, State.FAILED, error("its delivery time is over")))
        for batch in self._flying:
            if batch.expires_at <= now and batch.outcome is None:
                late = TimedOutError("its delivery time ended while the broker's answer was awaited")
                settled.append(self._settle(batch, State.FAILED, late))
        return settled

    def fail_all(self, error: PenstockError) -> list[Settled]:
        """Settle everything with one error: the end of the producer, or of its identity."""
        unsettled = [batch for batch in (*self._flying, *self._waiting) if batch.outcome is None]
        self._waiting.clear()
        return [self._settle(batch, State.FAILED, error) for batch in unsettled]

    def _head_is_new(self) -> bool:
        return not self._waiting or self._waiting[0].sequence < 0

    def _number(self, batch: Batch, identity: Identity) -> None:
        if identity != self._identity:
            self._identity = identity
            self._next_sequence = 0
            self._unresolved = self._spent = False
        batch.number(identity, self._next_sequence)
        self._next_sequence = (self._next_sequence + batch.count) % SEQUENCES

    def _settle(self, batch: Batch, state: State, outcome: Verdict) -> Settled:
        batch.move(state)
        batch.outcome = outcome
        return Settled(batch, outcome)

    def _note_stored(self, batch: Batch) -> None:
        self._unresolved = False
        if batch.identity is not None:
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
        settled = []
        for place, (batch, error) in enumerate(failed):
            outcome = self._judge(batch, error, is_first=place == 0)
            if outcome is not None:
                settled.append(self._settle(batch, State.FAILED, outcome))
        for batch in self._waiting:
            if batch.state is State.IN_FLIGHT:
                batch.move(State.SEALED)
                self._not_before = max(self._not_before, now + self._backoff(batch.attempts))
        return settled

    def _judge(self, batch: Batch, error: PenstockError, is_first: bool) -> PenstockError | None:
        """What becomes of a batch that failed; None: it is sent again, or has its outcome already."""
        if batch.outcome is not None:
            self._give_up(batch)
            return None
        if isinstance(error, SequenceError):
            return self._refused(batch) if is_first else None
        if error.retriable:
            return None
        self._give_up(batch)
        return error

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

    def _give_up(self, batch: Batch) -> None:
        """A batch at rest will not be sent again: what becomes of the numbers behind it."""
        place = self._waiting.index(batch)
        del self._waiting[place]
        if batch.sequence < 0 or batch.surely_stored:
            return
        if batch.maybe_stored:
            self._unresolved = True
        else:
            self._next_sequence = batch.sequence
            self._unnumber(place)

    def _unnumber(self, start: int) -> None:
        """The batches from here on were not stored, and get other numbers when they leave again."""
        for batch in list(self._waiting)[start:]:
            batch.number(None, -1)
            batch.maybe_stored = False
