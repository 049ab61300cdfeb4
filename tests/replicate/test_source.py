"""A topic that is copied: what is read of it goes to the strands it is for, once it is known who wrote it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.config import ReaderOptions
from penstock.consume.feed import Feed, Load, Part
from penstock.consume.judge import Judge, Wanted
from penstock.consume.stats import ReaderStats
from penstock.errors import BusyError, ConfigError, GapError, PenstockError
from penstock.replicate.note import SourceNote, Writer
from penstock.replicate.origins import Destination, Feeder, Origins
from penstock.replicate.source import Registry, SourceTopic
from penstock.wire.entry import Stamp
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.protocol import Mark, Partition
from tests.consume.batches import values

T0 = Partition("t", 0)


class HandStrand:
    """A strand that takes what it gets."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.is_over = False
        self.offered: list[Part] = []
        self.errors: list[PenstockError] = []
        self.through: list[frozenset[str]] = []

    def offer(self, part: Part) -> None:
        self.offered.append(part)

    def fail(self, error: PenstockError) -> None:
        self.errors.append(error)

    def come_through(self, clusters: frozenset[str]) -> None:
        self.through.append(clusters)


class HandFetcher:
    """A fetcher whose feed is filled by hand."""

    def __init__(self, partitions: int = 1) -> None:
        self.feed = Feed(1 << 20, lambda: None)
        self.tracks = {
            number: SimpleNamespace(position=3, end=None, log_end=50, era=0, is_held=True)
            for number in range(partitions)
        }
        self.starts = {number: Mark(3) for number in range(partitions)}
        self.looked = 0

    def look(self) -> None:
        self.looked += 1

    def hold(self, number: int, is_held: bool) -> None:
        self.tracks[number].is_held = is_held

    def seek(self, number: int, mark: Mark) -> None:
        self.tracks[number].position = mark.position
        self.tracks[number].era += 1

    def put(self, first: int, following: int, era: int = 0, entries: int = 1, number: int = 0) -> Part:
        views = [memoryview(values(first, max(following - first, 1)))] * entries
        part = Part(Load(10), Partition("t", number), views, first, None, following, era=era)
        self.feed.put([part])
        return part


class Rig:
    def __init__(self, partitions: int = 1, strands: int = 1) -> None:
        self.fetcher = HandFetcher(partitions)
        self.asked: list[Future[Origins]] = []
        self.sought: list[tuple[set[int], bool]] = []
        """Which partitions it was asked about, and whether pipelines that are known would do."""
        errands: Any = SimpleNamespace(run=self._ask)
        finder: Any = SimpleNamespace(find=self._find)
        registry = Registry(cast(Any, None), errands, finder, "mine")
        self.topic = SourceTopic("t", cast(Any, self.fetcher), registry, Destination("east", "t"))
        self.strands = [HandStrand() for _ in range(strands)]
        for number, strand in enumerate(self.strands):
            self.topic.strands[number] = cast(Any, strand)

    def _find(self, partitions: list[Partition], *, known_only: bool) -> None:
        self.sought.append(({partition.number for partition in partitions}, known_only))

    def _ask(self, cluster: Any, steps: Any) -> Future[Origins]:
        self.asked.append(Future())
        return self.asked[-1]

    def answer(self, *notes: SourceNote) -> None:
        """Who is known to copy to the source."""
        feeders = [Feeder(f"p{place}", note) for place, note in enumerate(notes)]
        self.asked[-1].set_result(Origins("west", {T0: feeders}))


def wanted(producer: int, first: int = 10) -> Wanted:
    part = Part(Load(0), T0, [memoryview(values(first, 2, stamp=Stamp(producer, 0, 0)))], first, None, first + 2)
    ((one,), _) = Judge(KafkaEntries(), None, ReaderOptions(), ReaderStats(), claims=False).judged(part)
    return one


def note(cluster: str, *producers: int, through: frozenset[str] = frozenset(), known_from: int = 0) -> SourceNote:
    return SourceNote(cluster, "t", None, 0, tuple(map(Writer, producers)), known_from, through)


# What is read


def test_parts_go_to_the_strands_of_their_partitions() -> None:
    rig = Rig(2, strands=2)
    parts = [rig.fetcher.put(0, 5, number=number) for number in (1, 0, 1)]
    rig.topic.share_out()
    assert rig.strands[0].offered == [parts[1]]
    assert rig.strands[1].offered == [parts[0], parts[2]]


def test_parts_of_an_earlier_era_are_given_back() -> None:
    rig = Rig()
    rig.fetcher.put(0, 5)
    rig.fetcher.seek(0, Mark(2))
    part = rig.fetcher.put(2, 5, era=1)
    rig.topic.share_out()
    assert rig.strands[0].offered == [part]
    assert rig.fetcher.feed.used == 10


def test_parts_of_partitions_that_nobody_copies_yet_are_given_back() -> None:
    rig = Rig(2, strands=1)
    rig.fetcher.put(0, 5, number=1)
    rig.topic.share_out()
    assert rig.fetcher.feed.used == 0
    assert rig.topic.new_partitions() == [1]


def test_a_part_that_only_tells_where_it_goes_on_is_offered_where_that_is_news() -> None:
    rig = Rig()
    rig.strands[0].position = 7
    rig.fetcher.put(7, 7, entries=0)
    rig.topic.share_out()
    assert rig.strands[0].offered == []
    assert rig.fetcher.feed.used == 0
    news = rig.fetcher.put(9, 9, entries=0)
    rig.topic.share_out()
    assert rig.strands[0].offered == [news]


