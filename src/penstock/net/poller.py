"""Waiting for sockets, and being woken: the only place in `net` that sleeps.

Waking costs two attribute stores while the loop is awake. Before it sleeps the loop says so, then looks whether it was
woken meanwhile; whoever wakes it notes that first, then looks whether it sleeps. So one of the two always sees the
other:

    poll   asleep = True ; woken? -> do not wait ; select ; asleep = woken = False
    wake   woken = True  ; asleep? -> ring

A caller puts its work where the loop will find it before it wakes, and the loop looks there after `poll`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
from typing import NamedTuple, Protocol

from penstock.net.fork import Birth

_RING = b"\x01"


class ReadyIo(NamedTuple):
    """What can be done now without waiting, for the key that was watched."""

    key: object
    readable: bool
    writable: bool


class Watcher(Protocol):
    """What a cluster asks of a poller; tests give one of their own."""

    def watch(self, key: object, descriptor: int, *, read: bool, write: bool) -> None:
        """Report this key when its descriptor can be read or written; -1 or neither of both: no more."""

    def unwatch(self, key: object) -> None:
        """Report this key no more."""


class _EventBell:
    """Wakes a selector by Linux' eventfd: one descriptor, one small write."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def quiet(self) -> None:
        os.eventfd_read(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class _SocketBell:
    """Wakes a selector by a pair of sockets, where there is no eventfd."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.descriptor = self._near.fileno()

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # so many rings are unheard that one more changes nothing
            self._far.send(_RING)

    def quiet(self) -> None:
        self._near.recv(4096)

    def close(self) -> None:
        self._near.close()
        self._far.close()


class Poller:
    """Watches descriptors and sleeps until one is ready, the time is over or somebody wakes it.

    Runs on: the I/O thread; `wake` on any thread. In a child of `fork()` every call but `close` says so and fails.
    """

    def __init__(self) -> None:
        self._birth = Birth()
        self._selector = selectors.DefaultSelector()
        self._bell = _EventBell() if sys.platform == "linux" else _SocketBell()
        self._selector.register(self._bell.descriptor, selectors.EVENT_READ)
        self._descriptors: dict[object, int] = {}
        self._asleep = False
        self._woken = False
        self._lock = threading.Lock()  # guards the following, so that nobody rings a bell that is being closed
        self._closed = False

    def watch(self, key: object, descriptor: int, *, read: bool, write: bool) -> None:
        """Report this key when its descriptor can be read or written; -1 or neither of both: no more.

        A descriptor number that another key had before was closed since and belongs to this key now.
        """
        self._birth.check("this poller")
        events = selectors.EVENT_READ * read | selectors.EVENT_WRITE * write
        before = self._descriptors.get(key, -1)
        if before >= 0 and (before != descriptor or not events):
            self.unwatch(key)
            before = -1
        if descriptor < 0 or not events:
            return
        if before == descriptor:
            if self._selector.get_map()[descriptor].events != events:
                self._selector.modify(descriptor, events, key)
            return
        self._register(key, descriptor, events)

    def unwatch(self, key: object) -> None:
        """Report this key no more; does not mind when its descriptor is closed already."""
        descriptor = self._descriptors.pop(key, -1)
        # A child shares the parent's epoll: what it took out would be missing there.
        if descriptor >= 0 and self._birth.is_here() and not self._closed:
            self._selector.unregister(descriptor)

    def poll(self, timeout: float | None) -> list[ReadyIo]:
        """Sleep for at most `timeout` seconds (None: as long as it takes); what is ready."""
        self._birth.check("this poller")
        self._asleep = True
        if self._woken or (timeout is not None and timeout < 0):
            timeout = 0
        try:
            selected = self._selector.select(timeout)
        finally:
            self._asleep = False
            self._woken = False
        ready = []
        for key, events in selected:
            if key.data is None:
                self._bell.quiet()
            else:
                readable, writable = events & selectors.EVENT_READ, events & selectors.EVENT_WRITE
                ready.append(ReadyIo(key.data, bool(readable), bool(writable)))
        return ready

    def wake(self) -> None:
        """End the present sleep, or the next one before it begins."""
        self._birth.check("this poller")
        self._woken = True
        if self._asleep:
            self._asleep = False
            with self._lock:
                if not self._closed:
                    self._bell.ring()

    def close(self) -> None:
        """Give the descriptors back; what was watched is not closed."""
        if self._birth.is_here():
            with self._lock:
                closed, self._closed = self._closed, True
        else:
            closed, self._closed = self._closed, True  # whoever held the lock stayed in the parent
        if not closed:
            self._selector.close()
            self._bell.close()
            self._descriptors.clear()

    def _register(self, key: object, descriptor: int, events: int) -> None:
        known = self._selector.get_map().get(descriptor)
        if known is not None:
            self._descriptors.pop(known.data, None)
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, events, key)
        self._descriptors[key] = descriptor

    def __repr__(self) -> str:
        state = "closed" if self._closed else "asleep" if self._asleep else "awake"
        return f"<Poller of {len(self._descriptors)} descriptors, {state}>"
