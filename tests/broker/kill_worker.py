"""A broker that works on a folder until it is killed, and says what it begins and what it was told.

    python -m tests.broker.kill_worker FOLDER SEED FSYNC LIFE

Each line is JSON: `["begin", key, value]` before something is asked for, `["told", key, value]` when it was told to be
durable. What a key may be: `topic NAME` (its partitions, or null when it is deleted), `setting NAME`, `offset NAME`,
`cursor`, `log NUMBER` (the entries published to a partition of the topic that stays), `transaction NUMBER` (whether it
commits; its entries in both partitions of the ledger have its number for a time).
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.cursor import Cursor
from penstock.broker.groups.questions import Moment, Offset
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Scope
from penstock.wire.protocol import NO_MEMBER, Identity, Partition
from tests.broker.batches import FORMAT, batch

LOGS = 4
NAMES = tuple(f"topic-{number}" for number in range(6))
STAYS = "stays"
LEDGER = "ledger"
WRITER = "writer"
PRODUCER = 1_000_000
"""The first id of those that the broker has not given out."""
OPEN_MAX = 12
TURNS_MAX = 100_000


class Worker:
    """Does what the dice say, several things at a time, each thing one after the other."""

    def __init__(self, folder: Path, seed: int, fsync: str, life: int) -> None:
        self._dice = random.Random(seed)
        settings = BrokerSettings(
            folder,
            fsync=fsync,  # type: ignore[arg-type]
            checkpoint_ms=50,
            checkpoint_entries=20,
            partitions_default=2,
        )
        self._broker = Broker(settings, [FORMAT], time.monotonic(), time.time_ns() // 1_000_000)
        self._busy: set[str] = set()
        self._life = life
        self._setting = life * 1_000_000
        self._transaction = life * 1_000_000
        self._identity: Identity | None = None
        self._sequences = [0, 0]
        self._retry = False
        self._left = 0

    def say(self, *words: object) -> None:
        os.write(1, json.dumps(words).encode() + b"\n")

    def ask(self, key: str, value: object, work: Callable[[Callable[[Any], None]], None]) -> None:
        """Say what is asked for, ask for it, and say when it was told."""

        def told(outcome: object) -> None:
            self._busy.discard(key)
            if isinstance(outcome, Exception):
                raise outcome
            if isinstance(outcome, dict):
                assert not any(outcome.values()), outcome
            self.say("told", key, value)

        self._busy.add(key)
        self.say("begin", key, value)
        work(told)

    def run(self) -> None:
        broker = self._broker
        if broker.topics.find(STAYS) is None:
            self.ask(f"topic {STAYS}", LOGS, lambda told: self.create(STAYS, LOGS, told))
        broker.topics.ensure(LEDGER, now_ms=0, done=self.identify)
        poll = select.poll()
        poll.register(broker.fileno(), select.POLLIN)
        for _ in range(TURNS_MAX):
            if poll.poll(0 if len(self._busy) < OPEN_MAX else 1000):
                broker.finish()
            if broker.topics.find(STAYS) is not None:
                for _ in range(self._dice.randrange(4)):
                    self.step()
            broker.turn(time.monotonic(), time.time_ns() // 1_000_000)

    def step(self) -> None:
        others = (self.change_topic, self.change_setting, self.commit, self.acknowledge, self.transact, self.transact)
        self._dice.choice((*others, *[self.publish] * 4))()

    def create(self, name: str, partitions: int, told: Callable[[Any], None]) -> None:
        self._broker.topics.create(name, partitions, now_ms=0, done=told)

    def change_topic(self) -> None:
        name = self._dice.choice(NAMES)
        topics = self._broker.topics
        if f"topic {name}" in self._busy or f"setting {name}" in self._busy or f"offset {name}" in self._busy:
            return
        topic = topics.find(name)
        if topic is None:
            self.ask(f"topic {name}", 2, lambda told: self.create(name, 2, told))
        elif self._dice.random() < 0.5 and topic.partitions < 10:
            more = topic.partitions + 1
            self.ask(f"topic {name}", more, lambda told: topics.grow(name, more, told))
        else:
            self._broker.partition(name, 0)
            self.ask(f"topic {name}", None, lambda told: topics.delete(name, told))

    def change_setting(self) -> None:
        name = self._dice.choice(NAMES)
        if {f"topic {name}", f"setting {name}"} & self._busy or self._broker.topics.find(name) is None:
            return
        self._setting += 1
        value = self._setting
        scope = Scope("topic", name)
        self.ask(
            f"setting {name}",
            value,
            lambda told: self._broker.topics.change(scope, {"segment_ms": value}, (), told),
        )

    def commit(self) -> None:
        name = self._dice.choice(NAMES)
        if {f"topic {name}", f"offset {name}"} & self._busy or self._broker.topics.find(name) is None:
            return
        self._setting += 1
        offsets = {Partition(name, 0): Offset(self._setting, committed_ms=self._broker.now_ms)}
        at = Moment(self._broker.now, self._broker.now_ms)
        self.ask(
            f"offset {name}",
            self._setting,
            lambda told: self._broker.groups.commit("group", NO_MEMBER, offsets, told, at),
        )

    def acknowledge(self) -> None:
        state = self._broker.partition(STAYS, 0)
        if "cursor" in self._busy:
            return
        held = list(self._broker.cursors.of(state.topic, 0))
        if not held:
            self.ask("cursor", 0, lambda told: self._broker.cursors.create(state.topic, 0, "reader", 0, 0, told))
            return
        cursor: Cursor = held[0]
        position = self._dice.randint(cursor.position, state.readable_end())
        self.ask("cursor", position, lambda told: self._broker.cursors.acknowledge_before(cursor, position, 0, told))

    def publish(self) -> None:
        """The next numbered entry: its producer's sequence tells which one it is."""
        number = self._dice.randrange(LOGS)
        state = self._broker.partition(STAYS, number)
        key = f"log {number}"
        if sum(busy.startswith(key) for busy in self._busy) >= 4:
            return
        entry = batch(1, producer=PRODUCER + number, sequence=state.log.end, size=self._dice.choice((80, 80, 5000)))
        name = f"{key} {state.log.end}"

        def work(told: Callable[[Any], None]) -> None:
            state.publish(FORMAT, entry, FORMAT.check(entry), time.monotonic(), 0, done=told)

        self.ask(name, state.log.end, work)

    # Transactions

    def identify(self, _: object = None) -> None:
        """Take the transactional id; what an earlier life left open is aborted."""
        times = self._broker.now, self._broker.now_ms
        try:
            self._broker.transactions.identify(WRITER, 60_000, None, *times, self.identified)
        except Refused as refused:
            self.identified(refused)

    def identified(self, outcome: Identity | Exception) -> None:
        if isinstance(outcome, Refused) and outcome.reason is Refusal.CONCURRENT_TRANSACTION:
            self._identity = None
            self._retry = True
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            self._identity, self._sequences, self._retry = outcome, [0, 0], False

    def transact(self) -> None:
        """One transaction: some entries in both partitions, then its end."""
        if self._identity is None and self._retry:
            self.identify()
        if self._identity is None or "writing" in self._busy:
            return
        self._transaction += 1
        number, identity = self._transaction, self._identity
        self._busy.add("writing")
        self._left = 0
        for partition in (0, 1):
            for _ in range(self._dice.randrange(1, 3)):
                self._left += 1
                entry = batch(
                    *(1, identity.producer, identity.epoch, self._sequences[partition]),
                    transactional=True,
                    time_ms=number,
                )
                self._sequences[partition] += 1
                self._broker.partition(LEDGER, partition).publish(
                    *(FORMAT, entry, FORMAT.check(entry), self._broker.now, self._broker.now_ms, WRITER, WRITER),
                    lambda outcome: self.written(number, identity, outcome),
                    enlists=True,
                )

    def written(self, number: int, identity: Identity, outcome: object) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self._left -= 1
        if self._left:
            return
        commit = self._dice.random() < 0.6
        self._identity = None
        times = self._broker.now, self._broker.now_ms

        def work(told: Callable[[Any], None]) -> None:
            def ended(outcome: Identity | Exception) -> None:
                told(outcome)
                self._busy.discard("writing")
                self.identified(outcome)

            self._broker.transactions.end(WRITER, identity, commit, True, *times, ended)

        self.ask(f"transaction {number}", commit, work)


if __name__ == "__main__":
    Worker(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])).run()
