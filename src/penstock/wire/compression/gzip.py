"""gzip members (RFC 1952), by the standard library's zlib, which frees the interpreter lock and keeps to a limit.

`wbits` 31 asks zlib for gzip's header and trailer around the deflated data. Members may follow each other; their
contents are joined. cramjam's gzip is not faster, and its level 1 compresses far less.
"""

from __future__ import annotations

import zlib

from penstock.errors import DecodeError
from penstock.wire.compression.bounds import check_limit

LEVEL_DEFAULT = 6
GZIP_WBITS = 31
PIECE_BYTES_MIN = 512  # of input, where it is not given all at once


def compress(data: memoryview, level: int | None) -> bytes:
    """Make one member."""
    return zlib.compress(data, LEVEL_DEFAULT if level is None else level, GZIP_WBITS)


def decompress(data: memoryview, bytes_max: int) -> bytes:
    """Open all members.

    The first gets the whole input in one call, since it is nearly always alone. After each call zlib copies the input
    that it did not use, so later members are fed in small pieces: else a megabyte of empty members would be copied
    fifty thousand times.
    """
    content, at = _inflate(data, 0, len(data), bytes_max)
    if at == len(data):
        return content
    parts, size = [content], len(content)
    while at < len(data):
        content, at = _inflate(data, at, PIECE_BYTES_MIN, bytes_max - size)
        parts.append(content)
        size += len(content)
    return b"".join(parts)


def decompress_start(data: memoryview, wanted: int) -> bytes:
    """Open the first member as far as needed; pieces, because zlib copies the input that it did not use."""
    inflater = zlib.decompressobj(GZIP_WBITS)
    start = b""
    at, piece_bytes = 0, max(PIECE_BYTES_MIN, wanted)
    while len(start) < wanted and not inflater.eof:
        start += _feed(inflater, data, at, piece_bytes, wanted - len(start))
        at += piece_bytes
    return start


def _inflate(data: memoryview, at: int, piece_bytes: int, bytes_max: int) -> tuple[bytes, int]:
    """Open the member at `at`; return its content and where it ends."""
    inflater = zlib.decompressobj(GZIP_WBITS)
    parts, size = [], 0
    while not inflater.eof:
        # One byte more than allowed tells a full output from one that is too long; zlib takes 0 for "no limit".
        part = _feed(inflater, data, at, piece_bytes, bytes_max - size + 1)
        size += len(part)
        check_limit(size, bytes_max, at, "gzip content")
        parts.append(part)
        at = min(at + piece_bytes, len(data))
        piece_bytes *= 2
    return parts[0] if len(parts) == 1 else b"".join(parts), at - len(inflater.unused_data)


def _feed(inflater: zlib._Decompress, data: memoryview, at: int, piece_bytes: int, bytes_max: int) -> bytes:
    piece = data[at : at + piece_bytes]
    if not piece:
        raise DecodeError(len(data), "gzip member", "more bytes", "the end")
    try:
        return inflater.decompress(piece, bytes_max)
    except zlib.error as error:
        raise DecodeError(at, "gzip member", "a well-formed member", error) from error