def test_a_reader_that_ended_ends_all_strands_once_and_not_before_its_last_parts() -> None:
    rig = Rig(2, strands=2)
    gap = GapError("t-0", 5, 9, "deleted")
    part = rig.fetcher.put(0, 5)
    rig.fetcher.feed.end(gap)
    rig.topic.share_out()
    rig.topic.share_out()
    assert rig.strands[0].offered == [part]
    assert [strand.errors for strand in rig.strands] == [[gap], [gap]]
    assert rig.topic.error is gap


def test_what_strands_ask_of_the_reader() -> None:
    rig = Rig()
    assert rig.topic.place(0) == (3, None, 50)
    assert rig.topic.start(0) == Mark(3)
    rig.topic.seek(0, Mark(20))
    assert rig.topic.place(0) == (20, None, 50)
    rig.topic.hold(0, False)
    assert (rig.fetcher.tracks[0].is_held, rig.fetcher.looked) == (False, 1)
    rig.topic.hold(0, True)
    assert (rig.fetcher.tracks[0].is_held, rig.fetcher.looked) == (True, 1)
    part = rig.fetcher.put(0, 5)
    rig.topic.done(part)
    assert rig.fetcher.feed.used == 0


# Who wrote it


def test_entries_without_a_producer_need_no_asking() -> None:
    rig = Rig()
    assert not rig.topic.unknown_writers(0, [wanted(-1)])
    assert not rig.topic.is_from_target(0, wanted(-1))
    assert rig.asked == []


def test_it_is_asked_once_and_the_strand_is_told() -> None:
    rig = Rig()
    for _ in range(3):
        assert rig.topic.unknown_writers(0, [wanted(7), wanted(8), wanted(9)])
    assert len(rig.asked) == 1
    rig.answer(note("east", 7), note("north", 8))
    assert rig.strands[0].through == [{"north"}]
    assert rig.topic.through(0) == {"north"}
    assert not rig.topic.unknown_writers(0, [wanted(7), wanted(8), wanted(9)])
    assert [rig.topic.is_from_target(0, wanted(producer)) for producer in (7, 8, 9)] == [True, False, False]


def test_what_was_written_later_is_asked_about_again() -> None:
    rig = Rig()
    rig.topic.unknown_writers(0, [wanted(7)])
    rig.answer()
    assert not rig.topic.unknown_writers(0, [wanted(7), wanted(8, 40)]), "all before 50 is known"
    assert not rig.topic.unknown_writers(0, [wanted(7, 60)])
    assert rig.topic.unknown_writers(0, [wanted(8, 60)])
    assert len(rig.asked) == 2


def test_the_first_time_all_partitions_are_asked_about_at_once() -> None:
    rig = Rig(3, strands=3)
    rig.topic.unknown_writers(1, [wanted(7)])
    rig.topic.unknown_writers(2, [wanted(8)])
    assert rig.sought == [({0, 1, 2}, False)]
    rig.answer()
    assert [len(strand.through) for strand in rig.strands] == [1, 1, 1]
    assert not rig.topic.unknown_writers(0, [wanted(9)])
    assert len(rig.asked) == 2, "who came in between is asked about next"
    rig.answer()
    assert not rig.topic.unknown_writers(2, [wanted(8)])


def test_of_copiers_that_are_known_only_their_pipelines_are_asked() -> None:
    rig = Rig()
    rig.topic.unknown_writers(0, [wanted(8)])
    rig.answer(note("north", 8))
    assert rig.topic.unknown_writers(0, [wanted(8, 60)]), "its messages may have come through others since"
    assert rig.sought[1:] == [({0}, True)]
    rig.fetcher.tracks[0].log_end = 70
    rig.answer(note("north", 8))


def test_a_ring_ends_the_strand() -> None:
    rig = Rig()
    rig.topic.unknown_writers(0, [wanted(7)])
    rig.answer(note("north", 7, through=frozenset({"east"})))
    (error,) = rig.strands[0].errors
    assert isinstance(error, ConfigError)
    assert rig.strands[0].through == []


def test_what_cannot_be_found_out_ends_the_strand() -> None:
    rig = Rig()
    rig.topic.unknown_writers(0, [wanted(7)])
    error = BusyError("nobody answers")
    rig.asked[0].set_exception(error)
    assert rig.strands[0].errors == [error]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_strand_that_is_over_is_told_nothing(is_cancelled: bool) -> None:
    rig = Rig()
    rig.topic.unknown_writers(0, [wanted(7)])
    rig.strands[0].is_over = True
    if is_cancelled:
        rig.asked[0].cancel()
    else:
        rig.answer()
    assert (rig.strands[0].through, rig.strands[0].errors) == ([], [])


def test_what_is_too_old_to_be_told_cannot_be_copied() -> None:
    rig = Rig()
    rig.topic.unknown_writers(0, [wanted(9)])
    rig.answer(note("east", 7, known_from=30))
    with pytest.raises(ConfigError, match="start this pipeline at position 30 of t-0 or later"):
        rig.topic.is_from_target(0, wanted(9))
    assert not rig.topic.is_from_target(0, wanted(9, 40))
