"""In a child of `fork()` a parent's readers and cursors fail clearly or do nothing; the parent reads on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.broker.embedded import EmbeddedBroker
from tests.consume.faces import LIMIT_S, new_id
from tests.consume.test_reader import expected, filled, send, values
from tests.test_fork import awaited, in_a_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")


def test_a_child_is_told_and_the_parent_reads_on(broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1)
    client = penstock.connect(broker.url, client_id=new_id())
    other = penstock.aio.connect(broker.url, client_id=new_id())
    reader, awaiting = client.reader(topic), other.reader(topic)
    cursor, their_cursor = client.cursor(topic, "mine"), other.cursor(topic, "mine")
    items = [reader.read(LIMIT_S)]
    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: reader.read(LIMIT_S),
        "ready": lambda: reader.ready(LIMIT_S),
        "iterate": lambda: list(reader),
        "reader": lambda: client.reader(topic),
        "cursor": lambda: client.cursor(topic, "more"),
        "positions": lambda: cursor.positions(),
        "commit": lambda: cursor.commit({0: 1}),
        "await read": awaited(lambda: awaiting.read(LIMIT_S)),
        "await ready": awaited(lambda: awaiting.ready(LIMIT_S)),
        "await positions": awaited(lambda: their_cursor.positions()),
    }
    harmless: dict[str, Callable[[], Any]] = {
        "close": lambda: reader.close(),
        "await close": awaited(lambda: awaiting.close()),
        "close client": lambda: client.close(),
    }
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with reader._core.reading, client._core._producers_lock:
            held.set()
            over.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    told = in_a_child({**calls, **harmless})
    over.set()
    holding.join()
    for name in calls:
        assert "connect anew here" in told[name], name
    assert {told[name] for name in harmless} == {"returned None"}
    with penstock.connect(broker.url, client_id=new_id()) as sending:
        send(sending, topic, 1, 10, 100)
    while len(values(items)) < 110:
        items.append(reader.read(LIMIT_S))
    assert values(items) == expected(1, 110)
    client.close()
    penstock.client.Client(other._core).close()


def test_a_child_reads_by_a_client_of_its_own(broker: EmbeddedBroker) -> None:
    topic, name = filled(broker), new_id()
    with penstock.connect(broker.url, client_id=name) as client:
        reader = client.reader(topic)
        reader.ready(LIMIT_S)

        def read_anew() -> int:
            with penstock.connect(broker.url, client_id=name) as mine:
                return len(mine.reader(topic, end="latest").read_all(LIMIT_S))

        assert in_a_child({"new": read_anew}) == {"new": "returned 200"}
        assert reader.read(LIMIT_S) is not None
