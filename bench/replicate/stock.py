"""What source topics hold: text-like values in lz4 batches of a given size on the wire.

A value comes again after `DISTINCT` messages, when the event time has moved on: so no two messages of a partition are
equal, and a comparison notices a batch that is missing, there twice, or in another's place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.peers.load import DISTINCT, Load, values
from penstock.wire.compression import Codec
from penstock.wire.kafka.buffer import BatchBuffer

PARTITIONS = 4
HANDED = 10_000
"""About as many messages are handed to the producer at a time."""
RAW_BYTES_MAX = 16 << 20
PER_MS = 100
"""Messages with the same event time."""
PROPERTY, WANTED, OTHERS = "region", "us", ("ap", "br", "ca", "de", "eu", "in", "jp", "uk", "za")
MB, KB64, KB16, KB1 = 1_000_000, 65_536, 16_384, 1_024
BATCHES = {MB: "1 MB", KB64: "64 KB", KB16: "16 KB", KB1: "1 KB"}


@dataclass(frozen=True, slots=True)
class Stock:
    """So many messages of one size, in batches that take so many bytes on the wire."""

    messages: int
    value_bytes: int
    batch_bytes: int
    claims: bool = False
    """Whether every batch claims a region, one batch in ten the wanted one."""

    @property
    def load(self) -> Load:
        """As the peers' jobs want it."""
        return Load(self.messages, self.value_bytes, PARTITIONS)

    def __str__(self) -> str:
        return f"{'100 B' if self.value_bytes == 100 else '1 KB'}, {BATCHES[self.batch_bytes]} batches"


class Portion(NamedTuple):
    """Messages that are handed over at once: whole batches of one partition, but for the last of all."""

    partition: int
    values: Any
    times_ms: Any
    properties: dict[str, str] | None


pool_of = lru_cache(values)


@lru_cache
def per_batch(stock: Stock) -> int:
    """How many messages a batch holds: as many as stay within its size on the wire, and at least one."""
    fewest, most = 1, stock.batch_bytes * 10 // stock.value_bytes + 2
    while most - fewest > 1:
        middle = (fewest + most) // 2
        fewest, most = (middle, most) if wire_bytes(stock, middle) <= stock.batch_bytes else (fewest, middle)
    return fewest


def wire_bytes(stock: Stock, count: int) -> int:
    """What a batch of so many messages takes on the wire."""
    buffer = BatchBuffer(RAW_BYTES_MAX)
    some = (pool_of(stock.value_bytes) * (count // DISTINCT + 1))[:count]
    if buffer.extend(some, None, properties_of(stock, 0), [at // PER_MS for at in range(count)]) < count:
        return RAW_BYTES_MAX
    buffer.seal(Codec.LZ4)
    return sum(map(len, buffer.stamp()))


def portions(stock: Stock) -> Iterator[Portion]:
    """The whole stock, the partitions in turn; no two portions begin with the same value."""
    size = per_batch(stock) * max(1, HANDED // per_batch(stock))
    pool = pa.array(pool_of(stock.value_bytes) * (size // DISTINCT + 2), pa.binary())
    first_ms = int(time.time() * 1000) - stock.messages // PER_MS  # none of them is ahead of the broker's clock
    for number, sent in enumerate(range(0, stock.messages, size)):
        count = min(size, stock.messages - sent)
        times = pa.array(first_ms + np.arange(sent, sent + count) // PER_MS, pa.int64())
        some = pool.slice(number * 7 % DISTINCT, count)
        yield Portion(number % PARTITIONS, some, times, properties_of(stock, number // PARTITIONS))


def properties_of(stock: Stock, turn: int) -> dict[str, str] | None:
    """The properties of a portion; each partition has the wanted region in one portion of ten."""
    if not stock.claims:
        return None
    return {PROPERTY: WANTED if turn % 10 == 0 else OTHERS[turn % 10 - 1]}


def wanted_messages(stock: Stock) -> int:
    """How many messages a filter that wants the one region lets through."""
    return sum(len(each.values) for each in portions(stock) if each.properties == {PROPERTY: WANTED})
