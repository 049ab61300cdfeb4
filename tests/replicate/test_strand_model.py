"""Strands against a model of a target that fails, delays, answers late or not at all, and refuses commits.

The model keeps to what the ways to a real target promise. What is forwarded to a partition is decided in order; answers
come in any order. Within transactions what is stored counts when it is committed, together with the position. Without
them it counts at once, and one that is given up takes along what was forwarded behind it.

Pipelines are killed and stopped on the way, and started again. Whatever happens, the target comes to hold the source's
messages, each once (within transactions) or first time in order (without).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.consume.feed import Part
from penstock.errors import (
    BatchTooLargeError,
    BusyError,
    ConnectionLostError,
    NoRoomError,
    PenstockError,
    TimedOutError,
    TransactionError,
)
from penstock.replicate import backlog
from penstock.replicate.commit_clock import Terms
from penstock.replicate.consignment import Consignment, Packing, Repack
from penstock.replicate.position_map import Point, PositionMap
from penstock.replicate.strand import Claimed, State, Strand, Told
from penstock.wire.columns import BufferColumns, Int32s
from penstock.wire.protocol import Mark, Stored
from tests.consume.batches import values
from tests.replicate.strand_kit import Desk, HandSource, Parcel, messages_in

STEPS_MAX = 20_000
Event = Callable[[], None]


@pytest.fixture(autouse=True, scope="module")
def ahead_bytes() -> Iterator[None]:
    """How much may be read ahead differs from one pipeline to the next, and is what it was afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "AHEAD_BYTES", backlog.AHEAD_BYTES)
        yield


@dataclass
class Way:
    """How a target is written to."""

    halts: bool
    fences: bool
    """Whether what is forwarded behind something that failed fails too."""
    partitions: int
    points: bool


class Chance:
    """Whether something goes wrong, as long as there are faults left."""

    def __init__(self, seed: int, faults: int) -> None:
        self.random = random.Random(seed)
        self.faults = faults

    def strikes(self, probability: float = 0.15) -> bool:
        if self.faults and self.random.random() < probability:
            self.faults -= 1
            return True
        return False

    def error(self, count: int = 1) -> PenstockError:
        errors = [ConnectionLostError("cut"), TimedOutError("no answer"), BusyError("later")]
        if count > 1:
            errors.append(BatchTooLargeError("too large"))
        return self.random.choice(errors)


@dataclass
class Log:
    """A partition of the target: what counts, what would if it were committed, and where it is."""

    content: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    where: dict[int, int] = field(default_factory=dict)
    """Where each message was stored last."""
    end: int = 0

    def store(self, messages: list[int]) -> int:
        first = self.end
        self.end += len(messages)
        self.where.update(zip(messages, range(first, self.end), strict=True))
        self.pending += messages
        return first

    def mark(self, *, commit: bool) -> None:
        """A transaction ends."""
        if commit:
            self.content += self.pending
        self.end += bool(self.pending)
        self.pending = []


class Target:
    """What outlives every copier: the logs, the position, and the points."""

    def __init__(self, way: Way, messages: list[int]) -> None:
        self.way = way
        self.messages = messages
        self.logs = [Log() for _ in range(way.partitions)]
        self.mark: int | None = None
        self.points: list[Point] = []
        self.commits = 0

    def counted(self) -> list[int]:
        return [message for log in self.logs for message in log.content]

    def store(self, partition: int, messages: list[int]) -> int:
        first = self.logs[partition].store(messages)
        if not self.way.halts:
            self.logs[partition].mark(commit=True)
            self.logs[partition].end = first + len(messages)
        return first

    def commit(self, position: int) -> None:
        """The position is committed; all before it must be there, and within transactions nothing behind it."""
        for log in self.logs:
            log.mark(commit=True)
        before = [message for message in self.messages if message < position]
        if self.way.halts:
            assert sorted(self.counted()) == before, f"committed up to {position}"
        else:
            assert set(before) <= set(self.counted()), f"committed up to {position}"
        self.mark = position
        self.commits += 1

    def abort(self) -> None:
        for log in self.logs:
            log.mark(commit=False)

    def check_complete(self) -> None:
        for log in self.logs:
            firsts = list(dict.fromkeys(log.content))
            assert firsts == sorted(firsts)
            assert not self.way.halts or firsts == log.content
        assert set(self.counted()) == set(self.messages)

    def check_points(self) -> None:
        """The map tells of each message where it is."""
        if not self.way.points or self.way.partitions > 1:
            return
        sources, targets = np.array(self.points, np.int64).reshape(-1, 2).T
        found = PositionMap().then(sources, targets).targets_of(np.array(self.messages, np.int64))
        assert dict(zip(self.messages, found.tolist(), strict=True)) == self.logs[0].where


