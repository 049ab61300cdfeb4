"""The producers of one partition: what each has stored last, which transactions are open, which were aborted.

An entry that carries a producer's id is judged by what is known of that producer here:

| producer        | its epoch | its sequence                     | verdict                                           |
|-----------------|-----------|----------------------------------|---------------------------------------------------|
| any             | any       | none                             | BAD_ENTRY                                         |
| unknown         | any       | any                              | stored                                            |
| unknown, renews | any       | other than 0, in a transaction   | OUT_OF_ORDER                                      |
| known           | lower     | any                              | STALE_EPOCH                                       |
| known           | higher    | 0                                | stored; what was remembered is forgotten          |
| known           | higher    | other                            | OUT_OF_ORDER                                      |
| known           | the same  | follows the last one             | stored                                            |
| known           | the same  | first and last are remembered    | a duplicate: its old place, and nothing is stored |
| known           | the same  | any other                        | OUT_OF_ORDER                                      |
| in a transaction| any       | entry outside of any transaction | BAD_TRANSACTION_STATE instead of stored           |

Sequences number messages and go from 2^31 - 1 on to 0. The last `REMEMBERED` entries of each producer are remembered,
as many as a client may have unanswered. An older one is out of order, not a duplicate: that it was stored cannot be
told from its numbers.

A transaction begins with its first entry and ends with a marker, which says committed or aborted and whose epoch
becomes the producer's. The last stable position lies before the first entry of every transaction that is not ended; one
that is ended counts as open until its marker is durable and its coordinator has released it, so that all partitions of
a transaction show it at once.

What is known follows the log. It is kept as a snapshot of what is durable, and rebuilt by replaying the headers behind
it. Every change is remembered with its opposite until `settle` says that its entry is durable: `revert` takes back
entries that never will be.

Time is the log's: the newest that any call told, so that a clock which goes back forgets no producer. Replayed entries
count as stored when they were replayed: their own times are their senders', and tell nothing.

Must never ask a clock, nor know how a marker looks. Runs on: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.broker.aborted import Aborted, AbortedTransactions
from penstock.broker.log.partition import Place
from penstock.broker.producer_state import Producer, Remembered, pack, unpack
from penstock.broker.refusals import Refusal, Refused
from penstock.wire.entry import EntryFlag, EntryHeader

REMEMBERED: Final = 5
SEQUENCES: Final = 1 << 31
EXPIRY_MS: Final = 24 * 3_600_000


class _Span:
    """A transaction in this partition that readers may not look behind yet."""

    __slots__ = ("end", "first", "held", "producer")

    def __init__(self, producer: int, first: int) -> None:
        self.producer = producer
        self.first = first
        self.end: int | None = None
        self.held = False


class _Change(NamedTuple):
    """What one entry changed, for it to be undone."""

    place: Place
    producer: int
    before: Producer | None
    span: _Span | None
    aborted: bool


class PartitionProducers:
    """All producers of one partition."""

    def __init__(self, name: str = "", expiry_ms: int = EXPIRY_MS) -> None:
        """`name` is the partition's, for messages."""
        self._name = name
        self._expiry_ms = expiry_ms
        self._producers: dict[int, Producer] = {}
        self._spans: dict[int, _Span] = {}  # by first position, which only grows: the first one is the oldest
        self._ended: list[_Span] = []  # those of them that have a marker
        self._changes: deque[_Change] = deque()
        self._aborts = AbortedTransactions()
        self._settled = 0
        self._start = 0
        self._time_ms = 0

    def __repr__(self) -> str:
        return f"<PartitionProducers of {self._name}, {len(self._producers)} known, {len(self._changes)} not settled>"

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer: object) -> bool:
        return producer in self._producers

    def get(self, producer: int) -> Producer | None:
        """What is known of one producer."""
        return self._producers.get(producer)

    # The way of an entry: check, append to the log, stored; then settle, or revert.

    def check(self, header: EntryHeader, *, from_zero: bool = False) -> Place | None:
        """None: store it; a place: it is there already, perhaps not yet durable; Refused otherwise.

        `from_zero`: the producer begins every transaction with another epoch, hence with sequence 0.
        """
        producer = _producer_of(header)
        if producer is None:
            return None
        sequence = header.sequence
        if sequence < 0 or header.epoch < 0:
            raise Refused(Refusal.BAD_ENTRY, f"{self._name}: producer {producer} without an epoch or a sequence")
        known = self._producers.get(producer)
        if known is None:
            if from_zero and sequence and header.flags & EntryFlag.TRANSACTIONAL:
                raise self._out_of_order(header, "nothing was stored before it")
            return None
        if header.epoch == known.epoch:
            if sequence != (known.last_sequence + 1) % SEQUENCES:
                return self._duplicate(header, known)
        elif header.epoch < known.epoch:
            raise Refused(
                *(
                    Refusal.STALE_EPOCH,
                    f"{self._name}: producer {producer} is at epoch {known.epoch}, not {header.epoch}",
                )
            )
        elif sequence:
            raise self._out_of_order(header, f"a new epoch begins with 0, the one before was {known.epoch}")
        if known.open_at is not None and not header.flags & EntryFlag.TRANSACTIONAL:
            raise Refused(
                Refusal.BAD_TRANSACTION_STATE,
                f"{self._name}: producer {producer} has a transaction open, and this entry is outside of it",
            )
        return None

    def _duplicate(self, header: EntryHeader, known: Producer) -> Place:
        last = (header.sequence + header.count - 1) % SEQUENCES
        for entry in known.entries:
            if entry.first == header.sequence and entry.last == last:
                return entry.place
        raise self._out_of_order(header, f"the last one stored was {known.last_sequence}")

    def _out_of_order(self, header: EntryHeader, why: str) -> Refused:
        text = (
            f"{self._name}: producer {header.producer} at epoch {header.epoch} sent sequence {header.sequence}; {why}"
        )
        return Refused(Refusal.OUT_OF_ORDER, text)

    def stored(self, header: EntryHeader, place: Place, now_ms: int, name: str = "") -> None:
        """An entry that was checked has this place."""
        producer = _producer_of(header)
        if producer is None:
            return
        before = self._producers.get(producer)
        entry = Remembered(header.sequence, (header.sequence + header.count - 1) % SEQUENCES, place)
        if before is None:
            known = Producer(header.epoch, (entry,), self._tick(now_ms), name)
        else:
            older = before.entries[1 - REMEMBERED :] if before.epoch == header.epoch else ()
            known = before._replace(
                epoch=header.epoch, entries=(*older, entry), heard_ms=self._tick(now_ms), name=name or before.name
            )
        span = None
        if known.open_at is None and header.flags & EntryFlag.TRANSACTIONAL:
            known = known._replace(open_at=place.first)
            span = self._spans[place.first] = _Span(producer, place.first)
        self._producers[producer] = known
        self._changes.append(_Change(place, producer, before, span, aborted=False))

    def ended(self, header: EntryHeader, place: Place, committed: bool, now_ms: int, *, held: bool = False) -> None:
        """A marker has this place. `held`: what it ends is seen only once it is released, too."""
        producer = _producer_of(header)
        if producer is None:
            return
        before = self._producers.get(producer)
        epoch = header.epoch if before is None else max(header.epoch, before.epoch)
        entries = before.entries if before is not None and before.epoch == epoch else ()
        name = "" if before is None else before.name
        span = None if before is None or before.open_at is None else self._spans[before.open_at]
        if span is not None:
            span.end, span.held = place.last, held
            self._ended.append(span)
            if not committed:
                self._aborts.add(Aborted(producer, span.first, place.last), self._first_open(place.last + 1))
        self._producers[producer] = Producer(epoch, entries, self._tick(now_ms), name, None, marked=True)
        self._changes.append(_Change(place, producer, before, span, span is not None and not committed))

    def release(self, producer: int) -> None:
        """All partitions have the marker of the producer's last transaction: it may be seen."""
        for span in self._ended:
            if span.producer == producer:
                span.held = False
        self._drop_ended()

    def replay(self, header: EntryHeader, place: Place, now_ms: int, committed: bool = False) -> None:
        """An entry that the log holds and that was judged when it came; `committed` tells what a marker says."""
        if header.flags & EntryFlag.CONTROL:
            self.ended(header, place, committed, now_ms)
        elif header.sequence >= 0:
            self.stored(header, place, now_ms)
        self.settle(place.last + 1)

    def settle(self, visible: int) -> None:
        """All below this position is durable."""
        self._settled = max(self._settled, visible)
        while self._changes and self._changes[0].place.last < self._settled:
            self._changes.popleft()
        if self._ended:
            self._drop_ended()

    def revert(self, end: int) -> bool:
        """The log was cut here. False when what is cut was settled: then all must be rebuilt from the log."""
        if end < self._settled:
            return False
        while self._changes and self._changes[-1].place.first >= end:
            self._undo(self._changes.pop())
        return True

    def _undo(self, change: _Change) -> None:
        if change.before is None:
            del self._producers[change.producer]
        else:
            self._producers[change.producer] = change.before
        span = change.span
        if span is not None and span.first == change.place.first:
            del self._spans[span.first]
        elif span is not None:
            span.end, span.held = None, False
            self._ended.remove(span)
        if change.aborted:
            self._aborts.pop()

    def _drop_ended(self) -> None:
        """Forget the transactions that readers may look behind."""
        kept = []
        for span in self._ended:
            assert span.end is not None
            if span.held or span.end >= self._settled:
                kept.append(span)
            else:
                del self._spans[span.first]
        self._ended = kept

    def _first_open(self, otherwise: int) -> int:
        return next((span.first for span in self._spans.values() if span.end is None), otherwise)

    def _tick(self, now_ms: int) -> int:
        self._time_ms = max(self._time_ms, now_ms)
        return self._time_ms

    # What readers ask

    def last_stable(self, end: int) -> int:
        """Below it no transaction is undecided; `end` when none is at all."""
        for first in self._spans:
            return max(min(first, end), min(self._start, end))
        return end

    def aborted(self, first: int, next_position: int) -> list[Aborted]:
        """The aborted transactions with entries from `first` up to `next_position`, in the order of their markers."""
        return self._aborts.between(first, next_position)

    def delete_before(self, start: int) -> None:
        """The log begins here now."""
        self._start = max(self._start, start)
        self._aborts.delete_before(start)

    # What the broker and its tools ask

    def open_transactions(self) -> dict[int, Producer]:
        """Producers with an open transaction."""
        return {producer: known for producer, known in self._producers.items() if known.open_at is not None}

    def describe(self) -> Iterator[tuple[int, Producer]]:
        """All producers by id."""
        yield from sorted(self._producers.items())

    def expire(self, now_ms: int) -> int:
        """Forget producers that were not heard of for long, none with a transaction; returns how many."""
        latest = self._tick(now_ms) - self._expiry_ms
        unsettled = {change.producer for change in self._changes}
        gone = [
            producer
            for producer, known in self._producers.items()
            if known.heard_ms <= latest and known.open_at is None and producer not in unsettled
        ]
        for producer in gone:
            del self._producers[producer]
        return len(gone)

    def snapshot(self) -> tuple[int, bytes]:
        """What is durable: a position, and all that follows from the entries below it."""
        producers = dict(self._producers)
        aborts = len(self._aborts)
        for change in reversed(self._changes):
            if change.before is None:
                del producers[change.producer]
            else:
                producers[change.producer] = change.before
            aborts -= change.aborted
        return self._settled, pack(producers, self._aborts.columns(aborts))

    def restore(self, position: int, state: bytes) -> None:
        """Begin from a snapshot; entries from its position on are to be replayed. DecodeError when it is none."""
        self._producers, aborted = unpack(state)
        self._aborts = AbortedTransactions(aborted)
        self._settled = position
        for producer, known in sorted(self._producers.items(), key=lambda item: item[1].open_at or 0):
            self._tick(known.heard_ms)
            if known.open_at is not None:
                self._spans[known.open_at] = _Span(producer, known.open_at)


def _producer_of(header: EntryHeader) -> int | None:
    """The id by which an entry is judged; producers that are known by name only are not judged here."""
    return header.producer if isinstance(header.producer, int) else None
