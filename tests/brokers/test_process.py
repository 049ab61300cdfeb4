"""A guarded program obeys its owner and never outlives it, however the owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers import process
from brokers.errors import BrokerError
from brokers.process import Guarded
from brokers.runtime import ROOT
from tests.brokers.sockets import listening

GONE_LIMIT_S = 15.0
SLEEPER = [sys.executable, "-c", "import time; print('awake', flush=True); time.sleep(1000)"]
# An owner that starts a program with a child of its own, tells their pids and its own name, and then waits.
OWNER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from pathlib import Path
from brokers import process
folder = Path(sys.argv[1])
(folder / "data").mkdir()
child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"
program = process.Guarded.start([sys.executable, "-c", child], folder / "log", remove=folder / "data")
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(1000)
while len(process.left_running(process.owner_name())) < 3:
    time.sleep(0.02)
print(process.owner_name(), flush=True)
{then}
"""
KAFKA_OWNER = """
import time
from brokers import process
from brokers.kafka import KafkaCluster
cluster = KafkaCluster().start()
print(process.owner_name(), cluster.log(1).parent, flush=True)
time.sleep(1000)
"""


def eventually(true: Callable[[], bool], limit_s: float = GONE_LIMIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start_owner(folder: Path, then: str = "time.sleep(1000)", *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """An owner process that has started its program, and its name."""
    command = [sys.executable, "-c", OWNER.format(then=then), str(folder), *arguments]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout as lines:
        return owner, lines.readline().strip()


def test_a_program_ends_with_its_status_and_its_output_is_logged(tmp_path: Path) -> None:
    program = Guarded.start([sys.executable, "-c", "print('done'); raise SystemExit(3)"], tmp_path / "log")
    assert program.wait(GONE_LIMIT_S) == 3
    assert (tmp_path / "log").read_text() == "done\n"
    assert not program.running


def test_signals_reach_the_program(tmp_path: Path) -> None:
    program = Guarded.start(SLEEPER, tmp_path / "log")
    assert program.wait(0) is None
    program.signal(signal.SIGSTOP)
    assert eventually(lambda: process._stat(program.pid)[0] == "T")
    program.signal(signal.SIGCONT)
    assert eventually(lambda: process._stat(program.pid)[0] == "S")
    program.signal(signal.SIGTERM)
    assert program.wait(GONE_LIMIT_S) == -signal.SIGTERM
    program.signal(signal.SIGTERM)
    assert process.start_ticks(program.pid) is None


def test_a_stopped_program_can_be_killed(tmp_path: Path) -> None:
    program = Guarded.start(SLEEPER, tmp_path / "log")
    program.signal(signal.SIGSTOP)
    program.kill()
    assert not program.running
    assert process.left_running(process.owner_name()).keys().isdisjoint({program.pid})


def test_usage_is_told_while_it_runs(tmp_path: Path) -> None:
    program = Guarded.start([sys.executable, "-c", "while True: pass"], tmp_path / "log")
    assert eventually(lambda: program.usage().cpu_s > 0.05)
    assert program.usage().rss_bytes > 1 << 20
    program.kill()
    assert program.usage() == process.Usage(0.0, 0)


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="/no/such/java cannot be started: No such file or directory") as error:
        Guarded.start(["/no/such/java"], tmp_path / "log")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    owner, name = start_owner(tmp_path)
    assert len(process.left_running(name)) == 3  # guard, program, the program's child
    owner.send_signal(number)
    owner.wait(GONE_LIMIT_S)
    assert eventually(lambda: not process.left_running(name))
    assert eventually(lambda: not (tmp_path / "data").exists())


def test_nothing_outlives_an_owner_that_just_ends(tmp_path: Path) -> None:
    owner, name = start_owner(tmp_path, "os._exit(0)")
    owner.wait(GONE_LIMIT_S)
    assert eventually(lambda: not process.left_running(name))


def test_a_forked_child_that_holds_the_pipe_changes_nothing(tmp_path: Path) -> None:
    owner, name = start_owner(tmp_path, "print(1); time.sleep(1000)", "fork")
    children = [int(pid) for pid in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()]
    owner.kill()
    owner.wait(GONE_LIMIT_S)
    assert eventually(lambda: not process.left_running(name))
    (forked,) = [pid for pid in children if process.start_ticks(pid) is not None]
    os.kill(forked, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_program_dies_with_its_guard(tmp_path: Path) -> None:
    program = Guarded.start(SLEEPER, tmp_path / "log")
    program._guard.kill()
    assert program.wait(GONE_LIMIT_S) == -signal.SIGKILL
    assert eventually(lambda: process.start_ticks(program.pid) is None)


def test_a_real_kafka_is_gone_seconds_after_kill_9_of_its_owner(kafka_parts: None) -> None:
    owner = subprocess.Popen([sys.executable, "-c", KAFKA_OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout as lines:
        name, folder = lines.readline().split()
    running = process.left_running(name)
    assert any("kafka.Kafka" in command or "java" in command for command in running.values())
    assert any(listening(pid) for pid in running)
    owner.kill()
    owner.wait(GONE_LIMIT_S)
    assert eventually(lambda: not process.left_running(name))
    assert eventually(lambda: not Path(folder).exists())


def test_a_frozen_program_stands_still_when_freeze_returns(tmp_path: Path) -> None:
    program = Guarded.start([sys.executable, "-c", BUSY_THREADS], tmp_path / "log")
    try:
        for _ in range(20):
            program.freeze()
            before = program.usage().cpu_s
            assert process.is_frozen(program.pid)
            assert program.usage().cpu_s == before
            program.thaw()
    finally:
        program.kill()


BUSY_THREADS = """
import threading
def spin():
    while True:
        pass
for _ in range(8):
    threading.Thread(target=spin, daemon=True).start()
threading.Event().wait()
"""
