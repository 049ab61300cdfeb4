"""Positions as ranges: what was acknowledged behind a cursor, compact in memory and in the store.

Ranges are half open, in order, and neither overlap nor touch. As bytes: a number of ranges, then for each the gap to
the one before it and its length, all as unsigned LEB128 (7 bits a byte, the lowest first); the first gap counts from a
base that both sides know.

Pure. Runs on: the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from penstock.errors import DecodeError

_LEB_BITS = 7
_LEB_MORE = 0x80
_LEB_BITS_MAX = 63


class Ranges:
    """A set of positions."""

    __slots__ = ("_firsts", "_nexts")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._nexts = array("q")

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._nexts, strict=True)

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._firsts, position) - 1
        return at >= 0 and position < self._nexts[at]

    def __repr__(self) -> str:
        return f"<Ranges {', '.join(f'{first}-{after - 1}' for first, after in self)}>"

    def positions(self) -> int:
        """How many positions it holds."""
        return sum(self._nexts) - sum(self._firsts)

    def add(self, first: int, after: int) -> None:
        """Take up the positions from `first` to before `after`, at least one."""
        low, high = self._touched(first, after)
        if low < high:
            first = min(first, self._firsts[low])
            after = max(after, self._nexts[high - 1])
        self._firsts[low:high] = array("q", (first,))
        self._nexts[low:high] = array("q", (after,))

    def drop_before(self, position: int) -> int:
        """Let go of all that lies before this position; returns the first position from there on that is not in."""
        at = bisect_left(self._nexts, position)
        if at < len(self) and self._firsts[at] <= position:
            position = self._nexts[at]
            at += 1
        del self._firsts[:at]
        del self._nexts[:at]
        return position

    def after(self, position: int) -> int:
        """The first position from this one on that is not in."""
        at = bisect_right(self._firsts, position) - 1
        return max(position, self._nexts[at]) if at >= 0 else position

    def copy(self) -> Ranges:
        """The same, to be changed apart."""
        same = Ranges()
        same._firsts, same._nexts = self._firsts[:], self._nexts[:]
        return same

    def clear(self) -> None:
        """Hold nothing."""
        del self._firsts[:], self._nexts[:]

    def encode(self, base: int) -> bytes:
        """As bytes; no position lies before `base`."""
        data = bytearray()
        _put(data, len(self))
        for first, after in self:
            _put(data, first - base)
            _put(data, after - first)
            base = after
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes, base: int) -> Ranges:
        """From bytes; DecodeError when they are not what `encode` makes."""
        ranges = cls()
        count, at = _take(data, 0)
        for number in range(count):
            gap, at = _take(data, at)
            length, at = _take(data, at)
            if not length or (number and not gap) or base + gap + length >= 1 << _LEB_BITS_MAX:
                raise DecodeError(
                    at, "acknowledged ranges", "ranges apart from each other", f"gap {gap}, length {length}"
                )
            ranges._firsts.append(base + gap)
            ranges._nexts.append(base + gap + length)
            base += gap + length
        if at != len(data):
            raise DecodeError(at, "acknowledged ranges", "an end", f"{len(data) - at} bytes more")
        return ranges

    def _touched(self, first: int, after: int) -> tuple[int, int]:
        return bisect_left(self._nexts, first), bisect_right(self._firsts, after)


def _put(data: bytearray, number: int) -> None:
    while number >= _LEB_MORE:
        data.append(number & (_LEB_MORE - 1) | _LEB_MORE)
        number >>= _LEB_BITS
    data.append(number)


def _take(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, _LEB_BITS_MAX, _LEB_BITS):
        if at >= len(data):
            raise DecodeError(at, "acknowledged ranges", "one byte more", "the end")
        byte = data[at]
        at += 1
        number |= (byte & (_LEB_MORE - 1)) << shift
        if byte < _LEB_MORE:
            return number, at
    raise DecodeError(at, "acknowledged ranges", "a number below 2^63", "a longer one")
