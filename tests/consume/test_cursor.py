"""Cursors on a model of a cluster: what they remember, where they can be moved, what lies before them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.errors import ConfigError, PositionError, TimedOutError, UnknownTopicError
from penstock.wire.protocol import Mark
from tests.consume.batches import rows_of
from tests.consume.harness import UNKNOWN_TOPIC_S, Harness, Line

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def filled(partitions: int = 2, nodes: int = 2) -> Harness:
    harness = Harness(nodes=nodes)
    for log in harness.topic(partitions=partitions):
        for _ in range(5):
            log.write(4)
    return harness


def test_what_was_committed_is_remembered() -> None:
    harness = filled()
    cursor, other = harness.cursor(), harness.cursor(name="other")
    assert harness.result(cursor.marks(30)) == {}
    harness.result(cursor.commit({1: 7}, 30))
    harness.result(cursor.commit({0: Mark(3, "a note", 5)}, 30))
    assert harness.result(cursor.marks(30)) == {0: Mark(3, "a note", 5), 1: Mark(7)}
    assert harness.result(harness.cursor().marks(30)) == {0: Mark(3, "a note", 5), 1: Mark(7)}
    assert harness.result(other.marks(30)) == {}
    harness.result(cursor.commit({}, 30))


def test_a_reader_starts_where_the_cursor_is() -> None:
    harness = filled()
    cursor = harness.cursor(initial="latest")
    harness.result(cursor.commit({0: 17}, 30))
    line = harness.reader(start=cursor.place, end="latest")
    line.read_to_end()
    assert line.positions(0) == [17, 18, 19]
    assert line.positions(1) == []
    harness.result(cursor.commit(line.core.marks, 30))
    assert harness.result(cursor.backlog(30, True)) == {0: 0, 1: 0}


def test_a_cursor_behind_the_end_of_a_range_has_nothing_left() -> None:
    harness = filled()
    cursor = harness.cursor()
    harness.result(cursor.commit({0: 17, 1: 3}, 30))
    line = harness.reader(start=cursor.place, end=5, partitions=[0, 1])
    line.read_to_end()
    assert line.positions(0) == []
    assert line.positions(1) == [3, 4]
    assert {number: mark.position for number, mark in line.core.marks.items()} == {0: 17, 1: 5}


def first_item(line: Line) -> Any:
    """The first thing that a reader hands out; None when there is none."""
    found: list[Any] = []

    def look() -> bool:
        item = line.core.poll()
        found.extend([] if item is None else [item])
        return bool(found) or line.core.is_at_end

    line.harness.run(look)
    return found[0] if found else None


def test_reading_goes_on_where_it_was_left() -> None:
    harness = filled(partitions=3)
    cursor = harness.cursor()
    seen: list[tuple[int, int]] = []
    while True:
        line = harness.reader(start=cursor.place, end="latest", partition_bytes_max=1)
        item = first_item(line)
        if item is None:
            break
        seen += [(row.partition, row.position) for row in rows_of(item)]
        harness.result(cursor.commit(line.core.marks, 30))
        line.close()
    assert sorted(seen) == [(number, position) for number in range(3) for position in range(20)]
    assert len(seen) == 60


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 20, 1: 20}),
        (5, {0: 5, 1: 5}),
        ({1: 20}, {1: 20}),
        ({0: "latest", 1: 3}, {0: 20, 1: 3}),
        (EPOCH + timedelta(milliseconds=9), {0: 9, 1: 9}),
        (EPOCH + timedelta(days=9), {0: 20, 1: 20}),
    ],
)
def test_a_cursor_is_moved(to: Any, expected: dict[int, int]) -> None:
    harness = filled()
    cursor = harness.cursor()
    assert harness.result(cursor.reset(to, 30)) == expected
    assert {number: mark.position for number, mark in harness.result(cursor.marks(30)).items()} == expected


def test_a_cursor_is_not_moved_to_where_nothing_is() -> None:
    harness = filled()
    harness.model.topics["t"][0].delete_before(8)
    cursor = harness.cursor()
    for position in (7, 21):
        with pytest.raises(
            PositionError, match=f"position {position} is outside of the log, which reaches from 8 to 20"
        ):
            harness.result(cursor.reset({0: position}, 30))
    with pytest.raises(UnknownTopicError, match=r"has 2 partitions, and not \[5\]"):
        harness.result(cursor.reset({5: 0}, 30))
    assert harness.result(cursor.marks(30)) == {}


def test_the_backlog_is_what_lies_before_it() -> None:
    harness = filled()
    cursor, late = harness.cursor(), harness.cursor(name="late", initial="latest")
    assert harness.result(cursor.backlog(30, True)) == {0: 20, 1: 20}
    assert harness.result(late.backlog(30, True)) == {0: 0, 1: 0}
    assert harness.result(harness.cursor(name="mid", initial=15).backlog(30, True)) == {0: 5, 1: 5}
    harness.result(cursor.commit({0: 12}, 30))
    log = harness.model.topics["t"][0]
    log.write(3, producer=5)
    assert harness.result(cursor.backlog(30, True)) == {0: 8, 1: 20}
    assert harness.result(cursor.backlog(30, False)) == {0: 11, 1: 20}


def test_a_position_of_an_open_transaction_is_waited_for() -> None:
    harness = filled()
    cursor = harness.cursor()
    harness.result(cursor.commit({0: 5}, 30))
    harness.model.unstable.add("mine")
    waiting = cursor.marks(30)
    harness.advance(5)
    assert not waiting.done()
    harness.model.unstable.clear()
    assert harness.result(waiting)[0].position == 5
    harness.model.unstable.add("mine")
    with pytest.raises(TimedOutError, match="UNSTABLE_OFFSET_COMMIT"):
        harness.result(cursor.marks(5))


def test_an_unknown_topic_is_told() -> None:
    harness = Harness()
    cursor = harness.cursor("nothing")
    began = harness.now
    with pytest.raises(UnknownTopicError):
        harness.result(cursor.marks(60))
    assert harness.now - began < UNKNOWN_TOPIC_S + 2
    with pytest.raises(UnknownTopicError):
        harness.result(cursor.commit({0: 5}, 60))


def test_a_cluster_that_is_away_is_given_up_in_time() -> None:
    harness = filled(nodes=1)
    harness.model.brokers[1].die()
    cursor = harness.cursor()
    for future in (cursor.marks(5), cursor.commit({0: 1}, 5), cursor.reset("latest", 5), cursor.backlog(5, True)):
        with pytest.raises(TimedOutError):
            harness.result(future, seconds=60)


@pytest.mark.parametrize("positions", [{0: -1}, {0: "5"}, {0: True}, {-1: 5}, {"0": 5}, {0: Mark(-5)}])
def test_what_is_no_position_is_refused(positions: Any) -> None:
    harness = filled()
    with pytest.raises(ConfigError, match="positions: "):
        harness.cursor().commit(positions, 30)


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_cursor_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="name: a cursor needs one"):
        Harness().cursor(name=name)
