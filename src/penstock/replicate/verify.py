"""Proof that a copy equals its source: `verify(source, target, topic)`.

    print(verify(source, target, "orders"))

Partition by partition, the committed messages of a topic are compared with those of its copy, the n-th with the n-th:
key, value, properties in their order, event time. Positions may differ, since compaction, transactions, filters and
skipped entries leave holes and markers that a copy does not have, or has elsewhere; order and number may not.

Both sides are read as Arrow record batches, one partition at a time: what is held is what two readers hold ready and
one record batch of each. Names of properties are compared as text; bytes that are no UTF-8 count as the replacement
characters that readers show for them.

What is compared is fixed when `verify` is called: it reads from where each side starts to where it ends then. What is
deleted while it reads is a `GapError` and no difference.

Runs on: the thread that calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from penstock.client import Client
from penstock.consume.opening import Entry
from penstock.consume.places import Given, make_plan, read_places
from penstock.consume.reader import Reader, Unit
from penstock.errors import ConfigError
from penstock.replicate import comparison, latest
from penstock.replicate.comparison import Comparison, Difference, Times, compare, counted
from penstock.replicate.latest import latest_positions, only_latest
from penstock.wire.property_filter import PropertyCondition

Places: TypeAlias = Given | Mapping[int, Given]
"""Where reading starts or ends, as `client.reader` takes it: one place for all partitions, or one for each."""
Producers: TypeAlias = Mapping[int, Collection[int]]
"""Producer ids by partition."""

SHOWN_PARTITIONS: Final = 20
"""So many are told of one by one."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What comparing a topic with its copy has come to. Printed, it tells a person."""

    source: str
    """Topic and cluster."""
    target: str
    partitions: tuple[Comparison, ...]
    which: str = ""
    """Which messages were compared, in words; empty: all."""

    @property
    def equal(self) -> bool:
        """Whether no partition differs."""
        return self.difference is None

    @property
    def difference(self) -> Difference | None:
        """The first difference, of the first partition that has one."""
        return next((each.difference for each in self.partitions if each.difference is not None), None)

    @property
    def source_count(self) -> int:
        """Messages of the source, over all partitions."""
        return sum(each.source_count for each in self.partitions)

    @property
    def target_count(self) -> int:
        """Messages of the target, over all partitions."""
        return sum(each.target_count for each in self.partitions)

    def __str__(self) -> str:
        told = [each for each in self.partitions if each.difference is not None] or self.partitions
        lines = [self._headline(), *(f"  {each}" for each in told[:SHOWN_PARTITIONS])]
        if len(told) > SHOWN_PARTITIONS:
            lines.append(f"  and {len(told) - SHOWN_PARTITIONS:,} more")
        untimed = sum(each.untimed for each in self.partitions)
        if untimed:
            messages = counted(untimed, "message")
            lines.append(f"  event times of {messages} were not compared: a log gave them, and no sender")
        return "\n".join(lines)

    def _headline(self) -> str:
        count = counted(len(self.partitions), "partition")
        if self.equal:
            messages = counted(self.source_count, "message")
            return f"{self.source} and {self.target} are equal in {count}: {messages}{self.which}"
        unequal = sum(each.difference is not None for each in self.partitions)
        messages = f"{self.source_count:,} and {counted(self.target_count, 'message')}"
        return f"{self.source} and {self.target} differ in {unequal:,} of {count}: {messages}{self.which}"


def verify(
    source: Client,
    target: Client,
    topic: str,
    target_topic: str | None = None,
    *,
    source_start: Places = "earliest",
    source_end: Places = "latest",
    target_start: Places = "earliest",
    target_end: Places = "latest",
    partitions: Iterable[int] | None = None,
    filter: str | PropertyCondition | None = None,  # noqa: A002
    skip_producers: Producers | None = None,
    only_producers: Producers | None = None,
    by_key: bool = False,
    times: Times = "event",
    timeout: float | None = None,
) -> Verification:
    """Compare a topic with its copy, which has the same name unless `target_topic` says another.

    The starts and ends are places as `client.reader` takes them, and where they name partitions only those are
    compared. `filter` is what the copy was made with: it is asked of the source's messages, and the target must have
    those that match. Messages that `skip_producers` wrote to the source are left out, as those that another copy has
    brought there; where `only_producers` names a partition, the target's messages of others are.

    `by_key` is for compacted topics. What was compacted after it was copied has fewer messages than the copy; so only
    the latest message of each key is compared, in order, and one without a value counts as no message, since
    compaction takes it out in the end. It reads both sides twice and takes memory for the keys of one partition. Both
    topics should be at rest: a message behind the end can have one before the end taken out, on one side first. With a
    filter it can only be told where all messages of a key match, or none.

    An event time that a log gave, as topics with log-append time do, is when that log took the message: a copy made
    unopened shows the senders' times again, one that was opened the source's. With times="event" it is therefore not
    compared, on whichever side it is, and the result says how many were not; with times="ignore" none is compared.

    ConfigError for what cannot be compared, such as topics with different numbers of partitions; UnknownTopicError.
    TimeoutError when one side gives nothing for `timeout` seconds, which with a filter may also mean that no message
    matches; without it, it is waited for as long as it takes.
    """
    condition = _read_filter(filter)
    if times not in get_args(Times):
        raise ConfigError(f"times: expected one of {', '.join(get_args(Times))}, found {times!r}")
    skipped, only = _Producers(skip_producers or {}, kept=False), _Producers(only_producers or {}, kept=True)
    copy = topic if target_topic is None else target_topic
    left = _Side("source", source, topic, (source_start, source_end), timeout, skipped, condition)
    right = _Side("target", target, copy, (target_start, target_end), timeout, only)
    numbers = _numbers(left, right, partitions)
    stretches = left.stretches(numbers), right.stretches(numbers)
    compared = [
        _compared(number, [(left, stretches[0][number]), (right, stretches[1][number])], by_key, times)
        for number in numbers
    ]
    return Verification(str(left), str(right), tuple(compared), _which(condition, by_key))


