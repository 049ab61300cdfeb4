"""Stored batches for tests of reading: messages at positions, of producers, in transactions, with claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.consume.opening import Entry
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, PropertyClaim, Stamp
from penstock.wire.kafka.header import BatchHeader
from penstock.wire.kafka.layout import BATCH_HEADER, LOG_APPEND_TIME
from penstock.wire.kafka.log_format import KafkaLogFormat
from tests.wire.kafka.entries import with_fields, write
from tests.wire.kafka.messages import Sent

PLAIN = Stamp()


class Row(NamedTuple):
    """A message as a reader hands it out."""

    partition: int
    position: int
    value: bytes | None
    key: bytes | None
    properties: tuple[tuple[str, bytes | None], ...]
    time_ms: int


def stored(
    first: int,
    messages: Sequence[Sent],
    *,
    codec: Codec = Codec.NONE,
    claim: PropertyClaim = NO_CLAIM,
    stamp: Stamp = PLAIN,
    epoch: int = 0,
    log_time: int | None = None,
    last: int | None = None,
) -> bytes:
    """A batch as a log has it at this position; `last`: it was thinned, and reached so far before."""
    fields: dict[str, int] = {"base_offset": first, "leader_epoch": epoch}
    entry = write(messages, codec, claim=claim, stamp=stamp)
    if last is not None:
        fields["last_offset_delta"] = last - first
    if log_time is not None:
        attributes = BatchHeader._make(BATCH_HEADER.unpack_from(entry)).attributes | LOG_APPEND_TIME
        fields |= {"attributes": attributes, "max_timestamp": log_time}
    return with_fields(entry, **fields)


def values(first: int, count: int, **more: Any) -> bytes:
    """A batch of messages that say where they are."""
    return stored(first, [Sent(b"%d" % (first + i), time_ms=first + i) for i in range(count)], **more)


def emptied(first: int, last: int, epoch: int = 0) -> bytes:
    """A batch that lost all its messages."""
    return with_fields(
        write([Sent(b"x")])[:61],
        base_offset=first,
        leader_epoch=epoch,
        last_offset_delta=last - first,
        count=0,
        length=49,
    )


def marker(first: int, producer: int, *, commit: bool, epoch: int = 0) -> bytes:
    """The end of a transaction."""
    made = bytes(KafkaLogFormat().marker(commit, producer, 0, first))
    return with_fields(made, base_offset=first, leader_epoch=epoch)


def rows_of(item: pa.RecordBatch | Entry) -> list[Row]:
    """What a record batch holds, one tuple for each message."""
    assert isinstance(item, pa.RecordBatch)
    fields = [
        item.column("partition").to_pylist(),
        item.column("position").to_pylist(),
        item.column("value").to_pylist(),
        item.column("key").to_pylist(),
        [tuple(pairs) for pairs in item.column("properties").to_pylist()],
        item.column("event_time").cast(pa.int64()).to_pylist(),
    ]
    return [Row(*row) for row in zip(*fields, strict=True)]
