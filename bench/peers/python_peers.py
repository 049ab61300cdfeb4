"""Kafka clients for Python, each job in a process of its own so that its CPU time is its own."""

from __future__ import annotations

from dataclasses import asdict

from bench.peers import load as loads
from bench.peers.child import run_module
from bench.peers.load import Load
from bench.peers.measure import Figures, broker_pids
from bench.peers.python_jobs import Job
from brokers.kafka import KafkaCluster

LIMIT_S = 900.0


def produce(cluster: KafkaCluster, load: Load, client: str = "confluent-kafka", action: str = "produce") -> Figures:
    """Send the load to a new topic, every message acknowledged; `action` may be `produce_batch` for confluent-kafka."""
    topic = loads.new_topic(cluster, load)
    figures = _run(Job(client, action, cluster.bootstrap, "", topic, "", load, broker_pids(cluster)))
    _check(loads.count(cluster, topic), load, figures)
    return figures


def consume(cluster: KafkaCluster, load: Load, client: str = "confluent-kafka", topic: str | None = None) -> Figures:
    """Read the load from a topic that holds it, or from a new one."""
    topic = topic or loads.fill(cluster, load)
    return _run(Job(client, "consume", cluster.bootstrap, "", topic, "", load, broker_pids(cluster)))


def mirror(source: KafkaCluster, target: KafkaCluster, load: Load, topic: str | None = None) -> Figures:
    """Copy the load message by message from one Kafka to another with confluent-kafka."""
    topic = topic or loads.fill(source, load)
    target_topic = loads.new_topic(target, load)
    pids = {**broker_pids(source, "source"), **broker_pids(target, "target")}
    job = Job("confluent-kafka", "mirror", source.bootstrap, target.bootstrap, topic, target_topic, load, pids)
    figures = _run(job)
    _check(loads.count(target, target_topic), load, figures)
    return figures


def _run(job: Job) -> Figures:
    figures = Figures(**run_module("bench.peers.python_jobs", asdict(job), LIMIT_S))
    _check(figures.messages, job.load, figures)
    return figures


def _check(found: int, load: Load, figures: Figures) -> None:
    if found != load.messages:
        raise RuntimeError(f"{figures.peer} {figures.job}: {found} messages instead of {load.messages}")
