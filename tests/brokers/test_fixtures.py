"""The fixtures themselves: skipped with a reason, required on demand, and gone when a run is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brokers import process
from brokers.process import OWNER, start_ticks
from brokers.runtime import ROOT

TEST = "tests/brokers/test_kafka.py::test_usage_tells_cpu_and_memory_of_each_node"
LIMIT_S = 120.0


def without_java(tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A run where neither Java nor jars can be had."""
    environment = {"PATH": "", "HOME": str(tmp_path), "PENSTOCK_CACHE": str(tmp_path / "cache"), **more}
    program = "import brokers.runtime, pathlib, pytest, sys; brokers.runtime.VENV = pathlib.Path('/none'); "
    command = [sys.executable, "-c", f"{program}sys.exit(pytest.main(['-p', 'no:cacheprovider', {TEST!r}]))"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_without_java_tests_are_skipped_and_the_summary_says_how_many_and_why(tmp_path: Path) -> None:
    done = without_java(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 tests skipped for want of a real broker: no Java of version 17 or newer" in done.stdout


def test_where_everything_is_required_they_fail_instead(tmp_path: Path) -> None:
    done = without_java(tmp_path, PENSTOCK_REQUIRE_ALL="1")
    assert done.returncode == 1, done.stdout
    assert "no real broker: no Java of version 17 or newer" in done.stdout


def test_a_run_that_leaves_a_program_behind_fails_and_says_which(tmp_path: Path) -> None:
    (tmp_path / "test_leaky.py").write_text(
        "import sys, pathlib\nfrom brokers.process import Guarded\nkept = []\n"
        "def test_leak(tmp_path):\n"
        "    kept.append(Guarded.start([sys.executable, '-c', 'import time; time.sleep(99)'], tmp_path / 'log'))\n"
    )
    options = [
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.conftest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_leaky.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "left running by this run: process" in done.stdout
    assert done.returncode == 1


@pytest.mark.stress
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing(kafka_parts: None, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{TEST}[3]"]
    surroundings = {key: value for key, value in os.environ.items() if key != OWNER}
    run = subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=subprocess.DEVNULL)
    owner = f"{run.pid}-{start_ticks(run.pid)}"
    deadline = time.monotonic() + LIMIT_S
    while len(process.left_running(owner)) < 6:  # three nodes and their guards
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.send_signal(number)
    run.wait(LIMIT_S)
    while process.left_running(owner):
        assert time.monotonic() < deadline
        time.sleep(0.05)
