"""A pipeline wired to a toy broker."""

from __future__ import annotations

from penstock.config import BatchIo
from penstock.net.gate import AT_ONCE, IoMemory
from penstock.net.pipeline import (
    Lost,
    Pipeline,
    PipelineEvent,
    PipelineLimits,
    State,
)
from penstock.wire.protocol import ClusterView, Endpoint, Ready

from .memory import Faults, MemoryStream, Say, ToyBroker, ToyConnection, frame

HERE = Endpoint("toy", 7)
SLOW = BatchIo(delay_ms=100, bytes_max=100_000)
HELLO = frame(0, 0)


class Wired:
    """A pipeline to a toy broker."""

    def __init__(self, faults: Faults | None = None, limits: PipelineLimits | None = None, room: int = 4096) -> None:
        self.broker = ToyBroker(HERE, ClusterView("toy", {}, {}))
        self.stream = MemoryStream(HERE, faults or Faults(), self.broker.hear)
        self.memory = IoMemory(1 << 20)
        self.wire = ToyConnection()
        self.pipeline = Pipeline(
            "toy:7", self.stream, self.wire, self.memory, memoryview(bytearray(room)), limits or PipelineLimits()
        )

    def ready(self, now: float = 0.0) -> Pipeline:
        """The pipeline, connected and greeted."""
        assert self.pipeline.tick(now) == []
        assert self.pipeline.on_readable(now) == [Ready({})]
        return self.pipeline

    def say(self, *texts: bytes, now: float = 0.0, policy: BatchIo = AT_ONCE) -> None:
        for text in texts:
            self.pipeline.submit(Say(text), text.decode(), now, policy)

    def read(self, now: float = 0.0) -> list[PipelineEvent]:
        events = []
        while self.stream.is_readable() and self.pipeline.state is not State.CLOSED:
            events += self.pipeline.on_readable(now)
        return events


def lost(events: list[PipelineEvent]) -> dict[object, type[Exception]]:
    return {event.token: type(event.error) for event in events if isinstance(event, Lost)}
