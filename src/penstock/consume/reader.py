"""What a user reads with: `client.reader(topic, ...)`.

`ReaderCore` is a reader but for how one waits; `Reader` waits by blocking, `penstock.aio.AsyncReader` by `await`. What
was fetched is opened on the thread that reads, an answer's part after the other, so that the I/O thread only moves
bytes; it is woken when there is room again.

One thread at a time reads. Closing is for any thread.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import pyarrow as pa

from penstock.clock import Clock
from penstock.config import ReaderOptions
from penstock.consume.feed import Part
from penstock.consume.fetcher import Fetcher, FetcherParts
from penstock.consume.opening import Entry, Given, Opener
from penstock.consume.places import Plan
from penstock.consume.readers import Readers
from penstock.consume.shape import Shape
from penstock.consume.stats import ReaderMeter, ReaderStats
from penstock.errors import ClosedError, ConfigError, PenstockError
from penstock.net.failures import because
from penstock.net.loop import Loop
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import Mark, StoredEntries

Unit: TypeAlias = Literal["message", "batch"]
Item: TypeAlias = pa.RecordBatch | Entry


@dataclass(frozen=True, slots=True)
class ReaderMachinery:
    """What a reader works with."""

    loop: Loop
    readers: Readers
    clock: Clock
    entries: StoredEntries
    meter: ReaderMeter


@dataclass(frozen=True, slots=True)
class Outline:
    """What is to be handed out, and how: without a shape entries, unopened."""

    plan: Plan
    shape: Shape | None
    condition: PropertyCondition | None
    options: ReaderOptions


class ReaderCore:
    """A reader but for how one waits."""

    def __init__(self, outline: Outline, machinery: ReaderMachinery, parts: FetcherParts) -> None:
        self.plan = outline.plan
        self.shape = outline.shape
        self.loop = machinery.loop
        self.feed = parts.feed
        self.fetcher = Fetcher(outline.plan, outline.options, parts, outline.condition)
        self._machinery = machinery
        self._stats = ReaderStats()
        self._opener = Opener(machinery.entries, outline.shape, outline.condition, outline.options, self._stats)
        self._marks: dict[int, Mark] = {}
        self._part: Part | None = None
        self._given: Iterator[Given] = iter(())
        self._outcome: PenstockError | None = None
        self.is_closed = False
        self.is_at_end = False
        """Whether everything was handed out, and nothing more will come."""
        self.reading = threading.Lock()  # guards everything above but `is_closed`

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "at its end" if self.is_at_end else repr(self.feed)
        return f"of {self.plan.topic}, {state}"

    def begin(self) -> None:
        """Start to fetch."""
        readers, clock = self._machinery.readers, self._machinery.clock
        self.loop.call(lambda: readers.attach(self.fetcher, clock.monotonic()))

    def has_room(self) -> None:
        """More may be fetched than before."""
        self.fetcher.look()
        self.loop.wake_by(-math.inf)

    def poll(self) -> Item | None:
        """The next thing to hand out; None when nothing is there at the moment, or at the end. Raises why it ended."""
        while not self.is_at_end:
            self._check()
            try:
                given = next(self._given, None)
            except PenstockError as error:
                self._outcome = error
                continue
            except BaseException as error:  # what was being opened is lost, and must not be passed over in silence
                self._outcome = because(PenstockError(f"reading {self.plan.topic} was interrupted: {error!r}"), error)
                raise
            if given is not None:
                self._note(given.next)
                return given.item
            if not self._next_part():
                return None
        return None

    @property
    def marks(self) -> Mapping[int, Mark]:
        """Where each partition goes on behind what was handed out."""
        return self.fetcher.starts | self._marks

    def backlog(self) -> dict[int, int]:
        """How many positions each partition has behind what was handed out, as last told."""
        tracks = self.fetcher.tracks
        return {number: max(tracks[number].log_end - mark.position, 0) for number, mark in self.marks.items()}

    def stats(self) -> ReaderStats:
        """What was done so far."""
        stats = self._stats.copy()
        stats.missing = self.fetcher.missing
        return stats

    def nothing_came(self, timeout: float | None) -> TimeoutError:
        """Why waiting was in vain."""
        trouble = self.fetcher.trouble
        why = f": {trouble}" if trouble else ", there was nothing to be read"
        return TimeoutError(f"nothing came of {self.plan.topic} within {timeout} s{why}")

    def begin_close(self) -> None:
        """Hand out nothing more, and let go of the connections; `fetcher.gone` is done then."""
        self.is_closed = True
        readers, clock = self._machinery.readers, self._machinery.clock
        with contextlib.suppress(ClosedError):  # the I/O thread has ended, and with it the reader
            self.loop.call(lambda: readers.detach(self.fetcher, clock.monotonic()))
        self.feed.drop(None)

    def _check(self) -> None:
        if self.is_closed:
            if self.plan.end is not None:
                raise ClosedError(f"the reader of {self.plan.topic} was closed before it was at its end")
            self.is_at_end = True
        elif self._outcome is not None:
            raise _own(self._outcome)

    def _next_part(self) -> bool:
        """Go on to the next part; False when there is none."""
        self._finish_part()
        part = self.feed.take()
        if part is not None:
            self._part = part
            self._given = self._opener.given(part)
            return True
        ending = self.feed.ending
        if ending is None or self.is_closed:
            return self.is_closed
        self._outcome = ending.error
        self.is_at_end = ending.error is None
        return ending.error is not None

    def _finish_part(self) -> None:
        part, self._part, self._given = self._part, None, iter(())
        if part is not None:
            self._marks[part.partition.number] = Mark(part.next, "", part.last_epoch)
            self.feed.done(part)
            self._machinery.meter.tell(self.stats())

    def _note(self, position: int) -> None:
        part = cast(Part, self._part)
        epoch = part.last_epoch if part.first_epoch == part.last_epoch else -1
        self._marks[part.partition.number] = Mark(position, "", epoch)


class ReaderFace:
    """What a reader can do without waiting."""

    def __init__(self, core: ReaderCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core!r}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._core.plan.topic

    @property
    def schema(self) -> pa.Schema:
        """The columns of record batches."""
        if self._core.shape is None:
            raise ConfigError('a reader with unit="batch" hands out entries, which have no columns')
        return self._core.shape.schema

    def positions(self) -> dict[int, int]:
        """The next position of each partition, behind what was handed out last."""
        return {number: mark.position for number, mark in self._core.marks.items()}

    def marks(self) -> dict[int, Mark]:
        """The same to be committed by a cursor, with what tells later whether the log was cut there."""
        return dict(self._core.marks)

    def backlog(self) -> dict[int, int]:
        """How many positions of each partition are not handed out yet, as far as brokers have told."""
        return self._core.backlog()

    def stats(self) -> ReaderStats:
        """What was read so far, and what was skipped."""
        return self._core.stats()


class Reader(ReaderFace):
    """Reads one topic; made by `client.reader(topic)`. Iterating it gives Arrow record batches, or entries."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        while (item := self.read()) is not None:
            yield item

    def read(self, timeout: float | None = None) -> Item | None:
        """The next record batch or entry, waited for; None at the end. TimeoutError when nothing comes in time."""
        core = self._core
        core.loop.check_is_ours()
        over = math.inf if timeout is None else time.monotonic() + timeout
        with core.reading:
            while (item := core.poll()) is None and not core.is_at_end:
                core.loop.check_may_wait()
                left = None if timeout is None else over - time.monotonic()
                if (left is not None and left <= 0) or not core.feed.wait(left):
                    raise core.nothing_came(timeout)
        return item

    def read_all(self, timeout: float | None = None) -> pa.Table:
        """All messages up to the end, as one table; only with an end. TimeoutError when nothing comes for so long."""
        if self._core.plan.end is None:
            raise ConfigError("a reader without an end has no last message: give it an end, or iterate")
        batches = list(iter(lambda: self.read(timeout), None))
        return pa.Table.from_batches(batches, self.schema)

    def ready(self, timeout: float | None = None) -> None:
        """Wait until it is known where every partition starts; raises what is in the way, or TimeoutError.

        With start="latest", messages that are sent after this are read.
        """
        self._core.loop.check_may_wait()
        try:
            self._core.fetcher.ready.result(timeout)
        except TimeoutError:
            raise self._core.nothing_came(timeout) from None

    def close(self) -> None:
        """End it and let go of its connections; others are not concerned. In a child of `fork()` it does nothing.

        Whoever iterates meanwhile gets to the end, where the reader has none; where it has one and was not there yet,
        `ClosedError`.
        """
        core = self._core
        if core.loop.is_inherited():
            return
        core.begin_close()
        if not core.loop.is_here():
            core.fetcher.gone.result()


def _own(error: PenstockError) -> PenstockError:
    """A copy for each who asks: raising adds a traceback to an error, and one object cannot have several."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
