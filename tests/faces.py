"""The two faces of clients in one shape, so that one suite tests both: whatever one of them awaits is waited for here.

    face.connect(url, ...)       a client; its methods, and those of its producers, return when they are done
    face.result(receipt, s)      the outcome of one message, or of many
    face.together(calls)         several calls at the same time: what each returned, or raised

At the same time is in threads for the face that blocks, in tasks for the one that awaits.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Self

import pytest

import penstock
import penstock.aio
from brokers.kafka import KafkaCluster
from tests.produce.real.reading import new_topic

UNREACHABLE = "kafka://127.0.0.1:1"
"""Nobody listens there."""
LIMIT_S = 60.0
ids = itertools.count()
P = ParamSpec("P")


def new_id() -> str:
    """A client id that no other test has."""
    return f"face-{next(ids)}"


class Face:
    """One of the two."""

    name = ""

    def __init__(self) -> None:
        self._clients: list[Any] = []

    def connect(self, url: str, **options: Any) -> Any:
        """A client with an id of its own unless one is given; what is left open is closed with the test."""
        client = self._connect(url, **{"client_id": new_id(), **options})
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close(timeout=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _connect(self, url: str, **options: Any) -> Any:
        raise NotImplementedError

    def result(self, receipt: Any, timeout: float = LIMIT_S) -> Any:
        raise NotImplementedError

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        raise NotImplementedError


class Blocking(Face):
    """The face that blocks."""

    name = "blocking"

    def _connect(self, url: str, **options: Any) -> Any:
        return penstock.connect(url, **options)

    def result(self, receipt: Any, timeout: float = LIMIT_S) -> Any:
        return receipt.result(timeout)

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(call) for call in calls]
            return [future.exception() or future.result() for future in futures]


class Awaiting(Face):
    """The face that awaits, driven by an event loop that runs while something is waited for."""

    name = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self._gathering: list[Any] | None = None

    def close(self) -> None:
        super().close()
        self.runner.close()

    def _connect(self, url: str, **options: Any) -> Any:
        return Driven(self, penstock.aio.connect(url, **options))

    def result(self, receipt: Any, timeout: float = LIMIT_S) -> Any:
        async def wait() -> Any:
            async with asyncio.timeout(timeout):
                return await receipt

        return self.run(wait())

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        self._gathering = []
        for call in calls:
            call()
        gathered, self._gathering = self._gathering, None

        async def all_of_them() -> list[Any]:
            return list(await asyncio.gather(*gathered, return_exceptions=True))

        return self.runner.run(all_of_them())

    def run(self, coroutine: Any) -> Any:
        if self._gathering is not None:
            self._gathering.append(coroutine)
            return None
        return self.runner.run(coroutine)


class Driven:
    """A client or a producer whose coroutines are run to their end."""

    def __init__(self, face: Awaiting, target: Any) -> None:
        self._face = face
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name == "producer":
            return lambda *arguments, **options: Driven(self._face, found(*arguments, **options))
        if not inspect.iscoroutinefunction(found) and name != "send":  # which is the kernel's own method
            return found
        return lambda *arguments, **options: self._face.run(found(*arguments, **options))

    def __enter__(self) -> Driven:
        self._face.run(self._target.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self._face.run(self._target.__aexit__(*exception))

    def __repr__(self) -> str:
        return repr(self._target)


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        asyncio.run(test(*arguments, **options))

    return run


@pytest.fixture(params=[Blocking, Awaiting], ids=lambda kind: kind.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Each face in turn."""
    with request.param() as made:
        yield made


@pytest.fixture
def topic(real_kafka: KafkaCluster, face: Face) -> str:
    """A topic of two partitions."""
    name = new_topic()
    with face.connect(real_kafka.url) as client:
        client.create_topic(name, 2)
    return name


@pytest.fixture
def producer(real_kafka: KafkaCluster, face: Face, topic: str) -> Iterator[Any]:
    """A producer of that topic."""
    with face.connect(real_kafka.url) as client, client.producer(topic) as made:
        yield made


def budget_of(producer: Any) -> Any:
    """The memory that a producer's messages take."""
    return producer._core.lanes.accumulator.budget


def assert_all_given_back(producer: Any) -> None:
    """Nothing of the memory is taken: it is given back right after the last outcome is told."""
    wait_until(lambda: budget_of(producer).used == 0)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread or a broker is about to do."""
    over = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < over
        time.sleep(0.02)
