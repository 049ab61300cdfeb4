"""Where messages go in a target that has another number of partitions than the source: by the hash of their keys.

Messages without a key of one opened batch go to one partition, those of the next batch to the next one. Their order is
kept within a source partition as far as they go to the same partition of the target.

Runs on: the I/O thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.produce.regroup import Arrivals
from penstock.produce.router import HASHES
from penstock.wire.columns import BufferColumns


class Routing:
    """Routes messages to so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Routing to {self._partitions} partitions>"

    def __call__(self, columns: BufferColumns) -> npt.NDArray[np.int32]:
        """Which partition each message goes to."""
        self._turn = (self._turn + 1) % self._partitions
        return Arrivals.of(columns, self._partitions, HASHES["murmur2"], self._turn, _no_router).places


def _no_router(value: object, key: object, properties: object) -> int:
    raise NotImplementedError
