from __future__ import annotations

import re

import pytest

from penstock.config import BatchIo, ClientOptions
from penstock.errors import RefusedError, TimedOutError
from penstock.net import pipeline as module
from penstock.net.failures import InvariantError
from penstock.net.pipeline import (
    TRANSITIONS,
    Closed,
    Interest,
    PipelineLimits,
    Sent,
    State,
)
from penstock.wire.protocol import Answered, Publish, Ready

from .memory import PING, PONG, Faults, Say, frame, frames
from .wired import HELLO, SLOW, Wired, lost


def test_a_connection_is_opened_greeted_and_ready() -> None:
    wired = Wired(Faults(silent_until=10.0))
    pipeline = wired.pipeline
    assert (pipeline.state, pipeline.next_deadline()) == (State.CONNECTING, 10.0)
    assert pipeline.tick(1.0) == []
    assert pipeline.interest() == Interest(wired.stream.fileno(), read=False, write=True)
    wired.stream.faults.silent_until = None
    assert pipeline.on_writable(2.0) == []
    assert (pipeline.state, pipeline.next_deadline()) == (State.GREETING, 32.0)
    assert pipeline.interest() == Interest(wired.stream.fileno(), read=True, write=False)
    assert not pipeline.has_room(2.0)
    assert pipeline.on_readable(3.0) == [Ready({})]
    assert pipeline.has_room(3.0)
    assert pipeline.next_deadline() is None


def test_the_table_of_states_is_the_one_in_the_text() -> None:
    rows = re.findall(r"^\| ([A-Z, ]+) \| ([A-Z]+) \|", module.__doc__ or "", re.MULTILINE)
    written = {(State[left], State[to]) for lefts, to in rows for left in lefts.split(", ")}
    assert written == {(left, to) for left, tos in TRANSITIONS.items() for to in tos}


def test_a_connection_that_cannot_be_opened_says_why() -> None:
    wired = Wired(Faults(refuse=True))
    [closed] = wired.pipeline.tick(0.0)
    assert isinstance(closed, Closed)
    assert "refused" in str(closed.reason)
    assert wired.stream.closed
    assert wired.pipeline.interest() == Interest(-1, read=False, write=False)


def test_a_connection_attempt_that_is_swallowed_is_given_up() -> None:
    wired = Wired(Faults(silent_until=10.0))
    assert wired.pipeline.tick(9.9) == []
    [closed] = wired.pipeline.tick(10.0)
    assert isinstance(closed, Closed)
    assert isinstance(closed.reason, TimedOutError)


def test_a_broker_that_does_not_greet_is_given_up() -> None:
    wired = Wired(limits=PipelineLimits(request_timeout=5.0))
    wired.pipeline.tick(0.0)
    wired.stream.inbox.clear()
    assert wired.pipeline.next_deadline() == 5.0
    [closed] = wired.pipeline.tick(5.0)
    assert isinstance(closed, Closed)
    assert isinstance(closed.reason, TimedOutError)


def test_many_requests_are_in_flight_and_answered_with_their_tokens() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.say(b"a", b"b", b"c")
    assert pipeline.in_flight == 3
    assert wired.read() == [Answered("a", b"a"), Answered("b", b"b"), Answered("c", b"c")]
    assert pipeline.in_flight == 0


def test_no_more_than_the_window_are_in_flight() -> None:
    wired = Wired(limits=PipelineLimits(in_flight_max=2))
    pipeline = wired.ready()
    wired.say(b"a", b"b")
    assert not pipeline.has_room(0.0)
    with pytest.raises(InvariantError, match=r"2 of 2 in flight.* was given Say without room"):
        wired.say(b"c")
    wired.read()
    assert pipeline.has_room(0.0)


def test_what_the_wire_refuses_is_raised_and_leaves_no_trace() -> None:
    wired = Wired()
    pipeline = wired.ready()
    with pytest.raises(RefusedError):
        wired.say(b"unspeakable")
    assert (pipeline.in_flight, wired.stream.sends) == (0, [len(HELLO)])


def test_each_frame_without_delay_is_a_write_of_its_own() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.say(b"a", b"b")
    assert len(wired.stream.sends) == 3
    assert pipeline.writes == 3


def test_frames_that_wait_leave_in_one_write() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.say(b"a", b"b", b"c", policy=SLOW)
    assert (len(wired.stream.sends), pipeline.bytes_waiting, wired.memory.used) == (1, 27, 27)
    assert pipeline.next_deadline() == pytest.approx(0.1)
    pipeline.tick(0.1)
    assert wired.stream.sends[1:] == [27]
    assert wired.memory.used == 0
    assert [event.token for event in wired.read() if isinstance(event, Answered)] == ["a", "b", "c"]


def test_flush_opens_the_gate() -> None:
    wired = Wired()
    wired.ready()
    wired.say(b"a", policy=SLOW)
    assert wired.pipeline.flush(0.0) == []
    assert wired.read() == [Answered("a", b"a")]


