"""A broker killed at any moment: what it had told is there at the next start, and nothing is half done."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import cast

import pytest

from penstock.broker.broker import Broker
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings
from penstock.wire.entry import EntryFlag
from tests.broker.batches import FORMAT, batch
from tests.broker.kill_worker import LEDGER, LOGS, NAMES, PRODUCER, STAYS, WRITER


class Books:
    """What each key may be: the value that was told last, and those begun since."""

    def __init__(self) -> None:
        self.possible: defaultdict[str, list[object]] = defaultdict(lambda: [None])

    def note(self, line: bytes) -> None:
        word, key, value = json.loads(line)
        if key.startswith("log "):
            key = key.rpartition(" ")[0] + " " + word
            self.possible[key] = [max(value, *(held for held in self.possible[key] if isinstance(held, int)), -1)]
        elif word == "begin":
            self.possible[key].append(value)
        else:
            self.possible[key] = [value]
            if key.startswith("topic ") and value is None:
                name = key.removeprefix("topic ")
                self.possible.pop(f"setting {name}", None)
                self.possible.pop(f"offset {name}", None)

    def settle(self, key: str, value: object) -> None:
        """This is what it turned out to be."""
        assert value in self.possible[key], f"{key} is {value}, and could be {self.possible[key]}"
        self.possible[key] = [value]


def live_and_die(folder: Path, books: Books, seed: int, fsync: str, life: int) -> None:
    """Let a broker work until it has said some number of lines, then kill it; all it said counts."""
    dice = random.Random(seed)
    command = [sys.executable, "-m", "tests.broker.kill_worker", str(folder), str(seed), fsync, str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        lines = dice.randrange(5, 400)
        for _ in range(lines):
            line = worker.stdout.readline()
            if not line:
                raise AssertionError(worker.stderr.read().decode())
            books.note(line)
        worker.send_signal(signal.SIGKILL)
        for line in worker.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                books.note(line)
        assert b"Error" not in worker.stderr.read()


def verify(folder: Path, books: Books, fsync: str) -> None:
    broker = Broker(BrokerSettings(folder, fsync=fsync), [FORMAT], 0.0, 0, threaded=False)  # type: ignore[arg-type]
    try:
        for name in (*NAMES, STAYS):
            topic = broker.topics.find(name)
            books.settle(f"topic {name}", None if topic is None else topic.partitions)
        verify_rows(broker, books)
        known = {topic.id for topic in broker.topics}
        assert set(broker.logs.topic_ids()) <= known
        if broker.topics.find(STAYS) is not None:
            for number in range(LOGS):
                verify_log(broker, books, number)
        if broker.topics.find(LEDGER) is not None:
            verify_ledger(broker, books)
    finally:
        broker.close()


def verify_rows(broker: Broker, books: Books) -> None:
    offsets = {row.topic: row.position for row in broker.store.offsets()}
    assert offsets.keys() <= {topic.name for topic in broker.topics}
    for name in NAMES:
        topic = broker.topics.find(name)
        if topic is None:
            books.possible.pop(f"offset {name}", None)
            books.possible.pop(f"setting {name}", None)
            continue
        books.settle(f"offset {name}", offsets.get(name))
        default = BrokerSettings(broker.settings.folder).topics.get("segment_ms", 604_800_000)
        held = topic.settings.segment_ms
        books.settle(f"setting {name}", None if held == default else held)
    stays = broker.topics.find(STAYS)
    if stays is not None:
        books.settle("cursor", next((cursor.position for cursor in broker.cursors.of(stays, 0)), None))


def verify_log(broker: Broker, books: Books, number: int) -> None:
    state = broker.partition(STAYS, number)
    told, begun = (books.possible[f"log {number} {word}"][0] for word in ("told", "begin"))
    end = state.readable_end()
    assert (-1 if told is None else told) < end <= (-1 if begun is None else begun) + 1  # type: ignore[operator]
    sequences = [at.header.sequence for at in state.log.entries(0)]
    assert sequences == list(range(end))
    books.possible[f"log {number} told"] = books.possible[f"log {number} begin"] = [end - 1]
    if end:
        known = state.producers.get(PRODUCER + number)
        assert known is not None
        assert known.last_sequence == end - 1
        again = batch(1, producer=PRODUCER + number, sequence=end - 1)
        assert state.publish(FORMAT, again, FORMAT.check(again), 0.0, 0) == (end - 1, end - 1)
        gap = batch(1, producer=PRODUCER + number, sequence=end + 1)
        with pytest.raises(Refused) as refused:
            state.publish(FORMAT, gap, FORMAT.check(gap), 0.0, 0)
        assert refused.value.reason is Refusal.OUT_OF_ORDER


def verify_ledger(broker: Broker, books: Books) -> None:
    """Every transaction is in both partitions or in none, as it was told; none is left open by who comes next."""
    told: list[object] = []
    for number in (0, 1):
        broker.partition(LEDGER, number)
    settle(broker)
    for _ in range(10):
        with contextlib.suppress(Refused):  # one that is being ended must be waited for
            broker.transactions.identify(WRITER, 60_000, None, 1.0, 0, told.append)
        settle(broker)
    assert told
    assert not [outcome for outcome in told if isinstance(outcome, Exception)]
    first, second = (committed(broker, number) for number in (0, 1))
    assert first == second
    for key, values in books.possible.items():
        if key.startswith("transaction "):
            number = int(key.split()[1])
            assert (number in first) in values or (None in values and number not in first), (key, values)


def committed(broker: Broker, number: int) -> set[int]:
    """The transactions that a reader of what is committed sees."""
    state = broker.partition(LEDGER, number)
    end = state.readable_end(committed_only=True)
    assert end == state.readable_end()
    aborted = state.producers.aborted(0, end)
    return {
        at.header.max_time_ms
        for at in state.log.entries(0)
        if not at.header.flags & EntryFlag.CONTROL
        and not any(
            each.producer == at.header.producer and each.first <= cast("int", at.header.first) <= each.last
            for each in aborted
        )
    }


def settle(broker: Broker) -> None:
    for turn in range(50):
        broker.turn(1.0 + turn, 0)
        if not broker.committer.run_round():
            return
        broker.finish()
    raise AssertionError("there is always more to do")


def lives(folder: Path, count: int, first_seed: int, fsync: str) -> None:
    books = Books()
    for life in range(count):
        live_and_die(folder, books, first_seed + life, fsync, life)
        verify(folder, books, fsync)


@pytest.mark.parametrize("fsync", ["group", "system"])
def test_nothing_that_was_told_is_missing_after_a_kill(tmp_path: Path, fsync: str) -> None:
    lives(tmp_path, 3, 100, fsync)


@pytest.mark.stress
@pytest.mark.parametrize("fsync", ["always", "group", "system"])
def test_nothing_that_was_told_is_missing_after_many_kills(tmp_path: Path, fsync: str) -> None:
    lives(tmp_path, 100, 10_000, fsync)
