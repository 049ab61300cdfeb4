"""Which entries of a topic are copies, and where they were copied from, so that nothing is brought back there.

An entry is told by its producer id: copiers write under ids of their own, and name them in the notes that they commit
beside their positions (`note`). Whoever copies from a topic reads the notes of all pipelines that write to it. What
makes the answer certain is an order that every copier keeps:

    the note that names an id, and the clusters that messages come through, is committed
      before, or in the transaction with, the first batch that it is to speak for;
    a batch is judged by notes that were read after the batch had been.

Then an id that no note names is no copier's, and never will be. So each id is asked for once; and what lies before the
end of the log as it was when notes were read needs no further asking, whoever wrote it.

A copy that came straight from the target is skipped. One that came from elsewhere is copied on, and the own note says
through which clusters it came; as these may become more, such a batch is judged by notes that are as new as it is. If
the target is one of them there is a ring of three or more clusters, in which the messages that must not go on cannot be
told from those that must, as they are in the same batches: that is refused.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.clock import Clock
from penstock.errors import ConfigError, PenstockError, TimedOutError, UnsupportedError
from penstock.net.asks import Whom
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster
from penstock.net.errand import Ask, Pause, Steps
from penstock.net.failures import because
from penstock.net.homes import Homes, Patience, Told
from penstock.replicate.note import VERSION, SourceNote, group_of, pipeline_of, version_of
from penstock.wire.protocol import ClusterView, FindHome, ListGroups, LookUp, Mark, NodeId, Partition, ReadMarks

RELISTED_AFTER: Final = 1.0
STRANGERS_MAX: Final = 10_000


class Destination(NamedTuple):
    """Where a copier writes to: a cluster by its id, and a topic."""

    cluster: str
    topic: str


class Feeder(NamedTuple):
    """A pipeline that writes to a partition, and its note."""

    pipeline: str
    note: SourceNote


@dataclass(frozen=True, slots=True)
class Origins:
    """Who writes copies to partitions of one cluster."""

    cluster: str | None
    """Its id."""
    feeders: Mapping[Partition, Sequence[Feeder]]
    is_complete: bool = True
    """Whether all pipelines were asked for, and not only those that were known."""

    def of(self, partition: Partition) -> Origins:
        """The same of one partition alone."""
        return Origins(self.cluster, {partition: self.feeders.get(partition, ())}, self.is_complete)

    def came_from(self, partition: Partition, producer: int) -> frozenset[str] | None:
        """The clusters that entries of this producer have, or may have, come through; None when they are no copies."""
        found = [one.note.ancestry for one in self.feeders.get(partition, ()) if producer in one.note.producers]
        return frozenset().union(*found) if found else None

    def returns(self, feeder: Feeder, target: Destination) -> bool:
        """Whether what this one writes came straight from the target; within one cluster, from the target's topic."""
        note = feeder.note
        return note.cluster == target.cluster and (self.cluster != target.cluster or note.topic == target.topic)

    def through(self, target: Destination) -> frozenset[str]:
        """The clusters that messages have come through which are copied on to the target."""
        return frozenset().union(*(one.note.ancestry for one in self._all() if not self.returns(one, target)))

    def rings(self, target: Destination) -> list[Feeder]:
        """Those whose messages were in the target's cluster before, and came here by way of others."""
        return [one for one in self._all() if target.cluster in one.note.through and not self.returns(one, target)]

    def _all(self) -> Iterator[Feeder]:
        return (feeder for feeders in self.feeders.values() for feeder in feeders)


def refuse_rings(pipeline: str, origins: Origins, target: Destination) -> None:
    """ConfigError when this pipeline would bring messages back to where they have been."""
    for feeder in origins.rings(target):
        raise ConfigError(
            f"pipeline {pipeline}: what pipeline {feeder.pipeline} brings from {feeder.note} came through cluster "
            f"{target.cluster} before, which is the target here, and messages must not return there: leave out one of "
            "the pipelines of this ring, or let one of them write to a topic that no other of them reads"
        )


