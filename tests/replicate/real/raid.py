"""Strikes the source, the target or the replicator between them, again and again while the source grows.

In the end the topic is whole at the target: each message once and in order, or, without transactions, in order and with
repeats. Official consumers of what is committed tell.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from brokers.kafka import KafkaCluster
from brokers.penstock import PenstockBroker
from penstock.replicate.note import group_of
from penstock.replicate.translate import Translator
from tests.broker.kill.raid import seed_of
from tests.produce.real.reading import Read, by_partition, create, read_all
from tests.produce.real.test_faults import LONGER_THAN_A_REQUEST_S, LONGER_THAN_A_SESSION_S
from tests.replicate.pair import Pair
from tests.replicate.real.copier_main import FENCED
from tests.replicate.real.copier_process import CopierProcess
from tests.replicate.real.equality import COMMITTED, check_equal, sorted_out
from tests.replicate.real.load import DAY_MS, PARTITIONS, Deals, Feed

LIMIT_S = 120.0
QUICKLY = {"commit_interval_ms": 60, "retry_backoff_ms": 20, "retry_backoff_max_ms": 300, "fetch_wait_ms": 50}
COPY = "copy-of-{topic}"

Broker: TypeAlias = KafkaCluster | PenstockBroker
Victim: TypeAlias = Literal["copier", "zombie", "source", "target", "node"]


@dataclass
class Raid:
    """Two brokers, or one that is both, a copier between them, and who is struck."""

    source: Broker
    target: Broker
    victim: Victim
    delivery: str
    rounds: int
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    old_way: bool = False
    """Whether the copier takes the target for one that does not enlist partitions by itself."""

    def run(self) -> None:
        """All rounds, and the judgement."""
        self.chance = random.Random(seed_of(f"{self.victim} struck {self.rounds} times, {self.delivery}"))
        self.topic = create(self.source.bootstrap, PARTITIONS)
        self.copy = COPY.format(topic=self.topic)
        self.pair = Pair(self.source.url, self.target.url)
        repack = self.chance.choice(["auto", "never"])
        self.pipeline: dict[str, Any] = {
            "name": self.topic,
            "rename": COPY,
            "delivery": self.delivery,
            "repack": repack,
            **QUICKLY,
        }
        self.copier = self._new_copier(0)
        try:
            self._raid(self._loads())
            self._catch_up()
            self.copier.kill()
            self.pair.copy_all(self.topic, **self.pipeline, **self.options)
            self._judge()
        finally:
            self.copier.kill()
            self.pair.close()

    def _new_copier(self, number: int) -> CopierProcess:
        ends = {"source": self.source.url, "target": self.target.url, "topics": [self.topic], "old_way": self.old_way}
        return CopierProcess(self.folder / f"copier-{number}.log", {**ends, **self.pipeline, **self.options})

    def _loads(self) -> list[Feed | Deals]:
        # A broker forgets a producer by the times of its messages: what is old is known no more after a restart.
        is_source_spared = self.victim in ("copier", "zombie", "target")
        age_ms = self.chance.choice([0, 2 * DAY_MS]) if is_source_spared else 0
        return [
            Feed(self.source.bootstrap, self.chance.randrange(1 << 32), self.topic, age_ms),
            Deals(self.source.bootstrap, self.chance.randrange(1 << 32), self.topic),
        ]

    # The rounds

    def _raid(self, loads: Sequence[Feed | Deals]) -> None:
        strike = self._strikes()[self.victim]
        for load in loads:
            load.start()
        self.copier.start()
        self._await_commits({})
        for number in range(1, self.rounds + 1):
            before = self._committed()
            time.sleep(self.chance.uniform(0.02, 0.8))
            strike(number)
            if self.chance.random() < 0.7:  # else it is struck before it has recovered
                self._await_commits(before)
        for load in loads:
            load.stop()

    def _strikes(self) -> dict[Victim, Callable[[int], None]]:
        return {
            "copier": lambda _: self._kill_copier(),
            "zombie": self._replace_copier,
            "source": lambda _: self._kill_broker(self.source),
            "target": lambda _: self._kill_broker(self.target),
            "node": lambda _: self._strike_node(),
        }

    def _kill_copier(self) -> None:
        self.copier.kill()
        while self.chance.random() < 0.3:  # and again, while it begins
            self.copier.start()
            time.sleep(self.chance.uniform(0.0, 1.5))
            self.copier.kill()
        self.copier.start()

    def _replace_copier(self, number: int) -> None:
        """Freeze the copier, let another take its place, and let the first go on: it must end for good."""
        first, self.copier = self.copier, self._new_copier(number)
        first.process.freeze()
        self.copier.start()
        self._await_commits(self._committed())
        first.process.thaw()
        assert first.status() == FENCED, first.tail()

    def _kill_broker(self, broker: Broker) -> None:
        broker.kill(1)
        while isinstance(broker, PenstockBroker) and self.chance.random() < 0.2:  # and again, while it begins
            broker.launch()
            time.sleep(self.chance.uniform(0.0, 0.5))
            broker.kill()
        time.sleep(self.chance.uniform(0.0, 0.5))
        broker.restart(1)

    def _strike_node(self) -> None:
        """Whatever can happen to one of several nodes: others lead then what it led, and keep its books."""
        kafka = self.source
        assert isinstance(kafka, KafkaCluster)
        node = self.chance.choice(kafka.nodes)
        fault = self.chance.choice(["killed", "shut down", "paused"])
        if fault == "paused":
            kafka.pause(node)
            time.sleep(self.chance.choice([LONGER_THAN_A_REQUEST_S, LONGER_THAN_A_SESSION_S]))
            kafka.resume(node)
            return
        kafka.kill(node) if fault == "killed" else kafka.shut_down(node)
        time.sleep(self.chance.uniform(0.0, LONGER_THAN_A_SESSION_S))
        kafka.restart(node)

    # How far the copier is

    def _committed(self) -> dict[int, int]:
        return self.pair.target.client.cursor(self.copy, group_of(self.topic)).positions(LIMIT_S)

    def _await_commits(self, before: dict[int, int]) -> None:
        """Wait until the copier goes on."""
        self._await(lambda: sum(self._committed().values()) > sum(before.values()), f"behind {before}")

    def _catch_up(self) -> None:
        """Wait until the copier has come by itself to where the source ends; markers of transactions may follow."""
        with self.pair.source.client.reader(self.topic, "latest", isolation="uncommitted") as reader:
            reader.ready(LIMIT_S)
            ends = reader.positions()

        def is_there() -> bool:
            committed = self._committed()
            return all(committed.get(number, -1) >= end for number, end in ends.items())

        self._await(is_there, f"to {ends}")

    def _await(self, condition: Callable[[], bool], where: str) -> None:
        over = time.monotonic() + LIMIT_S
        while not (self._is_there() and condition()):
            self.copier.look()
            assert time.monotonic() < over, (
                f"it does not come {where}, but to {self._committed()}: {self.copier.tail()}"
            )
            time.sleep(0.02)

    def _is_there(self) -> bool:
        """Whether there is a copy that can be asked about."""
        return self.copy in self.pair.target.client.topics(LIMIT_S)

    # The judgement

    def _judge(self) -> None:
        original = read_all(self.source.bootstrap, self.topic, **COMMITTED)
        copy = read_all(self.target.bootstrap, self.copy, **COMMITTED)
        assert len(original) > 100
        if self.delivery == "exactly-once":
            check_equal(sorted_out(copy), sorted_out(original))
            self._check_map(by_partition(original), by_partition(copy))
        else:
            check_repeats(by_partition(original), by_partition(copy))

    def _check_map(self, original: dict[int, list[Read]], copy: dict[int, list[Read]]) -> None:
        """Each message is where the position map says."""
        ends = (self.pair.source.client, self.pair.target.client)
        translator = Translator(*ends, self.topic, lambda _: self.copy, copier=group_of(self.topic))
        for number, reads in original.items():
            mapped = translator.map_of(self.topic, number).targets_of(np.array([read.offset for read in reads]))
            assert mapped.tolist() == [read.offset for read in copy[number]], f"the map of partition {number}"


def check_repeats(original: dict[int, list[Read]], copy: dict[int, list[Read]]) -> None:
    """Whether a copy is whole and in order but for repeats, each of which goes back, and from there on again."""
    assert copy.keys() == original.keys()
    for number, reads in original.items():
        places = {read.value: index for index, read in enumerate(reads)}
        assert len(places) == len(reads), "the original itself holds something twice"
        reached = -1
        for found in copy[number]:
            index = places[found.value]
            assert index <= reached + 1, f"partition {number}: {found} stands before messages {reached + 1} to {index}"
            same = reads[index]
            assert (found.key, found.headers, found.time_ms) == (same.key, same.headers, same.time_ms)
            reached = max(reached, index)
        assert reached == len(reads) - 1, f"partition {number} ends behind message {reached} of {len(reads)}"
