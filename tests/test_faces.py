"""Sending, as users see it, with both faces."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import penstock
from brokers.kafka import KafkaCluster
from penstock import BatchPolicy
from penstock.errors import (
    BatchStateError,
    ClosedError,
    ExpiredError,
    NoRoomError,
    PenstockError,
    Persisted,
    TimedOutError,
    UnknownTopicError,
)
from penstock.message import MessageId
from penstock.produce.incoming import check
from penstock.produce.lanes import ProducerLane
from penstock.produce.memory import MemoryBudget, Waiter
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.system import KafkaWire
from tests.faces import (
    LIMIT_S,
    UNREACHABLE,
    Blocking,
    Face,
    assert_all_given_back,
    budget_of,
    face,
    new_id,
    producer,
    topic,
    wait_until,
)
from tests.produce.real.librdkafka_mock import MockCluster
from tests.produce.real.reading import Read, new_topic, read_all

__all__ = ["face", "producer", "topic"]

SMALL = {"total_bytes_max": 65_536, "message_bytes_max": 16_000, "batch_bytes_max": 16_384, "compression": "none"}
IMPATIENT = {"request_timeout_ms": 100, "delivery_timeout_ms": 300}


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"kafka://127.0.0.1:{server.getsockname()[1]}"


def values_of(found: list[Read]) -> list[bytes | None]:
    return [message.value for message in sorted(found, key=lambda message: (message.partition, message.offset))]


# What is sent arrives


def test_messages_arrive_and_their_receipts_say_where(
    real_kafka: KafkaCluster, face: Face, producer: Any, topic: str
) -> None:
    receipts = [producer.send(b"%d" % number, b"key", {"a": "b"}, partition=1) for number in range(100)]
    assert [face.result(receipt) for receipt in receipts] == [MessageId(topic, 1, number) for number in range(100)]
    assert all(receipt.done() for receipt in receipts)
    found = read_all(real_kafka.bootstrap, topic)
    assert values_of(found) == [b"%d" % number for number in range(100)]
    assert {(message.key, message.headers) for message in found} == {(b"key", (("a", b"b"),))}


def test_all_ways_to_send_many_give_one_receipt_for_all_and_for_each(
    real_kafka: KafkaCluster, face: Face, producer: Any, topic: str
) -> None:
    many = producer.send_many([b"list"] * 3, keys=[b"a", None, b"b"], properties={"p": "q"})
    arrow = producer.send_many(pa.array([b"arrow"] * 3), properties={"p": "q"})
    table = producer.send_table(pa.table({"value": [b"table"] * 3, "key": [b"a", None, b"c"]}), partition=1)
    producer.ready(LIMIT_S)
    made = producer.batch()
    made.extend([b"made"] * 3)
    batch = producer.send_batch(made, partition=0)
    with pytest.raises(BatchStateError, match="the batch was sent"):
        made.append(b"too late")
    places = [place for receipt in (many, arrow, table, batch) for place in face.result(receipt)]
    assert len(set(places)) == 12
    assert face.result(table[1]).partition == 1
    assert all(receipt.done() and receipt.errors(0) == {} for receipt in (many, arrow, table, batch))
    found = {(message.partition, message.offset): message.value for message in read_all(real_kafka.bootstrap, topic)}
    expected = [b"list"] * 3 + [b"arrow"] * 3 + [b"table"] * 3 + [b"made"] * 3
    assert [found[place.partition, place.position] for place in places] == expected


def test_many_with_and_without_keys_keep_their_order_in_each_partition(
    real_kafka: KafkaCluster, producer: Any, topic: str
) -> None:
    producer.ready(LIMIT_S)
    sent = [b"%04d" % number for number in range(400)]
    producer.send_many(sent, keys=[b"%d" % number if number % 3 else None for number in range(400)])
    producer.flush(LIMIT_S)
    found = read_all(real_kafka.bootstrap, topic)
    assert sorted(values_of(found), key=lambda value: value or b"") == sent
    for partition in {message.partition for message in found}:
        values = [message.value for message in found if message.partition == partition]
        assert values == sorted(values, key=lambda value: value or b"")


def test_serializers_are_asked_for_values_and_keys(real_kafka: KafkaCluster, face: Face, topic: str) -> None:
    with face.connect(real_kafka.url) as client:
        producer = client.producer(topic, value_serializer=str.encode, key_serializer=lambda key: b"%d" % key)
        producer.send("one", 1, partition=0)
        producer.send(None, None, partition=0)
        producer.send_many(["two", "three"], keys=[2, 3], partition=0)
    found = read_all(real_kafka.bootstrap, topic)
    assert [(message.value, message.key) for message in found] == [
        (b"one", b"1"),
        (None, None),
        (b"two", b"2"),
        (b"three", b"3"),
    ]


def test_closing_sends_what_is_open(real_kafka: KafkaCluster, face: Face, topic: str) -> None:
    with face.connect(real_kafka.url) as client, client.producer(topic, batch_delay_ms=60_000) as producer:
        receipts = [producer.send(b"v", partition=0) for _ in range(10)]
        assert not any(receipt.done() for receipt in receipts)
    assert all(receipt.done() for receipt in receipts)
    assert values_of(read_all(real_kafka.bootstrap, topic)) == [b"v"] * 10


def test_flushing_sends_what_is_open_and_waits_for_it(face: Face, real_kafka: KafkaCluster, topic: str) -> None:
    with face.connect(real_kafka.url) as client, client.producer(topic, batch_delay_ms=60_000) as producer:
        receipts = [producer.send(b"v") for _ in range(10)]
        producer.flush(LIMIT_S)
        assert all(receipt.done() for receipt in receipts)
        producer.flush()
        assert_all_given_back(producer)


def test_a_callback_is_told_on_the_io_thread_with_its_receipt(face: Face, producer: Any) -> None:
    told: list[tuple[Any, MessageId, str]] = []

    def callback(receipt: Any) -> None:
        told.append((receipt, receipt.result(0), threading.current_thread().name))

    receipt = producer.send(b"v", callback=callback)
    place = face.result(receipt)
    producer.flush(LIMIT_S)
    assert [(found.index, result) for found, result, _ in told] == [(receipt.index, place)]
    assert told[0][2].startswith("penstock-")


def test_the_callback_of_many_is_told_once_when_all_have_their_outcome(face: Face, producer: Any) -> None:
    told: list[bool] = []
    bulk = producer.send_many([b"v"] * 1000, keys=[b"%d" % number for number in range(1000)])
    bulk.add_done_callback(lambda receipt: told.append(receipt.done()))
    face.result(bulk)
    producer.flush(LIMIT_S)
    assert told == [True]
    bulk.add_done_callback(lambda receipt: told.append(receipt.done()))
    assert told == [True, True]


def test_messages_sent_before_the_topic_is_known_go_to_the_partitions_of_their_keys(
    real_kafka: KafkaCluster, face: Face, topic: str
) -> None:
    with face.connect(real_kafka.url) as client:
        early = client.producer(topic)
        keys = [b"%d" % (number % 10) for number in range(200)]
        first = [early.send(b"v", key) for key in keys]
        bulk = early.send_many([b"w"] * len(keys), keys=keys)
        places = [face.result(receipt).partition for receipt in first]
        assert [place.partition for place in face.result(bulk)] == places
        assert set(places) == {0, 1}
        assert [face.result(early.send(b"x", key)).partition for key in keys[:10]] == places[:10]


def test_stats_tell_what_was_done(face: Face, producer: Any, topic: str) -> None:
    face.result(producer.send(b"v", partition=1))
    stats = producer.stats()
    assert (stats.topic, stats.partitions, list(stats.lanes)) == (topic, 2, [1])
    assert (stats.total.messages, stats.total.batches) == (1, 1)
    assert producer.topic == topic
    assert topic in repr(producer)


# Nobody there


def test_an_unreachable_cluster_is_told_with_what_was_tried_for_how_long_and_the_last_answer(face: Face) -> None:
    story = r"tried 127\.0\.0\.1:1 for \d\.\d s; last answer: .*refused"
    client = face.connect(UNREACHABLE, **IMPATIENT)
    producer = client.producer("t")
    receipts = [producer.send(b"v"), producer.send(b"v", partition=1), producer.send_many([b"v"] * 3)[1]]
    with pytest.raises(TimedOutError, match=f"the producer of t was not ready within 0.3 s: .*{story}"):
        producer.ready(timeout=0.3)
    for receipt in receipts:
        with pytest.raises(ExpiredError, match=f"delivery time is over.*{story}") as raised:
            face.result(receipt)
        assert raised.value.persisted is Persisted.NO
    with pytest.raises(TimedOutError, match=f"no answer within 0.3 s.*{story}"):
        client.metadata(timeout=0.3)
    with pytest.raises(TimeoutError):
        face.result(producer.send(b"v"), 0.01)
    producer.flush(LIMIT_S)
    assert_all_given_back(producer)


def test_a_host_that_does_not_answer_is_named(face: Face, silent: str) -> None:
    producer = face.connect(silent).producer("t")
    with pytest.raises(TimedOutError, match=f"not ready within 0.2 s: {silent} has not answered yet"):
        producer.ready(timeout=0.2)


def test_flushing_ends_in_time_though_nobody_is_there(face: Face) -> None:
    producer = face.connect(UNREACHABLE).producer("t")
    receipt = producer.send(b"v")
    with pytest.raises(TimeoutError, match=r"not all messages to t had their outcome within 0\.05 s"):
        producer.flush(0.05)
    assert not receipt.done()


def test_a_missing_topic_shows_in_ready_and_on_the_receipts(real_kafka: KafkaCluster, face: Face) -> None:
    client = face.connect(real_kafka.url)
    producer = client.producer("not/a/topic", unknown_topic_ms=100)
    receipt = producer.send(b"v")
    with pytest.raises(PenstockError) as raised:
        producer.ready(LIMIT_S)
    assert "not/a/topic" in str(raised.value)
    error = face_error(face, receipt)
    assert error.persisted is Persisted.NO
    assert_all_given_back(producer)


def face_error(face: Face, receipt: Any) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        face.result(receipt)
    return raised.value


# Memory


def fill(producer: Any) -> list[Any]:
    """Send until there is no room for another batch."""
    receipts = []
    try:
        while True:
            receipts.append(producer.send(b"v" * 4000, partition=0))
    except NoRoomError as error:
        assert "bytes (total_bytes_max) hold messages" in str(error)  # noqa: PT017
        return receipts


def test_without_room_a_message_is_refused_at_once_if_asked_for(face: Face) -> None:
    producer = face.connect(UNREACHABLE, **SMALL, when_full="fail").producer("t")
    receipts = fill(producer)
    used = budget_of(producer).used
    assert used <= SMALL["total_bytes_max"]
    with pytest.raises(NoRoomError, match="when_full=fail"):
        producer.send_many([b"v" * 4000], partition=0)
    assert budget_of(producer).used == used
    producer.close(timeout=0)
    assert len(receipts) > 10
    assert {type(face_error(face, receipt)) for receipt in receipts} == {ClosedError}
    assert budget_of(producer).used == 0


def test_without_room_a_message_waits_as_long_as_it_may(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = face.connect(UNREACHABLE, **SMALL, full_timeout_ms=50).producer("t")
    fill(producer)
    used = budget_of(producer).used
    in_line: list[int] = []
    wait = MemoryBudget.wait

    def waited(budget: MemoryBudget, size: int, granted: Callable[[], None]) -> Waiter:
        in_line.append(size)
        return wait(budget, size, granted)

    monkeypatch.setattr(MemoryBudget, "wait", waited)
    with pytest.raises(NoRoomError, match="none became free within full_timeout_ms=50"):
        producer.send(b"v" * 4000, partition=0)
    assert len(in_line) == 1
    assert in_line[0] >= 4000
    assert budget_of(producer).used == used


def test_without_room_a_message_leaves_alone_if_asked_for(real_kafka: KafkaCluster, face: Face, topic: str) -> None:
    producer = face.connect(real_kafka.url, **SMALL).producer(topic, when_full="direct", batch_delay_ms=60_000)
    receipts = [producer.send(b"%d" % number + b"v" * 4000, partition=0) for number in range(50)]
    producer.flush(LIMIT_S)
    assert [face.result(receipt).position for receipt in receipts] == list(range(50))
    assert_all_given_back(producer)


def test_messages_that_leave_alone_have_a_limit_too_while_nobody_is_there(face: Face) -> None:
    producer = face.connect(UNREACHABLE, **SMALL, when_full="direct", full_timeout_ms=20).producer("t")
    fill(producer)
    with pytest.raises(NoRoomError, match=r"of twice 65536 bytes \(total_bytes_max\)"):
        producer.send_many([b"v" * 4000], partition=0)
    assert 65_536 < budget_of(producer).used <= 2 * 65_536
    producer.close(timeout=0)
    assert budget_of(producer).used == 0


def test_who_waits_for_room_gets_it_when_there_is_some(real_kafka: KafkaCluster, face: Face, topic: str) -> None:
    producer = face.connect(real_kafka.url, **SMALL).producer(topic)
    receipts = face.together([lambda: producer.send_many([b"v" * 1000] * 200, partition=0)] * 3)
    receipts += face.together([lambda: producer.send(b"v" * 10_000, partition=1)] * 30)
    for receipt in receipts:
        face.result(receipt)
    producer.flush(LIMIT_S)
    assert producer.stats().acked == 630
    assert_all_given_back(producer)


def test_many_for_which_memory_ends_in_the_middle_say_what_became_of_each(face: Face) -> None:
    producer = face.connect(UNREACHABLE, **SMALL, full_timeout_ms=50).producer("t")
    bulk = producer.send_many([b"v" * 4000] * 50, partition=0)
    assert len(bulk) == 50
    assert not bulk[0].done()
    assert isinstance(face_error(face, bulk[-1]), NoRoomError)
    with pytest.raises(NoRoomError):
        producer.send_many([b"v" * 4000] * 50, partition=0)
    producer.close(timeout=0)
    errors = bulk.errors(0)
    taken = [index for index in range(50) if isinstance(errors[index], ClosedError)]
    assert taken == list(range(len(taken)))
    assert 10 < len(taken) < 20
    assert all(isinstance(errors[index], NoRoomError) for index in range(len(taken), 50))
    with pytest.raises(ClosedError):
        face.result(bulk)
    assert budget_of(producer).used == 0


def test_who_brings_memory_along_and_finds_another_batch_open_gives_back_what_is_not_used() -> None:
    with Blocking() as face:
        producer = face.connect(UNREACHABLE, **{**SMALL, "message_bytes_max": 20_000}).producer("t")
        budget = budget_of(producer)
        assert budget.try_reserve(budget.bytes_max)
        steps = producer._core.many([b"v", b"v" * 18_000], partition=0)
        size = next(steps)
        budget.release(budget.bytes_max)
        assert budget.try_reserve(size)
        producer.send(b"v", partition=0)
        with pytest.raises(StopIteration):
            steps.send(size)
        producer.close(timeout=0)
        assert budget.used == 0


def test_a_message_that_cannot_be_framed_in_the_end_leaves_nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BatchBuffer):
        def append(self, *arguments: Any, **options: Any) -> int:
            raise MemoryError

    monkeypatch.setattr(KafkaWire, "buffer", lambda self, bytes_max: Broken(bytes_max))
    with Blocking() as face:
        producer = face.connect(UNREACHABLE).producer("t")
        core, budget = producer._core, budget_of(producer)
        message = check(core.lanes.wire, b"v")
        for prepaid in (0, 16_384):
            assert budget.try_reserve(prepaid)
            with pytest.raises(MemoryError):
                core.entrance.put(message, prepaid)
            assert budget.used == 0


def test_who_is_interrupted_while_waiting_for_room_leaves_nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    budget = MemoryBudget(100)
    assert budget.try_reserve(100)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            budget.reserve(50, None)
    budget.release(100)
    assert budget.used == 0


# Topics


def test_topics_are_made_grown_told_and_deleted(real_kafka: KafkaCluster, face: Face) -> None:
    name = new_topic()
    with face.connect(real_kafka.url) as client:
        with pytest.raises(UnknownTopicError):
            client.partitions(name)
        client.create_topic(name, 2, 1, {"retention.ms": "1000000"})
        with pytest.raises(PenstockError, match="TOPIC_ALREADY_EXISTS"):
            client.create_topic(name)
        wait_until(lambda: name in client.topics())
        assert client.partitions(name) == 2
        client.grow_topic(name, 3)
        wait_until(lambda: client.partitions(name) == 3)
        view = client.metadata([name])
        assert set(view.topics) == {name}
        assert [str(endpoint) for endpoint in view.nodes.values()] == [real_kafka.bootstrap]
        client.delete_topic(name)
        wait_until(lambda: name not in client.topics())


# Sharing a batch


def test_without_delay_a_message_leaves_at_once(face: Face, real_kafka: KafkaCluster, topic: str) -> None:
    with face.connect(real_kafka.url) as client:
        producer = client.producer(topic, batch=BatchPolicy(delay_ms=0))
        places = [face.result(producer.send(b"v", partition=0)) for _ in range(5)]
        assert [place.position for place in places] == list(range(5))
        assert producer.stats().total.batches == 5


def test_a_batch_found_overdue_in_the_moment_the_last_one_before_it_leaves_is_sealed(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    with MockCluster(1) as mock:
        mock.create(topic, 1)
        producer = face.connect(mock.url).producer(topic, batch=BatchPolicy(delay_ms=0))
        producer.ready(LIMIT_S)
        has_backlog = ProducerLane.has_backlog
        senders: list[threading.Thread] = []

        def look(lane: ProducerLane) -> bool:
            if senders:
                return bool(has_backlog.fget(lane))  # type: ignore[attr-defined]
            senders.append(threading.Thread(target=lane.owner.seal_overdue, args=(lane,)))
            senders[0].start()
            senders[0].join(0.1)  # it returns, having seen nothing to do, or waits for the lock
            return True

        monkeypatch.setattr(ProducerLane, "has_backlog", property(look))
        assert face.result(producer.send(b"v", partition=0), 10)
        producer.close()


def test_clients_of_both_faces_share_an_engine(real_kafka: KafkaCluster, face: Face, topic: str) -> None:
    name = new_id()
    with face.connect(real_kafka.url, client_id=name) as one, penstock.connect(real_kafka.url, client_id=name) as other:
        mine, theirs = one.producer(topic), other.producer(topic)
        assert budget_of(mine) is budget_of(theirs)
        face.result(mine.send(b"v"))
        theirs.send(b"v").result(LIMIT_S)
