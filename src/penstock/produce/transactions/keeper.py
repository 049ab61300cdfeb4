"""Who keeps the state of one transactional id: its identity, and the one transaction that may be open.

All producers of a client that name the same transactional id share it; a transaction covers them all.

    NAMELESS ──> NAMING ──> IDLE ──> OPEN ──> ENDING
        ^──────────┘ ^──────┘ ^────────────────┘ │        each of them ──> DEAD
                     └───────────────────────────┘

NAMING     the identity is asked for: in the background from the beginning, and where it cannot be used any longer
NAMELESS   that failed for a reason that does not pass by itself; the next transaction tries again
IDLE       a transaction may be opened; its producers take no messages
OPEN       messages are taken
ENDING     no more messages are taken: all are awaited, then the broker is told
DEAD       another instance took the id

What ends a transaction:

- A message that failed dooms it: what has not left is given up, no more is taken, and it can only be aborted.
- It is committed when all batches are stored: first the groups' positions, then the whole. Where nothing was enlisted
  the broker knows of no transaction and is told nothing.
- An answer that says fenced means that another instance took the id, or that the broker aborted a transaction which was
  open for too long. The second is possible only after that time. Then the identity is renewed, which the broker grants
  only to the one who had it last: it tells which of the two it was, and never takes the id back from another.
- After a failure the numbers of a lane may be in doubt. A broker that gives a new epoch with each end of a transaction
  takes care of that; from another one a new identity is asked for.

Runs on: the I/O thread, but for what is said to run on any.
"""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.clock import Clock
from penstock.config import ProducerOptions
from penstock.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    FencedError,
    PenstockError,
    TransactionError,
    TransactionStateError,
    UnresolvedError,
)
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.errand import Errand, Steps, Until
from penstock.net.failures import InvariantError, because
from penstock.net.homes import Homes, Patience
from penstock.net.loop import Loop
from penstock.produce.delivery import LaneDelivery
from penstock.produce.outlet import Outlet
from penstock.produce.sender import Sender
from penstock.produce.transactions.books import Books
from penstock.produce.transactions.members import Members
from penstock.wire.protocol import (
    CommitMarks,
    EndTransaction,
    Enlist,
    EnlistGroup,
    FindHome,
    GroupMember,
    Identify,
    Identity,
    Mark,
    Partition,
    Request,
    Stored,
    Verdict,
)

_log = logging.getLogger("penstock")
OVERTIME: Final = 0.9
"""After this part of the transaction timeout the broker may have aborted, clocks being what they are."""

Marks: TypeAlias = Mapping[tuple[str, GroupMember], Mapping[Partition, Mark]]
"""Positions to be committed, for a group and on behalf of one of its members."""


class State(enum.Enum):
    """What can be done with the transactional id now."""

    NAMELESS = "nameless"
    NAMING = "naming"
    IDLE = "idle"
    OPEN = "open"
    ENDING = "ending"
    DEAD = "dead"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.NAMELESS: frozenset({State.NAMING, State.DEAD}),
    State.NAMING: frozenset({State.IDLE, State.NAMELESS, State.DEAD}),
    State.IDLE: frozenset({State.OPEN, State.NAMING, State.DEAD}),
    State.OPEN: frozenset({State.ENDING, State.DEAD}),
    State.ENDING: frozenset({State.IDLE, State.NAMING, State.DEAD}),
    State.DEAD: frozenset(),
}


class KeeperParts(NamedTuple):
    """What a keeper works with."""

    cluster: Cluster
    loop: Loop
    sender: Sender
    clock: Clock
    backoff: Callable[[], Backoff]


class Waiter(NamedTuple):
    """Somebody who waits for a transaction to be opened."""

    future: Future[None]
    deadline: float


