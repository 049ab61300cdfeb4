"""Entry filters as readers meet them: official clients on a running broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import admin as admin_module

import penstock
from penstock.broker.embedded import EmbeddedBroker
from penstock.broker.filters import FilterContext, FilteredEntry, Verdict

LIMIT_S = 30.0
REGIONS = ["eu", "eu", "us", "nl", "eu", "us", "us", "nl"]
"""Of one message each; runs of equal ones are one batch, and nl is not listed by the policy."""


class Mine:
    """A filter that a test gives: calls a function, and remembers who was read for."""

    def __init__(self) -> None:
        self.judge: Callable[[FilteredEntry], Verdict] = lambda entry: Verdict.ACCEPT
        self.contexts: list[FilterContext] = []

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        self.contexts.append(context)
        return self.judge(entry)


@pytest.fixture
def mine() -> Mine:
    return Mine()


@pytest.fixture
def broker(mine: Mine) -> Iterator[EmbeddedBroker]:
    with penstock.embedded(filters={"mine": mine}, filter_reschedule_delay_ms=10) as made:
        made.create_topic("orders")
        policy = penstock.BatchPolicy(same_properties={"region": ["us", "eu"]})
        with penstock.connect(made.url) as client:
            orders = client.producer("orders", batch=policy, idempotence=False)
            for number, region in enumerate(REGIONS):
                orders.send(f"{number} {region}".encode(), properties={"region": region})
            orders.flush()
        yield made


def text_of(message: confluent_kafka.Message) -> str:
    value = message.value()
    assert isinstance(value, bytes)
    return value.decode()


def with_confluent(broker: EmbeddedBroker, **settings: str) -> tuple[list[str], int]:
    """What a reader gets from the start to the end, and the position it reaches."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.partition.eof": True, **settings}
    )
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    values = []
    try:
        while (message := consumer.poll(LIMIT_S)) is not None:
            error = message.error()
            if error is None:
                values.append(text_of(message))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return values, message.offset() or 0
        pytest.fail("the end was not reached")
    finally:
        consumer.close()


def with_aiokafka(broker: EmbeddedBroker) -> tuple[list[str], int]:
    async def read() -> tuple[list[str], int]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
        partition = aiokafka.TopicPartition("orders", 0)
        await consumer.start()
        try:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            values: list[str] = []
            async with asyncio.timeout(LIMIT_S):
                while await consumer.position(partition) < len(REGIONS):
                    found = await consumer.getmany(partition, timeout_ms=100)
                    values += [record.value.decode() for record in found.get(partition, [])]
            return values, await consumer.position(partition)
        finally:
            await consumer.stop()

    return asyncio.run(read())


