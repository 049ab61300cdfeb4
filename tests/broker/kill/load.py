"""Clients that send, and what must be true of what they sent.

Every message says who sent it and as which: `name:number`. Nothing acknowledged may be missing; an idempotent
producer's messages are there once, in the order of sending; of a transaction there is all or nothing.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaProducer

import penstock
from penstock.errors import PenstockError

LIMIT_S = 120.0
PARTITIONS = 3
PAUSE_EVERY, PAUSE_S = 10, 0.002
"""Senders that never pause spend the time of a test on comparing millions of messages."""
# Without the last one librdkafka 2.16 forgets its only broker when that is gone, and then waits for ever for the
# coordinator of a group that it had found there.
QUICK: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "metadata.recovery.strategy": "none",
}
numbers = itertools.count()


def create(bootstrap: str, name: str, partitions: int = PARTITIONS) -> str:
    """A topic whose segments are small, so that kills hit their rolling too."""
    topic = f"{name}-{next(numbers)}"
    admin = AdminClient({**QUICK, "bootstrap.servers": bootstrap})
    made = NewTopic(topic, partitions, 1, config={"segment.bytes": "65536", "retention.ms": "-1"})
    admin.create_topics([made])[topic].result(LIMIT_S)
    return topic


def read(bootstrap: str, topic: str, isolation: str, partitions: int = PARTITIONS) -> list[list[tuple[int, bytes]]]:
    """Offsets and values of every partition up to its end."""
    settings = {
        **QUICK,
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
        ended: set[Any] = set()
        over = time.monotonic() + LIMIT_S
        while len(ended) < partitions:
            assert time.monotonic() < over, f"only {sorted(ended)} of {topic} were read to their end"
            for message in consumer.consume(10_000, 0.2):
                if (error := message.error()) is None:
                    found[message.partition() or 0].append((message.offset() or 0, message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif not error.retriable():
                    raise KafkaException(error)
        return found
    finally:
        consumer.close()


class Worker:
    """A thread that does one thing again and again until it is told to stop. Runs on: its own thread."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.progress()}, failure {self.failure!r}>"

    def progress(self) -> int:
        raise NotImplementedError

    def killed(self) -> None:
        """Nothing is known before the end."""

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(2 * LIMIT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} does not come to an end"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001  # it is raised again where the test waits
            self.failure = failure

    def work(self) -> None:
        raise NotImplementedError


