"""A strand without a network: a log to read from, a target whose answers are given by hand, and a clock moved by hand.

A strand is worked on only when it has asked for that, or when the moment has come that it named, as the replicator does
it. So a strand that forgets to ask is stuck here too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from penstock.config import ReaderOptions
from penstock.consume.feed import Load, Part
from penstock.consume.judge import Judge, Wanted
from penstock.consume.stats import ReaderStats
from penstock.errors import ConnectionLostError, PenstockError, RefusedError
from penstock.net.backoff import Backoff
from penstock.replicate.commit_clock import Terms
from penstock.replicate.consignment import Consignment, Packer, Packing
from penstock.replicate.permits import Permits
from penstock.replicate.position_map import Point
from penstock.replicate.rate import Rate
from penstock.replicate.strand import Claimed, Shared, State, Strand, Told
from penstock.wire.columns import to_arrow
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.protocol import Mark, Partition, Stored
from tests.consume.batches import values

T0 = Partition("t", 0)
TURNS_MAX = 2000
"""More turns at one moment mean that a strand never rests."""
TERMS = Terms(commit_interval=1.0, transaction_bytes_max=1 << 20, renew_after=3600.0)
LOST = ConnectionLostError("cut")
REFUSED = RefusedError("never")
TENS = [list(range(first, first + 10)) for first in range(0, 60, 10)]
"""The messages of the entries that a rig's log has unless it is given others."""


def both_ways(test: Any) -> Any:
    """Within transactions, and without."""
    return pytest.mark.parametrize("halts", [True, False], ids=["transactions", "plain"])(test)


class Parcel:
    """What was sent, until it has its verdict."""

    def __init__(self) -> None:
        self.verdict: Any = None
        self.listeners: deque[tuple[Callable[..., None], object]] = deque()

    def settle(self, verdict: Any) -> None:
        """Give it its verdict, and tell who listens."""
        self.judge(verdict)
        self.announce()

    def judge(self, verdict: Any) -> None:
        """Give it its verdict; who listens is told later."""
        assert self.verdict is None, "a second verdict"
        self.verdict = verdict

    def announce(self) -> None:
        """As the producer does it, but that what a listener raises is not swallowed."""
        while self.listeners:
            self.listeners.popleft()[0]()


class Sent(NamedTuple):
    """A consignment that was forwarded, and its parcel."""

    consignment: Consignment
    parcel: Parcel

    @property
    def messages(self) -> list[int]:
        return messages_in(self.consignment)

    def stored(self, first: int | None = None) -> None:
        self.parcel.settle(Stored(first))

    def failed(self, error: PenstockError) -> None:
        self.parcel.settle(error)


class Commit(NamedTuple):
    """A position to be committed, and who is told."""

    mark: Mark
    told: Told

    @property
    def position(self) -> int:
        return self.mark.position


def messages_in(consignment: Consignment) -> list[int]:
    """The messages of a consignment; each says where it was in the source."""
    return [int(value) for value in to_arrow(consignment.buffer.columns()).value.to_pylist()]


