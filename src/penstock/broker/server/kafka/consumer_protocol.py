"""What consumers tell each other through the broker: which topics they want, and which partitions each gets.

The broker passes these bytes on untouched, and reads what they begin with in every version, for its own information:

    subscription                          assignment
    int16   version                       int16   version
    array   topics: string                array   topics: string, array of int32
    ...     more, not read                ...     more, not read

Arrays and strings have plain lengths. What cannot be read is not known; it is nobody's fault and nobody is told.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import DecodeError
from penstock.wire.kafka.primitives import read_array_size, read_string
from penstock.wire.protocol import Partition

CONSUMER: Final = "consumer"
"""The kind of groups whose members speak this."""
VERSION_BYTES: Final = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member wants; None where that cannot be read."""
    data = memoryview(metadata)
    topics = set()
    try:
        count, at = read_array_size(data, VERSION_BYTES, flexible=False)
        for _ in range(count or 0):
            topic, at = read_string(data, at, flexible=False)
            topics.add(topic or "")
    except (DecodeError, IndexError, struct.error):
        return None
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> frozenset[Partition]:
    """The partitions that a member gets; none where they cannot be read."""
    data = memoryview(assignment)
    partitions: set[Partition] = set()
    try:
        topics, at = read_array_size(data, VERSION_BYTES, flexible=False)
        for _ in range(topics or 0):
            topic, at = read_string(data, at, flexible=False)
            count, at = read_array_size(data, at, flexible=False)
            numbers = struct.unpack_from(f">{count or 0}i", data, at)
            at += 4 * len(numbers)
            partitions.update(Partition(topic or "", number) for number in numbers)
    except (DecodeError, IndexError, struct.error):
        return frozenset()
    return frozenset(partitions)
