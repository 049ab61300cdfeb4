"""The lz4 frame, and the lz4 blocks in it.

    frame        04 22 4D 18 | descriptor | blocks | 00 00 00 00 | content checksum (4, if FLG says so)
    descriptor   FLG (1) | BD (1) | content size (0 or 8) | dictionary id (0 or 4) | HC (1)
    FLG          bits 7-6 version = 01 | 5 independent blocks | 4 block checksums | 3 content size | 2 content checksum
                 | 1 reserved | 0 dictionary id
    BD           bits 6-4 largest block: 4 = 64 KB, 5 = 256 KB, 6 = 1 MB, 7 = 4 MB | others reserved
    HC           the second lowest byte of xxh32 over the descriptor before it
    block        size (4; bit 31 set: stored, not compressed) | bytes | block checksum (0 or 4)
    sequence     llllmmmm | more of l | l literal bytes | distance (2) | more of m; length of the match is m + 4
                 l or m of 15 goes on in bytes that are added up, to the first that is not 255; the last sequence of a
                 block ends after its literals. Numbers are little-endian.

Kafka's broker wants one frame with independent blocks, so cramjam's own frames, which have linked ones, will not do.
A batch becomes one block where possible: one library call, and 4 MB is the largest a frame can have.

Read are also frames in a row, blocks of any size, linked blocks and checksums; dictionaries and skippable frames are
refused. Blocks of plain frames are opened one by one into one buffer. Linked blocks need the output before them, and
checksums are too slow in Python, so such frames are given to cramjam's frame decoder as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import cramjam

from penstock.errors import ChecksumError, DecodeError, UnsupportedError
from penstock.wire.compression.bounds import (
    WALK_BYTES_MAX,
    append_match,
    check_limit,
    grow,
    stream_into,
    take,
    take_int,
)

LEVEL_DEFAULT = 1
LEVEL_FAST_MAX = 1  # above it, lz4's medium (2) and high compression (3 to 12)
MAGIC = b"\x04\x22\x4d\x18"
VERSION = 0x40
INDEPENDENT, BLOCK_CHECKSUMS, CONTENT_SIZE, CONTENT_CHECKSUM, RESERVED, DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x02, 0x01
BLOCK_BYTES_MAX = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}
FAST_BLOCKS, HARD_BLOCKS = 0x70, 0x40  # BD of the frames made here
STORED = 1 << 31
SIZE = struct.Struct("<I")
SIZE_BYTES = 4
END_MARK = bytes(4)
CHECKSUM_BYTES = 4
HEADER_BYTES = 7  # without content size
CONTENT_SIZE_BYTES = 8
MATCH_BYTES_MIN = 4
LENGTH_GOES_ON = 15
EXPANSION_MAX = 255  # what one byte, of a length that goes on, can stand for

# Room for a block of unknown size: zeroing 4 MB for each would cost more than opening a small one. A block that needs
# more than this is opened a second time.
EXPANSION_LIKELY = 4
ROOM_BYTES_LIKELY = 64 * 1024


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a frame says."""

    at: int
    blocks_at: int
    flags: int
    block_bytes_max: int
    block_checksum_bytes: int
    content_size: int | None


