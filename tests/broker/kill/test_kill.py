"""`kill -9` at random moments: nothing acknowledged is missing, nothing is twice, no transaction is half visible."""

from __future__ import annotations

import gc
import logging
import random
import shutil
import warnings
from pathlib import Path

import pytest

from tests.broker.kill.copying import Copier, Reader
from tests.broker.kill.load import (
    Committer,
    KafkaPythonSender,
    OwnSender,
    OwnTransactions,
    PlainSender,
    Sender,
    Transactions,
)
from tests.broker.kill.raid import Load, raid, seed_of, served

SOME = {("group", "senders"): 3, ("group", "transactions"): 3, ("always", "transactions"): 1, ("system", "senders"): 2}
MANY = {"group": 200, "always": 100, "system": 100}
"""Kills under each policy of syncing; a killed process loses nothing under any."""


def run(folder: Path, fsync: str, rounds: int, kind: str) -> None:
    seed = seed_of(f"{kind}, fsync {fsync}, {rounds} kills")
    chance = random.Random(seed)
    with served(folder / "data", fsync) as broker:
        raid(broker, loads(broker.bootstrap, kind, chance), rounds, chance)


def loads(bootstrap: str, kind: str, chance: random.Random) -> list[Load]:
    def seed() -> int:
        return chance.randrange(1 << 32)

    if kind == "senders":
        sender = Sender(bootstrap, seed())
        others = (PlainSender(bootstrap, seed()), OwnSender(bootstrap, seed()), Committer(bootstrap, seed()))
        return [sender, *others, Reader(bootstrap, seed(), sender.topic)]
    if kind == "kafka-python":
        return [KafkaPythonSender(bootstrap, seed())]
    return [Transactions(bootstrap, seed()), OwnTransactions(bootstrap, seed()), Copier(bootstrap, seed())]


@pytest.mark.parametrize(("fsync", "kind"), SOME)
def test_killed_a_few_times(tmp_path: Path, fsync: str, kind: str) -> None:
    run(tmp_path, fsync, SOME[fsync, kind], kind)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["senders", "transactions"])
@pytest.mark.parametrize("fsync", MANY)
def test_killed_hundreds_of_times(tmp_path: Path, fsync: str, kind: str) -> None:
    for number in range(MANY[fsync] // 20):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(folder, fsync, 20, kind)
        shutil.rmtree(folder)


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_killed_under_another_official_producer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # lines that are kept hold its sockets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # which it forgets
        run(tmp_path, "group", 20, "kafka-python")
        gc.collect()
