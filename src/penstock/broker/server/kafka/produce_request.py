"""Produce requests, read by hand, together with what of them stands in their answers.

    request   transactional id string | acks i16 | timeout ms i32
              | topics [ name string, from version 13 on its id uuid | partitions [ index i32 | records bytes ] ]

From version 9 on strings, bytes and arrays are compact, and every structure ends with tags.

A request is read to its end before anything of it is stored. What is read is the batches, and the answer with a gap for
each of them: names, ids and counts stand in it as they came. Most numbers take one byte, so that one is looked at where
it stands, and only longer ones are read by a function.

Requests with one batch mostly differ from the one before in their partition and their records only. So their *shape* is
remembered for each connection, and what looks the same is not read again.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import DecodeError
from penstock.wire.kafka.primitives import NO_TAGS, read_count, read_string, read_uvarint, skip_tags, uvarint

FLEXIBLE_FROM: Final = 9
IDS_FROM: Final = 13
UUID_BYTES: Final = 16
ONE_BYTE: Final = 0x80  # a uvarint below it takes one byte
NO_THROTTLE: Final = bytes(4)
THREE_NO_TAGS: Final = bytes(3)  # of the partition, the topic and the request
PIECES_OF_ONE: Final = {False: 4, True: 5}  # of an answer to one batch

INT32 = struct.Struct(">i")
INT32S = struct.Struct(">ii")
TERMS = struct.Struct(">hi")

Batch: TypeAlias = tuple[int, str | bytes, int, memoryview | None]
"""Its place in the answer; the topic's name, or its id; the partition; the records."""


class ProduceRequest(NamedTuple):
    """The whole request."""

    transactional_id: str | None
    acks: int
    batches: list[Batch]
    pieces: list[bytes]
    """The answer's body, with gaps."""


class Shape(NamedTuple):
    """How a request with one batch looks up to its partition."""

    version: int
    front: bytes
    """The body's first bytes, up to the partition's index."""
    transactional_id: str | None
    acks: int
    topic: str | bytes
    before: bytes
    """What stands in the answer before the batch's piece."""
    after: bytes

    def read(self, body: memoryview, at: int) -> ProduceRequest | None:
        """The request that stands there; None when it looks otherwise."""
        index_at = at + len(self.front)
        if body[at:index_at] != self.front:
            return None
        number = INT32.unpack_from(body, index_at)[0]
        if self.version >= FLEXIBLE_FROM:
            size, at = read_uvarint(body, index_at + INT32.size)
            stop = at + size - 1
            if body[stop:] != THREE_NO_TAGS:
                return None
        else:
            size, at = INT32.unpack_from(body, index_at + INT32.size)[0] + 1, index_at + INT32S.size
            stop = at + size - 1
            if stop != len(body):
                return None
        if size <= 0:
            return None
        batches: list[Batch] = [(1, self.topic, number, body[at:stop])]
        return ProduceRequest(self.transactional_id, self.acks, batches, [self.before, b"", self.after])


def shape_of(request: ProduceRequest, body: memoryview, at: int, version: int) -> Shape | None:
    """What is to be remembered of a request; None when it has not one batch, or tags make it unusual."""
    flexible, pieces = version >= FLEXIBLE_FROM, request.pieces
    if len(request.batches) != 1 or len(pieces) != PIECES_OF_ONE[flexible]:
        return None
    _place, topic, _number, records = request.batches[0]
    if records is None:
        return None
    sized = len(uvarint(len(records) + 1)) + len(THREE_NO_TAGS) if flexible else INT32.size
    front = bytes(body[at : len(body) - len(records) - sized - INT32.size])
    if not front.endswith(pieces[1]):
        return None
    before, after = pieces[0] + pieces[1], b"".join(pieces[3:])
    return Shape(version, front, request.transactional_id, request.acks, topic, before, after)


def read_produce(body: memoryview, at: int, version: int) -> ProduceRequest:
    """The request that stands there."""
    flexible = version >= FLEXIBLE_FROM
    transactional_id, at = read_string(body, at, flexible)
    acks, _timeout_ms = TERMS.unpack_from(body, at)
    read = _read_compact if flexible else _read_plain
    batches, pieces = read(body, at + TERMS.size, version)
    return ProduceRequest(transactional_id, acks, batches, pieces)


def _read_compact(body: memoryview, at: int, version: int) -> tuple[list[Batch], list[bytes]]:
    """All batches of a request from version 9 on, and the answer."""
    by_id = version >= IDS_FROM
    batches: list[Batch] = []
    end, start = len(body), at
    topics, at = (body[at] - 1, at + 1) if 0 < body[at] < ONE_BYTE else read_count(body, at, True)
    pieces = [bytes(body[start:at])]
    for _ in range(topics):
        start = at
        topic: str | bytes
        if by_id:
            at += UUID_BYTES
            topic = bytes(body[start:at])
        else:
            topic, at = _read_name(body, at, True)
        count, at = (body[at] - 1, at + 1) if 0 < body[at] < ONE_BYTE else read_count(body, at, True)
        pieces.append(bytes(body[start:at]))
        for _ in range(count):
            number = INT32.unpack_from(body, at)[0]
            size, at = read_uvarint(body, at + INT32.size)
            stop = at + size - 1
            if stop > end:
                raise DecodeError(at, "records", f"{end - at} bytes at most", size - 1)
            batches.append((len(pieces), topic, number, body[at:stop] if size else None))
            pieces.append(b"")
            at = stop if size else at
            at = skip_tags(body, at) if body[at] else at + 1
        at = skip_tags(body, at) if body[at] else at + 1
        pieces.append(NO_TAGS)
    pieces.append(NO_THROTTLE + NO_TAGS)
    return batches, pieces


def _read_plain(body: memoryview, at: int, version: int) -> tuple[list[Batch], list[bytes]]:
    """The same up to version 8."""
    batches: list[Batch] = []
    end, start = len(body), at
    topics, at = read_count(body, at, False)
    pieces = [bytes(body[start:at])]
    for _ in range(topics):
        start = at
        topic, at = _read_name(body, at, False)
        count, at = read_count(body, at, False)
        pieces.append(bytes(body[start:at]))
        for _ in range(count):
            number, size = INT32S.unpack_from(body, at)
            at += INT32S.size
            stop = at + max(size, 0)
            if stop > end:
                raise DecodeError(at, "records", f"{end - at} bytes at most", size)
            batches.append((len(pieces), topic, number, None if size < 0 else body[at:stop]))
            pieces.append(b"")
            at = stop
    pieces.append(NO_THROTTLE)
    return batches, pieces


def _read_name(body: memoryview, at: int, flexible: bool) -> tuple[str, int]:
    name, end = read_string(body, at, flexible)
    if name is None:
        raise DecodeError(at, "topic name", "a name", "null")
    return name, end
