"""Frames of a connection: four bytes of size, and as many bytes.

Bytes may arrive cut anywhere. A frame that lies whole in what arrived is handed out as a view of it, uncopied; one
that does not gets a buffer of its exact size, which each arrival fills further. Whoever receives asks for `room` first:
most of a large frame is then received where it stays, and not copied at all. A size above the limit is refused before
anything is allocated for it.

Whoever keeps bytes of a frame asks whether it `is_own`: memory that nobody writes to again. A frame that is a view of
what arrived has at least the last byte of its size before it, so one that is all of its buffer has that to itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from penstock.errors import DecodeError, LimitError
from penstock.wire.entry import Buffer

SIZE = struct.Struct(">i")
SIZE_BYTES = SIZE.size
FRAME_BYTES_MIN = 4  # the correlation id
ROOM_BYTES_MIN: Final = 16 * 1024
"""With less to come of a frame, it is better received together with what follows it."""


def is_own(frame: memoryview) -> bool:
    """Whether the frame has a buffer of its own, which stays as it is."""
    return frame.nbytes == memoryview(frame.obj).nbytes


class FrameReader:
    """Cuts what arrives into frames. Runs on: the I/O thread."""

    __slots__ = ("_body", "_bytes_max", "_filled", "_size_part")

    def __init__(self, frame_bytes_max: int) -> None:
        self._bytes_max = frame_bytes_max
        self._size_part = b""
        self._body: memoryview | None = None
        self._filled = 0

    def __repr__(self) -> str:
        if self._body is not None:
            return f"<FrameReader at byte {self._filled} of {len(self._body)}>"
        return f"<FrameReader between frames, {len(self._size_part)} bytes of a size>"

    def room(self) -> memoryview | None:
        """The rest of a large frame, to receive the next bytes in; `feed` is then given what was filled of it."""
        body = self._body
        if body is None or len(body) - self._filled < ROOM_BYTES_MIN:
            return None
        return body[self._filled :]

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """The frames that these bytes complete, without their sizes; views that hold until the bytes are reused."""
        view = memoryview(data).toreadonly()
        at, end = 0, len(view)
        while at < end:
            if self._body is None:
                at, size = self._size(view, at)
                if size is None:
                    return
                if end - at >= size:
                    yield view[at : at + size]
                    at += size
                    continue
                self._body, self._filled = np.empty(size, np.uint8).data, 0  # not zeroed, unlike a bytearray
            body = self._body
            more = min(len(body) - self._filled, end - at)
            if view.obj is not body.obj:  # else they were received there
                body[self._filled : self._filled + more] = view[at : at + more]
            at += more
            self._filled += more
            if self._filled == len(body):
                self._body = None
                yield body.toreadonly()

    def _size(self, view: memoryview, at: int) -> tuple[int, int | None]:
        """Where the size ends, and the size; None when it is cut."""
        if not self._size_part and len(view) - at >= SIZE_BYTES:
            return at + SIZE_BYTES, self._checked(SIZE.unpack_from(view, at)[0])
        end = at + SIZE_BYTES - len(self._size_part)
        self._size_part += bytes(view[at:end])
        if len(self._size_part) < SIZE_BYTES:
            return len(view), None
        size: int = SIZE.unpack(self._size_part)[0]
        self._size_part = b""
        return end, self._checked(size)

    def _checked(self, size: int) -> int:
        if size < FRAME_BYTES_MIN:
            raise DecodeError(0, "frame size", f"{FRAME_BYTES_MIN} or more", size)
        if size > self._bytes_max:
            raise LimitError(0, "frame size", f"{self._bytes_max} at most", size)
        return size
