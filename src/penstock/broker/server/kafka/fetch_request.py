"""Fetch requests, read by hand.

    to 14      replica i32
               max wait ms i32 | min bytes i32 | max bytes i32 | isolation i8
    from 7     session id i32 | session epoch i32
               topics [ name string, from 13 on its id uuid | partitions [ index i32 | from 9 leader epoch i32
                        | offset i64 | from 12 last epoch i32 | from 5 log start i64 | max bytes i32 ] ]
    from 7     forgotten topics [ name or id | partitions [ i32 ] ]
    from 11    rack string
    from 12    tags of the whole: for whom this is read and what is wanted of it (`wire/kafka/wishes.py`)

From version 12 on strings and arrays are compact, and every structure ends with tags.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import DecodeError
from penstock.wire.kafka.primitives import read_count, read_string, skip_tags
from penstock.wire.kafka.wishes import NO_WISH, Wish, read_wish

FLEXIBLE_FROM: Final = 12
IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7
REPLICAS_TO: Final = 14
UUID_BYTES: Final = 16
NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
NO_LEADER_EPOCH: Final = -1
COMMITTED: Final = 1

TopicKey: TypeAlias = str | bytes
"""A topic's name, or the sixteen bytes of its id."""

INT32 = struct.Struct(">i")
TERMS = struct.Struct(">iiib")
SESSION = struct.Struct(">ii")
_WITHOUT_EPOCH = {4: struct.Struct(">iqi"), 5: struct.Struct(">iq8xi")}
_WITH_EPOCH = {9: struct.Struct(">iiq8xi"), 12: struct.Struct(">iiq12xi")}
EPOCHS_FROM: Final = 9
STARTS_FROM: Final = 5


class AskedPartition(NamedTuple):
    """What is wanted of one partition."""

    topic: TopicKey
    number: int
    leader_epoch: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """The whole request."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    committed_only: bool
    session_id: int
    session_epoch: int
    partitions: list[AskedPartition]
    forgotten: list[tuple[TopicKey, int]]
    wish: Wish = NO_WISH


def read_fetch(body: memoryview, at: int, version: int) -> FetchRequest:
    """The request that stands there."""
    if version <= REPLICAS_TO:
        at += INT32.size
    wait_ms, bytes_min, bytes_max, isolation = TERMS.unpack_from(body, at)
    at += TERMS.size
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= SESSIONS_FROM:
        session_id, session_epoch = SESSION.unpack_from(body, at)
        at += SESSION.size
    partitions, at = _read_partitions(body, at, version)
    forgotten: list[tuple[TopicKey, int]] = []
    if version >= SESSIONS_FROM:
        forgotten, at = _read_forgotten(body, at, version)
    wish = _read_wish(body, at) if version >= FLEXIBLE_FROM else NO_WISH
    terms = (wait_ms, bytes_min, bytes_max, isolation == COMMITTED)
    return FetchRequest(*terms, session_id, session_epoch, partitions, forgotten, wish)


def _read_wish(body: memoryview, at: int) -> Wish:
    _rack, at = read_string(body, at, True)
    return read_wish(body, at) if body[at] else NO_WISH


def _read_partitions(body: memoryview, at: int, version: int) -> tuple[list[AskedPartition], int]:
    flexible = version >= FLEXIBLE_FROM
    asked: list[AskedPartition] = []
    topics, at = read_count(body, at, flexible)
    for _ in range(topics):
        topic, at = _read_topic(body, at, version)
        count, at = read_count(body, at, flexible)
        if version < EPOCHS_FROM:
            at = _read_old(body, at, _WITHOUT_EPOCH[5 if version >= STARTS_FROM else 4], topic, count, asked)
            continue
        row = _WITH_EPOCH[FLEXIBLE_FROM if flexible else EPOCHS_FROM]
        size, unpack = row.size, row.unpack_from
        for _ in range(count):
            asked.append(AskedPartition(topic, *unpack(body, at)))
            at += size
            if flexible:
                at = skip_tags(body, at) if body[at] else at + 1
        if flexible:
            at = skip_tags(body, at)
    return asked, at


def _read_old(
    body: memoryview, at: int, row: struct.Struct, topic: TopicKey, count: int, asked: list[AskedPartition]
) -> int:
    for _ in range(count):
        number, offset, bytes_max = row.unpack_from(body, at)
        asked.append(AskedPartition(topic, number, NO_LEADER_EPOCH, offset, bytes_max))
        at += row.size
    return at


def _read_forgotten(body: memoryview, at: int, version: int) -> tuple[list[tuple[TopicKey, int]], int]:
    flexible = version >= FLEXIBLE_FROM
    forgotten: list[tuple[TopicKey, int]] = []
    topics, at = read_count(body, at, flexible)
    for _ in range(topics):
        topic, at = _read_topic(body, at, version)
        count, at = read_count(body, at, flexible)
        forgotten += ((topic, number) for number in struct.unpack_from(f">{count}i", body, at))
        at += count * INT32.size
        if flexible:
            at = skip_tags(body, at)
    return forgotten, at


def _read_topic(body: memoryview, at: int, version: int) -> tuple[TopicKey, int]:
    if version >= IDS_FROM:
        end = at + UUID_BYTES
        if end > len(body):
            raise DecodeError(at, "topic id", f"{UUID_BYTES} bytes", f"{len(body) - at} bytes")
        return bytes(body[at:end]), end
    name, end = read_string(body, at, version >= FLEXIBLE_FROM)
    if name is None:
        raise DecodeError(at, "topic name", "a name", "null")
    return name, end
