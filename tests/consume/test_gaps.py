"""What is gone is noticed, named, and passed over only on request: logs that were cut at either end, leaders that lag,
topics made anew, holes that compaction leaves."""

from __future__ import annotations

import logging
import pickle

import pytest

from penstock.consume.topic_watch import MADE_ANEW_S
from penstock.errors import GapError, PositionError, UnknownTopicError
from tests.consume.harness import UNKNOWN_TOPIC_S, Harness, Line
from tests.consume.model import ModelLog


def started(harness: Harness, log: ModelLog, entries: int = 5, **options: object) -> Line:
    """A reader that has read so much."""
    for _ in range(entries):
        log.write(3)
    line = harness.reader(**options)  # type: ignore[arg-type]
    line.read_until(entries * 3)
    return line


def cut_off(harness: Harness, log: ModelLog, position: int) -> None:
    """The reader is cut off, and meanwhile the log loses its beginning."""
    broker = harness.model.brokers[1]
    broker.die()
    for _ in range(5):
        log.write(3)
    log.delete_before(position)
    broker.revive()


# The log's beginning


def test_messages_deleted_before_they_were_read_are_named() -> None:
    harness = Harness()
    (log,) = harness.topic()
    line = started(harness, log)
    cut_off(harness, log, 24)
    error = line.fail()
    assert isinstance(error, GapError)
    assert isinstance(error, PositionError)
    assert (error.partition, error.first, error.next) == ("t-0", 15, 24)
    assert (error.position, error.start, error.end) == (15, 24, 30)
    assert "t-0: positions 15 to 23 are missing: they were deleted, the log reaches from 24 to 30" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert line.positions() == list(range(15))
    harness.check_idle()


def test_they_are_passed_over_on_request_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    (log,) = harness.topic()
    line = started(harness, log, on_gap="skip")
    with caplog.at_level(logging.WARNING, "penstock"):
        cut_off(harness, log, 24)
        line.read_until(15 + 6)
    assert line.positions() == [*range(15), *range(24, 30)]
    assert line.core.stats().missing == 9
    assert "positions 15 to 23 are missing" in caplog.text


def test_a_range_that_lies_in_the_gap_ends_there() -> None:
    harness = Harness()
    (log,) = harness.topic()
    line = started(harness, log, end=20, on_gap="skip")
    cut_off(harness, log, 24)
    line.read_to_end()
    assert line.positions() == list(range(15))
    assert line.core.stats().missing == 5
    assert line.core.marks[0].position == 20


def test_an_explicit_start_that_is_gone_is_a_gap() -> None:
    harness = Harness()
    (log,) = harness.topic()
    for _ in range(5):
        log.write(3)
    log.delete_before(6)
    error = harness.reader(start=2, partitions=[0]).fail()
    assert isinstance(error, GapError)
    assert (error.first, error.next) == (2, 6)


def test_the_earliest_may_move_while_it_is_looked_for() -> None:
    harness = Harness()
    (log,) = harness.topic()
    for _ in range(5):
        log.write(3)
    line = harness.reader(end="latest")
    harness.model.refusal = lambda broker, topic, partition: 6
    harness.run(line.core.fetcher.ready.done)
    log.delete_before(6)
    harness.model.refusal = lambda broker, topic, partition: 0
    line.read_to_end()
    assert line.positions() == list(range(6, 15))
    assert line.core.stats().missing == 0


def test_a_start_behind_the_end_of_the_log_is_told() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(3)
    error = harness.reader(start=10, partitions=[0]).fail()
    assert isinstance(error, GapError)
    assert "positions 3 to 9 are missing: the log was cut, or never got so far: the log reaches from 0 to 3" in str(
        error
    )


def test_a_broker_that_errs_about_its_range_is_asked_again() -> None:
    harness = Harness()
    (log,) = harness.topic()
    told = []

    def refuse(*_: object) -> int:
        told.append(1)
        return 1 if len(told) < 4 else 0

    harness.model.refusal = refuse
    log.write(3)
    line = harness.reader(start=0, end=3, partitions=[0])
    line.read_to_end()
    assert line.positions() == [0, 1, 2]


