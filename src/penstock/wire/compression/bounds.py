"""What the decoders check alike: that the input holds what is read from it, that the output stays below its limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import cramjam

from penstock.errors import DecodeError, LimitError

# How cramjam's stream decoders say that the output buffer is full; the words are those of Rust's `WriteZero`.
OUTPUT_FULL = "failed to write whole buffer"
ZEROS = bytes(64 * 1024)
# A start of up to so many bytes is walked in Python; for more the library is quicker, though it opens the whole block.
WALK_BYTES_MAX = 4096


def take(data: memoryview, at: int, size: int, field: str) -> memoryview:
    """Return the `size` bytes at `at`."""
    taken = data[at : at + size]
    if len(taken) < size:
        raise DecodeError(at, field, f"{size} bytes", f"{len(taken)}")
    return taken


def take_int(data: memoryview, at: int, size: int, field: str, byteorder: Literal["little", "big"] = "little") -> int:
    """Return the unsigned number in the `size` bytes at `at`."""
    return int.from_bytes(take(data, at, size, field), byteorder)


def check_limit(size: int, bytes_max: int, at: int, field: str) -> None:
    """Raise `LimitError` if `size`, announced or reached at `at`, is above the limit."""
    if size > bytes_max:
        raise LimitError(at, field, f"at most {bytes_max} bytes", size)


def stream_into(
    decoder: Callable[[memoryview, memoryview], int],
    data: memoryview,
    room: memoryview,
    room_max: int,
    at: int,
    field: str,
) -> int:
    """Decompress `data`, found at `at`, with one of cramjam's `decompress_into`; return the number of bytes made.

    `room_max` is how much room the limit would allow: more than `room` when the format promised less.
    """
    try:
        return decoder(data, room)
    except cramjam.DecompressionError as error:
        if OUTPUT_FULL in str(error) and len(room) >= room_max:
            raise LimitError(at, field, f"at most {room_max} bytes", "more") from error
        raise DecodeError(at, field, "well-formed blocks", error) from error


def grow(output: bytearray, size: int) -> None:
    """Make `output` at least `size` bytes long; in steps, since zeros in one piece would take as much memory again."""
    while len(output) < size:
        output += ZEROS[: size - len(output)]


def append_match(output: bytearray, distance: int, length: int) -> bool:
    """Repeat `length` bytes from `distance` bytes back; False if the distance reaches before the output's start.

    A match may reach into the bytes it makes: then the last `distance` bytes are repeated.
    """
    start = len(output) - distance
    if distance == 0 or start < 0:
        return False
    pattern = output[start : start + length]
    output += pattern if distance >= length else (pattern * (length // distance + 1))[:length]
    return True
