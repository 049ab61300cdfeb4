"""A connection without sockets: what carries its bytes is in memory, and so is its loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from penstock.broker.log.partition import Slice
from penstock.broker.server.connection import Connection, Slot
from penstock.broker.server.limits import ServerLimits
from penstock.broker.server.memory import RequestMemory
from penstock.broker.server.timers import Timers
from penstock.errors import DecodeError
from penstock.wire.entry import Buffer

SIZE_BYTES = 4


class MemoryTransport:
    """Arrivals are queued by the test, and what is sent is collected, as much at a time as `takes` allows."""

    def __init__(self) -> None:
        self.arrivals: deque[bytes] = deque()
        self.sent = bytearray()
        self.takes: int | None = None
        """Bytes that can still be sent; None for any number."""
        self.writes: list[int] = []
        self.is_closed = False
        self.fails: OSError | None = None

    def fileno(self) -> int:
        return 7

    def receive(self, buffer: memoryview) -> int:
        return self._fill([buffer])

    def receive_two(self, first: memoryview, second: memoryview) -> int:
        return self._fill([first, second])

    def _fill(self, buffers: list[memoryview]) -> int:
        if self.fails is not None:
            raise self.fails
        if not self.arrivals:
            raise BlockingIOError
        data, count = self.arrivals.popleft(), 0
        for buffer in buffers:
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            data = data[len(part) :]
            count += len(part)
        if data:
            self.arrivals.appendleft(data)
        return count

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        return self._take(b"".join(bytes(buffer) for buffer in buffers))

    def send_file(self, descriptor: int, offset: int, size: int) -> int:
        return self._take(os.pread(descriptor, size, offset))

    def _take(self, data: bytes) -> int:
        if self.fails is not None:
            raise self.fails
        if self.takes is not None:
            if not self.takes:
                raise BlockingIOError
            data = data[: self.takes]
            self.takes -= len(data)
        self.sent += data
        self.writes.append(len(data))
        return len(data)

    def local_host(self) -> str:
        return "127.0.0.1"

    def close(self) -> None:
        self.is_closed = True


class FakeHub:
    """A loop that does nothing by itself: the test says when a turn ends."""

    def __init__(self, **limits: int) -> None:
        self.limits = ServerLimits(**limits)
        self.shared = memoryview(bytearray(self.limits.receive_bytes))
        self.memory = RequestMemory(self.limits.request_memory_max)
        self.now = 0.0
        self.now_ms = 0
        self.masks: list[int] = []
        self.reasons: list[tuple[str, bool]] = []
        self.told: list[str] = []
        self.resuming: list[Connection] = []
        self.asked_room: list[int] = []
        self.timers = Timers()
        self._soon: list[Callable[[], None]] = []
        self._dirty: dict[Connection, None] = {}

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def tell(self, text: str) -> None:
        self.told.append(text)

    def changed(self, connection: Connection) -> None:
        self._dirty[connection] = None

    def again(self, connection: Connection) -> None:
        self.resuming.append(connection)

    def watch(self, connection: Connection, mask: int) -> None:
        self.masks.append(mask)

    def make_room(self, connection: Connection, needed: int) -> None:
        self.asked_room.append(needed)

    def closed(self, connection: Connection, reason: str, fault: bool) -> None:
        self.reasons.append((reason, fault))

    def end_turn(self) -> None:
        self.timers.run(self.now)
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            connection.settle()

    def next_turn(self) -> None:
        resuming, self.resuming = self.resuming, []
        for connection in resuming:
            connection.resume()
        self.end_turn()


class FramedSession:
    """Frames behind their size; each is kept, and answered by whoever is told of it."""

    def __init__(self, connection: Connection, handle: Callable[[bytes, Slot], None] | None = None) -> None:
        self.frames: list[bytes] = []
        self.slots: list[Slot] = []
        self.is_closed = False
        self._connection = connection
        self._handle = handle

    def receive(self, data: memoryview) -> tuple[int, int]:
        at = 0
        while at < len(data) and self._connection.has_room:
            if len(data) - at < SIZE_BYTES:
                return at, SIZE_BYTES
            size = int.from_bytes(data[at : at + SIZE_BYTES], "big")
            if size > self._connection._hub.limits.frame_bytes_max:
                raise DecodeError(at, "size", "less", size)
            end = at + SIZE_BYTES + size
            if end > len(data):
                return at, SIZE_BYTES + size
            frame = bytes(data[at + SIZE_BYTES : end])
            at = end
            slot = self._connection.slot()
            self.frames.append(frame)
            self.slots.append(slot)
            if self._handle is not None:
                self._handle(frame, slot)
        return at, 0

    def closed(self) -> None:
        self.is_closed = True


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(SIZE_BYTES, "big") + frame for frame in frames)


def echo(frame: bytes, slot: Slot) -> None:
    slot.answer((framed(frame),))


class Pins:
    """A file, and how often slices of it are held."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.descriptor = os.open(path, os.O_RDONLY)
        self.held = 0

    def slice(self, offset: int, size: int) -> Slice:
        self.held += 1
        return Slice(self.descriptor, offset, size, 0, 0, 1, cast(Any, self))

    def unpin(self) -> None:
        self.held -= 1
        assert self.held >= 0

    def close(self) -> None:
        os.close(self.descriptor)
