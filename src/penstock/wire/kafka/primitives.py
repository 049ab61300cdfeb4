"""The protocol's own types, for what is written and read by hand: strings, arrays and tags, plain and compact.

    plain     string   length i16 (-1: null), bytes         array   count i32 (-1: null), elements
    compact   string   length + 1 uvarint (0: null), bytes  array   count + 1 uvarint (0: null), elements
              bytes    as a string, but plain ones have a length of i32
    tags      count uvarint, each: tag uvarint, size uvarint, bytes; after the fields of every compact structure

Readers take the bytes and where to read, and return what stood there and where it ended. What runs past the end raises
IndexError or struct.error, which `connection` turns into a DecodeError once.
"""

from __future__ import annotations

import struct

from penstock.errors import DecodeError

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
NO_TAGS = b"\x00"
UVARINT_SHIFT_MAX = 28  # five bytes


def uvarint(number: int) -> bytes:
    """An unsigned number, seven bits a byte, the lowest first."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def plain_string(text: str | None) -> bytes:
    """A string, its length in two bytes."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return INT16.pack(len(data)) + data


def compact_string(text: str | None) -> bytes:
    """A string, its length as a uvarint."""
    if text is None:
        return b"\x00"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of five bytes at most."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift, start = byte & 0x7F, 7, at
    while byte & 0x80:
        at += 1
        if shift > UVARINT_SHIFT_MAX:
            raise DecodeError(start, "uvarint", "five bytes at most", "a longer one")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    return number, at + 1


def read_array_size(data: memoryview, at: int, flexible: bool) -> tuple[int | None, int]:
    """The count of an array, no more than the bytes can hold; None for null."""
    start = at
    if flexible:
        count, at = read_uvarint(data, at)
        count -= 1
    else:
        count, at = INT32.unpack_from(data, at)[0], at + INT32.size
    if count == -1:
        return None, at
    if not 0 <= count <= len(data) - at:
        raise DecodeError(start, "array", f"0 to {len(data) - at} elements", count)
    return count, at


def read_count(data: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """The count of an array that must not be null."""
    count, end = read_array_size(data, at, flexible)
    if count is None:
        raise DecodeError(at, "array", "its elements", "null")
    return count, end


def read_string(data: memoryview, at: int, flexible: bool) -> tuple[str | None, int]:
    """A string or null."""
    start = at
    if flexible:
        size, at = read_uvarint(data, at)
        size -= 1
    else:
        size, at = INT16.unpack_from(data, at)[0], at + INT16.size
    if size == -1:
        return None, at
    if not 0 <= size <= len(data) - at:
        raise DecodeError(start, "string", f"0 to {len(data) - at} bytes", size)
    try:
        return str(data[at : at + size], "utf-8"), at + size
    except UnicodeDecodeError as error:
        raise DecodeError(at, "string", "UTF-8", bytes(data[at : at + size])) from error


def read_bytes(data: memoryview, at: int, flexible: bool) -> tuple[bytes | None, int]:
    """Bytes, copied, or null."""
    start = at
    if flexible:
        size, at = read_uvarint(data, at)
        size -= 1
    else:
        size, at = INT32.unpack_from(data, at)[0], at + INT32.size
    if size == -1:
        return None, at
    if not 0 <= size <= len(data) - at:
        raise DecodeError(start, "bytes", f"0 to {len(data) - at} bytes", size)
    return bytes(data[at : at + size]), at + size


def skip_tags(data: memoryview, at: int) -> int:
    """Where the tags end."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        start = at
        _tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > len(data) - at:
            raise DecodeError(start, "tag", f"{len(data) - at} bytes at most", size)
        at += size
    return at
