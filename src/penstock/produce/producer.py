"""What a user sends with: one topic's producer, and what both its faces share.

`send` is the kernel's own method, bound as it is: a wrapper would cost as much as all the rest of a send.

Runs on: any thread.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import ClosedError, MessageError, PenstockError, TimedOutError
from penstock.message import Properties
from penstock.net.failures import because
from penstock.net.loop import Loop
from penstock.produce.batch import Batch, SealReason
from penstock.produce.bulk import ColumnSource, ListSource, Source, Steps, checked_properties, send_all
from penstock.produce.bulk_receipt import BulkReceipt, wait_for_all
from penstock.produce.closing import Closing, Closings
from penstock.produce.entrance import Entrance
from penstock.produce.hand_made import HandMadeBatch, send_whole
from penstock.produce.incoming import time_ms_of
from penstock.produce.kernel import Parcel, Receipt
from penstock.produce.lanes import Lanes
from penstock.produce.outlet import Outlet
from penstock.produce.receipts import own, wait_for
from penstock.produce.sender import Sender
from penstock.produce.stats import ProducerStats
from penstock.produce.transactions.transaction import Transaction
from penstock.wire.columns import from_arrow, is_arrow

Serializer = Callable[[Any], bytes | None]


class Machinery(NamedTuple):
    """What a producer works with; shared with others."""

    loop: Loop
    sender: Sender
    closings: Closings
    clock: Clock


class ProducerCore:
    """A producer without its face: what does not depend on how one waits."""

    def __init__(
        self,
        lanes: Lanes,
        outlet: Outlet,
        machinery: Machinery,
        value_serializer: Serializer | None = None,
        key_serializer: Serializer | None = None,
    ) -> None:
        self.lanes = lanes
        self.outlet = outlet
        self.entrance = Entrance(lanes)
        self.closing = Closing(outlet)
        self.loop, self.sender, self._closings, self.clock = machinery
        self.value_serializer = value_serializer
        self.key_serializer = key_serializer
        self._is_closed = False
        self.loop.call(lambda: self.sender.attach(outlet, self.clock.monotonic()))

    @property
    def send(self) -> Callable[..., Receipt]:
        """How one message is sent."""
        return self._serialized if self.value_serializer or self.key_serializer else self.lanes.intake.send

    def _serialized(self, value: Any, key: Any = None, *arguments: Any, **options: Any) -> Receipt:
        return self.lanes.intake.send(self._value(value), self._key(key), *arguments, **options)

    def _value(self, value: Any) -> Any:
        return value if value is None or self.value_serializer is None else self.value_serializer(value)

    def _key(self, key: Any) -> Any:
        return key if key is None or self.key_serializer is None else self.key_serializer(key)

    def many(
        self,
        values: Sequence[Any] | Any,
        keys: Sequence[Any] | Any = None,
        properties: Any = None,
        event_times: Any = None,
        partition: int | None = None,
    ) -> Steps:
        """The steps of sending many messages."""
        self.lanes.check_open()
        times_ms = self.clock.wall_ms() if event_times is None else event_times
        if properties is not None and not is_arrow(properties):
            properties = checked_properties(properties)
        elif properties is not None and not is_arrow(values):
            raise MessageError("properties: expected mappings, as the values are no Arrow array; found one")
        if is_arrow(values):
            common, own_pairs = (properties, None) if isinstance(properties, Mapping) else (None, properties)
            return send_all(self.lanes, ColumnSource(from_arrow(values, keys, own_pairs, times_ms), common), partition)
        if self.value_serializer is not None:
            values = [self._value(value) for value in values]
        if self.key_serializer is not None and keys is not None:
            keys = [self._key(key) for key in keys]
        if event_times is not None and not is_arrow(event_times):
            times_ms = [time_ms_of(time, "event_times") for time in event_times]
        return send_all(self.lanes, ListSource(values, keys, properties, times_ms), partition)

    def table(self, table: pa.Table | pa.RecordBatch, partition: int | None) -> Steps:
        """The steps of sending a table's rows."""
        self.lanes.check_open()
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise MessageError(f"table: expected an Arrow table or record batch, found {type(table).__name__}")
        return send_all(self.lanes, self._table_source(table), partition)

    def _table_source(self, table: pa.Table | pa.RecordBatch) -> Source:
        names = table.schema.names
        known = ("value", "key", "properties", "event_time")
        unknown = [name for name in names if name not in known]
        if "value" not in names or unknown or len(set(names)) < len(names):
            raise MessageError(
                "table: expected a column value and, if wanted, key, properties and event_time; found "
                f"{', '.join(names)}"
            )
        columns = {name: table.column(name) for name in names}
        times = columns.get("event_time", self.clock.wall_ms())
        return ColumnSource(from_arrow(columns["value"], columns.get("key"), columns.get("properties"), times))

    def whole(self, batch: HandMadeBatch, partition: int | None) -> Steps:
        """The steps of sending a hand-made batch."""
        return send_whole(self.lanes, batch, partition)

    # Waiting, but for how

    @contextlib.contextmanager
    def flushing(self) -> Iterator[Sequence[Batch]]:
        """The batches that have no outcome yet, all open ones sealed; meanwhile no frame waits in a gate."""
        if self.gone.verdict is not None:
            yield ()
            return
        self.loop.call(lambda: self._flush(1))
        try:
            self.lanes.seal_open(SealReason.FLUSH)
            yield list(self.lanes.unsettled)
        finally:
            with contextlib.suppress(ClosedError):
                self.loop.call(lambda: self._flush(-1))

    def _flush(self, more: int) -> None:
        self.sender.flushing += more
        if more > 0:
            self.outlet.cluster.flush(self.clock.monotonic())

    def not_flushed(self, timeout: float | None) -> TimeoutError:
        """The error of one who waited in vain for all outcomes."""
        return TimeoutError(f"not all messages to {self.lanes.topic} had their outcome within {timeout} s")

    def look_again(self) -> Parcel:
        """What is settled when the first lane can be used, or cannot; asks again if it could not before."""
        self.lanes.check_not_closed()
        readiness = self.outlet.readiness
        self.loop.call(lambda: self.sender.look_again(self.outlet, self.clock.monotonic()))
        return readiness

    def not_ready(self, timeout: float | None) -> Future[TimedOutError]:
        """The error of one who waited in vain for the first lane; the I/O thread knows what is in the way."""
        error: Future[TimedOutError] = Future()
        self.loop.call(lambda: error.set_result(self._not_ready(timeout)))
        return error

    def _not_ready(self, timeout: float | None) -> TimedOutError:
        cluster, topic = self.outlet.cluster, self.lanes.topic
        trouble = cluster.trouble(self.clock.monotonic()) or cluster.error(topic) or self.outlet.trouble
        if trouble is None and cluster.partitions(topic) is None:
            story = f"{cluster.name} has not answered yet"
        else:
            story = str(trouble or "its first lane is not open yet")
        return because(TimedOutError(f"the producer of {topic} was not ready within {timeout} s: {story}"), trouble)

    # The end

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more messages."""
        return self._is_closed

    @property
    def gone(self) -> Parcel:
        """Settled when it has been closed and nothing of it is left."""
        return self.closing.gone

    def begin_close(self, timeout: float | None = None) -> Parcel:
        """Take no more messages and let what was taken have its outcome, within so many seconds; what is settled then.

        Said again it shortens the time, if anything.
        """
        if self.gone.verdict is not None:
            return self.gone
        self._is_closed = True
        deadline = math.inf if timeout is None else self.clock.monotonic() + timeout
        self.lanes.close(ClosedError(f"the producer of {self.lanes.topic} is closed"))
        try:
            self.loop.call(lambda: self._closings.begin(self.closing, deadline, self.clock.monotonic()))
        except ClosedError:  # the I/O thread has ended, and told all receipts so
            self.closing.end()
        return self.gone


class ProducerFace:
    """What a producer can do without waiting."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.topic}{', closed' if self._core.is_closed else ''}>"

    @property
    def topic(self) -> str:
        """The topic that it sends to."""
        return self._core.lanes.topic

    def batch(self, bytes_max: int | None = None) -> HandMadeBatch:
        """An empty batch to be filled by hand, with `append` and `extend`, and sent with `send_batch`."""
        lanes = self._core.lanes
        return HandMadeBatch(lanes.wire, lanes.policy.bytes_max if bytes_max is None else bytes_max)

    def stats(self) -> ProducerStats:
        """What it has done so far."""
        self._core.loop.check_is_ours()
        return self._core.lanes.stats()


