"""A reader that is led: it reads each partition from where it is sent, and when it may; what was asked before does not
count any more, and can be told from what was asked after."""

from __future__ import annotations

import logging
import math
import random
from typing import Any

import pytest

from penstock.config import ReaderOptions
from penstock.consume.feed import Feed, Part
from penstock.consume.fetcher import Fetcher, FetcherParts
from penstock.consume.places import make_plan
from penstock.consume.track import Stage, Track
from penstock.errors import BusyError, GapError
from penstock.net.backoff import Backoff
from penstock.net.failures import InvariantError
from penstock.wire.kafka.header import span
from penstock.wire.protocol import Fetched, Mark, Partition
from tests.consume.harness import UNKNOWN_TOPIC_S, Harness
from tests.consume.model import ModelBroker, ModelLog

T0 = Partition("t", 0)


class Led:
    """A fetcher, and whoever leads it."""

    def __init__(self, harness: Harness, end: Any = None, **options: Any) -> None:
        self.harness = harness
        read = ReaderOptions(**options)
        self.feed = Feed(read.prefetch_bytes_max, self._has_room)
        tools = (harness.clock, harness.backoff, harness.options, UNKNOWN_TOPIC_S)
        parts = FetcherParts(harness.new_cluster(), self.feed, *tools, is_led=True)
        self.fetcher = Fetcher(make_plan("t", "earliest", end, None), read, parts)
        self.parts: list[Part] = []
        """What came, but for what was asked before the partition was sent elsewhere."""
        self.stale: list[Part] = []
        """What was."""
        harness.readers.attach(self.fetcher, harness.now)
        harness.run(self.fetcher.ready.done)
        self.take()

    def _has_room(self) -> None:
        self.fetcher.look()
        self.harness.loop.wake_by(-math.inf)

    def track(self, number: int = 0) -> Track:
        return self.fetcher.tracks[number]

    def hold(self, is_held: bool, number: int = 0) -> None:
        self.fetcher.hold(number, is_held)
        self.harness.loop.wake_by(-math.inf)

    def seek(self, position: int, epoch: int = -1, number: int = 0) -> None:
        self.fetcher.seek(number, Mark(position, "", epoch))
        self.harness.loop.wake_by(-math.inf)

    def take(self) -> list[Part]:
        taken = []
        while (part := self.feed.take()) is not None:
            is_current = part.era == self.track(part.partition.number).era
            (self.parts if is_current else self.stale).append(part)
            taken.append(part)
            self.feed.done(part)
        return taken

    def run(self, until: Any) -> None:
        self.harness.run(lambda: (self.take(), until())[1])

    def run_to(self, stage: Stage, number: int = 0) -> None:
        self.run(lambda: self.track(number).stage is stage)

    def positions(self, number: int = 0, era: int | None = None) -> list[int]:
        """Positions of the present era, or of another, in the order in which they came."""
        wanted = self.track(number).era if era is None else era
        return [
            position
            for part in self.parts
            if part.partition.number == number and part.era == wanted
            for entry in part.entries
            for position in range(int.from_bytes(entry[:8], "big"), span(entry).next)
            if part.first <= position < part.next
        ]

    def read_to(self, position: int, number: int = 0) -> list[int]:
        self.run(lambda: self.track(number).position >= position)
        self.take()
        return self.positions(number)


def filled(entries: int = 5, partitions: int = 1, nodes: int = 1, **options: Any) -> tuple[Harness, list[ModelLog]]:
    harness = Harness(nodes=nodes, **options)
    logs = harness.topic(partitions=partitions)
    for log in logs:
        for _ in range(entries):
            log.write(3)
    return harness, logs


def asked_for(harness: Harness) -> list[set[int]]:
    """The partitions of each fetch, up to now."""
    fetches = [fetch for broker in harness.model.brokers.values() for fetch in broker.fetches]
    return [{row.partition for topic in fetch.topics for row in topic.partitions} for fetch in fetches]


# Held


def test_nothing_is_asked_for_before_it_is_let_go() -> None:
    harness, _ = filled(partitions=2)
    led = Led(harness)
    harness.advance(30)
    assert asked_for(harness) == []
    led.hold(False, number=1)
    assert led.read_to(15, number=1) == list(range(15))
    assert set().union(*asked_for(harness)) == {1}


