"""Official producers that keep a topic growing, whatever is killed meanwhile: every message says which it is."""

from __future__ import annotations

import itertools
import time
from typing import Any

from confluent_kafka import Producer

from tests.broker.kill.load import LIMIT_S, QUICK, Transactions, Worker, numbers

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PAUSE_S = 0.02
DAY_MS = 86_400_000


class Feed(Worker):
    """Single messages and bursts of them, of all codecs and shapes, by idempotent producers that take turns."""

    def __init__(self, bootstrap: str, seed: int, topic: str, age_ms: int = 0) -> None:
        """`age_ms`: how old messages are when they are sent."""
        super().__init__(bootstrap, seed)
        self.topic = topic
        self.age_ms = age_ms
        self.told = 0
        self.failed: list[Any] = []
        self._count = 0

    def progress(self) -> int:
        return self.told

    def work(self) -> None:
        producers = [self._producer(codec) for codec in CODECS]
        for turn in itertools.count():
            if self.stopping.is_set():
                break
            producer = producers[turn // 20 % len(producers)]
            partition = self.chance.randrange(PARTITIONS)
            for _ in range(self.chance.choice([1, 1, 1, 5, 40])):
                self._send(producer, partition)
            for one in producers:
                one.poll(0)
            time.sleep(PAUSE_S)
        for producer in producers:
            assert producer.flush(LIMIT_S) == 0, "messages without an outcome"
        assert not self.failed, self.failed[:3]

    def _producer(self, codec: str) -> Producer:
        settings = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 0, "compression.type": codec}
        return Producer({**QUICK, "bootstrap.servers": self.bootstrap, **settings})

    def _send(self, producer: Producer, partition: int) -> None:
        number, self._count = self._count, self._count + 1
        value = b"%d:" % number + b"." * self.chance.choice([0, 10, 400])
        key = (None, b"", b"k%d" % (number % 9))[number % 3]
        headers: Any = [[], [("n", b"%d" % number)], [("none", None), ("empty", b"")]][number % 3]
        time_ms = time.time_ns() // 1_000_000 - self.age_ms + self.chance.randrange(-50, 50)
        while True:
            try:
                producer.produce(
                    self.topic, value, key, partition, headers=headers, timestamp=time_ms, on_delivery=self._told
                )
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append((error, message.value()))
        else:
            self.told += 1


class Deals(Transactions):
    """Transactions into a topic that others send to as well, some of them aborted."""

    def __init__(self, bootstrap: str, seed: int, topic: str) -> None:
        Worker.__init__(self, bootstrap, seed)
        self.topic = topic
        self.id = f"deals-{next(numbers)}-{topic}"
        self.contents: dict[int, list[tuple[int, bytes]]] = {}
        self.verdicts: dict[int, str] = {}
