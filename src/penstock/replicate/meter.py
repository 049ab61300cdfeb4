"""What is counted of copying, for a client's metrics.

| metric | kind | labels | meaning |
|---|---|---|---|
| `penstock_copy_entries_total` | counter | `outcome` | entries: `unopened`, the reason for which they were opened, `filtered` (skipped unopened), `returned` (came from the target), `aborted`, `control`, `empty` |
| `penstock_copy_messages_total` | counter | `outcome` | messages: `copied`, `filtered`, `sifted`, `returned`, `aborted` |
| `penstock_copy_bytes_total` | counter | | bytes stored in the target |
| `penstock_copy_batches_total` | counter | | batches stored in the target |
| `penstock_copy_commits_total` | counter | | positions committed |
| `penstock_copy_rewinds_total` | counter | | how often copying went back after a failure |
| `penstock_copy_missing_total` | counter | | positions of the source that were gone, and passed over |
| `penstock_copy_skipped_total` | counter | | positions for which the source's broker gave nothing: filtered there, or taken out by compaction |
| `penstock_copy_delay_seconds` | gauge | | age of the oldest message that is not copied; never 0 while there is one |
| `penstock_copy_waiting_bytes` | gauge | | bytes on their way to the target |
| `pulsar_replicator_io_buffer_total_bytes` | gauge | | bytes of frames that wait in the gate, under the name of the batch I/O design |
| `pulsar_replicator_io_per_buffer_bytes` | histogram | | bytes in each write of the gate, likewise |

All are labelled `pipeline` and `topic`, the topic being the source's; those of the gate as the gate's other series are.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.metrics import Registry
from penstock.net.meters import LABELS, WRITE_BOUNDS, Meter

COPY_LABELS: Final = ("pipeline", "topic")


class GateMeter(Meter):
    """The gate's numbers of a target topic, once more under the names of the design that they come from."""

    __slots__ = ("_per_buffer", "_total")

    def __init__(self, registry: Registry, cluster: str, namespace: str, topic: str) -> None:
        super().__init__(registry, cluster, namespace, topic)
        labels = dict(zip(LABELS, (cluster, namespace, topic), strict=True))
        total = registry.gauge(
            "pulsar_replicator_io_buffer_total_bytes", "Bytes of frames that wait in the gate.", LABELS
        )
        per_buffer = registry.histogram(
            "pulsar_replicator_io_per_buffer_bytes", "Bytes in each write of the gate.", LABELS, bounds=WRITE_BOUNDS
        )
        self._families = (*self._families, total, per_buffer)
        self._total = total.labels(**labels)
        self._per_buffer = per_buffer.labels(**labels)

    def wait(self, size: int) -> None:
        """A frame with so many bytes of the topic waits."""
        super().wait(size)
        self._total.add(size)

    def let_go(self, size: int) -> None:
        """A frame with so many bytes of the topic waits no more."""
        self._total.add(-size)
        super().let_go(size)

    def wrote(self, size: int, frames: int) -> None:
        """A write held so many bytes and frames of the topic."""
        super().wrote(size, frames)
        self._per_buffer.observe(size)


class CopyMeter:
    """One topic's part of a client's metrics. Told sums, it counts what is new. Runs on: the I/O thread."""

    def __init__(self, registry: Registry, pipeline: str, topic: str) -> None:
        self._labels = {"pipeline": pipeline, "topic": topic}
        kinds = (*COPY_LABELS, "outcome")
        self._entries = registry.counter("penstock_copy_entries_total", "Entries, by what became of them.", kinds)
        self._messages = registry.counter("penstock_copy_messages_total", "Messages, by what became of them.", kinds)
        texts = {
            "bytes": "Bytes stored in the target.",
            "batches": "Batches stored in the target.",
            "commits": "Positions committed.",
            "rewinds": "How often copying went back after a failure.",
            "missing": "Positions of the source that were gone.",
            "skipped": "Positions for which the source's broker gave nothing.",
        }
        self._sums: dict[str, Any] = {
            name: registry.counter(f"penstock_copy_{name}_total", text, COPY_LABELS).labels(**self._labels)
            for name, text in texts.items()
        }
        delay = registry.gauge("penstock_copy_delay_seconds", "Age of the oldest message not copied.", COPY_LABELS)
        waiting = registry.gauge("penstock_copy_waiting_bytes", "Bytes on their way to the target.", COPY_LABELS)
        self._delay, self._waiting = delay.labels(**self._labels), waiting.labels(**self._labels)
        self._told: dict[tuple[str, str], int] = {}

    def tell(
        self,
        entries: Mapping[str, int],
        messages: Mapping[str, int],
        sums: Mapping[str, int],
        delay_ms: float,
        waiting: int,
    ) -> None:
        """The numbers as they are now, since the beginning."""
        for family, kind, counts in ((self._entries, "entries", entries), (self._messages, "messages", messages)):
            for outcome, count in counts.items():
                if more := self._more(kind, outcome, count):
                    family.labels(**self._labels, outcome=outcome).add(more)
        for name, count in sums.items():
            if more := self._more("sums", name, count):
                self._sums[name].add(more)
        self._delay.set(delay_ms / 1000)
        self._waiting.set(waiting)

    def _more(self, kind: str, name: str, count: int) -> int:
        before = self._told.get((kind, name), 0)
        self._told[kind, name] = count
        return count - before
