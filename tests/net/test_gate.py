from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.config import BatchIo
from penstock.metrics import Distribution, Registry, Snapshot
from penstock.net import meters
from penstock.net.failures import InvariantError
from penstock.net.gate import AT_ONCE, Frame, Gate, IoMemory
from penstock.net.meters import Meter, Meters, Share

SLOW = BatchIo(delay_ms=100, bytes_max=1000)


def make(token: object, size: int, *shares: Share) -> Frame:
    frame = Frame(token)
    frame.fill([bytes(size)], shares)
    return frame


def tokens(frames: list[Frame]) -> list[object]:
    return [frame.token for frame in frames]


def test_a_frame_without_delay_leaves_at_once() -> None:
    gate = Gate(IoMemory(1000))
    assert tokens(gate.add(make("a", 10), AT_ONCE, now=5.0)) == ["a"]
    assert (len(gate), gate.bytes_waiting, gate.next_deadline()) == (0, 0, None)


def test_a_frame_without_delay_takes_those_before_it_along_in_order() -> None:
    gate = Gate(IoMemory(1000))
    assert gate.add(make("a", 10), SLOW, now=5.0) == []
    assert gate.add(make("b", 10), SLOW, now=5.0) == []
    assert tokens(gate.add(make("c", 10), AT_ONCE, now=5.0)) == ["a", "b", "c"]


def test_frames_leave_together_when_the_delay_of_one_is_over() -> None:
    gate = Gate(IoMemory(1000))
    gate.add(make("a", 10), BatchIo(delay_ms=100), now=5.0)
    gate.add(make("b", 10), BatchIo(delay_ms=20), now=5.05)
    assert gate.next_deadline() == pytest.approx(5.07)
    assert gate.due(5.06) == []
    left = gate.due(5.07)
    assert tokens(left) == ["a", "b"]
    assert [frame.left_gate for frame in left] == [5.07, 5.07]
    assert gate.due(99.0) == []


def test_frames_leave_when_the_bytes_that_one_of_them_allows_are_there() -> None:
    gate = Gate(IoMemory(10_000))
    gate.add(make("a", 100), BatchIo(delay_ms=100, bytes_max=300), now=0.0)
    assert gate.add(make("b", 199), SLOW, now=0.0) == []
    assert tokens(gate.add(make("c", 1), SLOW, now=0.0)) == ["a", "b", "c"]
    assert gate.add(make("d", 300), SLOW, now=0.0) == []


def test_a_frame_for_which_the_budget_has_no_room_leaves_at_once_with_those_before_it() -> None:
    memory = IoMemory(100)
    gate, other = Gate(memory), Gate(memory)
    other.add(make("x", 60), SLOW, now=0.0)
    gate.add(make("a", 40), SLOW, now=0.0)
    assert memory.used == 100
    assert tokens(gate.add(make("b", 1), SLOW, now=0.0)) == ["a", "b"]
    assert memory.used == 60
    assert len(other) == 1


def test_without_a_budget_nothing_waits() -> None:
    gate = Gate(IoMemory(0))
    assert tokens(gate.add(make("a", 1), SLOW, now=0.0)) == ["a"]


def test_flush_and_drop_empty_the_gate() -> None:
    memory = IoMemory(100)
    gate = Gate(memory)
    assert gate.flush(0.0) == []
    assert gate.drop() == []
    gate.add(make("a", 10), SLOW, now=0.0)
    assert tokens(gate.flush(0.0)) == ["a"]
    gate.add(make("b", 10), SLOW, now=0.0)
    dropped = gate.drop()
    assert tokens(dropped) == ["b"]
    assert dropped[0].left_gate is None
    assert (memory.used, gate.bytes_waiting, gate.openings) == (0, 0, 1)


def test_budget_that_is_released_twice_tells_its_story() -> None:
    memory = IoMemory(100)
    assert memory.reserve(10)
    memory.release(10, 1)
    with pytest.raises(InvariantError, match="-10 bytes for -1 frames after 10 bytes of 1 frames"):
        memory.release(10, 1)


