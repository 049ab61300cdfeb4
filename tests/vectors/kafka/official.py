"""What official tools say of a captured segment: Kafka's own DumpLogSegments and confluent-kafka's consumer."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

from brokers import jars, jvm
from brokers.kafka import KafkaCluster
from brokers.runtime import find_java
from tests.vectors.kafka.cases import Sent
from tests.vectors.kafka.vector import Batch

DUMP = "org.apache.kafka.tools.DumpLogSegments"
LIMIT_S = 30.0


def kafka_version() -> str:
    """The version of the broker that `brokers` runs."""
    return next(jar.version for jar in jars.read_lock(jars.lock_path("kafka")) if jar.artifact == "kafka-tools")


def dump_segments(kafka: KafkaCluster, files: Sequence[Path]) -> dict[Path, tuple[Batch, ...]]:
    """The batches of each log file in Kafka's own words."""
    log4j = kafka.data(1).parent / "dump-log4j2.properties"
    log4j.write_text(jvm.LOG4J)
    arguments = (DUMP, "--print-data-log", "--files", ",".join(map(str, files)))
    command = jvm.command(find_java(), jvm.FUNCTIONAL, jars.ensure("kafka", lambda _: None), log4j, *arguments)
    done = subprocess.run(command, capture_output=True, check=True)
    found: dict[Path, list[Batch]] = {}
    batches: list[Batch] = []
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith("Dumping "):
            batches = found.setdefault(Path(line.removeprefix("Dumping ")), [])
        elif line.startswith("baseOffset: "):
            batches.append(_batch(dict(re.findall(r"(\w+): (\S+)", line))))
        elif marker := re.search(r"endTxnMarker: (\w+)", line):
            batches[-1] = batches[-1]._replace(marker=marker[1].lower())
    return {path: tuple(each) for path, each in found.items()}


def _batch(said: dict[str, str]) -> Batch:
    assert (said["magic"], said["isvalid"]) == ("2", "true"), said
    horizon = re.search(r"\d+", said["deleteHorizonMs"])
    flags = {
        "log-append-time": "LogAppendTime" in said,
        "transactional": said["isTransactional"] == "true",
        "control": said["isControl"] == "true",
        "delete-horizon": horizon is not None,
    }
    return Batch(
        base=int(said["baseOffset"]),
        last=int(said["lastOffset"]),
        messages=int(said["count"]),
        size=int(said["size"]),
        codec=said["compresscodec"],
        flags=tuple(name for name, is_set in flags.items() if is_set),
        producer=int(said["producerId"]),
        epoch=int(said["producerEpoch"]),
        sequence=int(said["baseSequence"]),
        max_time_ms=int(said.get("CreateTime") or said["LogAppendTime"]),
        delete_horizon_ms=int(horizon[0]) if horizon else None,
    )


def consume(bootstrap: str, topic: str, *, committed: bool = False) -> list[tuple[int, int, Sent]]:
    """Offset, time and content of every message of a topic's partition 0, as confluent-kafka reads them."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "vectors",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return _until_end(consumer, topic)
    finally:
        consumer.close()


def _until_end(consumer: confluent_kafka.Consumer, topic: str) -> list[tuple[int, int, Sent]]:
    found: list[tuple[int, int, Sent]] = []
    while True:
        message: Any = consumer.poll(LIMIT_S)
        if message is None:
            raise TimeoutError(f"{topic}: nothing was read for {LIMIT_S:.0f} s")
        if (error := message.error()) is not None:
            if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
            raise confluent_kafka.KafkaException(error)
        content = Sent(message.value(), message.key(), tuple(message.headers() or ()))
        found.append((message.offset(), message.timestamp()[1], content))
