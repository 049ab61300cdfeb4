"""Which partition a message goes to.

A message with a key goes where the key's hash says, over all partitions, whatever the router. Messages without one are
spread: a spread names a partition and keeps to it until told to move on, so that batches fill up. What makes it move is
what it counts by: the bytes given to the partition, or its sealed batches.

Pure: chance is an argument. A user's own router is asked once per message, and never about a made-up one.
"""

from __future__ import annotations

import bisect
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from penstock.errors import ConfigError, MessageError
from penstock.message import Properties

KeyHash = Callable[[bytes, int], int]
"""A key and a number of partitions in, a partition out."""

MovesBy = Literal["bytes", "batch", "never"]

Queued = Mapping[int, int]
"""How many bytes wait for a partition; those that are not in it have none."""

DRAWS_MAX = 64


class Routed(NamedTuple):
    """What a user's own router is shown of a message."""

    topic: str
    value: bytes | None
    key: bytes | None
    properties: Properties
    partitions: int


OwnRouter = Callable[[Routed], int]


def murmur2(key: bytes) -> int:
    """The 32-bit hash that Kafka's Java client gives a key."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    size = len(key)
    h = (0x9747B28C ^ size) & mask
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if size > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def by_murmur2(key: bytes, partitions: int) -> int:
    """Where Kafka's Java client sends a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def by_crc32(key: bytes, partitions: int) -> int:
    """Where librdkafka sends a key."""
    return zlib.crc32(key) % partitions


HASHES: dict[str, KeyHash] = {"murmur2": by_murmur2, "crc32": by_crc32}


class Spread(Protocol):
    """Where messages without a key go. Holds the state of one producer's topic; give each its own."""

    moves_by: MovesBy

    def choose(self, partitions: int, available: Sequence[int], queued: Queued) -> int:
        """The next partition; `available` are those with a leader, in rising order, or empty when none has one."""


class Sticky:
    """Keeps to a partition for a batch's worth of bytes, then draws another; those with a short queue more often.

    Counting bytes and not batches keeps a slow broker, whose batches are sealed early and small, from getting more.
    """

    moves_by: MovesBy = "bytes"

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.Random()  # noqa: S311

    def __repr__(self) -> str:
        return "Sticky()"

    def choose(self, partitions: int, available: Sequence[int], queued: Queued) -> int:
        """Draw a partition; the weight of each is how much shorter its queue is than the longest."""
        candidates = available or range(partitions)
        longest = max(queued.values(), default=0)
        chosen = self._chance.choice(candidates)
        for _ in range(DRAWS_MAX):  # draw and accept by weight: the partitions are not walked through
            if self._chance.random() * (longest + 1) < longest + 1 - queued.get(chosen, 0):
                break
            chosen = self._chance.choice(candidates)
        return chosen


class RoundRobin:
    """The next partition for each batch."""

    moves_by: MovesBy = "batch"

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.Random()  # noqa: S311
        self._last = -1

    def __repr__(self) -> str:
        return "RoundRobin()"

    def choose(self, partitions: int, available: Sequence[int], queued: Queued) -> int:
        """The available partition after the last one; the first is drawn, so that producers do not walk in step."""
        candidates = available or range(partitions)
        if self._last < 0:
            self._last = self._chance.choice(candidates)
        else:
            self._last = candidates[bisect.bisect_right(candidates, self._last) % len(candidates)]
        return self._last


class Single:
    """One partition for as long as the producer lives."""

    moves_by: MovesBy = "never"

    def __init__(self, partition: int | None = None, chance: random.Random | None = None) -> None:
        if partition is not None and partition < 0:
            raise ConfigError(f"partition: expected 0 or more, found {partition}")
        self._partition = partition
        self._chance = chance or random.Random()  # noqa: S311

    def __repr__(self) -> str:
        return f"Single({'' if self._partition is None else self._partition})"

    def choose(self, partitions: int, available: Sequence[int], queued: Queued) -> int:
        """The partition that was given, or one drawn at first use."""
        if self._partition is None:
            self._partition = self._chance.choice(available or range(partitions))
        return self._partition


class PartialRoundRobin:
    """Round robin by batch over a part of the partitions, `limit` of them, so that few lanes are opened.

    The part is drawn at first use. It grows with partitions that are added later, up to the limit.
    """

    moves_by: MovesBy = "batch"

    def __init__(self, limit: int, chance: random.Random | None = None) -> None:
        if limit < 1:
            raise ConfigError(f"limit: expected 1 or more partitions, found {limit}")
        self._limit = limit
        self._chance = chance or random.Random()  # noqa: S311
        self._known = 0
        self._part: list[int] = []
        self._next = 0

    def __repr__(self) -> str:
        return f"PartialRoundRobin({self._limit}, part={self._part})"

    @property
    def part(self) -> tuple[int, ...]:
        """The partitions in use."""
        return tuple(self._part)

    def choose(self, partitions: int, available: Sequence[int], queued: Queued) -> int:
        """The next of the part that has a leader; simply the next if none has."""
        self._grow(partitions)
        for _ in self._part:
            partition = self._part[self._next % len(self._part)]
            self._next += 1
            if contains(available, partition):
                return partition
        self._next += 1
        return self._part[self._next % len(self._part)]

    def _grow(self, partitions: int) -> None:
        wanted = min(self._limit, partitions) - len(self._part)
        if wanted > 0:
            added = range(self._known, partitions)
            self._part += self._chance.sample(added, min(wanted, len(added)))
        self._known = max(self._known, partitions)


def check_partition(partition: int, partitions: int) -> int:
    """A partition that a user named, known to exist."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise MessageError(f"partition: expected an int, found {type(partition).__name__}")
    if not 0 <= partition < partitions:
        raise MessageError(f"partition: expected 0 to {partitions - 1}, found {partition}; the topic has {partitions}")
    return partition


def contains(candidates: Sequence[int], partition: int) -> bool:
    """Whether a rising sequence has this number, without walking through it."""
    place = bisect.bisect_left(candidates, partition)
    return place < len(candidates) and candidates[place] == partition
