"""The content digest of messages in their order, the same whatever batches they come in.

Messages are taken as columns. Each column is one or two strands of bytes, and each strand has a running SHA-256 of its
own, so that where a batch ends does not show:

| strand | for each message, or each property |
|---|---|
| times | event time in ms, int64; -1 where it does not count |
| key lengths, key bytes | length, int32, -1 for null; its bytes |
| value lengths, value bytes | the same |
| property counts | how many, int32 |
| name lengths, name bytes | of each property in order |
| property value lengths, property value bytes | the same, -1 for null |

Numbers are little-endian. The digest is the SHA-256 of the number of messages, int64, and of the strands' hashes in
this order, cut to 16 bytes. Positions are no part of it.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.columns import BinaryColumn, BufferColumns, from_arrow

STRANDS: Final = 10
DIGEST_BYTES: Final = 16


class Digest:
    """The digest of the messages that were added so far."""

    def __init__(self) -> None:
        self.count = 0
        self._strands = [hashlib.sha256(usedforsecurity=False) for _ in range(STRANDS)]

    def add(self, messages: pa.RecordBatch) -> None:
        """Add messages with the columns `event_time`, `key`, `value` and `properties`, as readers hand them out."""
        self.count += messages.num_rows
        times = messages.column("event_time").view(pa.int64())
        times_ms = (times.fill_null(-1) if times.null_count else times).to_numpy()
        value, key, properties = (messages.column(name) for name in ("value", "key", "properties"))
        columns = from_arrow(value, key, properties, times_ms)
        for strand, content in zip(self._strands, _strands(columns), strict=True):
            strand.update(content.data)

    def copy(self) -> Digest:
        """One that goes on by itself from here."""
        copied = Digest()
        copied.count = self.count
        copied._strands = [strand.copy() for strand in self._strands]
        return copied

    def hexdigest(self) -> str:
        """The digest in hexadecimal digits."""
        whole = hashlib.sha256(self.count.to_bytes(8, "little"), usedforsecurity=False)
        for strand in self._strands:
            whole.update(strand.digest())
        return whole.digest()[:DIGEST_BYTES].hex()


def _strands(columns: BufferColumns) -> Iterator[npt.NDArray[np.generic]]:
    assert columns.keys is not None
    assert columns.properties is not None
    pairs = columns.properties
    first, end = int(pairs.offsets[0]), int(pairs.offsets[-1])
    yield columns.times_ms.astype("<i8", copy=False)
    yield from _strings(columns.keys, 0, len(columns))
    yield from _strings(columns.values, 0, len(columns))
    yield np.diff(pairs.offsets).astype("<i4", copy=False)
    yield from _strings(pairs.names, first, end)
    yield from _strings(pairs.values, first, end)


def _strings(column: BinaryColumn, first: int, end: int) -> Iterator[npt.NDArray[np.generic]]:
    """The lengths of these strings, and their bytes; a null holds no bytes, as readers hand it out."""
    offsets = column.offsets[first : end + 1]
    lengths = np.diff(offsets)
    if column.validity is not None:
        begin, count = column.bit_offset + first, end - first
        valid = np.unpackbits(column.validity, count=begin + count, bitorder="little")[begin:]
        lengths[valid == 0] = -1
    yield lengths.astype("<i4", copy=False)
    yield column.data[int(offsets[0]) : int(offsets[-1])]
