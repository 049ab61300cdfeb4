"""`penstock serve` as a process of its own, for tests and demonstrations that kill it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
LOOK_S: Final = 0.005
LOG_CHARS: Final = 1500
SERVE: Final = (sys.executable, "-c", "from penstock.cli.main import main; main()", "serve", "--stop-on-eof")


class BrokerProcess:
    """`penstock serve` as a process of its own, on a free port of the loopback address that it keeps.

    It does not outlive this process. Runs on: any one thread at a time.
    """

    def __init__(self, data: Path | None = None, options: Sequence[str] = ()) -> None:
        """Start it. Without a data folder it gets a temporary one; `options` are those of `penstock serve`."""
        self._root = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.data = self._root / "data" if data is None else data
        """The data folder."""
        self._options = list(options)
        self._address = {"kafka": "127.0.0.1:0", "http": "none"}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """`host:port`, as Kafka clients take it."""
        return self._address["kafka"]

    @property
    def url(self) -> str:
        """The URL for `penstock.connect`."""
        return f"kafka://{self.bootstrap}"

    @property
    def http_url(self) -> str:
        """The URL of statistics, metrics and health."""
        return f"http://{self._address['http']}"

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has printed and logged so far, over all its starts."""
        return self._log_file.read_text(encoding="utf-8", errors="replace") if self._log_file.exists() else ""

    def start(self) -> None:
        """Start it on its port and its data folder, if it is not running, and return when clients can connect."""
        if self.is_running:
            return
        ready = self._root / "ready.json"
        port, http_port = (self._address[each].rpartition(":")[2] for each in ("kafka", "http"))
        where = ["--data", str(self.data), "--port", port, "--http-port", "0" if http_port == "none" else http_port]
        ready.unlink(missing_ok=True)
        with self._log_file.open("ab") as log:
            command = [*SERVE, *where, "--ready-file", str(ready), *self._options]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S_MAX
        while not ready.exists():
            if not self.is_running or time.monotonic() > deadline:
                how = "was not ready in time" if self.is_running else "ended while it started"
                raise RuntimeError(f"penstock serve {how}: {self.log[-LOG_CHARS:]}")
            time.sleep(LOOK_S)
        self._address = json.loads(ready.read_text(encoding="utf-8"))

    def kill(self) -> None:
        """End it as `kill -9` does; its data stays."""
        if self._process is not None:
            self._process.kill()
            self._let_go(self._process)

    def restart(self) -> None:
        """End it as `kill -9` does, if it is running, and start it again."""
        self.kill()
        self.start()

    def stop(self) -> int:
        """End it cleanly; its exit status."""
        assert self._process is not None
        self.resume()
        self._process.terminate()
        return self._let_go(self._process)

    def pause(self) -> None:
        """Let it stand still: its connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it at once, and remove what it wrote, but for a data folder that was given."""
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _let_go(self, process: subprocess.Popen[bytes]) -> int:
        status = process.wait(STOP_S_MAX)
        if process.stdin is not None:
            process.stdin.close()
        return status

    @property
    def _log_file(self) -> Path:
        return self._root / "serve.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BrokerProcess {self.url} on {self.data}, {'running' if self.is_running else 'down'}>"
