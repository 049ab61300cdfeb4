"""Transactions on a real Kafka: as it enlists partitions by itself (transaction.version 2), and as it did before."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from brokers.kafka import KafkaCluster
from penstock import BatchPolicy, Client, Producer
from penstock.errors import (
    ClosedError,
    ConfigError,
    FencedError,
    PenstockError,
    Persisted,
    RefusedError,
    TransactionError,
    TransactionStateError,
)
from penstock.wire.kafka import versions
from penstock.wire.protocol import GroupMember, Mark
from tests.produce.real.conftest import Connect
from tests.produce.real.reading import LIMIT_S, create, new_topic, read_all


@pytest.fixture(params=["the-broker-enlists", "the-client-enlists"])
def client(request: pytest.FixtureRequest, real_kafka: KafkaCluster, connect: Connect, old_way: None) -> Client:
    """A client that speaks to the broker in one way or the other."""
    return connect(real_kafka.url)


@pytest.fixture
def old_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make connections believe that the cluster has not finalized the newer way, where that is asked for."""
    if "the-client-enlists" in request.node.name:
        monkeypatch.setattr(versions, "SELF_ENLISTING", 99)


def new_id() -> str:
    return f"id-{uuid.uuid4().hex[:12]}"


def values(kafka: KafkaCluster, topic: str, isolation: str, partition: int | None = None) -> list[bytes | None]:
    settings: dict[str, Any] = {"isolation.level": isolation}
    found = sorted(read_all(kafka.bootstrap, topic, **settings), key=lambda message: message.offset)
    return [message.value for message in found if partition in (None, message.partition)]


def committed(kafka: KafkaCluster, topic: str, partition: int | None = None) -> list[bytes | None]:
    return values(kafka, topic, "read_committed", partition)


def stored(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    return values(kafka, topic, "read_uncommitted")


def position(kafka: KafkaCluster, group: str, topic: str, partition: int = 0) -> tuple[int, str | None]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=LIMIT_S)
        return found.offset, found.metadata
    finally:
        consumer.close()


def test_a_transaction_is_seen_when_it_is_committed_and_never_when_it_is_aborted(
    real_kafka: KafkaCluster, client: Client
) -> None:
    topic = create(real_kafka.bootstrap, 3)
    producer = client.producer(topic, transactional_id=new_id())
    producer.ready(LIMIT_S)
    with producer.transaction():
        receipts = [producer.send(b"%d" % number, partition=number % 3) for number in range(30)]
        producer.flush(LIMIT_S)
        assert all(receipt.done() for receipt in receipts)
        assert len(stored(real_kafka, topic)) == 30
        assert committed(real_kafka, topic) == []
    with producer.transaction() as transaction:
        producer.send(b"lost")
        producer.flush(LIMIT_S)
        waits = producer.send(b"lost too")
        transaction.abort()
        with pytest.raises(TransactionStateError):
            producer.send(b"not even sent")
    with pytest.raises(TransactionError) as error:
        waits.result(LIMIT_S)
    assert error.value.persisted is Persisted.NO
    with producer.transaction():
        producer.send(b"last", partition=0)
    assert committed(real_kafka, topic, 0) == [b"%d" % number for number in range(0, 30, 3)] + [b"last"]
    assert committed(real_kafka, topic, 1) == [b"%d" % number for number in range(1, 30, 3)]
    assert len(stored(real_kafka, topic)) == 32


def test_an_exception_aborts_and_goes_on_its_way(real_kafka: KafkaCluster, client: Client) -> None:
    topic = create(real_kafka.bootstrap)
    producer = client.producer(topic, transactional_id=new_id())

    def fail() -> None:
        with producer.transaction():
            producer.send(b"lost")
            producer.flush(LIMIT_S)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    with producer.transaction():
        producer.send(b"a")
    assert committed(real_kafka, topic) == [b"a"]