class Whence(enum.Enum):
    """Where an entry comes from, as far as a copier must know."""

    ELSEWHERE = "elsewhere"
    """It was written here, or copied from another cluster than the target: it is to be copied."""
    TARGET = "target"
    """It was copied from the target: it is to be skipped."""
    UNASKED = "unasked"
    """Notes must be read first, or read anew."""
    FORGOTTEN = "forgotten"
    """It is so old that notes do not tell any more."""


class Descent:
    """What a copier knows of the entries of one partition of its source. Pure."""

    def __init__(self, pipeline: str, partition: Partition, target: Destination) -> None:
        self.pipeline = pipeline
        self.partition = partition
        self.target = target
        self.through: frozenset[str] = frozenset()
        """The clusters that messages have come through which are copied on; to be in the own note before they are."""
        self.known_from = 0
        """Before this position some ids of those who copy from the target were named no more when notes were read."""
        self._known_to = 0
        self._noted_to = 0
        self._copiers: dict[int, Whence] = {}
        self._strangers: set[int] = set()

    def __repr__(self) -> str:
        return f"<Descent of {self.partition}, {len(self._copiers)} ids of copiers, all known before {self._known_to}>"

    def is_copier(self, producer: int) -> bool:
        """Whether this id is a copier's: then notes of the pipelines that are known tell all there is to tell of it."""
        return producer in self._copiers

    def judge(self, producer: int, position: int) -> Whence:
        """Where an entry of this producer, with this first position, comes from. Copies always have a producer id."""
        if producer < 0:
            return Whence.ELSEWHERE
        whence = self._copiers.get(producer)
        if whence is not None:
            is_stale = whence is Whence.ELSEWHERE and position >= self._noted_to
            return Whence.UNASKED if is_stale else whence
        if position >= self._known_to and producer not in self._strangers:
            return Whence.UNASKED
        return Whence.ELSEWHERE if position >= self.known_from else Whence.FORGOTTEN

    def learn(self, origins: Origins, producers: Iterable[int], stable: int) -> None:
        """What notes say; ConfigError when they tell of a ring.

        They were read after entries of these producers had been fetched, and after the log had told that it is stable
        up to there, which is that no transaction before that position was open any more.
        """
        mine = origins.of(self.partition)
        refuse_rings(self.pipeline, mine, self.target)
        self.through |= mine.through(self.target)
        for feeder in mine.feeders[self.partition]:
            whence = Whence.TARGET if mine.returns(feeder, self.target) else Whence.ELSEWHERE
            self._copiers |= dict.fromkeys(feeder.note.producers, whence)
            if whence is Whence.TARGET and feeder.note.known_from > self._known_to:
                self.known_from = max(self.known_from, feeder.note.known_from)
        self._noted_to = max(self._noted_to, stable)
        if origins.is_complete:
            self._known_to = max(self._known_to, stable)
            self._remember(producers)

    def _remember(self, strangers: Iterable[int]) -> None:
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.clear()  # they are asked for again
        self._strangers.update(producer for producer in strangers if producer not in self._copiers)

    def forgotten(self, position: int) -> ConfigError:
        """Why an entry that is older than what notes tell cannot be copied."""
        return ConfigError(
            f"pipeline {self.pipeline}: whether position {position} of {self.partition} was copied from the target, "
            f"cluster {self.target.cluster}, cannot be told any more, and messages must not return there: start this "
            f"pipeline at position {self.known_from} of {self.partition} or later"
        )