class HandSource:
    """One partition of a log, read as a fetcher that is led reads it: nothing before the strand says so."""

    def __init__(self, entries: Sequence[bytes], end: int | None = None, start: int = 0) -> None:
        self.entries: list[tuple[int, int, memoryview]] = []
        for entry in entries:
            self.write(entry)
        self.position, self.end = start, end
        self.first = start
        self.era = 0
        self.is_held = True
        self.seeks: list[int] = []
        self.out: list[Part] = []
        """Parts that were read and are not given back."""
        self.read_parts = 0
        self.unknown: set[int] = set()
        """Producers of whom it is not known whether they copy from the target."""
        self.returning: set[int] = set()
        """Those who do."""
        self.epochs: dict[int, int] = {}
        """The leader epochs of entries, by where they begin."""

    def write(self, entry: bytes) -> None:
        """One more entry in the log."""
        header = KafkaEntries().judge(entry, check=True, claim=False, bytes_max=1 << 20)
        self.entries.append((header.first, header.last + 1, memoryview(entry)))  # type: ignore[arg-type, operator]

    @property
    def log_end(self) -> int:
        return self.entries[-1][1] if self.entries else 0

    # What strands ask

    def place(self, number: int) -> tuple[int, int | None, int]:
        return self.position, self.end, self.log_end

    def start(self, number: int) -> Mark:
        return Mark(self.first)

    def seek(self, number: int, mark: Mark) -> None:
        self.position = mark.position
        self.era += 1
        self.seeks.append(mark.position)

    def hold(self, number: int, is_held: bool) -> None:
        self.is_held = is_held

    def done(self, part: Part) -> None:
        assert part in self.out, "given back twice, or never read"
        self.out.remove(part)

    def unknown_writers(self, number: int, wanted: Sequence[Wanted]) -> bool:
        return any(one.header.producer in self.unknown for one in wanted)

    def is_from_target(self, number: int, one: Wanted) -> bool:
        return one.header.producer in self.returning

    # What tests do

    def read(self, count: int = 1) -> Part | None:
        """Ask for so many entries from the position on; None when it is not to be asked for, or has nothing."""
        if self.is_held or (self.end is not None and self.position >= self.end):
            return None
        found = [one for one in self.entries if one[1] > self.position][:count]
        if not found:
            return None
        first, following = self.position, found[-1][1]
        self.position = following if self.end is None else min(following, self.end)
        entries = [entry for _, _, entry in found]
        epochs = [self.epochs.get(begin, -1) for begin, _, _ in found]
        place = (first, self.end, self.position, epochs[0], epochs[-1])
        part = Part(Load(0), T0, entries, *place, era=self.era)
        self.out.append(part)
        self.read_parts += 1
        return part

    def hand_over(self, part: Part | None, strand: Strand) -> None:
        """What was read arrives; of an era that is over it is dropped."""
        if part is None:
            return
        if part.era == self.era:
            strand.offer(part)
        else:
            self.done(part)


class HandPassage:
    """The way to a target that does what the test says."""

    def __init__(self, *, halts: bool = True) -> None:
        self.halts = halts
        self.claims: list[Callable[[Claimed | PenstockError], None]] = []
        self.sent: list[Sent] = []
        self.points: list[tuple[list[Point], Parcel]] = []
        self.tells_points = False
        self.commits: list[Commit] = []
        self.giving_up: list[Told] = []
        self.refusal: PenstockError | None = None
        """Raised instead of forwarding."""
        self.point_refusal: PenstockError | None = None
        self.comes_through: list[frozenset[str]] = []
        self.end = -1
        self.is_closed = False

    def claim(self, told: Callable[[Claimed | PenstockError], None]) -> None:
        self.claims.append(told)

    def come_through(self, clusters: frozenset[str]) -> bool:
        self.comes_through.append(clusters)
        return not self.halts

    def forward(self, consignment: Consignment) -> Any:
        if self.refusal is not None:
            raise self.refusal
        sent = Sent(consignment, Parcel())
        self.sent.append(sent)
        return sent.parcel

    def stored_to(self, end: int) -> None:
        self.end = max(self.end, end)

    def tell_points(self, points: Sequence[Point]) -> Sequence[Any]:
        if self.point_refusal is not None:
            raise self.point_refusal
        if not self.tells_points:
            return ()
        self.points.append((list(points), Parcel()))
        return [self.points[-1][1]]

    def commit(self, mark: Mark, told: Told) -> None:
        self.commits.append(Commit(mark, told))

    def give_up(self, told: Told) -> None:
        self.giving_up.append(told)

    def close(self) -> None:
        self.is_closed = True

    # What tests do

    @property
    def messages(self) -> list[list[int]]:
        """What was forwarded since somebody last took it away, consignment by consignment."""
        return [sent.messages for sent in self.sent]

    def take(self) -> list[Sent]:
        """What was forwarded, taken away."""
        sent, self.sent = self.sent, []
        return sent