class Block(NamedTuple):
    """A block, from its size field to the end of its content."""

    at: int
    end: int
    is_stored: bool

    def size_max(self, header: Header) -> int:
        """The most that the block can hold."""
        size = self.end - self.at - SIZE_BYTES
        return size if self.is_stored else min(EXPANSION_MAX * size, header.block_bytes_max)

    def size_likely(self, header: Header) -> int:
        """The most that it is likely to hold: without the room that only a block which shrank unusually well needs."""
        return min(self.size_max(header), max(EXPANSION_LIKELY * (self.end - self.at), ROOM_BYTES_LIKELY))


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose blocks have been found, not opened."""

    header: Header
    blocks: list[Block]
    end: int

    @property
    def is_plain(self) -> bool:
        """Whether the blocks can be opened one by one, with nothing else to check."""
        return self.header.flags & (INDEPENDENT | BLOCK_CHECKSUMS | CONTENT_CHECKSUM) == INDEPENDENT

    def size_max(self) -> int:
        """The most that the frame can hold."""
        size = sum([block.size_max(self.header) for block in self.blocks])
        return size if self.header.content_size is None else min(size, self.header.content_size)

    def size_likely(self) -> int:
        """The most that the frame is likely to hold."""
        if self.is_plain and self.header.content_size is None:
            return sum([block.size_likely(self.header) for block in self.blocks])
        return self.size_max()


def compress(data: memoryview, level: int | None) -> bytes:
    """Make one frame: level 1 of blocks of 4 MB, higher levels of blocks of 64 KB."""
    is_hard = level is not None and level > LEVEL_FAST_MAX
    block_code = HARD_BLOCKS if is_hard else FAST_BLOCKS
    block_bytes_max = BLOCK_BYTES_MAX[block_code]
    parts: list[bytes | memoryview] = [frame_start(block_code)]
    for at in range(0, len(data), block_bytes_max):
        piece = data[at : at + block_bytes_max]
        block = _compress_hard(piece, level) if is_hard else _compress_fast(piece)
        if len(block) < len(piece):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(piece) | STORED).to_bytes(4, "little"), piece)
    parts.append(END_MARK)
    return b"".join(parts)


def decompress(data: memoryview, bytes_max: int) -> memoryview:
    """Open all frames into one buffer, which grows where blocks turn out larger than likely."""
    frames = list(_frames(data))
    check_limit(sum(frame.header.content_size or 0 for frame in frames), bytes_max, 0, "lz4 content size")
    output = bytearray(min(sum([frame.size_likely() for frame in frames]), bytes_max))
    size = 0
    for frame in frames:
        open_frame = _open_blocks if frame.is_plain else _open_whole
        size = open_frame(data, frame, output, size, bytes_max)
    if len(output) > EXPANSION_LIKELY * size:
        del output[size:]  # a smaller waste is left alone: giving it back makes the next batch fault its pages in anew
    return memoryview(output)[:size]


def decompress_start(data: memoryview, wanted: int) -> bytes:
    """Walk the sequences of the first block for a few bytes, open it for many."""
    header = _header(data, 0)
    block = _block(data, header, header.blocks_at)
    if block is None:
        return b""
    content = data[block.at + SIZE_BYTES : block.end]
    if block.is_stored:
        return bytes(content[:wanted])
    if wanted <= WALK_BYTES_MAX:
        return _walk(content, block.at + SIZE_BYTES, wanted)
    output = bytearray(block.size_likely(header))
    size = _open_block(content, block, header, output, 0)
    return bytes(memoryview(output)[: min(size, wanted)])


def frame_start(block_code: int) -> bytes:
    """Make the header of a frame with independent blocks."""
    descriptor = bytes((VERSION | INDEPENDENT, block_code))
    return MAGIC + descriptor + bytes((_header_checksum(descriptor),))


def _compress_fast(piece: memoryview) -> memoryview:
    return memoryview(cramjam.lz4.compress_block(piece, store_size=False))


def _compress_hard(piece: memoryview, level: int | None) -> memoryview:
    """Compress a piece of at most 64 KB at a level.

    cramjam's block compressor ignores every level it is given, and its stream compressor keeps the interpreter lock.
    Its frame compressor does neither: of a piece that fits in one block it makes a frame with one block, and that is
    taken out. Before cramjam 2.14 it makes linked blocks of 8 KB instead: they are of no use.
    """
    frame_bytes = memoryview(cramjam.lz4.compress(piece, level=level))
    frame = _frame(frame_bytes, 0)
    if len(frame.blocks) != 1:
        return _compress_fast(piece)
    block = frame.blocks[0]
    return frame_bytes[block.at + SIZE_BYTES : block.end]


def _open_blocks(data: memoryview, frame: Frame, output: bytearray, size: int, bytes_max: int) -> int:
    """Append a plain frame's content to the first `size` bytes of `output`; return the new size."""
    start = size
    for block in frame.blocks:
        content = data[block.at + SIZE_BYTES : block.end]
        if block.is_stored:
            output[size : size + len(content)] = content
            size += len(content)
        else:
            size += _open_block(content, block, frame.header, output, size)
        check_limit(size, bytes_max, block.at, "lz4 content")
    if frame.header.content_size not in (None, size - start):
        raise DecodeError(frame.header.at, "lz4 content size", f"{size - start}", frame.header.content_size)
    return size


def _open_block(content: memoryview, block: Block, header: Header, output: bytearray, size: int) -> int:
    """Open a block behind the first `size` bytes of `output`; if that fails for want of room, with all it can need."""
    room_max = block.size_max(header)
    while True:
        with memoryview(output)[size : size + room_max] as room:
            room_bytes = len(room)
            try:
                return cramjam.lz4.decompress_block_into(content, room, output_len=room_bytes)
            except cramjam.DecompressionError as error:
                if room_bytes == room_max:
                    raise DecodeError(block.at, "lz4 block", "well-formed sequences", error) from error
        grow(output, size + room_max)


def _open_whole(data: memoryview, frame: Frame, output: bytearray, size: int, bytes_max: int) -> int:
    """Append the content of a frame with linked blocks or checksums; return the new size."""
    at = frame.header.at
    room_max = bytes_max - size
    end = size + min(frame.size_max(), room_max)
    grow(output, end)
    with memoryview(output)[size:end] as room:
        return size + stream_into(cramjam.lz4.decompress_into, data[at : frame.end], room, room_max, at, "lz4 content")


def _frames(data: memoryview) -> Iterator[Frame]:
    at = 0
    while at < len(data) or at == 0:
        frame = _frame(data, at)
        yield frame
        at = frame.end


def _frame(data: memoryview, at: int) -> Frame:
    header = _header(data, at)
    blocks = []
    at = header.blocks_at
    while block := _block(data, header, at):
        blocks.append(block)
        at = block.end + header.block_checksum_bytes
    end = at + len(END_MARK) + (CHECKSUM_BYTES if header.flags & CONTENT_CHECKSUM else 0)
    take(data, at, end - at, "lz4 frame end")
    return Frame(header, blocks, end)


