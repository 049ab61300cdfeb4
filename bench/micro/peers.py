"""aiokafka's compiled builder and reader, and kafka-python's, which have the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import kafka.record.default_records as kafka_python
from aiokafka.record import default_records as aiokafka

from bench.micro.messages import BATCH_BYTES
from bench.results import Bar, Row
from bench.timing import Timings

PACKAGES = ("aiokafka", "kafka-python", "pyarrow", "numpy", "crc32c")


class Peer(NamedTuple):
    """One client's way to frame and to read a batch."""

    name: str
    builder: Any
    reader: Any

    def new_builder(self) -> Any:
        """An empty builder of one batch."""
        return self.builder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES,
        )


def peers() -> tuple[Peer, Peer]:
    """aiokafka, which must be the compiled one, and kafka-python."""
    for part in (aiokafka.DefaultRecordBatchBuilder, aiokafka.DefaultRecordBatch):
        if "._crecords." not in part.__module__:
            raise SystemExit(f"bench: aiokafka's {part.__name__} is not its compiled one but {part.__module__}'s")
    return (
        Peer("aiokafka", aiokafka.DefaultRecordBatchBuilder, aiokafka.DefaultRecordBatch),
        Peer("kafka-python", kafka_python.DefaultRecordBatchBuilder, kafka_python.DefaultRecordBatch),
    )


def rows_of(timings: Timings, mine: Sequence[str], case: str, count: int, bar: Bar) -> list[Row]:
    """Each of ours beside aiokafka, for which the bars were set, and the first of ours beside the rest."""

    def row(name: str, other: str, bar: Bar | None = None) -> Row:
        ours, theirs = (f"{timings.median(one) / count * 1e9:.1f} ns" for one in (name, other))
        return Row(f"{name}, {case}", ours, other, theirs, timings.ratio(other, name), bar)

    others = [name for name in timings.samples if name not in (*mine, "aiokafka")]
    return [*(row(name, "aiokafka", bar) for name in mine), *(row(mine[0], other) for other in others)]
