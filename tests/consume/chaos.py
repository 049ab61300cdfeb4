"""Seeded runs of several readers on a cluster in trouble, and what must hold at their end.

Each run draws which kinds of trouble there are at all, since trouble of all kinds at once hides what a single one does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.wire.compression import Codec
from penstock.wire.kafka.codes import TABLE
from penstock.wire.kafka.header import peek
from tests.consume.harness import Harness, Line
from tests.consume.model import ModelBroker, ModelLog
from tests.net.memory import Faults

CORRUPT = 2
PASSING = tuple(row.number for row in TABLE if row.error.retriable and row.number != CORRUPT)
USUAL = (3, 5, 6, 7, 9, 13, 56, 72, 74, 75, 78, 100, 103)
OUT_OF_RANGE = 1
CONTROLS = (2, 9, 10, 23, 32)
STEPS = 25


@dataclass
class Ranged:
    """A reader, and which positions of each partition it is to read; without an end, all."""

    line: Line
    start: dict[int, int]
    end: dict[int, int] | None
    unit: str
    committed: bool


class Trouble:
    """Which kinds of trouble a run has, and how often."""

    def __init__(self, chance: random.Random) -> None:
        def some(*rates: float) -> float:
            return chance.choice((0.0, 0.0, *rates))

        self.codes = some(0.03, 0.15, 0.4)
        self.cuts = some(0.3, 1.0)
        self.delays = some(0.1, 0.5)
        self.leaders = some(0.1, 0.3)
        self.deaths = some(0.05, 0.1)
        self.throttles = some(0.1)
        self.pieces = some(0.5)
        self.slow = some(0.5)
        self.growth = some(0.05)
        self.holes = some(0.1, 0.9)
        self.controls = some(0.1, 0.3)


class Chaos:
    """One run."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.trouble = Trouble(chance)
        self.harness = Harness(
            seed=seed,
            nodes=3,
            fetch_version=chance.choice([4, 8, 11, 12, 13, 17, 17]),
            ids=chance.random() < 0.5,
            request_timeout_ms=chance.choice([500, 2000]),
            retry_backoff_ms=chance.choice([20, 50, 200]),
            retry_backoff_max_ms=chance.choice([200, 1000]),
            metadata_age_max_ms=chance.choice([1000, 300_000]),
            in_flight_max=chance.choice([1, 5]),
        )
        self.model = self.harness.model
        self.model.create("t", chance.choice([1, 3, 7]))
        if self.trouble.holes:
            self.model.compacted.add("t")
        self.readers: list[Ranged] = []
        self.arm()

    @property
    def logs(self) -> list[ModelLog]:
        return self.model.topics["t"]

    # Trouble

    def arm(self) -> None:
        chance, trouble = self.chance, self.trouble
        self.model.refusal = self.refuse
        self.model.delay = lambda: chance.choice([0.01, 0.3, 1.5]) if chance.random() < trouble.delays else 0.0
        for key in CONTROLS:
            self.model.codes[key] = lambda: chance.choice(USUAL) if chance.random() < trouble.controls else 0
        for broker in self.model.brokers.values():
            broker.faults = self.connection_faults

    def refuse(self, broker: ModelBroker, topic: str, partition: int) -> int:
        if self.chance.random() >= self.trouble.codes:
            return 0
        return self.chance.choice([*USUAL, OUT_OF_RANGE, self.chance.choice(PASSING)])

    def connection_faults(self) -> Faults:
        chance, faults = self.chance, Faults()
        if chance.random() < self.trouble.cuts:
            faults.cut_after_given = chance.choice([None, 0, 100, 1000, 5000])
            faults.cut_after_sent = chance.choice([None, 0, 50, 300, 2000])
        if chance.random() < self.trouble.pieces:
            faults.give_max = chance.choice([37, 200, 1000])
            faults.take_max = chance.choice([20, 100])
        faults.refuse = chance.random() < self.trouble.deaths / 2
        return faults

    def disturb(self) -> None:
        chance, trouble, model = self.chance, self.trouble, self.model
        if chance.random() < trouble.leaders:
            chance.choice(self.logs).lead(chance.choice([None, 1, 2, 3]))
        if chance.random() < trouble.deaths:
            broker = chance.choice(list(model.brokers.values()))
            if broker.is_up:
                broker.die()
            else:
                broker.is_up, broker.faults = True, self.connection_faults
        if chance.random() < trouble.cuts:
            chance.choice(list(model.brokers.values())).cut()
        for broker in model.brokers.values():
            broker.throttle_ms = chance.choice([50, 700]) if chance.random() < trouble.throttles else 0
        if chance.random() < trouble.growth:
            model.grow("t", min(len(self.logs) + 1, 9))

    # Messages

    def write(self) -> None:
        for log in self.logs:
            for _ in range(self.chance.choice([0, 0, 1, 3, 10])):
                self.write_one(log)

    def write_one(self, log: ModelLog) -> None:
        chance = self.chance
        producer = chance.choice([None, None, 1, 2, 3])
        if producer is not None and producer in log.open and chance.random() < 0.5:
            log.finish(producer, commit=chance.random() < 0.5)
        else:
            codec = chance.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP])
            log.write(chance.choice([1, 2, 5, 40]), producer, codec=codec)

    def compact(self) -> None:
        """Take entries out of the middle, before anybody reads."""
        for log in self.logs:
            for entry in list(log.entries):
                if self.chance.random() < self.trouble.holes and not int(peek(entry.data).flags):
                    log.remove(entry.first, entry.last)

    # Readers

    def open_reader(self) -> None:
        chance = self.chance
        committed = chance.random() < 0.7
        numbers = list(range(len(self.logs)))
        start = {number: chance.choice([0, chance.randrange(self.logs[number].end + 1)]) for number in numbers}
        end = None
        if chance.random() < 0.6:
            end = {number: chance.randrange(start[number], self.logs[number].end + 20) for number in numbers}
        unit = chance.choice(["message", "message", "batch"])
        line = self.harness.reader(
            start=start,
            end=end,
            unit=unit,
            isolation="committed" if committed else "uncommitted",
            prefetch_bytes_max=chance.choice([64 << 10, 1 << 20]),
            partition_bytes_max=chance.choice([1, 500, 5000, 1 << 20]),
            fetch_bytes_max=chance.choice([1, 1000, 1 << 20]),
            fetch_wait_ms=chance.choice([20, 500]),
        )
        self.readers.append(Ranged(line, start, end, unit, committed))

    # The run

    def run(self) -> None:
        for _ in range(3):
            self.write()
        self.compact()
        for _ in range(self.chance.choice([1, 2, 3])):
            self.open_reader()
        for _ in range(STEPS):
            self.disturb()
            self.write()
            self.harness.advance(self.chance.choice([0.0, 0.05, 0.5, 2.0]))
            for ranged in self.readers:
                if self.chance.random() >= self.trouble.slow:
                    ranged.line.drain()
        self.calm()
        for ranged in self.readers:
            self.finish(ranged)
        self.harness.check_idle()

    def calm(self) -> None:
        """The trouble is over: all leaders are back, all transactions end, and enough is written for all ranges."""
        model = self.model
        model.refusal = lambda broker, topic, partition: 0
        model.delay = lambda: 0.0
        model.codes.clear()
        for broker in model.brokers.values():
            broker.is_up, broker.throttle_ms, broker.faults = True, 0, Faults
        for number, log in enumerate(self.logs):
            if log.leader is None:
                log.lead(1 + number % 3)
            for producer in list(log.open):
                log.finish(producer, commit=self.chance.random() < 0.5)
            for _ in range(3):
                log.write(10)

    def finish(self, ranged: Ranged) -> None:
        line = ranged.line
        ends = ranged.end or {number: self.logs[number].end for number in ranged.start}
        self.harness.run(lambda: (line.drain(), line.is_over or (ranged.end is None and self.marks(line) == ends))[1])
        assert line.error is None, line.error
        assert self.marks(line) == ends
        if ranged.end is None:
            line.close()
        found: dict[int, list[int]] = {number: [] for number in ranged.start}
        if ranged.unit == "batch":
            for entry in line.items:
                seen = range(entry.begin, min(entry.end, entry.header.first + entry.header.count))
                found[entry.partition] += seen
        else:
            for row in line.rows:
                found[row.partition].append(row.position)
                assert row.value == b"%d" % row.position
        assert found == {number: self.expected(ranged, number, end) for number, end in ends.items()}

    def marks(self, line: Line) -> dict[int, int]:
        return {number: mark.position for number, mark in line.core.marks.items()}

    def expected(self, ranged: Ranged, number: int, end: int) -> list[int]:
        log = self.logs[number]
        seen = log.committed() if ranged.committed else log.everything()
        return [position for position in seen if ranged.start[number] <= position < end]
