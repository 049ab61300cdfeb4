"""Kills a broker again and again while clients work, and prints the seed by which a run can be had again."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from brokers.penstock import PenstockBroker

LIMIT_S = 120.0


class Load(Protocol):
    """A client at work on threads of its own."""

    def progress(self) -> int:
        """How much has been acknowledged so far."""

    def start(self) -> None: ...

    def killed(self) -> None:
        """The broker is back after a kill: look at what must hold at once."""

    def stop(self) -> None:
        """Finish what was begun, with the broker up, and end."""

    def check(self) -> None:
        """Compare what the broker holds with what it had said."""


def seed_of(name: str) -> int:
    """The seed of this run: PENSTOCK_SEED, or a new one, which is printed."""
    seed = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"{name}: PENSTOCK_SEED={seed}\n")
    return seed


def raid(broker: PenstockBroker, loads: Sequence[Load], rounds: int, chance: random.Random) -> None:
    """Let the loads work, kill the broker so many times at moments of chance, let them finish, and check."""
    for load in loads:
        load.start()
    await_progress(loads)
    for _ in range(rounds):
        time.sleep(chance.uniform(0.02, 0.7))
        broker.kill()
        while chance.random() < 0.2:  # and again, before it is ready
            broker.launch()
            time.sleep(chance.uniform(0.0, 0.5))
            broker.kill()
        broker.restart()
        for load in loads:
            load.killed()
    await_progress(loads)
    for load in loads:
        load.stop()
    for load in loads:
        load.check()
    broker.kill()
    broker.restart()
    for load in loads:
        load.check()


def await_progress(loads: Sequence[Load]) -> None:
    """Wait until every load has gone on from where it is."""
    before = [load.progress() for load in loads]
    over = time.monotonic() + LIMIT_S
    while stuck := [load for load, was in zip(loads, before, strict=True) if load.progress() <= was]:
        assert time.monotonic() < over, f"{stuck} do not go on"
        time.sleep(0.01)


def served(folder: Path, fsync: str, *options: str) -> PenstockBroker:
    """A broker on this folder, small enough in its segments that kills hit their rolling too."""
    return PenstockBroker(["--fsync", fsync, "--http-port", "none", *options], data=folder)
