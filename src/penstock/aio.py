"""The same with `await`: clients, producers and readers for programs that run an asyncio event loop.

Behind it is what is behind the blocking face: one I/O thread per client id, the same lanes and batches. No other thread
is used. The loop is woken once per batch, not per message, and by a reader once per answer of a broker; what was read
is opened on the loop's thread. Sending suspends only when the client's memory is used up.

A client and its producers may be used by several event loops, each in its thread; a reader by one at a time.

Runs on: the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from penstock.client import ASK_TIMEOUT, CLIENT_SCOPES, STOP_TIMEOUT, ClientCore, ClientFace, count_partitions
from penstock.config import parse
from penstock.consume.cursor import TIMEOUT, CursorCore, CursorFace
from penstock.consume.places import Given
from penstock.consume.reader import Item, ReaderCore, ReaderFace
from penstock.errors import ConfigError, PenstockError
from penstock.message import MessageId, Properties
from penstock.net.url import read_url
from penstock.produce.bulk import Steps
from penstock.produce.bulk_receipt import AllSettled, BulkReceipt
from penstock.produce.entrance import RoomWanted
from penstock.produce.hand_made import HandMadeBatch
from penstock.produce.kernel import Receipt
from penstock.produce.lanes import Lanes, ProducerLane
from penstock.produce.producer import ProducerCore, ProducerFace
from penstock.produce.receipts import own
from penstock.produce.transactions.transaction import TransactionCore
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import ClusterView, Mark


def connect(url: str, **options: Any) -> AsyncClient:
    """A client of the cluster at this URL, as `penstock.connect` gives one; it shares what that one would share."""
    return AsyncClient(ClientCore(read_url(url), parse(options, CLIENT_SCOPES)))


class EndOfTurn:
    """Lets a batch without delay stay open until the end of the loop's turn, so that many tasks share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._waiting: dict[asyncio.AbstractEventLoop, dict[ProducerLane, None]] = {}

    def put_off_locked(self, lane: ProducerLane) -> bool:
        """Seal what is open in this lane at the end of the turn; False where no loop runs, so that there is none."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        lanes = self._waiting.get(loop)
        if lanes is None:
            lanes = self._waiting[loop] = {}
            loop.call_soon(self._seal, loop)
        lanes[lane] = None
        return True

    def _seal(self, loop: asyncio.AbstractEventLoop) -> None:
        for lane in self._waiting.pop(loop):
            self._lanes.seal_overdue(lane)


class AsyncProducer(ProducerFace):
    """Sends messages to one topic; made by `client.producer(topic)`.

    Messages are put into batches behind `send`, which returns a receipt to be awaited.
    """

    def __init__(self, core: ProducerCore) -> None:
        super().__init__(core)
        core.entrance.may_block = False
        core.lanes.put_off = EndOfTurn(core.lanes).put_off_locked
        self._send = core.send
        intake = core.lanes.intake
        if self._send == intake.send:  # nothing is to be serialized: the kernel's own method, bound as it is
            intake.slow_soon = self.send
            self.send = intake.send_soon  # type: ignore[method-assign]

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def send(
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
        """Take one message and return its receipt; `await` that for the outcome.

        It suspends only when the client's memory is used up (`total_bytes_max`), as `when_full` says. A message
        that cannot be sent as it is raises `MessageError` and leaves nothing behind, and so does cancelling.
        """
        try:
            return self._send(
                value, key, properties, event_time, partition, tag, keys, deliver_at, wait_for_store, callback
            )
        except RoomWanted as wanted:
            late = wanted
        return await self._send_late(late, callback)

    async def send_and_wait(
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
    ) -> MessageId:
        """Take one message and wait for its outcome."""
        try:
            receipt = self._send(value, key, properties, event_time, partition, tag, keys, deliver_at, wait_for_store)
        except RoomWanted as wanted:
            late = wanted
        else:
            return await receipt
        return await (await self._send_late(late, None))

    async def send_many(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        event_times: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> BulkReceipt:
        """Take many messages: lists, or Arrow arrays. One mapping of properties holds for all of them.

        When memory or the producer ends in the middle, the receipt has that error for each that was not taken. When it
        is cancelled in the middle, those that were taken are sent all the same. Lists may be changed while it waits.
        """
        steps = self._core.many(_kept(values), _kept(keys), _kept(properties), event_times, partition)
        return await self._run(steps)

    async def send_table(self, table: pa.Table | pa.RecordBatch, partition: int | None = None) -> BulkReceipt:
        """Take the rows of an Arrow table: a column `value`, and `key`, `properties`, `event_time` where there are."""
        return await self._run(self._core.table(table, partition))

    async def send_batch(self, batch: HandMadeBatch, partition: int | None = None) -> BulkReceipt:
        """Send a hand-made batch as it is: to one partition, with no message of others in it. It cannot be used again.

        Where `same_properties` keeps messages apart, those of the batch must agree.
        """
        return await self._run(self._core.whole(batch, partition))

    def transaction(self) -> AsyncTransaction:
        """A block whose messages become visible all at once, or never: `async with producer.transaction():`."""
        return AsyncTransaction(self._core.outlet)

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the first lane can be used; raises what is in the way, or `TimedOutError`."""
        readiness = self._core.look_again()
        try:
            async with asyncio.timeout(timeout):
                await AllSettled([readiness])
        except TimeoutError:
            raise await asyncio.wrap_future(self._core.not_ready(timeout)) from None
        if isinstance(readiness.verdict, PenstockError):
            raise own(readiness.verdict)

    async def flush(self, timeout: float | None = None) -> None:
        """Send what is open, and wait until all that was sent has its outcome; TimeoutError if it has not in time."""
        with self._core.flushing() as batches:
            try:
                async with asyncio.timeout(timeout):
                    await AllSettled(batches)
            except TimeoutError:
                raise self._core.not_flushed(timeout) from None

    async def close(self, timeout: float | None = None) -> None:
        """Send what is open, wait for all outcomes, and end; what has none within `timeout` seconds fails.

        Cancelled, it goes on behind. In a child of `fork()` it does nothing.
        """
        if not self._core.loop.is_inherited():
            await AllSettled([self._core.begin_close(timeout)])

    async def _send_late(self, wanted: RoomWanted, callback: Callable[[Receipt], None] | None) -> Receipt:
        """Send a message for which there was no room."""
        await self._find_room(wanted.size)
        receipt = self._core.entrance.put(wanted.message, wanted.size)
        if callback is not None:
            receipt.add_done_callback(callback)
        return receipt

    async def _run(self, steps: Steps) -> BulkReceipt:
        try:
            size = next(steps)
            while True:
                try:
                    self._core.entrance.press()
                    await self._find_room(size)
                except PenstockError as error:
                    size = steps.throw(error)
                else:
                    size = steps.send(size)
        except StopIteration as done:
            receipt: BulkReceipt = done.value
            return receipt
        finally:
            steps.close()

    async def _find_room(self, size: int) -> None:
        """Reserve so many bytes, in line with all others who want some; who is cancelled leaves nothing reserved."""
        entrance, budget = self._core.entrance, self._core.lanes.accumulator.budget
        loop = asyncio.get_running_loop()
        room = loop.create_future()
        waiter = budget.wait(size, lambda: _tell(loop, room))
        try:
            async with asyncio.timeout(entrance.full_timeout):
                await room
        except TimeoutError:
            if budget.leave(waiter):
                raise entrance.no_room_in_time() from None
        except BaseException:
            budget.give_up(waiter)
            raise