def test_many_small_transactions_follow_each_other(real_kafka: KafkaCluster, client: Client) -> None:
    topic = create(real_kafka.bootstrap)
    producer = client.producer(topic, transactional_id=new_id())
    values = [b"%d" % number for number in range(100)]
    for value in values:
        with producer.transaction():
            producer.send(value)
    assert committed(real_kafka, topic) == values


def test_one_transaction_covers_all_producers_with_its_id(real_kafka: KafkaCluster, client: Client) -> None:
    name = new_id()
    topics = [create(real_kafka.bootstrap, 2) for _ in range(3)]
    producers = [client.producer(topic, transactional_id=name) for topic in topics]
    for number in range(5):
        with producers[number % 3].transaction():
            for producer in producers:
                producer.send_many([b"%d" % number] * 10, keys=[b"%d" % key for key in range(10)])
                producer.send_table(pa.table({"value": [b"%d" % number]}))
        with producers[0].transaction() as transaction:
            for producer in producers:
                producer.send_many([b"lost"] * 10)
            producer.flush(LIMIT_S)
            transaction.abort()
    expected = sorted(b"%d" % number for number in range(5) for _ in range(11))
    assert [sorted(value or b"" for value in committed(real_kafka, topic)) for topic in topics] == [expected] * 3
    with pytest.raises(ConfigError, match="another id"):
        client.producer(topics[0], transactional_id=name)


def commit_for(producer: Producer, positions: dict[tuple[str, int], int], group: str, member: GroupMember) -> None:
    with producer.transaction() as transaction:
        producer.send(b"lost")
        transaction.send_offsets(positions, group, member)


def test_positions_are_committed_with_the_transaction(real_kafka: KafkaCluster, client: Client) -> None:
    topic, source, group = create(real_kafka.bootstrap), create(real_kafka.bootstrap, 2), f"g-{new_id()}"
    producer = client.producer(topic, transactional_id=new_id())
    with producer.transaction() as transaction:
        producer.send(b"a")
        transaction.send_offsets({(source, 0): 17, (source, 1): Mark(3, "a note")}, group)
        assert position(real_kafka, group, source)[0] == confluent_kafka.OFFSET_INVALID
    assert position(real_kafka, group, source)[0] == 17
    assert position(real_kafka, group, source, 1) == (3, "a note")
    with producer.transaction() as transaction:
        transaction.send_offsets({(source, 0): 18}, group)
    assert position(real_kafka, group, source)[0] == 18
    with producer.transaction() as transaction:
        producer.send(b"lost")
        transaction.send_offsets({(source, 0): 99}, group)
        transaction.abort()
    assert position(real_kafka, group, source)[0] == 18
    with pytest.raises(TransactionError) as error:
        commit_for(producer, {(source, 0): 99}, group, GroupMember(5, "nobody"))
    assert isinstance(error.value.__cause__, RefusedError)
    assert position(real_kafka, group, source)[0] == 18
    with producer.transaction():
        producer.send(b"b")
    assert committed(real_kafka, topic) == [b"a", b"b"]


def check_dead(producer: Producer) -> None:
    """Whatever is asked of it, it says that it was fenced."""
    for use in (
        lambda: producer.send(b"x"),
        lambda: producer.send_many([b"x"]),
        lambda: producer.transaction().__enter__(),
        lambda: producer.ready(LIMIT_S),
    ):
        with pytest.raises(FencedError, match="ended for good") as error:
            use()
        assert error.value.persisted is Persisted.NO


def test_another_client_with_the_same_id_fences_this_one(
    real_kafka: KafkaCluster, client: Client, connect: Connect
) -> None:
    topic, name = create(real_kafka.bootstrap), new_id()
    old = client.producer(topic, transactional_id=name)
    with old.transaction():
        old.send(b"a")
    transaction = old.transaction()
    transaction.__enter__()
    old.send(b"lost")
    old.flush(LIMIT_S)
    new = connect(real_kafka.url).producer(topic, transactional_id=name)
    with new.transaction():
        new.send(b"b")
    late = old.send(b"late")
    with pytest.raises(FencedError, match="ended for good") as error:
        transaction.__exit__(None, None, None)
    assert error.value.persisted is Persisted.NO
    assert isinstance(late.exception(LIMIT_S), FencedError)
    check_dead(old)
    with new.transaction():
        new.send(b"c")
    assert committed(real_kafka, topic) == [b"a", b"b", b"c"]
    again = client.producer(topic, transactional_id=name)
    with again.transaction():
        again.send(b"d")
    assert committed(real_kafka, topic) == [b"a", b"b", b"c", b"d"]


