"""`make brokers` starts one cluster that stays, and `make brokers-stop` ends that and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers import __main__ as command_line
from brokers import process, service
from brokers.kafka import KafkaCluster
from brokers.kafka_probe import nodes_seen
from brokers.runtime import ROOT
from brokers.service import State


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(service, "STATE", tmp_path)
    monkeypatch.setenv("PENSTOCK_BROKERS_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process."""
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield running
    running.kill()
    running.wait()


def brokers(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brokers", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def write_state(folder: Path, pid: int, started_ticks: int) -> None:
    state = {"pid": pid, "started_ticks": started_ticks, "nodes": 1, "url": "kafka://127.0.0.1:1", "logs": []}
    (folder / "kafka.json").write_text(json.dumps(state))


def test_up_stays_up_until_down(real_kafka: KafkaCluster, state_folder: Path) -> None:
    first = brokers("up")
    assert first.returncode == 0, first.stderr
    url = first.stdout.split()[0]
    assert "brokers: starting Kafka, 1 node, on" in first.stderr
    assert brokers("up").stdout.split()[0] == url
    assert (
        f"already runs with 1 node(s) at {url}; end it with `make brokers-stop`" in brokers("up", "--nodes", "3").stderr
    )
    assert url in brokers("status").stdout
    state = service.read_state("kafka")
    assert state is not None
    owner = f"{state.pid}-{state.started_ticks}"
    assert process.left_running(owner)
    assert nodes_seen(int(url.rpartition(":")[2])) == {1}
    assert brokers("down").stdout == "kafka is stopped\n"
    assert not process.left_running(owner)
    assert not Path(state.logs[0]).parent.exists()
    assert brokers("down").stdout == "no kafka of this checkout was running\n"
    assert nodes_seen(real_kafka.address(1)[1]) == {1}, "the tests' own is another"


def test_a_stranger_with_the_same_pid_is_left_alone(state_folder: Path, stranger: subprocess.Popen[bytes]) -> None:
    write_state(state_folder, stranger.pid, started_ticks=1)
    assert not service.down("kafka", lambda _: None)
    assert stranger.poll() is None
    assert not (state_folder / "kafka.json").exists()


def test_a_process_that_still_runs_is_recognised(state_folder: Path) -> None:
    ticks = process.start_ticks(os.getpid())
    assert ticks is not None
    write_state(state_folder, os.getpid(), ticks)
    assert service.read_state("kafka") == State(os.getpid(), ticks, 1, "kafka://127.0.0.1:1", [])


def test_a_broken_state_file_counts_as_none(state_folder: Path) -> None:
    (state_folder / "kafka.json").write_text('{"pid": 1')
    assert service.read_state("kafka") is None
    assert not (state_folder / "kafka.json").exists()


def test_errors_are_one_line_and_the_status_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    done = brokers("fetch", "kafka")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("brokers: error: the jars of 'kafka' cannot be kept in")


@pytest.mark.parametrize("port", ["0", "99999", "x"])
def test_a_port_that_makes_no_sense_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["up", "--port", port])
    assert f"'{port}' is no port from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("nodes", ["0", "10", "x"])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(nodes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        command_line.main(["up", "--nodes", nodes])
    assert error.value.code == 2
    assert f"'{nodes}' is no number from 1 to 9" in capsys.readouterr().err


@pytest.mark.stress
def test_a_keeper_whose_state_file_is_gone_stops_by_itself(kafka_parts: None, state_folder: Path) -> None:
    assert brokers("up").returncode == 0
    state = service.read_state("kafka")
    assert state is not None
    (state_folder / "kafka.json").unlink()
    deadline = time.monotonic() + 30
    while state.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.alive
    assert not process.left_running(f"{state.pid}-{state.started_ticks}")
