"""Two streams of messages compared in their order, and the first message in which they differ.

Record batches come from both sides, cut differently; what is at hand on both is compared by columns, as many rows as
the shorter one has. While columns are equal, both sides have the same digest and it is computed once. From the first
chunk on that is not, the row and the field are looked for in it, and each side is only counted and digested to its end.

Event times that a log gave tell when that log took a message, and a copy cannot have them: such a time, on either
side, is not compared, and it is counted how many were not.

Pure. Holds one record batch of each side at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.replicate.digest import Digest
from penstock.wire.columns import TIME

Times: TypeAlias = Literal["event", "ignore"]
Field: TypeAlias = Literal["key", "value", "properties", "event_time", "count"]

FIELDS: Final[tuple[Field, ...]] = ("key", "value", "properties", "event_time")
"""What is compared of a message; the first of them is named where several differ."""
COLUMNS: Final = ("position", "event_time", "log_time", "key", "value", "properties")
"""What record batches must have."""
SHOWN_BYTES: Final = 48
SHOWN_BEFORE: Final = 12
"""Of long bytes so many are shown, and so many of them in front of the first that differs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first message of a partition in which two sides differ, or that only one of them has."""

    partition: int
    index: int
    """How many messages before it are equal."""
    field: Field
    """In what they differ; `count` where one side has no further message."""
    source_position: int | None
    target_position: int | None
    source: str
    """What the source has there, shortened."""
    target: str

    def __str__(self) -> str:
        before = f"after {counted(self.index, 'equal message')}"
        if self.source_position is None:
            return f"{before} the source ends, and the target has {self.target}, from position {self.target_position}"
        if self.target_position is None:
            return f"{before} the target ends, and the source has {self.source}, from position {self.source_position}"
        return (
            f"{before} {self.field} differs: the source has {self.source} at position {self.source_position}, "
            f"the target {self.target} at position {self.target_position}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One partition of both sides: how many messages, what they come to, and where they begin to differ."""

    partition: int
    source_count: int
    target_count: int
    source_digest: str
    target_digest: str
    untimed: int
    """Messages whose event times were not compared, since a log gave them."""
    difference: Difference | None

    def __str__(self) -> str:
        if self.difference is None:
            return f"partition {self.partition}: {counted(self.source_count, 'message')}, digest {self.source_digest}"
        count = counted(self.source_count, "message")
        return (
            f"partition {self.partition}: {count} at the source, digest {self.source_digest}; "
            f"{self.target_count:,} at the target, digest {self.target_digest}; {self.difference}"
        )


