"""Kafka clients for Python, each job in a process of its own so that its CPU time is its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from confluent_kafka.admin import AdminClient

from bench.peers import load as loads
from bench.peers.child import run_module
from bench.peers.load import Load
from bench.peers.measure import Figures, broker_pids
from bench.peers.python_jobs import WARMUP, Job, Terms
from brokers.kafka import KafkaCluster

LIMIT_S = 900.0
JOBS = "bench.peers.python_jobs"


def produce(
    cluster: KafkaCluster,
    load: Load,
    client: str = "confluent-kafka",
    action: str = "produce",
    terms: Terms | None = None,
    jobs: str = JOBS,
    environment: Mapping[str, str] | None = None,
) -> Figures:
    """Send the load to a new topic, every message acknowledged; `action` may be `produce_batch` for confluent-kafka.

    The topic must have grown by as many messages as were sent, those of the warm-up included; then it is deleted. The
    module `jobs` does the job.
    """
    topic = loads.new_topic(cluster, load)
    job = Job(client, action, cluster.bootstrap, "", topic, "", load, broker_pids(cluster), terms or Terms())
    figures = _run(job, jobs, environment)
    _check(loads.count(cluster, topic) - WARMUP, load, figures)
    delete_topic(cluster, topic)
    return figures


def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    """Make room: the disk's work for an old topic would be charged to the next contestant."""
    admin = AdminClient({**loads.QUIET, "bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)


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


def _run(job: Job, jobs: str = JOBS, environment: Mapping[str, str] | None = None) -> Figures:
    figures = Figures(**run_module(jobs, asdict(job), LIMIT_S, environment=environment))
    _check(figures.messages, job.load, figures)
    return figures


def _check(found: int, load: Load, figures: Figures) -> None:
    if found != load.messages:
        raise RuntimeError(f"{figures.peer} {figures.job}: {found} messages instead of {load.messages}")