def test_time_in_the_gate_does_not_count_as_time_without_an_answer() -> None:
    wired = Wired(limits=PipelineLimits(request_timeout=1.0))
    pipeline = wired.ready()
    wired.broker.held = []
    wired.say(b"a", policy=BatchIo(delay_ms=5000))
    assert pipeline.next_deadline() == 5.0
    assert pipeline.tick(5.0) == []
    assert pipeline.next_deadline() == 6.0
    assert lost(pipeline.tick(6.0)) == {"a": TimedOutError}


@pytest.mark.parametrize("take_max", [1, 2, 3, 7])
def test_a_transport_that_takes_little_gets_the_same_bytes(take_max: int) -> None:
    wired = Wired(Faults(take_max=take_max))
    pipeline = wired.pipeline
    pipeline.tick(0.0)
    while pipeline.interest().write:
        pipeline.on_writable(0.0)
    pipeline.on_readable(0.0)
    wired.say(b"first", b"second")
    assert pipeline.interest().write
    while pipeline.interest().write:
        assert pipeline.on_writable(0.0) == []
    assert wired.read() == [Answered("first", b"first"), Answered("second", b"second")]
    assert set(wired.stream.sends) <= set(range(1, take_max + 1))


def test_more_buffers_than_one_call_takes_leave_in_several() -> None:
    wired = Wired(limits=PipelineLimits(in_flight_max=2000))
    pipeline = wired.ready()
    for number in range(2000):
        pipeline.submit(Say(b"x"), number, 0.0, SLOW)
    pipeline.flush(0.0)
    assert len(wired.stream.sends) == 1 + 4  # two buffers each, 1024 in a call
    assert [event.token for event in wired.read() if isinstance(event, Answered)] == list(range(2000))


def test_reading_is_fair_to_other_connections() -> None:
    wired = Wired(limits=PipelineLimits(turn_bytes_max=100), room=50)
    pipeline = wired.ready()
    wired.say(*[b"x" * 40] * 5)
    unread = len(wired.stream.inbox)
    pipeline.on_readable(0.0)
    assert unread - len(wired.stream.inbox) == 100
    assert len(wired.read()) == 5 - 1


def test_a_short_read_is_not_followed_by_another() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.say(b"a")
    reads = 0
    receive_into = wired.stream.receive_into

    def counted(room: memoryview) -> int | None:
        nonlocal reads
        reads += 1
        return receive_into(room)

    wired.stream.receive_into = counted  # type: ignore[method-assign]
    pipeline.on_readable(0.0)
    assert reads == 1


def test_an_answer_that_asks_for_quiet_gets_it() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.broker.throttle_ms = 500
    wired.say(b"a", b"b", now=1.0)
    assert wired.read(now=1.0) == [Answered("a", b"a", 500), Answered("b", b"b", 500)]
    assert not pipeline.has_room(1.4)
    assert pipeline.next_deadline() == 1.5
    assert pipeline.tick(1.5) == []
    assert pipeline.has_room(1.5)
    assert pipeline.next_deadline() is None


def test_without_acks_being_written_is_the_outcome() -> None:
    wired = Wired(Faults())
    pipeline = wired.ready()
    wired.stream.faults.take_max = 20
    pipeline.submit(Publish([], acks="none"), "quiet", 0.0)
    events = pipeline.tick(0.0)
    while pipeline.interest().write:
        events += pipeline.on_writable(0.0)
    assert events == [Sent("quiet")]
    assert pipeline.in_flight == 0


def test_an_outcome_of_submitting_makes_the_next_turn_due_at_once() -> None:
    wired = Wired()
    pipeline = wired.ready()
    pipeline.submit(Publish([], acks="none"), "quiet", 5.0)
    assert pipeline.next_deadline() == -float("inf")
    assert pipeline.tick(5.0) == [Sent("quiet")]


def test_what_the_protocol_replies_goes_before_frames_that_are_not_begun() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.stream.faults.take_max = 3
    wired.say(b"begun")
    wired.stream.faults.stuck = True
    wired.say(b"waits")
    wired.stream.inbox += frame(PING, 1) + frame(PING, 2)
    assert pipeline.on_readable(0.0) == []
    wired.stream.faults = Faults()
    sent = len(wired.stream.sent)
    pipeline.on_writable(0.0)
    tail = bytearray(wired.stream.sent[sent - 3 :])
    assert [(kind, number) for kind, number, _ in frames(tail)] == [(2, 1), (PONG, 1), (PONG, 2), (2, 2)]


def test_limits_come_from_the_options() -> None:
    options = ClientOptions(in_flight_max=7, request_timeout_ms=1500)
    assert PipelineLimits.of(options) == PipelineLimits(7, 1.5)


def test_it_tells_its_state() -> None:
    wired = Wired()
    wired.ready()
    wired.broker.held = []
    wired.say(b"a")
    told = "<Pipeline to toy:7, ready, 1 of 5 in flight, 0 frames to write, <Gate with 0 frames, 0 bytes, 1 openings>>"
    assert repr(wired.pipeline) == told


def test_a_state_that_cannot_follow_is_refused() -> None:
    wired = Wired()
    with pytest.raises(InvariantError, match="cannot become ready"):
        wired.pipeline._become(State.READY)
