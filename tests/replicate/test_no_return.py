"""Clusters that copy from each other, as a model: whatever is started in whatever order, nothing returns to where it
has been; and where there is no ring, everything arrives."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.replicate import note as notes
from penstock.replicate.note import SourceNote
from penstock.replicate.origins import Descent, Destination, Feeder, Origins, Whence, refuse_rings
from penstock.wire.protocol import Partition

T0 = Partition("t", 0)
FETCHED = 2


class Stored(NamedTuple):
    """A message in a log: who wrote it, what it is, and where it has been, this log the last."""

    producer: int
    message: int
    path: str


class World:
    """Clusters with one partition each, by one letter, and the copiers between them."""

    def __init__(self, clusters: str) -> None:
        self.logs: dict[str, list[Stored]] = {cluster: [] for cluster in clusters}
        self.notes: dict[str, dict[str, SourceNote]] = {cluster: {} for cluster in clusters}
        self.copiers: dict[str, Copier] = {}
        self.numbers = itertools.count()

    def produce(self, cluster: str) -> None:
        self.logs[cluster].append(Stored(next(self.numbers), next(self.numbers), cluster))

    def start(self, way: str) -> None:
        """Copy from one cluster to another; started again, it is another instance."""
        before = self.copiers.get(way)
        self.copiers[way] = Copier(self, way, before.position if before else 0)

    def copy_all(self) -> None:
        while sum(copier.step() for copier in self.copiers.values()):
            pass

    def origins(self, cluster: str, known: set[str] | None = None) -> Origins:
        feeders = [Feeder(way, note) for way, note in self.notes[cluster].items() if known is None or way in known]
        return Origins(cluster, {T0: feeders}, known is None)

    def messages(self, cluster: str) -> list[int]:
        return sorted(stored.message for stored in self.logs[cluster])


class Copier:
    """One instance of a copier, that does as the rules of `origins` say."""

    def __init__(self, world: World, way: str, position: int) -> None:
        self.world = world
        self.way = way
        self.source, self.target = tuple(way)
        self.position = position
        self.error: ConfigError | None = None
        self.descent = Descent(way, T0, Destination(self.target, "t"))
        found = world.notes[self.target].get(way)
        self.note = SourceNote(self.source, "t", None, 0)
        if found is not None:
            self.note = self.note.succeeding(found)
        try:
            refuse_rings(way, world.origins(self.source), self.descent.target)
        except ConfigError as error:
            self.error = error
        else:
            self.rename()

    def rename(self) -> None:
        """Go on under another producer id."""
        self.producer = next(self.world.numbers)
        self.commit(self.note.written_by(self.producer, len(self.world.logs[self.target])))

    def commit(self, note: SourceNote) -> None:
        self.note = note
        self.world.notes[self.target][self.way] = note

    def step(self) -> bool:
        """Copy what was fetched; whether there was anything."""
        log = self.world.logs[self.source]
        fetched = list(enumerate(log))[self.position : self.position + FETCHED]
        if self.error is not None or not fetched:
            return False
        try:
            self.look_up([(stored.producer, position) for position, stored in fetched], len(log))
            for position, stored in fetched:
                self.copy(position, stored)
        except ConfigError as error:
            self.error = error
        return True

    def look_up(self, fetched: list[tuple[int, int]], stable: int) -> None:
        unasked = {producer for producer, at in fetched if self.descent.judge(producer, at) is Whence.UNASKED}
        if not unasked:
            return
        known = {way for way, note in self.world.notes[self.source].items() if unasked & note.producers}
        is_enough = all(self.descent.is_copier(producer) for producer in unasked)
        self.descent.learn(self.world.origins(self.source, known if is_enough else None), unasked, stable)

    def copy(self, position: int, stored: Stored) -> None:
        whence = self.descent.judge(stored.producer, position)
        assert whence is not Whence.UNASKED
        if whence is Whence.FORGOTTEN:
            raise self.descent.forgotten(position)
        if whence is Whence.ELSEWHERE:
            assert self.target not in stored.path, f"{stored} returned by {self.way}"
            self.commit(self.note.coming_through(self.descent.through))
            moved = Stored(self.producer, stored.message, stored.path + self.target)
            self.world.logs[self.target].append(moved)
        self.position = position + 1


WAYS = ["".join(pair) for pair in itertools.permutations("ABC", 2)]


def do_anything(chance: random.Random) -> World:
    """Some ways between three clusters, started, stopped and worked in any order."""
    ways = chance.sample(WAYS, chance.randint(2, 5))
    world = World("ABC")
    for _ in range(80):
        way, deed = chance.choice(ways), chance.random()
        copier = world.copiers.get(way)
        if deed < 0.3:
            world.produce(chance.choice("ABC"))
        elif copier is None or copier.error is not None:
            if deed < 0.4:
                world.start(way)
        elif deed < 0.35:
            world.start(way)
        elif deed < 0.45:
            copier.rename()
        else:
            copier.step()
    world.copy_all()
    return world


@pytest.mark.parametrize("writers_max", [1, 2, 64])
def test_nothing_returns_to_where_it_has_been(writers_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "WRITERS_MAX", writers_max)
    worlds = [do_anything(random.Random(seed)) for seed in range(500)]
    stories = [str(copier.error) for world in worlds for copier in world.copiers.values()]
    assert any("of this ring" in story for story in stories)
    assert any("cannot be told any more" in story for story in stories) == (writers_max < 64)
    assert stories.count("None") > len(stories) // 3


@pytest.mark.parametrize(
    "ways",
    [
        ["AB", "BA"],
        ["AB", "BA", "BC", "CB"],
        ["AB", "BA", "AC", "CA", "AD", "DA"],
        ["AB", "BA", "BC", "CB", "CD", "DC"],
    ],
    ids=["pair", "line of three", "star", "line of four"],
)
@given(done=st.lists(st.tuples(st.sampled_from(["produce", "start", "step", "rename"]), st.integers(0, 7))))
def test_without_a_ring_everything_arrives_everywhere_once(ways: list[str], done: list[tuple[str, int]]) -> None:
    clusters = sorted(set("".join(ways)))
    world = World("".join(clusters))
    for way in ways:
        world.start(way)
    for deed, number in done:
        way, cluster = ways[number % len(ways)], clusters[number % len(clusters)]
        if deed == "produce":
            world.produce(cluster)
        elif deed == "start":
            world.start(way)
        else:
            world.copiers[way].step() if deed == "step" else world.copiers[way].rename()
    world.copy_all()
    assert [copier.error for copier in world.copiers.values()] == [None] * len(ways)
    everything = sorted(stored.message for log in world.logs.values() for stored in log if len(stored.path) == 1)
    assert {cluster: world.messages(cluster) for cluster in clusters} == dict.fromkeys(clusters, everything)


def test_a_ring_of_three_stops_before_it_closes() -> None:
    world = World("ABC")
    for way in ("AB", "BC"):
        world.start(way)
    world.produce("A")
    world.copy_all()
    world.start("CA")
    assert "pipeline CA: what pipeline BC brings from t-0 of cluster B came through cluster A" in str(
        world.copiers["CA"].error
    )
    assert len(world.messages("C")) == 1


def test_a_ring_whose_pipelines_start_before_there_are_messages_stops_when_the_first_would_return() -> None:
    world = World("ABC")
    for way in ("AB", "BC", "CA"):
        world.start(way)
    world.produce("A")
    world.copy_all()
    assert [way for way, copier in world.copiers.items() if copier.error] == ["BC"]
    assert [len(world.messages(cluster)) for cluster in "ABC"] == [1, 1, 0]


def test_a_ring_that_closes_under_a_producer_id_that_is_known_stops_too() -> None:
    world = World("ABC")
    world.produce("C")
    world.start("CB")
    world.copiers["CB"].step()
    world.start("AC")
    world.produce("A")
    world.copiers["AC"].step()
    world.start("BA")
    world.copiers["BA"].step()  # BA knows the id of CB, and that it brings what comes from C
    world.copiers["CB"].step()  # under the same id it brings what comes from A
    assert [stored.path for stored in world.logs["B"]] == ["CB", "ACB"]
    world.copiers["BA"].step()
    assert "pipeline BA: what pipeline CB brings from t-0 of cluster C came through cluster A" in str(
        world.copiers["BA"].error
    )
    assert [stored.path for stored in world.logs["A"]] == ["A", "CBA"]