class Sender(Worker):
    """confluent-kafka, idempotent: everything it sends arrives, once and in order."""

    settings: ClassVar[dict[str, Any]] = {"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 0}
    name = "sender"
    once = True

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.topic = create(bootstrap, self.name)
        self.sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.acked: list[dict[bytes, int]] = [{} for _ in range(PARTITIONS)]
        self.failed: list[Any] = []

    def progress(self) -> int:
        return sum(map(len, self.acked))

    def work(self) -> None:
        producer = Producer({**QUICK, "bootstrap.servers": self.bootstrap, **self.settings})
        for number in itertools.count():
            if self.stopping.is_set():
                break
            partition = self.chance.randrange(PARTITIONS)
            value = b"%s:%d" % (self.name.encode(), number) + b"." * self.chance.randrange(200)
            self._hand(producer, partition, value)
            if number % PAUSE_EVERY == 0:
                producer.poll(0)
                time.sleep(PAUSE_S)
        assert producer.flush(LIMIT_S) == 0, "messages without an outcome"
        assert not self.failed, self.failed[:3]

    def _hand(self, producer: Producer, partition: int, value: bytes) -> None:
        while True:
            try:
                producer.produce(self.topic, value, partition=partition, on_delivery=self._told)
            except BufferError:
                producer.poll(0.05)
            else:
                self.sent[partition].append(value)
                return

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append((error, message.value()))
        else:
            self.acked[message.partition()][message.value()] = message.offset()

    def check(self) -> None:
        found = read(self.bootstrap, self.topic, "read_uncommitted")
        for partition in range(PARTITIONS):
            places: dict[bytes, list[int]] = defaultdict(list)
            for offset, value in found[partition]:
                places[value].append(offset)
            missing = [value for value in self.acked[partition] if value not in places]
            assert not missing, f"acknowledged and gone: {missing[:3]} of {len(missing)}"
            assert [offset for offset, _ in found[partition]] == list(range(len(found[partition])))
            if self.once:
                assert [value for _, value in found[partition]] == self.sent[partition], "not once and in order"
                assert {value: [offset] for value, offset in self.acked[partition].items()} == places


class PlainSender(Sender):
    """confluent-kafka without idempotence: nothing acknowledged is missing; some may be there twice."""

    settings: ClassVar[dict[str, Any]] = {
        "enable.idempotence": False,
        "acks": "all",
        "linger.ms": 2,
        "message.timeout.ms": 0,
        "max.in.flight": 1,
    }
    name = "plain"
    once = False


class KafkaPythonSender(Sender):
    """kafka-python, idempotent: the same."""

    name = "kafka-python"

    def work(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            linger_ms=2,
            delivery_timeout_ms=int(LIMIT_S * 1000),
            request_timeout_ms=10_000,
            retry_backoff_ms=20,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=100,
        )
        try:
            for number in itertools.count():
                if self.stopping.is_set():
                    break
                self._send(producer, self.chance.randrange(PARTITIONS), b"kafka-python:%d" % number)
                if number % PAUSE_EVERY == 0:
                    time.sleep(PAUSE_S)
            producer.flush(LIMIT_S)
        finally:
            producer.close(LIMIT_S)
        assert not self.failed, self.failed[:3]

    def _send(self, producer: KafkaProducer, partition: int, value: bytes) -> None:
        future = producer.send(self.topic, value, partition=partition)
        self.sent[partition].append(value)
        future.add_callback(lambda told: self.acked[partition].__setitem__(value, told.offset))
        future.add_errback(lambda error: self.failed.append((error, value)))


class OwnSender(Worker):
    """Penstock's producer: every receipt tells the truth, everything arrives once and in order."""

    name = "own"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.topic = create(bootstrap, self.name)
        self.receipts: list[list[tuple[bytes, Any]]] = [[] for _ in range(PARTITIONS)]
        self._done = 0

    def progress(self) -> int:
        """Receipts of the first partition that have come, in order: looked at from the last known one on."""
        receipts = self.receipts[0]
        while self._done < len(receipts) and receipts[self._done][1].done():
            self._done += 1
        return self._done

    def work(self) -> None:
        url = f"kafka://{self.bootstrap}"
        with (
            penstock.connect(url, client_id=f"kill-{next(numbers)}", retry_backoff_ms=20) as client,
            client.producer(self.topic, delivery_timeout_ms=int(LIMIT_S * 1000)) as producer,
        ):
            for number in itertools.count():
                if self.stopping.is_set():
                    break
                partition = self.chance.randrange(PARTITIONS)
                value = b"own:%d" % number
                self.receipts[partition].append((value, producer.send(value, partition=partition)))
                if number % PAUSE_EVERY == 0:
                    time.sleep(PAUSE_S)
            producer.flush(LIMIT_S)

    def check(self) -> None:
        found = read(self.bootstrap, self.topic, "read_uncommitted")
        for partition in range(PARTITIONS):
            told = [(receipt.result(0).position, value) for value, receipt in self.receipts[partition]]
            assert found[partition] == told


class Transactions(Worker):
    """confluent-kafka's transactions over all partitions: each is there whole or not at all."""

    name = "tx"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.topic = create(bootstrap, self.name)
        self.id = f"tx-{next(numbers)}"
        self.contents: dict[int, list[tuple[int, bytes]]] = {}
        self.verdicts: dict[int, str] = {}  # committed, aborted; without one nobody knows

    def progress(self) -> int:
        return list(self.verdicts.values()).count("committed")

    def work(self) -> None:
        producer = self._producer()
        for number in itertools.count():
            if self.stopping.is_set():
                break
            try:
                self._one(producer, number)
            except KafkaException as failure:
                if not failure.args[0].fatal() and failure.args[0].txn_requires_abort():
                    with suppress(KafkaException):
                        self._persist(producer.abort_transaction)
                        self.verdicts[number] = "aborted"
                        continue
                producer = self._producer()

    def _producer(self) -> Producer:
        """The next with the same id; it ends what the last one left open."""
        settings = {"transactional.id": self.id, "linger.ms": 2, "transaction.timeout.ms": 60_000}
        producer = Producer({**QUICK, "bootstrap.servers": self.bootstrap, **settings})
        self._persist(producer.init_transactions)
        return producer

    def _persist(self, call: Callable[[float], object]) -> None:
        """Call again for as long as the error says that one may."""
        over = time.monotonic() + LIMIT_S
        while True:
            try:
                call(5.0)
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > over:
                    raise
            else:
                return

    def _one(self, producer: Producer, number: int) -> None:
        commit = self.chance.random() < 0.7
        self.contents[number] = []
        producer.begin_transaction()
        for index in range(self.chance.randrange(1, 20)):
            partition = self.chance.randrange(PARTITIONS)
            value = b"tx:%d:%d" % (number, index)
            producer.produce(self.topic, value, partition=partition)
            self.contents[number].append((partition, value))
        self._persist(producer.commit_transaction if commit else producer.abort_transaction)
        self.verdicts[number] = "committed" if commit else "aborted"

    def check(self) -> None:
        committed = read(self.bootstrap, self.topic, "read_committed")
        for partition in range(PARTITIONS):
            values = [value for _, value in committed[partition]]
            assert len(values) == len(set(values)), "a committed message is there twice"
        seen: dict[int, set[bytes]] = defaultdict(set)
        for _, value in itertools.chain(*committed):
            seen[int(value.split(b":")[1])].add(value)
        for number, content in self.contents.items():
            whole = {value for _, value in content}
            verdict = self.verdicts.get(number)
            told: dict[str | None, list[set[bytes]]] = {"committed": [whole], "aborted": [set()]}
            allowed = told.get(verdict, [whole, set()])
            assert seen[number] in allowed, f"transaction {number}, {verdict}: {len(seen[number])} of {len(whole)}"
        self._check_order(committed)

    def _check_order(self, committed: list[list[tuple[int, bytes]]]) -> None:
        for partition in range(PARTITIONS):
            keys = [tuple(map(int, value.split(b":")[1:])) for _, value in committed[partition]]
            assert keys == sorted(keys), "not in the order of sending"


class OwnTransactions(Transactions):
    """The same with Penstock's client."""

    name = "own-tx"

    def work(self) -> None:
        url = f"kafka://{self.bootstrap}"
        with penstock.connect(url, client_id=f"kill-{next(numbers)}", retry_backoff_ms=20) as client:
            producer = client.producer(self.topic, transactional_id=self.id)
            for number in itertools.count():
                if self.stopping.is_set():
                    break
                with suppress(PenstockError):
                    self._own(producer, number)

    def _own(self, producer: Any, number: int) -> None:
        commit = self.chance.random() < 0.7
        self.contents[number] = []
        with producer.transaction() as transaction:
            for index in range(self.chance.randrange(1, 20)):
                partition = self.chance.randrange(PARTITIONS)
                value = b"tx:%d:%d" % (number, index)
                self.contents[number].append((partition, value))
                producer.send(value, partition=partition)
            if not commit:
                transaction.abort()
        self.verdicts[number] = "committed" if commit else "aborted"


class Committer(Worker):
    """A group whose offsets go up: what was acknowledged is never gone back behind."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.topic = create(bootstrap, "commits")
        self.group = f"group-{next(numbers)}"
        self.acked = [0] * PARTITIONS
        self.asked = [0] * PARTITIONS

    def progress(self) -> int:
        return sum(self.acked)

    def work(self) -> None:
        consumer = self._consumer()
        try:
            while not self.stopping.is_set():
                partition = self.chance.randrange(PARTITIONS)
                self.asked[partition] += self.chance.randrange(1, 5)
                place = TopicPartition(self.topic, partition, self.asked[partition])
                with suppress(KafkaException):
                    (told,) = consumer.commit(offsets=[place], asynchronous=False)
                    if told.error is None:
                        self.acked[partition] = place.offset
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer({**QUICK, "bootstrap.servers": self.bootstrap, "group.id": self.group})

    def killed(self) -> None:
        acked = list(self.acked)  # before asking: the worker goes on meanwhile
        found = self._committed()
        assert all(here >= told for here, told in zip(found, acked, strict=True)), f"{found} behind {acked}"

    def _committed(self) -> list[int]:
        consumer = self._consumer()
        over = time.monotonic() + LIMIT_S
        places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        try:
            while True:
                try:
                    return [max(place.offset, 0) for place in consumer.committed(places, 5)]
                except KafkaException:
                    if time.monotonic() > over:
                        raise
        finally:
            consumer.close()

    def check(self) -> None:
        found = self._committed()
        for here, acked, asked in zip(found, self.acked, self.asked, strict=True):
            assert acked <= here <= asked, f"committed {here}, acknowledged {acked}, asked for {asked}"
