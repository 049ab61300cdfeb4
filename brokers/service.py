"""A cluster that stays up in the background: what `make brokers` starts and `make brokers-stop` ends.

`up` starts a detached *keeper* process that owns the cluster; the cluster dies with its keeper (see `process.py`), so
ending the keeper ends exactly what was started. The state file `build/brokers/<system>.json` names the keeper by pid
and start time: a reused pid is never taken for it. A keeper whose state file is gone (`make clean`) stops by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from brokers import jars
from brokers.errors import BrokerError
from brokers.jars import Say
from brokers.kafka import KafkaCluster
from brokers.process import start_ticks
from brokers.runtime import ROOT, find_java

SYSTEMS = {"kafka": KafkaCluster}
STATE = Path(os.environ.get("PENSTOCK_BROKERS_STATE") or ROOT / "build" / "brokers")
STOP_LIMIT_S = 60.0
POLL_S = 0.1
READY, FAILED = "ready: ", "failed: "  # how the keeper's last line to `up` begins


@dataclass(frozen=True, slots=True)
class State:
    """What is known about a cluster in the background."""

    pid: int
    started_ticks: int
    nodes: int
    url: str
    logs: list[str]

    @property
    def alive(self) -> bool:
        """Whether its keeper still runs, and is no stranger with the same pid."""
        return start_ticks(self.pid) == self.started_ticks


def read_state(system: str) -> State | None:
    """The running cluster's state, or None; what a dead keeper left is removed."""
    path = STATE / f"{system}.json"
    try:
        state = State(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        path.unlink()
        return None
    if not state.alive:
        path.unlink(missing_ok=True)
        return None
    return state


def up(system: str, nodes: int, port: int | None, say: Say) -> State:
    """Start a cluster that stays, unless it is there already."""
    if running := read_state(system):
        if running.nodes != nodes or (port is not None and f":{port}" not in running.url):
            there = f"{running.nodes} node(s) at {running.url}"
            raise BrokerError(f"{system} already runs with {there}; end it with `make brokers-stop` first")
        return running
    find_java()
    jars.ensure(system, say)
    try:
        STATE.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BrokerError(f"{STATE} cannot be made: {error.strerror}; make its folder writable") from error
    arguments = ["--nodes", str(nodes), *(["--port", str(port)] if port else [])]
    keeper = subprocess.Popen(
        [sys.executable, "-m", "brokers", "keep", system, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
        text=True,
    )
    try:
        _follow(keeper, say)
    except BaseException:
        keeper.terminate()
        keeper.wait(STOP_LIMIT_S)
        raise
    state = read_state(system)
    if state is None:
        raise BrokerError(f"{system} started and ended at once; its logs were in {STATE}")
    return state


def _follow(keeper: subprocess.Popen[str], say: Say) -> None:
    """Pass on what the keeper says until it is ready."""
    assert keeper.stdout is not None
    with keeper.stdout as lines:
        for line in lines:
            if line.startswith(READY):
                return
            if line.startswith(FAILED):
                raise BrokerError(line.removeprefix(FAILED).strip())
            say(line.strip())
    raise BrokerError(f"the keeper ended without a word; see {STATE / 'keeper.log'}")


def down(system: str, say: Say) -> bool:
    """End the cluster in the background; whether there was one."""
    state = read_state(system)
    if state is None:
        return False
    say(f"stopping {system} at {state.url}")
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while state.alive:
        if time.monotonic() > deadline:
            os.kill(state.pid, signal.SIGKILL)  # the nodes' guards do the rest
            break
        time.sleep(POLL_S)
    (STATE / f"{system}.json").unlink(missing_ok=True)
    return True


def keep(system: str, nodes: int, port: int | None) -> int:
    """The keeper: start the cluster, tell `up`, and hold it until SIGTERM or until the state file is gone."""
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: _end(ending, number))
    cluster = SYSTEMS[system](nodes, port=port, say=_tell)
    path = STATE / f"{system}.json"
    try:
        try:
            cluster.start()
        except BrokerError as error:
            _tell(f"{FAILED}{error}")
            return 1
        me = os.getpid()
        logs = [str(cluster.log(node)) for node in cluster.nodes]
        state = State(me, start_ticks(me) or 0, nodes, cluster.url, logs)
        _replace(path, json.dumps(asdict(state), indent=2))
        _tell(f"{READY}{cluster.url}")
        _detach()
        while path.exists():
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    finally:
        cluster.stop()
        path.unlink(missing_ok=True)
    return 0


def _end(ending: list[int], number: int) -> None:
    """Turn the first SIGTERM into an interrupt of whatever the keeper does; later ones change nothing."""
    ending.append(number)
    if len(ending) == 1:
        raise KeyboardInterrupt


def _tell(line: str) -> None:
    """Write a line to `up`, whose terminal may be gone by now."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _detach() -> None:
    """Let go of the terminal and of `up`, which is about to end."""
    log = os.open(STATE / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
