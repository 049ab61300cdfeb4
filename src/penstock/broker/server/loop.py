"""The loop: who can be read or written, what is due, and one turn as one function.

    turn   wait for sockets, bells and deadlines ; accept, read and handle ; call what is due ; duties ; soon ; settle

Requests that arrive in one turn are handled before any answer is written, so that what they appended is one round of
the commit thread and what is answered to one client is one write. *Duties* are called once at the end of every turn:
they tell when they want to be called again at the latest. What is to be done *soon* is done once in this turn, however
often it was asked for while others worked. Nothing runs while nothing happens. What is done for a connection and raises
ends that connection; what else raises ends the loop.

Everybody has a share of a turn and no more (`ServerLimits`), so that a client that asks for much waits behind itself.
Runs on: one thread, which is then the only one to touch what is below; `call` and `stop` are for all others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.broker.server.connection import READ, WRITE, Connection, Session
from penstock.broker.server.limits import ServerLimits
from penstock.broker.server.memory import RequestMemory
from penstock.broker.server.timers import Timers
from penstock.broker.server.transport import TcpTransport, Transport
from penstock.clock import Clock, SystemClock

_log = logging.getLogger("penstock.broker")

EVENTS_MAX = 512
ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_S = 1.0
IDLE_CHECKS = 4
TELLS_PER_S = 10
GONE_BEFORE_ACCEPTED = frozenset(
    {
        *(errno.ECONNABORTED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
        *(errno.ENONET, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM, errno.EPROTO, errno.ETIMEDOUT),
    }
)
"""What befell a connection before it was taken: the system tells it when the next one is asked for."""
BROKEN = select.EPOLLERR | select.EPOLLHUP

assert (READ, WRITE) == (select.EPOLLIN, select.EPOLLOUT)


class Door(Protocol):
    """A protocol that is spoken on a port."""

    def session(self, connection: Connection) -> Session:
        """Its side of a new connection."""

    def secure(self, accepted: socket.socket) -> Transport:
        """What carries the bytes of a new connection."""


class PlainDoor:
    """What doors have in common that speak on plain TCP."""

    def secure(self, accepted: socket.socket) -> Transport:
        """Nothing in between."""
        return TcpTransport(accepted)


class Loop:
    """One thread's work; the `Hub` of its connections."""

    def __init__(self, limits: ServerLimits | None = None, clock: Clock | None = None) -> None:
        self.limits = limits or ServerLimits()
        self.clock = clock or SystemClock()
        self.now = self.clock.monotonic()
        self.now_ms = self.clock.wall_ms()
        self.timers = Timers()
        self.memory = RequestMemory(self.limits.request_memory_max)
        self.shared = memoryview(bytearray(self.limits.receive_bytes))
        self.connections: dict[int, Connection] = {}
        self.is_stopping = False
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._listeners: dict[int, tuple[socket.socket, Door]] = {}
        self._dirty: list[Connection] = []
        self._resuming: list[Connection] = []
        self._soon: list[Callable[[], None]] = []
        self._duties: list[Callable[[float, int], float | None]] = []
        self._due: float | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch_descriptor(self._bell, self._called)
        self._idle_check()
        self._told_at = 0.0
        self._told = 0

    def __repr__(self) -> str:
        return f"<Loop with {len(self.connections)} connections, {len(self.timers)} deadlines, {self.memory!r}>"

    # From any thread

    def call(self, function: Callable[[], None]) -> None:
        """Have this called on the loop's thread, soon."""
        self._calls.append(function)
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        """Let `run` return after its turn."""
        self.call(self._stop)

    # What to do

    def listen(self, door: Door, host: str, port: int) -> int:
        """Take connections for a door; the port, which is a free one when 0 is given."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=self.limits.backlog)
        listener.setblocking(False)
        self._listeners[listener.fileno()] = (listener, door)
        self.watch_descriptor(listener.fileno(), lambda: self._accept(listener, door))
        bound: int = listener.getsockname()[1]
        return bound

    def watch_descriptor(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call this whenever that descriptor can be read."""
        self._watched[descriptor] = call
        self._epoll.register(descriptor, READ)

    def unwatch_descriptor(self, descriptor: int) -> None:
        """Call it no more."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def add_duty(self, duty: Callable[[float, int], float | None]) -> None:
        """Call this at the end of every turn, with both times; it tells when to be called again at the latest."""
        self._duties.append(duty)

    def soon(self, call: Callable[[], None]) -> None:
        """Call this when the turn's requests are handled, before its answers are sent."""
        self._soon.append(call)

    # The turn

    def run(self) -> None:
        """Turn after turn, until somebody stops it."""
        while not self.is_stopping:
            self.turn()

    def turn(self, wait_s: float | None = None) -> None:
        """One turn, which waits for something to do, but no longer than this."""
        events = self._epoll.poll(self._wait(wait_s), EVENTS_MAX)
        self.now = self.clock.monotonic()
        self.now_ms = self.clock.wall_ms()
        resuming, self._resuming = self._resuming, []
        for connection in resuming:
            connection.guard(connection.resume)
        connections, watched = self.connections, self._watched
        for descriptor, mask in events:
            connection = connections.get(descriptor)  # type: ignore[assignment]
            if connection is None:
                call = watched.get(descriptor)
                if call is not None:
                    call()
            elif mask & READ:
                connection.guard(connection.readable)
            elif mask & BROKEN:
                connection.close("the connection broke")
            else:
                self.changed(connection)
        self.timers.run(self.now)
        self._finish_turn()

    def _finish_turn(self) -> None:
        """Duties, what is to be done soon, then answers."""
        deadlines = [duty(self.now, self.now_ms) for duty in self._duties]
        self._due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.is_dirty = False
            connection.guard(connection.settle)

    def _wait(self, wait_s: float | None) -> float:
        """How long to sleep, in seconds; below 0 for as long as it takes."""
        if self._resuming or self._calls or self._soon or self._dirty:
            return 0.0
        deadline = self.timers.next_deadline()
        if self._due is not None and (deadline is None or self._due < deadline):
            deadline = self._due
        if deadline is None:
            return -1.0 if wait_s is None else wait_s
        left = max(deadline - self.clock.monotonic(), 0.0)
        return left if wait_s is None else min(left, wait_s)

    def _called(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def _stop(self) -> None:
        self.is_stopping = True

    # Connections

    def _accept(self, listener: socket.socket, door: Door) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in GONE_BEFORE_ACCEPTED:
                    self.tell(f"a connection was lost before it was taken: {error}")
                    continue
                self._pause_accepting(listener, door, error)
                return
            self._welcome(accepted, (address[0], address[1]), door)

    def _welcome(self, accepted: socket.socket, peer: tuple[str, int], door: Door) -> None:
        if len(self.connections) >= self.limits.connections_max:
            accepted.close()
            self.tell(f"a connection from {peer[0]} was closed: there are {len(self.connections)} already")
            return
        try:
            transport = door.secure(accepted)
            self._epoll.register(transport.fileno(), READ)
        except OSError as error:  # it is gone already, or no more can be watched
            accepted.close()
            self.tell(f"a connection from {peer[0]} was closed: {error}")
            return
        connection = Connection(transport, peer, self)
        connection.session = door.session(connection)
        self.connections[transport.fileno()] = connection

    def _pause_accepting(self, listener: socket.socket, door: Door, error: OSError) -> None:
        """No descriptor is left, or something else is wrong: wait, instead of trying again and again."""
        self.tell(f"no connection can be taken for {ACCEPT_PAUSE_S} s: {error}")
        descriptor = listener.fileno()
        self.unwatch_descriptor(descriptor)

        def go_on() -> None:
            if descriptor in self._listeners:
                self.watch_descriptor(descriptor, lambda: self._accept(listener, door))

        self.timers.at(self.now + ACCEPT_PAUSE_S, go_on)

    def changed(self, connection: Connection) -> None:
        """Settle it at the end of the turn."""
        if not connection.is_dirty:
            connection.is_dirty = True
            self._dirty.append(connection)

    def again(self, connection: Connection) -> None:
        """Let it resume in the next turn."""
        self._resuming.append(connection)

    def watch(self, connection: Connection, mask: int) -> None:
        """Watch its transport for this from now on."""
        self._epoll.modify(connection.transport.fileno(), mask)

    def make_room(self, connection: Connection, needed: int) -> None:
        """Close those whose unfinished requests stand still longest; nobody of whom something came in this turn."""
        others = self.connections.values()
        holders = [
            other for other in others if other.held_bytes and other.active_at < self.now and other is not connection
        ]
        for other in sorted(holders, key=lambda other: other.active_at):
            if self.memory.used + needed <= self.memory.bytes_max:
                return
            other.close("its unfinished request stood still, and others need the memory", fault=True)

    def closed(self, connection: Connection, reason: str, fault: bool) -> None:
        """It is closed: watch it no more."""
        descriptor = connection.transport.fileno()
        del self.connections[descriptor]
        self._epoll.unregister(descriptor)
        if fault:
            self.tell(f"the connection from {connection.peer[0]}:{connection.peer[1]} was closed: {reason}")
        elif _log.isEnabledFor(logging.DEBUG):
            _log.debug("%r was closed: %s", connection, reason)

    def _idle_check(self) -> None:
        """Close connections on which nothing has moved, but those that wait for an answer."""
        idle_s = self.limits.idle_s
        for connection in list(self.connections.values()):
            if self.now - connection.active_at >= idle_s and not connection.is_waiting:
                connection.close("nothing moved on it")
        self.timers.at(self.now + idle_s / IDLE_CHECKS, self._idle_check)

    def tell(self, text: str) -> None:
        """Log a fault of a client, but only so many in a second: whoever asks for lines must not fill the disk."""
        if self.now - self._told_at >= 1:
            if self._told > TELLS_PER_S:
                _log.warning("%d more faults of clients were not told", self._told - TELLS_PER_S)
            self._told_at, self._told = self.now, 0
        self._told += 1
        if self._told <= TELLS_PER_S:
            _log.warning("%s", text)

    @property
    def has_unsent(self) -> bool:
        """Whether somebody has not been sent all that was answered."""
        return bool(self._dirty) or any(connection.has_unsent for connection in self.connections.values())

    def shut(self) -> None:
        """Take no more connections."""
        for descriptor, (listener, _door) in list(self._listeners.items()):
            self.unwatch_descriptor(descriptor)
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # a child that inherited it by fork() must not go on listening
            listener.close()
            del self._listeners[descriptor]

    def close(self) -> None:
        """Close everything."""
        self.shut()
        for connection in list(self.connections.values()):
            connection.close("the broker is stopping")
        self._epoll.close()
        os.close(self._bell)
