"""The two faces of readers and cursors in one shape: whatever one of them awaits is waited for here."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
import penstock.aio

LIMIT_S = 60.0
ids = itertools.count()


def new_id() -> str:
    """A client id that no other test has."""
    return f"reading-{next(ids)}"


class Face:
    """One of the two; clients that a test leaves open are closed with it."""

    name = ""

    def __init__(self) -> None:
        self._clients: list[Any] = []

    def connect(self, url: str, **options: Any) -> Any:
        client = self._connect(url, **{"client_id": new_id(), **options})
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            self.run(client.close(timeout=0))

    def run(self, call: Any) -> Any:
        """What a call comes to."""
        return call

    def items(self, reader: Any) -> list[Any]:
        """All that iterating gives."""
        raise NotImplementedError

    def _connect(self, url: str, **options: Any) -> Any:
        raise NotImplementedError


class Blocking(Face):
    """The face that blocks."""

    name = "blocking"

    def items(self, reader: Any) -> list[Any]:
        return list(reader)

    def _connect(self, url: str, **options: Any) -> Any:
        return penstock.connect(url, **options)


class Awaiting(Face):
    """The face that awaits, driven by an event loop that runs while something is waited for."""

    name = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def close(self) -> None:
        super().close()
        self.runner.close()

    def run(self, call: Any) -> Any:
        return self.runner.run(call) if inspect.iscoroutine(call) else call

    def items(self, reader: Any) -> list[Any]:
        async def gather() -> list[Any]:
            return [item async for item in reader]

        return self.runner.run(gather())

    def _connect(self, url: str, **options: Any) -> Any:
        return penstock.aio.connect(url, **options)


@pytest.fixture(params=[Blocking, Awaiting], ids=lambda kind: kind.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Each face in turn."""
    made: Face = request.param()
    try:
        yield made
    finally:
        made.close()
