"""Minutes of mixed sending while brokers stand still now and then: nothing grows, and nothing is left when all is sent.

PENSTOCK_SOAK_S says for how long.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

import penstock
from brokers.kafka import KafkaCluster
from penstock.errors import NoRoomError
from penstock.produce.hand_made import HandMadeBatch
from tests.produce.real.conftest import Connect
from tests.produce.real.footprint import Footprint
from tests.produce.real.reading import LIMIT_S, create

SECONDS = float(os.environ.get("PENSTOCK_SOAK_S", "180"))
PARTITIONS = 16
PAUSE_EVERY_S = 20.0
PAUSES_S = (0.5, 2.0, 6.0)
GROWTH_BYTES_MAX = 12 << 20
RATE = 20_000.0
OPTIONS = {"total_bytes_max": 8 << 20, "request_timeout_ms": 1500, "retry_backoff_max_ms": 500, "lane_idle_ms": 5000}


class Mixture:
    """Two threads that send in every way there is, and count outcomes; receipts are dropped."""

    def __init__(self, producer: penstock.Producer) -> None:
        self._producer = producer
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards the following
        self.outcomes: Counter[str] = Counter()
        self.sent = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(2)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def _count(self, count: int, receipt: penstock.Receipt | penstock.BulkReceipt) -> None:
        failed = receipt.exception(0) if isinstance(receipt, penstock.Receipt) else receipt.errors(0)
        with self._lock:
            self.outcomes["failed" if failed else "stored"] += count

    def _run(self, number: int) -> None:
        value, began, mine = b"soak " * 40, time.monotonic(), 0
        table = pa.table({"value": [value] * 200, "key": [b"%d" % row for row in range(200)]})
        ways: list[Callable[[], int]] = [
            lambda: self._one_by_one(value),
            lambda: self._at_once(200, lambda: self._producer.send_many([value] * 200)),
            lambda: self._at_once(200, lambda: self._producer.send_table(table)),
            lambda: self._at_once(10, lambda: self._producer.send_batch(self._by_hand(value), partition=number)),
        ]
        turn = 0
        while not self._stop.is_set():
            turn += 1
            try:
                sent = ways[turn % len(ways)]()
            except NoRoomError:
                continue
            mine += sent
            with self._lock:
                self.sent += sent
            self._stop.wait(max(0.0, mine / RATE - (time.monotonic() - began)))

    def _one_by_one(self, value: bytes) -> int:
        for number in range(100):
            self._producer.send(
                value,
                key=b"%d" % number if number % 2 else None,
                properties={"n": str(number)} if number % 5 == 0 else None,
                callback=lambda receipt: self._count(1, receipt),
            )
        return 100

    def _at_once(self, count: int, send: Callable[[], penstock.BulkReceipt]) -> int:
        send().add_done_callback(lambda receipt: self._count(count, receipt))
        return count

    def _by_hand(self, value: bytes) -> HandMadeBatch:
        batch = self._producer.batch()
        batch.extend([value] * 10)
        return batch


def settle(client: penstock.Client, producer: penstock.Producer) -> Footprint:
    """The footprint once all is sent and answered; what is left to account for is nothing."""
    producer.flush(LIMIT_S)
    engine = client._core.engine
    over = time.monotonic() + LIMIT_S
    while engine.accumulator.budget.used and time.monotonic() < over:
        time.sleep(0.01)  # the last receipts are told before their memory is given back
    assert engine.accumulator.budget.used == 0
    assert engine._net.memory.used == 0
    assert not producer._core.lanes.unsettled
    return Footprint.now()


@pytest.mark.stress
def test_nothing_grows_however_long_it_sends(real_kafka_cluster: KafkaCluster, connect: Connect) -> None:
    kafka = real_kafka_cluster
    topic = create(kafka.bootstrap, PARTITIONS, 3, retention_bytes="33554432", segment_bytes="16777216")
    with connect(kafka.url, **OPTIONS) as client, client.producer(topic) as producer:
        footprints: list[Footprint] = []
        mixture = Mixture(producer)
        over = time.monotonic() + SECONDS
        turn = 0
        while time.monotonic() < over:
            time.sleep(PAUSE_EVERY_S / 2)
            node = kafka.nodes[turn % len(kafka.nodes)]
            kafka.pause(node)
            time.sleep(PAUSES_S[turn % len(PAUSES_S)])
            kafka.resume(node)
            time.sleep(PAUSE_EVERY_S / 2)
            turn += 1
            if turn % len(PAUSES_S) == 0:
                mixture.stop()
                footprints.append(settle(client, producer))
                counted, mixture = mixture, Mixture(producer)
                assert counted.outcomes == {"stored": counted.sent}
        mixture.stop()
        footprints.append(settle(client, producer))
    print(*footprints, sep="\n")  # noqa: T201  # shown when it fails
    first, last = footprints[0], footprints[-1]
    assert last.rss_bytes < first.rss_bytes + GROWTH_BYTES_MAX
    assert {each.threads for each in footprints} == {first.threads}
    assert last.descriptors <= first.descriptors
