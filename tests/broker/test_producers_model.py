"""A partition's producers beside a model that looks at the whole log each time.

The model keeps the log and the moments at which producers were forgotten, and derives everything from them, slowly. It
is asked the same questions after entries that are stored, settled, cut, dropped by retention, and after restarts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.aborted import Aborted
from penstock.broker.log.partition import Place
from penstock.broker.producers import EXPIRY_MS, SEQUENCES, PartitionProducers
from penstock.broker.refusals import Refused
from penstock.wire.entry import EntryFlag, EntryHeader
from tests.broker.test_producers import TIME, header

PRODUCERS = (1, 2, 3)


class Row(NamedTuple):
    """An entry in the log, or the forgetting of a producer, whose `time_ms` counts forgettings."""

    header: EntryHeader | None
    place: Place
    commit: bool = False
    forgotten: int | None = None
    time_ms: int = 0


@dataclass
class Known:
    """What the model finds out of one producer."""

    epoch: int
    entries: list[tuple[int, int, Place]] = field(default_factory=list)
    open_at: int | None = None
    time_ms: int = 0


@dataclass
class Picture:
    """What follows from some rows."""

    producers: dict[int, Known] = field(default_factory=dict)
    undecided: list[tuple[int, int | None]] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)


def picture(rows: list[Row]) -> Picture:
    """Everything, from the beginning."""
    told = Picture()
    for row in rows:
        if row.forgotten is not None:
            told.producers.pop(row.forgotten, None)
            continue
        assert row.header is not None
        assert isinstance(row.header.producer, int)
        known = told.producers.setdefault(row.header.producer, Known(row.header.epoch))
        if known.epoch != row.header.epoch:
            known.epoch, known.entries = row.header.epoch, []
        known.time_ms = row.time_ms
        if row.header.flags & EntryFlag.CONTROL:
            if known.open_at is not None:
                told.undecided.append((known.open_at, row.place.last))
                if not row.commit:
                    told.aborted.append(Aborted(row.header.producer, known.open_at, row.place.last))
            known.open_at = None
            continue
        last = (row.header.sequence + row.header.count - 1) % SEQUENCES
        known.entries.append((row.header.sequence, last, row.place))
        if row.header.flags & EntryFlag.TRANSACTIONAL and known.open_at is None:
            known.open_at = row.place.first
    told.undecided += [(known.open_at, None) for known in told.producers.values() if known.open_at is not None]
    return told


def verdict(told: Picture, entry: EntryHeader) -> Place | str | None:
    """What is to be made of an entry."""
    assert isinstance(entry.producer, int)
    known = told.producers.get(entry.producer)
    if known is None:
        return None
    if entry.epoch < known.epoch:
        return "STALE_EPOCH"
    last = (entry.sequence + entry.count - 1) % SEQUENCES
    if entry.epoch == known.epoch:
        for first, end, place in known.entries[-5:]:
            if (first, end) == (entry.sequence, last):
                return place
        wanted = (known.entries[-1][1] + 1) % SEQUENCES if known.entries else 0
    else:
        wanted = 0
    if entry.sequence != wanted:
        return "OUT_OF_ORDER"
    if known.open_at is not None and not entry.flags & EntryFlag.TRANSACTIONAL:
        return "BAD_TRANSACTION_STATE"
    return None


class ProducersBesideModel(RuleBasedStateMachine):
    """Rules are what a broker does; the invariants ask everything there is to ask."""

    @initialize(first=st.sampled_from([0, 7, SEQUENCES - 6]))
    def begin(self, first: int) -> None:
        self.rows: list[Row] = []
        self.end = self.durable = self.start = 0
        self.now_ms, self.log_ms = TIME, 0
        self.forgettings = self.forgettings_then = 0
        self.first = first
        self.held: set[int] = set()
        self.producers = PartitionProducers("model-0")

    def tell(self) -> Picture:
        return picture(self.rows)

    @rule(
        producer=st.sampled_from(PRODUCERS),
        step=st.sampled_from([0, 0, 0, 0, 0, -1, 1, -2, -7]),
        epoch=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        count=st.integers(1, 3),
        within=st.booleans(),
    )
    def send(self, producer: int, step: int, epoch: int, count: int, within: bool) -> None:
        told = self.tell()
        known = told.producers.get(producer)
        at = 0 if known is None else max(0, known.epoch + epoch)
        wanted = self.first
        if known is not None:
            wanted = (known.entries[-1][1] + 1) % SEQUENCES if known.entries and at == known.epoch else 0
        flags = EntryFlag.TRANSACTIONAL if within else EntryFlag.NONE
        self.judge(told, header(producer, at, (wanted + step) % SEQUENCES, count, flags))

    @rule(producer=st.sampled_from(PRODUCERS), back=st.integers(1, 7))
    def send_again(self, producer: int, back: int) -> None:
        sent = [
            row.header
            for row in self.rows
            if row.header is not None and row.header.producer == producer and not row.header.flags & EntryFlag.CONTROL
        ]
        if len(sent) >= back:
            self.judge(self.tell(), sent[-back])

    def judge(self, told: Picture, entry: EntryHeader) -> None:
        expected = verdict(told, entry)
        try:
            found: Place | str | None = self.producers.check(entry)
        except Refused as refused:
            found = refused.reason.name
        assert found == expected
        if expected is None:
            place = self.append(entry)
            self.producers.stored(entry, place, self.now_ms)

    def append(self, entry: EntryHeader, commit: bool = False) -> Place:
        place = Place(self.end, self.end + entry.count - 1)
        self.end += entry.count
        self.log_ms = max(self.log_ms, self.now_ms)
        self.rows.append(Row(entry, place, commit, time_ms=self.log_ms))
        return place

    @rule(producer=st.sampled_from(PRODUCERS), bump=st.booleans(), commit=st.booleans(), held=st.booleans())
    def mark(self, producer: int, bump: bool, commit: bool, held: bool) -> None:
        known = self.tell().producers.get(producer)
        epoch = 0 if known is None else known.epoch + bump
        entry = header(producer, epoch, -1, 1, EntryFlag.CONTROL | EntryFlag.TRANSACTIONAL)
        place = self.append(entry, commit)
        self.producers.ended(entry, place, commit, self.now_ms, held=held)
        if held:
            self.held.add(place.last)

    @rule(producer=st.sampled_from(PRODUCERS))
    def release(self, producer: int) -> None:
        self.producers.release(producer)
        theirs = {row.place.last for row in self.rows if row.header is not None and row.header.producer == producer}
        self.held -= theirs

    @rule(share=st.floats(0, 1))
    def settle(self, share: float) -> None:
        ends = [row.place.last + 1 for row in self.rows if row.header is not None and row.place.first >= self.durable]
        if ends:
            self.durable = ends[int(share * (len(ends) - 1))]
            self.producers.settle(self.durable)

    @rule(share=st.floats(0, 1))
    def cut(self, share: float) -> None:
        firsts = [row.place.first for row in self.rows if row.header is not None and row.place.first >= self.durable]
        if firsts:
            self.end = firsts[int(share * (len(firsts) - 1))]
            self.rows = [row for row in self.rows if row.forgotten is not None or row.place.first < self.end]
            assert self.producers.revert(self.end)

    @rule(hours=st.integers(-5, 40))
    def pass_time(self, hours: int) -> None:
        self.now_ms += hours * 3_600_000

    @rule()
    def expire(self) -> None:
        self.log_ms = max(self.log_ms, self.now_ms)
        unsettled = {
            row.header.producer for row in self.rows if row.header is not None and row.place.last >= self.durable
        }
        gone = [
            producer
            for producer, known in self.tell().producers.items()
            if known.time_ms + EXPIRY_MS <= self.log_ms and known.open_at is None and producer not in unsettled
        ]
        self.forgettings += 1
        self.rows += [Row(None, Place(0, 0), forgotten=producer, time_ms=self.forgettings) for producer in gone]
        assert self.producers.expire(self.now_ms) == len(gone)

    @rule(share=st.floats(0, 1))
    def retention(self, share: float) -> None:
        self.start = max(self.start, int(share * self.durable))
        self.producers.delete_before(self.start)

    @rule()
    def snapshot(self) -> None:
        self.kept, self.forgettings_then = self.producers.snapshot(), self.forgettings

    @initialize()
    def first_snapshot(self) -> None:
        self.kept = PartitionProducers().snapshot()

    @precondition(lambda self: self.durable == self.end)
    @rule(late=st.booleans())
    def restart(self, late: bool) -> None:
        """From the last snapshot, perhaps taken now, and the entries behind it; what was forgotten since is not."""
        if late:
            self.snapshot()
        position, state = self.kept
        self.producers = PartitionProducers("model-0")
        self.producers.restore(position, state)
        self.producers.delete_before(self.start)
        rows = [row for row in self.rows if row.forgotten is None or row.time_ms <= self.forgettings_then]
        self.rows = [row for row in rows if row.forgotten is not None or row.place.first < position]
        self.log_ms = max((known.time_ms for known in self.tell().producers.values()), default=0)
        for row in rows:
            if row.header is not None and row.place.first >= position:
                self.producers.replay(row.header, row.place, self.now_ms, row.commit)
                self.log_ms = max(self.log_ms, self.now_ms)
                self.rows.append(row._replace(time_ms=self.log_ms))
        self.held.clear()

    @invariant()
    def nothing_is_open_that_is_decided(self) -> None:
        told = self.tell()
        undecided = [
            first for first, last in told.undecided if last is None or last >= self.durable or last in self.held
        ]
        stable = min([*undecided, self.durable])
        assert self.producers.last_stable(self.durable) == max(stable, min(self.start, self.durable))

    @invariant()
    def aborted_transactions_are_told(self) -> None:
        everything = [aborted for aborted in self.tell().aborted if aborted.last >= self.start]
        middle = (self.start + self.end) // 2
        for first, beyond in ((self.start, self.end), (self.start, middle), (middle, self.end), (middle, middle + 1)):
            wanted = [aborted for aborted in everything if aborted.last >= first and aborted.first < beyond]
            assert self.producers.aborted(first, beyond) == wanted

    @invariant()
    def producers_are_known(self) -> None:
        told = self.tell()
        assert {producer for producer, _ in self.producers.describe()} == set(told.producers)
        for producer, known in self.producers.describe():
            expected = told.producers[producer]
            assert (known.epoch, known.open_at) == (expected.epoch, expected.open_at)
            assert [tuple(entry) for entry in known.entries] == expected.entries[-5:]
            assert known.heard_ms == expected.time_ms


ProducersBesideModel.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
test_producers_beside_model = ProducersBesideModel.TestCase
