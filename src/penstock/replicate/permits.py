"""What may be on its way to the target at once, over all partitions: bytes and entries.

A permit is taken when something is forwarded, and given back exactly once, when it has its outcome, whatever that is.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.net.failures import InvariantError


class Permits:
    """So many bytes and so many entries."""

    def __init__(self, bytes_max: int, entries_max: int, free: Callable[[], None]) -> None:
        """`free` is called when somebody was refused a permit and one is to be had again."""
        self._free = free
        self._is_wanted = False
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self.bytes = 0
        """Bytes on their way."""
        self.entries = 0
        """Entries on their way."""

    def __repr__(self) -> str:
        return f"<Permits, {self.bytes} of {self._bytes_max} bytes and {self.entries} of {self._entries_max} entries>"

    def take(self, size: int) -> bool:
        """Take a permit for an entry of so many bytes; a single one passes however large it is."""
        if self.entries and (self.entries >= self._entries_max or self.bytes + size > self._bytes_max):
            self._is_wanted = True
            return False
        self.entries += 1
        self.bytes += size
        return True

    def give_back(self, size: int) -> None:
        """An entry of so many bytes has its outcome."""
        self.entries -= 1
        self.bytes -= size
        if self.entries < 0 or self.bytes < 0:
            raise InvariantError(f"{self!r}: more was given back than was taken")
        if self._is_wanted:
            self._is_wanted = False
            self._free()
