"""Produce, by hand: the one request that is sent for every batch.

Request, flexible from version 9 on (compact strings and arrays, records' length + 1 as a uvarint, tags after each
partition, topic and the whole):

    string  transactional id               null: none
    int16   acks                           -1 all, 1 leader, 0 none
    int32   timeout                        ms
    array   topics                         string name, array of partitions
            partition                      int32 index, int32 length of records, records

Answer:

    array   topics                         string name, array of partitions
            partition   int32 index, int16 error code, int64 base offset, int64 log append time
                        int64 log start offset                                      from version 5 on
                        array of (int32 index in the batch, string message)         from version 8 on
                        string message                                              from version 8 on
    int32   throttle time                  ms

Versions 10 to 12 add tags that say who leads instead, which `LookUp` tells better, and meanings (see `versions`).
Payloads are never copied: a request is a list of buffers, the batches' own among them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from penstock.errors import DecodeError, DuplicateError
from penstock.wire.entry import Buffer
from penstock.wire.kafka.codes import error_of
from penstock.wire.kafka.primitives import (
    INT32,
    NO_TAGS,
    compact_string,
    plain_string,
    read_count,
    read_string,
    skip_tags,
    uvarint,
)
from penstock.wire.kafka.requests.exchange import Exchange, Told, check_told
from penstock.wire.kafka.versions import PRODUCE
from penstock.wire.protocol import Outgoing, Partition, Publish, Spoilt, Stored, Verdict

ACKS = {"all": -1, "leader": 1, "none": 0}
START_OFFSET_FROM = 5
RECORD_ERRORS_FROM = 8
NOTHING_MORE = b"\x01\x00\x00"  # no messages to blame, no word, no tags: the end of nearly every partition's answer

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_LENGTH = struct.Struct(">ii")
_STORED = struct.Struct(">ihqq")
_STORED_START = struct.Struct(">ihqqq")


def encode(request: Publish, version: int) -> Sequence[Buffer]:
    """The body as buffers, header and payload of each batch among them as they are."""
    flexible = PRODUCE.is_flexible(version)
    string = compact_string if flexible else plain_string
    topics: dict[str, list[Outgoing]] = {}
    for batch in request.batches:
        topics.setdefault(batch.partition.topic, []).append(batch)
    between = string(request.transactional_id) + _ACKS_TIMEOUT.pack(ACKS[request.acks], request.timeout_ms)
    between += _count(len(topics), flexible)
    buffers: list[Buffer] = []
    for topic, batches in topics.items():
        between += string(topic) + _count(len(batches), flexible)
        for (_, number), header, payload in batches:
            length = len(header) + len(payload)
            if flexible:
                buffers += (between + INT32.pack(number) + uvarint(length + 1), header, payload)
                between = NO_TAGS
            else:
                buffers += (between + _INDEX_LENGTH.pack(number, length), header, payload)
                between = b""
        if flexible:
            between += NO_TAGS
    if flexible:
        between += NO_TAGS
    if between:
        buffers.append(between)
    return buffers


def decode(request: Publish, version: int, data: memoryview, at: int) -> Told:
    """What became of each batch."""
    flexible = PRODUCE.is_flexible(version)
    verdicts: dict[Partition, Verdict] = {}
    topics, at = read_count(data, at, flexible)
    for _ in range(topics):
        start = at
        topic, at = read_string(data, at, flexible)
        if topic is None:
            raise DecodeError(start, "topic name", "a string", "null")
        partitions, at = read_count(data, at, flexible)
        for _ in range(partitions):
            number, verdict, at = _partition(topic, version, data, at)
            verdicts[Partition(topic, number)] = verdict
        if flexible:
            at = skip_tags(data, at)
    throttle_ms: int = INT32.unpack_from(data, at)[0]
    if flexible:
        skip_tags(data, at + INT32.size)
    check_told((batch.partition for batch in request.batches), verdicts)
    return Told(verdicts, throttle_ms)


def _partition(topic: str, version: int, data: memoryview, at: int) -> tuple[int, Verdict, int]:
    fields: struct.Struct = _STORED_START if version >= START_OFFSET_FROM else _STORED
    number, code, offset, time_ms, *_ = fields.unpack_from(data, at)
    at += fields.size
    flexible = PRODUCE.is_flexible(version)
    messages: dict[int, str] = {}
    said = None
    if flexible and data[at : at + len(NOTHING_MORE)] == NOTHING_MORE:
        at += len(NOTHING_MORE)
    elif version >= RECORD_ERRORS_FROM:
        messages, at = _record_errors(data, at, flexible)
        said, at = read_string(data, at, flexible)
        at = skip_tags(data, at) if flexible else at
    error = error_of(code, f"{topic}-{number}", said) if code else None
    if error is None or isinstance(error, DuplicateError):
        return number, Stored(offset if offset >= 0 else None, time_ms if time_ms >= 0 else None), at
    return number, Spoilt(error, messages) if messages else error, at


def _record_errors(data: memoryview, at: int, flexible: bool) -> tuple[dict[int, str], int]:
    messages: dict[int, str] = {}
    count, at = read_count(data, at, flexible)
    for _ in range(count):
        index: int = INT32.unpack_from(data, at)[0]
        said, at = read_string(data, at + INT32.size, flexible)
        if flexible:
            at = skip_tags(data, at)
        messages[index] = said or ""
    return messages, at


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else INT32.pack(count)


def expects_answer(request: Any) -> bool:
    """Without acks the broker keeps silent."""
    return not (isinstance(request, Publish) and request.acks == "none")


EXCHANGE = Exchange(PRODUCE, encode, decode)
