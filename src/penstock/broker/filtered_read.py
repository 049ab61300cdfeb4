"""What of a log a reader gets when filters judge: accepted entries, in order, and how far it has read.

A reader of a log goes on behind the last entry it was given. Entries that are rejected after the last accepted one
would be judged again at each read; so the selection tells how far it judged, and a door has to let the reader know. An
entry that is rescheduled ends the selection, because what follows it must not overtake it.

Runs on: the loop thread. No selection judges more than `ENTRIES_MAX` entries, so that a reader that is given nothing of
a long log does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import islice
from typing import Final, NamedTuple, cast

from penstock.broker.filters import FilterChain, FilterContext, FilterCounts, Verdict
from penstock.broker.log.partition import EntryAt, PartitionLog, Slice
from penstock.errors import PenstockError
from penstock.wire.entry import EntryHeader

ENTRIES_MAX: Final = 1000


class Selection(NamedTuple):
    """What a reader gets. Whoever takes it releases the slices."""

    slices: list[Slice]
    """Accepted entries in order; those that lie together are one slice."""
    next: int
    """Everything before it was judged: it is in the slices, or counts as read."""
    again_at: float | None
    """When the entry at `next` is to be judged again, if it was rescheduled."""
    passed_over: bool
    """Whether entries behind the last slice were rejected: a door must let the reader go on at `next`."""


class Wanted(NamedTuple):
    """What a reader asks for."""

    position: int
    bytes_max: int
    limit: int
    """Positions from here on are not for it."""


class LogEntry:
    """An entry of a log as filters see it. Its bytes can be had until it is judged."""

    __slots__ = ("_at", "header")

    def __init__(self, at: EntryAt) -> None:
        self.header: EntryHeader = at.header
        self._at: EntryAt | None = at

    def payload(self) -> bytes:
        """The whole entry as it is stored, read now."""
        if self._at is None:
            raise PenstockError("an entry's bytes can be read only while it is being judged")
        return self._at.read()

    def let_go(self) -> None:
        """Judged: its file may be closed from now on."""
        self._at = None


class _Run:
    """Accepted entries that follow each other in one file, which stays open for them."""

    __slots__ = ("entries", "fd", "first", "handle", "next", "offset", "size")

    def __init__(self, at: EntryAt, first: int) -> None:
        self.first = self.next = first
        self.size = self.entries = 0
        self.offset = at.offset
        self.handle = at.handle
        self.fd = at.handle.pin()

    def slice(self) -> Slice:
        return Slice(self.fd, self.offset, self.size, self.first, self.next, self.entries, self.handle)


def select(
    chain: FilterChain, log: PartitionLog, wanted: Wanted, context: FilterContext, counts: FilterCounts, now: float
) -> Selection:
    """Judge entries, in order, until as many bytes are accepted as are wanted, at least one entry.

    `counts` are those of the partition. PositionError when the log does not hold the wanted position.
    """
    runs: list[_Run] = []
    taken, at = 0, wanted.position
    again_at: float | None = None
    try:
        with closing(cast("Generator[EntryAt, None, None]", log.entries(wanted.position, wanted.limit))) as entries:
            for found in islice(entries, ENTRIES_MAX):
                if taken and taken + found.size > wanted.bytes_max:
                    break
                entry = LogEntry(found)
                verdict, again_at = chain.judge(entry, context, counts, now)
                entry.let_go()
                if verdict is Verdict.RESCHEDULE:
                    break
                first, at = _positions(found.header)
                if verdict is Verdict.ACCEPT:
                    _take(runs, found, first, at)
                    taken += found.size
    except BaseException:
        for run in runs:
            run.handle.unpin()
        raise
    reached = runs[-1].next if runs else wanted.position
    return Selection([run.slice() for run in runs], at, again_at, passed_over=reached < at)


def _take(runs: list[_Run], found: EntryAt, first: int, after: int) -> None:
    """Put an entry behind those that it follows, or begin another run with it."""
    if not runs or runs[-1].next != first or runs[-1].handle is not found.handle:
        runs.append(_Run(found, first))
    run = runs[-1]
    run.size += found.size
    run.entries += 1
    run.next = after


def _positions(header: EntryHeader) -> tuple[int, int]:
    """The first position of a stored entry, and the one behind it."""
    first, last = header.first, header.last
    assert isinstance(first, int)
    assert isinstance(last, int)
    return first, last + 1
