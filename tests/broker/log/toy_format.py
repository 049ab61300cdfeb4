"""A format of entries that is nobody's: shows that a log knows nothing of the ones it stores.

0  4  size of the whole     4  4  crc32 of what follows byte 16     8  8  position
16 4  messages   20 8  time   28 4  length of the claim   32  the claim as name=value, then the payload
"""

from __future__ import annotations

import struct
import zlib

from penstock.errors import ChecksumError, DecodeError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, Buffer, EntryFlag, EntryHeader, PropertyClaim

HEAD = struct.Struct("<IIqIqI")


class ToyFormat:
    number = 900
    name = "toy"
    head_bytes = HEAD.size

    def make(self, payload: bytes, count: int = 1, time_ms: int = 0, claim: str = "") -> bytes:
        rest = HEAD.pack(0, 0, 0, count, time_ms, len(claim))[16:] + claim.encode() + payload
        return struct.pack("<IIq", 16 + len(rest), zlib.crc32(rest), 0) + rest

    def measure(self, data: Buffer) -> int | None:
        if len(data) < 4:
            return None
        size: int = struct.unpack_from("<I", data)[0]
        if size < HEAD.size:
            raise DecodeError(0, "size", f"{HEAD.size} or more", size)
        return size

    def glance(self, head: Buffer) -> EntryHeader:
        if len(head) < HEAD.size:
            raise DecodeError(len(head), "head", f"{HEAD.size} bytes", len(head))
        size, _crc, first, count, time_ms, _claim = HEAD.unpack_from(head)
        if size < HEAD.size or not count:
            raise DecodeError(0, "size or count", "more", size)
        last = first + count - 1
        return EntryHeader(
            *(count, size, Codec.NONE, first, last, None, time_ms, None, -1, -1, EntryFlag.NONE, NO_CLAIM)
        )

    def check(self, entry: Buffer) -> EntryHeader:
        header = self.glance(entry)
        if header.size != len(entry):
            raise DecodeError(0, "size", str(len(entry)), header.size)
        _size, crc, *_rest, length = HEAD.unpack_from(entry)
        if zlib.crc32(memoryview(entry)[16:]) != crc:
            raise ChecksumError(4, "crc", hex(crc), "another")
        if not length:
            return header
        name, _, value = bytes(entry[HEAD.size : HEAD.size + length]).decode().partition("=")
        return header._replace(claim=PropertyClaim({name: value}))

    def place(self, entry: Buffer, position: int, epoch: int) -> tuple[Buffer, Buffer]:
        return bytes(entry[:8]) + struct.pack("<q", position), memoryview(entry)[16:]

    def marker(self, commit: bool, producer: int, epoch: int, time_ms: int, coordinator_epoch: int = 0) -> Buffer:
        raise NotImplementedError

    def marker_of(self, entry: Buffer) -> bool | None:
        raise NotImplementedError

    def dated(self, entry: Buffer, time_ms: int | None) -> Buffer:
        raise NotImplementedError


TOY = ToyFormat()
