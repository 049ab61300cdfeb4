"""What is on its way, and how far all is stored behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import UnknownTopicError
from penstock.replicate.position_map import Point
from penstock.replicate.runs import Stretches
from penstock.replicate.wake import Flight, Wake
from penstock.wire.protocol import Mark, Partition, Stored


@pytest.fixture
def wake() -> Wake:
    wake = Wake(Partition("t", 0))
    assert wake.begin(Mark(0), 100, {0: 100}) == Point(0, 100)
    return wake


def sent(wake: Wake, first: int, partition: int = 0) -> Flight:
    """Ten messages leave."""
    stretches = Stretches((first,), (0,), 10)
    consignment: Any = SimpleNamespace(partition=partition, count=10, stretches=stretches, time_ms=first)
    return wake.sent(consignment, SimpleNamespace(verdict=None), Mark(first + 10))


def land(wake: Wake, flight: Flight, at: int | None) -> list[Point]:
    """One is stored; the points of those that count now."""
    flight.has_landed = True
    flight.parcel.verdict = Stored(at)
    return [point for one in wake.landed() for point in wake.store(one)]


def test_what_is_stored_counts_when_all_before_it_is(wake: Wake) -> None:
    flights = [sent(wake, first) for first in (0, 10, 20)]
    assert land(wake, flights[2], 120) == land(wake, flights[1], 110) == []
    assert (wake.stored, len(wake), wake.oldest_ms) == (Mark(0), 3, 0)
    land(wake, flights[0], 100)
    assert (wake.stored, len(wake), wake.oldest_ms, wake.is_at_rest) == (Mark(30), 0, None, True)


def test_what_was_skipped_counts_when_nothing_is_on_its_way(wake: Wake) -> None:
    flight = sent(wake, 0)
    wake.passed(Mark(50, "", 3))
    assert wake.stored == Mark(0)
    land(wake, flight, 100)
    wake.passed(Mark(50, "", 3))
    assert wake.stored == Mark(50, "", 3)


def test_points_hold_back_what_may_be_committed(wake: Wake) -> None:
    first, second = sent(wake, 0), sent(wake, 10)
    assert land(wake, first, 100) == []
    before = wake.stored
    assert land(wake, second, 130) == [Point(10, 130)]
    wake.await_point("parcel", before)
    assert (wake.stored, wake.surely_stored, wake.is_at_rest) == (Mark(20), Mark(10), False)
    assert wake.point_landed("parcel") == before
    assert (wake.surely_stored, wake.is_at_rest) == (Mark(20), True)
    assert wake.point_landed("parcel") is None


def test_where_the_target_does_not_say_where_it_stored_there_are_no_points(wake: Wake) -> None:
    assert land(wake, sent(wake, 0), None) == []
    assert wake.stored == Mark(10)


def test_a_target_that_stores_before_its_end_is_not_the_one_it_was(wake: Wake) -> None:
    with pytest.raises(UnknownTopicError, match="t-0: the target stores at position 99 what comes behind 100"):
        land(wake, sent(wake, 0), 99)
    assert wake.stored == Mark(0)


def test_ends_are_of_each_partition_of_its_own(wake: Wake) -> None:
    land(wake, sent(wake, 0, partition=1), 0)
    with pytest.raises(UnknownTopicError, match="position 9 what comes behind 10"):
        land(wake, sent(wake, 10, partition=1), 9)


def test_what_was_given_up_is_awaited_and_does_not_count(wake: Wake) -> None:
    flights = [sent(wake, first) for first in (0, 10)]
    land(wake, flights[1], 110)
    wake.await_point("parcel", Mark(0))
    wake.give_up()
    assert repr(wake) == "<Wake of t-0, stored to 0, 1 on their way, 0 points>"
    wake.forget(flights[0])
    assert wake.is_at_rest
    assert wake.stored == Mark(0)
