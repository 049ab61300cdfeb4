"""Batches made by hand: filled by a user, sent as they are, and out of the user's hands from then on.

A batch that was sent is read until it is stored, perhaps several times; whoever could still change it could spoil it.
So what a user holds is not the buffer but a `HandMadeBatch`, which gives its buffer away when it is sent and refuses
to be used again. When it is not taken after all, as without memory, it has its buffer back.

What a batch claims about its messages is read from them: where `same_properties` keeps messages apart, those of one
batch must agree.

Runs on: any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from penstock.errors import BatchStateError, MessageError, MessageTooLargeError
from penstock.message import Properties
from penstock.produce.batch import Batch, SealReason
from penstock.produce.bulk import ColumnSource, Steps, check_sizes
from penstock.produce.bulk_receipt import BulkReceipt, Run
from penstock.produce.claims import Listing, Shared
from penstock.produce.lanes import HEADER_BYTES, Lanes
from penstock.wire.columns import to_arrow
from penstock.wire.entry import BatchBuffer
from penstock.wire.protocol import Wire


class HandMadeBatch:
    """Messages that a user puts together; made by `producer.batch()`, sent once, with `producer.send_batch`."""

    def __init__(self, wire: Wire, bytes_max: int) -> None:
        self.scheme = wire.scheme
        """The system in whose bytes it is written."""
        self._lock = threading.RLock()  # guards the following; what is given to it may run foreign code
        self._buffer: BatchBuffer | None = wire.buffer(bytes_max)

    def __repr__(self) -> str:
        buffer = self._buffer
        state = "sent" if buffer is None else f"{buffer.count} messages, {buffer.size} bytes"
        return f"<HandMadeBatch, {state}>"

    @property
    def count(self) -> int:
        """Messages in it."""
        with self._lock:
            return self._unsent_locked().count

    @property
    def size(self) -> int:
        """Bytes that it takes, uncompressed: header, keys, properties and framing included."""
        with self._lock:
            return self._unsent_locked().size

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        properties: Properties | None = None,
        event_time_ms: int = -1,
    ) -> int:
        """Take one message and return its index, or -1 when there is no room for it. -1 stands for no event time."""
        with self._lock:
            return self._unsent_locked().append(value, key, properties, event_time_ms)

    def extend(
        self,
        values: Sequence[bytes | None] | Any,
        keys: Sequence[bytes | None] | Any = None,
        properties: Properties | Sequence[Properties | None] | Any = None,
        event_times_ms: int | Sequence[int] | Any = -1,
        start: int = 0,
    ) -> int:
        """Take as many of these messages, from index `start` on, as there is room for; return how many.

        Values (and keys) are lists of bytes or Arrow arrays; one mapping of properties holds for all.
        """
        with self._lock:
            return self._unsent_locked().extend(values, keys, properties, event_times_ms, start)

    def give(self) -> BatchBuffer:
        """Give the buffer away: from now on it is not the user's."""
        with self._lock:
            buffer = self._unsent_locked()
            if not buffer.count:
                raise MessageError("batch: it is empty; append messages to it first")
            self._buffer = None
            return buffer

    def take_back(self, buffer: BatchBuffer) -> None:
        """It was not sent."""
        with self._lock:
            self._buffer = buffer

    def _unsent_locked(self) -> BatchBuffer:
        if self._buffer is None:
            raise BatchStateError("the batch was sent, which can be done once: make another with `producer.batch()`")
        return self._buffer


def send_whole(lanes: Lanes, made: HandMadeBatch, partition: int | None) -> Steps:
    """Let a hand-made batch go its way as it is, after what its lane has open; asks for memory as all bulk sends do."""
    lanes.check_open()
    if not isinstance(made, HandMadeBatch) or made.scheme != lanes.wire.scheme:
        raise MessageError(f"batch: expected one made by `producer.batch()`, found {made!r}")
    buffer, reserved = made.give(), 0
    detached: list[Batch] = []
    try:
        _check(lanes, buffer, partition)
        shared, listing = _claims(lanes, buffer)
        size = buffer.size + HEADER_BYTES
        reserved = size if _reserve(lanes, size) else (yield size)
        with lanes.lock:
            lanes.check_open()
            lanes.check_designated(partition)
            lane = lanes.choose_locked(partition)
            lanes.detach_open_locked(lane, SealReason.DIRECT, detached)
            whole = lanes.adopt_locked(lane, buffer, size, shared)
            whole.listing = listing
            lanes.detach_locked(lane, whole, SealReason.DIRECT, detached)
    except BaseException:
        lanes.accumulator.budget.release(reserved)
        made.take_back(buffer)
        raise
    count = whole.count
    lanes.seal_all(detached)
    return BulkReceipt([Run(0, whole, 0, count)], None)


def _check(lanes: Lanes, buffer: BatchBuffer, partition: int | None) -> None:
    """Raise what keeps these messages from being sent; they are looked at only if one of them could be too large."""
    lanes.check_designated(partition)
    size, most = buffer.size + HEADER_BYTES, lanes.accumulator.budget.bytes_max
    if size > most:
        raise MessageTooLargeError(
            f"batch: it takes {size} bytes, and total_bytes_max is {most}: send less in one, or raise it"
        )
    if buffer.size > lanes.options.message_bytes_max:
        check_sizes(lanes, ColumnSource(buffer.columns()))


def _reserve(lanes: Lanes, size: int) -> bool:
    budget = lanes.accumulator.budget
    return budget.try_reserve(size) or (lanes.options.when_full == "direct" and budget.try_exceed(size))


def _claims(lanes: Lanes, buffer: BatchBuffer) -> tuple[Shared, Listing | None]:
    """What the messages share of the restricted properties, and which values of the listed ones occur."""
    restriction, listing = lanes.restriction, lanes.new_listing()
    if restriction is None and listing is None:
        return (), None
    messages = [dict(pairs or ()) for pairs in to_arrow(buffer.columns()).properties.to_pylist()]
    if listing is not None:
        for properties in messages:
            listing.add(properties)
    return restriction.shared_by_all(messages) if restriction is not None else (), listing
