"""What is on its way to the target, and how far all is stored behind it.

Answers come in any order. What was stored counts when all before it is stored too; and its position may be committed
when it is also written down where its messages are in the copy:

    stored           all before this is stored
    surely_stored    all before this is stored, and so are its points

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import UnknownTopicError
from penstock.replicate.consignment import Consignment
from penstock.replicate.position_map import Point
from penstock.replicate.runs import Runs
from penstock.wire.protocol import Mark, Partition


class Flight:
    """A consignment on its way."""

    __slots__ = ("consignment", "has_landed", "mark", "parcel")

    def __init__(self, consignment: Consignment, parcel: Any, mark: Mark) -> None:
        """`mark`: how far all is stored when this is, and all before it."""
        self.consignment = consignment
        self.parcel = parcel
        self.mark = mark
        self.has_landed = False


class Wake:
    """What was forwarded of one partition since it was claimed."""

    def __init__(self, partition: Partition) -> None:
        self.stored = Mark(-1)
        """All before this is stored by the target."""
        self._partition = partition
        self._flights: deque[Flight] = deque()
        self._points: dict[Any, Mark] = {}  # how far all is told without them
        self._ends: dict[int, int] = {}  # where the target's partitions end, as far as known
        self._runs = Runs()

    def __repr__(self) -> str:
        awaited = f"{len(self)} on their way, {len(self._points)} points"
        return f"<Wake of {self._partition}, stored to {self.stored.position}, {awaited}>"

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is on its way, points neither."""
        return not self._flights and not self._points

    @property
    def surely_stored(self) -> Mark:
        """All before this is stored, and so are its points."""
        return min((self.stored, *self._points.values()), key=lambda mark: mark.position)

    @property
    def oldest_ms(self) -> int | None:
        """The time of what has been on its way for longest; None where nothing is."""
        return self._flights[0].consignment.time_ms if self._flights else None

    def begin(self, mark: Mark, end: int, ends: Mapping[int, int]) -> Point:
        """Copying begins here, behind the target's end; the point that says so. `ends`: those known by partition."""
        self.stored = mark
        self._ends = dict(ends)
        point = Point(mark.position, end)
        self._runs.begin(point)
        return point

    def sent(self, consignment: Consignment, parcel: Any, mark: Mark) -> Flight:
        """A consignment has left, and with it all before this mark."""
        flight = Flight(consignment, parcel, mark)
        self._flights.append(flight)
        return flight

    def passed(self, mark: Mark) -> None:
        """Where nothing is on its way, all that was passed counts as stored: what was skipped too."""
        if not self._flights:
            self.stored = mark

    def landed(self) -> Iterator[Flight]:
        """Those that landed and have none before them that did not, each taken out."""
        while self._flights and self._flights[0].has_landed:
            yield self._flights.popleft()

    def store(self, flight: Flight) -> Sequence[Point]:
        """All up to a flight is stored; the points to be told of it. UnknownTopicError where what was copied before is
        gone."""
        consignment, first = flight.consignment, flight.parcel.verdict.first
        end = self._ends.get(consignment.partition, 0)
        if isinstance(first, int) and first < end:
            text = f"the target stores at position {first} what comes behind {end}: it was made anew, or cut"
            raise UnknownTopicError(f"{self._partition}: {text}")
        self.stored = flight.mark
        if not isinstance(first, int):
            return ()
        self._ends[consignment.partition] = first + consignment.count
        return self._runs.stored(consignment.stretches, first)

    def give_up(self) -> None:
        """Nothing that was sent counts; those that have not landed are still awaited."""
        self._flights = deque(flight for flight in self._flights if not flight.has_landed)
        self._points.clear()

    def forget(self, flight: Flight) -> None:
        """One that was given up has landed."""
        self._flights.remove(flight)

    # Points

    def await_point(self, parcel: Any, before: Mark) -> None:
        """Points are on their way; until they are told, only what is before this mark may be committed."""
        self._points.setdefault(parcel, before)

    def point_landed(self, parcel: Any) -> Mark | None:
        """Points have their outcome; what waited for them, None where it does not count any more."""
        return self._points.pop(parcel, None)
