"""One job in a process of its own: `python -m bench.produce.jobs JOB RESULT`, as `bench.peers.python_jobs` has it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from bench.peers import python_jobs
from bench.peers.measure import Figures
from bench.peers.python_jobs import Job
from bench.produce import asyncio_jobs


def _ours(module: str, name: str) -> Callable[[Job], Figures]:
    """A job of ours, loaded when it is run: the peers' processes do without our modules."""

    def run(job: Job) -> Figures:
        figures: Figures = getattr(importlib.import_module(f"bench.produce.{module}"), name)(job)
        return figures

    return run


JOBS = asyncio_jobs.JOBS | {
    ("penstock", "send"): _ours("ours", "send"),
    ("penstock", "send_many"): _ours("ours", "send_many"),
    ("penstock", "send_table"): _ours("ours", "send_table"),
    ("penstock", "gate"): _ours("gate_job", "gate"),
    ("penstock", "busy"): _ours("busy_job", "busy"),
}

if __name__ == "__main__":
    python_jobs.main(Path(sys.argv[1]), Path(sys.argv[2]), JOBS)
