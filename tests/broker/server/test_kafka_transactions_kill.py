"""`penstock serve` killed with `kill -9` while a client commits transactions over two partitions and a group.

Every transaction writes its number to both partitions and commits it as a group's offset. A reader looks at both
partitions with one request, again and again, also right after each start: it must always see the same in both. What the
client was told is committed is there in the end, and what it was told is aborted is not; nothing is twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest

import penstock
from brokers.penstock import PenstockBroker
from penstock.errors import PenstockError, Persisted
from penstock.wire.kafka.header import parse_header, split
from penstock.wire.kafka.layout import CONTROL
from penstock.wire.kafka.records import decode
from tests.broker.server.transactions_raw import Raw

TOPIC, GROUP, TID = "numbers", "readers", "writer"
LIMIT_S = 60.0
LIFE_S = (0.3, 1.2)
"""How long the broker lives, at least and at most."""


@dataclass
class Ledger:
    """What the client knows of its transactions."""

    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)


def with_confluent(bootstrap: str, ledger: Ledger, stop: threading.Event) -> None:
    """Transactions by confluent-kafka; what can be tried again is.

    Without the strategy it forgets its only broker when that is away, but not that this was the group's coordinator,
    and waits for it for minutes.
    """
    settings = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.max.ms": 100,
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }
    group = confluent_kafka.Consumer({**settings, "group.id": GROUP})
    producer = confluent_kafka.Producer({**settings, "transactional.id": TID, "transaction.timeout.ms": 20_000})
    patiently(producer.init_transactions, LIMIT_S)
    number = 0
    while not stop.is_set():
        number += 1
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(TOPIC, str(number).encode(), partition=partition)
        positions = [confluent_kafka.TopicPartition(TOPIC, 0, number)]
        try:
            patiently(producer.send_offsets_to_transaction, positions, group.consumer_group_metadata(), LIMIT_S)
            patiently(producer.commit_transaction, LIMIT_S)
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            patiently(producer.abort_transaction, LIMIT_S)
            ledger.aborted.append(number)
        else:
            ledger.committed.append(number)
    group.close()


def patiently(call: Callable[..., Any], *arguments: Any) -> None:
    """Call until it is done, or fails for good."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            call(*arguments)
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def with_penstock(bootstrap: str, ledger: Ledger, stop: threading.Event) -> None:
    """Transactions by our own producer."""
    with penstock.connect(f"kafka://{bootstrap}") as client:
        producer = client.producer(TOPIC, transactional_id=TID, transaction_timeout_ms=20_000)
        number = 0
        while not stop.is_set():
            number += 1
            try:
                with producer.transaction() as transaction:
                    for partition in range(2):
                        producer.send(str(number).encode(), partition=partition)
                    transaction.send_offsets({(TOPIC, 0): number}, group=GROUP)
            except PenstockError as error:
                (ledger.aborted if error.persisted is Persisted.NO else ledger.unknown).append(number)
            else:
                ledger.committed.append(number)


def guarded(client: Callable[[str, Ledger, threading.Event], None], *arguments: Any) -> None:
    ledger: Ledger = arguments[1]
    try:
        client(*arguments)
    except BaseException as failure:  # noqa: BLE001
        ledger.failures.append(failure)


def seen(address: tuple[str, int]) -> tuple[list[int], list[int]]:
    """What a reader of what counts sees in both partitions, at one moment."""
    wanted = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 25} for number in range(2)]
    with Raw(address) as raw:
        told = raw.ask(
            *("Fetch", 12),
            max_wait=timedelta(0),
            min_bytes=0,
            max_bytes=1 << 26,
            isolation_level=1,
            topics=[{"topic": TOPIC, "partitions": wanted}],
            forgotten_topics_data=(),
        )
    rows = {part.partition_index: numbers(part) for part in told.responses[0].partitions}
    return rows[0], rows[1]


def numbers(part: Any) -> list[int]:
    """The numbers in a partition's part of an answer, but for those that were aborted."""
    starts = [(row.producer_id, row.first_offset) for row in part.aborted_transactions or ()]
    aborting: set[int] = set()
    found: list[int] = []
    for entry in split(part.records or b""):
        header = parse_header(entry)
        aborting |= {producer for producer, first in starts if first <= header.base_offset}
        if header.attributes & CONTROL:
            aborting.discard(header.producer_id)
            starts = [row for row in starts if row[0] != header.producer_id or row[1] > header.base_offset]
        elif header.producer_id not in aborting:
            found += [int(value) for value in decode(entry).value.to_pylist()]
    return found


def watch(broker: PenstockBroker, halves: list[Any], stop: threading.Event) -> None:
    """Look at both partitions again and again."""
    while not stop.is_set():
        try:
            first, second = seen(broker.address())
        except OSError:
            first = second = []
        if first != second:
            halves.append((first[-3:], second[-3:]))
        time.sleep(0.005)


def run(client: Callable[[str, Ledger, threading.Event], None], kills: int, fsync: str, seed: int) -> None:
    dice = random.Random(seed)
    ledger, halves, stop = Ledger(), list[Any](), threading.Event()
    with PenstockBroker(["--fsync", fsync]) as broker:
        with Raw(broker.address()) as raw:
            assert raw.create(TOPIC, 2) == 0
        threads = [
            threading.Thread(target=guarded, args=(client, broker.bootstrap, ledger, stop)),
            threading.Thread(target=watch, args=(broker, halves, stop)),
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(*LIFE_S))
                broker.kill()
                broker.restart()
            time.sleep(LIFE_S[0])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not ledger.failures
        assert not halves
        check(broker, ledger)
        broker.kill()
        broker.restart()
        check(broker, ledger)


def check(broker: PenstockBroker, ledger: Ledger) -> None:
    """What is there, beside what the client was told."""
    first, second = seen(broker.address())
    assert first == second == sorted(set(first))
    assert ledger.committed
    assert set(ledger.committed) <= set(first) <= {*ledger.committed, *ledger.unknown}
    assert not set(ledger.aborted) & set(first)
    with Raw(broker.address()) as raw:
        assert raw.committed(GROUP, TOPIC, 0, stable=True) == (0, first[-1])


CLIENTS = {"confluent": with_confluent, "penstock": with_penstock}


@pytest.mark.parametrize("fsync", ["group", "system"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_broker_that_is_killed_shows_whole_transactions(name: str, fsync: str) -> None:
    run(CLIENTS[name], 3, fsync, 1)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fsync", ["group", "system", "always"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_broker_that_is_killed_often_shows_whole_transactions(name: str, fsync: str, seed: int) -> None:
    run(CLIENTS[name], 10, fsync, seed)