def test_a_partition_that_is_held_is_not_asked_for_while_others_are() -> None:
    harness, logs = filled(partitions=2)
    led = Led(harness)
    for number in range(2):
        led.hold(False, number)
        led.read_to(15, number)
    led.hold(True, number=0)
    harness.advance(2)
    before = len(asked_for(harness))
    for log in logs:
        log.write(3)
    led.read_to(18, number=1)
    harness.advance(2)
    assert set().union(*asked_for(harness)[before:]) == {1}
    assert led.track(0).position == 15
    led.hold(False, number=0)
    assert led.read_to(18, number=0) == list(range(18))


def test_what_is_on_its_way_when_it_is_held_still_comes() -> None:
    harness, (log,) = filled(0)
    led = Led(harness)
    led.hold(False)
    led.run_to(Stage.ASKED)
    led.hold(True)
    log.write(3)
    assert led.read_to(3) == [0, 1, 2]
    log.write(3)
    harness.advance(5)
    assert led.track().position == 3


def test_the_end_of_all_partitions_is_not_the_end_of_one_that_is_led() -> None:
    harness, _ = filled()
    led = Led(harness, end="latest")
    led.hold(False)
    led.run_to(Stage.DONE)
    harness.advance(30)
    assert not led.fetcher.is_over
    assert led.feed.ending is None


# Sent elsewhere, in every stage


def test_ready_it_goes_on_there() -> None:
    harness, _ = filled()
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    led.seek(6)
    assert led.read_to(15) == list(range(6, 15))
    assert led.track().era == 1
    led.seek(0)
    assert led.read_to(15) == list(range(15))


def test_a_position_within_an_entry_is_the_first_that_is_wanted() -> None:
    harness, _ = filled()
    led = Led(harness)
    led.seek(7)
    led.hold(False)
    assert led.read_to(15) == list(range(7, 15))


def test_asked_the_answer_does_not_count_any_more() -> None:
    harness, (log,) = filled()
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    led.run_to(Stage.ASKED)
    led.seek(3)
    assert led.track().stage is Stage.ASKED
    log.write(3)
    assert led.read_to(18) == list(range(3, 18))
    assert led.parts[-1].first >= 3
    assert [part.first for part in led.parts if part.era == 0 and part.entries] == [0], "what came late was dropped"


def test_asked_an_answer_that_never_comes_does_not_matter_either() -> None:
    harness, _ = filled()
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    led.run_to(Stage.ASKED)
    led.seek(3)
    harness.model.brokers[1].cut()
    assert led.read_to(15) == list(range(3, 15))


def test_asked_a_refusal_of_the_position_before_does_not_matter() -> None:
    harness, _ = filled()
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    led.run_to(Stage.ASKED)
    led.seek(3)
    before = len(harness.model.brokers[1].asked)
    harness.model.refusal = once(1)
    assert led.read_to(15) == list(range(3, 15))
    assert {type(one).__name__ for one in harness.model.brokers[1].asked[before:]} == {"FetchRequest"}, "no doubt"


def test_asked_the_others_in_the_same_answer_count() -> None:
    harness, logs = filled(partitions=2)
    led = Led(harness)
    for number in range(2):
        led.hold(False, number)
    for number in range(2):
        led.read_to(15, number)
    led.run(lambda: led.track(0).stage is led.track(1).stage is Stage.ASKED)
    led.seek(9, number=0)
    for log in logs:
        log.write(3)
    assert led.read_to(18, number=1) == list(range(18))
    assert led.read_to(18, number=0) == list(range(9, 18))


def test_paused_it_goes_on_there_when_the_pause_is_over() -> None:
    harness, (log,) = filled()
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    harness.model.refusal = lambda broker, topic, partition: 6
    log.write(3)
    led.run_to(Stage.PAUSED)
    led.seek(6)
    assert led.track().stage is Stage.PAUSED
    harness.model.refusal = lambda broker, topic, partition: 0
    assert led.read_to(18) == list(range(6, 18))


def test_done_it_is_read_again() -> None:
    harness, _ = filled()
    led = Led(harness, end="latest")
    led.hold(False)
    led.run_to(Stage.DONE)
    led.seek(6)
    assert led.track().stage is Stage.READY
    led.run_to(Stage.DONE)
    assert led.positions() == list(range(6, 15))


@pytest.mark.parametrize("position", [15, 20])
def test_sent_to_its_end_it_is_done(position: int) -> None:
    harness, _ = filled()
    led = Led(harness, end="latest")
    led.seek(position)
    assert led.track().stage is Stage.DONE
    led.hold(False)
    harness.advance(5)
    assert asked_for(harness) == []


