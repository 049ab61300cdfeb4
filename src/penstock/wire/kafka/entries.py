"""Stored batches as a reader has them: judged by their headers, and opened several at a time.

Records tell their offset and time as differences to their batch's header. So the unpacked records of many batches can
be put one behind the other and gathered as if they were one, from zero, and each batch's base is added by columns:
tiny batches cost their header and little else. What does not add up then is opened batch by batch, so that the error
is that of the batch in question. A batch with a claim is always opened alone, since its first record carries the claim
and has it taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.errors import DecodeError
from penstock.wire.columns import BufferColumns
from penstock.wire.entry import Buffer, EntryHeader
from penstock.wire.kafka.header import BatchHeader, describe, describe_whole, parse_header, redate, verify
from penstock.wire.kafka.kernel import gather
from penstock.wire.kafka.layout import BATCH_HEADER, CLAIM, LOG_APPEND_TIME
from penstock.wire.kafka.log_format import KafkaLogFormat
from penstock.wire.kafka.records import columns_of, payload_of


class KafkaEntries:
    """The `StoredEntries` of Kafka. Has no state."""

    def judge(self, entry: Buffer, *, check: bool, claim: bool, bytes_max: int) -> EntryHeader:
        """What a batch's header tells; a claim is read where one is wanted and the header says that it is there."""
        header = verify(entry) if check else parse_header(entry)
        return describe_whole(header, entry, bytes_max) if claim else describe(header)

    def is_abort(self, entry: Buffer) -> bool:
        """Whether a control batch aborts a transaction."""
        return KafkaLogFormat().marker_of(entry) is False

    def undated(self, entry: Buffer) -> Buffer:
        """A batch without log-append time: its records show their senders' times again."""
        return redate(entry, None)

    def open(self, entries: Sequence[Buffer], bytes_max: int, bytes_aim: int) -> tuple[BufferColumns, int]:
        """The messages of the first batches together, and of how many batches they are. All were judged before."""
        headers: list[BatchHeader] = []
        payloads: list[Buffer] = []
        size = 0
        for entry in entries:
            header = BatchHeader._make(BATCH_HEADER.unpack_from(entry))
            if headers and (header.attributes & CLAIM or size + header.length > bytes_aim):
                break
            try:
                payload = payload_of(header, entry, bytes_max)
            except DecodeError:
                if headers:
                    break  # it fails alone, when it is the first
                raise
            headers.append(header)
            payloads.append(payload)
            size += len(payload)
            if header.attributes & CLAIM or size >= bytes_aim:
                break
        together = _together(headers, payloads) if len(headers) > 1 else None
        return (together, len(headers)) if together else (columns_of(headers[0], payloads[0]), 1)


def _together(headers: list[BatchHeader], payloads: list[Buffer]) -> BufferColumns | None:
    """The messages of several batches; None when their records are not those that the headers tell of."""
    counts = [header.count for header in headers]
    try:
        columns = gather(b"".join(payloads), sum(counts), 0, 0)
    except DecodeError:
        return None
    assert columns.positions is not None
    positions = columns.positions + np.repeat([header.base_offset for header in headers], counts)
    if not bool((positions[1:] > positions[:-1]).all()):
        return None  # as when a batch holds a record more, and the next one less, than it should
    times = columns.times_ms + np.repeat([header.base_timestamp for header in headers], counts)
    if any(header.attributes & LOG_APPEND_TIME for header in headers):
        given = np.repeat([bool(header.attributes & LOG_APPEND_TIME) for header in headers], counts)
        times = np.where(given, np.repeat([header.max_timestamp for header in headers], counts), times)
    return replace(columns, positions=positions, times_ms=times)
