"""Runs one job of a peer in a guarded process of its own and brings its result back."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brokers.process import Guarded
from brokers.runtime import ROOT

LOG_TAIL_CHARS = 2000


class PeerError(Exception):
    """A peer did not do its job; the text ends with what it wrote last."""


def run_module(
    module: str,
    job: Mapping[str, Any],
    limit_s: float,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run `python -m module JOB RESULT` and return the JSON that it wrote to RESULT."""
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        command = [python, "-m", module, str(folder / "job.json"), str(folder / "result.json")]
        surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        program = Guarded.start(command, folder / "log", surroundings, remove=folder)
        status = program.wait(limit_s)
        if status is None:
            program.kill()
        if status != 0 or not (folder / "result.json").exists():
            why = f"ended with {status}" if status is not None else f"did not end within {limit_s:.0f} s"
            tail = (folder / "log").read_text(errors="replace")[-LOG_TAIL_CHARS:]
            raise PeerError(f"{module} {why}:\n{tail}")
        return json.loads((folder / "result.json").read_text())
