"""A broker in the hands of a test: its commit thread does a round when the test says so, its time is the test's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.log.partition import Place
from penstock.broker.partition_state import PartitionState
from penstock.broker.settings import BrokerSettings
from penstock.clock import ManualClock
from tests.broker.batches import FORMAT

START_MS = 1_700_000_000_000
ROUNDS_MAX = 50


class Rig:
    """A broker that can be closed, killed and opened again."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.disk = options.pop("disk", None)
        self.settings = BrokerSettings(folder, **options)
        self.clock = ManualClock(1000.0, START_MS)
        self.open()

    def open(self) -> Broker:
        self.broker = Broker(
            *(self.settings, [FORMAT], self.clock.monotonic(), self.clock.wall_ms()), disk=self.disk, threaded=False
        )
        self.settle()
        return self.broker

    def close(self) -> None:
        self.broker.close()

    def again(self) -> Broker:
        """After a clean stop."""
        self.close()
        return self.open()

    def turn(self) -> float | None:
        """The end of a turn of the loop."""
        return self.broker.turn(self.clock.monotonic(), self.clock.wall_ms())

    def round(self) -> None:
        """One round of the commit thread, and what it did is told."""
        self.broker.committer.run_round()
        self.broker.finish()

    def settle(self) -> None:
        """Turns and rounds, until all that was handed over is told."""
        for _ in range(ROUNDS_MAX):
            self.turn()
            if not self.broker.committer.run_round():
                break
            self.broker.finish()
        self.turn()

    def pass_time(self, seconds: float, step_s: float = 1.0) -> None:
        """Let time pass with a turn every now and then, as the broker asks for."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(min(step_s, end - self.clock.monotonic()))
            self.settle()

    def create(self, name: str = "orders", partitions: int = 1, **settings: object) -> None:
        told: list[object] = []
        self.broker.topics.create(name, partitions, settings, now_ms=self.clock.wall_ms(), done=told.append)
        self.settle()
        assert told == [self.broker.topics.find(name)]

    def state(self, topic: str = "orders", number: int = 0) -> PartitionState:
        return self.broker.partition(topic, number)

    def send(
        self,
        entry: bytes,
        done: Callable[[Place | Exception], None] | None = None,
        topic: str = "orders",
        number: int = 0,
        **more: Any,
    ) -> Place:
        """Publish, as a door does."""
        header = FORMAT.check(entry)
        times = self.clock.monotonic(), self.clock.wall_ms()
        return self.state(topic, number).publish(FORMAT, entry, header, *times, done=done, **more)

    def sent(self, entry: bytes, topic: str = "orders", number: int = 0, **more: Any) -> Place:
        """Publish and wait until that is durable."""
        told: list[Place | Exception] = []
        place = self.send(entry, told.append, topic, number, **more)
        self.settle()
        assert told == [place]
        return place
