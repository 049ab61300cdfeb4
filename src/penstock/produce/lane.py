"""The plain twin of the send path: parcels, receipts, lanes, and the intake that puts one into the other.

Most messages have a fast way: they are put straight into the open buffer of their lane. Here that is done under the
lock of the producer's lanes; the compiled twin (`_lane.pyx`) needs none, since nothing can run there between choosing
the lane and the framed message. All other messages go through `slow`. The results are the same.

Runs on: any thread that sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from time import time_ns
from typing import Any

from penstock.message import MessageId, make_id
from penstock.produce.receipts import (
    Home,
    Listener,
    awaited,
    is_done,
    outcome_of,
    result_of,
    when_done,
)
from penstock.wire.columns import Int32s
from penstock.wire.protocol import Stored

NEVER_NS = (1 << 63) - 1
RESTRICTED_MAX = 8
"""So many restricted properties at most are compared on the fast way."""


class Parcel:
    """A batch as receipts see it: where it goes, the one verdict on its messages, and who waits for that."""

    __slots__ = ("home", "listeners", "loops", "partition", "topic", "verdict", "watcher")

    def __init__(self, topic: str, partition: int, home: Home | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.home = home
        self.verdict: Any = None
        self.listeners: deque[Listener] = deque()
        self.loops: Any = None
        self.watcher: Callable[[Any], None] | None = None


class Receipt:
    """What `send` returns at once; resolves to a message id or to one error."""

    __slots__ = ("index", "parcel")

    def __init__(self, parcel: Parcel, index: int) -> None:
        self.parcel = parcel
        self.index = index

    def done(self) -> bool:
        """Whether the message has its outcome."""
        return type(self.parcel.verdict) is Stored or is_done(self.parcel, self.index)

    def result(self, timeout: float | None = None) -> MessageId:
        """The message's id, waited for; raises the message's error, or TimeoutError while there is neither."""
        parcel = self.parcel
        verdict = parcel.verdict
        if type(verdict) is Stored and type(verdict[0]) is int:
            return make_id((parcel.topic, parcel.partition, verdict[0] + self.index))
        return result_of(parcel, self.index, timeout)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The message's error, waited for; None when it was stored."""
        outcome = outcome_of(self.parcel, self.index, timeout)
        return outcome if isinstance(outcome, Exception) else None

    def add_done_callback(self, callback: Callable[[Receipt], None]) -> None:
        """Have this called with the receipt once the outcome is there, on the I/O thread; at once if it is."""
        when_done(callback, self)

    def __await__(self) -> Generator[Any, None, MessageId]:
        return awaited(self.parcel, self.index)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<Receipt {state}, message {self.index} of a batch for {self.parcel.topic}>"


class Lane:
    """The near end of a lane, as `send` sees it: the open batch, and when it is full or due."""

    def __init__(self) -> None:
        self.batch: Any = None
        self.shared: tuple[Any, ...] | None = None
        """What the messages of the open batch share of the restricted properties."""
        self.take: Callable[[bytes, int], int] | None = None
        """How the open buffer takes a bare value."""
        self.count_max = 1
        self.deadline_ns = NEVER_NS  # by the wall clock, which `send` reads anyway
        self._buffer: Any = None

    @property
    def buffer(self) -> Any:
        """The open batch's buffer; None while no batch is open, or somebody works on it in private."""
        return self._buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        self._buffer = buffer
        self.take = None if buffer is None else getattr(buffer, "append_value", None) or _taker(buffer)


class Intake:
    """Where a producer's messages come in.

    `lanes` are those of partitions by number, `current` the one that messages without a key go to at the moment,
    `partitions` their number, 0 while it is not known. `is_fast` says whether the compiled way may be taken at all.
    `slow` takes what the fast way does not, and `slow_soon` where it is awaited; `due` is called when a batch was found
    full or overdue.
    """

    def __init__(self, due: Callable[[Any, Any], None], hash_key: Any, lock: Any) -> None:
        self._acquire, self._release = lock.acquire, lock.release  # half the price of a with statement
        self.slow: Callable[..., Receipt] = _no_way
        self.slow_soon: Callable[..., Coroutine[Any, Any, Receipt]] = _no_way
        self.due = due
        self.hash_key = hash_key
        self.lanes: dict[int, Any] = {}
        self.current: Any = None
        self.partitions = 0
        self.is_fast = False
        self._is_restricted = False

    def restrict(self, names: Sequence[str], allowed: Sequence[Mapping[Any, Any]]) -> None:
        """Messages share a batch only if they agree on these properties; `allowed` tells what their values count as."""
        if len(names) > RESTRICTED_MAX:
            raise ValueError(f"the fast way compares at most {RESTRICTED_MAX} properties")
        self._is_restricted = bool(names)

    def send(
        self,
        value: Any,
        key: Any = None,
        properties: Any = None,
        event_time: Any = None,
        partition: int | None = None,
        tag: str | None = None,
        keys: Any = None,
        deliver_at: Any = None,
        wait_for_store: bool | None = None,
        callback: Callable[[Receipt], None] | None = None,
    ) -> Receipt:
        """Take one message and return its receipt at once."""
        if (
            self.is_fast
            and not self._is_restricted
            and type(value) is bytes
            and key is None
            and properties is None
            and event_time is None
            and partition is None
            and callback is None
            and tag is keys is deliver_at is wait_for_store is None
        ):
            lane = self.current
            if lane is not None:
                now_ns = time_ns()
                self._acquire()
                try:
                    batch = lane.batch
                    index = lane.take(value, now_ns // 1_000_000) if lane.take is not None else -1
                finally:
                    self._release()
                if index >= 0:
                    if now_ns >= lane.deadline_ns or index + 1 >= lane.count_max:
                        self.due(lane, batch)
                    return Receipt(batch, index)
        return self.slow(value, key, properties, event_time, partition, tag, keys, deliver_at, wait_for_store, callback)

    def send_soon(self, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Receipt]:
        """Take one message; to be awaited for its receipt, which suspends only where the slow way does."""
        return self.slow_soon(*arguments, **options)


def _taker(buffer: Any) -> Callable[[bytes, int], int]:
    """How a buffer of the compiled kind takes a bare value."""
    return lambda value, time_ms: buffer.append(value, None, None, time_ms)


def _no_way(*arguments: object) -> Any:
    raise RuntimeError("nobody takes messages here yet")


def survey(items: list[Any]) -> tuple[int, int, int]:
    """The index of the first item that is neither bytes nor None (-1: there is none), the shortest and the longest."""
    if set(map(type, items)) - {bytes, type(None)}:
        return next(index for index, item in enumerate(items) if item is not None and type(item) is not bytes), 0, 0
    sizes = [len(item) if item else 0 for item in items]
    return -1, min(sizes, default=0), max(sizes, default=0)


def partitions_of(keys: Sequence[bytes], partitions: int, hash_key: Callable[[bytes, int], int], out: Int32s) -> None:
    """Put the partition of each of these keys into `out`."""
    out[:] = [hash_key(key, partitions) for key in keys]
