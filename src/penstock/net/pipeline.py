"""One connection to one broker: many requests in flight, answers as they come, and one outcome for each request.

A connection's life is this table; whatever happens that has no place in it ends the connection:

| state | is left for | when |
|---|---|---|
| CONNECTING | GREETING | the stream is connected; the wire's greeting is on its way |
| CONNECTING | CLOSED | it cannot be connected, or not in time |
| GREETING | READY | the wire says so |
| GREETING, READY | CLOSED | the stream ended, nothing came in time, bytes made no sense, somebody closed it |

A request becomes a frame. It waits in the gate, leaves for the out-queue, is written piece by piece, and is answered.
Its one outcome is `Answered`, `Sent` (no answer was asked for) or `Lost`. The error of a lost one tells what is known:
a broker acts on whole frames only, so a frame of which the transport did not take the last byte was certainly not
executed (`NotSentError`); one that was wholly taken may have been (`ConnectionLostError`, `TimedOutError`).

The views of a frame are let go as soon as the transport has taken their bytes, and not before: an outcome means that
the connection holds nothing of the request any more.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.config import BatchIo, ClientOptions
from penstock.errors import ConnectionLostError, NotSentError, PenstockError, TimedOutError
from penstock.net.backoff import earliest
from penstock.net.failures import InvariantError, because
from penstock.net.gate import AT_ONCE, Frame, Gate, IoMemory
from penstock.net.meters import Share
from penstock.net.stream import IOV_MAX, Stream
from penstock.wire.entry import Buffer
from penstock.wire.protocol import Answered, Event, Publish, Ready, Reply, Request, WireConnection

TURN_BYTES_MAX: Final = 1 << 20
"""How much one connection reads before the others have their turn."""
REPLIES_MAX: Final = 64
"""How much the protocol itself may have to say to a broker that does not read."""
PROTOCOL: Final = "the protocol itself"
"""The token of frames that nobody asked for: the greeting, and what the wire replies by itself."""


class State(enum.Enum):
    """Where a connection is in its life."""

    CONNECTING = "connecting"
    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.CONNECTING: frozenset({State.GREETING, State.CLOSED}),
    State.GREETING: frozenset({State.READY, State.CLOSED}),
    State.READY: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Sent:
    """The request with this token was written; its sender wanted no answer, and none will come."""

    token: Any


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer will come to the request with this token; `error.persisted` tells whether it may have been done."""

    token: Any
    error: PenstockError


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over, and why; all its tokens had their outcome before."""

    reason: PenstockError


PipelineEvent: TypeAlias = Ready | Answered | Sent | Lost | Closed


class Interest(NamedTuple):
    """What a poller should watch for."""

    descriptor: int
    read: bool
    write: bool


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """What a connection may take: requests unanswered, seconds for an answer, bytes read in one turn."""

    in_flight_max: int = 5
    request_timeout: float = 30.0
    turn_bytes_max: int = TURN_BYTES_MAX

    @classmethod
    def of(cls, options: ClientOptions) -> PipelineLimits:
        """The limits that a client's options say."""
        return cls(options.in_flight_max, options.request_timeout_ms / 1000)


