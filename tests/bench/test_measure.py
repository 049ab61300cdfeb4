"""Figures are what the processes really used, and peers are set up fairly."""

from __future__ import annotations

import itertools
import os
import threading
import time

import cramjam
import pytest

from bench.peers import java_perf, mirror_maker
from bench.peers.load import values
from bench.peers.measure import Figures, Meter, Recorder, cpu_seconds
from bench.peers.python_jobs import CONSUMER
from brokers import process
from brokers.kafka import KafkaCluster
from brokers.process import Usage


def test_figures_tell_rate_and_cost() -> None:
    figures = Figures("peer", "produce", 500_000, 2.0, {"client": 1.5, "broker": 0.25})
    assert figures.rate == 250_000
    assert figures.cpu_s_per_million == {"client": 3.0, "broker": 0.5}
    assert str(figures) == "peer produce: 500000 messages, 250,000 msg/s; CPU s per million: client 3.00, broker 0.50"


def test_a_meter_counts_from_when_it_was_made() -> None:
    meter = Meter({"me": os.getpid()})
    used = time.process_time() + 0.1
    while time.process_time() < used:
        pass
    figures = meter.figures("peer", "job", 1)
    assert 0.08 <= figures.cpu_s["me"] <= 5
    assert figures.seconds >= 0.08


def test_the_measuring_process_counts_all_its_threads_finer_than_ticks() -> None:
    before = cpu_seconds(os.getpid())
    worker = threading.Thread(target=lambda: sum(range(200_000)))
    worker.start()
    worker.join()
    used = cpu_seconds(os.getpid()) - before
    assert used > 0
    assert used != pytest.approx(round(used * process.TICKS_PER_S) / process.TICKS_PER_S, abs=1e-9)


def test_figures_carry_what_else_a_job_measures() -> None:
    assert Meter({}).figures("peer", "job", 1).more == {}
    assert Meter({}).figures("peer", "job", 1, {"p50_ms": 2.0}).more == {"p50_ms": 2.0}


def test_a_recorder_tells_the_last_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu = itertools.count(), iter([0.0, 10.0, 11.0, 12.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("bench.peers.measure.usage", lambda _: Usage(next(cpu), 0))
    recorder = Recorder({"java": 1})
    for _ in range(4):
        recorder.sample()
    assert recorder.last(2) == {"java": 2.0}
    assert recorder.last(99) == {"java": 12.0}


@pytest.mark.parametrize("size", [100, 1000])
def test_values_are_of_the_asked_size_and_halve_when_compressed(size: int) -> None:
    made = values(size)
    assert {len(value) for value in made} == {size}
    assert len(set(made)) == len(made)
    packed = len(bytes(cramjam.lz4.compress(b"".join(made))))
    assert 1.5 < size * len(made) / packed < 3


def test_the_java_tools_summaries_are_understood() -> None:
    whole = "5000000 records sent, 700000.0 records/sec (67 MB/sec)\n"
    figures = java_perf._steady("job", f"{whole}3000000 steady state records sent, 600000.0 records/sec (57 MB/sec)\n")
    assert figures is not None
    assert (figures.messages, figures.seconds) == (3_000_000, 5.0)
    assert java_perf._steady("job", whole) is None
    line = "2025-01-01 10:00:00:000, 2025-01-01 10:00:04:000, 28.6, 7.1, 300000, 75000.0, 3000, 1500, 19.0, 200000.0\n"
    consumed = java_perf._consumed("job", line)
    assert consumed is not None
    assert (consumed.messages, consumed.seconds) == (300_000, 1.5)


def test_mirror_maker_is_tuned_under_the_names_of_its_clusters() -> None:
    plain = mirror_maker.settings("a1", KafkaCluster(), KafkaCluster(), "topic", tuned=False)
    tuned = mirror_maker.settings("a1", KafkaCluster(), KafkaCluster(), "topic", tuned=True)
    assert plain["clusters"] == "a1,b1"
    assert plain["a1->b1.topics"] == "topic"
    assert {tuned[name] for name in ("a1.consumer.max.poll.records", "tasks.max")} == {"20000", "2"}
    assert tuned["b1.producer.compression.type"] == "lz4"
    assert len(tuned) == len(plain) + len(mirror_maker.TUNED)


def test_librdkafka_consumers_do_not_wait_between_fetches() -> None:
    assert CONSUMER["fetch.queue.backoff.ms"] == 5
