"""Spark's own Kafka connector, in an environment of its own with the PySpark that it fits.

The product runs on a newer PySpark than the newest connector that can be had, so this one lives in a virtual
environment in the cache (`requirements/spark-connector.txt`), with the connector's jars from the lock `spark-kafka`.
A job is run `warmups` times before the run that counts: Spark's first run of anything is two to four times slower.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers import load as loads
from bench.peers.child import PeerError, run_module
from bench.peers.load import Load
from bench.peers.measure import Figures, broker_pids
from brokers import jars
from brokers.cache import cache_root, file_lock
from brokers.errors import BrokerUnavailableError
from brokers.fetch import last_word
from brokers.jars import Say
from brokers.kafka import KafkaCluster
from brokers.ports import LOOPBACK
from brokers.runtime import ROOT, find_java

REQUIREMENTS = ROOT / "requirements" / "spark-connector.txt"
LIMIT_S = 900.0


def read(cluster: KafkaCluster, load: Load, warmups: int = 1) -> Figures:
    """Read a topic that holds the load, and throw the rows away."""
    return _run("read", cluster, None, loads.fill(cluster, load), "", load, warmups)


def write(cluster: KafkaCluster, load: Load, warmups: int = 1) -> Figures:
    """Write rows that Spark holds in memory to a topic, in large lz4 batches."""
    source = loads.fill(cluster, load)
    target = loads.new_topic(cluster, load)
    figures = _run("write", cluster, cluster, source, target, load, warmups)
    _check(cluster, target, load, warmups)
    return figures


def copy(source: KafkaCluster, target: KafkaCluster, load: Load, warmups: int = 1) -> Figures:
    """Copy a topic that holds the load from one Kafka to another."""
    topic, target_topic = loads.fill(source, load), loads.new_topic(target, load)
    figures = _run("copy", source, target, topic, target_topic, load, warmups)
    _check(target, target_topic, load, warmups)
    return figures


def environment(say: Say = lambda _: None) -> Path:
    """The Python of the connector's environment, made first where the cache lacks it."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_root() / "envs" / f"spark-connector-{digest}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock"), lambda: say("another checkout installs PySpark: waiting for it")):
        if not complete.exists():
            say("installing the PySpark that fits Spark's Kafka connector (450 MB, once)")
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder, python)
            complete.touch()
    return python


def _install(folder: Path, python: Path) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, "--require-hashes", "-r", str(REQUIREMENTS)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerUnavailableError(
                "PySpark for Spark's Kafka connector could not be installed; check the network and the disk: "
                f"{last_word(done.stdout + done.stderr)}"
            )


def _run(
    action: str,
    source: KafkaCluster,
    target: KafkaCluster | None,
    topic: str,
    target_topic: str,
    load: Load,
    warmups: int,
) -> Figures:
    pids = broker_pids(source, "source" if action == "copy" else "broker")
    if target is not None and target is not source:
        pids |= broker_pids(target, "target")
    job = {
        "action": action,
        "source": source.bootstrap,
        "target": target.bootstrap if target else "",
        "topic": topic,
        "target_topic": target_topic,
        "messages": load.messages,
        "value_bytes": load.value_bytes,
        "runs": warmups + 1,
        "pids": pids,
        "jars": [str(path) for path in jars.ensure("spark-kafka", lambda _: None)],
    }
    java_home = find_java().resolve().parents[1]
    surroundings = {"SPARK_LOCAL_IP": LOOPBACK, "JAVA_HOME": str(java_home)}
    return Figures(**run_module("bench.peers.spark_job", job, LIMIT_S, str(environment()), surroundings))


def _check(cluster: KafkaCluster, topic: str, load: Load, warmups: int) -> None:
    wanted = load.messages * (warmups + 1)
    if (found := loads.count(cluster, topic)) != wanted:
        raise PeerError(f"Spark's connector wrote {found} messages instead of {wanted}")
