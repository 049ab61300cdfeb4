"""Kafka's own performance tools on Java: the producer counted after its warm-up, the consumer once it fetches.

A Java client compiles itself while it runs, so the first seconds tell of the compiler, not of Kafka. Both tools print
for how long they counted; the CPU seconds given are those of exactly that time, taken from samples along the run.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.peers import load as loads
from bench.peers.child import PeerError
from bench.peers.load import Load
from bench.peers.measure import Figures, Recorder, broker_pids
from bench.peers.python_peers import delete_topic
from brokers import jars, jvm
from brokers.kafka import KafkaCluster
from brokers.process import Guarded
from brokers.runtime import find_java

LIMIT_S = 900.0
SAMPLE_EVERY_S = 0.02
PRODUCER_TOOL = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_TOOL = "org.apache.kafka.tools.ConsumerPerformance"
BATCH_BYTES_DEFAULT = 16384
# "3000000 steady state records sent, 946074.7 records/sec (90.22 MB/sec), ..."
STEADY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec", re.MULTILINE)
# start, end, MB, MB/s, messages, messages/s, rebalance ms, fetch ms, fetch MB/s, fetch messages/s
CONSUMED = re.compile(r"^[^,\n]+, [^,\n]+, [\d.]+, [\d.]+, (\d+), [\d.]+, \d+, (\d+), [\d.]+, [\d.]+$", re.MULTILINE)


def produce(
    cluster: KafkaCluster, load: Load, warmup_messages: int | None = None, batch_bytes: int = BATCH_BYTES_DEFAULT
) -> Figures:
    """Send the load after as many messages of warm-up (as many again when not given), acks=all, linger 5 ms."""
    warmup = load.messages if warmup_messages is None else warmup_messages
    topic = loads.new_topic(cluster, load)
    with tempfile.TemporaryDirectory(prefix="penstock-perf-") as name:
        payload = Path(name) / "payload"
        payload.write_bytes(b"\n".join(loads.values(load.value_bytes)))
        settings = [
            *(f"bootstrap.servers={cluster.bootstrap}", "acks=all", "linger.ms=5"),
            *(f"compression.type={load.compression}", f"batch.size={batch_bytes}", "buffer.memory=67108864"),
        ]
        arguments = [
            *("--topic", topic, "--num-records", str(warmup + load.messages), "--throughput", "-1"),
            *("--payload-file", str(payload), "--command-property", *settings),
            *(("--warmup-records", str(warmup)) if warmup else ()),
        ]
        job = f"produce {load.value_bytes} B {load.compression} batch {batch_bytes >> 10} KB"
        figures = _run(cluster, Path(name), [PRODUCER_TOOL, *arguments], lambda output: _steady(job, output))
    if (stored := loads.count(cluster, topic)) != warmup + load.messages:
        raise PeerError(f"ProducerPerformance stored {stored} messages instead of {warmup + load.messages}")
    delete_topic(cluster, topic)
    return figures


def consume(cluster: KafkaCluster, load: Load, topic: str | None = None) -> Figures:
    """Read the load; joining the group is not counted. Short runs tell mostly of Java's warm-up."""
    topic = topic or loads.fill(cluster, load)
    arguments = [
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--num-records", str(load.messages)),
        *("--timeout", "60000", "--hide-header"),
    ]
    job = f"consume {load.value_bytes} B {load.compression}"
    with tempfile.TemporaryDirectory(prefix="penstock-perf-") as name:
        return _run(cluster, Path(name), [CONSUMER_TOOL, *arguments], lambda output: _consumed(job, output))


def _steady(job: str, output: str) -> Figures | None:
    found = STEADY.search(output)
    if found is None:
        return None
    messages = int(found[1])
    return Figures("Java producer", job, messages, messages / float(found[2]))


def _consumed(job: str, output: str) -> Figures | None:
    found = CONSUMED.search(output)
    return Figures("Java consumer", job, int(found[1]), int(found[2]) / 1000) if found else None


def _run(cluster: KafkaCluster, folder: Path, tool: list[str], read: Callable[[str], Figures | None]) -> Figures:
    """Run a tool until it prints its summary; the CPU seconds are those of the time that the summary tells of."""
    log, log4j = folder / "log", folder / "log4j2.properties"
    log4j.write_text(jvm.LOG4J.replace("rootLogger.level = info", "rootLogger.level = error"))
    files = jars.ensure("kafka", lambda _: None)
    program = Guarded.start(jvm.command(find_java(), jvm.PEER, files, log4j, *tool), log, remove=folder)
    recorder = Recorder({"client": program.pid, **broker_pids(cluster)})
    try:
        deadline = time.monotonic() + LIMIT_S
        while (figures := read(log.read_text(errors="replace"))) is None:
            if not program.running or time.monotonic() > deadline:
                raise PeerError(f"{tool[0]} gave no figures:\n{log.read_text(errors='replace')[-2000:]}")
            recorder.sample()
            time.sleep(SAMPLE_EVERY_S)
        program.wait(5)
    finally:
        program.kill()
    return Figures(figures.peer, figures.job, figures.messages, figures.seconds, recorder.last(figures.seconds))
