"""The record codecs of official clients, which must read what we write."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiokafka.codec
import aiokafka.record

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in a deprecated way while being imported
    import kafka.codec
    import kafka.record

from penstock.wire.compression import Codec
from tests.wire.kafka.messages import Read


@dataclass(frozen=True, slots=True)
class Reader:
    """The record codec of one client; it reads the codecs for which it finds a package here."""

    name: str
    memory_records: Callable[[bytes], Any]
    codec: Any

    def can_read(self, codec: Codec) -> bool:
        """Whether it finds what it needs to decompress this."""
        return codec is Codec.NONE or bool(getattr(self.codec, f"has_{codec.value}")())

    def read(self, data: bytes) -> list[Read]:
        """The messages of all batches, whose checksums are right."""
        records = self.memory_records(data)
        found = []
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            found += [Read(m.offset, m.timestamp, m.key, m.value, tuple(m.headers)) for m in batch]
        return found


READERS = [
    Reader("aiokafka", aiokafka.record.MemoryRecords, aiokafka.codec),
    Reader("kafka-python", kafka.record.MemoryRecords, kafka.codec),
]
