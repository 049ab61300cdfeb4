"""One connection: what arrives on it, and answers that leave in the order of their requests.

A request gets a slot when it arrives. Handlers answer slots whenever they can; a connection writes an answer when all
before it are written. So requests that a client sends one after the other are worked on at once, and none overtakes.

What arrives goes to the session, the door's side of a connection, which says how much of it it has used:

    used all                    nothing is kept
    used some, needs n bytes    the rest is kept in a buffer, and the next bytes are received straight into it
    used some, needs 0          it stopped because the connection has no room: the rest is kept until it has

A connection has no room while too many requests are unanswered, too many bytes unsent (those of answers that wait for
one before them included), an answer is made in steps, or its share of the turn is used up; it is not read from then,
and TCP holds the client back. What is done for it and raises ends it, and no other.

Must never know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.broker.server.outbox import Out, Outbox, release, size_of
from penstock.errors import PenstockError, StorageError

if TYPE_CHECKING:
    from penstock.broker.server.limits import ServerLimits
    from penstock.broker.server.memory import RequestMemory
    from penstock.broker.server.timers import Timer, Timers
    from penstock.broker.server.transport import Transport

_log = logging.getLogger("penstock.broker")

READ = 0x001  # as in select.EPOLLIN and EPOLLOUT
WRITE = 0x004


class Hub(Protocol):
    """What a connection asks of its loop."""

    shared: memoryview
    """What bytes are received into; its content is gone with the next connection's turn."""
    memory: RequestMemory
    limits: ServerLimits
    timers: Timers
    now: float
    now_ms: int

    def soon(self, call: Callable[[], None]) -> None:
        """Call this when the turn's requests are handled, before its answers are sent."""

    def changed(self, connection: Connection) -> None:
        """Something is to be sent, or read again: settle it at the end of the turn."""

    def again(self, connection: Connection) -> None:
        """Let it resume in the next turn."""

    def watch(self, connection: Connection, mask: int) -> None:
        """Watch its transport for this from now on."""

    def make_room(self, connection: Connection, needed: int) -> None:
        """Close whoever holds memory and stands still, until this much is free."""

    def closed(self, connection: Connection, reason: str, fault: bool) -> None:
        """It is closed."""


class Session(Protocol):
    """A door's side of one connection."""

    def receive(self, data: memoryview) -> tuple[int, int]:
        """Take what can be taken; how many bytes were used, and how many are needed from there on.

        Nothing may keep a view of the data. A PenstockError closes the connection, and tells why.
        """

    def closed(self) -> None:
        """The connection is gone."""


