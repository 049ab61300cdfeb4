"""What leaves for the target: stored batches as they are, or messages that had to be packed anew.

An entry leaves unopened unless there is a reason to open it:

| reason | when | what becomes of it |
|---|---|---|
| thinned | compaction took messages out: brokers refuse a batch with holes | its messages, in one batch without holes |
| cut | copying starts or ends within it | the messages that are wanted |
| sifted | the filter matches only some of its messages | those |
| too large | the target takes no batch of its size | several smaller ones |
| tiny | the next ones are tiny too: each would cost a request of its own | together with those, one batch |
| routed | the target has another number of partitions | its messages, each to where its key belongs |

Messages that are packed anew keep their order, codec and claim: batches with different claims are never put together.

Runs on: the I/O thread.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.consume.judge import Wanted
from penstock.consume.sieve import matching
from penstock.replicate.runs import Stretches
from penstock.wire.columns import BufferColumns, take, to_arrow
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, BatchBuffer, EntryFlag, PropertyClaim
from penstock.wire.property_filter import Match, PropertyCondition
from penstock.wire.protocol import StoredEntries, Wire

Repack: TypeAlias = Literal["auto", "never", "always"]
Indexes: TypeAlias = npt.NDArray[np.int64]
Route: TypeAlias = Callable[[BufferColumns], npt.NDArray[np.int32]]
"""Which partition of the target each message goes to."""

TINY_BYTES: Final = 8 << 10
"""Below this the request of a batch costs its target more than opening it costs here."""
PACKED_BYTES: Final = 512 << 10
"""What batches that are packed anew may grow to, uncompressed."""
RUN_MAX: Final = 4096
"""Entries that are opened together at the most."""
THINNED: Final = int(EntryFlag.THINNED)
LOG_TIME: Final = int(EntryFlag.LOG_TIME)
"""As numbers, since asking a flag what it holds takes longer than all the rest."""


class Reason(enum.Enum):
    """Why entries were opened."""

    THINNED = "thinned"
    CUT = "cut"
    SIFTED = "sifted"
    TOO_LARGE = "too large"
    TINY = "tiny"
    ROUTED = "routed"


@dataclass(frozen=True, slots=True, eq=False)
class Consignment:
    """A batch for one partition of the target, and what it is of the source."""

    buffer: BatchBuffer
    partition: int
    count: int
    size: int
    stretches: Stretches
    next: int | None
    """Where the source goes on behind what was forwarded when this is stored; None: in the midst of entries whose
    messages go to several partitions, where only the last of them has a position."""
    entries: int
    """Entries that are done with it."""
    reason: Reason | None
    """Why they were opened; None: they were not."""
    time_ms: int
    """The time of its newest message."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How entries are packed: where they go, and what the target takes."""

    partition: int
    condition: PropertyCondition | None = None
    repack: Repack = "auto"
    batch_bytes_max: int = 1 << 20
    """The largest batch that the target takes."""
    route: Route | None = None
    """Where messages go, where the target has another number of partitions."""
    decompressed_bytes_max: int = 128 << 20


