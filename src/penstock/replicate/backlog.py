"""What was read of a partition and has not left yet: parts in, consignments out.

A part is judged when it is its turn, and opened once it is known who wrote its entries. It is given back when the last
of them has left. While much waits here, no more is read.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from penstock.consume.feed import Part
from penstock.consume.judge import Judge, Wanted
from penstock.errors import DecodeError, PenstockError
from penstock.replicate.consignment import Consignment, Packer
from penstock.replicate.stats import Counts
from penstock.wire.protocol import Mark

AHEAD_BYTES: Final = 2 << 20
"""So many bytes of a partition that were read and not forwarded hold back the reading of more."""


class Source(Protocol):
    """Where a strand's entries come from."""

    def place(self, number: int) -> tuple[int, int | None, int]:
        """A partition's next position, its end if it has one, and the end of its log as last told."""

    def start(self, number: int) -> Mark:
        """Where a partition is read from at first."""

    def seek(self, number: int, mark: Mark) -> None:
        """Read a partition from there on."""

    def hold(self, number: int, is_held: bool) -> None:
        """Read no more of it for now, or go on."""

    def done(self, part: Part) -> None:
        """A part is not needed any more."""

    def unknown_writers(self, number: int, wanted: Sequence[Wanted]) -> bool:
        """Whether it must be found out first who wrote some of these entries; then the strand is looked at later."""

    def is_from_target(self, number: int, one: Wanted) -> bool:
        """Whether an entry was copied here from the target, and must not return."""


class Backlog:
    """What waits of one partition."""

    def __init__(self, number: int, source: Source, judge: Judge, packer: Packer, counts: Counts) -> None:
        self.mark = Mark(-1)
        """Behind what has left: the position of what leaves next, and the leader epoch before it, as far as known."""
        self.is_amid = False
        """Whether what has left ends in the midst of entries of which only the whole has a position."""
        self.failure: PenstockError | None = None
        """Why what comes next cannot be read."""
        self._number = number
        self._source = source
        self._judge = judge
        self._packer = packer
        self._counts = counts
        self._parts: deque[Part] = deque()
        self._ahead_bytes = 0
        self._part: Part | None = None
        self._wanted: Sequence[Wanted] | None = None
        self._flaw: DecodeError | None = None  # of what lies behind the wanted entries of the part
        self._consignments: Iterator[Consignment] = iter(())
        self._next: Consignment | None = None

    def __repr__(self) -> str:
        return f"<Backlog of {len(self._parts)} parts, {self._ahead_bytes} bytes, from {self.mark.position} on>"

    @property
    def is_at_end(self) -> bool:
        """Whether everything that is to be read has left."""
        _, end, _ = self._source.place(self._number)
        return end is not None and self.mark.position >= end and not self._parts and self._part is None

    def begin(self, found: Mark | None) -> None:
        """Read on where the target says; where it says nothing, from the start."""
        where = found or self._source.start(self._number)
        if found is not None or self.mark.position >= 0:  # else it is where it is to start
            self._source.seek(self._number, where)
        position = self._source.place(self._number)[0]
        self.mark = where if where.position == position else Mark(position)

    def offer(self, part: Part) -> None:
        """Something was read."""
        self._parts.append(part)
        self._ahead_bytes += _size(part)
        if self._ahead_bytes >= AHEAD_BYTES:
            self._source.hold(self._number, True)

    def peek(self) -> Consignment | None:
        """What leaves next; None where there is nothing at present, or where `failure` says why it cannot be read."""
        try:
            while self._next is None and self.failure is None and self._is_open():
                self._next = next(self._consignments, None)
                if self._next is None:
                    self._finish_part()
        except PenstockError as error:
            self.failure = error
        return self._next

    def pop(self) -> None:
        """What was to leave next has left."""
        consignment, self._next = self._next, None
        assert consignment is not None
        self.is_amid = consignment.next is None
        if consignment.next is not None:
            self.mark = Mark(consignment.next, "", self._epoch_at(consignment.next))

    def drop(self) -> None:
        """Let nothing of it leave any more, and read no more for now."""
        self._source.hold(self._number, True)
        for part in (self._part, *self._parts):
            if part is not None:
                self._source.done(part)
        self._part = self._wanted = self._next = self._flaw = self.failure = None
        self._parts.clear()
        self._ahead_bytes = 0
        self._consignments = iter(())
        self.is_amid = False

    def _is_open(self) -> bool:
        """Whether there is a part whose entries may leave; the next one is opened where there is one."""
        if self._part is None:
            if not self._parts:
                return False
            self._part = self._parts.popleft()
            self._ahead_bytes -= _size(self._part)
            self._wanted, self._flaw = self._judge.judged(self._part)
        if self._wanted is not None:
            if self._source.unknown_writers(self._number, self._wanted):
                return False
            self._consignments = self._packer.packed(self._without_returning(self._wanted))
            self._wanted = None
        return True

    def _without_returning(self, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
        mine = [one for one in wanted if not self._source.is_from_target(self._number, one)]
        returned = len(wanted) - len(mine)
        if returned:
            messages = [sum(one.header.count for one in some) for some in (wanted, mine)]
            self._counts.entries_returned += returned
            self._counts.messages_returned += messages[0] - messages[1]
        return mine

    def _finish_part(self) -> None:
        if self._flaw is not None:
            raise self._flaw
        part, self._part = self._part, None
        assert part is not None
        self.mark = Mark(part.next, "", part.last_epoch)
        self._source.done(part)
        if self._ahead_bytes < AHEAD_BYTES:
            self._source.hold(self._number, False)

    def _epoch_at(self, position: int) -> int:
        """The leader epoch of what lies before a position of the part; -1 where the part does not tell."""
        part = self._part
        assert part is not None
        is_told = position == part.next or part.first_epoch == part.last_epoch
        return part.last_epoch if is_told else -1


def _size(part: Part) -> int:
    return sum(map(len, part.entries))