class Pipeline:
    """A connection: stream, wire, gate, in-flight window and out-queue. Runs on: the I/O thread.

    `room` is where bytes are received that the wire has no place for; all connections of a thread share one, since
    nothing outlives a call there.
    """

    def __init__(
        self,
        name: str,
        stream: Stream,
        wire: WireConnection,
        memory: IoMemory,
        room: memoryview,
        limits: PipelineLimits,
    ) -> None:
        self.name = name
        self.state = State.CONNECTING
        self.ready: Ready | None = None
        """What the greeting said, once it is over."""
        self.writes = 0
        """How often the transport was given bytes and took some."""
        self._stream = stream
        self._wire = wire
        self._gate = Gate(memory)
        self._room = room
        self._limits = limits
        self._flights: dict[Frame, None] = {}  # in the order in which they were submitted
        self._outbox: deque[Frame] = deque()
        self._greeting_over = math.inf
        self._throttled_until = -math.inf
        self._events: list[PipelineEvent] = []

    @property
    def in_flight(self) -> int:
        """Requests without an outcome, those that wait in the gate included."""
        return len(self._flights)

    @property
    def bytes_waiting(self) -> int:
        """Bytes that wait in the gate."""
        return self._gate.bytes_waiting

    def has_room(self, now: float) -> bool:
        """Whether a request may be submitted: ready, not throttled, and few enough unanswered."""
        return (
            self.state is State.READY
            and len(self._flights) < self._limits.in_flight_max
            and now >= self._throttled_until
        )

    def submit(
        self,
        request: Request[Any],
        token: object,
        now: float,
        policy: BatchIo = AT_ONCE,
        shares: Sequence[Share] = (),
    ) -> None:
        """Send a request when its policy lets it leave; asked only while there is room.

        When it takes the last of the room nothing more can join it in the gate, which opens: it would only keep out
        requests that may not wait.

        What the wire refuses is raised, and leaves no trace. An outcome that comes of writing at once is told by the
        next call that returns events.
        """
        if not self.has_room(now):
            raise InvariantError(f"{self!r} was given {type(request).__name__} without room for it")
        frame = Frame(token, answered=not (isinstance(request, Publish) and request.acks == "none"))
        frame.fill(self._wire.send(request, frame), shares)
        self._flights[frame] = None
        self._leave(self._gate.add(frame, policy, now))
        if len(self._flights) >= self._limits.in_flight_max:
            self._leave(self._gate.flush(now))

    def on_readable(self, now: float) -> list[PipelineEvent]:
        """Read what came, up to a turn's share, and tell what it means."""
        budget = self._limits.turn_bytes_max
        while budget > 0 and self.state in (State.GREETING, State.READY):
            room = self._wire.room()
            if room is None:
                room = self._room
            try:
                count = self._stream.receive_into(room)
            except PenstockError as error:
                self._end(error)
                break
            if count is None:
                break
            if count == 0:
                self._end(ConnectionLostError(f"{self.name}: the broker closed the connection"))
                break
            self._receive(room[:count], now)
            budget -= count
            if count < len(room):
                break
        return self._take_events()

    def on_writable(self, now: float) -> list[PipelineEvent]:
        """Go on connecting, or write what is left."""
        if self.state is State.CONNECTING:
            self._connect(now)
        self._write()
        return self._take_events()

    def tick(self, now: float) -> list[PipelineEvent]:
        """What time brings: connecting, the gate's delays, answers that did not come, the end of a throttling."""
        if self.state is State.CONNECTING:
            self._connect(now)
        if self.state is State.READY:
            self._leave(self._gate.due(now))
        overdue = self._overdue()
        if self.state is not State.CLOSED and overdue is not None and now >= overdue:
            self._end(TimedOutError(f"{self.name}: no answer within {self._limits.request_timeout} s"))
        if now >= self._throttled_until:
            self._throttled_until = -math.inf
        return self._take_events()

    def flush(self, now: float) -> list[PipelineEvent]:
        """Let all frames out of the gate."""
        self._leave(self._gate.flush(now))
        return self._take_events()

    def close(self, reason: PenstockError) -> list[PipelineEvent]:
        """End the connection; each token that has no outcome gets one."""
        self._end(reason)
        return self._take_events()

    def interest(self) -> Interest:
        """What to watch for now."""
        connecting = self.state is State.CONNECTING
        if self.state is State.CLOSED:
            return Interest(-1, read=False, write=False)
        return Interest(self._stream.fileno(), not connecting, connecting or bool(self._outbox))

    def next_deadline(self) -> float | None:
        """When `tick` is due; long ago when events are waiting to be taken."""
        if self._events:
            return -math.inf
        deadlines = [self._overdue(), self._gate.next_deadline()]
        if self.state is State.CONNECTING:
            deadlines.append(self._stream.deadline())
        if self._throttled_until > -math.inf:
            deadlines.append(self._throttled_until)
        return earliest(deadlines)

    def _overdue(self) -> float | None:
        if self.state is State.GREETING:
            return self._greeting_over
        oldest = next(iter(self._flights), None)
        if oldest is None or oldest.left_gate is None:
            return None
        return oldest.left_gate + self._limits.request_timeout

    def _become(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(f"{self!r} cannot become {state.value}")
        self.state = state

    def _connect(self, now: float) -> None:
        try:
            if not self._stream.is_connected(now):
                return
        except PenstockError as error:
            self._end(error)
            return
        self._become(State.GREETING)
        self._greeting_over = now + self._limits.request_timeout
        self._speak(self._wire.greet(), now)

    def _speak(self, buffers: Sequence[Buffer], now: float) -> None:
        """Write what the protocol itself says, before all frames that are not begun."""
        ahead = sum(frame.token is PROTOCOL or frame.left < frame.size for frame in self._outbox)
        if ahead > REPLIES_MAX:
            self._end(ConnectionLostError(f"{self.name}: the broker asks and does not read what it is answered"))
            return
        frame = Frame(PROTOCOL, left_gate=now)
        frame.fill(buffers)
        queued = bool(self._outbox)
        self._outbox.insert(ahead, frame)
        if not queued:
            self._write()

    def _leave(self, frames: Sequence[Frame]) -> None:
        if not frames:
            return
        queued = bool(self._outbox)
        self._outbox.extend(frames)
        if not queued:  # else the transport is full and will say when it has room
            self._write()

    def _write(self) -> None:
        while self._outbox and self.state is not State.CONNECTING:
            views = list(itertools.islice((view for frame in self._outbox for view in frame.views), IOV_MAX))
            try:
                taken = self._stream.send(views)
            except PenstockError as error:
                self._end(error)
                return
            full = taken < sum(map(len, views))
            del views
            self.writes += taken > 0
            self._written(taken)
            if full:
                return

    def _written(self, taken: int) -> None:
        while self._outbox:
            frame = self._outbox[0]
            taken = frame.take(taken)
            if frame.left:
                return
            self._outbox.popleft()
            if not frame.answered:
                del self._flights[frame]
                self._events.append(Sent(frame.token))

    def _receive(self, data: memoryview, now: float) -> None:
        try:
            events = self._wire.receive(data)
        except PenstockError as error:
            self._end(error)
            return
        for event in events:
            self._handle(event, now)
            if self.state is State.CLOSED:
                return

    def _handle(self, event: Event, now: float) -> None:
        if isinstance(event, Ready):
            if self.state is State.READY:
                self._end(ConnectionLostError(f"{self.name}: the broker greeted twice"))
                return
            self._become(State.READY)
            self.ready = event
            self._events.append(event)
        elif isinstance(event, Reply):
            self._speak(event.buffers, now)
        else:
            self._answer(event, now)

    def _answer(self, event: Answered, now: float) -> None:
        frame = event.token
        if frame not in self._flights or frame.left or frame.left_gate is None or not frame.answered:
            self._end(ConnectionLostError(f"{self.name}: the broker answered what was not asked: {frame!r}"))
            return
        del self._flights[frame]
        if event.throttle_ms > 0:
            self._throttled_until = max(self._throttled_until, now + event.throttle_ms / 1000)
        self._events.append(Answered(frame.token, event.answer, event.throttle_ms))

    def _end(self, reason: PenstockError) -> None:
        if self.state is State.CLOSED:
            return
        self._become(State.CLOSED)
        self._stream.close()
        self._gate.drop()
        not_sent = because(NotSentError(f"{self.name}: never wholly sent: {reason}"), reason)
        lost = reason
        if not isinstance(reason, ConnectionLostError | TimedOutError) or isinstance(reason, NotSentError):
            lost = because(ConnectionLostError(f"{self.name}: no answer, the connection was closed: {reason}"), reason)
        for frame in self._flights:
            unsent = frame.left or frame.left_gate is None
            self._events.append(Lost(frame.token, not_sent if unsent else lost))
        for frame in (*self._flights, *self._outbox):
            frame.let_go()
        self._flights.clear()
        self._outbox.clear()
        self._throttled_until = -math.inf
        self._events.append(Closed(reason))

    def _take_events(self) -> list[PipelineEvent]:
        events, self._events = self._events, []
        return events

    def __repr__(self) -> str:
        return (
            f"<Pipeline to {self.name}, {self.state.value}, {len(self._flights)} of {self._limits.in_flight_max} in "
            f"flight, {len(self._outbox)} frames to write, {self._gate!r}>"
        )