class Desk:
    """What strands share, and who works on them."""

    def __init__(
        self,
        permits: tuple[int, int] = (1 << 20, 1000),
        rates: tuple[float | None, float | None] = (None, None),
    ) -> None:
        self.now = 100.0
        self.permits = Permits(*permits, self.look_at_all)
        self.rates = [Rate(rate) for rate in rates]
        self.strands: list[Strand] = []
        self.looked: dict[Strand, None] = {}
        self.due: dict[Strand, float] = {}
        self.ended: list[Strand] = []

    def shared(self) -> Shared:
        return Shared(self.permits, self.rates[0], self.rates[1], self.look, self.ended.append)

    def look(self, strand: Strand) -> None:
        self.looked[strand] = None

    def look_at_all(self) -> None:
        self.looked.update(dict.fromkeys(self.strands))

    def strand(
        self, source: HandSource, passage: Any, terms: Terms = TERMS, packing: Packing | None = None, number: int = 0
    ) -> Strand:
        packing = packing or Packing(number, repack="never")
        judge = Judge(KafkaEntries(), packing.condition, ReaderOptions(), ReaderStats(), claims=False)
        packer = Packer(KafkaWire(), KafkaEntries(), packing)
        backoff = Backoff(0.1, 1.0, lambda: 0.5)
        strand = Strand(
            Partition("t", number), (source, passage), judge, packer, terms, self.shared(), backoff
        )  # fmt: skip
        self.strands.append(strand)
        return strand

    def turn(self) -> bool:
        """Work on those who asked for it; whether anybody did."""
        ready = {**self.looked, **{strand: None for strand, moment in self.due.items() if moment <= self.now}}
        self.looked.clear()
        for strand in ready:
            self.due.pop(strand, None)
            deadline = None if strand.is_over else strand.work(self.now)
            if deadline is not None:
                self.due[strand] = deadline
        return bool(ready)

    def settle(self) -> None:
        """Turn until all rest."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError(f"busy for ever: {self.strands}")

    def next_moment(self) -> float:
        return min(self.due.values(), default=math.inf)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is due on the way is done then."""
        over = self.now + seconds
        self.settle()
        while (moment := self.next_moment()) <= over:
            self.now = max(moment, self.now)
            self.settle()
        self.now = over
        self.settle()


class Rig(Desk):
    """One strand, and all that is around it."""

    def __init__(
        self,
        entries: int | Sequence[bytes] = 6,
        *,
        halts: bool = True,
        end: int | None = None,
        terms: Terms = TERMS,
        packing: Packing | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        made = [values(10 * i, 10) for i in range(entries)] if isinstance(entries, int) else entries
        self.source = HandSource(made, end)
        self.passage = HandPassage(halts=halts)
        self.one = self.strand(self.source, self.passage, terms, packing)
        self.one.begin()

    @property
    def state(self) -> State:
        return self.one.state

    def is_in(self, state: State) -> bool:
        """Whether it is in this state; unlike a comparison, mypy does not take it for the last word."""
        return self.one.state is state

    def claimed(self, position: int | None = None, end: int = 0) -> None:
        """The target tells how far it has got."""
        mark = None if position is None else Mark(position)
        self.passage.end = max(self.passage.end, end)
        self.passage.claims.pop()(Claimed(mark, end))
        self.settle()

    def not_claimed(self, error: PenstockError) -> None:
        self.passage.claims.pop()(error)
        self.settle()

    def copying(self, position: int | None = 0) -> None:
        """The target has told, and where the position must be committed first, it is."""
        self.claimed(position)
        if position is None or not self.passage.halts:
            self.committed()

    def read(self, parts: int = 1, entries: int = 1) -> None:
        """So many parts arrive, one after the other."""
        for _ in range(parts):
            self.source.hand_over(self.source.read(entries), self.one)
            self.settle()

    def committed(self, error: PenstockError | None = None) -> int:
        """The commit that was asked for has its outcome; which position it was."""
        (commit,) = self.passage.commits
        self.passage.commits.clear()
        commit.told(error)
        self.settle()
        return commit.position

    def given_up(self, error: PenstockError | None = None) -> None:
        """What was given up has its outcome."""
        (told,) = self.passage.giving_up
        self.passage.giving_up.clear()
        told(error)
        self.settle()

    def settle_all(self, verdicts: Mapping[int, Any]) -> None:
        """Several have their verdicts in one moment, and are told one after the other; the rest stays on its way."""
        for place, verdict in verdicts.items():
            self.passage.sent[place].parcel.judge(verdict)
        for place in verdicts:
            self.passage.sent[place].parcel.announce()
        self.passage.sent = [sent for place, sent in enumerate(self.passage.sent) if place not in verdicts]
        self.settle()

    def store(self, count: int | None = None, first: int | None = None) -> None:
        """The first of those on their way are stored, behind what was stored before unless told otherwise."""
        count = len(self.passage.sent) if count is None else count
        first = max(self.passage.end, 0) if first is None else first
        for sent in self.passage.sent[:count]:
            sent.stored(first)
            first += sent.consignment.count
        del self.passage.sent[:count]
        self.settle()

    def check_given_back(self) -> None:
        """Nothing is held any more."""
        assert (self.permits.entries, self.permits.bytes) == (0, 0)
        assert self.source.out == []
