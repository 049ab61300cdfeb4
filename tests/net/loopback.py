"""Real sockets on the loopback, waited for by polling with a deadline, never by sleeping."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.net.poller import Poller
from penstock.net.stream import SocketStream

PATIENCE = 20.0


def poll_until(poller: Poller, done: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Poll until it holds; the poller is the only one that waits."""
    over = time.monotonic() + seconds
    while not done():
        left = over - time.monotonic()
        assert left > 0, f"not within {seconds} s: {poller!r}"
        poller.poll(min(left, 0.5))


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)
        yield listening


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def connect(poller: Poller, stream: SocketStream) -> None:
    """Wait until it is connected, or raise why not."""

    def connected() -> bool:
        done = stream.is_connected(time.monotonic())
        poller.watch(stream, stream.fileno(), read=False, write=not done)
        return done

    poll_until(poller, connected)
