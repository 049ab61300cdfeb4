"""Where reading starts and ends, as users say it.

    "earliest"             the first message that is still there
    "latest"               behind the last message
    a whole number         this position
    a datetime             the first message of this time or a later one; behind the last one where there is none
    {partition: ...}       one of these for each partition
    a cursor               where that cursor is; only to start

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from penstock.errors import ConfigError
from penstock.wire.protocol import Spot

POSITION_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
SPOTS = {"earliest": Spot.EARLIEST, "latest": Spot.LATEST}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class At(NamedTuple):
    """This position."""

    position: int


class Since(NamedTuple):
    """The first message of this time, or of a later one."""

    time_ms: int


Place: TypeAlias = Spot | At | Since
Given: TypeAlias = str | int | datetime
"""A place as users say it."""


class CursorPlace(NamedTuple):
    """Where a cursor is; `initial` is for partitions in which it was never."""

    group: str
    initial: Place


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be read: which partitions (None: all), from where, up to where (None: for ever)."""

    topic: str
    partitions: tuple[int, ...] | None
    start: Place | CursorPlace | Mapping[int, Place]
    end: Place | Mapping[int, Place] | None

    def start_of(self, partition: int) -> Place:
        """Where a partition starts, a cursor aside."""
        if isinstance(self.start, CursorPlace):
            return self.start.initial
        return self.start[partition] if isinstance(self.start, Mapping) else self.start

    def end_of(self, partition: int) -> Place | None:
        """Where a partition ends; None: nowhere."""
        return self.end[partition] if isinstance(self.end, Mapping) else self.end


def make_plan(
    topic: str,
    start: Given | CursorPlace | Mapping[int, Given],
    end: Given | Mapping[int, Given] | None,
    partitions: Iterable[int] | None,
) -> Plan:
    """A plan; ConfigError for what cannot be read so. Without `partitions`, those that start and end name are meant."""
    starts = start if isinstance(start, CursorPlace) else read_places("start", start)
    ends = None if end is None else read_places("end", end)
    named = [set(places) for places in (starts, ends) if isinstance(places, Mapping)]
    numbers = None if partitions is None else _numbers(partitions)
    wanted = set(numbers) if numbers is not None else set().union(*named) if named else None
    for places in named:
        if places != wanted:
            raise ConfigError(
                f"start, end and partitions of {topic} name different partitions: {sorted(places ^ (wanted or set()))}"
            )
    plan = Plan(topic, None if wanted is None else tuple(sorted(wanted)), starts, ends)
    for number in plan.partitions or ():
        _check_order(plan, number)
    return plan


def read_places(what: str, given: Given | Mapping[int, Given]) -> Place | Mapping[int, Place]:
    """A place, or one for each partition."""
    if not isinstance(given, Mapping):
        return read_place(what, given)
    if not given:
        raise ConfigError(f"{what}: expected at least one partition, found an empty mapping")
    return {number: read_place(f"{what} of partition {number}", given[number]) for number in _numbers(given)}


def read_place(what: str, given: Given) -> Place:
    """One place."""
    if isinstance(given, str) and given in SPOTS:
        return SPOTS[given]
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= POSITION_MAX:
            raise ConfigError(f"{what}: a position is 0 or more, not {given}")
        return At(given)
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ConfigError(f"{what}: the datetime {given} has no time zone; give it one, as by tzinfo=timezone.utc")
        return Since(max(-((EPOCH - given) // MILLISECOND), 0))
    raise ConfigError(
        f"{what}: expected earliest, latest, a position, a datetime, or a mapping of partitions to these, "
        f"found {given!r}"
    )


def _numbers(partitions: Iterable[int]) -> tuple[int, ...]:
    if isinstance(partitions, str | bytes):
        raise ConfigError(f"partitions: expected numbers, found {partitions!r}")
    try:
        numbers = tuple(partitions)
    except TypeError:
        raise ConfigError(f"partitions: expected numbers, found {partitions!r}") from None
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= PARTITION_MAX:
            raise ConfigError(f"partitions: expected numbers from 0 on, found {number!r}")
    if not numbers:
        raise ConfigError("partitions: expected at least one, found none")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"partitions: each is named once, found {sorted(numbers)}")
    return numbers


def _check_order(plan: Plan, number: int) -> None:
    start, end = plan.start_of(number), plan.end_of(number)
    if isinstance(plan.start, CursorPlace) or end is None:
        return
    if isinstance(start, At) and isinstance(end, At) and start.position > end.position:
        raise ConfigError(f"{plan.topic}-{number}: the end, {end.position}, lies before the start, {start.position}")
