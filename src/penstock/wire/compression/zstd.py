"""Zstandard frames (RFC 8878): what of them must be read here to bound the library's work.

    frame        28 B5 2F FD | descriptor (1) | window (0 or 1) | dictionary id (0, 1, 2 or 4)
                 | content size (0, 1, 2, 4 or 8) | blocks | checksum (0 or 4)
    descriptor   bits 7-6 size of the content size | 5 single segment: no window, it is the content size | 4 unused
                 | 3 reserved | 2 checksum | 1-0 size of the dictionary id
    window       eeeeemmm: 2^(10+e) * (1 + m/8) bytes, how far back a match may reach
    block        header (3): size << 3 | type << 1 | last | bytes
                 type 0 as is, `size` bytes; 1 one byte, repeated `size` times; 2 compressed, `size` bytes that make
                 at most 128 KB; 3 reserved. Numbers are little-endian.

A content size of 2 bytes counts from 256; a single segment has at least one of 1 byte. Frames may follow each other;
skippable ones are refused.

Walking the block headers gives an upper bound of the content when the content size is missing (streaming encoders leave
it out), at a cost of one step per 128 KB. The library allocates a frame's window besides the output, and before it has
seen a block. So a window above the limit is cut down to it, in a copy of the input: content that keeps to the limit
cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import cramjam

from penstock.errors import DecodeError, UnsupportedError
from penstock.wire.compression.bounds import check_limit, stream_into, take, take_int

LEVEL_DEFAULT = 3
MAGIC = b"\x28\xb5\x2f\xfd"
BLOCK_BYTES_MAX = 128 * 1024
BLOCK_HEADER_BYTES = 3
CHECKSUM_BYTES = 4
DICTIONARY_ID_BYTES = (0, 1, 2, 4)
CONTENT_SIZE_BYTES = (0, 2, 4, 8)
WINDOW_LOG_MIN = 10
WINDOW_OF_ONE_BLOCK = 7 << 3  # 128 KB
LAST_BLOCK = 1
STORED, REPEATED, COMPRESSED = range(3)


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a frame says; `window_at` is None for a single segment."""

    blocks_at: int
    window_at: int | None
    window_bytes: int
    content_size: int | None
    has_checksum: bool


class Block(NamedTuple):
    """A block, from its header to its end; `size` as the header says."""

    at: int
    end: int
    kind: int
    size: int
    is_last: bool


def compress(data: memoryview, level: int | None) -> bytes:
    """Make one frame, with content size and without checksum."""
    return bytes(cramjam.zstd.compress(data, level=LEVEL_DEFAULT if level is None else level))


def decompress(data: memoryview, bytes_max: int) -> bytearray:
    """Open all frames, in one call, into a buffer as large as their headers say they may need."""
    size_max = 0
    window_bytes_max = max(bytes_max, BLOCK_BYTES_MAX)
    wide_windows = []
    for header, frame_size_max in _frames(data, bytes_max):
        size_max += frame_size_max
        if header.window_at is not None and header.window_bytes > window_bytes_max:
            wide_windows.append(header.window_at)
    if wide_windows:
        data = _with_windows(data, wide_windows, _window_over(window_bytes_max))
    output = bytearray(min(size_max, bytes_max))
    with memoryview(output) as room:
        size = stream_into(cramjam.zstd.decompress_into, data, room, bytes_max, 0, "zstd content")
    del output[size:]
    return output


def decompress_start(data: memoryview, wanted: int, bytes_max: int) -> bytes:
    """Open the first block, by itself: made the last one of a frame without content size and checksum."""
    block = _block(data, _header(data, 0).blocks_at)
    content = data[block.at + BLOCK_HEADER_BYTES : block.end]
    if block.kind == STORED:
        return bytes(content[:wanted])
    if block.kind == REPEATED:
        return bytes(content) * min(block.size, wanted)
    header = (block.size << 3 | COMPRESSED << 1 | LAST_BLOCK).to_bytes(BLOCK_HEADER_BYTES, "little")
    frame = b"".join((MAGIC, bytes((0, WINDOW_OF_ONE_BLOCK)), header, content))
    output = bytearray(min(BLOCK_BYTES_MAX, bytes_max))
    with memoryview(output) as room:
        size = stream_into(cramjam.zstd.decompress_into, memoryview(frame), room, bytes_max, block.at, "zstd block")
        return bytes(room[:size])