def doubted(case: str) -> tuple[Harness, Led]:
    """A partition about which something must be found out, which takes a while."""
    harness, (log,) = filled(nodes=2)
    led = Led(harness, end="latest" if case == "hole" else None)
    if case == "hole":
        log.remove(9, 14)
        harness.model.compacted.add("t")
    led.hold(False)
    led.read_to(9 if case == "hole" else 15)
    if case == "bounds":
        log.delete_before(15)
        log.write(3)
        harness.model.refusal = once(1)
    elif case == "leader":
        log.lead(2)
        led.fetcher.cluster.refresh("t")
    harness.model.delay = lambda: 0.5
    led.run_to(Stage.DOUBTED)
    return harness, led


def once(code: int) -> Any:
    left = [code]

    def refuse(broker: ModelBroker, topic: str, partition: int) -> int:
        return left.pop() if left else 0

    return refuse


@pytest.mark.parametrize("case", ["bounds", "leader", "hole"])
def test_doubted_it_stays_so_until_somebody_has_found_out_and_then_goes_on_there(case: str) -> None:
    harness, led = doubted(case)
    led.seek(15 if case == "bounds" else 6)
    assert led.track().stage is Stage.DOUBTED
    harness.model.topics["t"][0].write(3)
    led.run(lambda: led.track().stage is not Stage.DOUBTED)
    harness.model.delay = lambda: 0.0
    expected = {"bounds": list(range(15, 21)), "leader": list(range(6, 18)), "hole": [6, 7, 8]}[case]
    led.run(lambda: led.positions() == expected)
    assert not led.fetcher.is_over


def test_doubted_what_is_found_out_of_the_position_before_is_no_gap() -> None:
    """The log's beginning was deleted; it is sent to where the log still is before that is known."""
    harness, (log,) = filled()
    led = Led(harness)
    log.delete_before(9)
    led.seek(3)
    led.hold(False)
    harness.model.delay = lambda: 0.5
    led.run_to(Stage.DOUBTED)
    led.seek(9)
    assert led.read_to(15) == list(range(9, 15))


def test_doubted_what_the_new_leader_lacks_matters_only_where_it_was_read() -> None:
    harness, (log,) = filled(nodes=2)
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    log.cut(9)
    log.lead(2)
    led.fetcher.cluster.refresh("t")
    harness.model.delay = lambda: 0.5
    led.run_to(Stage.DOUBTED)
    for _ in range(2):
        log.write(3)
    led.seek(12)
    assert led.read_to(15) == list(range(12, 15))


def test_doubted_the_leader_of_the_new_place_is_checked_too() -> None:
    """What was found out of the position before says nothing about the mark that it is sent to."""
    harness, (log,) = filled(nodes=2)
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    log.lead(2)
    for _ in range(10):
        log.write(3)
    led.fetcher.cluster.refresh("t")
    harness.model.delay = lambda: 0.5
    led.run_to(Stage.DOUBTED)
    led.seek(30, epoch=0)
    led.run(lambda: led.fetcher.is_over)
    assert led.feed.ending is not None
    assert "what was stored under leader epoch 0 ends at 15 now" in str(led.feed.ending.error)


def test_where_nobody_sends_it_elsewhere_that_is_a_gap() -> None:
    harness, (log,) = filled()
    led = Led(harness)
    log.delete_before(9)
    led.seek(3)
    led.hold(False)
    led.run(lambda: led.fetcher.is_over)
    ending = led.feed.ending
    assert ending is not None
    assert isinstance(ending.error, GapError)
    assert (ending.error.first, ending.error.next) == (3, 9)


def test_the_leader_of_a_mark_is_checked() -> None:
    """What was stored under that leader ends before the mark: something is missing."""
    harness, (log,) = filled(nodes=2)
    log.cut(9)
    log.lead(2)
    for _ in range(10):
        log.write(3)
    led = Led(harness)
    led.seek(15, epoch=0)
    led.hold(False)
    led.run(lambda: led.fetcher.is_over)
    ending = led.feed.ending
    assert ending is not None
    assert "the log was cut: what was stored under leader epoch 0 ends at 9 now" in str(ending.error)
    assert any(type(one).__name__ == "OffsetForLeaderEpochRequest" for one in harness.model.brokers[2].asked)


def test_passed_over_on_request_the_new_place_is_told(caplog: pytest.LogCaptureFixture) -> None:
    harness, (log,) = filled()
    led = Led(harness, on_gap="skip")
    log.delete_before(9)
    led.seek(3)
    led.hold(False)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert led.read_to(15) == list(range(9, 15))
    arrivals = [part for part in led.parts if not part.entries and part.era == 1]
    assert [(part.first, part.next) for part in arrivals] == [(9, 9)]
    assert led.fetcher.missing == 6


# Eras


