"""The columns that a reader hands out.

| column | Arrow type | |
|---|---|---|
| `topic` | dictionary of string | the topic's name |
| `partition` | int32 | the partition's number |
| `position` | int64 | the message's place in the partition; Kafka's offset |
| `event_time` | timestamp[ms, UTC] | when it happened, as its sender said, or when the log took it |
| `log_time` | bool | whether the log gave that time |
| `key` | binary | null: no key |
| `value` | binary | null: no value |
| `properties` | map<string, binary> | names as text, values as bytes or null; a name may occur more than once |

What `send_table` takes is among them under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ConfigError
from penstock.wire.columns import BINARY, POSITION, PROPERTIES, TIME, Columns
from penstock.wire.protocol import Partition

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("position", POSITION),
        ("event_time", TIME),
        ("log_time", pa.bool_()),
        ("key", BINARY),
        ("value", BINARY),
        ("properties", PROPERTIES),
    ]
)


class Shape:
    """Which columns, and how they are made."""

    def __init__(self, topic: str, names: Sequence[str] | None) -> None:
        """`names` in the order wanted; None: all. ConfigError for one that there is not."""
        wanted = SCHEMA.names if names is None else list(names)
        unknown = [name for name in wanted if name not in SCHEMA.names]
        if unknown or not wanted or isinstance(names, str) or len(set(wanted)) < len(wanted):
            raise ConfigError(f"columns: expected some of {', '.join(SCHEMA.names)}, each once, found {names!r}")
        self.schema = pa.schema([SCHEMA.field(name) for name in wanted])
        self._names = wanted
        self._topic = pa.array([topic])

    def record_batch(self, partition: Partition, columns: Columns, log_times: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """The messages of one partition."""
        count = len(columns)
        arrays = []
        for name in self._names:
            if name == "topic":
                places = _numbers(pa.int32(), np.zeros(count, np.int32))
                arrays.append(pa.DictionaryArray.from_arrays(places, self._topic))
            elif name == "partition":
                arrays.append(_numbers(pa.int32(), np.full(count, partition.number, np.int32)))
            elif name == "log_time":
                arrays.append(_numbers(pa.bool_(), np.packbits(log_times, bitorder="little"), count))
            else:
                arrays.append(getattr(columns, name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _numbers(kind: pa.DataType, numbers: npt.NDArray[np.generic], count: int | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers) if count is None else count, [None, pa.py_buffer(numbers)])
