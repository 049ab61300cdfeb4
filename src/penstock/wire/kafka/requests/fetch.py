"""Fetch, by hand: the request that is sent for all that is read.

Request, flexible from version 12 on (compact strings and arrays, tags after each partition, topic and the whole):

    int32   replica                        -1: a consumer; to version 14
    int32   wait                           ms
    int32   bytes at least, int32 bytes at most
    int8    isolation                      0 everything, 1 what is committed
    int32   session, int32 its epoch       0 and -1: none; from version 7 on
    array   topics                         string name, from version 13 on 16 bytes of its id; array of partitions
            partition   int32 index
                        int32 leader epoch                      from version 9 on
                        int64 offset
                        int32 epoch of the last record          from version 12 on; -1: not told
                        int64 log start of a follower           from version 5 on; -1
                        int32 bytes at most
    array   topics to forget               none; from version 7 on
    string  rack                           empty; from version 11 on
    tags    of the whole                   for whom this is read and what is wanted of it (`wishes.py`), or none

Answer:

    int32   throttling                     ms
    int16   error code, int32 session      from version 7 on
    array   topics                         string name, or id; array of partitions
            partition   int32 index, int16 error code, int64 high watermark, int64 last stable offset
                        int64 log start offset                  from version 5 on
                        array of (int64 producer, int64 first offset)        aborted transactions
                        int32 preferred replica                 from version 11 on
                        bytes records

Sessions are not used: they would spare the names of idle partitions, and cost a state that both sides must agree on. A
broker that throttles answers without any partition. Version 18 is not spoken: its news are for followers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from uuid import UUID

from penstock.errors import DecodeError, PenstockError, PositionError, RefusedError
from penstock.wire.entry import Buffer
from penstock.wire.kafka.codes import ROWS, error_of
from penstock.wire.kafka.frames import is_own
from penstock.wire.kafka.header import span, split
from penstock.wire.kafka.primitives import (
    INT32,
    NO_TAGS,
    compact_string,
    plain_string,
    read_array_size,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
    uvarint,
)
from penstock.wire.kafka.requests.exchange import Exchange, Told, by_topic
from penstock.wire.kafka.versions import FETCH
from penstock.wire.kafka.wishes import Wish, wish_tags
from penstock.wire.protocol import Aborted, Fetch, Fetched, Partition, Wanted

START_OFFSET_FROM = 5
SESSIONS_FROM = 7
LEADER_EPOCHS_FROM = 9
REPLICAS_FROM = 11
RECORD_EPOCHS_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_TO = 14
UUID_BYTES = 16
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
CONSUMER = b"\xff\xff\xff\xff"
NO_SESSION = b"\x00\x00\x00\x00\xff\xff\xff\xff"

_OUT_OF_RANGE = PositionError(-1, -1, -1)
_TERMS = struct.Struct(">iiib")
_HEAD = struct.Struct(">hi")
_GIVEN = struct.Struct(">ihqq")
_GIVEN_START = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_ROWS = {  # of the version from which on a partition is asked for so; -1 for what only followers tell
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
    12: struct.Struct(">iiqiqi"),
}


def encode(request: Fetch, version: int) -> Sequence[Buffer]:
    """The body as one buffer."""
    flexible = FETCH.is_flexible(version)
    parts = [CONSUMER] if version <= REPLICA_TO else []
    parts.append(_TERMS.pack(request.wait_ms, request.bytes_min, request.bytes_max, request.committed))
    if version >= SESSIONS_FROM:
        parts.append(NO_SESSION)
    topics = by_topic(request.wanted)
    parts.append(_count(len(topics), flexible))
    for topic, partitions in topics.items():
        parts += (_topic(request, topic, version), _count(len(partitions), flexible))
        parts += (_asked(partition.number, request.wanted[partition], version) for partition in partitions)
        if flexible:
            parts.append(NO_TAGS)
    if version >= SESSIONS_FROM:
        parts.append(_count(0, flexible))
    if version >= REPLICAS_FROM:
        parts.append(compact_string("") if flexible else plain_string(""))
    if flexible:
        parts.append(wish_tags(Wish(request.group, request.filter)))
    return [b"".join(parts)]


def _topic(request: Fetch, topic: str, version: int) -> bytes:
    if version < TOPIC_IDS_FROM:
        return compact_string(topic) if FETCH.is_flexible(version) else plain_string(topic)
    topic_id = request.topic_ids.get(topic)
    if topic_id is None:
        raise RefusedError(f"topic {topic}: this broker knows topics by their ids, and has not told that of this one")
    return topic_id.bytes


def _asked(number: int, wanted: Wanted, version: int) -> bytes:
    position, bytes_max, leader_epoch = wanted
    if version >= RECORD_EPOCHS_FROM:
        return _ROWS[12].pack(number, leader_epoch, position, -1, -1, bytes_max) + NO_TAGS
    if version >= LEADER_EPOCHS_FROM:
        return _ROWS[9].pack(number, leader_epoch, position, -1, bytes_max)
    if version >= START_OFFSET_FROM:
        return _ROWS[5].pack(number, position, -1, bytes_max)
    return _ROWS[4].pack(number, position, bytes_max)


def decode(request: Fetch, version: int, data: memoryview, at: int) -> Told:
    """What was given of each partition."""
    flexible = FETCH.is_flexible(version)
    throttle_ms: int = INT32.unpack_from(data, at)[0]
    at += INT32.size
    if version >= SESSIONS_FROM:
        code, _session = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if code:
            return Told(error_of(code, "fetch"), throttle_ms)
    names = {topic_id: name for name, topic_id in request.topic_ids.items() if topic_id is not None}
    given: dict[Partition, Fetched | PenstockError] = {}
    topics, at = read_count(data, at, flexible)
    for _ in range(topics):
        topic, at = _name(data, at, version, names)
        partitions, at = read_count(data, at, flexible)
        for _ in range(partitions):
            number, part, at = _partition(topic, version, data, at)
            partition = Partition(topic, number)
            if part is _OUT_OF_RANGE and partition in request.wanted:
                part = PositionError(request.wanted[partition].position, -1, -1)
            given[partition] = part
        if flexible:
            at = skip_tags(data, at)
    if flexible:
        skip_tags(data, at)
    if not given.keys() <= request.wanted.keys():
        strange = ", ".join(sorted(map(str, given.keys() - request.wanted.keys())))
        raise DecodeError(0, "partitions", "those that were asked for", strange)
    return Told(given, throttle_ms)


def _name(data: memoryview, at: int, version: int, names: Mapping[UUID, str]) -> tuple[str, int]:
    if version < TOPIC_IDS_FROM:
        name, end = read_string(data, at, FETCH.is_flexible(version))
        if name is None:
            raise DecodeError(at, "topic name", "a string", "null")
        return name, end
    end = at + UUID_BYTES
    found = bytes(data[at:end])
    if len(found) < UUID_BYTES:
        raise DecodeError(at, "topic id", f"{UUID_BYTES} bytes", f"{len(found)} bytes")
    known = names.get(UUID(bytes=found))
    if known is None:
        raise DecodeError(at, "topic id", "one that was asked for", UUID(bytes=found))
    return known, end


def _partition(topic: str, version: int, data: memoryview, at: int) -> tuple[int, Fetched | PenstockError, int]:
    flexible = FETCH.is_flexible(version)
    fields: struct.Struct = _GIVEN_START if version >= START_OFFSET_FROM else _GIVEN
    number, code, end, stable, *more = fields.unpack_from(data, at)
    aborted, at = _aborted(data, at + fields.size, flexible)
    if version >= REPLICAS_FROM:
        at += INT32.size
    records, at = _records(data, at, flexible)
    if flexible:
        at = skip_tags(data, at)
    name = f"{topic}-{number}"
    if code == OFFSET_OUT_OF_RANGE:
        return number, _OUT_OF_RANGE, at
    if code == CORRUPT_MESSAGE:  # to a producer the same code says that trying again helps
        return number, RefusedError(f"{name}: the broker's log is damaged there", ROWS[code].name), at
    error = error_of(code, name) if code else None
    if error is not None:
        return number, error, at
    return number, _fetched(records, aborted, more[0] if more else -1, end, stable), at


def _fetched(
    records: memoryview, aborted: Sequence[Aborted], start: int, end: int, stable: int
) -> Fetched | DecodeError:
    """Entries that cannot be told apart are an error of their partition alone."""
    try:
        entries = split(records)
    except DecodeError as error:
        return error
    if not entries:
        return Fetched((), len(records), -1, -1, -1, start, end, stable, aborted)
    first, last = span(entries[0]), span(entries[-1])
    return Fetched(entries, len(records), last.next, first.epoch, last.epoch, start, end, stable, aborted)


def _aborted(data: memoryview, at: int, flexible: bool) -> tuple[Sequence[Aborted], int]:
    count, at = read_array_size(data, at, flexible)
    if not count:
        return (), at
    found = []
    for _ in range(count):
        found.append(Aborted._make(_ABORTED.unpack_from(data, at)))
        at += _ABORTED.size
        if flexible:
            at = skip_tags(data, at)
    return found, at


def _records(data: memoryview, at: int, flexible: bool) -> tuple[memoryview, int]:
    """The bytes of records, which stay as they are: copied where the frame's memory is used again."""
    start = at
    if flexible:
        size, at = read_uvarint(data, at)
        size -= 1
    else:
        size, at = INT32.unpack_from(data, at)[0], at + INT32.size
    if not -1 <= size <= len(data) - at:
        raise DecodeError(start, "records", f"0 to {len(data) - at} bytes", size)
    end = at + max(size, 0)
    records = data[at:end]
    return records if is_own(data) else memoryview(bytes(records)), end


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else INT32.pack(count)


EXCHANGE = Exchange(FETCH, encode, decode)
