"""The end of producers and clients, with both faces and from callbacks: who hears of it, and what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from brokers.kafka import KafkaCluster
from penstock.clock import SystemClock
from penstock.errors import ClosedError, ClosedInFlightError, PenstockError, Persisted
from penstock.net.loop import Loop
from penstock.net.poller import Poller
from tests.faces import LIMIT_S, UNREACHABLE, Face, assert_all_given_back, budget_of, face, new_id, wait_until
from tests.produce.real.reading import new_topic, read_all

__all__ = ["face"]


def io_threads(client_id: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"penstock-{client_id}"]


def outcome(receipt: Any) -> PenstockError:
    error = receipt.exception(0)
    assert isinstance(error, PenstockError)
    return error


@pytest.fixture
def paused(real_kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    """A broker that can be paused by `pause(1)`; it goes on after the test."""
    yield real_kafka
    real_kafka.resume(1)


def test_what_was_never_sent_fails_as_not_stored(face: Face) -> None:
    producer = face.connect(UNREACHABLE).producer("t")
    receipts = [producer.send(b"v"), producer.send(b"v", partition=3), producer.send_many([b"v"] * 2)[0]]
    before = time.monotonic()
    producer.close(timeout=0.1)
    assert time.monotonic() - before < LIMIT_S
    for receipt in receipts:
        error = outcome(receipt)
        assert type(error) is ClosedError
        assert error.persisted is Persisted.NO
    assert budget_of(producer).used == 0


def test_what_is_in_flight_fails_as_perhaps_stored_and_what_waits_behind_it_as_not(
    paused: KafkaCluster, face: Face
) -> None:
    client = face.connect(paused.url, in_flight_max=1)
    topic = new_topic()
    client.create_topic(topic, 1)
    producer = client.producer(topic, batch_count_max=1)
    producer.ready(LIMIT_S)
    face.result(producer.send(b"v"))
    paused.pause(1)
    receipts = [producer.send(b"%d" % number) for number in range(3)]
    lane = producer._core.lanes.intake.lanes[0]
    wait_until(lambda: lane.delivery.in_flight == 1)
    producer.close(timeout=0.1)
    errors = [outcome(receipt) for receipt in receipts]
    assert [type(error) for error in errors] == [ClosedInFlightError, ClosedError, ClosedError]
    assert [error.persisted for error in errors] == [Persisted.MAYBE, Persisted.NO, Persisted.NO]
    assert "closed" in str(errors[0])
    assert budget_of(producer).used == 0


def test_callbacks_of_what_fails_are_told_without_a_lock_that_senders_want(face: Face) -> None:
    producer = face.connect(UNREACHABLE, request_timeout_ms=50, delivery_timeout_ms=100).producer("t")
    core = producer._core
    waited: list[bool] = []

    def callback(_: Any) -> None:
        asked = threading.Thread(target=core.lanes.stats)  # as somebody would who sends and holds what a callback wants
        asked.start()
        asked.join(5)
        waited.append(asked.is_alive())

    expired = producer.send(b"v", callback=callback)
    wait_until(expired.done)
    producer.send(b"v", callback=callback)
    producer.send(b"v", partition=3, callback=callback)
    producer.close(timeout=0)
    assert waited == [False, False, False]


def test_closing_again_waits_too_and_may_shorten_the_time(face: Face) -> None:
    producer = face.connect(UNREACHABLE).producer("t")
    receipt = producer.send(b"v")
    assert face.together([producer.close, lambda: producer.close(timeout=0.05)]) == [None, None]
    assert isinstance(outcome(receipt), ClosedError)


def test_whoever_waits_for_a_producer_that_is_closed_is_told(face: Face) -> None:
    producer = face.connect(UNREACHABLE).producer("t")
    told = face.together([producer.ready, producer.close])
    assert isinstance(told[0], ClosedError)
    assert told[1] is None


def test_a_producer_closed_in_a_callback_ends_when_all_is_settled(real_kafka: KafkaCluster, face: Face) -> None:
    with face.connect(real_kafka.url) as client:
        topic = new_topic()
        client.create_topic(topic, 1)
        producer = client.producer(topic, batch_delay_ms=1)
        core = producer._core
        later: list[Any] = []

        def close(_: Any) -> None:
            later.extend(core.send(b"late", partition=0) for _ in range(3))
            penstock.Producer(core).close()

        face.result(producer.send(b"first", partition=0, callback=close))
        wait_until(lambda: core.gone.verdict is not None)
        assert [receipt.result(0).position for receipt in later] == [1, 2, 3]
        assert core.lanes not in core.sender._outlets
        assert core not in client._core._producers
        with pytest.raises(ClosedError):
            producer.send(b"v")
        assert_all_given_back(producer)
    assert len(read_all(real_kafka.bootstrap, topic)) == 4


def test_a_client_closed_in_a_callback_ends_when_all_is_settled(real_kafka: KafkaCluster) -> None:
    name = new_id()
    client = penstock.connect(real_kafka.url, client_id=name)
    topic = new_topic()
    client.create_topic(topic, 1)
    producer, other = client.producer(topic), client.producer(topic, batch_delay_ms=60_000)
    waiting = other.send(b"waiting", partition=0)
    producer.send(b"first", partition=0, callback=lambda _: client.close()).result(LIMIT_S)
    assert waiting.result(LIMIT_S).topic == topic
    wait_until(lambda: not io_threads(name))
    with pytest.raises(ClosedError):
        client.topics()


def test_waiting_in_a_callback_is_refused_rather_than_waited_for_ever(real_kafka: KafkaCluster) -> None:
    told: dict[str, Exception] = {}
    with penstock.connect(real_kafka.url, client_id=new_id()) as client:
        topic = new_topic()
        client.create_topic(topic, 1)
        producer = client.producer(topic)
        other = producer.send(b"other", partition=0)

        def callback(_: Any) -> None:
            pending = producer.send(b"pending", partition=0)
            calls: dict[str, Callable[[], Any]] = {
                "result": pending.result,
                "flush": producer.flush,
                "ready": producer.ready,
                "metadata": client.metadata,
                "create_topic": lambda: client.create_topic("never"),
            }
            for name, call in calls.items():
                try:
                    call()
                except Exception as error:  # noqa: BLE001
                    told[name] = error

        other.add_done_callback(callback)
        other.result(LIMIT_S)
        producer.flush(LIMIT_S)
        assert set(told) == {"result", "flush", "ready", "metadata", "create_topic"}
        assert all("would wait for ever" in str(error) for error in told.values())
        assert "never" not in client.topics()


def test_a_client_waits_for_all_its_producers_no_longer_than_it_is_told(face: Face) -> None:
    client = face.connect(UNREACHABLE)
    producers = [client.producer(f"t{number}") for number in range(20)]
    receipts = [producer.send(b"v") for producer in producers]
    before = time.monotonic()
    client.close(timeout=0.2)
    assert 0.2 <= time.monotonic() - before < 2.0
    assert {type(outcome(receipt)) for receipt in receipts} == {ClosedError}


def test_questions_to_a_client_that_is_closed_end_with_it(face: Face) -> None:
    name = new_id()
    other = face.connect("kafka://127.0.0.1:2", client_id=name)
    client = face.connect(UNREACHABLE, client_id=name)
    question = client._core.look_up(None, LIMIT_S)
    wait_until(lambda: client._core.engine.questions._open)
    client.close()
    with pytest.raises(ClosedError, match="was closed before the answer"):
        question.result(5)
    other.close()


def test_the_last_client_takes_the_io_thread_along(face: Face) -> None:
    name = new_id()
    one, two = face.connect(UNREACHABLE, client_id=name), face.connect("kafka://127.0.0.1:2", client_id=name)
    one.close()
    one.close()
    assert len(io_threads(name)) == 1
    two.close()
    wait_until(lambda: not io_threads(name))


def test_an_io_thread_that_cannot_go_on_tells_everybody(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    name = new_id()
    client = face.connect(UNREACHABLE, client_id=name)
    producer = client.producer("t")
    receipt = producer.send(b"v")

    def break_down() -> None:
        raise ZeroDivisionError("broken")

    client._core.engine.loop.call(break_down)
    with pytest.raises(PenstockError, match="cannot go on: ZeroDivisionError"):
        face.result(receipt)
    with pytest.raises(ClosedError, match="has ended"):
        producer.flush(1)
    with pytest.raises(ClosedError, match="has ended"):
        client.metadata()
    with pytest.raises(ClosedError, match="has ended"):
        client.producer("u")
    again = face.connect(UNREACHABLE, client_id=name)
    assert again._core.engine is not client._core.engine
    again.producer("t")
    producer.close()
    client.close()
    again.close()
    assert "cannot go on" in caplog.text


def test_what_is_asked_for_while_the_io_thread_ends_is_done_or_refused() -> None:
    class Ending(Poller):
        """Lets its loop end in the moment it is woken."""

        def wake(self) -> None:
            super().wake()
            loop._end(ClosedError("just now"))

    done: list[str] = []
    loop = Loop("ending", SystemClock(), Ending())
    loop.call(lambda: done.append("in its last turn"))
    assert done == ["in its last turn"]

    class Ended(Ending):
        def wake(self) -> None:
            loop._ended = ClosedError("just before")

    loop = Loop("ended", SystemClock(), Ended())
    with pytest.raises(ClosedError, match="just before"):
        loop.call(lambda: done.append("never"))
    loop._run_calls()
    assert done == ["in its last turn"]
