"""What a round of the commit thread is made of: what was written where, and who waits for it.

Gathered on the loop thread, worked on by the commit thread, then handed back: never by both at the same time.

Small appends are kept in memory as items for the journal, up to a limit for each log and for the round. Beyond the
first a log is better synced in its own place; beyond the second the commit thread reads the bytes from the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.log.handles import Handle
from penstock.broker.log.journal import data_item
from penstock.broker.log.layout import SEGMENT_HEAD_BYTES
from penstock.broker.log.segment import Segment
from penstock.errors import StorageError
from penstock.wire.entry import Buffer

if TYPE_CHECKING:
    import sqlite3

    from penstock.broker.log.partition import PartitionLog
    from penstock.broker.log.syncer import Syncer

LOG_BYTES_MAX: Final = 65_536
"""Up to here a second write costs less than a sync of one more file."""
COPIED_BYTES_MAX: Final = 4 << 20


class Part:
    """Bytes of one segment's file, written one behind the other. Holds one pin of the segment's handle."""

    __slots__ = ("descriptor", "end", "entries", "rewound", "segment", "start", "stop")

    def __init__(self, segment: Segment, start: int) -> None:
        self.segment = segment
        self.descriptor = segment.handle.pin()
        self.start = start
        self.grow()

    def grow(self) -> None:
        """It reaches up to the segment's present end."""
        self.stop = self.segment.size
        self.end = self.segment.end
        self.entries = self.segment.entries
        self.rewound = self.segment.rewound

    def extend(self, later: Part) -> None:
        """It reaches as far as a later part of the same segment, whose pin is not needed any more."""
        self.stop, self.end, self.entries, self.rewound = later.stop, later.end, later.entries, later.rewound


class Write:
    """What one log wrote in a round: parts of one segment, or of several one behind the other."""

    __slots__ = ("appends", "bytes", "copied", "error", "log", "parts", "small")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.parts: list[Part] = []
        self.appends = 0
        self.bytes = 0
        self.small = True
        """Whether it may go through the journal."""
        self.copied: list[Buffer] | None = []
        """Items for the journal; None: they are to be made from the files."""
        self.error: StorageError | None = None


class Job(NamedTuple):
    """Somebody who waits for a round."""

    ticket: int
    work: Callable[[sqlite3.Connection], object] | None
    done: Callable[[Exception | None], None] | None
    logs: Sequence[PartitionLog]
    """Whose failure is a failure of this."""


class Note(NamedTuple):
    """That a log starts later than before, and what can be removed once that is durable."""

    log: PartitionLog
    base: int
    position: int
    gone: Sequence[Segment]


class Round:
    """All that is to become durable together."""

    __slots__ = ("copied_bytes", "failures", "jobs", "notes", "orders", "outcomes", "released", "since", "writes")

    def __init__(self) -> None:
        self.writes: dict[PartitionLog, Write] = {}
        self.notes: list[Note] = []
        self.orders: list[Callable[[Syncer], None]] = []
        """What else is to be done on the commit thread, once the rest is durable."""
        self.jobs: list[Job] = []
        self.since: dict[PartitionLog, None] = {}
        """The logs of which something was written since the last job."""
        self.copied_bytes = 0
        self.released: list[Handle] = []
        """Handles that the commit thread needs no more."""
        self.failures: list[tuple[PartitionLog, StorageError]] = []
        """Logs that failed in this round, whether they wrote in it or not."""
        self.outcomes: list[Exception | None] = []
        """For each job, once the round is over."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.writes or self.notes or self.orders)

    def note(self, note: Note) -> None:
        """A log starts later than before."""
        self.notes.append(note)
        self.since[note.log] = None

    def wrote(self, log: PartitionLog, segment: Segment, offset: int, size: int, buffers: Sequence[Buffer]) -> None:
        """A log's last segment has grown by these bytes."""
        write = self.writes.get(log)
        if write is None:
            write = self.writes[log] = Write(log)
        parts = write.parts
        if parts and parts[-1].segment is segment:
            parts[-1].grow()
        else:
            parts.append(Part(segment, offset))
        write.appends += 1
        write.bytes += size
        self.since[log] = None
        if not write.small:
            return
        if write.bytes > LOG_BYTES_MAX or segment.rewound:
            write.small, write.copied = False, None
        elif write.copied is not None:
            self._copy(write, data_item(segment.key, segment.base, offset, size), size, buffers)

    def dirtied(self, log: PartitionLog, segment: Segment) -> None:
        """A segment is to be synced in its own place, whenever it was written."""
        write = self.writes.get(log)
        if write is None:
            write = self.writes[log] = Write(log)
        write.parts.append(Part(segment, SEGMENT_HEAD_BYTES))
        write.bytes += segment.held
        write.small, write.copied = False, None

    def _copy(self, write: Write, item: bytes, size: int, buffers: Sequence[Buffer]) -> None:
        assert write.copied is not None
        self.copied_bytes += size
        if self.copied_bytes > COPIED_BYTES_MAX:
            write.copied = None
            return
        write.copied.append(item)
        write.copied += map(bytes, buffers)

    def fail(self, error: StorageError) -> None:
        """Nothing of it counts as durable, whatever part may be."""
        for write in self.writes.values():
            write.error = write.error or error
        self.outcomes = [error] * len(self.jobs)

    def absorb(self, later: Round) -> None:
        """Take over all of a round that came later."""
        for log, write in later.writes.items():
            mine = self.writes.get(log)
            if mine is None:
                self.writes[log] = write
            else:
                self._absorb_write(mine, write)
        self.copied_bytes += later.copied_bytes
        self.notes += later.notes
        self.orders += later.orders
        self.jobs += later.jobs

    def _absorb_write(self, mine: Write, later: Write) -> None:
        parts = later.parts
        if mine.parts[-1].segment is parts[0].segment:
            mine.parts[-1].extend(parts[0])
            parts[0].segment.handle.unpin()
            parts = parts[1:]
        mine.parts += parts
        mine.appends += later.appends
        mine.bytes += later.bytes
        mine.small = mine.small and later.small and mine.bytes <= LOG_BYTES_MAX
        if not mine.small or mine.copied is None or later.copied is None:
            mine.copied = None
        else:
            mine.copied += later.copied
