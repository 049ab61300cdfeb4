"""A topic that is copied: what is read of it goes to the strands of its partitions, and it is known who wrote it.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from penstock.consume.feed import Part
from penstock.consume.fetcher import Fetcher
from penstock.consume.judge import Wanted
from penstock.errors import PenstockError
from penstock.net.cluster import Cluster
from penstock.net.errands import Errands
from penstock.replicate.origins import Descent, Destination, OriginFinder, Origins, Whence
from penstock.replicate.stats import StrandStats
from penstock.replicate.strand import Strand
from penstock.wire.protocol import Mark, Partition


@dataclass(frozen=True, slots=True)
class Registry:
    """Where it is asked who copies to the source's cluster."""

    cluster: Cluster
    errands: Errands
    finder: OriginFinder
    pipeline: str


class SourceTopic:
    """One topic of the source: the `Source` of its strands."""

    def __init__(self, topic: str, fetcher: Fetcher, registry: Registry, target: Destination) -> None:
        self.topic = topic
        self.fetcher = fetcher
        self.strands: dict[int, Strand] = {}
        self.error: PenstockError | None = None
        """Why it is not read any more."""
        self._registry = registry
        self._target = target
        self._descents: dict[int, Descent] = {}
        self._unasked: dict[int, set[int]] = {}
        self._asking: Future[Origins] | None = None

    def __repr__(self) -> str:
        return f"<SourceTopic {self.topic}, {len(self.strands)} strands>"

    # The turn

    def new_partitions(self) -> list[int]:
        """Partitions that are known and have no strand."""
        return [number for number in self.fetcher.tracks if number not in self.strands]

    def share_out(self) -> None:
        """Hand what was read to the strands."""
        feed = self.fetcher.feed
        while (part := feed.take()) is not None:
            number = part.partition.number
            strand = self.strands.get(number)
            if strand is None or part.era != self.fetcher.tracks[number].era:
                feed.done(part)
            elif part.entries or part.next > part.first or strand.position < part.next:
                strand.offer(part)
            else:
                feed.done(part)
        ending = feed.ending
        if ending is not None and self.error is None:
            self.error = ending.error
            for strand in self.strands.values():
                if ending.error is not None:
                    strand.fail(ending.error)

    def standing(self, number: int, now: float, wall_ms: int) -> StrandStats:
        """Where a partition's copy is. While the source cannot be read nobody knows what it holds: that is a delay."""
        stats, track = self.strands[number].stats(now, wall_ms), self.fetcher.tracks[number]
        since, trouble = track.since, track.trouble
        if since is None or self.strands[number].is_over:
            return stats
        delay_ms = max(stats.delay_ms, (now - since) * 1000, 1.0)
        return replace(stats, delay_ms=delay_ms, trouble=stats.trouble or str(trouble))

    # What strands ask

    def place(self, number: int) -> tuple[int, int | None, int]:
        """A partition's next position, its end if it has one, and the end of its log as last told."""
        track = self.fetcher.tracks[number]
        return track.position, track.end, track.log_end

    def start(self, number: int) -> Mark:
        """Where a partition is read from at first."""
        return self.fetcher.starts[number]

    def seek(self, number: int, mark: Mark) -> None:
        """Read a partition from there on."""
        self.fetcher.seek(number, mark)

    def hold(self, number: int, is_held: bool) -> None:
        """Read no more of it for now, or go on."""
        self.fetcher.hold(number, is_held)
        if not is_held:
            self.fetcher.look()

    def done(self, part: Part) -> None:
        """A part is not needed any more."""
        self.fetcher.feed.done(part)

    def through(self, number: int) -> frozenset[str]:
        """The clusters that messages came through which are copied on."""
        return self._descent(number).through

    def unknown_writers(self, number: int, wanted: Sequence[Wanted]) -> bool:
        """Whether it must be found out first who wrote some of these entries; then the strand is looked at later."""
        descent = self._descent(number)
        unasked = {
            producer
            for one in wanted
            if (producer := _producer(one)) >= 0 and descent.judge(producer, one.begin) is Whence.UNASKED
        }
        if not unasked:
            return False
        self._unasked.setdefault(number, set()).update(unasked)
        if self._asking is None:
            self._ask()
        return True

    def is_from_target(self, number: int, one: Wanted) -> bool:
        """Whether an entry was copied here from the target; ConfigError where that cannot be told any more."""
        descent = self._descent(number)
        whence = descent.judge(_producer(one), one.begin)
        if whence is Whence.FORGOTTEN:
            raise descent.forgotten(one.begin)
        return whence is Whence.TARGET

    def _ask(self) -> None:
        """Find out who wrote what strands wait with; the first time for all partitions at once."""
        registry, asked = self._registry, self._unasked
        self._unasked = {}
        numbers = list(asked) if self._descents.keys() >= self.fetcher.tracks.keys() else list(self.fetcher.tracks)
        stable = {number: self.fetcher.tracks[number].log_end for number in numbers}
        known_only = all(self._descent(number).is_copier(one) for number in asked for one in asked[number])
        partitions = [Partition(self.topic, number) for number in numbers]
        steps = registry.finder.find(partitions, known_only=known_only)
        self._asking = registry.errands.run(registry.cluster, steps)
        self._asking.add_done_callback(lambda done: self._told(asked, stable, done))

    def _told(self, asked: Mapping[int, set[int]], stable: Mapping[int, int], done: Future[Origins]) -> None:
        self._asking = None
        if done.cancelled():
            return
        for number, strand in self.strands.items():
            if number in stable and not strand.is_over:
                descent = self._descent(number)
                try:
                    descent.learn(done.result(), asked.get(number, ()), stable[number])
                except PenstockError as error:
                    strand.fail(error)
                else:
                    strand.come_through(descent.through)
        if self._unasked:
            self._ask()

    def _descent(self, number: int) -> Descent:
        descent = self._descents.get(number)
        if descent is None:
            partition = Partition(self.topic, number)
            descent = self._descents[number] = Descent(self._registry.pipeline, partition, self._target)
        return descent


def _producer(one: Wanted) -> int:
    producer = one.header.producer
    return producer if isinstance(producer, int) else -1
