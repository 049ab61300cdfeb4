"""The thin seam to the transport, and TCP behind it.

A `Stream` never blocks: it takes and gives what it can at this moment. What is above it knows neither sockets nor
addresses, so that tests give one in memory and TLS can be put behind the same seam.

A `SocketStream` lives so; each row is one attempt's end:

    RESOLVING  name resolved -> TRYING; not resolvable, time over -> error
    TRYING     connected -> CONNECTED; refused, time share over -> TRYING the next address, after the last -> error
    CONNECTED  until closed

Each address gets an equal share of the time that is left, so that one which swallows packets leaves time for others.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.errors import ConnectionLostError, TimedOutError
from penstock.net.resolver import Address, Resolution, Resolver
from penstock.wire.protocol import Endpoint

IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX")) if "SC_IOV_MAX" in os.sysconf_names else 16
# A program that restored the default action of SIGPIPE must not die of a broker's death.
_SEND_FLAGS: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0)


class Stream(Protocol):
    """A connection's transport. Runs on: the I/O thread."""

    def fileno(self) -> int:
        """The descriptor to watch, for writing until it is connected; -1 while there is none."""

    def is_connected(self, now: float) -> bool:
        """Go on connecting; whether it is done. Raises `ConnectionLostError` or `TimedOutError` when it cannot be."""

    def deadline(self) -> float | None:
        """When to ask `is_connected` again even if nothing happened; None once connected."""

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Take what there is room for, in one call of the system; how many bytes. It is done with those taken."""

    def receive_into(self, room: memoryview) -> int | None:
        """How many bytes were put into `room`; fewer than it holds when no more are there. None: none yet, 0: ended."""

    def close(self) -> None:
        """End it; what was sent may or may not arrive. Closing twice does no harm."""


class StreamFactory(Protocol):
    """Opens streams; the seam at which tests put a network of their own."""

    def open(self, endpoint: Endpoint, now: float) -> Stream:
        """A stream that has begun to connect, or will when it is asked; never raises and never waits."""


class SocketStreams:
    """Opens TCP connections. Runs on: the I/O thread."""

    def __init__(self, connect_timeout_ms: float, wake: Callable[[], None]) -> None:
        self._timeout = connect_timeout_ms / 1000
        self._resolver = Resolver(wake)

    def open(self, endpoint: Endpoint, now: float) -> SocketStream:
        """A stream to there, given up when it is not connected in time."""
        return SocketStream(self._resolver.resolve(endpoint), self._timeout, now)

    def __repr__(self) -> str:
        return f"<SocketStreams with {self._timeout} s to connect, {self._resolver!r}>"


class SocketStream:
    """TCP without waiting; small frames leave at once (TCP_NODELAY). Runs on: the I/O thread.

    Sockets of failed attempts stay open until the last one is decided: so no attempt gets the descriptor number of the
    one before, which the poller may still watch.
    """

    def __init__(self, resolution: Resolution, timeout: float, now: float) -> None:
        self._resolution = resolution
        self._started = now
        self._over = now + timeout
        self._addresses: deque[Address] | None = None
        self._address: Address | None = None
        self._socket: socket.socket | None = None
        self._attempt_over = self._over
        self._failed: list[socket.socket] = []
        self._tried: list[str] = []
        self._connected = False
        self._closed = False

    def fileno(self) -> int:
        """The descriptor of the present attempt, or of the connection; -1 while the name is being resolved."""
        return -1 if self._socket is None else self._socket.fileno()

    def deadline(self) -> float | None:
        """When the present attempt has had its share of the time."""
        return None if self._connected else self._attempt_over

    def is_connected(self, now: float) -> bool:
        """Go on: resolved, connected, or the next address. Raises when all were tried or the time is over."""
        while not self._connected:
            if self._socket is None:
                if not self._begin(now):
                    return False
                continue
            failure = self._failure(self._socket, now)
            if failure is not None:
                self._fail(failure)
            elif not self._connected:
                return False
        return True

    def send(self, buffers: Sequence[memoryview]) -> int:
        """One `sendmsg` of at most `IOV_MAX` buffers."""
        try:
            return self._open_socket().sendmsg(buffers[:IOV_MAX], (), _SEND_FLAGS)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionLostError(f"sending to {self._resolution.endpoint}: {error}") from error

    def receive_into(self, room: memoryview) -> int | None:
        """One `recv_into`."""
        try:
            return self._open_socket().recv_into(room)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionLostError(f"receiving from {self._resolution.endpoint}: {error}") from error

    def close(self) -> None:
        """Close all sockets, that of the connection without a farewell, since a child of `fork()` may close it too."""
        self._closed = True
        for opened in (*self._failed, self._socket):
            if opened is not None:
                opened.close()
        self._failed.clear()
        self._socket = None

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLostError(f"{self._resolution.endpoint}: closed on this side")
        return self._socket

    def _begin(self, now: float) -> bool:
        """Begin to connect to the next address; False while the addresses are not known."""
        if self._closed:
            raise ConnectionLostError(f"{self._resolution.endpoint}: closed on this side")
        if self._addresses is None:
            answer = self._resolution.answer
            if isinstance(answer, Exception):
                raise ConnectionLostError(f"{self._resolution.endpoint} cannot be resolved: {answer}") from answer
            if answer is None:
                if now >= self._over:
                    raise TimedOutError(f"{self._resolution.endpoint} was not resolved {self._since(now)}")
                return False
            self._addresses = deque(answer)
        if now >= self._over or not self._addresses:
            raise self._gave_up(now)
        self._attempt_over = now + (self._over - now) / len(self._addresses)
        self._address = self._addresses.popleft()
        self._connect(self._address)
        return True

    def _connect(self, address: Address) -> None:
        try:
            self._socket = socket.socket(address.family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            code = self._socket.connect_ex(address.where)
        except (OSError, OverflowError, ValueError) as error:  # no descriptors left, no such family, port 70000
            self._fail(str(error))
        else:
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
                self._fail(os.strerror(code))

    def _failure(self, attempt: socket.socket, now: float) -> str | None:
        """Why the present attempt failed; None when it succeeded (noted) or is still under way."""
        code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return os.strerror(code)
        try:
            peer = attempt.getpeername()
        except OSError:
            return "no answer" if now >= self._attempt_over else None
        if peer == attempt.getsockname():
            return "connected to itself, nobody listens"
        self._connected = True
        self._address = None
        self._drop_failed()
        return None

    def _fail(self, why: str) -> None:
        self._tried.append(f"{self._address} ({why})")
        if self._socket is not None:
            self._failed.append(self._socket)
            self._socket = None

    def _drop_failed(self) -> None:
        for failed in self._failed:
            failed.close()
        self._failed.clear()

    def _gave_up(self, now: float) -> ConnectionLostError | TimedOutError:
        tried = ", ".join(self._tried) or "no address"
        kind = TimedOutError if now >= self._over else ConnectionLostError
        return kind(f"cannot connect to {self._resolution.endpoint}: tried {tried} {self._since(now)}")

    def _since(self, now: float) -> str:
        return f"in {now - self._started:.1f} s"

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._connected else "connecting"
        return f"<SocketStream to {self._resolution.endpoint}, {state}, descriptor {self.fileno()}>"
