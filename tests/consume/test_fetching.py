"""A reader on a model of a cluster: ranges that end by themselves, topics that are followed, brokers asked at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.consume.fetcher import HURRY_MS
from penstock.errors import (
    ClosedError,
    ConfigError,
    DecodeError,
    DeniedError,
    LimitError,
    TimedOutError,
    UnknownTopicError,
)
from tests.consume.harness import UNKNOWN_TOPIC_S, Harness
from tests.consume.model import ModelLog

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fill(logs: list[ModelLog], entries: int = 5, count: int = 3) -> None:
    for log in logs:
        for _ in range(entries):
            log.write(count)


# Ranges


@pytest.mark.parametrize("version", range(4, 18))
def test_a_range_is_read_and_ends_by_itself(version: int) -> None:
    harness = Harness(fetch_version=version, ids=version % 2 == 0)
    fill(harness.topic(partitions=2))
    line = harness.reader(end="latest")
    rows = line.read_to_end()
    assert [row.value for row in rows if row.partition == 0] == [b"%d" % position for position in range(15)]
    assert line.positions(1) == list(range(15))
    assert {number: mark.position for number, mark in line.core.marks.items()} == {0: 15, 1: 15}
    harness.check_idle()


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (4, 11, range(4, 11)),
        ({0: 3}, {0: 6}, range(3, 6)),
        (5, 5, range(0)),
        ("latest", "latest", range(0)),
        ("earliest", EPOCH + timedelta(milliseconds=7), range(7)),
        (EPOCH + timedelta(milliseconds=4), EPOCH + timedelta(milliseconds=13), range(4, 13)),
        (EPOCH + timedelta(milliseconds=4), EPOCH + timedelta(days=5), range(4, 15)),
        (EPOCH + timedelta(days=4), "latest", range(0)),
    ],
)
def test_ranges_by_position_and_time_are_exact(start: Any, end: Any, expected: range) -> None:
    harness = Harness()
    fill(harness.topic())
    line = harness.reader(start=start, end=end, partitions=[0])
    line.read_to_end()
    assert line.positions() == list(expected)
    assert line.core.marks[0].position == (expected.stop if expected else line.core.marks[0].position)
    harness.check_idle()


def test_only_the_partitions_that_were_asked_for_are_read() -> None:
    harness = Harness()
    fill(harness.topic(partitions=4))
    line = harness.reader(end="latest", partitions=[1, 3])
    assert {row.partition for row in line.read_to_end()} == {1, 3}


def test_a_range_that_is_not_written_yet_ends_when_it_is() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(3)
    line = harness.reader(end=7)
    line.read_until(3)
    harness.advance(60)
    assert not line.is_over
    log.write(3)
    log.write(3)
    line.read_to_end()
    assert line.positions() == list(range(7))


def test_a_range_ends_behind_markers_and_aborted_messages() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(2)
    log.write(3, producer=5)
    log.finish(5, commit=False)
    line = harness.reader(end="latest")
    line.read_to_end()
    assert line.positions() == [0, 1]
    assert line.core.marks[0].position == 6
    for end in range(7):
        cut = harness.reader(start=0, end=end, partitions=[0])
        cut.read_to_end()
        assert cut.positions() == list(range(min(end, 2)))
        assert cut.core.marks[0].position == end
    harness.check_idle()


def test_nothing_behind_an_open_transaction_is_read_unless_asked_for() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(2)
    log.write(2, producer=5)
    log.write(2)
    committed, everything = harness.reader(end=6), harness.reader(end="latest", isolation="uncommitted")
    everything.read_to_end()
    assert everything.positions() == list(range(6))
    committed.read_until(2)
    harness.advance(5)
    assert committed.positions() == [0, 1]
    log.finish(5, commit=True)
    committed.read_to_end()
    assert committed.positions() == list(range(6))


@pytest.mark.parametrize("bytes_max", [1, 100, 200, 333, 1000])
def test_entries_larger_than_what_is_asked_for_still_come(bytes_max: int) -> None:
    harness = Harness(nodes=2)
    logs = harness.topic(partitions=5)
    for number, log in enumerate(logs):
        for _ in range(4):
            log.write(1 + number * 5)
    line = harness.reader(end="latest", partition_bytes_max=bytes_max, fetch_bytes_max=bytes_max)
    line.read_to_end()
    for number, log in enumerate(logs):
        assert line.positions(number) == list(range(log.end))
    harness.check_idle()


# Following


def test_a_topic_is_followed() -> None:
    harness = Harness(nodes=2)
    logs = harness.topic(partitions=3)
    fill(logs, 1)
    line = harness.reader()
    line.read_until(9)
    for _ in range(20):
        for log in logs:
            log.write(2)
        harness.settle()
        line.drain()
    line.read_until(9 + 20 * 6)
    for number in range(3):
        assert line.positions(number) == list(range(43))
    assert not line.is_over
    assert line.core.backlog() == {0: 0, 1: 0, 2: 0}


def test_what_is_stored_after_ready_is_read_from_the_latest_on() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(5)
    line = harness.reader(start="latest")
    harness.run(line.core.fetcher.ready.done)
    assert line.core.marks[0].position == 5
    log.write(2)
    line.read_until(2)
    assert line.positions() == [5, 6]


def test_new_messages_come_as_soon_as_they_are_stored() -> None:
    harness = Harness()
    (log,) = harness.topic()
    line = harness.reader()
    harness.run(line.core.fetcher.ready.done)
    harness.advance(10.2)
    began = harness.now
    log.write()
    harness.settle()
    line.drain()
    assert line.positions() == [0]
    assert harness.now == began


def test_an_idle_reader_asks_once_in_a_while() -> None:
    harness = Harness()
    harness.topic(partitions=5)
    harness.reader(fetch_wait_ms=500)
    harness.advance(1)
    broker = harness.model.brokers[1]
    before, turns = len(broker.fetches), harness.turns
    harness.advance(60)
    assert len(broker.fetches) - before <= 121
    assert harness.turns - turns <= 3 * 121


def test_partitions_that_come_later_are_followed_from_their_beginning() -> None:
    harness = Harness(nodes=2, metadata_age_max_ms=5000)
    logs = harness.topic(partitions=2)
    fill(logs, 1)
    line = harness.reader(start="latest")
    harness.run(line.core.fetcher.ready.done)
    harness.model.grow("t", 4)
    fill(harness.model.topics["t"][2:], 2)
    harness.run(lambda: (line.drain(), len(line.rows) >= 12)[1])
    assert line.positions(3) == list(range(6))
    assert set(line.core.marks) == {0, 1, 2, 3}


def test_ranges_and_chosen_partitions_stay_as_they_are() -> None:
    harness = Harness(metadata_age_max_ms=2000)
    fill(harness.topic(partitions=2))
    chosen = harness.reader(partitions=[0])
    chosen.read_until(15)
    harness.model.grow("t", 4)
    fill(harness.model.topics["t"][2:])
    harness.advance(10)
    chosen.drain()
    assert {row.partition for row in chosen.rows} == {0}


# Fetching


def test_brokers_are_asked_at_once_and_one_request_at_a_time() -> None:
    harness = Harness(nodes=3)
    fill(harness.topic(partitions=6), 50)
    harness.model.delay = lambda: 1.0
    line = harness.reader(end="latest", partition_bytes_max=300)
    harness.run(line.core.fetcher.ready.done)
    for _ in range(40):
        harness.advance(0.1)
        line.drain()
        assert all(len(broker._waiting) <= 1 for broker in harness.model.brokers.values())
    began = [broker.answered_at[0] for broker in harness.model.brokers.values()]
    assert max(began) - min(began) < 1.0
    line.read_to_end()
    assert len(line.rows) == 6 * 150


def test_the_next_request_leaves_before_the_last_answer_is_consumed() -> None:
    harness = Harness()
    fill(harness.topic(), 100)
    line = harness.reader(partition_bytes_max=1000)
    harness.run(lambda: len(harness.model.brokers[1].fetches) >= 3)
    assert line.items == []


def test_what_is_held_ready_is_bounded() -> None:
    harness = Harness(nodes=2)
    fill(harness.topic(partitions=4), 400, 10)
    limit = 64 << 10
    line = harness.reader(end="latest", prefetch_bytes_max=limit, partition_bytes_max=20_000)
    harness.advance(30)
    feed = line.core.feed
    assert limit // 4 < feed.used <= limit
    asked = sum(len(broker.fetches) for broker in harness.model.brokers.values())
    harness.advance(30)
    assert sum(len(broker.fetches) for broker in harness.model.brokers.values()) == asked
    most = 0

    def take_some() -> bool:
        nonlocal most
        while not harness.is_awake() and (item := line.core.poll()) is not None:
            most = max(most, feed.used)
            line.items.append(item)
        return line.core.is_at_end

    harness.run(take_some)
    assert most <= limit
    assert len(line.rows) == 4 * 4000
    harness.check_idle()


def test_an_entry_larger_than_all_room_is_read() -> None:
    harness = Harness()
    (log,) = harness.topic()
    for _ in range(3):
        log.write(10_000)
    line = harness.reader(end="latest", prefetch_bytes_max=64 << 10)
    line.read_to_end()
    assert line.positions() == list(range(30_000))


def test_partitions_that_got_nothing_come_first_next_time() -> None:
    harness = Harness()
    fill(harness.topic(partitions=4), 30)
    line = harness.reader(end="latest", fetch_bytes_max=400, partition_bytes_max=400)
    harness.run(line.core.fetcher.ready.done)
    line.read_until(4 * 30)
    seen = {row.partition for row in line.rows[: len(line.rows) // 2]}
    assert seen == {0, 1, 2, 3}
    line.read_to_end()


def test_a_busy_partition_does_not_make_idle_ones_wait() -> None:
    harness = Harness()
    busy, idle = harness.topic(partitions=2)
    fill([busy], 200)
    line = harness.reader(partition_bytes_max=300)
    harness.run(lambda: (line.drain(), len(line.positions(0)) > 30)[1])
    began = harness.now
    idle.write()
    harness.run(lambda: (line.drain(), line.positions(1))[1])
    assert harness.now - began < 0.5


def test_throttling_is_honoured() -> None:
    harness = Harness()
    fill(harness.topic())
    broker = harness.model.brokers[1]
    broker.throttle_ms = 3000
    line = harness.reader(end="latest")
    harness.run(lambda: broker.answered_at)
    first = broker.answered_at[0]
    broker.throttle_ms = 0
    line.read_to_end()
    assert broker.answered_at[1] - first >= 3.0
    assert line.positions() == list(range(15))


def test_a_partition_that_pauses_does_not_wait_for_the_others_to_have_something() -> None:
    harness = Harness()
    _idle, other = harness.topic(partitions=2)
    refused: list[int] = []

    def refuse(broker: Any, topic: str, partition: int) -> int:
        if partition == 1 and not refused:
            refused.append(partition)
            return 6
        return 0

    harness.model.refusal = refuse
    other.write()
    line = harness.reader(fetch_wait_ms=10_000)
    began = harness.now
    line.read_until(1)
    assert harness.now - began < 1.0
    waits = [fetch.max_wait.total_seconds() * 1000 for fetch in harness.model.brokers[1].fetches]
    assert HURRY_MS in waits


def test_a_request_waits_at_most_half_of_its_time() -> None:
    harness = Harness(request_timeout_ms=200)
    harness.topic()
    line = harness.reader(fetch_wait_ms=5000)
    harness.advance(5)
    assert line.core.fetcher.trouble is None
    assert {fetch.max_wait.total_seconds() for fetch in harness.model.brokers[1].fetches} == {0.1}


# Bad input


def test_an_unknown_topic_is_told_in_time() -> None:
    harness = Harness()
    line = harness.reader("nothing")
    began = harness.now
    assert isinstance(line.fail(), UnknownTopicError)
    assert UNKNOWN_TOPIC_S <= harness.now - began < UNKNOWN_TOPIC_S + 2
    with pytest.raises(UnknownTopicError):
        line.core.fetcher.ready.result(0)
    harness.check_idle()


def test_a_topic_may_come_into_being() -> None:
    harness = Harness()
    line = harness.reader()
    harness.advance(UNKNOWN_TOPIC_S / 2)
    fill(harness.topic())
    line.read_until(15)


def test_a_partition_that_there_is_not_is_told() -> None:
    harness = Harness()
    harness.topic(partitions=2)
    error = harness.reader(partitions=[0, 5]).fail()
    assert isinstance(error, UnknownTopicError)
    assert "topic t has 2 partitions, and no partition 5" in str(error)


def test_an_end_before_the_start_is_told() -> None:
    harness = Harness()
    fill(harness.topic())
    error = harness.reader(start=30, end="latest", partitions=[0]).fail()
    assert isinstance(error, ConfigError)
    assert "t-0: the end, position 15, lies before the start, 30" in str(error)


def test_an_answer_larger_than_a_frame_may_be_is_told() -> None:
    harness = Harness(frame_bytes_max=100_000)
    (log,) = harness.topic()
    log.write(10_000)
    assert isinstance(harness.reader(end="latest").fail(), LimitError)


def test_answers_that_make_no_sense_end_it() -> None:
    harness = Harness(retry_backoff_ms=10)
    (log,) = harness.topic()
    line = harness.reader()
    harness.run(line.core.fetcher.ready.done)
    log.write(1000)
    broker = harness.model.brokers[1]
    broker.tamper = lambda answer: answer[:8] + b"\xff" * (len(answer) - 8) if len(answer) > 4000 else answer
    assert isinstance(line.fail(), DecodeError)
    assert len(broker.fetches) < 10
    harness.check_idle()


def test_an_answer_that_makes_no_sense_for_once_is_got_over() -> None:
    harness = Harness(retry_backoff_ms=10)
    (log,) = harness.topic()
    line = harness.reader()
    harness.run(line.core.fetcher.ready.done)
    spoilt: list[bytes] = []
    broker = harness.model.brokers[1]

    def spoil(answer: bytes) -> bytes:
        if len(answer) > 4000 and len(spoilt) < 2:
            spoilt.append(answer)
            return answer[:8] + b"\xff" * (len(answer) - 8)
        return answer

    broker.tamper = spoil
    log.write(1000)
    line.read_until(1000)
    assert len(spoilt) == 2


# The end


def test_a_reader_that_is_closed_lets_go_of_everything() -> None:
    harness = Harness(nodes=3)
    fill(harness.topic(partitions=3))
    following, ranged, early = harness.reader(), harness.reader(end=10_000), harness.reader()
    early.close()
    following.read_until(45)
    ranged.read_until(45)
    for line in (following, ranged):
        line.close()
        line.drain()
    assert following.core.is_at_end
    assert following.error is None
    assert isinstance(ranged.error, ClosedError)
    harness.check_idle()


def test_closing_one_reader_harms_no_other() -> None:
    harness = Harness()
    (log,) = harness.topic()
    one, other = harness.reader(), harness.reader()
    harness.run(lambda: one.core.fetcher.ready.done() and other.core.fetcher.ready.done())
    one.close()
    log.write(3)
    other.read_until(3)
    assert other.positions() == [0, 1, 2]


def test_a_range_that_was_read_to_its_end_is_at_its_end_after_closing() -> None:
    harness = Harness()
    fill(harness.topic())
    line = harness.reader(end="latest")
    line.read_to_end()
    line.close()
    assert line.core.poll() is None
    assert line.core.is_at_end


def test_an_error_comes_behind_what_was_read_before_and_stays() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(5)
    line = harness.reader()
    harness.run(lambda: line.core.feed.used)
    harness.model.refusal = lambda broker, topic, partition: 29
    error = line.fail()
    assert line.positions() == list(range(5))
    assert isinstance(error, DeniedError)
    for _ in range(2):
        with pytest.raises(DeniedError):
            line.core.poll()
    harness.check_idle()


def test_trouble_is_told_and_ends_it_when_it_lasts_too_long() -> None:
    harness = Harness()
    (log,) = harness.topic()
    log.write(5)
    patient, impatient = harness.reader(), harness.reader(trouble_ms_max=20_000)
    patient.read_until(5)
    impatient.read_until(5)
    harness.model.brokers[1].die()
    began = harness.now
    error = impatient.fail()
    assert isinstance(error, TimedOutError)
    assert 20 <= harness.now - began < 25
    assert "t-0 could not be read for 20000" in str(error)
    harness.advance(100)
    patient.drain()
    assert not patient.is_over
    assert "refused" in str(patient.core.nothing_came(1))
    harness.model.brokers[1].revive()
    log.write(1)
    patient.read_until(6)


def test_a_cluster_that_was_never_there_is_given_up_in_time() -> None:
    harness = Harness()
    harness.topic()
    harness.model.brokers[1].die()
    line = harness.reader(trouble_ms_max=5000)
    error = line.fail()
    assert isinstance(error, TimedOutError)
    assert "cannot be reached" in str(error)


def test_the_end_of_the_loop_ends_readers() -> None:
    harness = Harness()
    harness.topic()
    line = harness.reader()
    harness.run(line.core.fetcher.ready.done)
    harness.readers.abort(ClosedError("the end"))
    line.drain()
    assert isinstance(line.error, ClosedError)
    assert line.core.fetcher.gone.done()


def test_what_was_read_is_counted_for_the_client_too() -> None:
    harness = Harness()
    fill(harness.topic())
    harness.reader(end="latest").read_to_end()
    line = harness.reader(end="latest", unit="batch")
    harness.run(lambda: (line.drain(), line.is_over)[1])
    assert [entry.header.first for entry in line.items] == [0, 3, 6, 9, 12]
    snapshot = harness.registry.snapshot()
    labels = {"cluster": "model", "namespace": "", "topic": "t"}
    assert snapshot.value("penstock_read_messages_total", **labels, outcome="read") == 30
    assert snapshot.value("penstock_read_entries_total", **labels, outcome="opened") == 5
    assert snapshot.value("penstock_read_entries_total", **labels, outcome="unopened") == 5
    assert snapshot.value("penstock_read_bytes_total", **labels) == 2 * sum(len(entry.data) for entry in line.items)
