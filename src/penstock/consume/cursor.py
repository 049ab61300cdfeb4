"""Cursors: positions of a topic that outlive whoever reads: `client.cursor(topic, name)`.

On Kafka a cursor is the committed offsets of a group that has no members; whoever speaks Kafka sees them, and tools
that show or reset offsets work on them. A group with members belongs to these, and refuses a cursor's commits.

`CursorCore` is a cursor but for how one waits.

Runs on: any thread; the steps on the I/O thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from penstock.clock import Clock
from penstock.consume.places import At, CursorPlace, Given, Place, Since, read_place, read_places
from penstock.consume.seeker import Seeker
from penstock.errors import ConfigError, PositionError, RefusedError, TimedOutError, UnknownTopicError
from penstock.net.cluster import Cluster
from penstock.net.errand import Steps
from penstock.net.errands import Errands, Result
from penstock.net.failures import because
from penstock.net.homes import Homes, Patience, Told
from penstock.net.loop import Loop
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import (
    FindHome,
    GroupFilter,
    Mark,
    Partition,
    ReadFilter,
    ReadMarks,
    Request,
    SetFilter,
    Spot,
    StoreMarks,
)

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class CursorMachinery:
    """What a cursor works with; shared by the cursors of a client."""

    loop: Loop
    errands: Errands
    clock: Clock
    cluster: Cluster
    seeker: Seeker
    homes: Homes


class CursorCore:
    """A cursor but for how one waits: each method's outcome is in a future."""

    def __init__(self, topic: str, name: str, initial: Given, machinery: CursorMachinery) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name: a cursor needs one, found {name!r}")
        self.topic = topic
        self.name = name
        self.cluster = machinery.cluster.name
        self.place = CursorPlace(name, read_place("initial", initial))
        self.loop = machinery.loop
        self._machinery = machinery
        self._home = FindHome(name, of_group=True)

    def __repr__(self) -> str:
        return f"{self.name!r} of {self.topic}"

    def marks(self, timeout: float) -> Future[dict[int, Mark]]:
        """What was committed, by partition; those in which nothing was are left out."""
        return self._run(self._marks(self._until(timeout)))

    def commit(self, positions: Mapping[int, int | Mark], timeout: float) -> Future[None]:
        """Commit positions: of each partition the one to read next."""
        marks = {Partition(self.topic, number): _mark(number, mark) for number, mark in positions.items()}
        return self._run(self._store(marks, self._until(timeout)))

    def reset(self, to: Given | Mapping[int, Given], timeout: float) -> Future[dict[int, int]]:
        """Move it, in all partitions or in those that are named; where it is then."""
        return self._run(self._reset(read_places("to", to), self._until(timeout)))

    def backlog(self, timeout: float, committed: bool) -> Future[dict[int, int]]:
        """How many positions lie before it, by partition."""
        return self._run(self._backlog(committed, self._until(timeout)))

    def set_filter(self, given: str | PropertyCondition | None, timeout: float) -> Future[None]:
        """Have the broker filter for whoever reads from here; None: no more."""
        condition = read_filter(given)
        text = None if condition is None else str(condition)
        return self._run(self._set_filter(text, self._until(timeout)))

    def filter(self, timeout: float) -> Future[str | None]:
        """What the broker filters by for whoever reads from here."""
        return self._run(self._filter(self._until(timeout)))

    # Steps

    def _set_filter(self, text: str | None, until: float) -> Steps[None]:
        try:
            yield from self._asked(SetFilter(self.name, text), until)
        except RefusedError as error:
            raise self._unfiltered(error) from error

    def _filter(self, until: float) -> Steps[str | None]:
        try:
            told: GroupFilter = yield from self._asked(ReadFilter(self.name), until)
        except RefusedError as error:
            raise self._unfiltered(error) from error
        return told.text

    def _unfiltered(self, error: RefusedError) -> RefusedError:
        return RefusedError(f"cursor {self!r}: the broker does not filter for it, give readers the filter: {error}")

    def _marks(self, until: float) -> Steps[dict[int, Mark]]:
        partitions = yield from self._partitions(until)
        marks = yield from self._read(partitions, until)
        return {partition.number: mark for partition, mark in sorted(marks.items())}

    def _read(self, partitions: list[Partition], until: float) -> Steps[Mapping[Partition, Mark]]:
        marks: Mapping[Partition, Mark] = yield from self._asked(ReadMarks(self.name, partitions), until)
        return marks

    def _store(self, marks: Mapping[Partition, Mark], until: float) -> Steps[None]:
        if marks:
            yield from self._asked(StoreMarks(self.name, marks), until)

    def _asked(self, request: Request[Any], until: float) -> Steps[Any]:
        told: Told = yield from self._machinery.homes.asked(self._home, request, Patience(until))
        if told.error is None:
            return told.answer
        if told.error.retriable and not isinstance(told.error, UnknownTopicError):
            raise because(TimedOutError(f"cursor {self!r}: not in time: {told.error}"), told.error)
        raise told.error

    def _reset(self, to: Place | Mapping[int, Place], until: float) -> Steps[dict[int, int]]:
        partitions = yield from self._partitions(until)
        if isinstance(to, Mapping):
            known = {partition.number: partition for partition in partitions}
            if missing := sorted(to.keys() - known):
                raise UnknownTopicError(f"topic {self.topic} has {len(known)} partitions, and not {missing}")
            places = {known[number]: place for number, place in to.items()}
        else:
            places = dict.fromkeys(partitions, to)
        positions = yield from self._positions(places, until)
        yield from self._store({partition: Mark(position) for partition, position in positions.items()}, until)
        return {partition.number: position for partition, position in sorted(positions.items())}

    def _positions(self, places: Mapping[Partition, Place], until: float) -> Steps[dict[Partition, int]]:
        """Where these places are; PositionError for a position that the log does not hold."""
        seeker = self._machinery.seeker
        spots: dict[Partition, Spot | Since] = {one: at for one, at in places.items() if not isinstance(at, At)}
        found = yield from seeker.find(spots, committed=True, until=until)
        exact = {one: at.position for one, at in places.items() if isinstance(at, At)}
        starts = yield from seeker.find(dict.fromkeys(exact, Spot.EARLIEST), committed=False, until=until)
        ends = yield from seeker.find(dict.fromkeys(exact, Spot.LATEST), committed=False, until=until)
        for partition, position in exact.items():
            if not starts[partition] <= position <= ends[partition]:
                raise PositionError(position, starts[partition], ends[partition])
        return found | exact

    def _backlog(self, committed: bool, until: float) -> Steps[dict[int, int]]:
        seeker = self._machinery.seeker
        partitions = yield from self._partitions(until)
        marks = yield from self._read(partitions, until)
        places: dict[Partition, Place] = dict.fromkeys(partitions, self.place.initial)
        spots: dict[Partition, Spot | Since] = {
            one: at for one, at in places.items() if one not in marks and not isinstance(at, At)
        }
        starts = {one: at.position for one, at in places.items() if isinstance(at, At)}
        starts |= yield from seeker.find(spots, committed=committed, until=until)
        starts |= {partition: mark.position for partition, mark in marks.items()}
        ends = yield from seeker.find(dict.fromkeys(partitions, Spot.LATEST), committed=committed, until=until)
        return {one.number: max(ends[one] - starts[one], 0) for one in partitions}

    def _partitions(self, until: float) -> Steps[list[Partition]]:
        count = yield from self._machinery.seeker.partitions(self.topic, until)
        return [Partition(self.topic, number) for number in range(count)]

    def _run(self, steps: Steps[Result]) -> Future[Result]:
        machinery = self._machinery
        return machinery.errands.run(machinery.cluster, steps)

    def _until(self, timeout: float) -> float:
        return self._machinery.clock.monotonic() + timeout


