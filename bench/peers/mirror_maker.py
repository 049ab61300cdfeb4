"""MirrorMaker 2 between two real Kafkas, at its defaults or tuned.

The clock runs from the first message seen at the target until all are there: its start-up is not in the figures, its
compiler's warm-up is, unless told otherwise, so short runs flatter nobody. It keeps offsets and could restart, which
simple copiers cannot.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from bench.peers import load as loads
from bench.peers.child import PeerError
from bench.peers.load import Load, TopicCounter
from bench.peers.measure import Figures, Meter, broker_pids
from brokers import jars, jvm
from brokers.kafka import KafkaCluster
from brokers.kafka_config import render
from brokers.process import Guarded
from brokers.runtime import find_java

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
START_LIMIT_S = 120.0
COPY_LIMIT_S = 900.0
REPLICATED = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage")
COMMON = {
    "replication.factor": "1",
    "config.storage.replication.factor": "1",
    **{f"{name}.replication.factor": "1" for name in REPLICATED},
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "sync.topic.configs.enabled": "false",
}
TUNED = {
    "source.consumer.max.poll.records": "20000",
    "source.consumer.fetch.min.bytes": "262144",
    "source.consumer.fetch.max.wait.ms": "100",
    "source.consumer.max.partition.fetch.bytes": "8388608",
    "source.consumer.receive.buffer.bytes": "1048576",
    "target.producer.batch.size": "1048576",
    "target.producer.linger.ms": "20",
    "target.producer.compression.type": "lz4",
    "target.producer.buffer.memory": "134217728",
    "target.producer.max.request.size": "4194304",
    "tasks.max": "2",
    "offset.flush.interval.ms": "60000",
}


def copy(
    source: KafkaCluster,
    target: KafkaCluster,
    load: Load,
    *,
    tuned: bool = False,
    topic: str | None = None,
    warmup: int = 0,
) -> Figures:
    """Copy a topic that holds the load, or a new one, from one Kafka to the other.

    With a warm-up, the clock starts when so many messages are there, and the topic may hold more than the load: it ends
    when that is there.
    """
    topic = topic or loads.fill(source, load)
    alias = (
        f"a{uuid.uuid4().hex[:8]}"  # MirrorMaker keeps its position under the clusters' names: a new name starts anew
    )
    with tempfile.TemporaryDirectory(prefix="penstock-mirror-") as name:
        program = _start(Path(name), settings(alias, source, target, topic, tuned))
        counter = TopicCounter(target, f"{alias}.{topic}")
        try:
            first = counter.wait_for(1, START_LIMIT_S)
            first = counter.wait_for(warmup, COPY_LIMIT_S) if warmup else first
            brokers = {**broker_pids(source, "source"), **broker_pids(target, "target")}
            meter = Meter({"mirror-maker": program.pid, **brokers})
            found = counter.wait_for(load.messages, COPY_LIMIT_S)
            if first == found or (found != load.messages and not warmup):
                raise PeerError(f"MirrorMaker copied {first}, then {found} messages of {load.messages}")
            job = f"copy {load.value_bytes} B {'tuned' if tuned else 'default'}"
            return meter.figures("MirrorMaker 2", job, found - first)
        except RuntimeError as error:
            tail = program.log.read_text(errors="replace")[-2000:]
            raise PeerError(f"MirrorMaker did not copy: {error}\n{tail}") from error
        finally:
            counter.close()
            program.kill()


def settings(alias: str, source: KafkaCluster, target: KafkaCluster, topic: str, tuned: bool) -> Mapping[str, str]:
    """MirrorMaker's properties for one way between two clusters."""
    other = f"b{alias[1:]}"
    names = {"source.": f"{alias}.", "target.": f"{other}."}
    tuning = {}
    for key, value in TUNED.items() if tuned else ():
        prefix = next((prefix for prefix in names if key.startswith(prefix)), "")
        tuning[names.get(prefix, "") + key.removeprefix(prefix)] = value
    return {
        "clusters": f"{alias},{other}",
        f"{alias}.bootstrap.servers": source.bootstrap,
        f"{other}.bootstrap.servers": target.bootstrap,
        f"{alias}->{other}.enabled": "true",
        f"{alias}->{other}.topics": topic,
        f"{other}->{alias}.enabled": "false",
        **COMMON,
        **tuning,
    }


def _start(folder: Path, properties: Mapping[str, str]) -> Guarded:
    log4j = folder / "log4j2.properties"
    log4j.write_text(jvm.LOG4J)
    (folder / "mm2.properties").write_text(render(properties))
    files = jars.ensure("kafka", lambda _: None)
    command = jvm.command(find_java(), jvm.PEER, files, log4j, MAIN, str(folder / "mm2.properties"))
    return Guarded.start(command, folder / "log", remove=folder)
