"""Runs one program and ends it when its owner is gone: `python -I -S guard.py OWNER REMOVE COMMAND...`

The owner (a test run, a benchmark, the service behind `make brokers`) holds the other end of our standard input:

    owner -> guard   a line with a signal's number, passed on to the program's process group
    guard -> owner   one line: the program's pid, or `!` and why it could not be started

The pipe's end means that the owner is gone, however it died; so does a change of our parent, which also holds when a
forked child of the owner keeps the pipe open. Then the process group is killed and the folder REMOVE deleted. Should
this guard itself be killed, the kernel kills the program (PR_SET_PDEATHSIG, Linux): that signal is tied to the thread
that forked, which is why a guard, with one thread, starts the program and not the owner, with many.
Standard library only; never imports the project.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
OWNER_CHECK_MS = 1000


def main(owner: int, remove: str, command: list[str]) -> int:
    """Start the program, stay until it or the owner ends, and return the program's status."""
    child_ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    try:
        program = start(command)
    except OSError as error:
        tell(f"! {error.strerror}: {error.filename}")
        return 127
    tell(str(program.pid))
    if not attend(program, child_ended, owner):
        kill(program, signal.SIGKILL)
        program.wait()
        if remove:
            shutil.rmtree(remove, ignore_errors=True)
    return program.returncode


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own, its output going where our standard error goes."""
    guard = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def die_with_guard() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)

    # This process has one thread, so preexec_fn is safe here.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=die_with_guard
    )


def attend(program: subprocess.Popen[bytes], child_ended: int, owner: int) -> bool:
    """Pass signals on until the program has ended (True) or the owner is gone (False)."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(child_ended, select.POLLIN)
    pending = b""
    while program.poll() is None:
        ready = [fd for fd, _ in poller.poll(OWNER_CHECK_MS)]
        if child_ended in ready:
            os.read(child_ended, 4096)
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                return False
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                kill(program, int(line))
        if os.getppid() != owner:
            return False
    return True


def kill(program: subprocess.Popen[bytes], number: int) -> None:
    """Signal the program's process group; it cannot be another's, since only we reap the program."""
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        return


def tell(line: str) -> None:
    """Write one line to the owner."""
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
