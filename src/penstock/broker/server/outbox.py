"""What a connection is to send: buffers and stretches of files, in order, as much at a time as its transport takes."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.broker.log.partition import Slice
from penstock.errors import StorageDamagedError
from penstock.wire.entry import Buffer

if TYPE_CHECKING:
    from penstock.broker.server.transport import Transport

Out: TypeAlias = Buffer | Slice

GATHER_MAX = 64  # buffers of one write


def release(items: Sequence[Out]) -> None:
    """Give back the slices among these that are not sent."""
    for item in items:
        if isinstance(item, Slice):
            item.release()


def size_of(items: Sequence[Out]) -> int:
    """How many bytes these are."""
    size = 0
    for item in items:
        size += item.size if isinstance(item, Slice) else len(item)
    return size


class Outbox:
    """The unsent answers of one connection. Runs on: the loop thread."""

    __slots__ = ("_items", "_sent", "_transport", "size")

    def __init__(self, transport: Transport) -> None:
        self.size = 0
        """Bytes that are not sent yet."""
        self._transport = transport
        self._items: deque[Out] = deque()
        self._sent = 0  # bytes of the first of them

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, items: Sequence[Out]) -> None:
        """Send these too; slices are released when they are sent, or cleared."""
        self._items.extend(items)
        self.size += size_of(items)

    def clear(self) -> None:
        """Send none of it."""
        release(list(self._items))
        self._items.clear()
        self.size = self._sent = 0

    def flush(self, share: int) -> int:
        """Send until all is sent, the transport takes no more, or the share is used up; how many bytes were sent.

        OSError when nothing more can be sent ever, StorageDamagedError when the file has not what was promised.
        """
        items, before = self._items, self.size
        try:
            while items and before - self.size < share:
                head = items[0]
                self.size -= self._send_slice(head) if isinstance(head, Slice) else self._send_buffers()
        except (BlockingIOError, InterruptedError):
            pass
        return before - self.size

    def _send_slice(self, head: Slice) -> int:
        done = self._sent
        try:
            sent = self._transport.send_file(head.fd, head.offset + done, head.size - done)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise StorageDamagedError(f"the log cannot be read: {error}") from error
        if not sent:
            raise StorageDamagedError(f"the log ends {head.size - done} bytes too early")
        if done + sent == head.size:
            self._items.popleft()
            head.release()
            self._sent = 0
        else:
            self._sent = done + sent
        return sent

    def _send_buffers(self) -> int:
        """Buffers that follow each other leave in one write; a slice behind them belongs to them."""
        items = self._items
        buffers: list[Buffer] = []
        more = False
        for item in items:
            if isinstance(item, Slice):
                more = True
                break
            buffers.append(item)
            if len(buffers) == GATHER_MAX:
                break
        if self._sent:
            buffers[0] = memoryview(buffers[0])[self._sent :]
        sent = self._transport.send(buffers, more)
        left = sent
        for index, buffer in enumerate(buffers):
            if left < len(buffer):
                self._sent = left if index else self._sent + left
                return sent
            left -= len(buffer)
            items.popleft()
            self._sent = 0
        return sent
