"""All strands of one pipeline on the I/O thread, and the topics that they belong to.

In one turn: what was read is handed to the strands; those that something has happened to are worked on, and those whose
time has come; new topics and partitions are looked for now and then.

A strand that ends with an error ends the pipeline: the others commit what they have stored, and stop. Going on with
some partitions only would leave a copy behind that looks whole and is not.

Runs on: the I/O thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.errands import Errands
from penstock.net.loop import Loop
from penstock.replicate.source import SourceTopic
from penstock.replicate.strand import Strand
from penstock.replicate.survey import Surveyor, TopicPlan
from penstock.wire.protocol import Partition

_log = logging.getLogger("penstock")

TOLD_EVERY: Final = 1.0
"""Seconds between metrics."""

OpenTopic = Callable[[TopicPlan], SourceTopic]
OpenStrand = Callable[[SourceTopic, TopicPlan, int], Strand]


class Replicator:
    """One pipeline: a party of its loop."""

    def __init__(
        self,
        loop: Loop,
        errands: Errands,
        clock: Clock,
        surveyor: Surveyor,
        discover_every: float,
        opens: tuple[OpenTopic, OpenStrand],
        asks: Cluster,
        tell: Callable[[float], None],
    ) -> None:
        """`opens`: how a topic is opened for reading, and a strand; `asks`: the cluster that surveys are errands of;
        `tell`: has the metrics told, once in a while."""
        self.ended: Future[None] = Future()
        """Done when all strands have ended; its error is why, where that was not the end of what is to be copied."""
        self.ended.set_running_or_notify_cancel()
        self.topics: dict[str, SourceTopic] = {}
        self.error: PenstockError | None = None
        self._loop = loop
        self._errands = errands
        self._clock = clock
        self._surveyor = surveyor
        self._discover_every = discover_every
        self._open_topic, self._open_strand = opens
        self._asks = asks
        self._tell = tell
        self._tell_at = -math.inf
        self._plans: dict[str, TopicPlan] = {}
        self._ready: dict[Strand, None] = {}
        self._due: list[tuple[float, int, Strand]] = []
        self._moments: dict[Strand, list[float]] = {}  # of each strand those among the due, each before the one before
        self._order = itertools.count()
        self._follows = False
        self._unplanned: set[Partition] = set()  # partitions that the target was not known to have
        self._survey_at = math.inf
        self._surveying: Future[Any] | None = None
        self._is_stopping = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Replicator of {len(self.topics)} topics, {len(self._ready)} strands to be looked at>"

    @property
    def strands(self) -> list[Strand]:
        """All strands."""
        return [strand for topic in self.topics.values() for strand in topic.strands.values()]

    # Beginning

    def begin(self, plans: list[TopicPlan], *, follows: bool) -> None:
        """Copy these topics; follow them, and look for new ones."""
        self._loop.parties.insert(0, self)  # what it forwards leaves in the same turn
        self._follows = follows
        for plan in plans:
            self._add(plan)
        if follows:
            self._survey_at = self._clock.monotonic() + self._discover_every

    def _add(self, plan: TopicPlan) -> None:
        self._plans[plan.topic] = plan
        topic = self.topics.get(plan.topic)
        if topic is None:
            self.topics[plan.topic] = self._open_topic(plan)
        else:
            topic.fetcher.cluster.refresh(plan.topic)  # it has grown

    # What strands say

    def look(self, strand: Strand) -> None:
        """Something has happened to a strand."""
        self._ready[strand] = None

    def look_at_all(self) -> None:
        """Something has happened that concerns all."""
        self._ready.update(dict.fromkeys(self.strands))

    def strand_ended(self, strand: Strand) -> None:
        """A strand is over."""
        if strand.error is not None and self.error is None:
            self.error = strand.error
            _log.warning("copying %s has ended: %s", strand.partition, strand.error)
            self.stop()

    # The turn

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News that concern the parties that this one works with."""

    def work(self, now: float) -> float | None:
        """Do what is due; when to come back at the latest."""
        for topic in self.topics.values():
            topic.share_out()
            for number in topic.new_partitions():
                self._begin_strand(topic, number)
            if topic.error is not None and not topic.strands and not self._is_stopping:
                self._fail(topic.error)
        while self._due and self._due[0][0] <= now:
            _, _, strand = heapq.heappop(self._due)
            self._moments[strand].pop()
            self._ready[strand] = None
        ready, self._ready = self._ready, {}
        for strand in ready:
            deadline = None if strand.is_over else strand.work(now)
            if deadline is not None:
                self._look_at(strand, deadline)
        self._maybe_survey(now)
        if now >= self._tell_at:
            self._tell(now)
            self._tell_at = now + TOLD_EVERY
        self._maybe_end()
        return now if self._ready else min(self._due[0][0] if self._due else math.inf, self._survey_at, self._tell_at)

    def _look_at(self, strand: Strand, moment: float) -> None:
        """Have a strand worked on at this moment. Where an earlier one is named already it will say so again then."""
        moments = self._moments.setdefault(strand, [])
        if not moments or moment < moments[-1]:
            moments.append(moment)
            heapq.heappush(self._due, (moment, next(self._order), strand))

    def _begin_strand(self, topic: SourceTopic, number: int) -> None:
        if self._is_stopping:
            return
        plan = self._plans[topic.topic]
        if number >= plan.partitions:  # the target is to have it first
            partition = Partition(topic.topic, number)
            self._survey_at = self._survey_at if partition in self._unplanned else -math.inf
            self._unplanned.add(partition)
            return
        strand = topic.strands[number] = self._open_strand(topic, plan, number)
        strand.begin()

    def _maybe_survey(self, now: float) -> None:
        if self._surveying is not None or now < self._survey_at or self._is_stopping:
            return
        self._survey_at = math.inf
        self._surveying = self._errands.run(self._asks, self._surveyor.survey())
        self._surveying.add_done_callback(self._surveyed)

    def _surveyed(self, done: Future[list[TopicPlan]]) -> None:
        self._surveying = None
        self._survey_at = self._clock.monotonic() + self._discover_every
        error = None if done.cancelled() else done.exception()
        if isinstance(error, PenstockError) and not error.retriable:
            self._fail(error)
        elif error is not None:
            _log.warning("new topics could not be looked for: %s", error)
        elif not done.cancelled() and not self._is_stopping:
            for plan in done.result():
                self._add(plan)

    # The end

    def stop(self) -> None:
        """Commit what is stored, and end."""
        self._is_stopping = True
        self._survey_at = math.inf
        for strand in self.strands:
            if not strand.is_over:
                strand.stop()
        self._loop.wake_by(-math.inf)

    def abort(self, error: PenstockError) -> None:
        """The loop has ended."""
        self.error = self.error or error
        self._finish()

    def _fail(self, error: PenstockError) -> None:
        self.error = self.error or error
        self.stop()

    def _maybe_end(self) -> None:
        if self._surveying is not None or (self._follows and not self._is_stopping):
            return
        topics = self.topics.values()
        is_begun = self._is_stopping or all(topic.strands and not topic.new_partitions() for topic in topics)
        if is_begun and all(strand.is_over for strand in self.strands):
            self._finish()

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._tell(self._clock.monotonic())
        if self in self._loop.parties:
            self._loop.parties.remove(self)
        if self.error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(self.error)
