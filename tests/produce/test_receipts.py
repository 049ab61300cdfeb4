"""What becomes of a message, told to whoever holds its receipt: by asking, by waiting, by a callback, by `await`."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.errors import ClosedError, DeniedError, PenstockError, RefusedError
from penstock.message import MessageId
from penstock.wire.protocol import Spoilt, Stored
from tests.produce.kits import Kit

LIMIT_S = 60.0


class Anywhere:
    """A home where one may wait, unless it says otherwise."""

    def __init__(self, error: PenstockError | None = None) -> None:
        self.error = error

    def check_may_wait(self) -> None:
        if self.error is not None:
            raise self.error


def parcel(kit: Kit, partition: int = 3, home: Anywhere | None = None) -> Any:
    return kit.Parcel("t", partition, home or Anywhere())


def settle(kit: Kit, parcel: Any, verdict: Any) -> None:
    """What whoever settles a batch does."""
    parcel.verdict = verdict
    kit.modules["receipts"].announce(parcel)


def moved(kit: Kit, parts: Sequence[Any], places: Sequence[tuple[int, int]], errors: dict[int, PenstockError]) -> Any:
    part_of, place_in = (np.array(column, np.int32) for column in zip(*places, strict=True))
    return kit.Moved(parts, part_of, place_in, errors)


def test_a_stored_message_has_its_place_after_the_first_of_its_batch(kit: Kit) -> None:
    batch = parcel(kit)
    receipts = [kit.Receipt(batch, index) for index in range(3)]
    assert not receipts[0].done()
    assert repr(receipts[2]) == "<Receipt pending, message 2 of a batch for t>"
    settle(kit, batch, Stored(100))
    assert [receipt.result(0) for receipt in receipts] == [MessageId("t", 3, 100 + index) for index in range(3)]
    assert all(receipt.done() and receipt.exception() is None for receipt in receipts)
    assert str(receipts[1].result()) == "t-3@101"
    assert isinstance(receipts[1].result(), MessageId)
    assert repr(receipts[2]) == "<Receipt done, message 2 of a batch for t>"


@pytest.mark.parametrize(("first", "position"), [(None, None), ((5, 17), (5, 17, 2)), (1 << 40, (1 << 40) + 2)])
def test_positions_of_any_kind_follow(kit: Kit, first: Any, position: Any) -> None:
    batch = parcel(kit)
    settle(kit, batch, Stored(first))
    assert kit.Receipt(batch, 2).result(0) == MessageId("t", 3, position)


def test_all_messages_of_a_failed_batch_see_the_same_cause_each_as_an_error_of_its_own(kit: Kit) -> None:
    batch = parcel(kit)
    cause = OSError("disk")
    error = DeniedError("no", "DENIED")
    error.__cause__ = cause
    settle(kit, batch, error)
    found = [kit.Receipt(batch, index).exception(0) for index in range(2)]
    assert all(isinstance(one, DeniedError) and one.__cause__ is cause and str(one) == "DENIED: no" for one in found)
    assert found[0] is not found[1]
    with pytest.raises(DeniedError) as raised:
        kit.Receipt(batch, 0).result()
    assert raised.value is not error
    assert error.__traceback__ is None


def test_the_guilty_hear_why_and_the_others_that_they_may_be_sent_again(kit: Kit) -> None:
    batch = parcel(kit)
    settle(kit, batch, Spoilt(RefusedError("invalid", "INVALID_RECORD"), {1: "no key", 2: ""}))
    innocent, guilty, wordless = (kit.Receipt(batch, index).exception(0) for index in range(3))
    assert "other messages of its batch were refused; send it again" in str(innocent)
    assert str(guilty) == "INVALID_RECORD: invalid: message 1 of its batch: no key"
    assert str(wordless) == "INVALID_RECORD: invalid"
    for error in (innocent, guilty, wordless):
        assert isinstance(error, RefusedError)
        assert error.code == "INVALID_RECORD"


def test_a_message_that_moved_is_followed_to_where_it_went_how_often_soever(kit: Kit) -> None:
    batch, left, right, last = (parcel(kit, number) for number in range(4))
    receipts = [kit.Receipt(batch, index) for index in range(4)]
    settle(kit, batch, moved(kit, [left, right], [(0, 0), (1, 0), (-1, 0), (0, 1)], {2: DeniedError("you")}))
    assert [receipt.done() for receipt in receipts] == [False, False, True, False]
    settle(kit, left, moved(kit, [last], [(0, 1), (0, 0)], {}))
    settle(kit, right, Stored(50))
    assert [receipt.done() for receipt in receipts] == [False, True, True, False]
    settle(kit, last, Stored(70))
    assert [receipts[index].result(0) for index in (0, 1, 3)] == [
        MessageId("t", 3, 71),
        MessageId("t", 2, 50),
        MessageId("t", 3, 70),
    ]
    with pytest.raises(DeniedError, match="you"):
        receipts[2].result(0)


# Callbacks


def test_a_callback_is_called_once_with_its_receipt_before_or_after_the_outcome(kit: Kit) -> None:
    batch = parcel(kit)
    receipt = kit.Receipt(batch, 0)
    told: list[Any] = []
    receipt.add_done_callback(told.append)
    assert told == []
    settle(kit, batch, Stored(0))
    assert told == [receipt]
    receipt.add_done_callback(told.append)
    assert told == [receipt, receipt]
    assert not batch.listeners


def test_a_callback_that_throws_harms_nobody(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    batch = parcel(kit)
    told: list[int] = []

    def callback(receipt: Any) -> None:
        if receipt.index % 2:
            raise ZeroDivisionError
        told.append(receipt.index)

    for index in range(4):
        kit.Receipt(batch, index).add_done_callback(callback)
    with caplog.at_level(logging.ERROR, "penstock"):
        settle(kit, batch, Stored(0))
    assert told == [0, 2]
    assert len(caplog.records) == 2
    with caplog.at_level(logging.ERROR, "penstock"):
        kit.Receipt(batch, 1).add_done_callback(callback)
    assert len(caplog.records) == 3


def test_callbacks_follow_messages_that_moved_and_are_called_once(kit: Kit) -> None:
    batch, part, last = (parcel(kit, number) for number in range(3))
    told: list[int] = []
    for index in range(3):
        kit.Receipt(batch, index).add_done_callback(lambda receipt: told.append(receipt.index))
    settle(kit, batch, moved(kit, [part], [(0, 0), (-1, 0), (0, 1)], {1: DeniedError("you")}))
    assert told == [1]
    settle(kit, part, moved(kit, [last], [(0, 0), (0, 1)], {}))
    assert told == [1]
    settle(kit, last, Stored(0))
    assert sorted(told) == [0, 1, 2]
    assert not batch.listeners
    assert not part.listeners


def test_a_callback_may_add_another(kit: Kit) -> None:
    batch = parcel(kit)
    told: list[str] = []
    receipt = kit.Receipt(batch, 0)

    def first(one: Any) -> None:
        told.append("first")
        one.add_done_callback(lambda _: told.append("second"))

    receipt.add_done_callback(first)
    settle(kit, batch, Stored(0))
    assert told == ["first", "second"]


def test_callbacks_added_while_the_batch_is_settled_are_neither_lost_nor_doubled(kit: Kit) -> None:
    for _ in range(300):
        batch = parcel(kit)
        told: list[int] = []
        started = threading.Barrier(3)

        def add(start: int, batch: Any = batch, told: list[int] = told, started: threading.Barrier = started) -> None:
            started.wait()
            for index in range(start, start + 10):
                kit.Receipt(batch, index).add_done_callback(lambda receipt: told.append(receipt.index))

        threads = [threading.Thread(target=add, args=(start,)) for start in (0, 10)]
        for thread in threads:
            thread.start()
        started.wait()
        settle(kit, batch, Stored(0))
        for thread in threads:
            thread.join()
        assert sorted(told) == list(range(20))


# Waiting


def test_waiting_is_ended_by_the_outcome(kit: Kit) -> None:
    batch = parcel(kit)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda index=index: found.append(kit.Receipt(batch, index).result(LIMIT_S)))
        for index in range(4)
    ]
    for thread in threads:
        thread.start()
    settle(kit, batch, Stored(0))
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(at.position for at in found) == [0, 1, 2, 3]


def test_waiting_goes_on_where_the_message_went(kit: Kit) -> None:
    batch, part = parcel(kit), parcel(kit)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(kit.Receipt(batch, 0).result(LIMIT_S)))
    thread.start()
    settle(kit, batch, moved(kit, [part], [(0, 0)], {}))
    settle(kit, part, Stored(9))
    thread.join(LIMIT_S)
    assert [at.position for at in found] == [9]


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_waiting_in_vain_raises_and_leaves_nothing_behind(kit: Kit, timeout: float) -> None:
    batch = parcel(kit)
    receipt = kit.Receipt(batch, 0)
    for ask in (receipt.result, receipt.exception):
        with pytest.raises(TimeoutError, match="the message is still on its way"):
            ask(timeout)
    assert not batch.listeners


def test_waiting_where_one_would_wait_for_ever_raises_instead(kit: Kit) -> None:
    batch = parcel(kit, home=Anywhere(ClosedError("on the I/O thread")))
    receipt = kit.Receipt(batch, 0)
    with pytest.raises(ClosedError, match="on the I/O thread"):
        receipt.result()
    settle(kit, batch, Stored(0))
    assert receipt.result().position == 0


# Awaiting


def test_many_awaits_of_one_batch_wake_the_loop_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    async def work() -> list[MessageId]:
        loop = asyncio.get_running_loop()
        threadsafe = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> Any:
            calls.append(arguments)
            return threadsafe(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        batch = parcel(kit)

        async def one(index: int) -> MessageId:
            found: MessageId = await kit.Receipt(batch, index)
            return found

        tasks = [asyncio.ensure_future(one(index)) for index in range(50)]
        await asyncio.sleep(0)
        thread = threading.Thread(target=settle, args=(kit, batch, Stored(10)))
        thread.start()
        found = await asyncio.gather(*tasks)
        thread.join()
        return found

    assert [at.position for at in asyncio.run(work())] == list(range(10, 60))
    assert len(calls) == 1


def test_cancelling_one_who_awaits_harms_no_other(kit: Kit) -> None:
    async def work() -> list[Any]:
        batch = parcel(kit)

        async def one(index: int) -> MessageId:
            found: MessageId = await kit.Receipt(batch, index)
            return found

        tasks = [asyncio.ensure_future(one(index)) for index in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        settle(kit, batch, Stored(0))
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    found = asyncio.run(work())
    assert isinstance(found[1], asyncio.CancelledError)
    assert [found[index].position for index in (0, 2)] == [0, 2]


def test_an_await_follows_messages_that_moved_and_raises_their_errors(kit: Kit) -> None:
    async def work() -> list[Any]:
        batch, part = parcel(kit), parcel(kit, 5)

        async def one(index: int) -> MessageId:
            found: MessageId = await kit.Receipt(batch, index)
            return found

        tasks = [asyncio.ensure_future(one(index)) for index in range(2)]
        await asyncio.sleep(0)
        settle(kit, batch, moved(kit, [part], [(0, 0), (-1, 0)], {1: DeniedError("you")}))
        await asyncio.sleep(0)
        settle(kit, part, Stored(4))
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    stored, error = asyncio.run(work())
    assert stored == MessageId("t", 5, 4)
    assert isinstance(error, DeniedError)


def test_awaits_in_two_loops_are_both_woken(kit: Kit) -> None:
    batch = parcel(kit)
    found: list[MessageId] = []
    waiting = threading.Barrier(3)

    async def work(index: int) -> None:
        async def one() -> None:
            found.append(await kit.Receipt(batch, index))

        task = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        waiting.wait()
        await task

    threads = [threading.Thread(target=lambda index=index: asyncio.run(work(index))) for index in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait()
    settle(kit, batch, Stored(0))
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(at.position for at in found if isinstance(at.position, int)) == [0, 1]


def test_a_loop_that_was_closed_before_the_outcome_harms_nobody(kit: Kit) -> None:
    batch = parcel(kit)
    told: list[Any] = []

    async def leave() -> None:
        async def one() -> None:
            await kit.Receipt(batch, 0)

        task = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    kit.Receipt(batch, 1).add_done_callback(told.append)
    settle(kit, batch, Stored(0))
    assert len(told) == 1


# Memory


def test_receipts_that_are_kept_do_not_keep_the_bytes_of_their_batch(kit: Kit) -> None:
    class Buffer:
        count = 5

    buffer = Buffer()
    gone = weakref.ref(buffer)
    batch = kit.Batch(buffer, 0.0, 1.0, "t", 0, Anywhere())  # type: ignore[arg-type]
    receipt = kit.Receipt(batch, 1)
    batch.move(kit.State.SEALED)
    batch.move(kit.State.IN_FLIGHT)
    batch.settle(kit.State.ACKED, Stored(5))
    batch.let_go()
    del buffer
    gc.collect()
    assert gone() is None
    assert receipt.result().position == 6
    assert batch.count == 5