# The log's end


@pytest.mark.parametrize("grown", [0, 30])
def test_a_log_that_was_cut_is_noticed_also_when_it_has_grown_again(grown: int) -> None:
    harness = Harness(nodes=2)
    (log,) = harness.topic()
    line = started(harness, log)
    harness.model.brokers[1].die()
    log.cut(9)
    log.lead(2)
    for _ in range(grown):
        log.write(1)
    error = line.fail()
    assert isinstance(error, GapError)
    assert (error.first, error.next) == (9, 15)
    assert "the log was cut" in str(error)


def test_what_was_cut_is_read_anew_on_request() -> None:
    harness = Harness(nodes=2)
    (log,) = harness.topic()
    line = started(harness, log, on_gap="skip")
    harness.model.brokers[1].die()
    log.cut(9)
    log.lead(2)
    for _ in range(10):
        log.write(1)
    line.read_until(15 + 10)
    assert line.positions() == [*range(15), *range(9, 19)]
    assert line.core.stats().missing == 6


def test_a_leader_that_has_everything_is_believed() -> None:
    harness = Harness(nodes=2)
    (log,) = harness.topic()
    line = started(harness, log)
    for number in range(6):
        log.lead(2 - number % 2)
        log.write(2)
        harness.advance(1)
        line.drain()
    line.read_until(15 + 12)
    assert line.positions() == list(range(27))
    asked = [request for broker in harness.model.brokers.values() for request in broker.asked]
    assert any(type(request).__name__ == "OffsetForLeaderEpochRequest" for request in asked)


def test_a_leader_that_knows_nothing_of_the_last_one_is_not_believed() -> None:
    harness = Harness(nodes=2)
    (log,) = harness.topic()
    log.lead(1)
    line = started(harness, log)
    log.lead(2)
    log.epochs = [(0, 0)]
    log.write(3)
    error = line.fail()
    assert isinstance(error, GapError)
    assert error.next is None
    assert "positions from 15 on are missing: the leader knows nothing" in str(error)


def test_marks_tell_under_which_leader_they_were_read() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.lead(1)
    log.lead(1)
    line = started(harness, log)
    assert line.core.marks[0].leader_epoch == 2
    both = harness.reader()
    log.lead(1)
    log.write(1)
    both.read_until(16)
    assert both.core.marks[0].leader_epoch in (3, -1)


def test_a_cursor_notices_a_log_that_was_cut_while_nobody_read() -> None:
    harness = Harness(nodes=2)
    (log,) = harness.topic()
    cursor = harness.cursor()
    line = started(harness, log)
    harness.result(cursor.commit(line.core.marks, 30))
    line.close()
    log.cut(9)
    log.lead(2)
    for _ in range(30):
        log.write(1)
    error = harness.reader(start=cursor.place).fail()
    assert isinstance(error, GapError)
    assert (error.first, error.next) == (9, 15)


# The topic


@pytest.mark.parametrize("version", [12, 17])
def test_a_topic_made_anew_is_noticed_by_its_id(version: int) -> None:
    harness = Harness(fetch_version=version, metadata_age_max_ms=3000)
    (log,) = harness.topic()
    line = started(harness, log)
    harness.model.delete("t")
    (log,) = harness.topic()
    for _ in range(10):
        log.write(3)
    error = line.fail()
    assert isinstance(error, GapError)
    assert "t-0: positions from" in str(error)
    assert "the topic was deleted and made anew: its id is" in str(error)
    if version >= 13:
        assert line.positions() == list(range(15)), "nothing of the other topic is read"


def test_a_topic_made_anew_is_read_from_its_beginning_on_request() -> None:
    harness = Harness()
    (log,) = harness.topic()
    line = started(harness, log, on_gap="skip")
    harness.model.delete("t")
    harness.advance(2)
    (log,) = harness.topic()
    for _ in range(2):
        log.write(3)
    line.read_until(15 + 6)
    assert line.positions() == [*range(15), *range(6)]
    assert not line.is_over


