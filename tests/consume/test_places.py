"""Where reading starts and ends, as users say it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.consume.places import At, CursorPlace, Since, make_plan, read_place, read_places
from penstock.errors import ConfigError
from penstock.wire.protocol import Spot


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("earliest", Spot.EARLIEST),
        ("latest", Spot.LATEST),
        (0, At(0)),
        (2**63 - 1, At(2**63 - 1)),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), Since(1000)),
        (datetime(1970, 1, 1, 1, 0, 1, 500, tzinfo=timezone(timedelta(hours=1))), Since(1001)),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), Since(1)),
        (datetime(1960, 1, 1, tzinfo=UTC), Since(0)),
    ],
)
def test_a_place_is_read(given: Any, place: Any) -> None:
    assert read_place("start", given) == place


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (-1, "start: a position is 0 or more, not -1"),
        (2**63, "a position is 0 or more"),
        (True, "found True"),
        ("first", "found 'first'"),
        (1.5, r"found 1\.5"),
        (None, "found None"),
        (datetime(2024, 1, 1), "has no time zone"),
    ],
)
def test_what_is_no_place_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_place("start", given)


def test_a_mapping_gives_each_partition_its_place() -> None:
    assert read_places("start", {0: "latest", 3: 7}) == {0: Spot.LATEST, 3: At(7)}
    with pytest.raises(ConfigError, match="start of partition 3: a position is 0 or more"):
        read_places("start", {3: -7})
    with pytest.raises(ConfigError, match="at least one"):
        read_places("start", {})
    with pytest.raises(ConfigError, match="numbers from 0 on, found 'a'"):
        read_places("start", {"a": 1})  # type: ignore[dict-item]


def test_without_partitions_those_that_are_named_are_meant() -> None:
    assert make_plan("t", "earliest", None, None).partitions is None
    assert make_plan("t", {2: 5, 1: 6}, None, None).partitions == (1, 2)
    assert make_plan("t", "earliest", {4: 5}, None).partitions == (4,)
    plan = make_plan("t", {2: 5, 1: 6}, {1: 10, 2: "latest"}, [2, 1])
    assert (plan.start_of(1), plan.end_of(1), plan.end_of(2)) == (At(6), At(10), Spot.LATEST)


def test_a_cursor_starts_where_it_is_or_where_it_would_begin() -> None:
    plan = make_plan("t", CursorPlace("mine", Spot.LATEST), 50, [0])
    assert plan.start_of(0) is Spot.LATEST
    assert plan.end_of(0) == At(50)


@pytest.mark.parametrize(
    ("start", "end", "partitions", "text"),
    [
        ({0: 1}, {1: 5}, None, "name different partitions"),
        ({0: 1}, None, [0, 1], r"name different partitions: \[1\]"),
        ("earliest", {0: 1}, [2], "name different partitions"),
        ("earliest", None, [], "at least one, found none"),
        ("earliest", None, [0, 0], "each is named once"),
        ("earliest", None, [-1], "numbers from 0 on, found -1"),
        ("earliest", None, [2**31], "numbers from 0 on"),
        ("earliest", None, "12", "expected numbers, found '12'"),
        ("earliest", None, 3, "expected numbers, found 3"),
        (5, 3, [0], "t-0: the end, 3, lies before the start, 5"),
        ({1: 5}, {1: 3}, None, "t-1: the end, 3, lies before the start, 5"),
    ],
)
def test_what_cannot_be_read_is_refused(start: Any, end: Any, partitions: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_plan("t", start, end, partitions)