class Producer(ProducerFace):
    """Sends messages to one topic; made by `client.producer(topic)`.

    Messages are put into batches behind `send`, which returns a receipt at once.
    """

    def __init__(self, core: ProducerCore) -> None:
        super().__init__(core)
        self.send = core.send  # type: ignore[method-assign]

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(
        self,
        value: Any,
        key: Any = None,
        properties: Properties | None = None,
        event_time: Any = None,
        partition: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        deliver_at: Any = None,
        wait_for_store: bool | None = None,
        callback: Callable[[Receipt], None] | None = None,
    ) -> Receipt:
        """Take one message and return its receipt at once.

        It waits only when the client's memory is used up (`total_bytes_max`), as `when_full` says. A message that
        cannot be sent as it is raises `MessageError` and leaves nothing behind.
        """
        return self._core.send(
            value, key, properties, event_time, partition, tag, keys, deliver_at, wait_for_store, callback
        )

    def send_many(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        event_times: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> BulkReceipt:
        """Take many messages: lists, or Arrow arrays. One mapping of properties holds for all of them.

        When memory or the producer ends in the middle, the receipt has that error for each that was not taken.
        """
        return self._run(self._core.many(values, keys, properties, event_times, partition))

    def send_table(self, table: pa.Table | pa.RecordBatch, partition: int | None = None) -> BulkReceipt:
        """Take the rows of an Arrow table: a column `value`, and `key`, `properties`, `event_time` where there are."""
        return self._run(self._core.table(table, partition))

    def send_batch(self, batch: HandMadeBatch, partition: int | None = None) -> BulkReceipt:
        """Send a hand-made batch as it is: to one partition, with no message of others in it. It cannot be used again.

        Where `same_properties` keeps messages apart, those of the batch must agree.
        """
        return self._run(self._core.whole(batch, partition))

    def transaction(self) -> Transaction:
        """A block whose messages become visible all at once at its end, or never: `with producer.transaction():`."""
        return Transaction(self._core.outlet, self._core.loop)

    def ready(self, timeout: float | None = None) -> None:
        """Wait until the first lane can be used; raises what is in the way, or `TimedOutError`."""
        core = self._core
        core.loop.check_may_wait()
        readiness = core.look_again()
        if not wait_for(readiness, timeout):
            raise core.not_ready(timeout).result()
        if isinstance(readiness.verdict, PenstockError):
            raise own(readiness.verdict)

    def flush(self, timeout: float | None = None) -> None:
        """Send what is open, and wait until all that was sent has its outcome; TimeoutError if it has not in time."""
        self._core.loop.check_may_wait()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._core.flushing() as batches:
            if not wait_for_all(batches, deadline):
                raise self._core.not_flushed(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what is open, wait for all outcomes, and end; what has none within `timeout` seconds fails.

        Called from a callback it does not wait: closing goes on behind it. In a child of `fork()` it does nothing.
        """
        if self._core.loop.is_inherited():
            return
        gone = self._core.begin_close(timeout)
        if not self._core.loop.is_here():
            wait_for(gone, None)

    def _run(self, steps: Steps) -> BulkReceipt:
        try:
            size = next(steps)
            while True:
                try:
                    self._core.entrance.find_room(size)
                except PenstockError as error:
                    size = steps.throw(error)
                else:
                    size = steps.send(size)
        except StopIteration as done:
            receipt: BulkReceipt = done.value
            return receipt
        finally:
            steps.close()
