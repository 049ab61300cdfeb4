"""The pytest plugin, as a project that has Penstock installed sees it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.process import BrokerProcess
from tests.broker.batches import batch
from tests.kafka_raw import produce

pytest_plugins = ["pytester"]

LIMIT_S = 30.0


def run(pytester: pytest.Pytester, code: str, **settings: str) -> pytest.RunResult:
    """Run a test file of its own, with the plugin and nothing else of ours."""
    pytester.makepyfile(code)
    pytester.makeini("[pytest]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    return pytester.runpytest_inprocess("-p", "penstock.testing", "-p", "no:cacheprovider")


def test_each_test_has_a_broker_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        before = []

        def test_one(penstock_broker, penstock_url):
            assert penstock_broker.url == penstock_url
            penstock_broker.create_topic("orders")
            before.append(penstock_broker)

        def test_two(penstock_broker):
            assert penstock_broker.stats()["topics"] == []
            assert not before[0].is_running
            assert not before[0].data.exists()
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_broker_can_be_shared_by_all_tests(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        seen = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(penstock_broker, penstock_url, penstock_topic, number):
            penstock_broker.create_topic(penstock_topic)
            assert len(penstock_broker.stats()["topics"]) == number
            seen.append(penstock_url)
            assert len(set(seen)) == 1
        """,
        penstock_scope="session",
    )
    result.assert_outcomes(passed=2)


def test_brokers_with_settings_of_their_own_and_a_clock(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        made = []

        def test_two_brokers(penstock_brokers, penstock_clock):
            one = penstock_brokers(partitions_default=3, clock=penstock_clock)
            two = penstock_brokers(fsync="always")
            made.extend([one, two])
            one.create_topic("orders")
            assert one.stats("orders")["partitions"] == 3
            assert two.stats()["broker"]["fsync"] == "always"
            penstock_clock.advance(60)
            one.settle()
            assert one.stats()["broker"]["uptime_s"] == 60

        def test_they_are_closed():
            assert [broker.is_running for broker in made] == [False, False]
            assert not any(broker.data.exists() for broker in made)
        """,
    )
    result.assert_outcomes(passed=2)


def test_names_of_topics_are_told_apart_and_can_be_topics(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        seen = set()

        @pytest.mark.parametrize("odd", ["a/b c", "ü" * 300])
        def test_it(penstock_broker, penstock_topic, odd):
            penstock_broker.create_topic(penstock_topic)
            assert penstock_topic not in seen
            seen.add(penstock_topic)
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_broker_can_be_a_process_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import penstock

        def test_it(penstock_process, penstock_topic):
            with penstock.connect(penstock_process.url) as client:
                client.producer(penstock_topic).send(b"safe").result()
            penstock_process.restart()
            with penstock.connect(penstock_process.url) as client:
                assert client.producer(penstock_topic).send(b"behind it").result().position == 1
        """,
    )
    result.assert_outcomes(passed=1)


def test_the_fixtures_are_listed_with_what_they_give(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest_inprocess("-p", "penstock.testing", "--fixtures")
    listed.stdout.fnmatch_lines(["*penstock_broker*", "*An embedded broker on a temporary folder.*"])


def test_a_run_that_uses_no_broker_does_not_load_one() -> None:
    code = "import sys, penstock.testing; print([name for name in sys.modules if name.startswith('penstock.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.strip() == "['penstock.testing']"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as made:
        yield made


def address(process: BrokerProcess) -> tuple[str, int]:
    host, _, port = process.bootstrap.rpartition(":")
    return host, int(port)


def send(process: BrokerProcess) -> int:
    """Store a message; its position."""
    produced = produce(address(process), "orders", batch())
    assert produced.error == 0
    return produced.base_offset


def create(process: BrokerProcess) -> None:
    import penstock

    with penstock.connect(process.url) as client:
        client.create_topic("orders", 1)


def test_a_process_that_is_killed_keeps_port_and_data(process: BrokerProcess) -> None:
    create(process)
    before = process.url, process.http_url
    assert send(process) == 0
    process.kill()
    assert not process.is_running
    process.start()
    assert (process.url, process.http_url) == before
    assert send(process) == 1
    process.restart()
    assert send(process) == 2
    assert f"serves {process.url}" in process.log


def test_a_process_can_be_paused(process: BrokerProcess) -> None:
    create(process)
    process.pause()
    with pytest.raises(OSError, match="timed out"), urllib.request.urlopen(f"{process.http_url}/health", timeout=0.2):
        pass
    process.resume()
    assert send(process) == 0


def test_a_process_can_be_stopped_cleanly(process: BrokerProcess) -> None:
    process.pause()
    assert process.stop() == 0
    assert not (process.data / "address.json").exists()
    process.start()
    assert process.is_running


def test_what_keeps_a_process_from_starting_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended while it started: penstock: fsync takes"):
        BrokerProcess(tmp_path, ["--fsync", "never"])


def test_a_process_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys
from penstock.broker.process import BrokerProcess
broker = BrokerProcess(pathlib.Path(sys.argv[1]))
print(broker._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, env=own)
    try:
        process = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], LIMIT_S)[0]
    finally:
        os.close(process)
