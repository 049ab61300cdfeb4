"""Seeded runs of transactions on a cluster in trouble: what was committed is there, whole, once and in order, and
nothing else is.

A run that fails prints its seed; `Run(seed).go()` does it again.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.errors import (
    BusyError,
    FencedError,
    NotLeaderError,
    PenstockError,
    Persisted,
    RefusedError,
    TransactionError,
    UnforeseenError,
    UnknownTopicError,
)
from penstock.produce.kernel import Receipt
from penstock.produce.transactions.keeper import State
from penstock.produce.transactions.transaction import TransactionCore
from penstock.wire.protocol import EndTransaction, Publish, Request
from tests.produce.books_model import by_group
from tests.produce.transactional import Line, World

SEEDS, STRESS_SEEDS, BLOCKS = 300, 6000, 10
TRANSACTIONS = 8
TIMEOUT_MS = 40_000
PASSING = (BusyError, NotLeaderError, UnknownTopicError)


@dataclass
class Attempt:
    """One transaction, and what is known of its end."""

    values: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    marks: dict[tuple[str, str, int], int] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    persisted: Persisted = Persisted.NO


class Trouble:
    """Which kinds of trouble a run has, and how often; none of them where nothing is left to chance."""

    def __init__(self, chance: random.Random | None) -> None:
        def some(*rates: float) -> float:
            return chance.choice((0.0, 0.0, *rates)) if chance is not None else 0.0

        self.cuts = some(0.02, 0.1, 0.3)
        self.passing = some(0.05, 0.2)
        self.fatal = some(0.03)
        self.silence = some(0.02)
        self.moves = some(0.1)
        self.rivals = some(0.1, 0.3)
        self.delays = some(0.1)
        self.deaths = some(0.1)


class Run:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.trouble = Trouble(chance)
        self.world = World(chance.random() < 0.5, chance.randint(1, 3), seed)
        self.topics = [f"t{number}" for number in range(chance.randint(1, 3))]
        self.partitions = chance.randint(1, 3)
        self.policy = BatchPolicy(delay_ms=chance.choice((0, 5)), count_max=chance.choice((1, 3, 100)))
        self.attempts: list[Attempt] = []
        self.silenced: set[int] = set()
        self.cluster = self.world.cluster
        self.numbers = 0
        self.lines = self.make_lines(self.world)

    def make_lines(self, world: World) -> list[Line]:
        return [
            world.producer(topic, partitions=self.partitions, policy=self.policy, transaction_timeout_ms=TIMEOUT_MS)
            for topic in self.topics
        ]

    # Trouble

    def begin_trouble(self) -> None:
        for world in (self.world, *self.world.others):
            world.cluster.cuts = self.cut
            world.cluster.silent = self.silence
        self.world.model.refusals[:] = [self.refuse]

    def end_trouble(self) -> None:
        for world in (self.world, *self.world.others):
            world.cluster.cuts = lambda node, request: None
            world.cluster.silent = lambda node, request: False
            world.cluster.dead.clear()
        self.world.model.refusals.clear()

    def cut(self, node: int, request: Request[Any]) -> str | None:
        return self.chance.choice(("before", "after")) if self.chance.random() < self.trouble.cuts else None

    def silence(self, node: int, request: Request[Any]) -> bool:
        if self.chance.random() < self.trouble.silence:
            self.silenced.add(id(request))
        return id(request) in self.silenced

    def refuse(self, node: int, request: Request[Any]) -> PenstockError | None:
        if self.chance.random() < self.trouble.passing:
            return self.chance.choice(PASSING)("for now")
        if isinstance(request, Publish) and self.chance.random() < self.trouble.fatal:
            return self.chance.choice((RefusedError, UnforeseenError))("for good")
        return None

    def maybe_trouble(self) -> None:
        chance, world = self.chance, self.world
        if chance.random() < self.trouble.moves:
            world.model.homes[chance.choice(("x", "g"))] = chance.choice(list(world.model.nodes))
        if chance.random() < self.trouble.delays:
            world.pass_time(chance.choice((0.1, 1.0, TIMEOUT_MS / 1000)))
        if chance.random() < self.trouble.deaths:
            node = chance.choice(list(world.model.nodes))
            self.cluster.dead ^= {node}
            if node in self.cluster.dead:
                self.cluster.lose(self.cluster.pipelines[node], NotLeaderError("dead"))

    # The run

    def go(self) -> None:
        self.begin_trouble()
        for _ in range(TRANSACTIONS):
            if self.lines[0].keeper.state is State.DEAD:
                self.take_back()
            self.transact()
        self.end_trouble()
        self.world.pass_time(TIMEOUT_MS / 1000 + 1)
        self.trouble = Trouble(None)
        for _ in range(2):  # it may only now turn out that the id was taken
            if self.lines[0].keeper.state is State.DEAD:
                self.take_back()
            self.transact(messages_min=1)
        assert self.attempts[-1].persisted is Persisted.YES
        self.check()

    def take_back(self) -> None:
        self.lines = self.make_lines(self.world)

    def transact(self, messages_min: int = 0) -> None:
        """One transaction; one that must have messages is committed."""
        attempt = Attempt()
        self.attempts.append(attempt)
        transaction = TransactionCore(self.lines[0].outlet)
        if self.end(transaction.begin()) is not None:
            return
        sound = self.send(attempt, transaction, self.chance.randint(messages_min, 12))
        if messages_min or (sound and self.chance.random() < 0.8):
            error = self.end(transaction.commit())
            attempt.persisted = Persisted.YES if error is None else error.persisted
            if error is None:
                for receipt in attempt.receipts:
                    receipt.result(0)
        else:
            self.end(transaction.roll_back())
        assert all(receipt.done() for receipt in attempt.receipts)

    def send(self, attempt: Attempt, transaction: TransactionCore, count: int) -> bool:
        """Send some messages and positions; whether that was possible."""
        for _ in range(count):
            if self.chance.random() < 0.3:
                self.maybe_trouble()
            if self.chance.random() < 0.05 and self.trouble.rivals:
                self.rival()
            if self.chance.random() < 0.3:
                self.world.pass_time(0.004)
            self.numbers += 1
            value, place = b"%d" % self.numbers, self.chance.randrange(self.partitions)
            line = self.chance.choice(self.lines)
            try:
                attempt.receipts.append(line.send(value, partition=place))
            except (TransactionError, FencedError):
                return False
            attempt.values.setdefault((line.lanes.topic, place), []).append(value)
        if self.chance.random() < 0.5:
            transaction.send_offsets({("source", 0): self.numbers}, "g")
            attempt.marks["g", "source", 0] = self.numbers
        return True

    def rival(self) -> None:
        """Another instance takes the id, and commits something or leaves it open."""
        if self.chance.random() > self.trouble.rivals:
            return
        rival = self.world.other()
        self.begin_trouble()
        line = self.make_lines(rival)[0]
        transaction = TransactionCore(line.outlet)
        if self.end(transaction.begin()) is None:
            line.send(b"rival", partition=0)
            if self.chance.random() < 0.5:
                self.end(transaction.commit())

    def end(self, future: Future[None]) -> PenstockError | None:
        self.world.run(future.done, 10_000)
        error = future.exception(0)
        assert error is None or isinstance(error, PenstockError)
        return error

    # What must hold

    def check(self) -> None:
        model = self.world.model
        seen = {
            (topic, number): [value for value in model.visible(topic, number) if value != b"rival"]
            for topic in self.topics
            for number in range(self.partitions)
        }
        everything = {value for values in seen.values() for value in values}
        expected: dict[tuple[str, int], list[bytes]] = {place: [] for place in seen}
        positions: dict[tuple[str, str, int], int] = {}
        for attempt in self.attempts:
            own = {value for values in attempt.values.values() for value in values}
            included = attempt.persisted is Persisted.YES
            if attempt.persisted is Persisted.MAYBE:
                reached = by_group(model.positions).get(("g", "source", 0), 0)
                included = bool(own & everything) if own else reached >= max(attempt.marks.values(), default=0)
            if included:
                for place, values in attempt.values.items():
                    expected[place] += values
                positions.update(attempt.marks)
        assert seen == expected
        assert by_group(model.positions) == positions
        self.world.check_idle()


def go(seeds: range) -> None:
    for seed in seeds:
        try:
            Run(seed).go()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_was_committed_is_there_and_nothing_else_is(block: int) -> None:
    go(range(block, SEEDS, BLOCKS))


@pytest.mark.stress
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_for_many_more_runs(block: int) -> None:
    go(range(SEEDS + block, STRESS_SEEDS, BLOCKS))


def test_runs_meet_what_they_are_meant_to_meet() -> None:
    """Else they would prove little."""
    ends: dict[str, int] = {}
    asked: set[type[Request[Any]]] = set()
    for seed in range(60):
        run = Run(seed)
        run.go()
        asked |= {type(request) for _, request in run.world.model.asked}
        for attempt in run.attempts:
            ends[attempt.persisted.value] = ends.get(attempt.persisted.value, 0) + 1
    assert set(ends) == {"yes", "no", "maybe"}
    assert EndTransaction in asked
    assert len(asked) == 7