class _Stretch(NamedTuple):
    """Positions of a partition: from `start` up to but not including `end`."""

    start: int
    end: int


class _Producers(NamedTuple):
    """Producers whose messages are kept, or are those that are not."""

    ids: Producers
    kept: bool


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two topics, and which of its messages count."""

    name: str
    client: Client
    topic: str
    places: tuple[Places, Places]
    timeout: float | None
    producers: _Producers
    condition: PropertyCondition | None = None

    def __str__(self) -> str:
        return f"{self.topic} at {self.client.url}"

    def named(self, partitions: Iterable[int] | None) -> tuple[int, ...] | None:
        """The partitions that are named; None: all are meant. ConfigError for places that there are not."""
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigError(f"{self.name}: expected the name of a topic, found {self.topic!r}")
        for what, places in zip(("start", "end"), self.places, strict=True):
            read_places(f"{self.name}_{what}", places)
        return make_plan(self.topic, *self.places, partitions).partitions

    def stretches(self, numbers: Sequence[int]) -> dict[int, _Stretch]:
        """Where each partition starts and ends, as it is now."""
        starts, ends = (self._positions(places, numbers) for places in self.places)
        return {number: _Stretch(starts[number], max(starts[number], ends[number])) for number in numbers}

    def _positions(self, places: Places, numbers: Sequence[int]) -> dict[int, int]:
        """The positions of places: a reader that starts and ends there finds them out, and has nothing to read."""
        with self.client.reader(self.topic, places, places, partitions=numbers, isolation="committed") as reader:
            reader.ready(self.timeout)
            return reader.positions()

    def messages(
        self, number: int, stretch: _Stretch, columns: Sequence[str], stack: contextlib.ExitStack
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a partition that count; what reads them ends with the stack."""
        options = {"filter": self.condition, "columns": columns}
        batches = self._read(stack.enter_context(self._reader(number, stretch, "message", options)))
        if number not in self.producers.ids:
            return batches
        entries = self._read(stack.enter_context(self._reader(number, stretch, "batch", {})))
        return _written_by(self.producers.ids[number], self.producers.kept, batches, entries)

    def _reader(self, number: int, stretch: _Stretch, unit: Unit, options: Mapping[str, Any]) -> Reader:
        places = ({number: stretch.start}, {number: stretch.end})
        return self.client.reader(self.topic, *places, unit=unit, isolation="committed", on_gap="stop", **options)

    def _read(self, reader: Reader) -> Iterator[Any]:
        return iter(lambda: reader.read(self.timeout), None)


def _read_filter(given: Any) -> PropertyCondition | None:
    if not isinstance(given, str | PropertyCondition | None):
        raise ConfigError(f"filter: expected text such as region in us, eu, found {type(given).__name__}")
    return PropertyCondition.parse(given) if isinstance(given, str) else given


def _which(condition: PropertyCondition | None, by_key: bool) -> str:
    matching = "" if condition is None else f" with {condition}"
    return f"{matching}, the latest of each key" if by_key else matching


def _numbers(left: _Side, right: _Side, partitions: Iterable[int] | None) -> Sequence[int]:
    """The partitions to compare; raises what forbids it."""
    wanted = tuple(partitions) if isinstance(partitions, Iterator) else partitions
    named = [side.named(wanted) for side in (left, right)]
    if None not in named and named[0] != named[1]:
        raise ConfigError(f"source and target name different partitions, {named[0]} and {named[1]}: name the same")
    counts = [side.client.partitions(side.topic) for side in (left, right)]
    if counts[0] != counts[1]:
        raise ConfigError(
            f"{left} has {counts[0]} partitions and {right} has {counts[1]}: "
            "a copy is compared partition by partition, and must have as many as its source"
        )
    return named[0] or named[1] or range(counts[0])


def _compared(number: int, sides: Sequence[tuple[_Side, _Stretch]], by_key: bool, times: Times) -> Comparison:
    stream = _latest if by_key else _all
    with contextlib.ExitStack() as stack:
        source, target = (stream(side, number, stretch, stack) for side, stretch in sides)
        return compare(number, source, target, times)


def _all(side: _Side, number: int, stretch: _Stretch, stack: contextlib.ExitStack) -> Iterator[pa.RecordBatch]:
    return side.messages(number, stretch, comparison.COLUMNS, stack)


def _latest(side: _Side, number: int, stretch: _Stretch, stack: contextlib.ExitStack) -> Iterator[pa.RecordBatch]:
    with contextlib.ExitStack() as first_time:
        positions = latest_positions(side.messages(number, stretch, latest.COLUMNS, first_time))
    return only_latest(side.messages(number, stretch, comparison.COLUMNS, stack), positions)


def _written_by(
    producers: Collection[int], kept: bool, batches: Iterable[pa.RecordBatch], entries: Iterator[Entry]
) -> Iterator[pa.RecordBatch]:
    """The messages that these producers have written, or all others; `entries` are those that they came in.

    Entries are asked for as far as the messages have come; of those before, only the last can hold the next ones.
    """
    begins, wanted, end = [-1], [not kept], -1
    for batch in batches:
        positions = batch.column("position").to_numpy()
        while end <= positions[-1] and (entry := next(entries, None)) is not None:
            begins.append(entry.begin)
            wanted.append((entry.header.producer in producers) is kept)
            end = entry.end
        owners = np.searchsorted(begins, positions, side="right") - 1
        yield batch.filter(pa.array(np.array(wanted)[owners]))
        del begins[:-1], wanted[:-1]
