"""What a partition knows of a producer, and how that is written down.

| bytes | field                                        |      | bytes | a producer                            |
|-------|----------------------------------------------|      |-------|---------------------------------------|
| 1     | version, 1                                   |      | 8     | its id                                |
| 4     | how many aborted transactions                |      | 4     | epoch                                 |
| 4     | how many producers                           |      | 1     | 1: a transaction is open, 2: marked   |
| 8 n   | aborted: producer ids                        |      | 1     | how many entries are remembered       |
| 8 n   | aborted: first positions                     |      | 2     | length of its name                    |
| 8 n   | aborted: positions of the markers            |      | 8     | when it was heard of                  |
| 8 n   | aborted: how far all was decided             |      | 8     | where its transaction begins, or 0    |
| ...   | producers, by id                             |      | ...   | name, UTF-8                           |
|       |                                              |      | 24    | an entry: first and last sequence (4  |
|       |                                              |      |       | each), first and last position (8)    |

All numbers are big-endian. Must never be read from anywhere but the broker's own store.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.log.partition import Place
from penstock.errors import DecodeError

VERSION: Final = 1
OPEN, MARKED = 1, 2

_HEAD = struct.Struct(">BII")
_PRODUCER = struct.Struct(">qiBBHqq")
_ENTRY = struct.Struct(">IIqq")
_COLUMNS = 4


class Remembered(NamedTuple):
    """An entry that was stored: the sequences of its first and last message, and where it is."""

    first: int
    last: int
    place: Place


class Producer(NamedTuple):
    """What a partition knows of one producer."""

    epoch: int
    entries: tuple[Remembered, ...]
    """The last ones of this epoch, oldest first."""
    heard_ms: int
    name: str = ""
    open_at: int | None = None
    """Where its open transaction begins."""
    marked: bool = False
    """Whether a coordinator has ended a transaction of it here."""

    @property
    def last_sequence(self) -> int:
        """That of the last message stored with this epoch; -1 before any."""
        return self.entries[-1].last if self.entries else -1


def pack(producers: Mapping[int, Producer], aborted: Sequence[Sequence[int]]) -> bytes:
    """Producers by id, and the columns of the aborted transactions."""
    rows = len(aborted[0])
    parts = [_HEAD.pack(VERSION, rows, len(producers))]
    parts += [struct.pack(f">{rows}q", *column) for column in aborted]
    for producer, known in sorted(producers.items()):
        name = known.name.encode()[: (1 << 16) - 1]
        flags = OPEN * (known.open_at is not None) | MARKED * known.marked
        numbers = (producer, known.epoch, flags, len(known.entries), len(name), known.heard_ms, known.open_at or 0)
        parts += [_PRODUCER.pack(*numbers), name]
        parts += [_ENTRY.pack(entry.first, entry.last, *entry.place) for entry in known.entries]
    return b"".join(parts)


def unpack(state: bytes) -> tuple[dict[int, Producer], list[tuple[int, ...]]]:
    """What was packed; DecodeError when it was not."""
    try:
        return _unpack(state)
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(0, "producers' state", "what was packed", str(error)) from error


def _unpack(state: bytes) -> tuple[dict[int, Producer], list[tuple[int, ...]]]:
    version, rows, count = _HEAD.unpack_from(state)
    if version != VERSION:
        raise DecodeError(0, "version", str(VERSION), version)
    at = _HEAD.size
    columns = []
    for _ in range(_COLUMNS):
        columns.append(struct.unpack_from(f">{rows}q", state, at))
        at += 8 * rows
    producers = {}
    for _ in range(count):
        producer, epoch, flags, entries, size, heard_ms, open_at = _PRODUCER.unpack_from(state, at)
        at += _PRODUCER.size
        name = state[at : at + size].decode()
        at += size
        rest = at + entries * _ENTRY.size
        remembered = tuple(
            Remembered(first, last, Place(begin, end)) for first, last, begin, end in _ENTRY.iter_unpack(state[at:rest])
        )
        at = rest
        producers[producer] = Producer(
            epoch, remembered, heard_ms, name, open_at if flags & OPEN else None, bool(flags & MARKED)
        )
    if at != len(state):
        raise DecodeError(at, "producers' state", f"{at} bytes", f"{len(state)} bytes")
    return producers, columns
