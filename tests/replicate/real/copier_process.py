"""A replicator that is a process of its own, and can be killed, frozen and started again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from brokers.process import Guarded
from tests.replicate.real.copier_main import AGAIN

SCRIPT = Path(__file__).with_name("copier_main.py")
TAIL_CHARS = 3000
ENDS_WITHIN_S = 60.0


class CopierProcess:
    """One pipeline, one process at a time. Runs on: one thread at a time."""

    def __init__(self, log: Path, told: dict[str, Any]) -> None:
        self.log = log
        self._told = told
        self._process: Guarded | None = None

    def __repr__(self) -> str:
        return f"<CopierProcess {self._process}>"

    @property
    def process(self) -> Guarded:
        assert self._process is not None, "it was not started"
        return self._process

    def start(self) -> None:
        self._process = Guarded.start([sys.executable, str(SCRIPT), json.dumps(self._told)], self.log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def look(self) -> None:
        """See that it is at work: it may end by itself only where it could not begin, and then begins again."""
        if not self.process.running:
            status = self.process.wait(ENDS_WITHIN_S)
            assert status == AGAIN, f"the copier ended with {status}: {self.tail()}"
            self.start()

    def status(self) -> int:
        """What it ends with, by itself."""
        status = self.process.wait(ENDS_WITHIN_S)
        assert status is not None, f"it does not end: {self.tail()}"
        return status

    def tail(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-TAIL_CHARS:] if self.log.exists() else "nothing"
