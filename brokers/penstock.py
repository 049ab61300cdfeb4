"""Penstock's own broker as a process of its own: `penstock serve`, started as a user starts it, on loopback.

It has the shape of a `KafkaCluster` of one node, so that whatever can be done to a real Kafka (a client's script, a
benchmark's load, `kill -9`) can be done to it in the same words. The port and the data folder stay over `kill` and
`restart`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from brokers.errors import BrokerError
from brokers.kafka_probe import nodes_seen
from brokers.ports import LOOPBACK, free_ports
from brokers.process import Guarded, Usage

READY_LIMIT_S = 60.0
POLL_S = 0.005
COMMAND = (str(Path(sys.executable).with_name("penstock")), "serve")
LOG_TAIL_CHARS = 1500


class PenstockBroker:
    """One `penstock serve`. Runs on: any one thread at a time."""

    nodes = range(1, 2)

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        data: Path | None = None,
        port: int | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """`options` go to `penstock serve`; `before` is a program that runs it; without `data` it gets a folder."""
        self._options = list(options)
        self._before = list(before)
        self._given = data
        self._port = port
        self._folder: Path | None = None
        self._process: Guarded | None = None

    def __repr__(self) -> str:
        state = "running" if self.running else "down"
        return f"<PenstockBroker {LOOPBACK}:{self._port} {state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.running

    @property
    def bootstrap(self) -> str:
        """`host:port`, as Kafka clients want it."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def url(self) -> str:
        """The broker's URL as Penstock wants it."""
        return f"kafka://{self.bootstrap}"

    def address(self, node: int = 1) -> tuple[str, int]:
        """Where it serves clients."""
        assert self._port is not None
        return LOOPBACK, self._port

    def pid(self, node: int = 1) -> int:
        """Its process id."""
        return self._running.pid

    def log(self, node: int = 1) -> Path:
        """The file that its output goes to."""
        return self._root / "serve.log"

    def data(self, node: int = 1) -> Path:
        """Its data folder."""
        return self._given or self._root / "data"

    def usage(self) -> dict[int, Usage]:
        """CPU seconds and memory since its last start."""
        return {1: self._running.usage()}

    def start(self) -> Self:
        """Start it and wait until it answers."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="penstock-serve-"))
        if self._port is None:
            (self._port,) = free_ports(1)
        try:
            self.launch()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start the process and do not wait for it."""
        where = ["--data", str(self.data()), "--port", str(self._port)]
        command = [*self._before, *COMMAND, *where, *self._options]
        surroundings = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # SIGABRT has it tell where it is
        surroundings.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled, and starts twice as fast
        self._process = Guarded.start(command, self.log(), surroundings, remove=self._root)

    def wait_ready(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + READY_LIMIT_S
        while not nodes_seen(self.address()[1]):
            if not self.running or time.monotonic() > deadline:
                raise BrokerError(f"penstock serve {self._how_it_failed()}; its log says: {self.log_tail()}")
            time.sleep(POLL_S)

    def _how_it_failed(self) -> str:
        if not self.running:
            return f"ended with {self._running.wait(5)} while it started"
        self._running.signal(signal.SIGABRT)
        self._running.wait(5)
        return "was not ready in time"

    def stop(self) -> None:
        """End it at once and remove what it wrote, but for a data folder that was given."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self, node: int = 1) -> None:
        """End it with `kill -9`; its data stays for `restart`."""
        self._running.kill()

    def shut_down(self, node: int = 1, limit_s: float = 60.0) -> int:
        """End it as an operator would, and return its exit status."""
        self._running.signal(signal.SIGTERM)
        status = self._running.wait(limit_s)
        if status is None:
            raise BrokerError(f"penstock serve did not end within {limit_s:.0f} s; its log says: {self.log_tail()}")
        return status

    def wait(self, limit_s: float = 60.0) -> int | None:
        """The exit status of one that ends by itself; None when it does not."""
        return self._running.wait(limit_s)

    def restart(self, node: int = 1) -> None:
        """Start it again on its port and its data, ending it first where it still runs; wait until it answers."""
        if self.running:
            self.kill()
        self.launch()
        self.wait_ready()

    def pause(self, node: int = 1) -> None:
        """Freeze it: its connections stay open and nothing answers."""
        self._running.freeze()

    def resume(self, node: int = 1) -> None:
        """Let it go on."""
        self._running.thaw()

    def heal(self) -> None:
        """Bring it back when a test left it down."""
        if not self.running:
            self.restart()

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return self.log().read_text(errors="replace")[-LOG_TAIL_CHARS:] if self.log().exists() else "nothing"

    @property
    def _running(self) -> Guarded:
        if self._process is None:
            raise BrokerError("this broker is not started; call start() first")
        return self._process

    @property
    def _root(self) -> Path:
        if self._folder is None:
            raise BrokerError("this broker is not started; call start() first")
        return self._folder
