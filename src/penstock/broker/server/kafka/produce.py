"""Produce: batches into the log, judged by their headers and checksums; read and answered by hand, for speed.

    answer    topics [ name or id as it came | partitions [ index i32 | error i16 | base offset i64
              | log-append time i64 | from 5 log start offset i64 | from 8 record errors [ index i32 | message string ]
              | message string ] ] | throttle ms i32

From version 9 on strings, bytes and arrays are compact, and every structure ends with tags.

What is wrong with a batch's header or checksum is for `batch_judge` to say; count, control bit, size, times, producer
and transaction are for the partition. The records themselves are never opened. The answer leaves when every batch in it
is as durable as the broker's policy demands.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka.batch_judge import FORMAT, BatchFaultError, judge
from penstock.broker.server.kafka.codes import NONE, NUMBERS, UNKNOWN_SERVER_ERROR, code_of
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.produce_request import (
    FLEXIBLE_FROM,
    INT32,
    ProduceRequest,
    Shape,
    read_produce,
    shape_of,
)
from penstock.broker.server.kafka.record_times import Opening
from penstock.errors import PenstockError, UnsupportedError
from penstock.wire.kafka.primitives import compact_string, plain_string, uvarint

if TYPE_CHECKING:
    from penstock.broker.log.partition import Place
    from penstock.broker.partition_state import PartitionState

STARTS_FROM: Final = 5
MESSAGES_FROM: Final = 8
ABORTABLE_FROM: Final = 11
ENLISTS_FROM: Final = 12
NEWEST: Final = 13
NO_OFFSET: Final = -1
NO_TIME: Final = -1
ACKS_NONE: Final = 0
ACKS: Final = (-1, 0, 1)
UNLIKE_MAX: Final = 16
"""After so many requests of other shapes another one is remembered."""

OLD_PART = struct.Struct(">ihqq")
PART = struct.Struct(">ihqqq")
HEAD = struct.Struct(">ii")  # size and correlation id
TAGGED_HEAD = struct.Struct(">iib")
GOOD: Final = {  # what follows a part without errors
    **dict.fromkeys(range(STARTS_FROM, MESSAGES_FROM), b""),
    MESSAGES_FROM: b"\x00\x00\x00\x00\xff\xff",
    **dict.fromkeys(range(FLEXIBLE_FROM, NEWEST + 1), b"\x01\x00\x00"),
}


def produce(body: memoryview, at: int, context: Context) -> None:
    """Have batches stored, and answer when they are."""
    request = _read(body, at, context)
    acks, batches = request.acks, request.batches
    production = Production(context, request)
    if acks == ACKS_NONE:
        context.slot.answer(())
    elif not batches:
        production.answer()
    elif acks not in ACKS:
        error = BatchFaultError(NUMBERS["INVALID_REQUIRED_ACKS"], f"acks can be -1, 0 or 1, not {acks}")
        for place, _topic, number, _records in batches:
            production.failed(place, number, error)
        return
    for place, topic, number, records in batches:
        production.publish(place, topic, number, records)


def _read(body: memoryview, at: int, context: Context) -> ProduceRequest:
    """The request, which mostly looks like the connection's last one."""
    session, version = context.session, context.version
    shape: Shape | None = session.shape
    if shape is not None and shape.version == version:
        request = shape.read(body, at)
        if request is not None:
            return request
    request = read_produce(body, at, version)
    session.unlike += 1
    if shape is None or session.unlike % UNLIKE_MAX == 0:
        session.shape = shape_of(request, body, at, version)
    return request