def _frames(data: memoryview, bytes_max: int) -> Iterator[tuple[Header, int]]:
    """Walk the frames; give each header and the most that the frame's content can be."""
    at = 0
    announced = 0
    while at < len(data) or at == 0:
        header = _header(data, at)
        announced += header.content_size or 0
        check_limit(announced, bytes_max, at, "zstd content size")
        size_max, end = _walk_blocks(data, header)
        if header.content_size is not None and header.content_size > size_max:
            raise DecodeError(at, "zstd content size", f"at most {size_max}, by its blocks", header.content_size)
        yield header, size_max if header.content_size is None else header.content_size
        at = end + CHECKSUM_BYTES * header.has_checksum
        take(data, end, at - end, "zstd checksum")


def _walk_blocks(data: memoryview, header: Header) -> tuple[int, int]:
    """Return the most that a frame's blocks can make, and where they end."""
    block_bytes_max = min(header.window_bytes, BLOCK_BYTES_MAX)
    size_max = 0
    at = header.blocks_at
    while True:
        block = _block(data, at)
        size_max += block_bytes_max if block.kind == COMPRESSED else block.size
        at = block.end
        if block.is_last:
            return size_max, at


def _header(data: memoryview, at: int) -> Header:
    if take(data, at, len(MAGIC), "zstd magic") != MAGIC:
        raise DecodeError(at, "zstd magic", MAGIC.hex(), bytes(data[at : at + len(MAGIC)]).hex())
    at += len(MAGIC)
    descriptor = take_int(data, at, 1, "zstd frame descriptor")
    if descriptor & 0x08:
        raise DecodeError(at, "zstd frame descriptor", "reserved bit 3 clear", f"{descriptor:#04x}")
    at += 1
    is_single_segment = bool(descriptor & 0x20)
    window_at = None if is_single_segment else at
    window = 0 if is_single_segment else take_int(data, at, 1, "zstd window")
    at += 0 if is_single_segment else 1
    id_bytes = DICTIONARY_ID_BYTES[descriptor & 3]
    if dictionary := take_int(data, at, id_bytes, "zstd dictionary id"):
        raise UnsupportedError(at, "zstd dictionary id", "none", dictionary)
    at += id_bytes
    size_bytes = CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if is_single_segment else 0)
    content_size = take_int(data, at, size_bytes, "zstd content size") + (256 if size_bytes == 2 else 0)
    return Header(
        blocks_at=at + size_bytes,
        window_at=window_at,
        window_bytes=content_size if is_single_segment else _window_bytes(window),
        content_size=content_size if size_bytes else None,
        has_checksum=bool(descriptor & 0x04),
    )


def _block(data: memoryview, at: int) -> Block:
    word = take_int(data, at, BLOCK_HEADER_BYTES, "zstd block header")
    kind, size = word >> 1 & 3, word >> 3
    if kind > COMPRESSED:
        raise DecodeError(at, "zstd block type", "0 to 2", kind)
    if size > BLOCK_BYTES_MAX:
        raise DecodeError(at, "zstd block size", f"at most {BLOCK_BYTES_MAX}", size)
    end = at + BLOCK_HEADER_BYTES + (1 if kind == REPEATED else size)
    if end > len(data):
        raise DecodeError(at, "zstd block", f"{end - at} bytes", len(data) - at)
    return Block(at, end, kind, size, is_last=bool(word & LAST_BLOCK))


def _window_bytes(window: int) -> int:
    base = 1 << WINDOW_LOG_MIN + (window >> 3)
    return base + (base >> 3) * (window & 7)


def _window_over(size: int) -> int:
    """The narrowest window that reaches over `size` bytes."""
    return next(window for window in range(256) if _window_bytes(window) >= size)


def _with_windows(data: memoryview, positions: list[int], window: int) -> memoryview:
    copy = bytearray(data)
    for at in positions:
        copy[at] = window
    return memoryview(copy)