class ModelPassage:
    """One copier's way to the target. What happens there happens when one of its events is chosen."""

    def __init__(self, target: Target, chance: Chance) -> None:
        self.halts = target.way.halts
        self._target = target
        self._chance = chance
        self._lanes: dict[int, deque[tuple[Consignment, Parcel]]] = {}
        self._points: deque[tuple[list[Point], Parcel]] = deque()
        self._answers: list[Event] = []
        self._fenced: PenstockError | None = None
        self._on_its_way = 0
        self._is_committing = False
        self.is_dead = False

    def events(self) -> list[Event]:
        """What may happen next."""
        lanes = [partial(self._decide, lane) for lane in self._lanes.values() if lane]
        return [*lanes, *([self._decide_points] if self._points else []), *map(self._answering, self._answers)]

    def _answering(self, answer: Event) -> Event:
        def tell() -> None:
            self._answers.remove(answer)
            answer()

        return tell

    # What the strand asks

    def claim(self, told: Callable[[Claimed | PenstockError], None]) -> None:
        assert self._on_its_way == 0, "claimed before all have their outcome"
        assert not self._is_committing, "claimed before the commit has its outcome"
        assert all(not log.pending for log in self._target.logs)
        self._fenced = None
        self._answers.append(lambda: told(self._claimed()))

    def _claimed(self) -> Claimed | PenstockError:
        if self._chance.strikes():
            return BusyError("loading")
        mark = self._target.mark
        return Claimed(None if mark is None else Mark(mark), self._target.logs[0].end)

    def come_through(self, clusters: frozenset[str]) -> bool:
        return not self.halts

    def forward(self, consignment: Consignment) -> Any:
        assert self._target.mark is not None, "forwarded before it was announced"
        if self._chance.strikes(0.02):
            raise NoRoomError("full")
        parcel = Parcel()
        self._on_its_way += 1
        self._lanes.setdefault(consignment.partition, deque()).append((consignment, parcel))
        return parcel

    def stored_to(self, end: int) -> None:
        assert end <= max(log.end for log in self._target.logs)

    def tell_points(self, points: Sequence[Point]) -> Sequence[Any]:
        if not self._target.way.points:
            return ()
        if self._chance.strikes(0.02):
            raise NoRoomError("full")
        self._points.append((list(points), Parcel()))
        return [self._points[-1][1]]

    def commit(self, mark: Mark, told: Told) -> None:
        assert not self._is_committing, "two commits at once"
        assert not self.halts or self._on_its_way == 0, "committed before all have their outcome"
        self._is_committing = True
        self._answers.append(lambda: self._commit(mark.position, told))

    def give_up(self, told: Told) -> None:
        if not self.halts:
            told(None)
            return
        self._target.abort()
        self._fenced = TransactionError("aborted")
        error = TransactionError("none is open") if self._chance.strikes(0.3) else None
        self._answers.append(lambda: told(error))

    def close(self) -> None:
        self.is_dead = True
        self._target.abort()
        self._fenced = TransactionError("closed")

    # What happens

    def _decide(self, lane: deque[tuple[Consignment, Parcel]]) -> None:
        """The next batch of a partition is stored or not; its answer comes at once, later, or says too little."""
        consignment, parcel = lane.popleft()
        strikes = self._fenced is None and self._chance.strikes()
        if strikes and self._target.way.fences:
            self._fenced = BusyError("one before it was given up")
        verdict: Any
        if strikes or self._fenced is not None:
            verdict = self._chance.error(consignment.count) if strikes else self._fenced
            if self._chance.random.random() < 0.3 and strikes and not isinstance(verdict, BatchTooLargeError):
                self._target.store(consignment.partition, messages_in(consignment))  # and nobody hears of it
        else:
            verdict = Stored(self._target.store(consignment.partition, messages_in(consignment)))
        self._tell(parcel, verdict, 1)

    def _tell(self, parcel: Parcel, verdict: Any, batches: int) -> None:
        """The verdict is there at once or later, and so are the news of it."""
        if is_judged := self._chance.random.random() < 0.6:
            parcel.judge(verdict)

        def land() -> None:
            self._on_its_way -= batches
            if not is_judged:
                parcel.judge(verdict)
            parcel.announce()

        if is_judged and self._chance.random.random() < 0.5:
            land()
        else:
            self._answers.append(land)

    def _decide_points(self) -> None:
        points, parcel = self._points.popleft()
        if self._chance.strikes(0.05):
            verdict: Any = ConnectionLostError("cut")
        else:
            self._target.points += points
            verdict = Stored(0)
        self._tell(parcel, verdict, 0)

    def _commit(self, position: int, told: Told) -> None:
        self._is_committing = False
        if self.is_dead:
            return
        error: PenstockError | None = None
        strikes = self._chance.strikes()
        if strikes and self._chance.random.random() < 0.5:
            self._target.abort()
            error = TransactionError("aborted")
        else:
            self._target.commit(position)
            error = TransactionError("whether it was committed cannot be found out") if strikes else None
        self._is_committing = True
        self._answers.append(lambda: self._was_committed(error, told))

    def _was_committed(self, error: PenstockError | None, told: Told) -> None:
        self._is_committing = False
        told(error)


