"""Fixtures with real brokers: started when a test asks for one, at most once per run, and gone with the run.

A test may kill or pause nodes: what it leaves so is brought back before the next test. Where no Java or no jars can be
had such tests are skipped and the summary says so; with PENSTOCK_REQUIRE_ALL set, as in `.ci/run`, they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from brokers import jars, process
from brokers.errors import BrokerUnavailableError
from brokers.kafka import KafkaCluster
from brokers.runtime import find_java

# The same examples in every run, however busy the machine.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

UNAVAILABLE = "no real broker: "
LEFT = pytest.StashKey[dict[int, str]]()
LEFT_RUNNING = "left running"
started: list[KafkaCluster] = []


def pytest_configure(config: pytest.Config) -> None:
    """Leave the long tests out, unless `-m` says what to run."""
    config.option.markexpr = config.option.markexpr or "not stress"


@pytest.fixture(scope="session")
def kafka_parts(pytestconfig: pytest.Config) -> None:
    """What a real Kafka runs on: for a test that starts its own."""
    try:
        find_java()
        jars.ensure("kafka", lambda text: tell(pytestconfig, text))
    except BrokerUnavailableError as error:
        if os.environ.get("PENSTOCK_REQUIRE_ALL"):
            pytest.fail(f"{UNAVAILABLE}{error}", pytrace=False)
        pytest.skip(f"{UNAVAILABLE}{error}")


@pytest.fixture(scope="session")
def real_kafka(kafka_parts: None) -> Iterator[KafkaCluster]:
    """A real Kafka of one node."""
    yield from run(nodes=1)


@pytest.fixture(scope="session")
def real_kafka_cluster(kafka_parts: None) -> Iterator[KafkaCluster]:
    """A real Kafka of three nodes; topics have three copies, two of which must be in step."""
    yield from run(nodes=3)


def run(nodes: int) -> Iterator[KafkaCluster]:
    """A cluster for as long as its fixture lives."""
    with KafkaCluster(nodes) as cluster:
        started.append(cluster)
        try:
            yield cluster
        finally:
            started.remove(cluster)


def tell(config: pytest.Config, text: str) -> None:
    """Show what fetching does, which can take a minute, past pytest's capturing."""
    capture = config.pluginmanager.getplugin("capturemanager")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if capture is not None and reporter is not None:
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"brokers: {text}")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Bring back nodes that the test left down or paused."""
    for cluster in started:
        cluster.heal()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a program that it started is still there; one of several processes tells the first."""
    config = session.config
    left = config.stash.get(LEFT, {}) | process.left_running(process.owner_name())
    if left and hasattr(config, "workeroutput"):
        config.workeroutput[LEFT_RUNNING] = left
    elif left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        config.stash[LEFT] = left


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """One of the run's processes has ended: note what it left running."""
    left = getattr(node, "workeroutput", {}).get(LEFT_RUNNING, {})
    node.config.stash[LEFT] = node.config.stash.get(LEFT, {}) | left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests had no real broker, and why, and what was left running."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    skipped = [reason for reason in reasons if UNAVAILABLE in reason]
    if skipped:
        why = skipped[0].partition(UNAVAILABLE)[2].rstrip("')")
        terminalreporter.write_line(f"{len(skipped)} tests skipped for want of a real broker: {why}", yellow=True)
    for pid, command in config.stash.get(LEFT, {}).items():
        terminalreporter.write_line(f"left running by this run: process {pid}: {command}", red=True)
