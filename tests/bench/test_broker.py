"""The broker's benchmarks: requests that are what they say, bars that are met and missed, and a small run of each."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from bench import __main__ as command
from bench.broker import consume, durable, flat, produce, raw_job, requests, start
from bench.broker.pair import KAFKA, OURS, broker_cost, case_of, megabytes, rows, shaped
from bench.broker.raw_job import RawJob, batch_of, frame
from bench.broker.requests import Shape, send
from bench.peers.load import Load
from bench.peers.measure import Figures
from bench.produce.contest import Found
from bench.results import Row
from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker
from penstock.wire.kafka.header import verify


def figures(rate: float, broker_cpu_s: float, **more: float) -> Figures:
    """Of a run of a second."""
    return Figures("peer", "job", int(rate), 1.0, {"client": 1.0, "broker": broker_cpu_s}, more)


def verdicts(told: list[Row]) -> list[str]:
    return [row.verdict() for row in told if row.bar]


# What is told


def test_rates_are_in_megabytes_and_costs_in_seconds_for_a_gigabyte() -> None:
    found = figures(500_000, 0.1)
    assert megabytes(100).show(megabytes(100).of(found)) == "50.0 MB/s"
    assert megabytes(1000).show(megabytes(1000).of(found)) == "500 MB/s"
    assert broker_cost(1000).show(broker_cost(1000).of(found)) == "0.20 s/GB"


def test_a_cost_below_the_clocks_resolution_is_taken_for_half_a_tick() -> None:
    assert broker_cost(1000).of(figures(1_000_000, 0.0)) == 0.005


@pytest.mark.parametrize(
    ("ours", "cpu_s", "expected"),
    [(1000, 0.5, ["met", "met"]), (999, 0.51, ["MISSED", "MISSED"]), (5000, 0.1, ["met", "met"])],
)
def test_the_bars_of_rate_and_cpu(ours: float, cpu_s: float, expected: list[str]) -> None:
    found = Found({OURS: [figures(ours, cpu_s * ours / 1000)], KAFKA: [figures(1000, 1.0)]})
    assert verdicts(rows("case", found, 100)) == expected


def test_the_bar_of_small_requests() -> None:
    found = Found({OURS: [figures(2000, 0.1)], KAFKA: [figures(1000, 1.0)]})
    assert verdicts(requests.rows("case", found)) == ["met"]
    assert requests.rows("case", found)[0].cells()[:4] == ("case, requests", "2.0 k/s", KAFKA, "1.0 k/s")


def test_what_is_flat_stands_beside_itself() -> None:
    cost = {flat.ONE: 1.0, flat.PARTITIONS: 1.25, flat.IDLE: 1.3}
    found = Found(
        {
            f"{name}, {case}": [figures(1000, seconds, bytes=1e9)]
            for name in (OURS, KAFKA)
            for case, seconds in cost.items()
        }
    )
    told = flat.rows(found)
    assert verdicts(told) == ["met", "MISSED"]
    assert len(told) == 8


def test_starts_and_memory_stand_beside_what_is_allowed() -> None:
    row = start.within("start", [0.2, 0.3, 0.9], 0.5, "s")
    assert row.cells() == ("start", "0.3 s", "allowed", "0.5 s", "0.6x", "0.4 to 1.8", "≤ 1x", "met")
    assert start.within("memory", [61.0], 60.0, "MB").verdict() == "MISSED"


def test_cases_are_named() -> None:
    assert case_of(Load(1, 100, 1, "lz4"), 1_000_000) == "100 B, lz4, 1 MB batches, 1 partition"
    assert case_of(Load(1, 1000, 16, "none"), 16_384) == "1 KB, none, 16 KB batches, 16 partitions"


def test_the_grid_is_whole() -> None:
    assert len(set(produce.GRID)) == len(produce.GRID) == 16


# Requests by hand


@pytest.mark.parametrize("size", [1024, 16_384, 1_000_000])
def test_a_batch_by_hand_is_whole_and_no_larger_than_asked_for(size: int) -> None:
    batch, count = batch_of(size, 100)
    assert verify(batch).count == count
    assert size - 200 < len(batch) <= size


def test_a_request_by_hand_holds_its_batch() -> None:
    made = frame("topic", 3, -1, b"batch")
    assert struct.unpack_from(">ihh", made) == (len(made) - 4, raw_job.PRODUCE, raw_job.VERSION)
    assert made.endswith(struct.pack(">iii", 1, 3, 5) + b"batch")


def test_every_partition_has_a_request_before_the_clock_starts() -> None:
    few = RawJob("", 0, "t", 1000, 1, 1, 5, 1, 1, -1, {})
    assert raw_job.warmup_of(few) == 1000


# Small runs


@pytest.fixture(scope="module")
def served() -> Iterator[KafkaCluster]:
    with PenstockBroker(["--fsync", "system", "--http-port", "none"]) as broker:
        yield shaped(broker)


def test_requests_by_hand_are_all_stored(served: KafkaCluster) -> None:
    found = send(served, 1.0, Shape(4096, 1000, connections=3, partitions=5))
    assert found.messages == 1000
    assert found.more["per_request"] > 10
    assert found.more["bytes"] > 0


@pytest.mark.parametrize("client", [produce.confluent, produce.bulk])
def test_a_load_is_stored_whole(served: KafkaCluster, client: Any) -> None:
    found = client(served, Load(5_000, 100, 2, "lz4"), produce.SMALL_BATCH)
    assert found.messages == 5_000
    assert found.cpu_s["broker"] >= 0


def test_a_load_is_read_whole(served: KafkaCluster) -> None:
    load = Load(5_000, 100, 2, "none")
    assert consume.read(served, load, consume.fill(served, load, produce.SMALL_BATCH)).messages >= 5_000


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("benchmark", [produce, consume, requests, durable, start, flat])
def test_a_whole_benchmark_runs(benchmark: Any, kafka_parts: None) -> None:
    section = benchmark.run(rounds=1, share=0.001, warmup=())
    assert section.name in command.BENCHMARKS
    assert any(row.bar for row in section.rows)
    assert all(row.ratio for row in section.rows if row.bar)
