"""What a reader has done so far, in numbers, and the same in a client's metrics, labelled cluster, namespace, topic.

| metric | kind | meaning |
|---|---|---|
| `penstock_read_bytes_total` | counter | bytes of entries that were looked at |
| `penstock_read_entries_total` | counter | entries, by what became of them: `opened`, `unopened` (handed out so), `filtered` (skipped unopened), `aborted`, `control`, `empty` |
| `penstock_read_messages_total` | counter | messages: `read` (handed out), `filtered` (skipped unopened), `sifted` (opened and dropped by the filter), `aborted` |
| `penstock_read_skipped_total` | counter | positions for which brokers gave nothing: filtered there, or taken out by compaction |
| `penstock_read_missing_total` | counter | positions that were gone, and passed over |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from penstock.metrics import Registry
from penstock.net.meters import LABELS


@dataclass(slots=True)
class ReaderStats:
    """One reader at one moment: entries, and messages in them, by what became of them."""

    bytes: int = 0
    """Bytes of all entries that were looked at."""
    entries_opened: int = 0
    entries_unopened: int = 0
    """Handed out unopened."""
    entries_filtered: int = 0
    """Skipped unopened, since the filter rejects what they claim."""
    entries_aborted: int = 0
    entries_control: int = 0
    """Markers of the log itself."""
    entries_empty: int = 0
    """Without a message: emptied by compaction, or given in place of others by a broker that filters."""
    messages_read: int = 0
    """Handed out, in entries too."""
    messages_filtered: int = 0
    """Skipped unopened."""
    messages_sifted: int = 0
    """Opened, judged one by one, and dropped by the filter."""
    messages_aborted: int = 0
    skipped: int = 0
    """Positions for which the broker gave nothing: it has filtered them out, or compaction has taken them out."""
    missing: int = 0
    """Positions that were gone, and passed over."""

    @property
    def entries(self) -> int:
        """All entries that were looked at."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name.startswith("entries_"))

    def copy(self) -> ReaderStats:
        """The numbers as they are now."""
        return replace(self)


class ReaderMeter:
    """One topic's part of a client's metrics."""

    def __init__(self, registry: Registry, cluster: str, topic: str, namespace: str = "") -> None:
        labels = dict(zip(LABELS, (cluster, namespace, topic), strict=True))
        kinds = (*LABELS, "outcome")
        read = registry.counter("penstock_read_bytes_total", "Bytes of entries that were looked at.", LABELS)
        entries = registry.counter("penstock_read_entries_total", "Entries, by what became of them.", kinds)
        messages = registry.counter("penstock_read_messages_total", "Messages, by what became of them.", kinds)
        skipped = registry.counter("penstock_read_skipped_total", "Positions for which nothing was given.", LABELS)
        missing = registry.counter("penstock_read_missing_total", "Positions that were gone.", LABELS)
        self._counters = {name: of.labels(**labels) for name, of in (("bytes", read), ("skipped", skipped))}
        self._counters["missing"] = missing.labels(**labels)
        for field in fields(ReaderStats):
            family, _, outcome = field.name.partition("_")
            if outcome:
                of = entries if family == "entries" else messages
                self._counters[field.name] = of.labels(**labels, outcome=outcome)
        self._told = ReaderStats()

    def tell(self, stats: ReaderStats) -> None:
        """Count what was done since this was last called."""
        for name, counter in self._counters.items():
            more = getattr(stats, name) - getattr(self._told, name)
            if more:
                counter.add(more)
        self._told = stats.copy()
