"""What is known of one transaction: which partitions are part of it, since when the broker knows of it, and its fate.

Where brokers enlist partitions by themselves, they can do so for one request at a time: what comes meanwhile is
refused, to be tried again. So a first batch for a partition leaves only while no other first batch is on its way, or
together with it. Where they do not, a partition is wanted, and its first batch leaves when it has been enlisted.

Pure. Runs on: the I/O thread.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.wire.protocol import Partition


class Books:
    """One transaction."""

    def __init__(self) -> None:
        self.wanted: set[Partition] = set()
        """Partitions that must be enlisted before their first batch leaves."""
        self.touched_at: float | None = None
        """When the broker was first told something that begins a transaction there."""
        self.failure: PenstockError | None = None
        """What went wrong with it as a whole."""
        self.doom: PenstockError | None = None
        """Why it can only be aborted, once its producers know."""
        self.is_commit_asked = False
        self._joined: set[Partition] = set()
        self._joining: set[Partition] = set()

    def __repr__(self) -> str:
        state = "doomed" if self.doom else "touched" if self.touched_at is not None else "untouched"
        return f"<Books, {state}, {len(self._joined)} partitions joined, {len(self._joining)} joining>"

    def may_launch(self, partition: Partition, enlists: bool | None) -> bool:
        """Whether a batch may leave to a leader that enlists by itself, or does not; None: it cannot be reached yet."""
        if enlists is None or partition in self._joined:
            return True
        if not enlists:
            self.wanted.add(partition)
        return enlists and not self._joining

    def launched(self, partition: Partition, now: float) -> None:
        """A batch has left."""
        self.touch(now)
        if partition not in self._joined:
            self._joining.add(partition)

    def landed(self, partition: Partition, is_stored: bool) -> None:
        """A batch was answered, or will not be."""
        self._joining.discard(partition)
        if is_stored:
            self._joined.add(partition)

    def enlisted(self, partitions: list[Partition]) -> None:
        """The broker has enlisted these."""
        self._joined.update(partitions)
        self.wanted.difference_update(partitions)

    def forget(self, topic: str) -> None:
        """Nothing more will be heard of this topic's partitions."""
        self._joining = {partition for partition in self._joining if partition.topic != topic}
        self.wanted = {partition for partition in self.wanted if partition.topic != topic}

    def touch(self, now: float) -> None:
        """The broker is told something that begins a transaction there."""
        if self.touched_at is None:
            self.touched_at = now

    def open_for(self, now: float) -> float:
        """For how many seconds the broker may know of it."""
        return 0.0 if self.touched_at is None else now - self.touched_at
