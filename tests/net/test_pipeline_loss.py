from __future__ import annotations

import gc
import pickle
import re

import pytest

from penstock.config import BatchIo
from penstock.errors import ConnectionLostError, DecodeError, NotSentError, Persisted, TimedOutError
from penstock.net.pipeline import (
    REPLIES_MAX,
    Closed,
    Lost,
    PipelineLimits,
    State,
)
from penstock.wire.protocol import Answered

from .memory import ANSWER, PING, WELCOME, Say, ToyConnection, frame
from .wired import SLOW, Wired, lost


def test_a_lost_connection_tells_what_may_have_been_done_and_what_was_not() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.broker.held = []
    wired.say(b"written")
    wired.stream.faults.take_max = 9
    wired.say(b"half")
    wired.stream.faults.stuck = True
    wired.say(b"queued")
    wired.say(b"gated", policy=SLOW)
    wired.stream.ended = True
    events = pipeline.on_readable(0.0)
    assert lost(events) == {
        "written": ConnectionLostError,
        "half": NotSentError,
        "queued": NotSentError,
        "gated": NotSentError,
    }
    persisted = [event.error.persisted for event in events if isinstance(event, Lost)]
    assert persisted == [Persisted.MAYBE, Persisted.NO, Persisted.NO, Persisted.NO]
    assert isinstance(events[-1], Closed)
    assert (wired.memory.used, pipeline.in_flight, pipeline.next_deadline()) == (0, 0, None)


def test_all_that_are_lost_together_have_the_same_cause() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.broker.held = []
    wired.say(b"a", b"b")
    wired.say(b"c", b"d", policy=SLOW)
    reason = ConnectionLostError("because of a test")
    errors = [event.error for event in pipeline.close(reason) if isinstance(event, Lost)]
    assert errors[0] is errors[1] is reason
    assert errors[2] is errors[3]
    assert errors[2].__cause__ is reason
    assert pipeline.close(reason) == []


def test_a_request_without_an_answer_ends_the_connection() -> None:
    wired = Wired(limits=PipelineLimits(request_timeout=5.0))
    pipeline = wired.ready()
    wired.broker.held = []
    wired.say(b"a", now=1.0)
    wired.say(b"b", now=4.0)
    wired.say(b"c", now=4.0, policy=BatchIo(delay_ms=60_000))
    assert pipeline.next_deadline() == 6.0
    assert pipeline.tick(5.9) == []
    events = pipeline.tick(6.0)
    assert lost(events) == {"a": TimedOutError, "b": TimedOutError, "c": NotSentError}
    assert wired.stream.closed


def test_an_answer_starts_the_clock_of_the_next_one() -> None:
    wired = Wired(limits=PipelineLimits(request_timeout=5.0))
    pipeline = wired.ready()
    wired.say(b"a", now=1.0)
    wired.broker.held = []
    wired.say(b"b", now=4.0)
    assert wired.read() == [Answered("a", b"a")]
    assert pipeline.next_deadline() == 9.0


def test_a_reset_while_submitting_is_told_by_the_next_turn() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.stream.faults.cut_after_sent = len(wired.stream.sent)
    wired.say(b"a")
    assert not pipeline.has_room(0.0)
    assert pipeline.next_deadline() == -float("inf")
    assert lost(pipeline.tick(0.0)) == {"a": NotSentError}


def test_bytes_that_make_no_sense_close_the_connection_with_a_reason() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.broker.held = []
    wired.say(b"a")
    wired.stream.inbox += b"\x00\x01\xff\xff\xff\xff\xff\xff"
    events = pipeline.on_readable(0.0)
    assert lost(events) == {"a": ConnectionLostError}
    [error] = [event.error for event in events if isinstance(event, Lost)]
    assert isinstance(error.__cause__, DecodeError)
    assert "toy frame" in str(error)


@pytest.mark.parametrize("trailing", [WELCOME, ANSWER])
def test_a_broker_that_repeats_itself_is_left(trailing: int) -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.say(b"a")
    again = frame(WELCOME, 0) if trailing == WELCOME else frame(ANSWER, 1, pickle.dumps((b"a", 0)))
    wired.stream.inbox += again
    events = pipeline.on_readable(0.0)
    assert events[0] == Answered("a", b"a")
    assert isinstance(events[1], Closed)
    assert re.search("greeted twice|answered what was not asked", str(events[1].reason))


def test_a_broker_that_asks_and_does_not_read_is_left() -> None:
    wired = Wired()
    pipeline = wired.ready()
    wired.stream.faults.stuck = True
    wired.stream.inbox += frame(PING, 1) * (REPLIES_MAX + 2)
    [closed] = wired.read()
    assert isinstance(closed, Closed)
    assert "does not read" in str(closed.reason)
    assert pipeline.state is State.CLOSED


def test_a_payload_is_held_until_the_transport_has_taken_it_and_no_longer() -> None:
    class Bare(ToyConnection):
        def send(self, request: object, token: object) -> list[bytearray]:
            self.token = token  # as a wire does that waits for the answer
            return [payload]

    payload = bytearray(b"payload")
    wired = Wired()
    wired.ready()
    wired.pipeline._wire = Bare()
    wired.stream._hear = None
    wired.stream.faults.take_max = 3
    wired.pipeline.submit(Say(), "a", 0.0)
    with pytest.raises(BufferError):
        payload.append(0)
    wired.pipeline.on_writable(0.0)
    with pytest.raises(BufferError):
        payload.append(0)
    wired.pipeline.on_writable(0.0)
    payload.append(0)
    wired.stream.faults.stuck = True
    wired.pipeline.submit(Say(), "b", 0.0)
    wired.pipeline.close(ConnectionLostError("test"))
    payload.append(0)


def test_a_closed_connection_leaves_nothing_behind() -> None:
    wired = Wired()
    wired.ready()
    wired.broker.held = []
    wired.say(b"a")
    wired.say(b"b", policy=SLOW)
    wired.pipeline.close(ConnectionLostError("test"))
    gc.collect()
    pipeline = wired.pipeline
    assert (pipeline.in_flight, pipeline.bytes_waiting, list(pipeline._outbox)) == (0, 0, [])
    assert (pipeline.on_readable(9.0), pipeline.on_writable(9.0), pipeline.tick(9.0), pipeline.flush(9.0)) == (
        [],
        [],
        [],
        [],
    )
