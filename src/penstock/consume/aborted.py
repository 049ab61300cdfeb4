"""Which entries belong to aborted transactions.

A broker gives readers of what is committed the aborted entries too, and with each answer a list of the aborted
transactions that have something among them: the producer, and the first position of the transaction. From that:

1. A transaction is in question from the first entry on that reaches its first position.
2. An entry of a transaction is dropped while one of its producer is in question.
3. A marker of a producer that aborts ends its transaction; its next one, if it is aborted too, is listed again.

The list is that of one answer, and so is this: the next answer begins anew. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.wire.entry import EntryFlag, EntryHeader
from penstock.wire.protocol import Aborted

TRANSACTIONAL = int(EntryFlag.TRANSACTIONAL)


class AbortedTransactions:
    """Those of one partition in one answer. Asked about each entry, in order."""

    def __init__(self, listed: Sequence[Aborted]) -> None:
        self._coming = sorted(listed, key=lambda aborted: aborted.first, reverse=True)
        self._producers: set[int | str | None] = set()

    def drops(self, header: EntryHeader) -> bool:
        """Whether this entry was aborted."""
        while self._coming and self._coming[-1].first <= header.last:  # type: ignore[operator]
            self._producers.add(self._coming.pop().producer)
        return header.producer in self._producers and int(header.flags) & TRANSACTIONAL > 0

    def aborts(self, header: EntryHeader) -> None:
        """This entry is a marker that says that its producer's transaction was aborted."""
        self._producers.discard(header.producer)
