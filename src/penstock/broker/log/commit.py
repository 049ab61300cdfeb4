"""The commit thread: what was appended and what goes into the store is made durable, round by round.

A round is what arrived while the last one was under way; there is no timer. First the log's data is made durable, then
the store's statements are committed in one transaction, then `finish()` on the loop thread advances what readers see
and calls every `done`, in the order of the submits.

| policy | `done` comes | an acknowledged append survives |
|---|---|---|
| ALWAYS | after a sync of its own segment, which it shares with what that segment got meanwhile | loss of power |
| GROUP | after a sync that it shares with all that arrived meanwhile, in whatever segments | loss of power |
| SYSTEM | at once: `submit` without `work` calls it before it returns | the end of the process, not loss of power |

Statements are as durable as the connection makes them (`synchronous=FULL`) before their `done`, in any policy.

What goes wrong in a way that was not foreseen ends all writing (`broken`): who waits is told, appends are refused, and
reading goes on with what is known to be durable.

Between the threads pass whole rounds, under one lock: `gathering` is the loop thread's until it is submitted; what was
submitted waits in one round that the commit thread takes as soon as the last is over; rounds that are over wait for
`finish()`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.broker.log.rounds import Job, Round
from penstock.broker.log.syncer import FsyncPolicy, Syncer
from penstock.errors import ClosedError, StorageError, StorageFailedError, StorageFullError, StorageReadOnlyError

if TYPE_CHECKING:
    from penstock.broker.log.partition import PartitionLog

__all__ = ["Committer", "Done", "FsyncPolicy", "Work"]

Work: TypeAlias = Callable[[sqlite3.Connection], object]
Done: TypeAlias = Callable[[Exception | None], None]

_log = logging.getLogger("penstock")
LOOK_MS: Final = 5
"""How often whoever waits for a round looks whether any is still to come."""


class Bell:
    """Tells the loop's poller that something is there."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Readable after `ring`, until `quiet`."""
        return self._read

    def ring(self) -> None:
        """From any thread."""
        with contextlib.suppress(BlockingIOError):  # so many rings are unheard that one more changes nothing
            os.write(self._write, b"\\1")

    def quiet(self) -> None:
        """Nothing is there any more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._read)
        os.close(self._write)


class Committer:
    """Makes durable what it is given, one round after the other.

    Runs on: the loop thread, but for the rounds themselves, which run on the commit thread that it starts. With
    `threaded=False` there is none: `run_round()` does one round on the calling thread, for tests and tools.
    """

    def __init__(
        self,
        policy: FsyncPolicy = FsyncPolicy.GROUP,
        connect: Callable[[], sqlite3.Connection] | None = None,
        *,
        threaded: bool = True,
    ) -> None:
        """`connect` is called once, on the commit thread; it opens the store's database with `synchronous=FULL`."""
        self.policy = policy
        self.gathering = Round()
        """What was written since the last submit; logs put it there."""
        self._connect = connect
        self._threaded = threaded
        self._thread: threading.Thread | None = None
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._syncer: Syncer | None = None
        self._closing: Callable[[], None] = lambda: None
        self._store: sqlite3.Connection | None = None
        self._bell = Bell()
        self.broken: StorageError | None = None
        """Why nothing can be made durable any more, once that is so. Written by the commit thread, read by all."""
        self._ticket = 0
        self._finished_ticket = 0
        self._held = 0
        self._closed = False
        self._over: deque[Round] = deque()
        self._lock = threading.Lock()  # guards the following
        self._submitted = Round()
        self._busy = False

    def attach(self, syncer: Syncer, closing: Callable[[], None]) -> None:
        """Make logs durable by this; `closing` is called once, before the last round, to add to it."""
        self._syncer = syncer
        self._closing = closing

    def submit(self, work: Work | None = None, done: Done | None = None, log: PartitionLog | None = None) -> int:
        """Make durable what was appended since the last submit, and run a statement; a ticket that grows by one.

        `done(None)` is called by `finish()` when both are durable, `done(error)` when they are not: StorageError of a
        log that was appended to since the last submit (or of `log`, for whoever waits for another's append), else what
        `work` raised, else the StorageError of the round's transaction. A statement that raises is undone and fails
        its own `done` only; it is not run at all when a log has failed that it came with.
        """
        if self._closed:
            raise ClosedError("the commit thread is closed")
        self._ticket += 1
        gathering = self.gathering
        logs = tuple(gathering.since)
        gathering.since.clear()
        if self.policy is FsyncPolicy.SYSTEM and work is None and not gathering.notes:
            if done is not None:
                done(self.broken)
            if not gathering:
                return self._ticket
            done = None
        gathering.jobs.append(Job(self._ticket, work, done, logs if log is None else (*logs, log)))
        if not self._held:
            self._hand_over()
        return self._ticket

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Begin no round while the context lasts, so that all appends of one turn of the loop share their round."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held and not self._closed:
                self._hand_over()

    def order(self, order: Callable[[Syncer], None]) -> None:
        """Have this done on the commit thread some time: with the next submit, or now if none has to come."""
        self.gathering.orders.append(order)
        if not self.gathering.since:
            self.submit()

    def fileno(self) -> int:
        """Readable when `finish()` has something to do."""
        return self._bell.fileno()

    def finish(self) -> None:
        """Take what rounds are over: advance what readers see, then call every `done`, in order.

        A `done` that raises is logged and harms nobody else.
        """
        self._bell.quiet()
        while self._over:
            round_ = self._over.popleft()
            for log, failure in round_.failures:
                log.fail(failure)
            for write in round_.writes.values():
                write.log.committed(write)
            for handle in round_.released:
                handle.unpin()
            for job, outcome in zip(round_.jobs, round_.outcomes, strict=True):
                self._finished_ticket = max(self._finished_ticket, job.ticket)
                if job.done is not None:
                    _tell(job.done, outcome)

    def wait(self, ticket: int) -> None:
        """Block until the round of this ticket is over and finished; for starts, stops and tools."""
        poll = select.poll()
        poll.register(self._bell.fileno(), select.POLLIN)
        if self.gathering.jobs:
            self._hand_over()
        while self._finished_ticket < ticket and (self._submitted or self._busy or self._over):
            if self._threaded:
                poll.poll(LOOK_MS)  # the thread does not ring when it has nothing more to do
            else:
                self.run_round()
            self.finish()

    def run(self, order: Callable[[Syncer], None]) -> None:
        """Have this done on the commit thread, and block until it is; what it raises is raised here."""
        errors: list[Exception] = []

        def guarded(syncer: Syncer) -> None:
            try:
                order(syncer)
            except Exception as error:  # noqa: BLE001  # raised below, on the thread that asked for it
                errors.append(error)

        self.gathering.orders.append(guarded)
        self.wait(self.submit())
        if errors or self.broken is not None:
            raise errors[0] if errors else StorageFailedError(str(self.broken))

    def close(self) -> None:
        """Make everything durable, write the recovery points and the clean mark, end the thread. Calls all `done`s."""
        if self._closed:
            return
        self._closing()
        self.wait(self.submit())
        self._end()
        self.finish()
        self._bell.close()

    def abandon(self) -> None:
        """End as if the process were killed, but for a round that is under way: nothing more becomes durable."""
        if not self._closed:
            self.gathering = Round()
            with self._lock:
                self._submitted = Round()
            self._end()
            self._bell.close()

    def _end(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._wakes.put(False)
            self._thread.join()
        else:
            self._close_store()

    def _close_store(self) -> None:
        if self._store is not None:
            with contextlib.suppress(sqlite3.Error):
                self._store.close()

    # The commit thread

    def run_round(self) -> bool:
        """Do one round with what was submitted, if anything was; whether it was so."""
        round_ = self._take()
        if round_ is None:
            return False
        if self.broken is None:
            try:
                self._make_durable(round_)
            except Exception as error:  # noqa: BLE001  # a thread that ends would leave everybody waiting
                _log.exception("the commit thread cannot go on")
                self.broken = StorageFailedError(f"the commit thread has failed: {error!r}")
        if self.broken is not None:
            round_.fail(self.broken)
        self._over.append(round_)
        self._bell.ring()
        return True

    def _hand_over(self) -> None:
        """Let the commit thread have what was gathered, and begin a round if none is under way."""
        if not self.gathering:
            return
        gathered, self.gathering = self.gathering, Round()
        with self._lock:
            if self._submitted:
                self._submitted.absorb(gathered)
            else:
                self._submitted = gathered
            if self._busy or not self._threaded:
                return
            self._busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="penstock-commit", daemon=True)
            self._thread.start()
        self._wakes.put(True)

    def _serve(self) -> None:
        while self._wakes.get():
            while self.run_round():
                pass
        self._close_store()

    def _take(self) -> Round | None:
        with self._lock:
            if not self._submitted:
                self._busy = False
                return None
            taken, self._submitted = self._submitted, Round()
        return taken

    def _make_durable(self, round_: Round) -> None:
        """First the logs, then the store."""
        if self._syncer is not None:
            self._syncer.run(round_)
        round_.outcomes = self._commit(round_, [self._error_of(job) for job in round_.jobs])

    def _error_of(self, job: Job) -> Exception | None:
        """Why the logs of a job are not durable."""
        if self._syncer is None:
            return None
        for log in job.logs:
            failure = self._syncer.failure(log)
            if failure is not None:
                return failure
        return None

    def _commit(self, round_: Round, outcomes: list[Exception | None]) -> list[Exception | None]:
        """Run the statements of jobs without an error in one transaction; the outcome of each job."""
        working = [place for place, job in enumerate(round_.jobs) if job.work is not None and outcomes[place] is None]
        if not working:
            return outcomes
        try:
            store = self._open_store()
            store.execute("BEGIN IMMEDIATE")
            for place in working:
                outcomes[place] = _run_statement(store, round_.jobs[place])
            store.execute("COMMIT")
        except (sqlite3.Error, StorageError) as error:
            failure = _store_error(error)
            for place in working:
                outcomes[place] = outcomes[place] or failure
            if self._store is not None and self._store.in_transaction:
                self._store.rollback()
        return outcomes

    def _open_store(self) -> sqlite3.Connection:
        if self._store is None:
            if self._connect is None:
                raise sqlite3.ProgrammingError("there is no store to run statements in")
            self._store = self._connect()
            self._store.isolation_level = None
        return self._store

    def __repr__(self) -> str:
        state = "closed" if self._closed else "busy" if self._busy else "idle"
        return f"<Committer, {self.policy.value}, {state}, ticket {self._finished_ticket} of {self._ticket}>"


