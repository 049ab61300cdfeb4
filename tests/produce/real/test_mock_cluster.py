"""Our producer on librdkafka's mock cluster: each error a broker can answer, leaders that move, brokers that go away.

The mock does not judge sequence numbers. So order is looked at with one request in flight, and that nothing is stored
twice where no answer can get lost.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import penstock
from penstock.errors import DuplicateError, FencedError, Persisted, SequenceError, TimedOutError
from penstock.produce.bulk import ListSource
from penstock.wire.kafka.codes import TABLE, Row
from tests.produce.real.conftest import Connect
from tests.produce.real.librdkafka_mock import (
    INIT_PRODUCER_ID,
    METADATA,
    NO_LEADER,
    PRODUCE,
    TRANSPORT,
    MockCluster,
)
from tests.produce.real.load import Load, judge
from tests.produce.real.reading import LIMIT_S, by_partition, new_topic, read_all

PARTITIONS = 8
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 10}
PASSING = [row.number for row in TABLE if row.error.retriable] + [TRANSPORT]


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster(3) as cluster:
        yield cluster


@pytest.fixture
def topic(mock: MockCluster) -> str:
    name = new_topic()
    mock.create(name, PARTITIONS)
    return name


def test_a_cluster_that_confluent_kafka_makes_for_itself_is_served(connect: Connect) -> None:
    holder = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 3})
    brokers = holder.list_topics(timeout=LIMIT_S).brokers.values()
    bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    topic = new_topic()
    with connect(f"kafka://{bootstrap}") as client, client.producer(topic) as producer:
        receipts = [producer.send(b"%d" % number, key=b"%d" % number) for number in range(1000)]
        producer.flush(LIMIT_S)
        assert all(receipt.done() for receipt in receipts)
    assert sorted(int(message.value or b"") for message in read_all(bootstrap, topic)) == list(range(1000))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_of_every_codec_are_read_back(mock: MockCluster, topic: str, connect: Connect, codec: str) -> None:
    with connect(mock.url, compression=codec) as client, Load(client.producer(topic), PARTITIONS) as load:
        load.wait_for_more(2000)
        load.stop()
        outcomes = load.outcomes()
    assert judge(outcomes, read_all(mock.bootstrap, topic, len(outcomes))) == {"stored": len(outcomes)}


def expected(row: Row) -> type[Exception] | None:
    """The error that a message ends with when a broker answers this once; None: it is stored all the same."""
    if row.error.retriable or issubclass(row.error, SequenceError | FencedError | DuplicateError):
        return None
    return row.error


def test_every_error_a_broker_can_answer_has_its_outcome(mock: MockCluster, topic: str, connect: Connect) -> None:
    stored = []
    with (
        connect(mock.url, **QUICK) as client,
        client.producer(topic, batch=penstock.BatchPolicy(delay_ms=0)) as producer,
    ):
        for row in TABLE:
            mock.answer_with([row.number])
            value = b"%d" % row.number
            error = producer.send(value, partition=row.number % PARTITIONS).exception(LIMIT_S)
            assert type(error) is (expected(row) or type(None)), row
            if error is None and row.error is not DuplicateError:  # the mock did not store what it calls a duplicate
                stored.append(value)
            elif error is not None:
                assert row.name in str(error)
            after = producer.send(b"after", partition=row.number % PARTITIONS)
            assert after.result(LIMIT_S).position is not None, f"the lane goes on after {row.name}"
    found = [message.value or b"" for message in read_all(mock.bootstrap, topic)]
    assert sorted(value for value in found if value != b"after") == sorted(stored)
    assert found.count(b"after") == len(TABLE)


def test_a_connection_that_closes_instead_of_an_answer_is_tried_again(
    mock: MockCluster, topic: str, connect: Connect
) -> None:
    with connect(mock.url, **QUICK) as client, client.producer(topic) as producer:
        mock.answer_with([TRANSPORT] * 6)
        assert producer.send(b"v", partition=0).result(LIMIT_S).position == 0
    assert [message.value for message in read_all(mock.bootstrap, topic)] == [b"v"]


@pytest.mark.parametrize("in_flight", [1, 5])
def test_errors_that_pass_lose_nothing_and_store_nothing_twice(
    mock: MockCluster, topic: str, connect: Connect, in_flight: int
) -> None:
    chance = random.Random(in_flight)
    codes = [0, *PASSING]
    if in_flight > 1:
        codes.remove(TRANSPORT)  # a closed connection takes the answers to what was stored behind it along
    with connect(mock.url, in_flight_max=in_flight, **QUICK) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            for _ in range(8):
                mock.answer_with([chance.choice(codes) for _ in range(12)])
                load.wait_for_more(300)
            mock.answer_truly()
        outcomes = load.outcomes()
    kinds = judge(outcomes, read_all(mock.bootstrap, topic, len(outcomes)), ordered=in_flight == 1)
    assert kinds == {"stored": len(outcomes)}


def test_leaders_that_move_are_followed(mock: MockCluster, topic: str, connect: Connect) -> None:
    chance = random.Random(1)
    with connect(mock.url, in_flight_max=1, **QUICK) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            for _ in range(15):
                for partition in chance.sample(range(PARTITIONS), 4):
                    mock.set_leader(topic, partition, chance.choice(mock.brokers))
                load.wait_for_more(200)
        outcomes = load.outcomes()
    assert judge(outcomes, read_all(mock.bootstrap, topic, len(outcomes))) == {"stored": len(outcomes)}


def test_a_partition_without_a_leader_waits_and_harms_no_other(mock: MockCluster, topic: str, connect: Connect) -> None:
    mock.set_leader(topic, 3, NO_LEADER)
    with connect(mock.url, **QUICK) as client, client.producer(topic) as producer:
        waiting = [producer.send(b"w%d" % number, partition=3) for number in range(10)]
        others = [producer.send(b"o", partition=number) for number in range(PARTITIONS) if number != 3]
        assert [receipt.result(LIMIT_S).position for receipt in others] == [0] * 7
        without_key = [producer.send(b"x").result(LIMIT_S).partition for _ in range(20)]
        assert 3 not in without_key
        assert not any(receipt.done() for receipt in waiting)
        mock.set_leader(topic, 3, 1)
        assert [receipt.result(LIMIT_S).position for receipt in waiting] == list(range(10))


@pytest.mark.parametrize("in_flight", [1, 5])
def test_brokers_that_go_and_come_lose_nothing(mock: MockCluster, topic: str, connect: Connect, in_flight: int) -> None:
    with connect(mock.url, in_flight_max=in_flight, **QUICK) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            for broker in (1, 2, 3, -1, 2):
                load.wait_for_more(300)
                mock.down(broker)
                time.sleep(0.1)  # for as long it is away
                mock.up(broker)
            load.wait_for_more(300)
        outcomes = load.outcomes()
    kinds = judge(outcomes, read_all(mock.bootstrap, topic, len(outcomes)), once=False, ordered=False)
    assert kinds == {"stored": len(outcomes)}


def test_slow_brokers_are_waited_for(mock: MockCluster, topic: str, connect: Connect) -> None:
    mock.delay(60)
    with connect(mock.url) as client, Load(client.producer(topic), PARTITIONS) as load:
        load.wait_for_more(1000)
        mock.delay(300, 2)
        load.wait_for_more(1000)
        mock.delay(0)
        load.stop()
        outcomes = load.outcomes()
    assert judge(outcomes, read_all(mock.bootstrap, topic, len(outcomes))) == {"stored": len(outcomes)}


def test_what_is_not_answered_in_time_fails_and_says_that_it_may_be_stored(
    mock: MockCluster, topic: str, connect: Connect
) -> None:
    with connect(mock.url, request_timeout_ms=300, **QUICK) as client:
        producer = client.producer(topic, delivery_timeout_ms=1000)
        producer.send(b"first", partition=0).result(LIMIT_S)
        mock.delay(5000)
        late = producer.send(b"late", partition=0)
        error = late.exception(LIMIT_S)
        assert isinstance(error, TimedOutError)
        assert error.persisted is Persisted.MAYBE
        mock.delay(0)
        assert producer.send(b"goes on", partition=0).result(LIMIT_S).partition == 0
    values = [message.value for message in by_partition(read_all(mock.bootstrap, topic))[0]]
    assert (values[0], values[-1]) == (b"first", b"goes on")


@pytest.mark.parametrize("request_key", [INIT_PRODUCER_ID, METADATA], ids=["identity", "metadata"])
def test_errors_while_starting_are_tried_again(
    mock: MockCluster, topic: str, connect: Connect, request_key: int
) -> None:
    codes = [14, 15, 7, TRANSPORT, 41, TRANSPORT] if request_key == INIT_PRODUCER_ID else [TRANSPORT, TRANSPORT, 7]
    mock.answer_with(codes, request_key)
    with connect(mock.url, **QUICK) as client, client.producer(topic) as producer:
        producer.ready(LIMIT_S)
        assert producer.send(b"v").result(LIMIT_S).position == 0


def test_an_identity_that_is_refused_for_good_fails_what_waits_and_the_next_tries_again(
    mock: MockCluster, topic: str, connect: Connect
) -> None:
    denied = 31
    mock.answer_with([denied], INIT_PRODUCER_ID)
    with connect(mock.url, **QUICK) as client, client.producer(topic) as producer:
        error = producer.send(b"v").exception(LIMIT_S)
        assert "CLUSTER_AUTHORIZATION_FAILED" in str(error)
        assert producer.send(b"again").result(LIMIT_S).position == 0


def test_a_topic_that_may_not_be_used_says_so(mock: MockCluster, topic: str, connect: Connect) -> None:
    mock.fail_topic(topic, 29)
    with connect(mock.url, **QUICK) as client, client.producer(topic) as producer:
        assert "TOPIC_AUTHORIZATION_FAILED" in str(producer.send(b"v").exception(LIMIT_S))
        mock.fail_topic(topic, 0)
        assert producer.send(b"again").result(LIMIT_S).position == 0


def test_no_broker_at_all_says_what_was_tried(mock: MockCluster, topic: str, connect: Connect) -> None:
    mock.down()
    with connect(mock.url, request_timeout_ms=200, **QUICK) as client:
        producer = client.producer(topic, delivery_timeout_ms=600)
        error = producer.send(b"v").exception(LIMIT_S)
        assert error is not None
        assert getattr(error, "persisted", None) is Persisted.NO
        assert "cannot be reached: tried 127.0.0.1:" in str(error)
        with pytest.raises(TimedOutError, match=r"was not ready within 0.1 s: .*cannot be reached"):
            producer.ready(0.1)
        mock.up()
        assert producer.send(b"again").result(LIMIT_S).position == 0


def test_one_call_for_many_is_done_when_the_last_of_them_is(mock: MockCluster, topic: str, connect: Connect) -> None:
    done: queue.SimpleQueue[bool] = queue.SimpleQueue()
    mock.delay(200, 2)
    keys = [b"%d" % number for number in range(100)]
    with connect(mock.url) as client, client.producer(topic) as producer:
        for _ in range(4):  # the first ones before it is known where the keys belong
            producer.send_many([b"v"] * 100, keys).add_done_callback(lambda receipt: done.put(receipt.done()))
        assert [done.get(timeout=LIMIT_S) for _ in range(4)] == [True] * 4


def test_a_message_of_another_thread_shifts_no_receipt_of_many(
    mock: MockCluster, topic: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(mock.url) as client, client.producer(topic, batch=penstock.BatchPolicy(delay_ms=1000)) as producer:
        producer.send(b"opens the batch", partition=0)
        others: list[threading.Thread] = []
        smallest = ListSource.smallest

        def slowly(source: ListSource) -> int:
            """In the middle of `send_many` another thread wants to send."""
            others.append(threading.Thread(target=lambda: producer.send(b"other", partition=0)))
            others[-1].start()
            others[-1].join(0.2)
            return smallest(source)

        monkeypatch.setattr(ListSource, "smallest", slowly)
        many = producer.send_many([b"many"] * 10, partition=0)
        for other in others:
            other.join(LIMIT_S)
        places = {place.position for place in many.result(LIMIT_S)}
    found = {message.offset for message in read_all(mock.bootstrap, topic) if message.value == b"many"}
    assert others
    assert places == found


def test_only_the_partition_that_fails_waits(mock: MockCluster, topic: str, connect: Connect) -> None:
    mock.answer_with([6] * 3, PRODUCE)
    with connect(mock.url, **QUICK) as client, client.producer(topic) as producer:
        receipts = [producer.send(b"%d" % number, partition=number % PARTITIONS) for number in range(80)]
        places = Counter(receipt.result(LIMIT_S).position for receipt in receipts)
        assert places == dict.fromkeys(range(10), PARTITIONS)
