"""What was fetched, judged: which of a part's entries are wanted, and which positions of them.

Of each entry it is asked, from its header alone:

    does it belong to an aborted transaction?      it is dropped (readers of what is committed)
    is it a marker of the log, or empty?           it is dropped
    is anything of it wanted, by position?         an entry that straddles the start or the end is cut when opened
    what does it claim about properties?           the filter matches all, none, or only the messages can tell

Runs on: the thread that reads, or the I/O thread where entries are copied.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from penstock.config import ReaderOptions
from penstock.consume.aborted import AbortedTransactions
from penstock.consume.feed import Part
from penstock.consume.places import POSITION_MAX
from penstock.consume.stats import ReaderStats
from penstock.errors import DecodeError
from penstock.wire.entry import EntryFlag, EntryHeader
from penstock.wire.property_filter import Match, PropertyCondition
from penstock.wire.protocol import Partition, StoredEntries

CONTROL: Final = int(EntryFlag.CONTROL)
"""As a number, since asking a flag what it holds takes longer than all the rest."""


class _Fate(enum.Enum):
    """What becomes of an entry before anybody looks at what it claims."""

    KEPT = "kept"
    CONTROL = "control"
    ABORTED = "aborted"
    EMPTY = "empty"


class Wanted(NamedTuple):
    """An entry that is wanted, and which positions of it: from `begin` up to `end`."""

    entry: memoryview
    header: EntryHeader
    begin: int
    end: int
    match: Match

    @property
    def is_whole(self) -> bool:
        """Whether all its positions are wanted."""
        return (self.begin, self.end) == span(self.header)


class Judge:
    """Judges entries for one reader; what is dropped is counted."""

    def __init__(
        self,
        entries: StoredEntries,
        condition: PropertyCondition | None,
        options: ReaderOptions,
        stats: ReaderStats,
        *,
        claims: bool,
    ) -> None:
        """`claims`: headers tell what entries claim also where no filter asks for it."""
        self._entries = entries
        self._condition = condition
        self._claims = claims or condition is not None
        self._committed = options.isolation == "committed"
        self._check = options.verify_checksums
        self._bytes_max = options.decompressed_bytes_max
        self._stats = stats

    def judged(self, part: Part) -> tuple[list[Wanted], DecodeError | None]:
        """The entries of a part that are wanted, up to one that cannot be read: the error is of what lies behind."""
        aborted = AbortedTransactions(part.aborted) if self._committed else None
        until = POSITION_MAX if part.end is None else part.end
        wanted: list[Wanted] = []
        at, given = part.first, 0
        for entry in part.entries:
            try:
                header = self._entries.judge(entry, check=self._check, claim=self._claims, bytes_max=self._bytes_max)
            except DecodeError as error:
                return wanted, placed(error, part.partition, at)
            fate = self._fate(entry, header, aborted)
            first, at = span(header)
            if at <= part.first or first >= until:
                continue
            self._stats.bytes += header.size
            given += min(at, until) - max(first, part.first) if header.count else 0
            match = self._match(header) if fate is _Fate.KEPT else self._dropped(header, fate)
            if match is not Match.NONE:
                wanted.append(Wanted(entry, header, max(first, part.first), min(at, until), match))
        self._stats.skipped += max(min(at, until) - part.first - given, 0)
        return wanted, None

    def _fate(self, entry: memoryview, header: EntryHeader, aborted: AbortedTransactions | None) -> _Fate:
        """What becomes of an entry whatever it claims. Every entry is asked about, in order."""
        is_aborted = aborted is not None and aborted.drops(header)
        if int(header.flags) & CONTROL:
            if aborted is not None and self._entries.is_abort(entry):
                aborted.aborts(header)
            return _Fate.CONTROL
        if is_aborted:
            return _Fate.ABORTED
        return _Fate.KEPT if header.count else _Fate.EMPTY

    def _dropped(self, header: EntryHeader, fate: _Fate) -> Match:
        stats = self._stats
        if fate is _Fate.CONTROL:
            stats.entries_control += 1
        elif fate is _Fate.EMPTY:
            stats.entries_empty += 1
        else:
            stats.entries_aborted += 1
            stats.messages_aborted += header.count
        return Match.NONE

    def _match(self, header: EntryHeader) -> Match:
        if self._condition is None:
            return Match.ALL
        match = self._condition.judge(header.claim)
        if match is Match.NONE:
            self._stats.entries_filtered += 1
            self._stats.messages_filtered += header.count
        return match


def span(header: EntryHeader) -> tuple[int, int]:
    """An entry's first position, and the one behind its last."""
    return header.first, header.last + 1  # type: ignore[return-value, operator]


def placed(error: DecodeError, partition: Partition, position: int) -> DecodeError:
    """The error with the place that reading has come to."""
    field = f"{partition}, entry at position {position} or behind it: {error.field}"
    return type(error)(error.offset, field, error.expected, error.found)
