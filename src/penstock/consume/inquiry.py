"""What must be found out before a partition is read, or read on.

| question | asked when | answer |
|---|---|---|
| where to start and end | a reader begins | tracks |
| bounds | a broker says that the position is outside of its log | the log's start and end: what is missing |
| leader | the partition has another leader | where the entries of the one before end: were some cut off? |
| hole | the log goes on behind the end of the range, and yet nothing is there | whether the range is at its end |

Compaction leaves holes, and where it has taken out all that lies before the end of a range, no entry will ever come
that shows it. But there are other reasons for a broker to give nothing: entries that are kept elsewhere and come too
late, a filter that puts them off. So a hole is believed only in a topic that is compacted, at a position that the
leader has on its own disk.

Runs on: the I/O thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.config import ReaderOptions
from penstock.consume.places import At, CursorPlace, Place, Plan, Since
from penstock.consume.seeker import Seeker
from penstock.consume.track import Track
from penstock.errors import BusyError, ConfigError, PenstockError, UnknownTopicError
from penstock.net.backoff import Backoff
from penstock.net.errand import Steps
from penstock.net.homes import Homes, Patience
from penstock.wire.protocol import FindHome, Mark, Partition, ReadMarks, Spot


class Gap(NamedTuple):
    """What is missing, from `first` up to `next` (None: nobody can tell), why, and where reading can go on."""

    first: int
    next: int | None
    why: str
    resume: int
    start: int = -1
    end: int = -1


class Inquiry:
    """Finds out what one reader must know."""

    def __init__(
        self, plan: Plan, options: ReaderOptions, seeker: Seeker, homes: Homes, backoff: Callable[[], Backoff]
    ) -> None:
        self._plan = plan
        self._committed = options.isolation == "committed"
        self._seeker = seeker
        self._homes = homes
        self._backoff = backoff

    @property
    def trouble(self) -> PenstockError | None:
        """Why finding out did not succeed yet."""
        return self._seeker.trouble or self._homes.trouble

    # The beginning

    def start(self, until: float) -> Steps[list[Track]]:
        """The partitions, each where it starts."""
        plan = self._plan
        count = yield from self._seeker.partitions(plan.topic, until)
        numbers = range(count) if plan.partitions is None else plan.partitions
        if max(numbers) >= count:
            raise UnknownTopicError(f"topic {plan.topic} has {count} partitions, and no partition {max(numbers)}")
        partitions = [Partition(plan.topic, number) for number in numbers]
        marks = yield from self._marks(partitions, until)
        places: dict[Partition, Place] = {one: plan.start_of(one.number) for one in partitions}
        places |= {partition: At(mark.position) for partition, mark in marks.items()}
        starts = yield from self._positions(places, until)
        ends: Mapping[Partition, int] = {}
        if plan.end is not None:
            wanted = {one: place for one in partitions if (place := plan.end_of(one.number)) is not None}
            ends = yield from self._positions(wanted, until)
        return [
            self._track(partition, starts[partition], ends.get(partition), marks.get(partition), places[partition])
            for partition in partitions
        ]

    def arrive(self, numbers: Iterable[int]) -> Steps[list[Track]]:
        """Partitions that came later, from their first message on."""
        partitions = [Partition(self._plan.topic, number) for number in numbers]
        starts = yield from self._positions(dict.fromkeys(partitions, Spot.EARLIEST), math.inf)
        return [self._track(one, starts[one], None, None, Spot.EARLIEST) for one in partitions]

    def _track(self, partition: Partition, start: int, end: int | None, mark: Mark | None, place: Place) -> Track:
        if end is not None and end < start:
            if mark is None and isinstance(place, At):
                raise ConfigError(f"{partition}: the end, position {end}, lies before the start, {start}")
            end = start  # as of an end by time, before a cursor that has got further: nothing is left
        epoch = -1 if mark is None else mark.leader_epoch
        return Track(partition, start, end, self._backoff(), epoch=epoch, loose=not isinstance(place, At))

    def _marks(self, partitions: list[Partition], until: float) -> Steps[Mapping[Partition, Mark]]:
        start = self._plan.start
        if not isinstance(start, CursorPlace):
            return {}
        home, request = FindHome(start.group, of_group=True), ReadMarks(start.group, partitions)
        told = yield from self._homes.asked(home, request, Patience(until))
        if told.error is not None:
            raise told.error
        marks: Mapping[Partition, Mark] = told.answer
        return marks

    def _positions(self, places: Mapping[Partition, Place], until: float) -> Steps[dict[Partition, int]]:
        known = {partition: place.position for partition, place in places.items() if isinstance(place, At)}
        asked: dict[Partition, Spot | Since] = {
            partition: place for partition, place in places.items() if not isinstance(place, At)
        }
        if asked:
            known |= yield from self._seeker.find(asked, committed=self._committed, until=until)
        return known

    # On the way

    def bounds(self, track: Track, until: float) -> Steps[Gap | int]:
        """Why a position is outside of the log; or where to go on, since it is not, or nobody asked for just it."""
        partition, position = track.partition, track.position
        earliest = yield from self._seeker.find({partition: Spot.EARLIEST}, committed=False, until=until)
        latest = yield from self._seeker.find({partition: Spot.LATEST}, committed=False, until=until)
        start, end = earliest[partition], max(latest[partition], earliest[partition])
        inside = min(max(position, start), end)
        if track.is_loose or inside == position:
            return inside
        log = f"the log reaches from {start} to {end}"
        if position < start:
            next_there = start if track.end is None else min(start, track.end)
            return Gap(position, next_there, f"they were deleted, {log}", start, start, end)
        return Gap(end, position, f"the log was cut, or never got so far: {log}", end, start, end)

    def leader(self, track: Track, until: float) -> Steps[Gap | None]:
        """What of that which was read the partition's present leader does not have; None: it has all of it."""
        told = yield from self._seeker.epoch_end(track.partition, track.epoch, until)
        if told.position >= track.position:
            return None
        if told.position < 0:
            why = f"the leader knows nothing of what was stored under leader epoch {track.epoch}"
            return Gap(track.position, None, why, track.position)
        why = f"the log was cut: what was stored under leader epoch {track.epoch} ends at {told.position} now"
        return Gap(told.position, track.position, why, told.position, end=told.position)

    def hole(self, track: Track, until: float) -> Steps[BusyError | None]:
        """Why it cannot be believed that nothing lies between a position and the end of the range; None: it can."""
        partition = track.partition
        settings = yield from self._seeker.settings(partition.topic, until)
        if not settings.is_compacted:
            return BusyError(f"{partition}: the broker gives nothing from position {track.position} on, for now")
        at_hand = yield from self._seeker.find({partition: Spot.AT_HAND}, committed=False, until=until)
        if at_hand[partition] > track.position:
            return BusyError(
                f"{partition}: position {track.position} is not on the leader's own disk, and does not come"
            )
        return None
