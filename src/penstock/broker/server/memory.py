"""Memory for requests that have arrived in part, bounded for all connections together.

A size that a client claims reserves nothing: a buffer grows with what really arrived, to `AHEAD` times as much at most.
Buffers that were used are kept for the next ones, since fresh memory costs more than the bytes that are put into it.
"""

from __future__ import annotations

AHEAD = 16
FIRST_BYTES = 16 << 10
ROUND_BYTES = 64 << 10
SPARES_MAX = 4
SPARE_BYTES_MAX = 4 << 20


class RequestMemory:
    """The bytes that parts of requests may take. Runs on: the loop thread."""

    __slots__ = ("_spares", "bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._spares: list[bytearray] = []

    def __repr__(self) -> str:
        return f"<RequestMemory {self.used} of {self.bytes_max} bytes used, {len(self._spares)} spare buffers>"

    @staticmethod
    def share(arrived: int, needed: int) -> int:
        """How long a buffer may be for a request of which this much has arrived."""
        return min(needed, max(arrived * AHEAD, FIRST_BYTES))

    def take(self, arrived: int, needed: int) -> bytearray | None:
        """A buffer for a part of a request of which this much has arrived; None when there is no room for it.

        It may be shorter than what is needed in the end, and longer.
        """
        size = self.share(arrived, needed)
        for index, spare in enumerate(self._spares):
            if size <= len(spare) <= max(size * 4, ROUND_BYTES):
                if self.used + len(spare) > self.bytes_max:
                    break
                del self._spares[index]
                self.used += len(spare)
                return spare
        if size > ROUND_BYTES:
            size = -(-size // ROUND_BYTES) * ROUND_BYTES
        if self.used + size > self.bytes_max:
            return None
        self.used += size
        return bytearray(size)

    def give(self, buffer: bytearray) -> None:
        """Nobody looks at this buffer any more."""
        self.used -= len(buffer)
        if ROUND_BYTES <= len(buffer) <= SPARE_BYTES_MAX:
            self._spares.append(buffer)
            if len(self._spares) > SPARES_MAX:
                del self._spares[0]