class CursorFace:
    """What a cursor tells without waiting."""

    def __init__(self, core: CursorCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core!r}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._core.topic

    @property
    def name(self) -> str:
        """Its own name."""
        return self._core.name

    def place_for(self, topic: str, cluster: str) -> CursorPlace:
        """Where a reader of this topic of that cluster starts; ConfigError when it is a cursor of another one."""
        core = self._core
        if (core.topic, core.cluster) != (topic, cluster):
            raise ConfigError(f"start: a cursor of {core.topic} on {core.cluster} is none of {topic} on {cluster}")
        return core.place


class Cursor(CursorFace):
    """A durable position in a topic; made by `client.cursor(topic, name)`."""

    def positions(self, timeout: float = TIMEOUT) -> dict[int, int]:
        """The position to read next of each partition in which one was committed."""
        return {number: mark.position for number, mark in self.marks(timeout).items()}

    def marks(self, timeout: float = TIMEOUT) -> dict[int, Mark]:
        """The same, with the notes that were committed beside them."""
        return self._asking().marks(timeout).result()

    def commit(self, positions: Mapping[int, int | Mark], timeout: float = TIMEOUT) -> None:
        """Store positions, of each partition the one to read next: numbers, or what `reader.marks()` tells."""
        self._asking().commit(positions, timeout).result()

    def reset(self, to: Given | Mapping[int, Given], timeout: float = TIMEOUT) -> dict[int, int]:
        """Move it to the earliest or latest message, to a time or a position; where it is then."""
        return self._asking().reset(to, timeout).result()

    def backlog(self, timeout: float = TIMEOUT, *, committed: bool = True) -> dict[int, int]:
        """How many positions of each partition it has before it; with `committed`, up to the first open transaction."""
        return self._asking().backlog(timeout, committed).result()

    def set_filter(self, filter: str | PropertyCondition | None, timeout: float = TIMEOUT) -> None:  # noqa: A002
        """Have the broker filter for all who read from it, until this is called again; None: no more.

        A setting of the group that it stands for: durable, and for all its topics and members. RefusedError where
        brokers do not filter, as Kafka's own.
        """
        self._asking().set_filter(filter, timeout).result()

    def filter(self, timeout: float = TIMEOUT) -> str | None:
        """What the broker filters by for all who read from it."""
        return self._asking().filter(timeout).result()

    def _asking(self) -> CursorCore:
        self._core.loop.check_may_wait()
        return self._core


def read_filter(given: str | PropertyCondition | None) -> PropertyCondition | None:
    """A filter as users say it; ConfigError for what is none."""
    if not isinstance(given, str | PropertyCondition | None):
        raise ConfigError(f"filter: expected text such as region in us, eu, found {type(given).__name__}")
    return PropertyCondition.parse(given) if isinstance(given, str) else given


def _mark(number: int, given: int | Mark) -> Mark:
    mark = given if isinstance(given, Mark) else Mark(given)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ConfigError(f"positions: expected partitions by their numbers, found {number!r}")
    if not isinstance(mark.position, int) or isinstance(mark.position, bool) or mark.position < 0:
        raise ConfigError(f"positions: partition {number}: a position is 0 or more, not {mark.position!r}")
    return mark
