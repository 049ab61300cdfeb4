"""Exactly-once copying by transactions that carry their group's offsets, with confluent-kafka.

A member of a group reads one topic and sends each message on to the same partition of another, in transactions that
also hold how far it has read. Whatever is killed in between, the copy ends up equal to the original.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.broker.kill.load import LIMIT_S, PARTITIONS, QUICK, Transactions, Worker, create, numbers, read

READER: dict[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
    "fetch.wait.max.ms": 50,
}


class Copier(Transactions):
    """Copies a topic that grows; both ends are on the broker that is killed."""

    name = "copy"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.source = create(bootstrap, "original")
        self.group = f"copiers-{next(numbers)}"
        self.count = self.copied = 0

    def progress(self) -> int:
        return self.copied

    def work(self) -> None:
        feeder = Producer({**QUICK, "bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        while not self.stopping.is_set():
            with suppress(KafkaException):
                self._life(feeder)
        assert feeder.flush(LIMIT_S) == 0
        over = time.monotonic() + LIMIT_S
        while not self._caught_up():
            assert time.monotonic() < over, "the copy does not catch up"
            with suppress(KafkaException):
                self._life(feeder, last=True)

    def _life(self, feeder: Producer, last: bool = False) -> None:
        """One copier from its joining to its first error, or until it is told to stop."""
        reader = Consumer({**QUICK, **READER, "bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            writer = self._producer()
            reader.subscribe([self.source])
            idle = 0
            while idle < (5 if last else 1_000_000) and (last or not self.stopping.is_set()):
                self._feed(feeder, 0 if last else self.chance.randrange(10))
                found = [message for message in reader.consume(50, 0.1) if message.error() is None]
                idle = 0 if found else idle + 1
                if found:
                    self._copy(reader, writer, found)
        finally:
            reader.close()

    def _feed(self, feeder: Producer, count: int) -> None:
        for _ in range(count):
            feeder.produce(self.source, b"%d" % self.count, partition=self.count % PARTITIONS)
            self.count += 1
        feeder.poll(0)

    def _copy(self, reader: Consumer, writer: Producer, found: list[Any]) -> None:
        writer.begin_transaction()
        try:
            for message in found:
                writer.produce(self.topic, message.value(), partition=message.partition())
            ends = {message.partition(): message.offset() + 1 for message in found}
            places = [TopicPartition(self.source, partition, end) for partition, end in ends.items()]
            self._persist(
                lambda limit: writer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), limit)
            )
            self._persist(writer.commit_transaction)
            self.copied += len(found)
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                self._persist(writer.abort_transaction)
            raise

    def _caught_up(self) -> bool:
        return sum(map(len, read(self.bootstrap, self.topic, "read_committed"))) >= self.count

    def check(self) -> None:
        original = read(self.bootstrap, self.source, "read_uncommitted")
        copy = read(self.bootstrap, self.topic, "read_committed")
        expected = [[b"%d" % n for n in range(partition, self.count, PARTITIONS)] for partition in range(PARTITIONS)]
        assert [[value for _, value in part] for part in original] == expected
        assert [[value for _, value in part] for part in copy] == expected, "the copy is not the original"


class Reader(Worker):
    """A reader of all that a sender sends: it sees every message once, in order, over all kills."""

    def __init__(self, bootstrap: str, seed: int, topic: str) -> None:
        super().__init__(bootstrap, seed)
        self.topic = topic
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]

    def progress(self) -> int:
        return sum(map(len, self.seen))

    def work(self) -> None:
        settings = {"group.id": f"reader-{next(numbers)}", "auto.offset.reset": "error", "fetch.wait.max.ms": 50}
        consumer = Consumer({**QUICK, **settings, "bootstrap.servers": self.bootstrap, "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
            for quiet in itertools.count():
                found = consumer.consume(1000, 0.1)
                for message in found:
                    if message.error() is None:
                        self.seen[message.partition() or 0].append((message.offset() or 0, message.value() or b""))
                if self.stopping.is_set() and not found and quiet > 10:
                    break
        finally:
            consumer.close()

    def check(self) -> None:
        for here, there in zip(self.seen, read(self.bootstrap, self.topic, "read_uncommitted"), strict=True):
            assert here == there[: len(here)], "what a reader saw is not what the log holds"
