"""What a producer has done so far, in numbers, and the warning that one property makes its batches tiny."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.produce.batch import Batch, SealReason

_log = logging.getLogger("penstock")

WATCHED_BATCHES = 200
TINY_COUNT = 10


@dataclass(slots=True)
class LaneCounts:
    """What was sealed in one lane."""

    batches: int = 0
    messages: int = 0
    bytes: int = 0
    reasons: Counter[SealReason] = field(default_factory=Counter)

    def add(self, batch: Batch, reason: SealReason) -> None:
        """One more batch was sealed."""
        self.batches += 1
        self.messages += batch.count
        self.bytes += batch.buffer.size
        self.reasons[reason] += 1

    def merge(self, other: LaneCounts) -> None:
        """Add what another lane did."""
        self.batches += other.batches
        self.messages += other.messages
        self.bytes += other.bytes
        self.reasons.update(other.reasons)


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane at one moment. The undesignated lane, where messages wait for their topic to be known, is number -1."""

    queue: int
    """Batches that are open, wait to be sent, or wait for their answer."""
    queue_bytes: int
    batches: int
    messages: int
    bytes: int
    """Bytes of the batches before compression."""
    seal_reasons: Mapping[str, int]

    @property
    def average_messages(self) -> float:
        """Messages in a batch."""
        return self.messages / self.batches if self.batches else 0.0

    @property
    def average_bytes(self) -> float:
        """Bytes in a batch before compression."""
        return self.bytes / self.batches if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """One producer at one moment: its open lanes, and all it has sealed, dropped lanes included."""

    topic: str
    partitions: int | None
    lanes: Mapping[int, LaneStats]
    total: LaneStats
    acked: int
    """Messages that were stored."""
    failed: int
    """Messages that ended with an error."""

    @property
    def open_lanes(self) -> int:
        """Lanes that are open now."""
        return len(self.lanes)


def lane_stats(counts: LaneCounts, queue: int, queue_bytes: int) -> LaneStats:
    """A lane's numbers as users read them."""
    reasons = {reason.value: number for reason, number in counts.reasons.items()}
    return LaneStats(queue, queue_bytes, counts.batches, counts.messages, counts.bytes, reasons)


class TinyBatchWatch:
    """Looks whether changes of a restricted property keep cutting batches short, and says so once."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._batches = 0
        self._messages = 0
        self._culprits: Counter[str] = Counter()
        self._said = False

    def add(self, batch: Batch, differing: list[str]) -> None:
        """A batch was sealed; these properties changed with the message after it."""
        if self._said:
            return
        self._batches += 1
        self._messages += batch.count
        self._culprits.update(differing)
        if self._batches >= WATCHED_BATCHES:
            self._judge()

    def _judge(self) -> None:
        average = self._messages / self._batches
        culprit = self._culprits.most_common(1)
        if culprit and culprit[0][1] * 2 > self._batches and average < TINY_COUNT:
            self._said = True
            _log.warning(
                "batches of %s hold %.1f messages on average, because the property %r changes so often: take it out of "
                "same_properties, list it instead (listed_properties), or set property_order=group",
                self._topic,
                average,
                culprit[0][0],
            )
        self._batches = self._messages = 0
        self._culprits.clear()
