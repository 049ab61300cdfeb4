"""In a child of `fork()` whatever a parent's client is asked for fails clearly or does nothing; the parent goes on."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import penstock
import penstock.aio
from brokers.kafka import KafkaCluster
from penstock.errors import PenstockError
from tests.faces import LIMIT_S, UNREACHABLE, budget_of, new_id
from tests.produce.real.reading import new_topic, read_all

CHILD_LIMIT_S = 30

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")


def in_a_child(calls: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """What each of these came to in a child: what it returned, or the error, as text. A child that hangs is ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(CHILD_LIMIT_S)
        told = b""
        try:
            told = pickle.dumps({name: outcome_of(call) for name, call in calls.items()})
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(told)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    outcomes: dict[str, str] = pickle.loads(told)
    return outcomes


def outcome_of(call: Callable[[], Any]) -> str:
    try:
        return f"returned {call()}"
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"


def awaited(make: Callable[[], Any]) -> Callable[[], Any]:
    async def run() -> Any:
        return await make()

    return lambda: asyncio.run(run())


def test_a_child_is_told_and_never_hangs_whatever_its_parent_was_doing() -> None:
    client = penstock.connect(UNREACHABLE, client_id=new_id())
    other = penstock.aio.connect(UNREACHABLE, client_id=new_id())
    producer, awaiting = client.producer("t"), other.producer("t")
    receipt, bulk = producer.send(b"v"), producer.send_many([b"v"] * 3)
    made = producer.batch()
    made.append(b"v")
    calls: dict[str, Callable[[], Any]] = {
        "send": lambda: producer.send(b"v"),
        "send more": lambda: producer.send(b"v", b"k", {"a": "b"}, partition=1),
        "send_many": lambda: producer.send_many([b"v"]),
        "send_batch": lambda: producer.send_batch(made, partition=0),
        "flush": lambda: producer.flush(),
        "ready": lambda: producer.ready(),
        "stats": lambda: producer.stats(),
        "result": lambda: receipt.result(),
        "bulk result": lambda: bulk.result(),
        "producer": lambda: client.producer("u"),
        "metadata": lambda: client.metadata(),
        "await send": awaited(lambda: awaiting.send(b"v")),
        "await receipt": awaited(lambda: receipt),
        "await bulk": awaited(lambda: bulk),
        "await flush": awaited(lambda: awaiting.flush()),
        "await ready": awaited(lambda: awaiting.ready()),
        "await metadata": awaited(lambda: other.metadata()),
    }
    harmless: dict[str, Callable[[], Any]] = {
        "done": lambda: receipt.done(),
        "close producer": lambda: producer.close(),
        "close client": lambda: client.close(),
        "await close producer": awaited(lambda: awaiting.close()),
        "await close client": awaited(lambda: other.close()),
    }
    with locks_held(producer, client, awaiting):
        told = in_a_child({**calls, **harmless})
    for name in calls:
        assert "connect anew here" in told[name], name
    assert told["done"] == "returned False"
    assert {told[name] for name in harmless if name != "done"} == {"returned None"}
    assert not receipt.done()
    for closed in (client, penstock.client.Client(other._core)):
        closed.close(timeout=0)
    assert receipt.done()
    assert budget_of(producer).used == 0


class locks_held:  # noqa: N801  # reads as a phrase
    """Another thread holds all locks that a child would inherit held."""

    def __init__(self, *faces: Any) -> None:
        cores = [face._core for face in faces]
        self._locks = [core.lanes.lock for core in cores if hasattr(core, "lanes")]
        self._locks += [core._producers_lock for core in cores if hasattr(core, "_producers_lock")]
        self._locks += [core.lanes.accumulator._lock for core in cores if hasattr(core, "lanes")]
        self._locks += [core.lanes.accumulator.budget._lock for core in cores if hasattr(core, "lanes")]
        self._held, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        for lock in self._locks:
            lock.acquire()
        self._held.set()
        self._over.wait()
        for lock in self._locks:
            lock.release()

    def __enter__(self) -> None:
        self._thread.start()
        self._held.wait()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()


def test_parent_and_child_each_send_by_a_client_of_their_own(real_kafka: KafkaCluster) -> None:
    name, topic = new_id(), new_topic()
    with penstock.connect(real_kafka.url, client_id=name) as client:
        client.create_topic(topic, 1)
        producer = client.producer(topic)
        producer.send(b"before").result(LIMIT_S)

        def send_anew() -> Any:
            with penstock.connect(real_kafka.url, client_id=name) as mine:
                return mine.producer(topic).send(b"child").result(LIMIT_S).position

        async def await_anew() -> Any:
            async with penstock.aio.connect(real_kafka.url, client_id=name) as mine:
                return (await mine.producer(topic).send_and_wait(b"child")).position

        told = in_a_child({"old": lambda: producer.send(b"lost"), "new": send_anew, "aio": awaited(await_anew)})
        assert "came to this process by fork()" in told["old"]
        assert (told["new"], told["aio"]) == ("returned 1", "returned 2")
        assert producer.send(b"after").result(LIMIT_S).position == 3
    values = [message.value for message in read_all(real_kafka.bootstrap, topic)]
    assert values == [b"before", b"child", b"child", b"after"]
