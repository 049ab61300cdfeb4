"""What the gates count, labelled cluster, namespace and topic.

| metric | kind | meaning |
|---|---|---|
| `penstock_io_waiting_bytes` | gauge | bytes of frames that wait in gates |
| `penstock_io_write_bytes` | histogram | bytes of the topic in each write |
| `penstock_io_writes_total` | counter | writes with bytes of the topic |
| `penstock_io_frames_total` | counter | frames with bytes of the topic, handed to the transport |

A write is one opening of a gate. A frame can carry batches of several topics, and a write frames of several topics:
each topic counts its own bytes, and the write as one of its own. A transport that is full takes a write in pieces, or
several at once; how many calls of the system there were is counted by each connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.metrics import Family, Registry
from penstock.net.failures import InvariantError

LABELS: Final = ("cluster", "namespace", "topic")
WRITE_BOUNDS: Final = tuple(4**power for power in range(4, 14))  # 256 bytes to 64 MiB


class Meter:
    """One topic's numbers, and the check that they add up. Runs on: the I/O thread."""

    __slots__ = (
        "_bytes",
        "_families",
        "_frames",
        "_frames_total",
        "_gauge",
        "_labels",
        "_write_bytes",
        "_writes_total",
    )

    def __init__(self, registry: Registry, cluster: str, namespace: str, topic: str) -> None:
        self._labels = dict(zip(LABELS, (cluster, namespace, topic), strict=True))
        gauges = registry.gauge("penstock_io_waiting_bytes", "Bytes of frames that wait in gates.", LABELS)
        histograms = registry.histogram(
            "penstock_io_write_bytes", "Bytes of the topic in each write.", LABELS, bounds=WRITE_BOUNDS
        )
        writes = registry.counter("penstock_io_writes_total", "Writes with bytes of the topic.", LABELS)
        frames = registry.counter(
            "penstock_io_frames_total", "Frames with bytes of the topic, handed to the transport.", LABELS
        )
        self._families: tuple[Family[Any], ...] = (gauges, histograms, writes, frames)
        self._gauge = gauges.labels(**self._labels)
        self._write_bytes = histograms.labels(**self._labels)
        self._writes_total = writes.labels(**self._labels)
        self._frames_total = frames.labels(**self._labels)
        self._bytes = 0
        self._frames = 0

    def is_idle(self) -> bool:
        """Whether nothing of the topic waits."""
        return self._frames == 0

    def remove(self) -> None:
        """Show these numbers no more."""
        for family in self._families:
            family.remove(**self._labels)

    def wait(self, size: int) -> None:
        """A frame with so many bytes of the topic waits."""
        self._bytes += size
        self._frames += 1
        self._gauge.set(self._bytes)

    def let_go(self, size: int) -> None:
        """A frame with so many bytes of the topic waits no more. Raises `InvariantError` when it never did."""
        self._bytes -= size
        self._frames -= 1
        self._gauge.set(self._bytes)
        if self._frames < 0 or (self._frames == 0 and self._bytes != 0):
            raise InvariantError(
                f"{self._bytes} bytes of {self._frames} frames wait for {'/'.join(self._labels.values())} after "
                f"{size} bytes were let go: no backlog must mean zero bytes waiting"
            )

    def wrote(self, size: int, frames: int) -> None:
        """A write held so many bytes and frames of the topic."""
        self._write_bytes.observe(size)
        self._writes_total.add()
        self._frames_total.add(frames)

    def __repr__(self) -> str:
        return f"<Meter of {'/'.join(self._labels.values())}, {self._frames} frames of {self._bytes} bytes wait>"


class Share(NamedTuple):
    """How many bytes of a frame belong to a topic. A frame names a topic once."""

    meter: Meter
    size: int


class Meters:
    """The meters of one cluster, one per topic in use. Runs on: the I/O thread."""

    def __init__(self, registry: Registry, cluster: str) -> None:
        self._registry = registry
        self._cluster = cluster
        self._meters: dict[tuple[str, str], Meter] = {}

    def of(self, topic: str, namespace: str = "") -> Meter:
        """The meter of a topic, made when first asked for. Keep it rather than ask again."""
        meter = self._meters.get((namespace, topic))
        if meter is None:
            meter = self._meters[namespace, topic] = Meter(self._registry, self._cluster, namespace, topic)
        return meter

    def forget(self, topic: str, namespace: str = "") -> None:
        """Count no more for this topic, which nobody uses; one that still has frames waiting is kept."""
        meter = self._meters.get((namespace, topic))
        if meter is not None and meter.is_idle():
            del self._meters[namespace, topic]
            meter.remove()

    def __repr__(self) -> str:
        return f"<Meters of {self._cluster}, {len(self._meters)} topics>"


def wait(shares: Sequence[Share]) -> None:
    """The topics of a frame have it waiting."""
    for share in shares:
        share.meter.wait(share.size)


def let_go(shares: Sequence[Share]) -> None:
    """The topics of a frame have it waiting no more."""
    for share in shares:
        share.meter.let_go(share.size)


def wrote(shares: Sequence[Share]) -> None:
    """Count one write: these are the shares of all its frames."""
    if len(shares) == 1:
        shares[0].meter.wrote(shares[0].size, 1)
        return
    sums: dict[Meter, tuple[int, int]] = {}
    for share in shares:
        size, frames = sums.get(share.meter, (0, 0))
        sums[share.meter] = (size + share.size, frames + 1)
    for meter, (size, frames) in sums.items():
        meter.wrote(size, frames)
