"""What Penstock's reader finds, in the shape in which official consumers' findings are compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tests.produce.real.reading import Read

LIMIT_S = 60.0


def reads(items: Iterable[Any]) -> list[Read]:
    """Messages of record batches, or of a table."""
    found: list[Read] = []
    for item in items:
        batch = item.combine_chunks() if isinstance(item, pa.Table) else item
        columns = [
            batch.column("partition").to_pylist(),
            batch.column("position").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            [tuple(pairs) for pairs in batch.column("properties").to_pylist()],
            batch.column("event_time").cast(pa.int64()).to_pylist(),
        ]
        found += [Read(*row) for row in zip(*columns, strict=True)]
    return found


def in_order(found: Iterable[Read]) -> list[Read]:
    return sorted(found, key=lambda read: (read.partition, read.offset))


def check_order(found: Iterable[Read]) -> None:
    """Positions rise within each partition."""
    last: dict[int, int] = {}
    for read in found:
        assert read.offset > last.get(read.partition, -1)
        last[read.partition] = read.offset
