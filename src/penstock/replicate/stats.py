"""What copying has done, in numbers, and where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from penstock.replicate.consignment import Consignment, Reason
from penstock.wire.protocol import Partition


@dataclass(slots=True)
class Counts:
    """What one partition's copy has done."""

    entries_copied: int = 0
    """Entries of the source that are stored in the target."""
    entries_unopened: int = 0
    """Of these, those that were not opened."""
    messages_copied: int = 0
    bytes_copied: int = 0
    batches: int = 0
    """Batches that they were stored as."""
    entries_returned: int = 0
    """Entries that came from the target, and were not sent back."""
    messages_returned: int = 0
    commits: int = 0
    rewinds: int = 0
    opened: Counter[Reason] = field(default_factory=Counter)
    """Entries that were opened, by the reason."""

    def stored(self, consignment: Consignment) -> None:
        """A consignment is stored."""
        self.batches += 1
        self.entries_copied += consignment.entries
        self.messages_copied += consignment.count
        self.bytes_copied += consignment.size
        if consignment.reason is None:
            self.entries_unopened += consignment.entries
        else:
            self.opened[consignment.reason] += consignment.entries

    def entries(self) -> dict[str, int]:
        """Entries by what became of them."""
        opened = {reason.value: count for reason, count in self.opened.items()}
        return {"unopened": self.entries_unopened, "returned": self.entries_returned, **opened}

    def copy(self) -> Counts:
        """The numbers as they are now."""
        return replace(self, opened=Counter(self.opened))

    def merge(self, other: Counts) -> None:
        """Count what another has done too."""
        for one in fields(self):
            mine, others = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, mine + others)


@dataclass(frozen=True, slots=True)
class StrandStats:
    """One partition's copy at one moment."""

    state: str
    position: int
    """What is to be forwarded next."""
    committed: int
    """What the target has committed; -1 where nothing is."""
    log_end: int
    """Where the source ends, as last told."""
    delay_ms: float
    """The age of the oldest message that is not copied; never 0 while there is one."""
    trouble: str
    """What is in the way, as last told; empty where nothing is."""
    counts: Counts

    @property
    def backlog(self) -> int:
        """Positions that are not committed yet."""
        return max(self.log_end - max(self.committed, 0), 0)


@dataclass(frozen=True, slots=True)
class CopyStats:
    """A pipeline at one moment."""

    partitions: Mapping[Partition, StrandStats]
    total: Counts
    entries_filtered: int
    """Entries that were skipped unopened, since the filter rejects what they claim."""
    messages_filtered: int
    skipped: int
    """Positions for which the source's broker gave nothing: filtered there, or taken out by compaction."""
    messages_sifted: int
    """Messages that were opened and dropped by the filter."""
    missing: int
    """Positions of the source that were gone, and passed over."""
    bytes_waiting: int
    """Bytes on their way to the target."""
    delay_ms: float
    """The largest delay of all partitions."""