class Packer:
    """Makes consignments of the entries of one source partition."""

    def __init__(self, wire: Wire, entries: StoredEntries, packing: Packing) -> None:
        self._wire = wire
        self._entries = entries
        self.packing = packing
        self.sifted = 0
        """Messages that were opened and dropped by the filter."""
        self.opened: Counter[Reason] = Counter()
        """Entries that were opened, by the reason."""

    def __repr__(self) -> str:
        return f"<Packer for partition {self.packing.partition}, batches up to {self.packing.batch_bytes_max} bytes>"

    def shrink(self, size: int) -> bool:
        """The target refused a batch of this size: the next ones are smaller. False where it cannot be any smaller."""
        smaller = min(size, self.packing.batch_bytes_max) // 2
        self.packing = replace(self.packing, batch_bytes_max=max(smaller, 1))
        return smaller > 0

    def packed(self, wanted: Sequence[Wanted]) -> Iterator[Consignment]:
        """These entries, one after the other or several together; each is opened when it is asked for."""
        at = 0
        while at < len(wanted):
            one = wanted[at]
            reason = self._why_opened(one, wanted[at + 1] if at + 1 < len(wanted) else None)
            run = wanted[at : at + 1] if reason is None else self._run(wanted, at, reason)
            is_alone = reason is Reason.TINY and len(run) == 1 and self.packing.repack == "auto"
            if reason is None or is_alone:
                yield self._unopened(one)
            else:
                yield from self._opened(run, reason)
            at += len(run)

    def _why_opened(self, one: Wanted, following: Wanted | None) -> Reason | None:
        packing = self.packing
        if int(one.header.flags) & THINNED:
            return Reason.THINNED
        if not one.is_whole:
            return Reason.CUT
        if one.match is not Match.ALL:
            return Reason.SIFTED
        if one.header.size > packing.batch_bytes_max and one.header.count > 1:
            return Reason.TOO_LARGE
        if packing.route is not None:
            return Reason.ROUTED
        if packing.repack == "always" or (packing.repack == "auto" and _is_tiny(one) and _is_tiny(following)):
            return Reason.TINY
        return None

    def _unopened(self, one: Wanted) -> Consignment:
        header = one.header
        return Consignment(
            self._wire.stored_batch(one.entry, header.count),
            self.packing.partition,
            header.count,
            header.size,
            Stretches((one.begin,), (0,), header.count),
            one.end,
            1,
            None,
            header.max_time_ms,
        )

    def _run(self, wanted: Sequence[Wanted], at: int, reason: Reason) -> Sequence[Wanted]:
        """The entries from here on that are opened together."""
        if reason is not Reason.TINY:
            return wanted[at : at + 1]
        following = itertools.takewhile(
            lambda one: self._why_opened(one, one) is Reason.TINY, itertools.islice(wanted, at, at + RUN_MAX)
        )
        claim = self._claim(wanted[at])
        codec = wanted[at].header.codec
        return list(itertools.takewhile(lambda one: one.header.codec is codec and self._claim(one) == claim, following))

    def _claim(self, one: Wanted) -> PropertyClaim:
        header = self._entries.judge(one.entry, check=False, claim=True, bytes_max=self.packing.decompressed_bytes_max)
        return header.claim

    # Opening

    def _opened(self, run: Sequence[Wanted], reason: Reason) -> Iterator[Consignment]:
        """The wanted messages of a run, framed anew. What is behind the last of them is passed with the last batch."""
        framing = _Framing(self, run, reason)
        self.opened[reason] += len(run)
        at = 0
        while at < len(run):
            columns, taken = self._open(run[at:])
            yield from framing.add(self._chosen(run[at : at + taken], columns))
            at += taken
        yield from framing.end()

    def _open(self, run: Sequence[Wanted]) -> tuple[BufferColumns, int]:
        bare = [self._entries.undated(one.entry) if int(one.header.flags) & LOG_TIME else one.entry for one in run]
        return self._entries.open(bare, self.packing.decompressed_bytes_max, PACKED_BYTES)

    def _chosen(self, run: Sequence[Wanted], columns: BufferColumns) -> BufferColumns:
        """The messages that are wanted, by position and by the filter."""
        assert columns.positions is not None
        keep = (columns.positions >= run[0].begin) & (columns.positions < run[-1].end)
        condition = self.packing.condition
        if condition is not None and run[0].match is Match.MIXED:
            matches = matching(condition, run[0].header.claim, to_arrow(columns).properties)
            self.sifted += int(np.count_nonzero(keep & ~matches))
            keep &= matches
        return columns if bool(keep.all()) else take(columns, np.flatnonzero(keep))

    def routed(self, columns: BufferColumns) -> list[tuple[int, BufferColumns]]:
        """The messages by the partition that they go to."""
        route = self.packing.route
        if route is None:
            return [(self.packing.partition, columns)]
        places = route(columns)
        return [(place, take(columns, np.flatnonzero(places == place))) for place in np.unique(places).tolist()]

    def claim_of(self, one: Wanted) -> PropertyClaim:
        """What holds for all messages of a run."""
        return one.header.claim if one.header.claim is not NO_CLAIM else self._claim(one)

    def new_buffer(self) -> BatchBuffer:
        """An empty batch that the target will take."""
        return self._wire.buffer(min(PACKED_BYTES, self.packing.batch_bytes_max))


class _Framing:
    """The messages of one run of entries on their way into batches, one open for each partition of the target."""

    def __init__(self, packer: Packer, run: Sequence[Wanted], reason: Reason) -> None:
        self._packer = packer
        self._reason = reason
        self._end = run[-1].end
        self._entries = len(run)
        self._codec: Codec = run[0].header.codec
        self._claim = packer.claim_of(run[0])
        self._time_ms = max(one.header.max_time_ms for one in run)
        self._open: dict[int, tuple[BatchBuffer, list[Indexes]]] = {}
        self._done: list[tuple[BatchBuffer, int, list[Indexes]]] = []

    def add(self, columns: BufferColumns) -> Iterator[Consignment]:
        """Frame these messages; batches that are full leave, but the last one, which may be the last of all."""
        for partition, some in self._packer.routed(columns):
            self._frame(partition, some)
        while len(self._done) > 1:
            yield self._consignment(*self._done.pop(0), is_last=False)

    def end(self) -> Iterator[Consignment]:
        """Nothing more comes: what is open leaves."""
        for partition in sorted(self._open):
            buffer, positions = self._open[partition]
            self._done.append((buffer, partition, positions))
        while self._done:
            yield self._consignment(*self._done.pop(0), is_last=not self._done)

    def _frame(self, partition: int, columns: BufferColumns) -> None:
        assert columns.positions is not None
        start = 0
        while start < len(columns):
            buffer, positions = self._open.setdefault(partition, (self._packer.new_buffer(), []))
            taken = buffer.extend(columns, start=start)
            positions.append(columns.positions[start : start + taken])
            start += taken
            if start < len(columns):
                del self._open[partition]
                self._done.append((buffer, partition, positions))

    def _consignment(
        self, buffer: BatchBuffer, partition: int, positions: list[Indexes], *, is_last: bool
    ) -> Consignment:
        buffer.seal(self._codec, None, self._claim)
        stretches = _stretches(np.concatenate(positions))
        where: int | None = self._end
        if not is_last:
            where = stretches.last + 1 if self._packer.packing.route is None else None
        return Consignment(
            *(buffer, partition, buffer.count, buffer.held, stretches, where),
            *(self._entries if is_last else 0, self._reason, self._time_ms),
        )


def _stretches(positions: Indexes) -> Stretches:
    """The stretches of these positions that have no holes."""
    begins = np.concatenate(([0], np.flatnonzero(np.diff(positions) != 1) + 1))
    return Stretches(positions[begins].tolist(), begins.tolist(), len(positions))


def _is_tiny(one: Wanted | None) -> bool:
    return one is not None and one.header.size < TINY_BYTES