def test_parts_of_an_earlier_era_are_recognised() -> None:
    """They were in the feed when the partition was sent elsewhere."""
    harness, _ = filled()
    led = Led(harness)
    led.hold(False)
    harness.run(lambda: led.track().position >= 15)
    led.seek(6)
    harness.advance(2)
    led.take()
    assert [part.era for part in led.stale] == [0]
    assert led.positions() == list(range(6, 15))


def test_where_partitions_start_is_remembered() -> None:
    harness, (log,) = filled()
    log.delete_before(6)
    led = Led(harness)
    led.hold(False)
    led.read_to(15)
    led.seek(12)
    assert led.fetcher.starts == {0: Mark(6)}


# The table


def make(stage: Stage, end: int | None = 10) -> Track:
    track = Track(T0, 5, end, Backoff(1.0, 8.0, lambda: 0.5), epoch=3, loose=True)
    if stage in (Stage.ASKED, Stage.PAUSED):
        track.wanted(1)
    if stage is Stage.PAUSED:
        track.pause(BusyError("no"), 0.0)
    if stage is Stage.DOUBTED:
        track.doubt()
    if stage is Stage.DONE:
        track.wanted(1)
        track.landed(Fetched([memoryview(b"")], 1, 10, 0, 0, 0, 10, 10, ()))
    return track


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("position", [2, 10, 12])
def test_seeking_in_every_stage(stage: Stage, position: int) -> None:
    track = make(stage)
    track.leader_epoch = 7
    track.seek(position, 4)
    assert (track.position, track.epoch, track.leader_epoch, track.era, track.is_loose) == (position, 4, -1, 1, False)
    is_at_end = position >= 10
    if stage in (Stage.ASKED, Stage.DOUBTED):
        assert track.stage is stage
    elif is_at_end:
        assert track.stage is Stage.DONE
    else:
        assert track.stage is (Stage.PAUSED if stage is Stage.PAUSED else Stage.READY)


@pytest.mark.parametrize("position", [2, 10])
def test_an_answer_that_does_not_count_leaves_the_place_alone(position: int) -> None:
    track = make(Stage.ASKED)
    track.seek(position, -1)
    track.passed_over()
    assert (track.position, track.stage) == (position, Stage.DONE if position == 10 else Stage.READY)
    track = make(Stage.DOUBTED)
    track.seek(position, -1)
    track.go_on(track.position)
    assert (track.position, track.stage) == (position, Stage.DONE if position == 10 else Stage.READY)


def test_a_pause_that_ends_at_the_end_leaves_nothing_to_ask_for() -> None:
    """It was sent to its end while it was asked for, and then no answer came."""
    track = make(Stage.ASKED)
    track.seek(10, -1)
    track.pause(BusyError("no"), 0.0)
    track.resume()
    assert track.stage is Stage.DONE


def test_a_followed_partition_is_never_at_its_end() -> None:
    track = make(Stage.READY, end=None)
    track.seek(1 << 40, -1)
    assert track.stage is Stage.READY
    with pytest.raises(InvariantError):
        track.go_on(5)


# Anything at any time


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_era_is_read_from_where_it_was_sent_without_a_gap(seed: int) -> None:
    chance = random.Random(seed)
    harness, logs = filled(4, partitions=2, nodes=2, seed=seed)
    harness.model.delay = lambda: chance.choice([0.0, 0.0, 0.3])
    led = Led(harness, partition_bytes_max=chance.choice([200, 1 << 20]))
    sent: dict[tuple[int, int], int] = {(number, 0): 0 for number in range(2)}
    for _ in range(40):
        number = chance.randrange(2)
        match chance.randrange(7):
            case 0 | 1:
                position = chance.randrange(logs[number].end + 1)
                led.seek(position, number=number)
                sent[number, led.track(number).era] = position
            case 2:
                led.hold(chance.random() < 0.3, number)
            case 3:
                logs[number].write(3)
            case 4:
                harness.model.brokers[chance.randint(1, 2)].cut()
            case 5:
                logs[number].lead(chance.randint(1, 2))
            case 6:
                harness.model.refusal = once(chance.choice([1, 5, 6]))
        harness.advance(chance.choice([0.0, 0.1, 1.0]))
        led.take()
    for number in range(2):
        led.hold(False, number)
    for number, log in enumerate(logs):
        led.read_to(log.end, number)
    for (number, era), position in sent.items():
        found = led.positions(number, era)
        assert found == list(range(position, position + len(found)))
    for number, log in enumerate(logs):
        assert led.positions(number)[-1:] in ([log.end - 1], [])
        assert led.track(number).position == log.end
    assert not led.fetcher.is_over
    assert led.feed.used == 0
