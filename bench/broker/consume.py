"""Consuming from both brokers what was stored in batches of every size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from bench.broker.jobs import READER
from bench.broker.pair import WARMUP, both, case_of, rows
from bench.broker.produce import GRID, JOBS, LINGER_MS, MESSAGES
from bench.peers import java_perf, python_peers
from bench.peers import load as loads
from bench.peers.child import run_module
from bench.peers.load import Load
from bench.peers.measure import Figures, broker_pids
from bench.peers.python_jobs import Job, Terms
from bench.produce.contest import contest
from bench.produce.send import scaled
from bench.results import Row, Section
from brokers.kafka import KafkaCluster

NAME = "broker.consume"
ROUNDS = 3
COMPARED = """\
Reading everything from `penstock serve` and from a real Kafka of one node, one after the other. Each broker's topic was
filled by confluent-kafka with batches of this size, and what is read was just written, so that neither disk takes part.
confluent-kafka has all partitions assigned and fetches ahead; its clock starts with the first message. Java is Kafka's
performance tool, its joining of a group left out. Rates are megabytes of values per second; a broker's CPU is all its
threads' inside the clock, for a gigabyte of values.
"""
PACKAGES = ("confluent-kafka",)
LIMIT_S = 900.0


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """The same grid as producing has."""
    told: list[Row] = []
    with both(warmup) as brokers:
        for size, codec, batch_bytes, partitions in GRID:
            load = Load(scaled(MESSAGES[size], share), size, partitions, codec)
            topics = {name: fill(broker, load, batch_bytes) for name, broker in brokers.items()}
            readers = {name: partial(read, broker, load, topics[name]) for name, broker in brokers.items()}
            tools = {name: partial(java_perf.consume, broker, load, topics[name]) for name, broker in brokers.items()}
            case = case_of(load, batch_bytes)
            told += rows(f"{case}: confluent-kafka", contest(readers, rounds), size)
            told += rows(f"{case}: Java", contest(tools, rounds), size)
            for name, broker in brokers.items():
                python_peers.delete_topic(broker, topics[name])
    return Section(NAME, COMPARED, told, rounds, PACKAGES)


def fill(broker: KafkaCluster, load: Load, batch_bytes: int) -> str:
    """A topic that holds at least the load, in batches of this size."""
    topic = loads.new_topic(broker, load)
    terms = Terms(linger_ms=LINGER_MS[batch_bytes], settings={"batch_bytes": batch_bytes})
    _run(Job("confluent-kafka", "batches", broker.bootstrap, "", topic, "", load, broker_pids(broker), terms))
    return topic


def read(broker: KafkaCluster, load: Load, topic: str) -> Figures:
    """confluent-kafka reads as many messages as the load has."""
    figures = _run(Job("confluent-kafka", "read", broker.bootstrap, "", topic, "", load, broker_pids(broker)))
    if figures.messages < load.messages:
        raise RuntimeError(f"{figures.messages} messages of {load.messages} were read with {READER}")
    return figures


def _run(job: Job) -> Figures:
    return Figures(**run_module(JOBS, asdict(job), LIMIT_S))