class Slot:
    """The place of one answer in a connection's order. Runs on: the loop thread.

    `answer` exactly once, at once or in a later turn; after the connection has closed it does nothing, but releases the
    slices it is given. `abandoned`, if a handler sets it, is called once if the connection closes before the answer.
    """

    __slots__ = ("_connection", "abandoned", "buffers")

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self.buffers: Sequence[Out] | None = None
        self.abandoned: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether an answer is still wanted."""
        return self._connection is not None

    def answer(self, buffers: Sequence[Out]) -> None:
        """What to send, one after the other; nothing at all for a request that is not answered."""
        connection = self._connection
        if connection is None:
            release(buffers)
            return
        self._connection = None
        self.abandoned = None
        self.buffers = buffers
        connection.answered(self, buffers)

    def abandon(self) -> None:
        """The connection is gone."""
        self._connection = None
        if self.buffers is not None:
            release(self.buffers)
        call, self.abandoned = self.abandoned, None
        if call is not None:
            call()


class Connection:
    """One client's connection. Runs on: the loop thread."""

    __slots__ = (
        *("_behind", "_buffer", "_filled", "_held", "_hub", "_needed", "_out", "_pauses", "_share", "_slots"),
        *(
            "_stopped",
            "active_at",
            "finishing",
            "host",
            "is_closed",
            "is_dirty",
            "mask",
            "peer",
            "session",
            "transport",
        ),
    )

    session: Session

    def __init__(self, transport: Transport, peer: tuple[str, int], hub: Hub) -> None:
        self.transport = transport
        self.peer = peer
        self.host = peer[0]
        self.active_at = hub.now
        self.mask = READ
        self.is_closed = False
        self.is_dirty = False
        self.finishing = False
        self._hub = hub
        self._slots: deque[Slot] = deque()
        self._share = 0
        self._out = Outbox(transport)
        self._behind = 0  # bytes of answers that wait for one before them
        self._pauses = 0
        self._buffer: bytearray | None = None  # what is kept of an unfinished request
        self._held: memoryview | None = None
        self._filled = 0
        self._needed = 0
        self._stopped = False

    def __repr__(self) -> str:
        state = (
            "closed" if self.is_closed else "finishing" if self.finishing else "stopped" if self._stopped else "open"
        )
        host, port = self.peer
        unsent = self._out.size + self._behind
        return f"<Connection from {host}:{port}, {state}, {len(self._slots)} unanswered, {unsent} bytes unsent>"

    # For sessions

    @property
    def has_room(self) -> bool:
        """Whether one more request may be taken now."""
        return self._share > 0 and not self.finishing and not self._is_full()

    def slot(self) -> Slot:
        """The place of the next answer."""
        self._share -= 1
        slot = Slot(self)
        self._slots.append(slot)
        return slot

    def finish(self) -> None:
        """Take no more requests; close when everything is answered and sent."""
        self.finishing = True
        self._hub.changed(self)

    def pause(self) -> None:
        """Take no more requests until `go_on`: an answer is made in steps, and grows uncounted."""
        self._pauses += 1
        self._hub.changed(self)

    def go_on(self) -> None:
        """Take requests again; once for each `pause`."""
        self._pauses -= 1
        self._hub.changed(self)

    def soon(self, call: Callable[[], None]) -> None:
        """Do this for the connection when the turn's requests are handled, before its answers are sent."""
        self._hub.soon(lambda: self.guard(call))

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Do this for the connection at that time, in monotonic seconds."""
        return self._hub.timers.at(when, lambda: self.guard(call))

    def guard(self, call: Callable[[], None]) -> None:
        """Do this for the connection, which ends if that raises."""
        try:
            call()
        except PenstockError as error:
            self.close(str(error), fault=True)
        except Exception as error:  # noqa: BLE001  # nobody else is to suffer for it
            _log.error("%r cannot be served", self, exc_info=error)
            self.close(f"serving it failed: {error!r}", fault=True)

    @property
    def is_waiting(self) -> bool:
        """Whether requests are unanswered."""
        return bool(self._slots)

    @property
    def has_unsent(self) -> bool:
        """Whether answers are not sent yet."""
        return bool(self._out)

    @property
    def held_bytes(self) -> int:
        """The memory that an unfinished request of it takes."""
        return 0 if self._buffer is None else len(self._buffer)

    # Reading

    def readable(self) -> None:
        """Something has arrived, or the client has closed."""
        if self._stopped or self.finishing:
            return
        self._share = self._hub.limits.requests_per_turn
        held, shared = self._held, self._hub.shared
        try:
            if held is None:
                count = self.transport.receive(shared)
            elif len(held) == self._needed:
                count = self.transport.receive_two(held[self._filled :], shared)
            else:
                count = self.transport.receive(held[self._filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receiving failed: {error}")
            return
        if not count:
            self.close("the client closed it")
            return
        self.active_at = self._hub.now
        self._hub.changed(self)
        if held is None:
            self._take(shared[:count])
        else:
            self._fill(held, count)

    def _fill(self, held: memoryview, count: int) -> None:
        """So many bytes more have arrived for an unfinished request, and perhaps behind it."""
        filled = self._filled + count
        if filled < len(held):
            self._filled = filled
            return
        self._filled = len(held)
        if len(held) < self._needed:
            self._hold(held, self._needed)
            return
        behind = filled - len(held)
        self._take_held()
        if not behind or self.is_closed:
            return
        more = self._hub.shared[:behind]
        if self._held is None:
            self._take(more)
            return
        rest = memoryview(bytes(self._held[: self._filled]) + more)  # it stopped, or knows only now how much it needs
        if self._stopped:
            self._hold(rest, len(rest))
        else:
            self._let_go()
            self._take(rest)

    def resume(self) -> None:
        """There is room again: go on with what was kept."""
        if not self._stopped or self.is_closed:
            return
        self._share = self._hub.limits.requests_per_turn
        if not self.has_room:
            return
        self._stopped = False
        self._hub.changed(self)
        self._take_held()

    def _take_held(self) -> None:
        buffer, held = self._buffer, self._held
        assert buffer is not None
        assert held is not None
        self._buffer = self._held = None
        self._take(held)
        self._hub.memory.give(buffer)

    def _take(self, data: memoryview) -> None:
        """Let the session use what it can, and keep the rest."""
        try:
            used, needed = self.session.receive(data)
        except PenstockError as error:
            self.close(str(error), fault=True)
            return
        if self.is_closed or used == len(data):
            return
        rest = data[used:]
        self._stopped = not needed
        self._hold(rest, max(needed, len(rest)))

    def _hold(self, part: memoryview, needed: int) -> None:
        """Keep a part of what is needed in a buffer that the next bytes are received into."""
        memory, arrived = self._hub.memory, len(part)
        buffer = memory.take(arrived, needed)
        if buffer is None:
            self._hub.make_room(self, memory.share(arrived, needed))
            buffer = memory.take(arrived, needed)
        if buffer is None:
            self.close(f"there is no memory for a request of {needed} bytes", fault=True)
            return
        buffer[:arrived] = part
        self._let_go()
        self._buffer = buffer
        self._held = memoryview(buffer)[:needed]
        self._filled = arrived
        self._needed = needed

    def _let_go(self) -> None:
        if self._buffer is not None:
            self._hub.memory.give(self._buffer)
            self._buffer = self._held = None

    def _is_full(self) -> bool:
        limits = self._hub.limits
        return (
            len(self._slots) >= limits.in_flight_max
            or self._out.size + self._behind >= limits.out_bytes_max
            or self._pauses > 0
        )

    # Writing

    def answered(self, slot: Slot, buffers: Sequence[Out]) -> None:
        """A slot was answered: queue what can leave now."""
        slots = self._slots
        if slots[0] is slot:
            slots.popleft()
            self._out.add(buffers)
            while slots and (waiting := slots[0].buffers) is not None:
                slots.popleft()
                self._behind -= size_of(waiting)
                self._out.add(waiting)
        else:
            self._behind += size_of(buffers)
        if not self.is_dirty:
            self._hub.changed(self)

    def settle(self) -> None:
        """At the end of a turn: send what can be sent, go on reading if there is room, watch what is waited for."""
        if self._out and not self.is_closed:
            try:
                if self._out.flush(self._hub.limits.send_bytes):
                    self.active_at = self._hub.now
            except OSError as error:
                self.close(f"sending failed: {error}")
            except StorageError as error:
                self.close(str(error), fault=True)
        if self.is_closed:
            return
        if self.finishing and not self._out and not self._slots:
            self.close("all is answered")
            return
        full = self._is_full()
        if self._stopped and not full and not self.finishing:
            self._hub.again(self)
        mask = (0 if full or self._stopped or self.finishing else READ) | (WRITE if self._out else 0)
        if mask != self.mask:
            self.mask = mask
            self._hub.watch(self, mask)

    # The end

    def close(self, reason: str, fault: bool = False) -> None:
        """Close now; what is unanswered is abandoned, what is unsent is dropped."""
        if self.is_closed:
            return
        if fault:  # what was answered before it is sent if it can be
            with contextlib.suppress(OSError, StorageError):
                self._out.flush(self._hub.limits.send_bytes)
        self.is_closed = True
        self._hub.closed(self, reason, fault)
        self.transport.close()
        slots, self._slots = self._slots, deque()
        self._out.clear()
        self._behind = 0
        self._let_go()
        for slot in slots:
            self.guard(slot.abandon)
        self.guard(self.session.closed)
