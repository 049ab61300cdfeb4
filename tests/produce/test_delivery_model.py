"""A lane against a model of the broker and a bad network: what becomes of each message, batches being divided or not.

The model keeps to what a real Kafka does, in its order: it may refuse anything at any time, looks at sizes and contents
before it looks at numbers, remembers the last five batches of a producer, and takes any number from a producer that it
has never heard of.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from penstock.errors import (
    BatchTooLargeError,
    BusyError,
    ConnectionLostError,
    PenstockError,
    Persisted,
    RefusedError,
    SequenceError,
    UnsureError,
)
from penstock.message import MessageId
from penstock.produce.batch import Batch, State
from penstock.produce.delivery import Division, LaneDelivery, Settled
from penstock.produce.receipts import Moved, blame, outcome_of
from penstock.produce.regroup import halves, regroup, without
from penstock.wire.columns import to_arrow
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.protocol import Identity, Spoilt, Stored, Verdict

REMEMBERED = 5
BATCHES = 30


def values_of(batch: Batch) -> list[bytes]:
    values: list[bytes] = to_arrow(batch.buffer.columns()).value.to_pylist()
    return values


@dataclass
class Remembered:
    """What a broker knows of one producer: its epoch, the next number, and where the last batches went."""

    epoch: int
    next_sequence: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


@dataclass
class ModelBroker:
    """One partition."""

    log: list[bytes] = field(default_factory=list)
    seen: dict[Batch, list[bytes]] = field(default_factory=dict)
    producers: dict[int, Remembered] = field(default_factory=dict)
    count_max: int = 3

    def take(self, batch: Batch, refusal: PenstockError | None = None) -> Verdict:
        """Store a batch, or say why not; an unsure answer stores it all the same."""
        if refusal is not None and not isinstance(refusal, UnsureError):
            return refusal
        values = self.seen.get(batch) or self.seen.setdefault(batch, values_of(batch))
        if len(values) > self.count_max or any(b"huge" in value for value in values):
            return BatchTooLargeError("too large")
        spoilt = {index: "bad" for index, value in enumerate(values) if b"bad" in value}
        if spoilt:
            return Spoilt(RefusedError("invalid record", "INVALID_RECORD"), spoilt)
        verdict = self._store(batch, values)
        return refusal if refusal is not None and isinstance(verdict, Stored) else verdict

    def _store(self, batch: Batch, values: list[bytes]) -> Verdict:
        if batch.identity is not None:
            producer, epoch = batch.identity.producer, batch.identity.epoch
            known = self.producers.setdefault(producer, Remembered(epoch, batch.sequence))
            if epoch < known.epoch:
                return SequenceError("of a former epoch")
            if epoch > known.epoch:
                if batch.sequence:
                    return SequenceError("gap")
                known = self.producers[producer] = Remembered(epoch, 0)
            for sequence, count, first in known.batches:
                if (sequence, count) == (batch.sequence, len(values)):
                    return Stored(first)
            if batch.sequence != known.next_sequence:
                return SequenceError("gap")
            known.next_sequence += len(values)
            known.batches.append((batch.sequence, len(values), len(self.log)))
        first = len(self.log)
        self.log += values
        return Stored(first)


class Run:
    """One seeded run of a lane."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        pause = self.chance.choice([0.0, 0.5])
        self.delivery = LaneDelivery(5, lambda attempts: pause, self.divide)
        self.identity = Identity(1, 0)
        self.broker = ModelBroker()
        self.messages: list[tuple[bytes, Batch, int]] = []
        self.batches: list[Batch] = []
        self.flying: list[Batch] = []
        self.settled: list[Batch] = []

    def divide(self, batch: Batch, verdict: PenstockError | Spoilt) -> Division | None:
        """As the sender does it."""
        if isinstance(verdict, Spoilt) and len(verdict.messages) < batch.count:
            arrivals = without(batch.count, {index: blame(verdict, index) for index in verdict.messages})
        elif isinstance(verdict, BatchTooLargeError) and batch.count > 1:
            arrivals = halves(batch.count)
        else:
            return None
        parts, moved = regroup(batch.buffer.columns(), arrivals, lambda place, size: self.part(batch, size))
        for part in parts:
            part.buffer.seal()
            part.move(State.SEALED)
        return Division(parts, moved)

    def part(self, batch: Batch, size: int) -> Batch:
        return Batch(BatchBuffer(size + 128), batch.created_at, batch.expires_at)

    def send(self) -> None:
        buffer = BatchBuffer()
        batch = Batch(buffer, self.now, self.now + self.chance.choice([3.0, 10.0, 1000.0]))
        for index in range(self.chance.choice([1, 1, 2, 3, 4, 8])):
            kind = self.chance.choices([b"good", b"bad", b"huge"], [30, 1, 1])[0]
            value = b"%s %d" % (kind, len(self.messages))
            buffer.append(value)
            self.messages.append((value, batch, index))
        buffer.seal()
        batch.move(State.SEALED)
        self.batches.append(batch)
        self.delivery.add(batch)

    def step(self) -> None:
        self.now += self.chance.random()
        self.note(self.delivery.expire(self.now))
        if self.chance.random() < 0.6 and len(self.batches) < BATCHES:
            self.send()
        if self.chance.random() < 0.02:
            self.broker.count_max = self.chance.choice([1, 2, 3, 8])
        if self.delivery.wants_identity and self.delivery.identity == self.identity:
            other = self.chance.random() < 0.5
            self.identity = Identity(self.identity.producer + other, 0 if other else self.identity.epoch + 1)
        if self.chance.random() < 0.8:
            while (batch := self.delivery.launch(self.identity, self.now)) is not None:
                self.flying.append(batch)
        self.answer()

    def answer(self) -> None:
        if not self.flying:
            return
        if self.chance.random() < 0.2:
            reached = self.chance.randint(0, len(self.flying))
            for place, batch in enumerate(self.flying):
                if place < reached:
                    self.broker.take(batch)
                self.land(batch, ConnectionLostError("cut"))
            self.flying.clear()
            return
        refusals = [None] * 8 + [BusyError("later"), RefusedError("never"), UnsureError("too few")]
        for _ in range(self.chance.randint(1, len(self.flying))):
            batch = self.flying.pop(0)
            self.land(batch, self.broker.take(batch, self.chance.choice(refusals)))

    def land(self, batch: Batch, verdict: Verdict) -> None:
        self.note(self.delivery.land(batch, verdict, self.now))

    def note(self, settled: list[Settled]) -> None:
        for batch, outcome in settled:
            assert batch not in self.settled, f"{batch!r} was settled twice"
            assert batch.verdict is outcome
            self.settled.append(batch)
            if isinstance(outcome, Moved):
                assert all(part.count < batch.count for part in outcome.parts), "a part must be smaller"  # type: ignore[attr-defined]

    def finish(self) -> None:
        for _ in range(3000):
            if len(self.batches) == BATCHES and self.delivery.is_idle and not self.flying:
                return
            self.step()
        raise AssertionError(f"stuck: {self.delivery!r}")

    def check(self) -> None:
        log = self.broker.log
        assert len(set(log)) == len(log), "a message was stored twice"
        order = {value: number for number, (value, _, _) in enumerate(self.messages)}
        assert log == sorted(log, key=order.__getitem__), "messages were stored out of order"
        for value, batch, index in self.messages:
            outcome = outcome_of(batch, index, 0)
            if isinstance(outcome, MessageId):
                assert log[outcome.position] == value  # type: ignore[index]
            elif outcome.persisted is not Persisted.MAYBE:
                stored = outcome.persisted is Persisted.YES
                assert (value in log) is stored, f"{value!r}: {outcome!r}, stored: {not stored}"
            if b"bad" in value or b"huge" in value:
                assert value not in log


def check_runs(start: int, stop: int) -> None:
    for seed in range(start, stop):
        run = Run(seed)
        try:
            run.finish()
            run.check()
        except Exception as error:
            raise AssertionError(f"Run({seed}): {error}") from error


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_every_message_has_one_true_outcome_whatever_the_network_does(start: int) -> None:
    check_runs(start, start + 100)


@pytest.mark.stress
@pytest.mark.parametrize("start", range(1000, 7000, 1000))
def test_every_message_has_one_true_outcome_in_many_more_runs(start: int) -> None:
    check_runs(start, start + 1000)
