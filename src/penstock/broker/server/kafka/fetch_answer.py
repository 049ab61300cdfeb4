"""Answers to Fetch, written by hand around the stretches of files that they carry.

               throttle ms i32
    from 7     error i16 | session id i32
               topics [ name or id | partitions [ index i32 | error i16 | high watermark i64 | last stable offset i64
               | from 5 log start offset i64 | aborted [ producer i64 | first offset i64 ]
               | from 11 preferred replica i32 | records bytes ] ]

From version 12 on strings, bytes and arrays are compact, and every structure ends with tags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from penstock.broker.aborted import Aborted
from penstock.broker.log.partition import Slice
from penstock.broker.server.kafka.fetch_request import FLEXIBLE_FROM, SESSIONS_FROM, STARTS_FROM, TopicKey
from penstock.broker.server.outbox import Out
from penstock.wire.kafka.checksum import batch_checksum
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CHECKED_PART, LENGTH_END, MAGIC, UNCHECKED_PART
from penstock.wire.kafka.primitives import compact_string, plain_string, uvarint

REPLICAS_FROM: Final = 11
NO_POSITION: Final = -1
NO_TIME: Final = -1
SMALL_BYTES: Final = 32 << 10
"""A stretch of a file that is no larger is copied: one call less than sending it from there."""

INT16_INT32 = struct.Struct(">hi")
INT32 = struct.Struct(">i")
HEAD = struct.Struct(">ii")
PART = struct.Struct(">ihqqq")
OLD_PART = struct.Struct(">ihqq")
ABORTED = struct.Struct(">qq")


class Piece(NamedTuple):
    """What is answered for one partition."""

    topic: TopicKey
    number: int
    code: int
    visible: int = NO_POSITION
    stable: int = NO_POSITION
    start: int = NO_POSITION
    aborted: Sequence[Aborted] | None = None
    records: Sequence[Out] = ()
    size: int = 0
    """Bytes of the records."""
    messages: int = 0
    """Positions that the client has read with it."""
    entries: int = 0
    """Entries among the records."""


def skipping_batch(first: int, next_position: int) -> bytes:
    """A batch without a record over positions that a reader is not given, so that it goes on behind them.

    Logs that are compacted hold such batches, for the same reason; clients know them.
    """
    checked = CHECKED_PART.pack(0, next_position - 1 - first, NO_TIME, NO_TIME, -1, -1, -1, 0)
    length = BATCH_HEADER_BYTES - LENGTH_END
    return UNCHECKED_PART.pack(first, length, 0, MAGIC, batch_checksum(checked, b"")) + checked


def write_fetch(version: int, correlation: int, code: int, session_id: int, pieces: Iterable[Piece]) -> list[Out]:
    """The whole answer, as what is to be sent one after the other."""
    flexible = version >= FLEXIBLE_FROM
    out: list[Out] = []
    text = bytearray(9 if flexible else 8) + bytes(4)  # size, correlation, tags; throttle
    if version >= SESSIONS_FROM:
        text += INT16_INT32.pack(code, session_id)
    topics = [(topic, list(group)) for topic, group in groupby(pieces, key=lambda piece: piece.topic)]
    text += uvarint(len(topics) + 1) if flexible else INT32.pack(len(topics))
    first, sent = text, 0
    for topic, group in topics:
        text += _topic(topic, flexible)
        text += uvarint(len(group) + 1) if flexible else INT32.pack(len(group))
        for piece in group:
            text += _piece(piece, version, flexible)
            for item in piece.records:
                if isinstance(item, Slice):
                    out += (text, item)
                    sent += len(text) + item.size
                    text = bytearray()
                else:
                    text += item
            if flexible:
                text.append(0)
        if flexible:
            text.append(0)
    if flexible:
        text.append(0)
    out.append(text)
    HEAD.pack_into(first, 0, sent + len(text) - INT32.size, correlation)
    return out


def _topic(topic: TopicKey, flexible: bool) -> bytes:
    if isinstance(topic, bytes):
        return topic
    return compact_string(topic) if flexible else plain_string(topic)


def _piece(piece: Piece, version: int, flexible: bool) -> bytes:
    """A partition's part, up to the records."""
    _topic_key, number, code, visible, stable, start, aborted, _records, size, *_counted = piece
    if version >= STARTS_FROM:
        told = PART.pack(number, code, visible, stable, start)
    else:
        told = OLD_PART.pack(number, code, visible, stable)
    if aborted:
        told += _aborted(aborted, flexible)
    elif flexible:
        told += b"\x00" if aborted is None else b"\x01"
    else:
        told += INT32.pack(-1 if aborted is None else 0)
    if version >= REPLICAS_FROM:
        told += b"\xff\xff\xff\xff"
    return told + (uvarint(size + 1) if flexible else INT32.pack(size))


def _aborted(aborted: Sequence[Aborted], flexible: bool) -> bytes:
    end = b"\x00" if flexible else b""
    rows = b"".join(ABORTED.pack(each.producer, each.first) + end for each in aborted)
    return (uvarint(len(aborted) + 1) if flexible else INT32.pack(len(aborted))) + rows
