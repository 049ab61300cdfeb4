"""Who is producing at present: by name and id, per partition, with limits per partition and topic.

A name is what a producer calls itself; on Kafka's wire many share one, which is why the id belongs to it. Somebody who
has not stored anything for a while counts as gone, and somebody new takes the place. What a producer with an id has
stored is remembered much longer, by `producers.PartitionProducers`; this is only about how many there are at a time.

Kept in memory: after a start nobody is producing until the next entry comes. Runs on: the loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import TopicSettings

Key: TypeAlias = tuple[str, int | str | None]
"""Name and id."""


class Producing(NamedTuple):
    """One producer of a partition."""

    name: str
    id: int | str | None
    heard_at: float


class TopicProducers:
    """All producers of a topic: in how many partitions each is."""

    __slots__ = ("_partitions",)

    def __init__(self) -> None:
        self._partitions: Counter[Key] = Counter()

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, key: object) -> bool:
        return key in self._partitions

    def join(self, key: Key) -> None:
        """One partition more."""
        self._partitions[key] += 1

    def leave(self, key: Key) -> None:
        """One partition less."""
        self._partitions[key] -= 1
        if not self._partitions[key]:
            del self._partitions[key]


class PartitionProducerNames:
    """The producers of one partition."""

    __slots__ = ("_heard", "_idle_s", "_topic")

    def __init__(self, topic: TopicProducers, idle_ms: int) -> None:
        self._topic = topic
        self._idle_s = idle_ms / 1000
        self._heard: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._heard)

    def __iter__(self) -> Iterator[Producing]:
        return (Producing(name, number, at) for (name, number), at in self._heard.items())

    def admit(self, name: str, number: int | str | None, now: float, settings: TopicSettings) -> None:
        """Note that this producer is here; Refused when there is no room for one more."""
        key = name, number
        if key not in self._heard:
            self._make_room(key, now, settings)
            self._topic.join(key)
        self._heard[key] = now

    def expire(self, now: float) -> int:
        """Let go of those who were not heard of for long; returns how many."""
        gone = [key for key, at in self._heard.items() if now - at >= self._idle_s]
        for key in gone:
            del self._heard[key]
            self._topic.leave(key)
        return len(gone)

    def clear(self) -> None:
        """Let go of all."""
        for key in self._heard:
            self._topic.leave(key)
        self._heard.clear()

    def _make_room(self, key: Key, now: float, settings: TopicSettings) -> None:
        if self._fault(key, settings):
            self.expire(now)
            fault = self._fault(key, settings)
            if fault:
                raise Refused(Refusal.TOO_MANY_PRODUCERS, fault)

    def _fault(self, key: Key, settings: TopicSettings) -> str:
        if len(self._heard) >= settings.partition_producers_max:
            return f"the partition has {len(self._heard)} producers, and takes no more"
        if key not in self._topic and len(self._topic) >= settings.producers_max:
            return f"the topic has {len(self._topic)} producers, and takes no more"
        return ""
