"""The seam between a connection and what carries its bytes: TCP here; TLS has its place as another `Transport`.

None of this waits: BlockingIOError says that nothing can be done now. Other OSErrors end the connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Protocol

from penstock.wire.entry import Buffer

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
MORE = getattr(socket, "MSG_MORE", 0)


class Transport(Protocol):
    """What carries a connection's bytes."""

    def fileno(self) -> int:
        """The descriptor to watch."""

    def receive(self, buffer: memoryview) -> int:
        """Fill what has arrived into the buffer; how many bytes, 0 at the end of the stream."""

    def receive_two(self, first: memoryview, second: memoryview) -> int:
        """Fill what has arrived into the first buffer, then into the second."""

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        """Send what can be taken now, in order; `more`: what follows belongs to it and is sent at once."""

    def send_file(self, descriptor: int, offset: int, size: int) -> int:
        """Send a stretch of a file, as much of it as can be taken now; 0 when the file ends before."""

    def local_host(self) -> str:
        """The address of this machine under which the client found it."""

    def close(self) -> None:
        """Let go of it."""


class TcpTransport:
    """Plain TCP."""

    __slots__ = ("_descriptor", "_socket", "receive")

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = accepted
        self._descriptor = accepted.fileno()
        self.receive = accepted.recv_into

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._descriptor

    def receive_two(self, first: memoryview, second: memoryview) -> int:
        """One call for the rest of a frame and what comes after it."""
        return self._socket.recvmsg_into([first, second])[0]

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        """One call for all of them."""
        return self._socket.sendmsg(buffers, (), NO_SIGNAL | MORE if more else NO_SIGNAL)

    def send_file(self, descriptor: int, offset: int, size: int) -> int:
        """From the page cache to the socket, without a copy through this process."""
        return os.sendfile(self._descriptor, descriptor, offset, size)

    def local_host(self) -> str:
        """The socket's own address."""
        host: str = self._socket.getsockname()[0]
        return host

    def close(self) -> None:
        """Close the socket, for children that inherited it by `fork()`, too."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
