"""The latest message of each key, for topics that are compacted.

Compaction takes messages out of a log whose keys have later ones, each log at its own times; what it never takes is
the latest message of a key, unless that has no value and so says that the key is gone. So the latest messages that have
a value are what two logs must have in common. Messages without a key have no later one, and all of them stay.

A stream is gone through twice: once for the positions of the latest messages, once to keep only those. The first time
takes memory for one side's keys, the second time for eight bytes of each.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.wire.columns import Int64s

COLUMNS: Final = ("position", "key", "value")
"""What record batches must have for the positions to be found."""
FRESH_BYTES_MIN: Final = 4 << 20
"""Keys are put together when there are as many bytes of new ones as of known ones, and at least so many."""

_KEY = pa.large_binary()  # all keys together may pass what offsets of 32 bits reach
_SCHEMA = pa.schema([("key", _KEY), ("mark", pa.int64())])


def latest_positions(batches: Iterable[pa.RecordBatch], fresh_bytes_min: int = FRESH_BYTES_MIN) -> Int64s:
    """The positions, rising, of each key's latest message, of those keys whose latest message has a value."""
    known = _SCHEMA.empty_table()
    fresh: list[pa.RecordBatch] = []
    fresh_bytes = 0
    for batch in batches:
        fresh.append(_marked(batch))
        fresh_bytes += fresh[-1].nbytes
        if fresh_bytes >= max(fresh_bytes_min, known.nbytes):
            known = _merged(known, fresh)
            fresh, fresh_bytes = [], 0
    marks: Int64s = _merged(known, fresh).column("mark").to_numpy()
    return np.sort(marks[marks & 1 == 1] >> 1)


def only_latest(batches: Iterable[pa.RecordBatch], positions: Int64s) -> Iterator[pa.RecordBatch]:
    """The messages at these positions, and those without a key."""
    for batch in batches:
        kept = pc.is_null(batch.column("key")).to_numpy(zero_copy_only=False)
        if len(positions):
            asked = batch.column("position").to_numpy()
            places = np.minimum(np.searchsorted(positions, asked), len(positions) - 1)
            kept = kept | (positions[places] == asked)
        yield batch if kept.all() else batch.filter(pa.array(kept))


def _marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keys, each with its message's position and, as the lowest bit, whether that has a value."""
    marks = batch.column("position").to_numpy() * 2 + pc.is_valid(batch.column("value")).to_numpy(zero_copy_only=False)
    marked = pa.RecordBatch.from_arrays([batch.column("key").cast(_KEY), pa.array(marks)], schema=_SCHEMA)
    return marked.filter(pc.is_valid(marked.column("key"))) if marked.column("key").null_count else marked


def _merged(known: pa.Table, fresh: list[pa.RecordBatch]) -> pa.Table:
    """The latest mark of each key."""
    together = pa.concat_tables([known, pa.Table.from_batches(fresh, _SCHEMA)])
    latest = together.group_by("key", use_threads=False).aggregate([("mark", "max")])
    return latest.rename_columns({"mark_max": "mark"}).select(_SCHEMA.names)
