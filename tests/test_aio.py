"""What only the asyncio face has: tasks that share batches and wake-ups, cancelling, several event loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock import BatchPolicy
from penstock.aio import AsyncClient, AsyncProducer
from penstock.errors import BatchStateError, ClosedError
from penstock.message import MessageId
from penstock.produce import kernel, lane
from penstock.produce.patience import VAIN_MAX
from penstock.produce.receipts import announce
from penstock.wire.protocol import Stored
from tests.faces import LIMIT_S, UNREACHABLE, budget_of, in_a_loop, new_id
from tests.produce.real.librdkafka_mock import MockCluster
from tests.produce.real.reading import new_topic, read_all

SMALL = {"total_bytes_max": 65_536, "message_bytes_max": 16_000, "batch_bytes_max": 16_384, "compression": "none"}
AT_ONCE = BatchPolicy(delay_ms=0)


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster(1) as cluster:
        yield cluster


@pytest.fixture
def topic(mock: MockCluster) -> str:
    name = new_topic()
    mock.create(name, 4)
    return name


def connect(url: str, **options: Any) -> AsyncClient:
    return penstock.aio.connect(url, **{"client_id": new_id(), **options})


def count_wakeups(loop: asyncio.AbstractEventLoop) -> list[Callable[..., Any]]:
    """What other threads have this loop call from now on."""
    called: list[Callable[..., Any]] = []
    call = loop.call_soon_threadsafe

    def counted(callback: Any, *arguments: Any, **options: Any) -> Any:
        called.append(callback)
        return call(callback, *arguments, **options)

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
    return called


async def other_threads_turn() -> None:
    """Let what other threads have this loop call be called."""
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)


# Tasks that share


@in_a_loop
async def test_a_thousand_tasks_share_one_batch_and_one_wakeup(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch=AT_ONCE) as producer:
        await producer.send_and_wait(b"first", partition=0)
        before = producer.stats().total.batches
        wakeups = count_wakeups(asyncio.get_running_loop())
        places = await asyncio.gather(*(producer.send_and_wait(b"%d" % number) for number in range(1000)))
        assert producer.stats().total.batches == before + 1
        assert len(wakeups) == 1
        positions = [place.position for place in places]
        assert positions == [*range(1000)] or positions == [*range(1, 1001)]
    assert len(read_all(mock.bootstrap, topic)) == 1001


@in_a_loop
async def test_messages_with_keys_share_one_batch_per_partition(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch=AT_ONCE) as producer:
        await producer.ready(LIMIT_S)
        await asyncio.gather(*(producer.send_and_wait(b"v", b"%d" % number) for number in range(1000)))
        stats = producer.stats()
        assert len(stats.lanes) == 4
        assert stats.total.batches == 4
        assert stats.total.seal_reasons == {"delay": 4}


@in_a_loop
async def test_a_turn_without_end_is_not_waited_for_when_a_batch_is_full(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client:
        producer = client.producer(topic, batch=BatchPolicy(delay_ms=0, count_max=10))
        await producer.ready(LIMIT_S)
        receipts = [await producer.send(b"v") for _ in range(25)]
        assert receipts[19].result(LIMIT_S)  # blocks the loop, so that its turn does not end
        assert await receipts[-1]


@in_a_loop
async def test_with_a_delay_a_batch_waits_for_it_whatever_the_loop_does(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch_delay_ms=60_000) as producer:
        await producer.ready(LIMIT_S)
        receipt = await producer.send(b"v")
        waiting = asyncio.ensure_future(receipt)
        for _ in range(10):
            await other_threads_turn()
        assert producer.stats().total.batches == 0
        await producer.flush(LIMIT_S)
        assert await waiting == receipt.result(0)
        assert producer.stats().total.seal_reasons == {"flush": 1}


@in_a_loop
async def test_a_batch_leaves_when_its_delay_is_over_although_somebody_waits_for_it(
    mock: MockCluster, topic: str
) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch_delay_ms=20) as producer:
        await producer.ready(LIMIT_S)
        await producer.send_and_wait(b"v")
        assert producer.stats().total.seal_reasons == {"delay": 1}


@in_a_loop
async def test_a_producer_without_delay_may_be_used_where_no_loop_runs(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch=AT_ONCE) as producer:
        await producer.ready(LIMIT_S)
        core = producer._core
        receipt = await asyncio.to_thread(core.send, b"v")
        assert await receipt


# One message


@in_a_loop
async def test_outcomes_are_awaited_once_twice_and_together(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic) as producer:
        receipt = await producer.send(b"v", partition=1)
        expected = MessageId(topic, 1, 0)
        assert list(await asyncio.gather(receipt, receipt, asyncio.wait_for(receipt, LIMIT_S))) == [expected] * 3
        assert await receipt == expected
        bulk = await producer.send_many([b"v"] * 3, partition=1)
        assert list(await bulk) == list(await bulk) == [MessageId(topic, 1, number) for number in (1, 2, 3)]


@in_a_loop
async def test_a_callback_is_told_also_of_a_message_that_had_to_wait_for_room(mock: MockCluster, topic: str) -> None:
    told: list[Any] = []
    async with connect(mock.url, **SMALL) as client, client.producer(topic) as producer:
        for _ in range(60):
            await producer.send(b"v" * 4000, partition=0, callback=told.append)
        await producer.flush(LIMIT_S)
        await producer.close()
    assert sorted(receipt.result(0).position for receipt in told) == list(range(60))


@in_a_loop
async def test_who_is_cancelled_while_a_batch_waits_for_room_has_it_back(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url, **SMALL) as client, client.producer(topic) as producer:
        budget = budget_of(producer)
        assert budget.try_reserve(budget.bytes_max)
        batch = producer.batch()
        batch.append(b"one")
        sending = asyncio.ensure_future(producer.send_batch(batch, partition=0))
        await asyncio.sleep(0)
        with pytest.raises(BatchStateError):
            batch.append(b"while it is being sent")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert budget.used == budget.bytes_max
        budget.release(budget.bytes_max)
        batch.append(b"two")
        receipt = await producer.send_batch(batch, partition=0)
        assert [place.position for place in await receipt] == [0, 1]


# Cancelling


def settle(parcel: Any) -> None:
    parcel.verdict = Stored(100)
    announce(parcel)


class Here:
    def check_may_wait(self) -> None:
        pass


@pytest.fixture(params=[kernel, lane], ids=["kernel", "plain"])
def twin(request: pytest.FixtureRequest) -> Any:
    """Both twins of receipts."""
    return request.param


@in_a_loop
async def test_cancelling_one_who_waits_harms_no_other(twin: Any) -> None:
    parcel = twin.Parcel("t", 0, Here())
    wakeups = count_wakeups(asyncio.get_running_loop())
    tasks = [asyncio.ensure_future(twin.Receipt(parcel, number)) for number in range(5)]
    await asyncio.sleep(0)
    for number in (0, 3):
        tasks[number].cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(twin.Receipt(parcel, 9), 0.001)
    assert [task.done() for task in tasks] == [True, False, False, True, False]
    await asyncio.to_thread(settle, parcel)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        asyncio.CancelledError,
        MessageId,
        MessageId,
        asyncio.CancelledError,
        MessageId,
    ]
    assert len([call for call in wakeups if call.__module__ == "penstock.produce.receipts"]) == 1
    assert not parcel.loops


@in_a_loop
async def test_cancelled_in_the_moment_of_the_outcome(twin: Any) -> None:
    parcel = twin.Parcel("t", 0, Here())
    task, other = (asyncio.ensure_future(twin.Receipt(parcel, number)) for number in (0, 1))
    await asyncio.sleep(0)
    settle(parcel)
    task.cancel()
    assert await other == MessageId("t", 0, 101)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_receipts_are_awaited_in_several_loops_at_once(twin: Any) -> None:
    parcel = twin.Parcel("t", 0, Here())
    waiting = threading.Barrier(4)
    loops: list[list[Any]] = []

    async def wait() -> list[MessageId]:
        loops.append(count_wakeups(asyncio.get_running_loop()))
        tasks = [asyncio.ensure_future(twin.Receipt(parcel, number)) for number in range(100)]
        await asyncio.sleep(0)
        tasks.pop().cancel()
        await asyncio.to_thread(waiting.wait)
        return list(await asyncio.gather(*tasks))

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(asyncio.run, wait()) for _ in range(3)]
        waiting.wait(LIMIT_S)
        settle(parcel)
        for future in futures:
            assert future.result(LIMIT_S) == [MessageId("t", 0, 100 + number) for number in range(99)]
    for wakeups in loops:
        assert len([call for call in wakeups if call.__module__ == "penstock.produce.receipts"]) == 1


def test_a_loop_that_is_gone_harms_no_other(twin: Any) -> None:
    parcel = twin.Parcel("t", 0, Here())
    gone = asyncio.new_event_loop()
    task = gone.create_task(asyncio.wait_for(twin.Receipt(parcel, 0), LIMIT_S))
    gone.run_until_complete(asyncio.sleep(0))
    gone.close()

    async def wait() -> Any:
        task = asyncio.ensure_future(twin.Receipt(parcel, 1))
        await asyncio.sleep(0)
        settle(parcel)
        return await task

    assert asyncio.run(wait()) == MessageId("t", 0, 101)
    assert not parcel.loops
    task._log_destroy_pending = False  # type: ignore[attr-defined]


@in_a_loop
async def test_a_producer_is_used_from_two_loops(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch=AT_ONCE) as producer:

        async def send() -> set[MessageId]:
            places: set[MessageId] = set()
            for _ in range(20):
                places.update(await asyncio.gather(*(producer.send_and_wait(b"v") for _ in range(50))))
            return places

        elsewhere = asyncio.to_thread(asyncio.run, send())
        here, there = await asyncio.gather(send(), elsewhere)
        assert len(here) == len(there) == 1000
        assert not here & there


# Waiting for room


@asynccontextmanager
async def nowhere() -> AsyncIterator[AsyncClient]:
    """A client that cannot send, with little memory."""
    client = connect(UNREACHABLE, **SMALL)
    try:
        yield client
    finally:
        await client.close(timeout=0)


async def filled(producer: AsyncProducer) -> None:
    """Send until there is no room for another batch."""
    while True:
        task = asyncio.ensure_future(producer.send(b"v" * 4000, partition=0))
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return


@in_a_loop
async def test_who_waits_for_room_and_is_cancelled_leaves_nothing_reserved() -> None:
    async with nowhere() as client:
        producer = client.producer("t", batch_delay_ms=60_000)
        await filled(producer)
        budget = budget_of(producer)
        used = budget.used
        tasks: list[asyncio.Future[Any]] = []
        tasks += [asyncio.ensure_future(producer.send(b"v" * 4000, partition=0)) for _ in range(10)]
        tasks.append(asyncio.ensure_future(producer.send_many([b"v" * 4000] * 5, partition=0)))
        await asyncio.sleep(0)
        assert "11 waiting" in repr(budget)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert "0 waiting" in repr(budget)
        assert budget.used == used
        await client.close(timeout=0)
        assert budget.used == 0


@in_a_loop
async def test_cancelled_in_the_moment_room_is_given_nothing_stays_reserved() -> None:
    async with nowhere() as client:
        producer = client.producer("t", batch_delay_ms=60_000)
        await filled(producer)
        budget = budget_of(producer)
        task, other = (asyncio.ensure_future(producer.send(b"v" * 4000, partition=0)) for _ in range(2))
        await asyncio.sleep(0)
        penstock.Producer(producer._core).close(timeout=0)  # blocks the loop while the I/O thread gives room to both
        assert "0 waiting" in repr(budget)
        assert budget.used > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ClosedError):
            await other
        assert budget.used == 0


@in_a_loop
async def test_a_loop_that_is_closed_while_its_tasks_wait_for_room_leaves_nothing_reserved() -> None:
    async with nowhere() as client:
        producer = client.producer("t", batch_delay_ms=60_000)
        await filled(producer)

        def wait_elsewhere() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(producer.send(b"v" * 4000, partition=0))
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]

        await asyncio.to_thread(wait_elsewhere)
        await client.close(timeout=0)
        gc.collect()
        assert budget_of(producer).used == 0


@in_a_loop
async def test_the_loop_goes_on_while_a_task_waits_for_room() -> None:
    async with nowhere() as client:
        producer = client.producer("t", batch_delay_ms=60_000)
        await filled(producer)
        threads = threading.active_count()
        tasks = [asyncio.ensure_future(producer.send(b"v" * 4000, partition=0)) for _ in range(50)]
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert threading.active_count() <= threads
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# How a task is suspended and woken


@in_a_loop
async def test_sending_is_a_coroutine_to_whoever_wants_one(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic) as producer:
        await producer.ready(LIMIT_S)
        opening = producer.send(b"opens a batch, the careful way")
        sending = producer.send(b"v")
        assert inspect.isawaitable(opening)
        assert asyncio.iscoroutine(opening)
        assert asyncio.iscoroutine(sending)
        await opening
        places = [
            await (await asyncio.create_task(sending)),
            *await asyncio.gather(*(await asyncio.gather(producer.send(b"v"), producer.send(b"w")))),
            await (await asyncio.wait_for(producer.send(b"x"), LIMIT_S)),
        ]
        assert len({place.position for place in places}) == 4
        producer.send(b"y").close()
        with pytest.raises(ZeroDivisionError):
            producer.send(b"z").throw(ZeroDivisionError())


@in_a_loop
async def test_a_task_that_gives_up_waiting_is_woken_at_once_and_no_other(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic) as producer:
        await producer.ready(LIMIT_S)
        mock.delay(300)
        receipts = [await producer.send(b"v") for _ in range(20)]

        async def outcome(receipt: Any) -> Any:
            return await receipt

        tasks = [asyncio.ensure_future(outcome(receipt)) for receipt in receipts]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel("enough")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, False] * 10
        with pytest.raises(asyncio.CancelledError, match="enough"):
            tasks[2].result()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outcome(receipts[0]), 0.001)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, MessageId) for one in found] == [False, True] * 10
        assert [await receipt for receipt in receipts[::2]] == [receipt.result(0) for receipt in receipts[::2]]


@in_a_loop
async def test_tasks_keep_their_own_context_when_they_are_woken_together(mock: MockCluster, topic: str) -> None:
    who: contextvars.ContextVar[int] = contextvars.ContextVar("who")

    async with connect(mock.url) as client, client.producer(topic) as producer:

        async def work(number: int) -> tuple[int, int, Any]:
            who.set(number)
            for _ in range(3):
                await producer.send_and_wait(b"v")
            return number, who.get(), asyncio.current_task()

        tasks = [asyncio.create_task(work(number)) for number in range(50)]
        for number, (mine, found, task) in enumerate(await asyncio.gather(*tasks)):
            assert mine == found == number
            assert task is tasks[number]


@in_a_loop
async def test_a_task_that_raises_harms_no_other_that_is_woken_with_it(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic) as producer:

        async def work(number: int) -> int:
            await producer.send_and_wait(b"v")
            if number % 2:
                raise ZeroDivisionError
            return number

        found = await asyncio.gather(*map(work, range(20)), return_exceptions=True)
        assert found[::2] == list(range(0, 20, 2))
        assert all(isinstance(one, ZeroDivisionError) for one in found[1::2])


@in_a_loop
async def test_who_waits_alone_is_not_held_back_by_the_delay_for_ever(mock: MockCluster, topic: str) -> None:
    async with connect(mock.url) as client, client.producer(topic, batch_delay_ms=50) as producer:
        await producer.ready(LIMIT_S)
        for _ in range(10):
            await producer.send_and_wait(b"v")
        for _ in range(3):
            for receipt in [await producer.send(b"v") for _ in range(50)]:
                await receipt
        reasons = producer.stats().total.seal_reasons
        assert reasons["delay"] == VAIN_MAX
        assert reasons["awaited"] == 10 - VAIN_MAX + 3


# The end


@in_a_loop
async def test_closing_goes_on_when_the_task_that_waits_for_it_is_cancelled(mock: MockCluster, topic: str) -> None:
    name = new_id()
    client = connect(mock.url, client_id=name)
    producer = client.producer(topic, batch_delay_ms=60_000)
    await producer.ready(LIMIT_S)
    mock.delay(200)
    receipt = await producer.send(b"v")
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not receipt.done()
    assert (await receipt).topic == topic
    await client.close()
    await other_threads_turn()
    assert not [thread for thread in threading.enumerate() if thread.name == f"penstock-{name}"]


@in_a_loop
async def test_the_loop_goes_on_while_a_client_closes(mock: MockCluster, topic: str) -> None:
    mock.delay(100)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async with connect(mock.url) as client, client.producer(topic) as producer:
        await producer.send(b"v")
        ticking = asyncio.ensure_future(tick())
    ticking.cancel()
    assert ticks > 5