def counted(count: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def compare(
    partition: int, source: Iterable[pa.RecordBatch], target: Iterable[pa.RecordBatch], times: Times = "event"
) -> Comparison:
    """Compare two streams of record batches, with at least `COLUMNS`, to the end of both."""
    left, right = _Rows(source), _Rows(target)
    digest, untimed, difference = Digest(), 0, None
    while difference is None and (count := min(left.at_hand(), right.at_hand())):
        pair = _pair(left.first(count), right.first(count), times)
        unlike = _first_unlike(pair)
        if unlike is None:
            untimed += pair.untimed
            digest.add(pair.source)
            left.skip(count)
            right.skip(count)
        else:
            difference = _difference(partition, digest.count, pair, *unlike)
    equal, positions = digest.count, (left.position(), right.position())
    sides = _whole(digest.copy(), left, times), _whole(digest, right, times)
    counts, digests = (sides[0].count, sides[1].count), (sides[0].hexdigest(), sides[1].hexdigest())
    if difference is None and counts[0] != counts[1]:
        difference = _ending(partition, equal, positions, counts)
    return Comparison(partition, *counts, *digests, untimed, difference)


def _whole(digest: Digest, rows: _Rows, times: Times) -> Digest:
    """The digest of one side with all that is left."""
    for batch in rows.rest():
        digest.add(_dated(batch, batch.column("log_time"), times))
    return digest


class _Rows:
    """Record batches one behind the other, as rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._head: pa.RecordBatch | None = None

    def at_hand(self) -> int:
        """How many rows can be had at once; 0: it is at its end."""
        while self._head is None or not self._head.num_rows:
            self._head = next(self._batches, None)
            if self._head is None:
                return 0
        return int(self._head.num_rows)

    def first(self, count: int) -> pa.RecordBatch:
        """So many of those at hand; they stay."""
        assert self._head is not None
        return self._head.slice(0, count)

    def skip(self, count: int) -> None:
        """Let go of so many of those at hand."""
        assert self._head is not None
        self._head = self._head.slice(count)

    def position(self) -> int | None:
        """The position of the next one; None at the end."""
        return _position(self.first(1), 0) if self.at_hand() else None

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All that are left."""
        while count := self.at_hand():
            yield self.first(count)
            self.skip(count)


class _Pair(NamedTuple):
    """As many messages of both sides, with null for event times that do not count."""

    source: pa.RecordBatch
    target: pa.RecordBatch
    untimed: int


def _pair(source: pa.RecordBatch, target: pa.RecordBatch, times: Times) -> _Pair:
    given = pc.or_(source.column("log_time"), target.column("log_time"))
    untimed = given.true_count if times == "event" else 0
    return _Pair(_dated(source, given, times), _dated(target, given, times), untimed)


def _dated(messages: pa.RecordBatch, given: pa.BooleanArray, times: Times) -> pa.RecordBatch:
    """Messages without the event times that a log has given, or without any."""
    if times == "event" and not given.true_count:
        return messages
    at = messages.schema.get_field_index("event_time")
    none = pa.nulls(messages.num_rows, TIME)
    dates = none if times == "ignore" else pc.if_else(given, none, messages.column(at))
    return messages.set_column(at, "event_time", dates)


def _first_unlike(pair: _Pair) -> tuple[int, Field] | None:
    """The first row that is not equal, and the first field of it that is not."""
    rows = ((_first_row(pair.source.column(name), pair.target.column(name)), name) for name in FIELDS)
    found = [(row, name) for row, name in rows if row is not None]
    return min(found, key=itemgetter(0), default=None)


def _first_row(source: pa.Array, target: pa.Array) -> int | None:
    """The first row in which two columns differ: found by halves, which takes no longer than comparing them again."""
    if source.equals(target):
        return None
    first, end = 0, len(source)
    while end - first > 1:
        middle = (first + end) // 2
        if source.slice(first, middle - first).equals(target.slice(first, middle - first)):
            first = middle
        else:
            end = middle
    return first


# What is told of it


def _difference(partition: int, equal: int, pair: _Pair, row: int, field: Field) -> Difference:
    positions = (_position(pair.source, row), _position(pair.target, row))
    cells = (pair.source.column(field)[row], pair.target.column(field)[row])
    return Difference(partition, equal + row, field, *positions, *_shown(field, *cells))


def _ending(
    partition: int, equal: int, positions: tuple[int | None, int | None], counts: tuple[int, int]
) -> Difference:
    more = [f"{count - equal:,} more" if count > equal else "no more" for count in counts]
    return Difference(partition, equal, "count", *positions, more[0], more[1])


def _position(messages: pa.RecordBatch, row: int) -> int:
    return int(messages.column("position")[row].as_py())


def _shown(field: Field, source: pa.Scalar, target: pa.Scalar) -> tuple[str, str]:
    """What both sides have, as far as it fits, and such that one sees the difference."""
    if field == "event_time":
        return _shown_time(source.value), _shown_time(target.value)
    if field == "properties":
        return _shown_pairs(source.as_py(), target.as_py())
    return _shown_bytes(source.as_py(), target.as_py())


def _shown_time(time_ms: int | None) -> str:
    return "null" if time_ms is None else f"{np.datetime64(time_ms, 'ms')}Z"


def _shown_bytes(source: bytes | None, target: bytes | None) -> tuple[str, str]:
    at = _first_index(source or b"", target or b"")
    return _window(source, at), _window(target, at)


def _window(content: bytes | None, at: int) -> str:
    """Bytes around an index; all of them where they are few."""
    if content is None:
        return "null"
    if len(content) <= SHOWN_BYTES:
        return repr(content)
    begin = max(min(at - SHOWN_BEFORE, len(content) - SHOWN_BYTES), 0)
    end = begin + SHOWN_BYTES
    return f"{content[begin:end]!r} (bytes {begin} to {end - 1} of {len(content)})"


def _shown_pairs(source: list[Any], target: list[Any]) -> tuple[str, str]:
    """The first property that differs, by name, value or order."""
    at = _first_index(source, target)
    values = _shown_bytes(*(pairs[at][1] if at < len(pairs) else None for pairs in (source, target)))
    return _shown_pair(source, at, values[0]), _shown_pair(target, at, values[1])


def _shown_pair(pairs: list[Any], at: int, value: str) -> str:
    if at >= len(pairs):
        return f"no property {at + 1}"
    name = pairs[at][0]
    return f"property {at + 1}, {name[:SHOWN_BYTES]!r}{'...' * (len(name) > SHOWN_BYTES)} = {value}"


def _first_index(source: Sequence[Any], target: Sequence[Any]) -> int:
    """Where two sequences begin to differ, which may be the end of one."""
    shorter = min(len(source), len(target))
    return next((at for at in range(shorter) if source[at] != target[at]), shorter)
