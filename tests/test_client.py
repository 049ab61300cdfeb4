"""Who shares what with whom: clients with the same id, of the same cluster and of others."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from brokers.kafka import KafkaCluster
from penstock import BatchIo, BatchPolicy
from penstock.errors import ConfigError
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.system import KafkaWire
from tests.faces import LIMIT_S, UNREACHABLE, Face, assert_all_given_back, face, new_id, wait_until
from tests.produce.real.librdkafka_mock import MockCluster
from tests.produce.real.reading import new_topic, read_all

__all__ = ["face"]

ELSEWHERE = "kafka://127.0.0.1:2"


def engine_of(client: Any) -> Any:
    return client._core.engine


def test_clients_with_the_same_id_share_an_engine_and_others_do_not(face: Face) -> None:
    name = new_id()
    one, two = face.connect(UNREACHABLE, client_id=name), face.connect(UNREACHABLE, client_id=name)
    other, elsewhere = face.connect(UNREACHABLE), face.connect(ELSEWHERE, client_id=name)
    assert engine_of(one) is engine_of(two) is engine_of(elsewhere)
    assert engine_of(other) is not engine_of(one)
    assert one._core.cluster is two._core.cluster
    assert elsewhere._core.cluster is not one._core.cluster
    assert one.metrics is two.metrics


def test_other_options_under_the_same_id_are_refused_and_change_nothing(face: Face) -> None:
    name = new_id()
    client = face.connect(UNREACHABLE, client_id=name, total_bytes_max=50_000_000)
    with pytest.raises(ConfigError, match=f"{name}.*in use with other options.*total_bytes_max=50000000"):
        face.connect(UNREACHABLE, client_id=name)
    assert face.connect(UNREACHABLE, client_id=name, total_bytes_max=50_000_000, acks="all").url == client.url


def test_after_the_last_close_everything_starts_afresh(face: Face) -> None:
    name = new_id()
    first = face.connect(UNREACHABLE, client_id=name, total_bytes_max=50_000_000)
    first.close()
    again = face.connect(UNREACHABLE, client_id=name)
    assert engine_of(again) is not engine_of(first)
    again.producer("t").send(b"v")


def test_closing_one_client_harms_no_other(real_kafka: KafkaCluster, face: Face) -> None:
    name, topic = new_id(), new_topic()
    kept = face.connect(real_kafka.url, client_id=name)
    kept.create_topic(topic, 1)
    producer = kept.producer(topic)
    for number in range(3):
        other = face.connect(real_kafka.url, client_id=name)
        elsewhere = face.connect(UNREACHABLE, client_id=name)
        face.result(other.producer(topic).send(b"other"))
        elsewhere.producer(topic).send(b"nowhere")
        other.close()
        elsewhere.close(timeout=0)
        assert face.result(producer.send(b"kept")).position == 2 * number + 1
    assert kept.topics()
    assert kept._core.cluster in engine_of(kept).loop.clusters
    assert len(engine_of(kept)._clusters) == 1


def test_clusters_never_mix_under_one_id(real_kafka: KafkaCluster, face: Face) -> None:
    name, topic = new_id(), new_topic()
    with MockCluster(1) as mock:
        mock.create(topic, 1)
        here, there = face.connect(real_kafka.url, client_id=name), face.connect(mock.url, client_id=name)
        here.create_topic(topic, 1)
        one, two = here.producer(topic), there.producer(topic)
        receipts = [(one.send(b"here"), two.send(b"there")) for _ in range(50)]
        for number, pair in enumerate(receipts):
            assert [face.result(receipt).position for receipt in pair] == [number, number]
        here.close()
        assert face.result(two.send(b"there")).position == 50
        assert {message.value for message in read_all(real_kafka.bootstrap, topic)} == {b"here"}
        assert {message.value for message in read_all(mock.bootstrap, topic)} == {b"there"}
        there.close()


def test_clients_come_and_go_in_many_threads() -> None:
    name = new_id()
    start = threading.Barrier(8)

    def come_and_go() -> None:
        start.wait()
        for _ in range(20):
            with penstock.connect(UNREACHABLE, client_id=name) as client:
                client.producer("t").send(b"v")
                client.close(timeout=0)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(come_and_go) for _ in range(8)]:
            future.result(LIMIT_S)
    assert not [thread for thread in threading.enumerate() if thread.name == f"penstock-{name}" and thread.is_alive()]


def test_metrics_tell_what_waits_in_gates_and_what_left_them(face: Face) -> None:
    topic = new_topic()
    with MockCluster(1) as mock:
        mock.create(topic, 1)
        client = face.connect(mock.url)
        gate = BatchIo(delay_ms=60_000)
        producer = client.producer(topic, io=gate, batch=BatchPolicy(count_max=1), compression="none")

        def told(name: str) -> Any:
            return client.metrics.snapshot().value(name, cluster=client.url, namespace="", topic=topic)

        producer.send(b"v" * 1000)
        producer.flush(LIMIT_S)
        assert (told("penstock_io_writes_total"), told("penstock_io_frames_total")) == (1, 1)
        receipts = [producer.send(b"v" * 1000) for _ in range(3)]
        wait_until(lambda: told("penstock_io_waiting_bytes") > 3000)
        assert not any(receipt.done() for receipt in receipts)
        producer.flush(LIMIT_S)
        assert told("penstock_io_waiting_bytes") == 0
        assert (told("penstock_io_writes_total"), told("penstock_io_frames_total")) == (2, 4)
        written = told("penstock_io_write_bytes")
        assert written.count == 2
        assert 4000 < written.sum < 5000
        client.close()


def test_metrics_of_a_topic_are_shown_until_its_last_producer_is_closed(face: Face) -> None:
    topic, name = new_topic(), new_id()
    with MockCluster(1) as mock:
        mock.create(topic, 1)
        one, other = face.connect(mock.url, client_id=name), face.connect(mock.url, client_id=name)
        first, second = one.producer(topic), other.producer(topic)
        for producer in (first, second):
            face.result(producer.send(b"v"))

        def frames() -> Any:
            labels = {"cluster": one.url, "namespace": "", "topic": topic}
            return one.metrics.snapshot().value("penstock_io_frames_total", **labels)

        assert frames() == 2
        first.close()
        assert frames() == 2
        second.close()
        assert frames() is None
        face.result(one.producer(topic).send(b"v"))
        assert frames() == 1
        one.close()
        other.close()


def test_receipts_that_are_kept_do_not_keep_buffers(
    real_kafka: KafkaCluster, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(BatchBuffer):
        __slots__ = ("__weakref__",)

    buffers: weakref.WeakSet[BatchBuffer] = weakref.WeakSet()

    def buffer(self: KafkaWire, bytes_max: int) -> BatchBuffer:
        made = Watched(bytes_max)
        buffers.add(made)
        return made

    monkeypatch.setattr(KafkaWire, "buffer", buffer)
    with face.connect(real_kafka.url) as client:
        topic = new_topic()
        client.create_topic(topic, 1)
        producer = client.producer(topic)
        kept = [producer.send(b"v" * 1000) for _ in range(1000)]
        kept += [producer.send_many([b"v" * 1000] * 1000)]
        assert len(buffers) > 0
        for receipt in kept:
            face.result(receipt)
        producer.flush(LIMIT_S)
        assert_all_given_back(producer)
        face.result(producer.send(b"the next request lets go of the last one's bytes"))
        producer.flush(LIMIT_S)
        gc.collect()
        assert len(buffers) <= 1
    gc.collect()
    assert len(buffers) == 0
    assert len(kept) == 1001
    assert kept[5].result(0).position == 5
