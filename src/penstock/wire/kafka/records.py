"""A batch opened: its records as columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.errors import DecodeError, LimitError
from penstock.wire.columns import BufferColumns, Columns, MapColumn, to_arrow
from penstock.wire.compression import Codec, decompress
from penstock.wire.entry import Buffer
from penstock.wire.kafka.claim import NAME
from penstock.wire.kafka.header import DECOMPRESSED_BYTES_MAX, BatchHeader, parse_header, verify
from penstock.wire.kafka.kernel import gather
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CLAIM, LOG_APPEND_TIME, RECORD_BYTES_MAX, RECORD_BYTES_MIN


def decode(entry: Buffer, *, check: bool = True, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Columns:
    """The messages of one whole batch as Arrow columns.

    `check` verifies the checksum first. Records that would unpack to more than `bytes_max` are refused.
    """
    return to_arrow(decode_buffers(entry, check=check, bytes_max=bytes_max))


def decode_buffers(entry: Buffer, *, check: bool = True, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> BufferColumns:
    """The same as bare buffers, for framing them anew."""
    header = verify(entry) if check else parse_header(entry)
    return columns_of(header, payload_of(header, entry, bytes_max))


def columns_of(header: BatchHeader, payload: Buffer) -> BufferColumns:
    """The messages of a batch whose records are unpacked already."""
    most = len(payload) // RECORD_BYTES_MIN
    if header.count > most:
        raise DecodeError(57, "records count", f"{most} at most in {len(payload)} bytes of records", header.count)
    columns = gather(payload, header.count, header.base_offset, header.base_timestamp)
    if header.attributes & LOG_APPEND_TIME:
        columns = replace(columns, times_ms=np.full(header.count, header.max_timestamp, np.int64))
    if header.attributes & CLAIM and columns.properties is not None:
        columns = replace(columns, properties=without_claim(columns.properties))
    return columns


def payload_of(header: BatchHeader, entry: Buffer, bytes_max: int) -> Buffer:
    """The records of a batch, unpacked; refused where they would take more than `bytes_max`."""
    bytes_max = min(bytes_max, RECORD_BYTES_MAX)
    payload = memoryview(entry)[BATCH_HEADER_BYTES:]
    if header.codec is not Codec.NONE:
        return decompress(header.codec, payload, bytes_max)
    if len(payload) > bytes_max:
        raise LimitError(BATCH_HEADER_BYTES, "records", f"{bytes_max} bytes at most", f"{len(payload)} bytes")
    return payload


def without_claim(pairs: MapColumn) -> MapColumn:
    """The claim is the batch's, not the first message's: its header is taken out."""
    names, values = pairs.names, pairs.values
    if not pairs.offsets[1] or names.data[: names.offsets[1]].tobytes() != NAME.encode():
        return pairs
    offsets = pairs.offsets - 1
    offsets[0] = 0
    validity = values.validity
    if validity is not None:
        bits = np.unpackbits(validity, bitorder="little", count=len(values.offsets) - 1)
        validity = np.packbits(bits[1:], bitorder="little")
    return MapColumn(
        offsets,
        names._replace(offsets=names.offsets[1:]),
        values._replace(offsets=values.offsets[1:], validity=validity),
    )
