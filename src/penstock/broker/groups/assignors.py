"""How the broker shares partitions out among the members of a group.

| name      | each member gets                                                                                     |
|-----------|------------------------------------------------------------------------------------------------------|
| `uniform` | as many partitions as any other, as far as their wishes allow, and keeps of those it had what it may |
| `range`   | of each topic a run of partitions; topics with as many partitions are cut alike                      |

Pure: the same question has the same answer, in whatever order the members are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from penstock.broker.groups.questions import Slot


class Seat(NamedTuple):
    """A member to be given partitions: of which topics, and what it was given before."""

    member: str
    rank: str
    """By what members are ordered: a static one's instance, so that its successor takes its place."""
    topics: frozenset[UUID]
    held: frozenset[Slot] = frozenset()


Assigned: TypeAlias = dict[str, frozenset[Slot]]
Assignor: TypeAlias = Callable[[Sequence[Seat], Mapping[UUID, int]], Assigned]


def assign_uniformly(seats: Sequence[Seat], partitions: Mapping[UUID, int]) -> Assigned:
    """Evenly, and with as few moves as that takes."""
    seats = sorted(seats, key=lambda seat: (seat.rank, seat.member))
    if not seats:
        return {}
    if all(seat.topics == seats[0].topics for seat in seats):
        return _even(seats, partitions)
    return _uneven(seats, partitions)


def assign_by_range(seats: Sequence[Seat], partitions: Mapping[UUID, int]) -> Assigned:
    """Topic by topic, in runs."""
    given: dict[str, set[Slot]] = {seat.member: set() for seat in seats}
    seats = sorted(seats, key=lambda seat: (seat.rank, seat.member))
    for topic, count in partitions.items():
        readers = [seat.member for seat in seats if topic in seat.topics]
        first = 0
        for place, member in enumerate(readers):
            run, rest = divmod(count, len(readers))
            last = first + run + (place < rest)
            given[member].update((topic, number) for number in range(first, last))
            first = last
    return {member: frozenset(slots) for member, slots in given.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_by_range}
DEFAULT_ASSIGNOR: Final = "uniform"


def _slots(topics: frozenset[UUID], partitions: Mapping[UUID, int]) -> list[Slot]:
    """All partitions of these topics, one of each topic in turn; nothing is sorted but the topics."""
    known = sorted((topic.int, topic) for topic in topics if topic in partitions)
    most = max((partitions[topic] for _number, topic in known), default=0)
    return [(topic, number) for number in range(most) for _number, topic in known if number < partitions[topic]]


def _kept(seats: Sequence[Seat], slots: Iterable[Slot]) -> dict[str, list[Slot]]:
    """What each member has and may keep, in the order of the slots; what two had is the first one's."""
    owners: dict[Slot, Seat] = {}
    for seat in reversed(seats):
        owners.update(dict.fromkeys(seat.held, seat))
    kept: dict[str, list[Slot]] = {seat.member: [] for seat in seats}
    for slot in slots:
        owner = owners.get(slot)
        if owner is not None and slot[0] in owner.topics:
            kept[owner.member].append(slot)
    return kept


def _even(seats: Sequence[Seat], partitions: Mapping[UUID, int]) -> Assigned:
    """All want the same topics, so each gets the same number of partitions or one more."""
    slots = _slots(seats[0].topics, partitions)
    share, extra = divmod(len(slots), len(seats))
    kept = _kept(seats, slots)
    members = sorted(kept, key=lambda member: len(kept[member]) <= share)  # who has more keeps the one more
    room = {member: share + (place < extra) for place, member in enumerate(members)}
    kept = {member: mine[: room[member]] for member, mine in kept.items()}
    taken = {slot for mine in kept.values() for slot in mine}
    hungry = deque(seat.member for seat in seats if len(kept[seat.member]) < room[seat.member])
    for slot in slots:
        if slot not in taken:
            member = hungry.popleft()
            kept[member].append(slot)
            if len(kept[member]) < room[member]:
                hungry.append(member)
    return {member: frozenset(mine) for member, mine in kept.items()}


def _uneven(seats: Sequence[Seat], partitions: Mapping[UUID, int]) -> Assigned:
    """Members want different topics: partitions go to whoever has fewest, then move where that evens things out."""
    kept = _kept(seats, _slots(frozenset().union(*(seat.topics for seat in seats)), partitions))
    load = {member: len(mine) for member, mine in kept.items()}
    given: dict[UUID, dict[str, list[int]]] = {}
    for seat in seats:
        for topic in seat.topics & partitions.keys():
            given.setdefault(topic, {})[seat.member] = []
    for member, mine in kept.items():
        for topic, number in mine:
            given[topic][member].append(number)
    topics = sorted(given, key=lambda topic: (len(given[topic]), topic.int))
    for topic in topics:
        _fill(given[topic], partitions[topic], load)
    is_moving = True
    while is_moving:
        is_moving = False
        for topic in topics:
            is_moving |= _level(given[topic], load)
    assigned: dict[str, set[Slot]] = {seat.member: set() for seat in seats}
    for topic, shares in given.items():
        for member, numbers in shares.items():
            assigned[member].update((topic, number) for number in numbers)
    return {member: frozenset(slots) for member, slots in assigned.items()}


def _fill(shares: dict[str, list[int]], count: int, load: dict[str, int]) -> None:
    """Give the partitions of a topic that nobody has to whoever has fewest."""
    taken = {number for numbers in shares.values() for number in numbers}
    for number in range(count):
        if number not in taken:
            member = min(shares, key=load.__getitem__)
            shares[member].append(number)
            load[member] += 1


def _level(shares: dict[str, list[int]], load: dict[str, int]) -> bool:
    """Move partitions of a topic from those who have most to those who have fewest; whether any was moved.

    Each move brings two loads closer to each other, so there is an end to it.
    """
    has_moved = False
    while True:
        rich = max((member for member in shares if shares[member]), key=load.__getitem__, default=None)
        poor = min(shares, key=load.__getitem__)
        if rich is None or load[rich] - load[poor] < 2:
            return has_moved
        shares[poor].append(shares[rich].pop())
        load[rich] -= 1
        load[poor] += 1
        has_moved = True