class TransactionKeeper:
    """One transactional id."""

    def __init__(self, parts: KeeperParts, transactional_id: str, options: ProducerOptions) -> None:
        self.cluster = parts.cluster
        self.transactional_id = transactional_id
        self.state = State.NAMELESS
        self.identity: Identity | None = None
        self.timeout = options.transaction_timeout_ms / 1000
        self._loop, self._sender, self._clock = parts.loop, parts.sender, parts.clock
        self._begin_timeout = options.delivery_timeout_ms / 1000
        self._homes = Homes(parts.cluster, parts.clock, parts.backoff, options.unknown_topic_ms / 1000)
        self._home = FindHome(transactional_id)
        self._last: Identity | None = None
        self._is_stale = False  # the identity numbered batches of a producer that is gone
        self._books = Books()
        self._death: FencedError | None = None
        self._waiter: Waiter | None = None
        self._ending: Future[None] | None = None
        self._errand: Errand | None = None
        self._enlisting: Errand | None = None
        self._is_party = False
        self._members = Members(self._not_open)

    def __repr__(self) -> str:
        return f"<TransactionKeeper of {self.transactional_id}, {self.state.value}, {len(self._members)} producers>"

    # On any thread

    def join(self, member: Outlet) -> bool:
        """One more producer belongs to it, to another topic than the others; False when it is over, and none can."""
        if self._death is None and any(other.topic == member.topic for other in self._members):
            raise ConfigError(
                f"transactional_id={self.transactional_id!r}: there is a producer of {member.topic} with it, and two "
                "would number the same partition's messages: use that one, or another id"
            )
        return self._members.join(member)

    def begin(self, member: Outlet) -> Future[None]:
        """Open a transaction, as soon as there is an identity; all producers take messages when this is done."""
        future: Future[None] = Future()
        self._loop.call(lambda: self._begin(member, future))
        return future

    def commit(self, marks: Marks) -> Future[None]:
        """Take no more messages, and commit; done when the broker has said so."""
        self._close_gates()
        self._members.seal()
        return self._end(lambda: self._committing(marks))

    def roll_back(self) -> Future[None]:
        """Take no more messages, and abort."""
        self._close_gates()
        return self._end(self._aborting)

    def _end(self, steps: Callable[[], Steps[None]]) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self._loop.call(lambda: self._begin_end(steps, future))
        return future

    # What the producers' outlets ask and tell

    def start(self, now: float) -> None:
        """Begin to work, or try again to get an identity."""
        if not self._is_party:
            self._is_party = True
            self._loop.parties.append(self)
        if self.state is State.NAMELESS:
            self._start_naming(now)

    def may_launch(self, partition: Partition, delivery: LaneDelivery | None) -> bool:
        """Whether a batch may leave now; begins what must come before."""
        books = self._books
        if self.identity is None or books.doom is not None or self.state not in (State.OPEN, State.ENDING):
            return False
        if delivery is not None and delivery.wants_identity and delivery.identity == self.identity:
            books.failure = TransactionError(f"{partition}: the broker's numbers of messages and ours have parted")
            return False
        leader = self.cluster.leader(partition)
        return books.may_launch(partition, None if leader is None else self.cluster.enlists(leader))

    def launched(self, partition: Partition) -> None:
        """A batch has left."""
        self._books.launched(partition, self._clock.monotonic())

    def landed(self, partition: Partition, verdict: Verdict) -> None:
        """A batch was answered so, or will not be."""
        self._books.landed(partition, isinstance(verdict, Stored))
        if isinstance(verdict, FencedError):
            self._die(verdict)

    def meaning(self, error: PenstockError) -> PenstockError:
        """What a broker's refusal means: fenced, or aborted by it after too long a time."""
        open_for = self._books.open_for(self._clock.monotonic())
        if isinstance(error, FencedError | TransactionError) and open_for >= OVERTIME * self.timeout:
            text = (
                f"the broker has aborted the transaction, which was open for {open_for:.1f} s and longer than "
                f"transaction_timeout_ms={self.timeout * 1000:.0f}; end it sooner, or raise that: {error}"
            )
            return because(TransactionError(text), error)
        return self._fenced(error) if isinstance(error, FencedError) else error

    def leave(self, member: Outlet) -> None:
        """A producer is gone; what it has sent in the open transaction stays part of it."""
        if not self._members.leave(member):
            return
        self._is_stale = True
        self._books.forget(member.topic)
        if member.lanes.failure is not None and self.state in (State.OPEN, State.ENDING):
            self._doom(member.lanes.failure)

    # The turn

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News that concern nobody here: what is asked of the cluster is looked at in each turn."""

    def work(self, now: float) -> float | None:
        """Do what is due; when to come back at the latest."""
        self._look_for_failures()
        if self._books.doom is not None or self.state is State.DEAD:
            self._give_up_waiting()
        self._maybe_enlist(now)
        for errand in (self._errand, self._enlisting):
            if errand is not None:
                errand.work(now)
        deadlines = [errand.work(now) for errand in (self._errand, self._enlisting) if errand is not None]
        if self._waiter is not None:
            if now >= self._waiter.deadline:
                self._tell_waiter(self._no_identity_in_time())
            else:
                deadlines.append(self._waiter.deadline)
        self._maybe_retire()
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def abort(self, error: PenstockError) -> None:
        """The loop has ended."""
        self._tell_waiter(error)
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.set_exception(self._unresolved(error) if self._books.is_commit_asked else error)

    # Beginning

    def _begin(self, member: Outlet, future: Future[None]) -> None:
        refusal = self._why_not(member)
        if refusal is not None:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal)
            return
        now = self._clock.monotonic()
        self._waiter = Waiter(future, now + self._begin_timeout)
        if self.state is State.NAMELESS or (self.state is State.IDLE and self._is_stale):
            self._start_naming(now)
        self._maybe_open()

    def _why_not(self, member: Outlet) -> PenstockError | None:
        if self._death is not None:
            return self._fenced(self._death)
        if all(other is not member for other in self._members):
            return ClosedError(f"the producer of {member.topic} is closed")
        is_awaited = self._waiter is not None and not self._waiter.future.cancelled()
        if self.state in (State.OPEN, State.ENDING) or is_awaited:
            what = "being ended" if self.state is State.ENDING else "open"
            return TransactionStateError(
                f"transactional id {self.transactional_id}: a transaction is {what} already, and there can be only one"
            )
        return None

    def _maybe_open(self) -> None:
        waiter = self._waiter
        if waiter is None or self.state is not State.IDLE:
            return
        self._waiter = None
        if not waiter.future.set_running_or_notify_cancel():
            return
        self._books = Books()
        self._members.forget_failures()
        self._move(State.OPEN)
        self._members.refuse(None)
        waiter.future.set_result(None)

    def _start_naming(self, now: float) -> None:
        self.identity = None
        self._is_stale = False
        self._move(State.NAMING)
        self._errand = Errand(self.cluster, self._naming(), self._named)
        self._errand.begin(now)

    def _naming(self) -> Steps[None]:
        request = Identify(self.transactional_id, int(self.timeout * 1000), self._last)
        told = yield from self._homes.asked(self._home, request)
        if told.error is not None:
            raise told.error
        self._adopt(told.answer)

    def _named(self, error: PenstockError | None) -> None:
        self._errand = None
        if isinstance(error, FencedError) and self._last is not None:
            self._die(self._fenced(error))
        elif error is not None:
            self._move(State.NAMELESS)
            self._tell_waiter(error)
            self._members.fail(error)
        else:
            self._move(State.IDLE)
            self._maybe_open()

    def _no_identity_in_time(self) -> PenstockError:
        trouble = self.cluster.trouble(self._clock.monotonic()) or self._homes.trouble
        text = f"transactional id {self.transactional_id}: no identity within {self._begin_timeout} s"
        return because(BusyError(f"{text}: {trouble}" if trouble else text), trouble)

    # Ending

    def _begin_end(self, steps: Callable[[], Steps[None]], future: Future[None]) -> None:
        if self.state is State.OPEN:
            self._move(State.ENDING)
        elif self.state is not State.DEAD:  # then what flies is awaited all the same
            future.set_exception(self._not_open())
            return
        now = self._clock.monotonic()
        self._ending = future
        self._sender.flushing += 1
        self.cluster.flush(now)
        self._errand = Errand(self.cluster, steps(), self._ended)
        self._errand.begin(now)

    def _ended(self, error: PenstockError | None) -> None:
        self._sender.flushing -= 1
        self._errand = None
        self._books = Books()
        self._close_gates()
        if self.state is not State.DEAD:
            if self.identity is None:
                self._start_naming(self._clock.monotonic())
            else:
                self._move(State.IDLE)
        ending, self._ending = self._ending, None
        if ending is not None and error is not None:
            ending.set_exception(error)
        elif ending is not None:
            ending.set_result(None)

    def _committing(self, marks: Marks) -> Steps[None]:
        yield Until(self._is_at_rest)
        patience = Patience(self._clock.monotonic() + self.timeout)
        self._check_alive()
        self._look_for_failures()
        error = self._books.doom
        for (group, member), positions in marks.items():
            if error is None:
                request = CommitMarks(*self._me(), group, positions, member)
                error = yield from self._commit_marks(request, patience)
        if error is None and self._books.touched_at is not None:
            error = yield from self._commit_all(patience)
        if error is not None:
            yield from self._rolling_back(error, patience)
            text = f"transactional id {self.transactional_id}: aborted, nothing of the transaction is stored: {error}"
            raise because(TransactionError(text), error)

    def _commit_marks(self, request: CommitMarks, patience: Patience) -> Steps[PenstockError | None]:
        """Make a group's positions part of the transaction, to be committed with it; why that cannot be."""
        home = FindHome(request.group, of_group=True)
        yield from self._homes.find(home)
        self._books.touch(self._clock.monotonic())
        requests: list[tuple[FindHome, Request[Any]]] = [(home, request)]
        if not self._homes.enlists(home):
            requests.insert(0, (self._home, EnlistGroup(*self._me(), request.group)))
        for where, what in requests:
            told = yield from self._homes.asked(where, what, patience)
            if told.error is not None:
                return self._judged(told.error)
        return None

    def _commit_all(self, patience: Patience) -> Steps[PenstockError | None]:
        """Have the broker commit; why it has not. Raises where that cannot be found out."""
        self._books.is_commit_asked = True
        told = yield from self._homes.asked(self._home, EndTransaction(*self._me(), commit=True), patience)
        if told.error is None:
            self._adopt(told.answer)
            return None
        error = self._judged(told.error)
        if told.maybe_done and not isinstance(told.error, TransactionError):
            self.identity = None
            raise self._unresolved(error)
        return error

    def _aborting(self) -> Steps[None]:
        reason = TransactionError(f"transactional id {self.transactional_id}: the transaction was aborted")
        yield from self._rolling_back(reason, Patience(self._clock.monotonic() + self.timeout))

    def _rolling_back(self, reason: PenstockError, patience: Patience) -> Steps[None]:
        """Give up what has not left, await the rest, and have the broker abort."""
        self._doom(reason)
        yield Until(self._is_at_rest)
        self._check_alive()
        before = self.identity
        if self._books.touched_at is not None:
            told = yield from self._homes.asked(self._home, EndTransaction(*self._me(), commit=False), patience)
            if told.error is None:
                self._adopt(told.answer)
            else:
                self._judged(told.error)
                self._check_alive()
                self.identity = None
                _log.info("transactional id %s: left to the broker to abort: %s", self.transactional_id, told.error)
        if self.identity == before and self._members.are_in_doubt():
            self.identity = None

    def _unresolved(self, error: PenstockError) -> UnresolvedError:
        text = f"transactional id {self.transactional_id}: whether the transaction was committed cannot be found out"
        return because(UnresolvedError(f"{text}: {error}"), error)

    # Failing

    def _look_for_failures(self) -> None:
        """A message that failed dooms the transaction."""
        if self.state in (State.OPEN, State.ENDING) and self._books.doom is None:
            failure = self._books.failure or self._members.failure()
            if failure is not None:
                self._doom(failure)

    def _doom(self, reason: PenstockError) -> None:
        """The transaction can only be aborted."""
        if self._books.doom is None:
            self._books.doom = reason
            if self.state is State.OPEN:
                self._members.refuse(lambda: because(TransactionError(f"{self._only_abort()}: {reason}"), reason))
        self._give_up_waiting()

    def _only_abort(self) -> str:
        return f"transactional id {self.transactional_id}: a part of the transaction failed, it can only be aborted"

    def _give_up_waiting(self) -> None:
        """What has not left will not."""
        doom = self._books.doom
        aborted = because(TransactionError(f"not stored, its transaction is aborted: {doom}"), doom)
        self._members.fail_waiting(self._death or aborted)

    def _judged(self, error: PenstockError) -> PenstockError:
        """What an error means, all consequences drawn."""
        error = self.meaning(error)
        if isinstance(error, FencedError):
            self._die(error)
        return error

    def _die(self, error: FencedError) -> None:
        """Another instance took the id: say so from now on, to everybody."""
        if self._death is not None:
            return
        self._death = error
        self._move(State.DEAD)
        self.identity = None
        self._members.close()
        self._close_gates()
        self._tell_waiter(self._fenced(error))
        for member in self._members:
            member.fail_readiness(error, for_good=True)
        self._give_up_waiting()

    def _fenced(self, error: PenstockError) -> FencedError:
        if self._death is not None:
            return because(copy.copy(self._death), self._death.__cause__)  # raising adds a traceback to each
        text = f"transactional id {self.transactional_id}: another instance took over, this producer has ended for good"
        return because(FencedError(f"{text}: {error}", getattr(error, "code", "")), error)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._fenced(self._death)

    # Small things

    def _maybe_enlist(self, now: float) -> None:
        if self._books.wanted and self._enlisting is None and self._books.doom is None and self._death is None:
            self._enlisting = Errand(self.cluster, self._enlist(self._books), self._enlisted)
            self._enlisting.begin(now)

    def _enlist(self, books: Books) -> Steps[None]:
        books.touch(self._clock.monotonic())
        patience = Patience(self._clock.monotonic() + self.timeout, lambda: books.doom is None and self._death is None)
        partitions = sorted(books.wanted)
        told = yield from self._homes.asked(self._home, Enlist(*self._me(), partitions), patience)
        if told.error is not None:
            raise self._judged(told.error)
        books.enlisted(partitions)

    def _enlisted(self, error: PenstockError | None) -> None:
        self._enlisting = None
        if error is not None and self.state in (State.OPEN, State.ENDING):
            self._doom(error)

    def _is_at_rest(self, now: float) -> bool:
        """Whether no message is on its way to the broker any more."""
        return self._enlisting is None and self._members.are_at_rest()

    def _adopt(self, identity: Identity) -> None:
        self._is_stale = self._is_stale and identity == self._last
        self.identity = self._last = identity

    def _me(self) -> tuple[str, Identity]:
        if self.identity is None:
            raise InvariantError(f"{self!r} has no identity")
        return self.transactional_id, self.identity

    def _tell_waiter(self, error: PenstockError) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and waiter.future.set_running_or_notify_cancel():
            waiter.future.set_exception(error)

    def _close_gates(self) -> None:
        self._members.refuse(self._not_open)

    def _not_open(self) -> PenstockError:
        """The error of a message that comes while no transaction is open."""
        if self._death is not None:
            return self._fenced(self._death)
        return TransactionStateError(
            f"transactional id {self.transactional_id}: no transaction is open; send within "
            "`with producer.transaction():`"
        )

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(f"{self!r} cannot become {state.value}")
        self.state = state

    def _maybe_retire(self) -> None:
        """End when nobody needs it any more."""
        if self.state is State.OPEN or self._ending is not None or not self._members.close_if_empty():
            return
        self._tell_waiter(ClosedError(f"transactional id {self.transactional_id}: all its producers are closed"))
        if self._errand is not None:
            self._errand.drop()
        self._loop.parties.remove(self)