def with_kafka_python(broker: EmbeddedBroker) -> tuple[list[str], int]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    partition = kafka.TopicPartition("orders", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    values: list[str] = []
    try:
        for _ in range(100):
            found = consumer.poll(timeout_ms=300)
            values += [record.value.decode() for record in found.get(partition, [])]
            if consumer.position(partition) >= len(REGIONS):
                return values, consumer.position(partition)
        pytest.fail("the end was not reached")
    finally:
        consumer.close()


CLIENTS = [with_confluent, with_aiokafka, with_kafka_python]


@pytest.mark.parametrize("read", CLIENTS)
def test_a_reader_gets_what_matches_and_goes_on_behind_the_rest(
    broker: EmbeddedBroker, read: Callable[[EmbeddedBroker], tuple[list[str], int]]
) -> None:
    broker.change(topic="orders", entry_filters="property(region = eu)")
    assert read(broker) == (["0 eu", "1 eu", "4 eu"], 8)
    counts = broker.stats("orders")["filters"]
    assert (counts["accepted"], counts["rejected_messages"]) == (2, 5)


@pytest.mark.parametrize("read", CLIENTS)
def test_a_reader_that_gets_nothing_comes_to_the_end(
    broker: EmbeddedBroker, read: Callable[[EmbeddedBroker], tuple[list[str], int]]
) -> None:
    broker.change(entry_filters="property(region = dk)")
    assert read(broker) == ([], 8)


def test_entries_are_judged_once_though_a_reader_waits_for_more_bytes(broker: EmbeddedBroker) -> None:
    broker.change(topic="orders", entry_filters="property(region = eu)")
    patient = {"fetch.min.bytes": "100000", "fetch.wait.max.ms": "1000"}
    assert with_confluent(broker, **patient) == (["0 eu", "1 eu", "4 eu"], 8)
    told = broker.stats("orders")
    assert (told["filters"]["accepted"], told["filters"]["rejected"]) == (2, 4)
    assert told["delivered"]["messages"] == 3


def test_a_value_that_the_policy_does_not_list_is_absent(broker: EmbeddedBroker) -> None:
    broker.change(topic="orders", entry_filters="property(region = nl)")
    assert with_confluent(broker) == ([], 8)
    broker.change(topic="orders", entry_filters="property(region is absent)")
    assert with_confluent(broker) == (["3 nl", "7 nl"], 8)


def test_batches_that_list_several_values_are_delivered_whole(broker: EmbeddedBroker) -> None:
    with penstock.connect(broker.url) as client:
        mixed = client.producer(
            "orders", batch=penstock.BatchPolicy(listed_properties=["region"], delay_ms=1000), idempotence=False
        )
        for number, region in enumerate(["eu", "nl"], len(REGIONS)):
            mixed.send(f"{number} {region}".encode(), properties={"region": region})
        mixed.flush()
        for number, region in enumerate(["nl", "se"], len(REGIONS) + 2):
            mixed.send(f"{number} {region}".encode(), properties={"region": region})
        mixed.flush()
    broker.change(topic="orders", entry_filters="property(region = eu)")
    assert with_confluent(broker) == (["0 eu", "1 eu", "4 eu", "8 eu", "9 nl"], 12)


def test_a_filter_of_one_s_own_knows_who_reads(broker: EmbeddedBroker, mine: Mine) -> None:
    mine.judge = lambda entry: Verdict.REJECT if entry.header.first == 0 else Verdict.ACCEPT
    broker.change(topic="orders", entry_filters="mine")
    values, _ = with_confluent(broker, **{"client.id": "the reader"})
    assert values == ["2 us", "3 nl", "4 eu", "5 us", "6 us", "7 nl"]
    assert set(mine.contexts) == {FilterContext("public/default/orders", 0, None, "the reader", "127.0.0.1")}


def test_a_filter_may_read_the_payload(broker: EmbeddedBroker, mine: Mine) -> None:
    mine.judge = lambda entry: Verdict.ACCEPT if b"4 eu" in entry.payload() else Verdict.REJECT
    broker.change(topic="orders", entry_filters="mine")
    assert with_confluent(broker) == (["4 eu"], 8)


def test_a_filter_with_a_bug_holds_nothing_back(
    broker: EmbeddedBroker, mine: Mine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(entry: FilteredEntry) -> Verdict:
        raise ZeroDivisionError

    mine.judge = fail
    broker.change(topic="orders", entry_filters="mine")
    values, _ = with_confluent(broker)
    assert len(values) == len(REGIONS)
    assert broker.stats()["filters"][0]["failed"] == 6
    assert len([record for record in caplog.records if "entry filter mine failed" in record.getMessage()]) == 1


def test_a_rescheduled_entry_comes_later_and_in_its_place(broker: EmbeddedBroker, mine: Mine) -> None:
    asked: list[int] = []

    def judge(entry: FilteredEntry) -> Verdict:
        first = entry.header.first
        assert isinstance(first, int)
        asked.append(first)
        return Verdict.RESCHEDULE if first == 3 and asked.count(3) <= 2 else Verdict.ACCEPT

    mine.judge = judge
    broker.change(topic="orders", entry_filters="mine")
    values, _ = with_confluent(broker)
    assert values == [f"{number} {region}" for number, region in enumerate(REGIONS)]
    assert asked.count(3) == 3
    assert broker.stats("orders")["filters"]["rescheduled"] == 2


def test_an_entry_that_is_rescheduled_for_ever_comes_all_the_same(broker: EmbeddedBroker, mine: Mine) -> None:
    mine.judge = lambda entry: Verdict.RESCHEDULE
    broker.change(topic="orders", entry_filters="mine")
    values, _ = with_confluent(broker)
    assert len(values) == len(REGIONS)
    assert broker.stats("orders")["filters"]["rescheduled"] == 6 * 10


def group_reader(broker: EmbeddedBroker, group: str, client_id: str) -> list[str]:
    """What a member of a group gets, up to the end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": client_id,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe(["orders"])
    values = []
    try:
        while (message := consumer.poll(LIMIT_S)) is not None:
            error = message.error()
            if error is None:
                values.append(text_of(message))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                consumer.commit(asynchronous=False)
                return values
        pytest.fail("the end was not reached")
    finally:
        consumer.close()


def test_a_filter_of_a_group_holds_for_its_members_alone(broker: EmbeddedBroker) -> None:
    broker.change(group="billing", entry_filters="property(region = us)")
    assert group_reader(broker, "billing", "b") == ["2 us", "5 us", "6 us"]
    assert len(group_reader(broker, "audit", "a")) == len(REGIONS)
    broker.change(topic="orders", entry_filters="property(region is present)")
    assert group_reader(broker, "audit-2", "a") == ["0 eu", "1 eu", "2 us", "4 eu", "5 us", "6 us"]
    told = {each["name"]: each["backlog"]["messages"] for each in broker.stats("orders")["readers"]}
    assert told["billing"] <= 1
    assert told["audit"] == 0


def test_filters_are_set_by_kafka_s_own_tools(broker: EmbeddedBroker) -> None:
    # The module tells its types that it exports nothing.
    kinds: Any = admin_module
    admin = kinds.AdminClient({"bootstrap.servers": broker.bootstrap})

    def alter(kind: Any, name: str, operation: Any, value: str | None) -> None:
        entry = kinds.ConfigEntry("penstock.entry.filters", value, incremental_operation=operation)
        resource = kinds.ConfigResource(kind, name, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(LIMIT_S)

    alter(kinds.ResourceType.TOPIC, "orders", kinds.AlterConfigOpType.SET, "property(region = eu)")
    assert broker.stats("orders")["entry_filters"] == "property(region = eu)"
    assert with_confluent(broker)[0] == ["0 eu", "1 eu", "4 eu"]
    with pytest.raises(confluent_kafka.KafkaException, match="there is no entry filter"):
        alter(kinds.ResourceType.TOPIC, "orders", kinds.AlterConfigOpType.SET, "no-such-filter")
    alter(kinds.ResourceType.TOPIC, "orders", kinds.AlterConfigOpType.DELETE, None)
    assert broker.stats("orders")["entry_filters"] is None
    alter(kinds.ResourceType.TOPIC, "public/default/*", kinds.AlterConfigOpType.SET, "property(region = us)")
    assert broker.stats("orders")["entry_filters"] == "property(region = us)"
    asked = kinds.ConfigResource(kinds.ResourceType.TOPIC, "public/default/*")
    (described,) = [future.result(LIMIT_S) for future in admin.describe_configs([asked]).values()]
    assert described["penstock.entry.filters"].value == "property(region = us)"
    with pytest.raises(confluent_kafka.KafkaException, match="is not tenant/namespace"):
        alter(kinds.ResourceType.TOPIC, "default/*", kinds.AlterConfigOpType.SET, "property(region = us)")


def test_a_filter_that_is_set_while_somebody_reads_holds_from_then_on(broker: EmbeddedBroker, mine: Mine) -> None:
    """A reader that waits at the end gets what comes later by the filters that hold then."""
    reached = threading.Event()
    values: list[str] = []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])

    def read() -> None:
        while (message := consumer.poll(LIMIT_S)) is not None:
            if message.error() is not None:
                reached.set()
            else:
                values.append(text_of(message))
                if values[-1] == "last":
                    return

    reader = threading.Thread(target=read)
    reader.start()
    assert reached.wait(LIMIT_S)
    broker.change(topic="orders", entry_filters="mine")
    mine.judge = lambda entry: Verdict.REJECT if b"left out" in entry.payload() else Verdict.ACCEPT
    with penstock.connect(broker.url) as client:
        orders = client.producer("orders", idempotence=False, compression="none")
        orders.send(b"left out").result()
        orders.send(b"last").result()
    reader.join(LIMIT_S)
    consumer.close()
    assert values[len(REGIONS) :] == ["last"]