class AsyncTransaction(TransactionCore):
    """A block whose messages become visible all at once, or never; made by `producer.transaction()`."""

    async def __aenter__(self) -> AsyncTransaction:
        try:
            await asyncio.wrap_future(self.begin())
        except BaseException:
            self.withdraw()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            await asyncio.wrap_future(self.commit())
            return
        try:
            await asyncio.wrap_future(self.roll_back())
        except PenstockError as failure:
            self.tell_not_aborted(error, failure)

    async def abort(self) -> None:
        """End it here so that nothing of it can be seen; the rest of the block sends nothing."""
        await asyncio.wrap_future(self.roll_back())


class AsyncReader(ReaderFace):
    """Reads one topic; made by `client.reader(topic)`. Iterating it gives Arrow record batches, or entries."""

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (item := await self.read()) is not None:
            yield item

    async def read(self, timeout: float | None = None) -> Item | None:
        """The next record batch or entry, waited for; None at the end. TimeoutError when nothing comes in time."""
        core = self._core
        core.loop.check_is_ours()
        await asyncio.sleep(0)  # others have their turn even where there always is something
        try:
            async with asyncio.timeout(timeout):
                while (item := core.poll()) is None and not core.is_at_end:
                    await self._come()
        except TimeoutError:
            raise core.nothing_came(timeout) from None
        return item

    async def read_all(self, timeout: float | None = None) -> pa.Table:
        """All messages up to the end, as one table; only with an end. TimeoutError when nothing comes for so long."""
        if self._core.plan.end is None:
            raise ConfigError("a reader without an end has no last message: give it an end, or iterate")
        batches = []
        while (batch := await self.read(timeout)) is not None:
            batches.append(batch)
        return pa.Table.from_batches(batches, self.schema)

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until it is known where every partition starts; raises what is in the way, or TimeoutError.

        With start="latest", messages that are sent after this are read.
        """
        self._core.loop.check_may_wait()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(asyncio.wrap_future(self._core.fetcher.ready))
        except TimeoutError:
            raise self._core.nothing_came(timeout) from None

    async def close(self) -> None:
        """End it and let go of its connections; others are not concerned. In a child of `fork()` it does nothing.

        Whoever iterates meanwhile gets to the end, where the reader has none; where it has one and was not there yet,
        `ClosedError`.
        """
        if not self._core.loop.is_inherited():
            self._core.begin_close()
            await asyncio.shield(asyncio.wrap_future(self._core.fetcher.gone))

    async def _come(self) -> None:
        """Suspend until something was fetched, or nothing will be."""
        loop, feed = asyncio.get_running_loop(), self._core.feed
        come = loop.create_future()

        def tell() -> None:
            _tell(loop, come)

        feed.listen(tell)
        try:
            await come
        finally:
            feed.unlisten(tell)


class AsyncCursor(CursorFace):
    """A durable position in a topic; made by `client.cursor(topic, name)`."""

    async def positions(self, timeout: float = TIMEOUT) -> dict[int, int]:
        """The position to read next of each partition in which one was committed."""
        return {number: mark.position for number, mark in (await self.marks(timeout)).items()}

    async def marks(self, timeout: float = TIMEOUT) -> dict[int, Mark]:
        """The same, with the notes that were committed beside them."""
        return await asyncio.wrap_future(self._core.marks(timeout))

    async def commit(self, positions: Mapping[int, int | Mark], timeout: float = TIMEOUT) -> None:
        """Store positions, of each partition the one to read next: numbers, or what `reader.marks()` tells."""
        await asyncio.wrap_future(self._core.commit(positions, timeout))

    async def reset(self, to: Given | Mapping[int, Given], timeout: float = TIMEOUT) -> dict[int, int]:
        """Move it to the earliest or latest message, to a time or a position; where it is then."""
        return await asyncio.wrap_future(self._core.reset(to, timeout))

    async def backlog(self, timeout: float = TIMEOUT, *, committed: bool = True) -> dict[int, int]:
        """How many positions of each partition it has before it; with `committed`, up to the first open transaction."""
        return await asyncio.wrap_future(self._core.backlog(timeout, committed))

    async def set_filter(self, filter: str | PropertyCondition | None, timeout: float = TIMEOUT) -> None:  # noqa: A002
        """Have the broker filter for all who read from it, until this is called again; None: no more.

        A setting of the group that it stands for: durable, and for all its topics and members. RefusedError where
        brokers do not filter, as Kafka's own.
        """
        await asyncio.wrap_future(self._core.set_filter(filter, timeout))

    async def filter(self, timeout: float = TIMEOUT) -> str | None:
        """What the broker filters by for all who read from it."""
        return await asyncio.wrap_future(self._core.filter(timeout))


class AsyncClient(ClientFace[AsyncProducer, AsyncReader, AsyncCursor]):
    """A cluster's topics, producers and readers; made by `connect`."""

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def metadata(self, topics: Sequence[str] | None = None, timeout: float = ASK_TIMEOUT) -> ClusterView:
        """The brokers, and these topics (None: all) with their partitions and leaders."""
        return await asyncio.wrap_future(self._core.look_up(topics, timeout))

    async def topics(self, timeout: float = ASK_TIMEOUT) -> list[str]:
        """The names of all topics."""
        return sorted((await self.metadata(None, timeout)).topics)

    async def partitions(self, topic: str, timeout: float = ASK_TIMEOUT) -> int:
        """How many partitions a topic has."""
        return count_partitions(await self.metadata([topic], timeout), topic)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replicas: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout: float = ASK_TIMEOUT,
    ) -> None:
        """Create a topic; -1 leaves a number to the cluster."""
        await asyncio.wrap_future(self._core.create_topic(name, partitions, replicas, settings, timeout))

    async def delete_topic(self, name: str, timeout: float = ASK_TIMEOUT) -> None:
        """Delete a topic."""
        await asyncio.wrap_future(self._core.delete_topic(name, timeout))

    async def grow_topic(self, name: str, partitions: int, timeout: float = ASK_TIMEOUT) -> None:
        """Give a topic more partitions: so many in all."""
        await asyncio.wrap_future(self._core.grow_topic(name, partitions, timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Close its readers and producers, as they do it themselves, and end; other clients with the same id go on.

        Cancelled, it goes on behind. In a child of `fork()` it does nothing.
        """
        loop = self._core.engine.loop
        if loop.is_inherited():
            return
        left = self._core.begin_close(timeout)
        await AllSettled([left])
        if left.verdict is True:
            await asyncio.wait([asyncio.wrap_future(loop.ended)], timeout=STOP_TIMEOUT)

    def _face(self, core: ProducerCore) -> AsyncProducer:
        return AsyncProducer(core)

    def _reader_face(self, core: ReaderCore) -> AsyncReader:
        return AsyncReader(core)

    def _cursor_face(self, core: CursorCore) -> AsyncCursor:
        return AsyncCursor(core)


def _kept(given: Any) -> Any:
    """The same, whatever whoever gave it does to his list."""
    return list(given) if type(given) is list else given


def _tell(loop: asyncio.AbstractEventLoop, room: asyncio.Future[None]) -> None:
    """What was waited for is there; whoever does not wait for it any more has seen to that."""
    try:
        loop.call_soon_threadsafe(_done, room)
    except RuntimeError:
        return  # the loop is closed, and its task has given up or will


def _done(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