class OriginFinder:
    """Reads the notes of all pipelines that write to a cluster. Runs on: the I/O thread."""

    def __init__(
        self, cluster: Cluster, clock: Clock, backoff: Callable[[], Backoff], homes: Homes, pipeline: str
    ) -> None:
        """`pipeline`: the own name, by which the pipeline of the other direction may be called as well."""
        self.trouble: PenstockError | None = None
        """Why asking did not succeed yet."""
        self._cluster = cluster
        self._clock = clock
        self._backoff = backoff
        self._homes = homes
        self._groups = {group_of(pipeline)}
        self._is_listed = False

    def __repr__(self) -> str:
        return f"<OriginFinder in {self._cluster.name}, {len(self._groups)} groups>"

    def find(
        self, partitions: Collection[Partition], until: float = math.inf, *, known_only: bool = False
    ) -> Steps[Origins]:
        """Who writes copies to these partitions, or did; with `known_only` of the pipelines that were found before."""
        if not known_only or not self._is_listed:
            yield from self._list(until)
            known_only = False
        feeders: dict[Partition, list[Feeder]] = {partition: [] for partition in partitions}
        for group in sorted(self._groups):
            marks = yield from self._marks(group, sorted(partitions), until)
            for partition, mark in marks.items():
                note = _read_note(group, partition, mark.note)
                if note is not None:
                    feeders[partition].append(Feeder(pipeline_of(group) or group, note))
        return Origins(self._cluster.topology.cluster_id, feeders, is_complete=not known_only)

    def _list(self, until: float) -> Steps[None]:
        """Learn of all groups. For a moment, while a group's books go from one broker to another, none names it: so
        they are listed twice the first time, and a group that was named once is asked for ever after."""
        yield from self._list_once(until)
        if not self._is_listed:
            yield Pause(self._clock.monotonic() + RELISTED_AFTER)
            yield from self._list_once(until)
            self._is_listed = True

    def _list_once(self, until: float) -> Steps[None]:
        """Ask all brokers, and all of them again while one cannot say."""
        backoff = self._backoff()
        while True:
            error: PenstockError | None = None
            view: ClusterView | PenstockError = yield Ask(LookUp(frozenset()), Whom.ANYBODY)
            if isinstance(view, PenstockError):
                error, view = view, ClusterView(None, {}, {})
            for node, endpoint in view.nodes.items():
                self._cluster.meet(node, endpoint, self._clock.monotonic())
                told = yield from self._listed_by(node)
                if isinstance(told, PenstockError):
                    error = told if error is None or error.retriable else error
                else:
                    self._groups |= {group for group in told if pipeline_of(group)}
            self.trouble = error
            if error is None:
                return
            again_at = self._clock.monotonic() + backoff.next()
            if not error.retriable or again_at > until:
                raise self._given_up(error)
            yield Pause(again_at)

    def _listed_by(self, node: NodeId) -> Steps[frozenset[str] | PenstockError]:
        reached = yield from self._homes.reach(node, f"broker {node}, which may keep the books of pipelines")
        told: frozenset[str] | PenstockError
        told = reached if isinstance(reached, PenstockError) else (yield Ask(ListGroups(), node))
        return told

    def _marks(self, group: str, partitions: list[Partition], until: float) -> Steps[Mapping[Partition, Mark]]:
        """The marks of a group. While one of them waits for the end of its transaction none is told: where many copiers
        commit often there is always one that does, and so they are asked for in ever smaller lots."""
        is_one = len(partitions) == 1
        patience = Patience(until, lambda: is_one)
        home = FindHome(group, of_group=True)
        told: Told = yield from self._homes.asked(home, ReadMarks(group, partitions), patience)
        self.trouble = told.error
        if told.error is None:
            marks: Mapping[Partition, Mark] = told.answer
            return marks
        if is_one or not told.error.retriable:
            raise self._given_up(told.error)
        half = len(partitions) // 2
        first = yield from self._marks(group, partitions[:half], until)
        second = yield from self._marks(group, partitions[half:], until)
        return {**first, **second}

    def _given_up(self, error: PenstockError) -> PenstockError:
        if not error.retriable:
            return error
        return because(
            TimedOutError(f"who copies to {self._cluster.name} could not be found out in time: {error}"), error
        )


def _read_note(group: str, partition: Partition, text: str) -> SourceNote | None:
    """A note of a copier; None for what somebody else committed. UnsupportedError for one of a later version, whose
    copies would not be known."""
    note = SourceNote.decode(text)
    if note is None and version_of(text) is not None:
        raise UnsupportedError(0, f"note of group {group} for {partition}", f"one of version {VERSION}", text)
    return note