def _header(data: memoryview, at: int) -> Header:
    if take(data, at, len(MAGIC), "lz4 magic") != MAGIC:
        raise DecodeError(at, "lz4 magic", MAGIC.hex(), bytes(data[at : at + len(MAGIC)]).hex())
    flags = take_int(data, at + len(MAGIC), 1, "lz4 FLG")
    size = HEADER_BYTES + (CONTENT_SIZE_BYTES if flags & CONTENT_SIZE else 0)
    return _parse_header(bytes(take(data, at, size, "lz4 header")), at)


@lru_cache(maxsize=16)
def _parse_header(header: bytes, at: int) -> Header:
    """Check and read a header; the few that are in use are read once."""
    descriptor = header[len(MAGIC) : -1]
    flags, block_code = descriptor[:2]
    at_flags = at + len(MAGIC)
    if flags & 0xC0 != VERSION or flags & RESERVED:
        raise UnsupportedError(at_flags, "lz4 FLG", "version 1, reserved bit clear", f"{flags:#04x}")
    if flags & DICTIONARY:
        raise UnsupportedError(at_flags, "lz4 FLG", "no dictionary", f"{flags:#04x}")
    if block_code not in BLOCK_BYTES_MAX:
        raise DecodeError(at_flags + 1, "lz4 BD", "0x40, 0x50, 0x60 or 0x70", f"{block_code:#04x}")
    checksum = _header_checksum(descriptor)
    if header[-1] != checksum:
        raise ChecksumError(at + len(header) - 1, "lz4 header checksum", f"{checksum:#04x}", f"{header[-1]:#04x}")
    return Header(
        at=at,
        blocks_at=at + len(header),
        flags=flags,
        block_bytes_max=BLOCK_BYTES_MAX[block_code],
        block_checksum_bytes=CHECKSUM_BYTES if flags & BLOCK_CHECKSUMS else 0,
        content_size=int.from_bytes(descriptor[2:], "little") if flags & CONTENT_SIZE else None,
    )


def _block(data: memoryview, header: Header, at: int) -> Block | None:
    """Find the block at `at`; None for the end mark."""
    try:
        (word,) = SIZE.unpack_from(data, at)
    except struct.error as error:
        raise DecodeError(at, "lz4 block size", f"{SIZE_BYTES} bytes", len(data) - at) from error
    if word == 0:
        return None
    size = word & ~STORED
    if size > header.block_bytes_max:
        raise DecodeError(at, "lz4 block size", f"at most {header.block_bytes_max}", size)
    end = at + SIZE_BYTES + size
    if end + header.block_checksum_bytes > len(data):
        raise DecodeError(at, "lz4 block", f"{end - at + header.block_checksum_bytes} bytes", len(data) - at)
    return Block(at, end, word >= STORED)


def _header_checksum(descriptor: bytes) -> int:
    """The second lowest byte of xxh32 of fewer than 16 bytes, with seed 0."""
    mask = 0xFFFFFFFF
    state = 374761393 + len(descriptor)
    words = len(descriptor) // 4 * 4
    for at in range(0, words, 4):
        state = state + int.from_bytes(descriptor[at : at + 4], "little") * 3266489917 & mask
        state = (state << 17 | state >> 15) * 668265263 & mask
    for byte in descriptor[words:]:
        state = state + byte * 374761393 & mask
        state = (state << 11 | state >> 21) * 2654435761 & mask
    state = (state ^ state >> 15) * 2246822519 & mask
    state = (state ^ state >> 13) * 3266489917 & mask
    return (state ^ state >> 16) >> 8 & 0xFF


def _walk(block: memoryview, offset: int, wanted: int) -> bytes:
    """Follow a block's sequences to the first `wanted` bytes; `offset`, the block's own, is for errors."""
    output = bytearray()
    at = 0
    try:
        while len(output) < wanted:
            token = block[at]
            length, at = token >> 4, at + 1
            if length == LENGTH_GOES_ON:
                length, at = _long_length(block, at, len(block))
            if at + length > len(block):
                raise DecodeError(offset + at, "lz4 literals", f"{length} bytes", len(block) - at)
            output += block[at : at + min(length, wanted - len(output))]
            at += length
            if at == len(block) or len(output) == wanted:
                break
            distance = block[at] | block[at + 1] << 8
            length, at = token & LENGTH_GOES_ON, at + 2
            if length == LENGTH_GOES_ON:
                length, at = _long_length(block, at, wanted)
            if not append_match(output, distance, min(length + MATCH_BYTES_MIN, wanted - len(output))):
                raise DecodeError(offset + at, "lz4 match", f"a distance of 1 to {len(output)}", distance)
    except IndexError as error:
        raise DecodeError(offset + at, "lz4 sequence", "more bytes", "the end") from error
    return bytes(output)


def _long_length(block: memoryview, at: int, enough: int) -> tuple[int, int]:
    """Add up a length that goes on at `at`, at most to more than `enough`; return it and where it ends."""
    length = LENGTH_GOES_ON
    while True:
        byte = block[at]
        at += 1
        length += byte
        if byte != EXPANSION_MAX or length > enough:
            return length, at