class Production:
    """One request: the pieces of its answer, until all are known. Runs on: the loop thread."""

    __slots__ = ("_acks", "_context", "_left", "_pieces", "_transactional_id")

    def __init__(self, context: Context, request: ProduceRequest) -> None:
        self._context = context
        self._transactional_id, self._acks, batches, self._pieces = request
        self._left = len(batches)

    def publish(self, place: int, topic: str | bytes, number: int, records: memoryview | None) -> None:
        """Hand a batch to its partition."""
        context = self._context
        try:
            broker = context.door.broker
            state = broker.partition(topic if isinstance(topic, str) else self._name_of(topic), number)
            header = judge(records, context.version)
            assert records is not None
            state.publish(
                FORMAT,
                records,
                header,
                context.now,
                context.now_ms,
                context.client_id or "",
                self._transactional_id,
                partial(self._done, place, state, state.log.end, header.max_time_ms),
                enlists=context.version >= ENLISTS_FROM,
            )
        except Refused as error:
            self.failed(place, number, blaming(error, records, topic, context))
        except (BatchFaultError, PenstockError) as error:
            self.failed(place, number, error)

    def _name_of(self, topic_id: bytes) -> str:
        topic = self._context.door.topic_by_id(topic_id)
        if topic is None:
            raise BatchFaultError(NUMBERS["UNKNOWN_TOPIC_ID"], "no topic has this id")
        return topic.name

    def _done(self, place: int, state: PartitionState, end: int, sent_ms: int, outcome: Place | Exception) -> None:
        """A batch is stored, or is not. One that lies before the `end` there was is a duplicate, told with its time."""
        if isinstance(outcome, Exception):
            self.failed(place, state.number, outcome)
            return
        context = self._context
        version, first = context.version, outcome[0]
        time_ms = NO_TIME if first >= end else sent_ms
        if state.topic.settings.time_type == "log" and first >= end:
            time_ms = context.now_ms
        if version >= STARTS_FROM:
            part = PART.pack(state.number, NONE, first, time_ms, state.log.start)
            self._pieces[place] = part + GOOD[version]
        else:
            self._pieces[place] = OLD_PART.pack(state.number, NONE, first, time_ms)
        self._left -= 1
        if not self._left and self._acks != ACKS_NONE:
            self.answer()

    def failed(self, place: int, number: int, error: Exception) -> None:
        """A batch is not stored."""
        if self._acks == ACKS_NONE:
            self._context.connection.close(f"a batch that is not answered for could not be stored: {error}")
            return
        self._pieces[place] = failed_part(self._context.version, number, error)
        self._left -= 1
        if not self._left:
            self.answer()

    def answer(self) -> None:
        """All pieces are known."""
        context = self._context
        body = b"".join(self._pieces)
        if context.version >= FLEXIBLE_FROM:
            head = TAGGED_HEAD.pack(len(body) + TAGGED_HEAD.size - INT32.size, context.correlation, 0)
        else:
            head = HEAD.pack(len(body) + HEAD.size - INT32.size, context.correlation)
        context.slot.answer((head + body,))


def blaming(error: Refused, records: memoryview | None, topic: str | bytes, context: Context) -> Refused:
    """The refusal, with the single messages whose times are wrong where that is the reason."""
    if error.reason is not Refusal.BAD_TIME or records is None or context.version < MESSAGES_FROM:
        return error
    found = context.broker.topics.find(topic) if isinstance(topic, str) else context.door.topic_by_id(topic)
    if found is None:
        return error
    settings, now_ms = found.settings, context.now_ms
    before, after = settings.time_before_max_ms, settings.time_after_max_ms
    oldest = None if before is None else now_ms - before
    wrong = Opening().outside(records, oldest, None if after is None else now_ms + after)
    texts = {index: f"its time, {time_ms}, is too far from the broker's" for index, time_ms in wrong.items()}
    return Refused(error.reason, error.text, texts)


def failed_part(version: int, number: int, error: Exception) -> bytes:
    """A partition's part of the answer, for a batch that was not stored."""
    code, text = _code(error, version), str(error)
    if version < STARTS_FROM:
        return OLD_PART.pack(number, code, NO_OFFSET, NO_TIME)
    part = PART.pack(number, code, NO_OFFSET, NO_TIME, NO_OFFSET)
    if version < MESSAGES_FROM:
        return part
    flexible = version >= FLEXIBLE_FROM
    string = compact_string if flexible else plain_string
    end = b"\x00" if flexible else b""
    records = (error.records if isinstance(error, Refused) else None) or {}
    part += (compact_count if flexible else plain_count)(len(records))
    for index, fault in sorted(records.items()):
        part += INT32.pack(index) + string(fault) + end
    return part + string(text) + end


def _code(error: Exception, version: int) -> int:
    if isinstance(error, BatchFaultError):
        return error.code
    if isinstance(error, UnsupportedError):
        return UNKNOWN_SERVER_ERROR
    if isinstance(error, Refused):
        if error.reason is Refusal.NOT_ENLISTED and version >= ABORTABLE_FROM:
            return NUMBERS["TRANSACTION_ABORTABLE"]
        if error.reason is Refusal.CONCURRENT_TRANSACTION and version < ENLISTS_FROM:
            return NUMBERS["NOT_ENOUGH_REPLICAS"]  # which makes clients before it try again
    return code_of(error)


def compact_count(count: int) -> bytes:
    """The count of a compact array."""
    return uvarint(count + 1)


def plain_count(count: int) -> bytes:
    """The count of a plain array."""
    return INT32.pack(count)
