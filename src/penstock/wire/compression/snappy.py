"""Snappy, raw and in the frame that Kafka's Java client puts around it (known as xerial, after its library).

    frame     82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | version = 1 (4) | oldest compatible version = 1 (4) | chunks
    chunk     size (4) | raw snappy of at most 32 KB of data; the three numbers are big-endian
    raw       length of the data (varint) | elements
    element   literal, tttttt00: t < 60 says t + 1 bytes follow; 60 to 63: 1 to 4 bytes with the length - 1, the bytes
              match, dddlll01 d: length l + 4, distance of 11 bits, the upper 3 in the tag
              match, llllll10 dd and llllll11 dddd: length l + 1, distance little-endian

Frames may follow each other. Data without the frame is taken for raw snappy, as other clients write it.
"""

from __future__ import annotations

import struct

import cramjam

from penstock.errors import DecodeError, UnsupportedError
from penstock.wire.compression.bounds import WALK_BYTES_MAX, append_match, check_limit, take, take_int

MAGIC = b"\x82SNAPPY\x00"
VERSION = 1
HEADER = MAGIC + struct.pack(">ii", VERSION, VERSION)
CHUNK_BYTES_MAX = 32 * 1024
VARINT_BYTES_MAX = 5
EXPANSION_MAX = 22  # a match of 64 bytes takes three
LITERAL = 0
LITERAL_LENGTH_LONG = 60  # from here on, the tag says how many bytes hold the length


def compress(data: memoryview) -> bytes:
    """Make one frame."""
    parts: list[bytes | cramjam.Buffer] = [HEADER]
    for at in range(0, len(data), CHUNK_BYTES_MAX):
        chunk = cramjam.snappy.compress_raw(data[at : at + CHUNK_BYTES_MAX])
        parts += (struct.pack(">i", len(chunk)), chunk)
    return b"".join(parts)


def decompress(data: memoryview, bytes_max: int) -> bytearray:
    """Open all chunks into a buffer of the very size that they announce."""
    chunks = _chunks(data)
    sizes = [_raw_length(data, at, end)[0] for at, end in chunks]
    check_limit(sum(sizes), bytes_max, 0, "snappy length")
    output = bytearray(sum(sizes))
    with memoryview(output) as room:
        start = 0
        for (at, end), size in zip(chunks, sizes, strict=True):
            _raw_into(data, at, end, room[start : start + size])
            start += size
    return output


def decompress_start(data: memoryview, wanted: int, bytes_max: int) -> bytes:
    """Walk the elements of the first chunk for a few bytes, open it for many."""
    at, end = 0, len(data)
    if _is_header(data, 0):
        at = len(HEADER)
        if at == end:
            return b""
        at, end = _chunk(data, at)
    size, elements_at = _raw_length(data, at, end)
    if wanted <= WALK_BYTES_MAX or size > min(bytes_max, EXPANSION_MAX * (end - elements_at)):
        return _walk(data[:end], elements_at, min(wanted, size))
    output = bytearray(size)
    with memoryview(output) as room:
        _raw_into(data, at, end, room)
        return bytes(room[:wanted])


def _is_header(data: memoryview, at: int) -> bool:
    if data[at : at + len(MAGIC)] != MAGIC:
        return False
    header = take(data, at, len(HEADER), "snappy frame header")
    compatible = int.from_bytes(header[-4:], "big")
    if compatible != VERSION:
        raise UnsupportedError(at + len(HEADER) - 4, "snappy frame version", str(VERSION), compatible)
    return True


def _chunks(data: memoryview) -> list[tuple[int, int]]:
    """Where the raw snappy in `data` starts and ends: all of it if there is no frame."""
    if not _is_header(data, 0):
        return [(0, len(data))]
    chunks = []
    at = 0
    while at < len(data):
        if _is_header(data, at):
            at += len(HEADER)
        else:
            chunk = _chunk(data, at)
            chunks.append(chunk)
            at = chunk[1]
    return chunks


def _chunk(data: memoryview, at: int) -> tuple[int, int]:
    size = take_int(data, at, 4, "snappy chunk size", "big")
    take(data, at + 4, size, "snappy chunk")
    return at + 4, at + 4 + size


def _raw_length(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the length that raw snappy announces, and where its elements start."""
    length = 0
    for index, byte in enumerate(data[at : min(at + VARINT_BYTES_MAX, end)]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return length, at + index + 1
    raise DecodeError(at, "snappy length", f"a varint of at most {VARINT_BYTES_MAX} bytes", "more, or the end")


def _raw_into(data: memoryview, at: int, end: int, room: memoryview) -> None:
    try:
        cramjam.snappy.decompress_raw_into(data[at:end], room)
    except cramjam.DecompressionError as error:
        raise DecodeError(at, "snappy chunk", "well-formed elements", error) from error


def _walk(data: memoryview, at: int, wanted: int) -> bytes:
    """Follow the elements to the first `wanted` bytes."""
    output = bytearray()
    try:
        while len(output) < wanted:
            tag = data[at]
            if tag & 3 == LITERAL:
                length, at = _literal_length(data, at, tag >> 2)
                if at + length > len(data):
                    raise DecodeError(at, "snappy literal", f"{length} bytes", len(data) - at)
                output += data[at : at + min(length, wanted - len(output))]
                at += length
            else:
                length, distance, end = _match(data, at, tag)
                if not append_match(output, distance, min(length, wanted - len(output))):
                    raise DecodeError(at, "snappy match", f"a distance of 1 to {len(output)}", distance)
                at = end
    except IndexError as error:
        raise DecodeError(at, "snappy element", "more bytes", "the end") from error
    return bytes(output)


def _literal_length(data: memoryview, at: int, length: int) -> tuple[int, int]:
    """Return a literal's length and where its bytes start."""
    if length < LITERAL_LENGTH_LONG:
        return length + 1, at + 1
    size = length - LITERAL_LENGTH_LONG + 1
    return take_int(data, at + 1, size, "snappy literal length") + 1, at + 1 + size


def _match(data: memoryview, at: int, tag: int) -> tuple[int, int, int]:
    """Return a match's length, its distance, and where the next element starts."""
    match tag & 3:
        case 1:
            return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at + 1], at + 2
        case 2:
            return (tag >> 2) + 1, data[at + 1] | data[at + 2] << 8, at + 3
        case _:
            return (tag >> 2) + 1, take_int(data, at + 1, 4, "snappy distance"), at + 5
