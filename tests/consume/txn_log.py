"""A log with transactions, written step by step, that knows what a reader of committed messages must see."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.wire.entry import Stamp
from penstock.wire.kafka.header import peek
from penstock.wire.protocol import Aborted
from tests.consume.batches import marker, values


class TransactionLog:
    """One partition."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.end = 0
        self.aborted: list[tuple[Aborted, int]] = []
        """Aborted transactions, and the positions of their markers."""
        self._open: dict[int, list[int]] = {}
        self._kept: list[int] = []

    def step(self, kind: str, producer: int, count: int) -> None:
        """Write some messages of a producer, within its transaction or not, or end that."""
        if kind == "plain":
            self._kept.append(self.end)
            self._append(values(self.end, count, stamp=Stamp(producer, 0, 0)))
        elif kind == "write":
            self._open.setdefault(producer, []).append(self.end)
            self._append(values(self.end, count, stamp=Stamp(producer, 0, 0, transactional=True)))
        elif producer in self._open:
            written = self._open.pop(producer)
            if kind == "abort":
                self.aborted.append((Aborted(producer, written[0]), self.end))
            else:
                self._kept += written
            self._append(marker(self.end, producer, commit=kind == "commit"))

    def finish(self) -> None:
        """End all transactions that are open."""
        for number, producer in enumerate(sorted(self._open)):
            self.step("abort" if number % 2 else "commit", producer, 0)

    @property
    def committed(self) -> list[int]:
        """The first positions of entries that count."""
        return sorted(self._kept)

    @property
    def stable(self) -> int:
        """Where the first open transaction begins."""
        return min((written[0] for written in self._open.values()), default=self.end)

    def aborted_in(self, entries: Sequence[bytes]) -> list[Aborted]:
        """What a broker lists with these entries: transactions that begin before their end, and end not before them."""
        if not entries:
            return []
        first, last = peek(entries[0]).first, peek(entries[-1]).last
        return [one for one, ended in self.aborted if one.first <= last and ended >= first]  # type: ignore[operator]

    def _append(self, entry: bytes) -> None:
        self.entries.append(entry)
        last = peek(entry).last
        assert isinstance(last, int)
        self.end = last + 1