def test_a_broker_that_lags_does_not_end_a_reader() -> None:
    harness = Harness(fetch_version=12, metadata_age_max_ms=100_000)
    (log,) = harness.topic()
    line = started(harness, log)
    right, wrong = harness.model.ids["t"], harness.model.ids["t"].__class__(int=7)
    harness.model.ids["t"] = wrong
    line.core.fetcher.cluster.refresh("t")
    harness.advance(MADE_ANEW_S / 2)
    harness.model.ids["t"] = right
    log.write(1)
    line.read_until(16)
    assert not line.is_over


def test_a_topic_that_is_gone_ends_it() -> None:
    harness = Harness()
    (log,) = harness.topic()
    line = started(harness, log)
    harness.model.delete("t")
    began = harness.now
    assert isinstance(line.fail(), UnknownTopicError)
    assert harness.now - began < UNKNOWN_TOPIC_S + 5


# Holes


def holed(harness: Harness, *, compacted: bool = True) -> ModelLog:
    """A log whose end was taken out by compaction."""
    (log,) = harness.topic()
    for _ in range(5):
        log.write(3)
    log.remove(6, 14)
    if compacted:
        harness.model.compacted.add("t")
    return log


@pytest.mark.parametrize("end", range(6, 16))
def test_a_range_ends_in_the_hole_that_compaction_left(end: int) -> None:
    harness = Harness()
    holed(harness)
    line = harness.reader(start=0, end=end, partitions=[0])
    line.read_to_end()
    assert line.positions() == list(range(6))
    assert line.core.marks[0].position == end
    assert line.core.stats().missing == 0


def test_holes_in_the_middle_are_passed_over() -> None:
    harness = Harness()
    (log,) = harness.topic()
    for _ in range(6):
        log.write(3)
    log.remove(3, 11)
    for start, end in ((0, 18), (4, 18), (0, 9), (5, 8), (11, 13)):
        line = harness.reader(start=start, end=end, partitions=[0])
        line.read_to_end()
        there = [*range(3), *range(12, 18)]
        assert line.positions() == [position for position in there if start <= position < end]


def test_a_hole_is_not_believed_where_nothing_is_compacted() -> None:
    harness = Harness()
    log = holed(harness, compacted=False)
    line = harness.reader(end="latest")
    line.read_until(6)
    harness.advance(30)
    line.drain()
    assert not line.is_over
    assert "gives nothing from position 6 on" in str(line.core.nothing_came(1))
    log.remove(0, 100)
    log.end = 6
    for _ in range(3):
        log.write(3)
    line.read_to_end()
    assert line.positions() == list(range(15))


def test_a_hole_is_not_believed_where_messages_are_kept_elsewhere() -> None:
    harness = Harness()
    (log,) = harness.topic()
    harness.model.compacted.add("t")
    for _ in range(5):
        log.write(3)
    log.local_start = 9
    line = harness.reader(end="latest")
    harness.advance(30)
    line.drain()
    assert not line.is_over
    assert "is not on the leader's own disk" in str(line.core.nothing_came(1))
    log.local_start = 0
    line.read_to_end()
    assert line.positions() == list(range(15))


def test_a_hole_is_seen_although_other_partitions_have_messages() -> None:
    harness = Harness()
    logs = harness.topic(partitions=3)
    for log in logs:
        for _ in range(20):
            log.write(3)
    logs[0].remove(3, 59)
    harness.model.compacted.add("t")
    line = harness.reader(end="latest", partition_bytes_max=200)
    line.read_to_end()
    assert [len(line.positions(number)) for number in range(3)] == [3, 60, 60]


def test_a_reader_that_follows_waits_at_a_hole() -> None:
    harness = Harness()
    log = holed(harness)
    line = harness.reader()
    line.read_until(6)
    harness.advance(10)
    log.write(3)
    line.read_until(9)
    assert line.positions() == [*range(6), *range(15, 18)]