def test_bytes_that_wait_without_a_frame_tell_their_story() -> None:
    memory = IoMemory(100)
    gate = Gate(memory)
    frame = make("a", 10)
    gate.add(frame, SLOW, now=0.0)
    memory.reserve(20)
    frame.size = 30
    with pytest.raises(InvariantError, match="holds no frame, yet -20 bytes wait"):
        gate.flush(0.0)


def test_a_topic_that_has_bytes_waiting_without_a_frame_tells_its_story() -> None:
    meter = Meters(Registry(), "here").of("orders", "shop")
    meter.wait(10)
    with pytest.raises(InvariantError, match=re.escape("1 bytes of 0 frames wait for here/shop/orders")):
        meter.let_go(9)


def value(snapshot: Snapshot, name: str, topic: str) -> object:
    return snapshot.value(name, cluster="here", namespace="", topic=topic)


def test_each_topic_counts_its_own_bytes_writes_and_frames() -> None:
    registry = Registry()
    known = Meters(registry, "here")
    a, b = known.of("a"), known.of("b")
    assert known.of("a") is a
    gate = Gate(IoMemory(10_000))
    gate.add(make(1, 110, Share(a, 100)), SLOW, now=0.0)
    gate.add(make(2, 300, Share(a, 200), Share(b, 60)), SLOW, now=0.0)
    waiting = registry.snapshot()
    assert value(waiting, "penstock_io_waiting_bytes", "a") == 110 + 240
    assert value(waiting, "penstock_io_waiting_bytes", "b") == 60
    gate.flush(0.0)
    gate.add(make(3, 5000, Share(b, 4990)), AT_ONCE, now=0.0)
    done = registry.snapshot()
    assert [value(done, "penstock_io_waiting_bytes", topic) for topic in "ab"] == [0, 0]
    assert [value(done, "penstock_io_writes_total", topic) for topic in "ab"] == [1, 2]
    assert [value(done, "penstock_io_frames_total", topic) for topic in "ab"] == [2, 2]
    written = value(done, "penstock_io_write_bytes", "b")
    assert isinstance(written, Distribution)
    assert (written.count, written.sum) == (2, 5060)


def test_a_dropped_frame_was_never_written() -> None:
    registry = Registry()
    gate = Gate(IoMemory(10_000))
    gate.add(make(1, 110, Share(Meters(registry, "here").of("a"), 100)), SLOW, now=0.0)
    gate.drop()
    assert value(registry.snapshot(), "penstock_io_waiting_bytes", "a") == 0
    assert value(registry.snapshot(), "penstock_io_frames_total", "a") == 0


def test_a_topic_that_nobody_uses_can_be_forgotten_unless_something_waits() -> None:
    registry = Registry()
    known = Meters(registry, "here")
    meter, other = known.of("a"), known.of("b")
    meter.wait(10)
    known.forget("a")
    assert known.of("a") is meter
    meter.let_go(10)
    known.forget("a")
    known.forget("never used")
    assert known.of("b") is other
    assert value(registry.snapshot(), "penstock_io_waiting_bytes", "a") is None
    assert value(registry.snapshot(), "penstock_io_waiting_bytes", "b") == 0
    assert repr(known) == "<Meters of here, 1 topics>"


def test_the_documented_metrics_are_those_that_exist() -> None:
    registry = Registry()
    Meter(registry, "here", "", "orders")
    documented = set(re.findall(r"^\| `(\w+)` \| (\w+)", meters.__doc__ or "", re.MULTILINE))
    shapes = [family.shape for family in registry.snapshot().families]
    assert documented == {(shape.name, shape.kind.value) for shape in shapes}
    assert all(shape.label_names == ("cluster", "namespace", "topic") for shape in shapes)


def test_a_frame_lets_go_of_its_views_as_they_are_taken_and_copies_nothing() -> None:
    payload = bytearray(b"payload")
    frame = Frame("a")
    frame.fill([b"head", b"", payload])
    assert (frame.size, frame.take(2), frame.left) == (11, 0, 9)
    assert frame.take(3) == 0
    assert b"".join(frame.views) == b"ayload"
    payload[1:2] = b"A"
    assert b"".join(frame.views) == b"Ayload"
    with pytest.raises(BufferError):
        payload.extend(b"more")
    assert (frame.take(10), frame.left) == (4, 0)
    payload.extend(b"more")


