"""Where a connection holds frames so that many leave in one write (batch I/O). Pure: no socket, no clock.

Each frame brings the policy of the producer that sent it. A gate opens for all that wait in it, since frames of one
connection keep their order; it opens when

    the delay of a frame that waits is over            `due`
    as many bytes wait as one of the frames allows     `add`
    a frame comes that may not wait                    `add`
    a frame comes for which the client's budget of waiting bytes has no room   `add`
    somebody asks                                      `flush`
    the connection ends; the frames are not sent       `drop`

Accounting is exact: what is counted when a frame begins to wait is taken off when it ceases to, whatever the reason.
"No backlog means zero bytes waiting" is checked at each opening, for the gate, for the budget and for each topic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.config import BatchIo
from penstock.net.failures import InvariantError
from penstock.net.meters import Share, let_go, wait, wrote
from penstock.wire.entry import Buffer

AT_ONCE: Final = BatchIo(delay_ms=0)


@dataclass(slots=True, eq=False)
class Frame:
    """The bytes of one request on their way out; views are let go one by one as the transport is done with them."""

    token: object
    answered: bool = True
    """Whether an answer will come."""
    views: deque[memoryview] = field(default_factory=deque)
    size: int = 0
    left: int = 0
    """Bytes that the transport has not taken yet."""
    shares: Sequence[Share] = ()
    left_gate: float | None = None
    """When it was handed to the transport; None while it waits."""

    def fill(self, buffers: Sequence[Buffer], shares: Sequence[Share] = ()) -> None:
        """Look at these buffers, without copying. What the shares leave unexplained, framing, goes to the first."""
        self.views.extend(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
        self.size = self.left = sum(map(len, self.views))
        if shares:
            framing = self.size - sum(share.size for share in shares)
            self.shares = (Share(shares[0].meter, shares[0].size + framing), *shares[1:])

    def take(self, count: int) -> int:
        """Let go of this many bytes, or of all there are; how many were not ours."""
        while count and self.views:
            view = self.views[0]
            size = len(view)
            if count < size:
                self.views[0] = view[count:]
                self.left -= count
                count = 0
            else:
                self.views.popleft()
                self.left -= size
                count -= size
            view.release()
        return count

    def let_go(self) -> None:
        """The transport is gone: nobody reads the views any more."""
        while self.views:
            self.views.popleft().release()

    def __repr__(self) -> str:
        where = "waiting" if self.left_gate is None else "leaving" if self.left else "written"
        return f"<Frame of {self.token!r}, {where}, {self.left} bytes left>"


class IoMemory:
    """The bytes that may wait in all gates of one client (`io_memory_max`). Runs on: the I/O thread of that client."""

    __slots__ = ("_frames", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._frames = 0

    def reserve(self, size: int) -> bool:
        """Count a waiting frame, if there is room for it."""
        if self.used + size > self.limit:
            return False
        self.used += size
        self._frames += 1
        return True

    def release(self, size: int, frames: int) -> None:
        """These frames wait no more. Raises `InvariantError` when more went than came."""
        self.used -= size
        self._frames -= frames
        if self.used < 0 or self._frames < 0 or (self._frames == 0 and self.used != 0):
            raise InvariantError(
                f"the gates' memory holds {self.used} bytes for {self._frames} frames after {size} bytes of {frames} "
                "frames were released: some were released twice or never reserved"
            )

    def __repr__(self) -> str:
        return f"<IoMemory {self.used} of {self.limit} bytes, {self._frames} frames>"


class Gate:
    """The gate of one connection. Runs on: the I/O thread."""

    __slots__ = ("_bytes", "_bytes_max", "_due", "_frames", "_memory", "openings")

    def __init__(self, memory: IoMemory) -> None:
        self._memory = memory
        self._frames: list[Frame] = []
        self._bytes = 0
        self._bytes_max: float = math.inf
        self._due = math.inf
        self.openings = 0

    @property
    def bytes_waiting(self) -> int:
        """Bytes of the frames that wait here."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame, policy: BatchIo, now: float) -> list[Frame]:
        """Let a frame wait, or not; the frames that leave now, in order."""
        if not policy.enabled or not self._memory.reserve(frame.size):
            return self._open(now, frame)
        self._frames.append(frame)
        self._bytes += frame.size
        wait(frame.shares)
        self._due = min(self._due, now + policy.delay_ms / 1000)
        self._bytes_max = min(self._bytes_max, policy.bytes_max)
        return self._open(now) if self._bytes >= self._bytes_max else []

    def due(self, now: float) -> list[Frame]:
        """The frames that leave because one of them has waited long enough."""
        return self._open(now) if now >= self._due else []

    def flush(self, now: float) -> list[Frame]:
        """The frames that leave because somebody asks for it."""
        return self._open(now) if self._frames else []

    def drop(self) -> list[Frame]:
        """The frames that will never leave."""
        return self._empty()

    def next_deadline(self) -> float | None:
        """When `due` will have something."""
        return self._due if self._frames else None

    def _open(self, now: float, last: Frame | None = None) -> list[Frame]:
        frames = self._empty()
        if last is not None:
            frames.append(last)
        for frame in frames:
            frame.left_gate = now
        wrote([share for frame in frames for share in frame.shares])
        self.openings += 1
        return frames

    def _empty(self) -> list[Frame]:
        frames, self._frames = self._frames, []
        if frames:
            size = sum(frame.size for frame in frames)
            self._bytes -= size
            self._memory.release(size, len(frames))
            for frame in frames:
                let_go(frame.shares)
        if self._bytes != 0:
            raise InvariantError(
                f"{self!r} holds no frame, yet {self._bytes} bytes wait after these left: {frames}: a frame changed "
                "its size while it waited"
            )
        self._due = self._bytes_max = math.inf
        return frames

    def __repr__(self) -> str:
        return f"<Gate with {len(self._frames)} frames, {self._bytes} bytes, {self.openings} openings>"
