"""Penstock's own client on both brokers: a round trip of every kind, transactions, what is refused."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from tests.compat.confluent import TIME_MS, create, read, shown, stored_codecs, values
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides

numbers = itertools.count()


def connect(side: Side, **options: Any) -> penstock.Client:
    return penstock.connect(f"kafka://{side.bootstrap}", client_id=f"compat-{next(numbers)}", **options)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_penstock_sends_every_kind_of_message(sides: Sides, codec: str) -> None:
    kinds: list[tuple[Any, Any, Any]] = [
        (b"plain", None, None),
        (None, b"tombstone", {}),
        (b"", b"", {"empty": "", "none": None}),
        (b"v" * 70_000, b"k", {"a": "1", "b": b"\x00\xff"}),
    ]

    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        with connect(side) as client, client.producer(topic, compression=codec) as source:
            receipts = [
                source.send(value, key, properties, event_time=TIME_MS + number)
                for number, (value, key, properties) in enumerate(kinds)
            ]
            places = [receipt.result(LIMIT_S).position for receipt in receipts]
        found = [shown(message) for message in read(side, topic)]
        return {"places": places, "read": found, "codecs": sorted(stored_codecs(side, topic))}

    told = sides.alike(script)
    assert told["places"] == [0, 1, 2, 3]
    assert told["codecs"] == [codec]


def test_penstock_sends_in_bulk(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 4)
        with connect(side) as client, client.producer(topic) as source:
            ids = source.send_many([b"%d" % n for n in range(5000)], [b"k%d" % (n % 50) for n in range(5000)])
            placed = len(ids.result(LIMIT_S))
        found = read(side, topic, 4)
        return {"placed": placed, "read": [[each.partition(), *values([each])] for each in found]}

    told = sides.alike(script)
    assert told["placed"] == len(told["read"]) == 5000


def test_penstock_has_transactions(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        with connect(side) as client:
            source = client.producer(topic, transactional_id=side.name("tx"))
            with source.transaction():
                source.send(b"a", partition=0)
                source.send(b"b", partition=1)
            with suppress(ZeroDivisionError), source.transaction():
                source.send(b"gone", partition=0).result(LIMIT_S)
                raise ZeroDivisionError
            with source.transaction():
                source.send(b"c", partition=0)
        found = {
            level: values(read(side, topic, 2, isolation_level=level))
            for level in ("read_committed", "read_uncommitted")
        }
        return dict(found)

    told = sides.alike(script)
    assert told["read_committed"] == ["a", "c", "b"]


def test_penstock_is_told_what_is_refused(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        small = create(side, "small", config={"max.message.bytes": "20000"})
        with connect(side) as client, client.producer(small, compression="none") as source:
            receipts = [source.send(b"x" * size) for size in (100, 30_000, 100)]
            source.flush(LIMIT_S)
            return {"outcomes": [_outcome(receipt) for receipt in receipts]}

    assert sides.alike(script) == {"outcomes": [0, "BatchTooLargeError", 1]}


def _outcome(receipt: Any) -> Any:
    error: PenstockError | None = receipt.exception(0)
    return receipt.result(0).position if error is None else type(error).__name__