def test_confluent_kafka_with_the_same_id_fences_us_and_we_fence_it(real_kafka: KafkaCluster, client: Client) -> None:
    topic, name = create(real_kafka.bootstrap), new_id()
    ours = client.producer(topic, transactional_id=name)
    with ours.transaction():
        ours.send(b"a")
    theirs = confluent_kafka.Producer({"bootstrap.servers": real_kafka.bootstrap, "transactional.id": name})
    theirs.init_transactions(LIMIT_S)
    with pytest.raises(FencedError), ours.transaction():
        ours.send(b"lost")
    check_dead(ours)
    theirs.begin_transaction()
    theirs.produce(topic, b"b")
    theirs.commit_transaction(LIMIT_S)
    again = client.producer(topic, transactional_id=name)
    with again.transaction():
        again.send(b"c")
    theirs.begin_transaction()
    theirs.produce(topic, b"lost")
    with pytest.raises(confluent_kafka.KafkaException) as error:
        theirs.commit_transaction(LIMIT_S)
    assert error.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert committed(real_kafka, topic) == [b"a", b"b", b"c"]


def wait_for_abort(kafka: KafkaCluster, topics: list[str]) -> None:
    """Until no transaction holds these topics' readers back."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    over = time.monotonic() + LIMIT_S
    while True:
        asked = {TopicPartition(topic, 0): OffsetSpec.latest() for topic in topics}  # type: ignore[no-untyped-call]
        ends = [
            [future.result().offset for future in admin.list_offsets(asked, isolation_level=level).values()]
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        if ends[0] == ends[1]:
            return
        assert time.monotonic() < over
        time.sleep(0.1)


def test_a_transaction_that_is_open_for_too_long_says_so_and_the_next_goes_on(
    real_kafka: KafkaCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers: list[Producer] = []
    for enlisting in (99, versions.SELF_ENLISTING):
        monkeypatch.setattr(versions, "SELF_ENLISTING", enlisting)
        client = connect(real_kafka.url)
        for _ in range(2):
            topic = create(real_kafka.bootstrap)
            producers.append(client.producer(topic, transactional_id=new_id(), transaction_timeout_ms=1000))
            producers[-1].ready(LIMIT_S)
    transactions = [producer.transaction() for producer in producers]
    for producer, transaction in zip(producers, transactions, strict=True):
        transaction.__enter__()
        producer.send(b"lost")
        producer.flush(LIMIT_S)
    wait_for_abort(real_kafka, [producer.topic for producer in producers])
    for number, (producer, transaction) in enumerate(zip(producers, transactions, strict=True)):
        late = producer.send(b"late") if number % 2 else None
        with pytest.raises(TransactionError, match="transaction_timeout_ms=1000") as error:
            transaction.__exit__(None, None, None)
        assert error.value.persisted is Persisted.NO
        assert late is None or isinstance(late.exception(LIMIT_S), TransactionError)
        with producer.transaction():
            producer.send(b"a")
        assert committed(real_kafka, producer.topic) == [b"a"]


def test_threads_that_send_when_a_transaction_ends_are_in_it_or_refused(
    real_kafka: KafkaCluster, client: Client
) -> None:
    topic = create(real_kafka.bootstrap, 2)
    producer = client.producer(topic, transactional_id=new_id(), batch=BatchPolicy(delay_ms=2))
    over = threading.Event()
    accepted: list[int] = []

    def work(number: int) -> None:
        count = refused = 0
        while not over.is_set():
            try:
                producer.send(b"%d" % number)
                count += 1
            except TransactionStateError:
                refused += 1
                time.sleep(0.0005)
        accepted.append(count)
        assert refused

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    receipts = []
    for _ in range(10):
        with producer.transaction():
            receipts += [producer.send(b"mine") for _ in range(100)]
    over.set()
    for thread in threads:
        thread.join()
    assert len(accepted) == 3
    assert len(committed(real_kafka, topic)) == sum(accepted) + len(receipts)


def test_what_needs_a_transaction_or_an_id_says_so(real_kafka: KafkaCluster, connect: Connect) -> None:
    client = connect(real_kafka.url)
    topic = create(real_kafka.bootstrap)
    plain = client.producer(topic)
    with pytest.raises(ConfigError, match="transactional_id"):
        plain.transaction()
    producer = client.producer(topic, transactional_id=new_id())
    batch = producer.batch()
    batch.append(b"x")
    for use in (
        lambda: producer.send(b"x"),
        lambda: producer.send(b"x", tag="a"),
        lambda: producer.send_many([b"x"]),
        lambda: producer.send_batch(batch),
    ):
        with pytest.raises(TransactionStateError, match="no transaction is open"):
            use()
    producer.ready(LIMIT_S)
    with producer.transaction():
        producer.send_batch(batch)
        with pytest.raises(TransactionStateError, match="only one"), producer.transaction():
            pass
    producer.close()
    with pytest.raises(ClosedError), producer.transaction():
        pass
    refused = client.producer(topic, transactional_id=new_id(), transaction_timeout_ms=900_001)
    with pytest.raises(RefusedError, match="INVALID_TRANSACTION_TIMEOUT"):
        refused.ready(LIMIT_S)
    with pytest.raises(RefusedError, match="INVALID_TRANSACTION_TIMEOUT"), refused.transaction():
        pass
    assert committed(real_kafka, topic) == [b"x"]


def test_a_callback_cannot_wait_for_a_transaction(real_kafka: KafkaCluster, connect: Connect) -> None:
    producer = connect(real_kafka.url).producer(new_topic(), transactional_id=new_id())
    met: list[Any] = []

    def callback(receipt: Any) -> None:
        try:
            producer.transaction().__enter__()
        except ClosedError as error:
            met.append(error)

    with producer.transaction():
        producer.send(b"a", callback=callback)
    assert "would wait for ever" in str(met[0])


@pytest.mark.stress
def test_transactions_are_whole_while_brokers_are_killed(real_kafka_cluster: KafkaCluster, connect: Connect) -> None:
    kafka = real_kafka_cluster
    topic, source, group = create(kafka.bootstrap, 6, 3), create(kafka.bootstrap, 1, 3), f"g-{new_id()}"
    producer = connect(kafka.url).producer(topic, transactional_id=new_id(), transaction_timeout_ms=30_000)
    producer.ready(LIMIT_S)
    over = threading.Event()

    def kill() -> None:
        for node in (1, 2, 3, 1, 2, 3):
            kafka.kill(node)
            over.wait(4)
            kafka.restart(node)
            over.wait(6)
        over.set()

    killer = threading.Thread(target=kill)
    killer.start()
    ends: list[Persisted] = []
    while not over.is_set():
        number = len(ends)
        try:
            with producer.transaction() as transaction:
                for place in range(6):
                    producer.send(b"%d" % number, partition=place)
                transaction.send_offsets({(source, 0): number}, group)
            ends.append(Persisted.YES)
        except PenstockError as error:
            ends.append(error.persisted)
    killer.join()
    with producer.transaction():
        pass
    seen = [committed(kafka, topic, place) for place in range(6)]
    assert all(place == seen[0] for place in seen)
    numbers = [int(value or b"-1") for value in seen[0]]
    assert numbers == sorted(set(numbers))
    for number, end in enumerate(ends):
        assert end is Persisted.MAYBE or (number in numbers) is (end is Persisted.YES), (number, end)
    assert position(kafka, group, source)[0] == numbers[-1]
    assert len(numbers) > 100