def _run_statement(store: sqlite3.Connection, job: Job) -> Exception | None:
    """Run one job's statement; undone alone if it raises, unless SQLite has undone the whole transaction for it."""
    assert job.work is not None
    store.execute("SAVEPOINT statement")
    try:
        job.work(store)
    except Exception as error:  # whoever gave the statement hears of it
        if not store.in_transaction:
            raise sqlite3.OperationalError(f"the transaction was undone by: {error}") from error
        store.execute("ROLLBACK TO statement")
        store.execute("RELEASE statement")
        return error
    store.execute("RELEASE statement")
    return None


def _store_error(error: sqlite3.Error | StorageError) -> StorageError:
    """What the store's error means to whoever wanted something stored."""
    if isinstance(error, StorageError):
        return error
    kind: type[StorageError] = StorageFailedError
    cause = error.__cause__ if isinstance(error.__cause__, sqlite3.Error) else error
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        kind = _MEANINGS.get(code & 0xFF, StorageFailedError)
    failure = kind(f"the store: {error}")
    failure.__cause__ = error
    return failure


def _tell(done: Done, outcome: Exception | None) -> None:
    try:
        done(outcome)
    except Exception:  # noqa: BLE001  # nobody else is to suffer for it
        _log.exception("whoever was told that a round is over has failed")


_MEANINGS: dict[int, type[StorageError]] = {
    sqlite3.SQLITE_FULL: StorageFullError,
    sqlite3.SQLITE_READONLY: StorageReadOnlyError,
    sqlite3.SQLITE_CANTOPEN: StorageReadOnlyError,
}