def test_long_lived_objects_tell_their_state() -> None:
    memory = IoMemory(100)
    gate = Gate(memory)
    frame = make("a", 10)
    gate.add(frame, SLOW, now=0.0)
    assert repr(memory) == "<IoMemory 10 of 100 bytes, 1 frames>"
    assert repr(gate) == "<Gate with 1 frames, 10 bytes, 0 openings>"
    assert repr(frame) == "<Frame of 'a', waiting, 10 bytes left>"
    assert repr(Meters(Registry(), "here").of("t")) == "<Meter of here//t, 0 frames of 0 bytes wait>"


class GateAccounting(RuleBasedStateMachine):
    """Two gates that share a budget, against a model that is a list of frames for each."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.meters = [Meters(self.registry, "here").of(topic) for topic in "ab"]
        self.memory = IoMemory(500)
        self.gates = [Gate(self.memory), Gate(self.memory)]
        self.model: list[list[tuple[int, int, int, float, int]]] = [[], []]  # number, topic, size, due, bytes_max
        self.now = 0.0
        self.number = 0

    def waiting(self, gate: int | None = None, topic: int | None = None) -> int:
        rows = [row for at, rows in enumerate(self.model) if gate in (None, at) for row in rows]
        return sum(size for _, of, size, _, _ in rows if topic in (None, of))

    def leave(self, gate: int, left: list[Frame], expected: list[int]) -> None:
        assert tokens(left) == expected
        if expected:
            self.model[gate].clear()

    @rule(
        gate=st.integers(0, 1),
        topic=st.integers(0, 1),
        size=st.integers(1, 200),
        delay=st.sampled_from([0, 10, 50]),
        bytes_max=st.sampled_from([100, 300]),
    )
    def add(self, gate: int, topic: int, size: int, delay: int, bytes_max: int) -> None:
        self.number += 1
        row = (self.number, topic, size, self.now + delay / 1000, bytes_max)
        before, fits = [number for number, *_ in self.model[gate]], self.waiting() + size <= self.memory.limit
        limit = min(most for *_, most in [*self.model[gate], row])
        opens = not delay or not fits or self.waiting(gate) + size >= limit
        frame = make(self.number, size, Share(self.meters[topic], size))
        left = self.gates[gate].add(frame, BatchIo(delay, bytes_max), self.now)
        self.leave(gate, left, [*before, self.number] if opens else [])
        if not opens:
            self.model[gate].append(row)

    @rule(gate=st.integers(0, 1), seconds=st.sampled_from([0.0, 0.005, 0.05]))
    def pass_time(self, gate: int, seconds: float) -> None:
        self.now += seconds
        is_due = any(due <= self.now for *_, due, _ in self.model[gate])
        expected = [number for number, *_ in self.model[gate]] if is_due else []
        self.leave(gate, self.gates[gate].due(self.now), expected)

    @rule(gate=st.integers(0, 1), lost=st.booleans())
    def empty(self, gate: int, lost: bool) -> None:
        expected = [number for number, *_ in self.model[gate]]
        self.leave(gate, self.gates[gate].drop() if lost else self.gates[gate].flush(self.now), expected)

    @invariant()
    def accounting_is_exact(self) -> None:
        assert self.memory.used == self.waiting()
        assert [gate.bytes_waiting for gate in self.gates] == [self.waiting(0), self.waiting(1)]
        assert [len(gate) for gate in self.gates] == [len(rows) for rows in self.model]
        snapshot = self.registry.snapshot()
        for at, topic in enumerate("ab"):
            assert value(snapshot, "penstock_io_waiting_bytes", topic) == self.waiting(topic=at)
        for gate, rows in zip(self.gates, self.model, strict=True):
            assert gate.next_deadline() == min((due for *_, due, _ in rows), default=None)


TestGateAccounting = GateAccounting.TestCase
