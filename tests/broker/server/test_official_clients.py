"""Official clients on a broker that runs in this process: what they send comes back, and filters do not stop them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PlainPartition

from brokers import jars, jvm
from brokers.runtime import find_java
from penstock.broker.filters import FilterContext, FilteredEntry, Verdict
from penstock.broker.server.service import ServerSettings, Service
from penstock.broker.settings import BrokerSettings

LIMIT_S = 60.0
COUNT = 300


class OnlySome:
    """Lets only every n-th entry of a topic pass; all of its first ones are rejected."""

    def __init__(self, every: int, first: int) -> None:
        self._every = every
        self._first = first

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        first = entry.header.first
        assert isinstance(first, int)
        return Verdict.ACCEPT if first >= self._first and first % self._every == 0 else Verdict.REJECT


@pytest.fixture(autouse=True)
def what_clients_leave_open() -> Iterator[None]:
    """kafka-python forgets sockets; that is not what is tested here."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as stack:

        def start(filters: Any = None, **settings: Any) -> Service:
            made = Service(BrokerSettings(tmp_path / "data", **settings), ServerSettings(port=0), filters=filters)
            return stack.enter_context(made)

        yield start


def address(service: Service) -> str:
    host, port = service.address
    return f"{host}:{port}"


# One way to send and to read for each client: values that are numbers, one batch for each.


def confluent_send(bootstrap: str, topic: str, count: int) -> list[int]:
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda _, message: offsets.append(message.offset() or 0))
    assert producer.flush(LIMIT_S) == 0
    return offsets


def confluent_read(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "confluent", "enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error, value = message.error(), message.value()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(int(value or b""))
    finally:
        consumer.close()
    raise AssertionError(f"the end was never reached; {len(found)} messages came")


def kafka_python_send(bootstrap: str, topic: str, count: int) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, batch_size=0, max_in_flight_requests_per_connection=1)
    futures = [producer.send(topic, b"%d" % number) for number in range(count)]
    offsets = [future.get(LIMIT_S).offset for future in futures]
    producer.close()
    return offsets


def kafka_python_read(bootstrap: str, topic: str) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True)
    partition = PlainPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end = consumer.end_offsets([partition])[partition]
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    try:
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, f"stuck at {consumer.position(partition)} of {end}"
            for messages in consumer.poll(timeout_ms=200).values():
                found += [int(message.value) for message in messages]
    finally:
        consumer.close()
    return found


def aiokafka_send(bootstrap: str, topic: str, count: int) -> list[int]:
    async def send() -> list[int]:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            return [(await producer.send_and_wait(topic, b"%d" % number)).offset for number in range(count)]

    return asyncio.run(send())


def aiokafka_read(bootstrap: str, topic: str) -> list[int]:
    from aiokafka import TopicPartition as AioPartition

    async def read() -> list[int]:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True) as consumer:
            partition = AioPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            found: list[int] = []
            deadline = time.monotonic() + LIMIT_S
            while await consumer.position(partition) < end:
                assert time.monotonic() < deadline, f"stuck at {await consumer.position(partition)} of {end}"
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    found += [int(message.value) for message in messages]
            return found

    return asyncio.run(read())


CLIENTS: dict[str, tuple[Callable[[str, str, int], list[int]], Callable[[str, str], list[int]]]] = {
    "confluent": (confluent_send, confluent_read),
    "kafka-python": (kafka_python_send, kafka_python_read),
    "aiokafka": (aiokafka_send, aiokafka_read),
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("fsync", ["group", "system", "always"])
def test_what_a_client_sends_every_client_reads(serve: Callable[..., Service], name: str, fsync: str) -> None:
    service = serve(fsync=fsync)
    send, _read = CLIENTS[name]
    assert send(address(service), "orders", COUNT) == list(range(COUNT))
    for _send, read in CLIENTS.values():
        assert read(address(service), "orders") == list(range(COUNT))


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(("every", "first"), [(7, 0), (50, 200), (1000, 500)])
def test_a_client_reads_past_what_filters_reject(
    serve: Callable[..., Service], name: str, every: int, first: int
) -> None:
    service = serve(filters={"some": OnlySome(every, first)}, topics={"entry_filters": "some"})
    confluent_send(address(service), "orders", COUNT)
    expected = [number for number in range(first, COUNT) if number % every == 0]
    assert CLIENTS[name][1](address(service), "orders") == expected


def java_read(bootstrap: str, topic: str, folder: Path, count: int) -> list[int]:
    """What the Java client reads until it has so many messages."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(jvm.LOG4J.replace("= info", "= error"))
    arguments = [
        *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic),
        *("--partition", "0", "--offset", "earliest", "--max-messages", str(count), "--timeout-ms", "30000"),
    ]
    command = jvm.command(find_java(), jvm.FUNCTIONAL, jars.ensure("kafka", lambda _: None), log4j, *arguments)
    done = subprocess.run(command, capture_output=True, timeout=2 * LIMIT_S, check=False)
    return [int(line) for line in done.stdout.split()]


def test_javas_client_reads_past_what_filters_reject(
    serve: Callable[..., Service], kafka_parts: None, tmp_path: Path
) -> None:
    service = serve(filters={"some": OnlySome(50, 200)}, topics={"entry_filters": "some"})
    confluent_send(address(service), "orders", COUNT)
    assert java_read(address(service), "orders", tmp_path, 2) == [200, 250]
