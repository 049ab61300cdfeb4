"""Whatever goes wrong, every request has exactly one outcome, and the outcome tells the truth."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.config import BatchIo
from penstock.errors import ConnectionLostError, Persisted
from penstock.net.gate import IoMemory
from penstock.net.pipeline import Closed, Lost, Pipeline, PipelineEvent, PipelineLimits, Sent, State
from penstock.wire.protocol import Answered, ClusterView, Endpoint, Publish, Ready, Request

from .memory import Faults, MemoryStream, Say, ToyBroker, ToyConnection

HERE = Endpoint("toy", 7)
LIMITS = PipelineLimits(in_flight_max=4, request_timeout=2.0, turn_bytes_max=64)
RUNS = 1500


class Run:
    """A pipeline, a broker that notes what it was asked, and the outcome of each token."""

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = IoMemory(100)
        self.broker = ToyBroker(HERE, ClusterView("toy", {}, {}))
        self.stream = MemoryStream(HERE, Faults(), self.broker.hear)
        room = memoryview(bytearray(16))
        self.pipeline = Pipeline("toy:7", self.stream, ToyConnection(), self.memory, room, LIMITS)
        self.outcomes: dict[int, PipelineEvent] = {}
        self.submitted: list[int] = []
        self.closed = False

    def note(self, events: list[PipelineEvent]) -> None:
        for event in events:
            assert not self.closed, f"{event} after the end"
            if isinstance(event, Closed):
                self.closed = True
            elif not isinstance(event, Ready):
                assert event.token not in self.outcomes, f"{event} after {self.outcomes[event.token]}"
                assert event.token in self.submitted
                self.outcomes[event.token] = event

    def submit(self, size: int, policy: BatchIo, *, quiet: bool) -> None:
        if self.pipeline.has_room(self.now):
            token = len(self.submitted)
            self.submitted.append(token)
            text = b"%d:" % token + bytes(size)
            request: Request[object] = Publish([], "none", token) if quiet else Say(text)
            self.pipeline.submit(request, token, self.now, policy)

    def turn(self, *, readable: bool, writable: bool) -> None:
        if writable and self.pipeline.interest().write:
            self.note(self.pipeline.on_writable(self.now))
        if readable and self.stream.is_readable():
            self.note(self.pipeline.on_readable(self.now))
        self.note(self.pipeline.tick(self.now))

    def executed(self) -> list[int]:
        """The tokens of what the broker was wholly told."""
        return [
            asked.timeout_ms if isinstance(asked, Publish) else int(asked.text.split(b":")[0])
            for asked in self.broker.asked
            if isinstance(asked, Publish | Say)
        ]

    def check(self) -> None:
        """What holds at any moment."""
        executed = Counter(self.executed())
        assert all(count == 1 for count in executed.values()), "executed twice"
        assert list(executed) == sorted(executed), "out of order"
        for token, event in self.outcomes.items():
            if isinstance(event, Answered):
                assert token in executed
                assert event.answer.startswith(b"%d:" % token)
            elif isinstance(event, Lost) and event.error.persisted is Persisted.NO:
                assert token not in executed, "said not to be sent, but executed"
            elif isinstance(event, Sent):
                assert token in executed
        if not self.pipeline.in_flight:
            assert self.pipeline.bytes_waiting == 0
        assert self.memory.used == self.pipeline.bytes_waiting
        pending = [token for token in self.submitted if token not in self.outcomes]
        assert len(pending) >= self.pipeline.in_flight

    def finish(self) -> None:
        self.note(self.pipeline.close(ConnectionLostError("the test is over")))
        self.check()
        assert self.closed
        assert set(self.outcomes) == set(self.submitted)
        assert self.memory.used == 0
        assert self.stream.closed


class PipelineOutcomes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.run = Run()

    def alive(self) -> bool:
        return self.run.pipeline.state is not State.CLOSED

    @precondition(alive)
    @rule(size=st.integers(0, 40), delay=st.sampled_from([0, 0, 100]), quiet=st.booleans())
    def submit(self, size: int, delay: int, quiet: bool) -> None:
        self.run.submit(size, BatchIo(delay, 60), quiet=quiet)

    @rule(readable=st.booleans(), writable=st.booleans())
    def turn(self, readable: bool, writable: bool) -> None:
        self.run.turn(readable=readable, writable=writable)

    @rule(seconds=st.sampled_from([0.05, 0.2, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.run.now += seconds

    @rule(
        take_max=st.sampled_from([1, 5, 1000]), give_max=st.sampled_from([1, 5, 1000]), stuck=st.sampled_from([0, 0, 1])
    )
    def slow_down(self, take_max: int, give_max: int, stuck: int) -> None:
        faults = self.run.stream.faults
        faults.take_max, faults.give_max, faults.stuck = take_max, give_max, bool(stuck)

    @rule(sent=st.booleans(), after=st.integers(0, 60))
    def cut(self, sent: bool, after: int) -> None:
        if sent:
            self.run.stream.faults.cut_after_sent = len(self.run.stream.sent) + after
        else:
            self.run.stream.faults.cut_after_given = self.run.stream.given + after

    @rule()
    def hold_answers(self) -> None:
        if self.run.broker.held is None:
            self.run.broker.held = []

    @rule(order=st.randoms(use_true_random=False), twice=st.booleans())
    def release_answers(self, order: random.Random, twice: bool) -> None:
        release(self.run.broker, order, twice=twice)

    @invariant()
    def all_is_well(self) -> None:
        self.run.check()

    def teardown(self) -> None:
        self.run.finish()


TestPipelineOutcomes = PipelineOutcomes.TestCase


def release(broker: ToyBroker, order: random.Random, *, twice: bool) -> None:
    """Answers that were held come in any order, one of them perhaps twice."""
    held = broker.held or []
    order.shuffle(held)
    broker.held = held + held[:1] if twice else held
    broker.release()


def one_run(seed: int) -> None:
    source = random.Random(seed)
    run = Run()
    if source.random() < 0.5:
        run.stream.faults.cut_after_sent = source.randrange(400)
    if source.random() < 0.5:
        run.stream.faults.cut_after_given = source.randrange(400)
    run.stream.faults.take_max = source.choice([1, 3, 50, 1000])
    run.stream.faults.give_max = source.choice([1, 3, 50, 1000])
    for _ in range(60):
        if run.pipeline.state is State.CLOSED:
            break
        match source.randrange(6):
            case 0 | 1 | 2:
                run.submit(source.randrange(30), BatchIo(source.choice([0, 50]), 60), quiet=source.random() < 0.2)
            case 3:
                run.now += source.random() * 0.2
            case 4:
                run.broker.held = run.broker.held or []
            case 5:
                release(run.broker, source, twice=source.random() < 0.02)
        for _ in range(source.randrange(20)):
            run.turn(readable=source.random() < 0.7, writable=source.random() < 0.7)
        run.check()
    run.finish()


@pytest.mark.parametrize("start", range(0, RUNS, 100))
def test_every_token_has_one_true_outcome_in_seeded_runs(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            one_run(seed)
        except AssertionError as error:
            raise AssertionError(f"one_run({seed}): {error}") from error


@pytest.mark.parametrize("direction", ["sent", "given"])
def test_a_connection_cut_after_any_byte_leaves_one_outcome_each(direction: str) -> None:
    for after in range(130):
        run = Run()
        setattr(run.stream.faults, f"cut_after_{direction}", after)
        for _ in range(50):
            run.submit(10, BatchIo(delay_ms=0), quiet=False)
            run.turn(readable=True, writable=True)
        run.check()
        assert run.closed, f"cut after {after} bytes {direction}"
        run.finish()
