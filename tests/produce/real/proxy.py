"""A TCP proxy on loopback that cuts connections after any byte, or lets bytes through no more.

What it has read it passes on whole, up to the byte of the cut: the one behind it sees a stream that ends in the middle
of a frame, and the one before it does not know how much arrived.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

PIECE_BYTES = 65536
WAIT_S = 0.05


class Proxy:
    """Passes connections on to one address. Runs on: a thread per connection and direction."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
        self._open = threading.Event()  # bytes pass
        self._open.set()
        self._ending = threading.Event()
        self._lock = threading.Lock()  # guards the following
        self._left: dict[str, int | None] = {"there": None, "back": None}
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._open.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut_now()
        for thread in list(self._threads):
            thread.join(10)

    def cut_after(self, count: int, direction: str) -> None:
        """Cut the connection that has carried so many more bytes "there" (to the broker) or "back", all together."""
        with self._lock:
            self._left[direction] = count

    def spare(self) -> None:
        """Take back the cuts that were not made yet."""
        with self._lock:
            self._left = {"there": None, "back": None}

    def cut_now(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Keep all connections open, and let nothing through."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                client, _ = self._listening.accept()
                broker = socket.create_connection(self._target, 10)
            except OSError:
                continue
            broker.settimeout(None)
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, broker}
            for direction, source, sink in (("there", client, broker), ("back", broker, client)):
                thread = threading.Thread(target=self._pass_on, args=(direction, source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, direction: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                while not self._open.wait(WAIT_S):
                    pass
                allowed = self._allowed(direction, len(data))
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    break
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other one
        with self._lock:
            self._sockets.discard(source)

    def _allowed(self, direction: str, count: int) -> int:
        """How many of these bytes may pass."""
        with self._lock:
            left = self._left[direction]
            if left is None:
                return count
            if count <= left:
                self._left[direction] = left - count
                return count
            self._left[direction] = None
            self.cuts += 1
            return left
