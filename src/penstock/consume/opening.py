"""What was fetched, opened: parts in, record batches or entries out.

Entries that pass the judge (`judge.py`) are opened several at a time, or handed out as they are.

Runs on: the thread that reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.config import ReaderOptions
from penstock.consume.feed import Part
from penstock.consume.judge import Judge, Wanted, placed, span
from penstock.consume.shape import Shape
from penstock.consume.sieve import matching
from penstock.consume.stats import ReaderStats
from penstock.errors import DecodeError
from penstock.wire.columns import BufferColumns, to_arrow
from penstock.wire.entry import EntryFlag, EntryHeader
from penstock.wire.property_filter import Match, PropertyCondition
from penstock.wire.protocol import Partition, StoredEntries

AIM_BYTES: Final = 512 << 10
"""So many bytes of unpacked messages are put together into one record batch where entries are small: more would not
stay in the processor's cache while they are copied."""
RUN_MAX: Final = 4096
"""Entries that are looked at for it."""
LOG_TIME: Final = int(EntryFlag.LOG_TIME)
"""As a number, since asking a flag what it holds takes longer than all the rest."""


class Entry(NamedTuple):
    """An entry as the log stores it, unopened."""

    topic: str
    partition: int
    header: EntryHeader
    data: memoryview
    """All its bytes, header included; a view on the answer that it came with, and as long as it is held that stays."""
    begin: int
    """The first position of it that was asked for: above `header.first` where reading starts within the entry."""
    end: int
    """The first position that was not: at most behind its last one."""
    match: Match
    """How many of its messages the filter matches; without a filter all."""


class Given(NamedTuple):
    """Something to hand out, and where its partition goes on behind it."""

    item: pa.RecordBatch | Entry
    next: int


class Opener:
    """Makes of parts what one reader hands out."""

    def __init__(
        self,
        entries: StoredEntries,
        shape: Shape | None,
        condition: PropertyCondition | None,
        options: ReaderOptions,
        stats: ReaderStats,
    ) -> None:
        """Without a shape, entries are handed out unopened."""
        self._entries = entries
        self._shape = shape
        self._condition = condition
        self._judge = Judge(entries, condition, options, stats, claims=shape is None)
        self._bytes_max = options.decompressed_bytes_max
        self._stats = stats

    def given(self, part: Part) -> Iterator[Given]:
        """What is to be handed out of a part. An entry that cannot be read is an error, behind those before it."""
        wanted, failure = self._judge.judged(part)
        yield from self._unopened(part, wanted) if self._shape is None else self._opened(part, wanted, self._shape)
        if failure is not None:
            raise failure

    def _unopened(self, part: Part, wanted: Sequence[Wanted]) -> Iterator[Given]:
        for entry, header, begin, end, match in wanted:
            self._stats.entries_unopened += 1
            self._stats.messages_read += header.count
            yield Given(Entry(*part.partition, header, entry, begin, end, match), end)

    def _opened(self, part: Part, wanted: Sequence[Wanted], shape: Shape) -> Iterator[Given]:
        at = 0
        while at < len(wanted):
            run = wanted[at : at + RUN_MAX]
            if self._condition is not None:
                claim = run[0].header.claim
                run = list(itertools.takewhile(lambda one, claim=claim: one.header.claim == claim, run))  # type: ignore[misc]
            try:
                columns, taken = self._entries.open([one.entry for one in run], self._bytes_max, AIM_BYTES)
            except DecodeError as error:
                raise placed(error, part.partition, run[0].begin) from error
            run = run[:taken]
            at += taken
            self._stats.entries_opened += taken
            batch = self._batch(part.partition, run, columns, shape)
            if batch.num_rows:
                self._stats.messages_read += batch.num_rows
                yield Given(batch, run[-1].end)

    def _batch(
        self, partition: Partition, run: Sequence[Wanted], columns: BufferColumns, shape: Shape
    ) -> pa.RecordBatch:
        arrow = to_arrow(columns)
        given = [int(one.header.flags) & LOG_TIME > 0 for one in run]
        batch = shape.record_batch(partition, arrow, np.repeat(given, [one.header.count for one in run]))
        first, behind = 0, len(arrow)
        if (run[0].begin, run[-1].end) != (span(run[0].header)[0], span(run[-1].header)[1]):
            assert columns.positions is not None
            first, behind = map(int, np.searchsorted(columns.positions, (run[0].begin, run[-1].end)))
        if self._condition is None or run[0].match is Match.ALL:
            return batch.slice(first, behind - first)
        mask = matching(self._condition, run[0].header.claim, arrow.properties)[first:behind]
        self._stats.messages_sifted += int(len(mask) - np.count_nonzero(mask))
        return batch.slice(first, behind - first).filter(pa.array(mask))
