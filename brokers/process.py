"""A program that never outlives us, and what the kernel tells about processes.

Each program is started by a guard of its own (see `guard.py`), which kills it when this process is gone, and which is
the only one to send it signals: it reaps the program itself, so a signal can never reach a stranger with a reused pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokers.errors import BrokerError

GUARD = Path(__file__).resolve().with_name("guard.py")
OWNER = "PENSTOCK_OWNER"  # in the environment of every guarded program: whose it is
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far."""

    cpu_s: float
    rss_bytes: int


class Guarded:
    """A running program under guard. Runs on: any one thread at a time."""

    def __init__(self, guard: subprocess.Popen[bytes], pid: int, log: Path) -> None:
        self._guard = guard
        self.pid = pid
        self.log = log

    def __repr__(self) -> str:
        return f"<Guarded {self.pid} {'running' if self.running else f'ended with {self._guard.returncode}'}>"

    @classmethod
    def start(
        cls, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, remove: Path | None = None
    ) -> Guarded:
        """Start a program whose output is appended to `log`; `remove` is deleted should we vanish."""
        with log.open("ab") as output:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(remove or ""), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**(os.environ if environment is None else environment), OWNER: owner_name()},
                start_new_session=True,
            )
        assert guard.stdout is not None
        with guard.stdout as answers:
            answer = answers.readline().decode().strip()
        if not answer.isdigit():
            _close(guard)
            raise BrokerError(f"{command[0]} cannot be started: {answer.removeprefix('! ') or 'its guard ended'}")
        return cls(guard, int(answer), log)

    @property
    def running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._guard.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and what it started; nothing happens when it has ended."""
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(b"%d\n" % number)
            self._guard.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def wait(self, timeout_s: float) -> int | None:
        """The program's exit status once it has ended, negative for a signal; None when the time is up."""
        try:
            status = self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        _close(self._guard)
        return status if status < 128 else status - 256  # an exit status is one byte, signals count down from 256

    def kill(self, timeout_s: float = 30.0) -> None:
        """End the program at once and wait until the kernel has cleared it away."""
        self.signal(signal.SIGKILL)
        if self.wait(timeout_s) is None:
            raise BrokerError(f"process {self.pid} does not end though it was killed; look at its log {self.log}")

    def freeze(self) -> None:
        """Stop the program where it is, and wait until all its threads stand still."""
        self.signal(signal.SIGSTOP)
        self._wait_until(frozen=True)

    def thaw(self) -> None:
        """Let a frozen program go on, and wait until it does."""
        self.signal(signal.SIGCONT)
        self._wait_until(frozen=False)

    def _wait_until(self, frozen: bool, timeout_s: float = 30.0) -> None:
        """The guard passes signals on in its own time; a second one must not meet the state before the first."""
        deadline = time.monotonic() + timeout_s
        while self.running and is_frozen(self.pid) is not frozen:
            if time.monotonic() > deadline:
                raise BrokerError(f"process {self.pid} does not {'stop' if frozen else 'go on'}; is it being traced?")
            time.sleep(0.005)

    def usage(self) -> Usage:
        """CPU seconds and memory of the program; zero once it has ended."""
        return usage(self.pid) if self.running else Usage(0.0, 0)


def _close(guard: subprocess.Popen[bytes]) -> None:
    """Let go of an ended guard's pipe; a line it never read is lost with it."""
    assert guard.stdin is not None
    try:
        guard.stdin.close()
    except BrokenPipeError:
        return
    finally:
        guard.wait()


def owner_name() -> str:
    """What names this process for good."""
    return f"{os.getpid()}-{start_ticks(os.getpid())}"


def left_running(owner: str) -> dict[int, str]:
    """The command lines of all processes that an owner's guarded programs consist of, by pid."""
    mark = f"{OWNER}={owner}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return found


def usage(pid: int) -> Usage:
    """What `/proc` tells about a process; zero when it is gone."""
    fields = _stat(pid)
    if not fields:
        return Usage(0.0, 0)
    return Usage((int(fields[11]) + int(fields[12])) / TICKS_PER_S, int(fields[21]) * PAGE_BYTES)


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; with its pid this names it for good. None when there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def is_frozen(pid: int) -> bool:
    """Whether every thread of a process is stopped, or ended."""
    states = [_stat(int(task.name), Path(f"/proc/{pid}/task"))[:1] for task in Path(f"/proc/{pid}/task").glob("*")]
    return all(state in ([], ["T"], ["Z"], ["X"]) for state in states)


def _stat(pid: int, folder: Path = Path("/proc")) -> list[str]:
    """The fields of `PID/stat` after the program's name, from the state on."""
    try:
        return (folder / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