def routed(partitions: int) -> Callable[[BufferColumns], Int32s] | None:
    def route(columns: BufferColumns) -> Int32s:
        assert columns.positions is not None
        return (columns.positions * 7 // 3 % partitions).astype(np.int32)

    return route if partitions > 1 else None


class Line:
    """One partition of the source, and whoever copies it at present."""

    def __init__(self, number: int, way: Way, chance: Chance) -> None:
        self.number = number
        self.way = way
        self.chance = chance
        self.batches: list[bytes] = []
        messages: list[int] = []
        at = 0
        for _ in range(chance.random.randrange(12)):
            count = chance.random.randint(1, 8)
            self.batches.append(values(at, count))
            messages += range(at, at + count)
            at += count + chance.random.choice([0, 0, 0, 3])
        self.end = at
        self.target = Target(way, messages)
        repacks: list[Repack] = ["never", "auto", "always"]
        self.repack = chance.random.choice(repacks)
        self.late: list[Part] = []

    def begin(self, desk: Desk, terms: Terms) -> None:
        self.source = HandSource(self.batches, self.end)
        self.passage = ModelPassage(self.target, self.chance)
        bytes_max = self.chance.random.choice([100, 150, 1 << 20])
        packing = Packing(0, None, self.repack, bytes_max, routed(self.way.partitions))
        self.strand: Strand = desk.strand(self.source, self.passage, terms, packing, self.number)
        self.late = []
        self.strand.begin()

    def events(self) -> list[Event]:
        reads = [partial(self._arrive, part) for part in self.late]
        is_to_be_read = not self.late and not self.source.is_held
        return [*reads, *([self._read] if is_to_be_read else []), *self.passage.events()]

    def _read(self) -> None:
        part = self.source.read(self.chance.random.randint(1, 3))
        if part is None and self.source.position < self.end and not self.source.is_held:
            part = self._arrival()
        if part is not None:
            self.late.append(part)

    def _arrival(self) -> Part:
        """Nothing more lies before the end."""
        first, self.source.position = self.source.position, self.end
        entry = memoryview(values(first, 1)[:0])
        part = Part(self._load(), self.strand.partition, [entry][:0], first, self.end, self.end, era=self.source.era)
        self.source.out.append(part)
        return part

    def _load(self) -> Any:
        return None

    def _arrive(self, part: Part) -> None:
        self.late.remove(part)
        self.source.hand_over(part, self.strand)


class World:
    """Several lines that share what strands share."""

    def __init__(self, seed: int, way: Way, lines: int, faults: int) -> None:
        self.chance = Chance(seed, faults)
        self.lines = [Line(number, way, self.chance) for number in range(lines)]
        self.begin()

    def begin(self) -> None:
        """Start the pipeline."""
        chance = self.chance.random
        self.desk = Desk(
            permits=(chance.choice([300, 1 << 20]), chance.choice([1, 3, 100])),
            rates=(chance.choice([None, 20.0]), chance.choice([None, 2000.0])),
        )
        setattr(backlog, "AHEAD_BYTES", chance.choice([100, 2 << 20]))  # noqa: B010  # final for all others
        terms = Terms(chance.choice([0.05, 1.0]), chance.choice([200, 1 << 20]), 1e6)
        for line in self.lines:
            line.begin(self.desk, terms)

    def events(self) -> list[Event]:
        """What may happen now; time passes only where somebody waits for it."""
        events = [event for line in self.lines for event in line.events()]
        if self.desk.looked:
            events += [self._turn] * 5
        elif self.desk.due:
            events.append(self._wait)
        return events

    def _turn(self) -> None:
        self.desk.turn()

    def _wait(self) -> None:
        self.desk.now = max(self.desk.now, self.desk.next_moment())
        self.desk.turn()

    def step(self) -> bool:
        events = self.events()
        if events:
            self.chance.random.choice(events)()
        return bool(events)

    def is_over(self) -> bool:
        return all(line.strand.is_over for line in self.lines)

    def run(self, steps: int = STEPS_MAX) -> None:
        """Until all have ended, and whatever was on its way has arrived."""
        for _ in range(steps):
            if not self.step() or (self.is_over() and not self.events()):
                break
        assert self.is_over(), f"stuck: {self.desk.strands}, {self.desk.permits}"
        for line in self.lines:
            for part in list(line.late):
                line._arrive(part)
            assert line.strand.error is None, line.strand.error
            assert line.source.out == []
        while self.step():
            pass
        assert (self.desk.permits.entries, self.desk.permits.bytes) == (0, 0)

    def interrupt(self) -> None:
        """Kill the pipeline, or stop it; and start it again. Only transactions have a rule for what a dead one sent."""
        if self.lines[0].way.halts and self.chance.random.random() < 0.5:
            for line in self.lines:
                line.passage.close()
        else:
            for line in self.lines:
                if not line.strand.is_over:
                    line.strand.stop()
            self.run()
        self.begin()


WAYS = {
    "transactions": Way(halts=True, fences=True, partitions=1, points=True),
    "transactions, later ones stored": Way(halts=True, fences=False, partitions=1, points=True),
    "transactions, routed": Way(halts=True, fences=True, partitions=3, points=False),
    "plain": Way(halts=False, fences=True, partitions=1, points=True),
}


def play(seed: int, way: Way, lines: int, faults: int, interruptions: int) -> World:
    world = World(seed, way, lines, faults)
    for _ in range(interruptions):
        for _ in range(world.chance.random.randrange(120)):
            world.step()
        world.interrupt()
    world.run()
    for line in world.lines:
        line.target.check_complete()
        line.target.check_points()
    return world


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@settings(max_examples=150)
@given(
    seed=st.integers(0, 1 << 32), lines=st.integers(1, 3), faults=st.integers(0, 25), interruptions=st.integers(0, 3)
)
def test_the_target_comes_to_hold_what_the_source_holds(
    way: Way, seed: int, lines: int, faults: int, interruptions: int
) -> None:
    play(seed, way, lines, faults, interruptions)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_model_is_a_hard_one(way: Way) -> None:
    """What is played holds failures, rewinds, many commits and repeated messages: else it would prove nothing."""
    rewinds = commits = states = repeated = 0
    for seed in range(20):
        world = play(seed, way, 2, 20, 1)
        rewinds += sum(line.strand.counts.rewinds for line in world.lines)
        commits += sum(line.target.commits for line in world.lines)
        repeated += sum(len(line.target.counted()) - len(line.target.messages) for line in world.lines)
        states += sum(line.strand.state is State.ENDED for line in world.lines)
    assert rewinds > 40
    assert commits > 60
    assert (repeated == 0) is way.halts
    assert states == 40
