"""What there is at both ends of a pipeline before anything is copied: topics found, checked, created and grown.

Everything that speaks against copying a topic is found here, before any of it is read.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from penstock.errors import ConfigError, PenstockError, RefusedError, UnknownTopicError
from penstock.net.asks import Target, Whom
from penstock.net.errand import Steps, Until
from penstock.replicate.origins import Origins
from penstock.replicate.route import Route
from penstock.wire.protocol import (
    ClusterView,
    CreateTopic,
    GrowTopic,
    LookUp,
    Partition,
    ReadMarks,
    ReadSettings,
    Request,
    TopicSettings,
    TopicView,
)

Answer = TypeVar("Answer")
AskEnd = Callable[[Request[Any], Target], Future[Any]]
"""Asks one end of a pipeline."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is copied."""

    topic: str
    target: str
    partitions: int
    target_partitions: int
    batch_bytes_max: int
    """The largest batch that the target takes."""
    id: UUID | None

    @property
    def is_routed(self) -> bool:
        """Whether messages go to other partitions than those that they come from."""
        return self.partitions != self.target_partitions


@dataclass(frozen=True, slots=True)
class Ends:
    """How both ends are asked."""

    source: AskEnd
    target: AskEnd
    marks: Callable[[ReadMarks], Future[Any]]
    """Asks the target for the marks of a group."""
    feeders: Callable[[list[Partition]], Future[Origins]] | None = None
    """Asks the source who writes copies to partitions; where nobody can, copies are copied on like other topics."""


@dataclass(slots=True)
class Surveyor:
    """Looks at both ends."""

    route: Route
    ends: Ends
    group: str
    repartition: bool
    source_id: str | None = None
    target_id: str | None = None
    plans: dict[str, TopicPlan] = field(default_factory=dict)

    def survey(self) -> Steps[list[TopicPlan]]:
        """Topics that are new, or have grown, since this was last asked."""
        names = None if self.route.pattern is not None else frozenset(self.route.names)
        view: ClusterView = yield from _answer(self.ends.source(LookUp(names), Whom.ANYBODY))
        self.source_id = view.cluster_id
        topics = self.route.chosen(view.topics)
        targets = frozenset(map(self.route.target_of, topics))
        if not topics:
            return []
        there: ClusterView = yield from _answer(self.ends.target(LookUp(targets), Whom.ANYBODY))
        self.target_id = there.cluster_id
        self._check_clusters(topics)
        topics = yield from self._without_copies(topics, view)
        changed = []
        for topic in topics:
            known = self.plans.get(topic)
            found = _view(view, topic, is_needed=known is None and self.route.pattern is None)
            if found is None or (known is not None and known.partitions >= len(found.partitions)):
                continue
            plan = yield from self._plan(topic, found, there)
            self.plans[topic] = plan
            changed.append(plan)
        return changed

    def _check_clusters(self, topics: list[str]) -> None:
        if self.source_id is None or self.source_id != self.target_id:
            return
        same = [topic for topic in topics if self.route.target_of(topic) == topic]
        if same:
            raise ConfigError(
                f"source and target are the same cluster, {self.source_id}: {same[0]} would be copied onto itself; "
                "give copies another name with rename=..."
            )

    def _without_copies(self, topics: list[str], view: ClusterView) -> Steps[list[str]]:
        """What a pattern has chosen, but for copies of the target's own topics: with pipelines in both directions that
        give copies other names, each copy would be copied back under a longer one, for ever."""
        if self.route.pattern is None or self.route.keeps_names or self.ends.feeders is None:
            return topics
        new = {topic: view.topics[topic] for topic in topics if topic not in self.plans and topic in view.topics}
        partitions = [Partition(topic, number) for topic, found in new.items() for number in found.partitions]
        if not partitions:
            return topics
        origins: Origins = yield from _answer(self.ends.feeders(partitions))
        copies = {
            partition.topic
            for partition, feeders in origins.feeders.items()
            if any(feeder.note.cluster == self.target_id for feeder in feeders)
        }
        return [topic for topic in topics if topic not in copies]

    def _plan(self, topic: str, found: TopicView, there: ClusterView) -> Steps[TopicPlan]:
        name, count = self.route.target_of(topic), len(found.partitions)
        settings: TopicSettings = yield from _answer(self.ends.source(ReadSettings(topic), Whom.ANYBODY))
        target = _view(there, name, is_needed=False)
        copies = len(target.partitions) if target is not None else 0
        if not copies:
            request = CreateTopic(name, count, settings=settings.for_copies)
            copies = (yield from self._create(request)) or count
        if copies != count:
            copies = yield from self._matched(topic, name, count, copies)
        own: TopicSettings = yield from self._settings_of(name)
        bytes_max = own.batch_bytes_max or settings.batch_bytes_max or 1 << 20
        return TopicPlan(topic, name, count, copies, bytes_max, found.id)

    def _settings_of(self, name: str) -> Steps[TopicSettings]:
        """How a topic of the target is set; unknown where it was created a moment ago and not every broker knows."""
        try:
            settings: TopicSettings = yield from _answer(self.ends.target(ReadSettings(name), Whom.ANYBODY))
        except UnknownTopicError:
            return TopicSettings({}, is_compacted=False)
        return settings

    def _create(self, request: CreateTopic) -> Steps[int | None]:
        """Create a topic in the target; how many partitions it has, where somebody else was faster."""
        try:
            yield from _answer(self.ends.target(request, Whom.CONTROLLER))
        except RefusedError:
            view: ClusterView = yield from _answer(self.ends.target(LookUp(frozenset({request.name})), Whom.ANYBODY))
            found = _view(view, request.name, is_needed=False)
            if found is None:
                raise
            return len(found.partitions)
        return None

    def _matched(self, topic: str, name: str, count: int, copies: int) -> Steps[int]:
        """The number of the target's partitions, made that of the source where it is the pipeline's own topic."""
        if self.repartition:
            return copies
        if copies < count:
            marks = yield from _answer(self.ends.marks(ReadMarks(self.group, [Partition(name, 0)])))
            if marks or topic in self.plans:
                yield from _answer(self.ends.target(GrowTopic(name, count), Whom.CONTROLLER))
                return count
        raise ConfigError(
            f"topic {topic} has {count} partitions, and {name} in the target has {copies}: give it as many, or set "
            "repartition=True to have messages opened and sent to where their keys belong there"
        )


def _view(view: ClusterView, topic: str, *, is_needed: bool) -> TopicView | None:
    """A topic as the cluster tells it; None for one that is not there and need not be."""
    found = view.topics.get(topic)
    if found is not None and found.error is None:
        return found
    error: PenstockError = UnknownTopicError(f"there is no topic {topic}")
    if found is not None and found.error is not None:
        error = found.error
    if is_needed or not isinstance(error, UnknownTopicError):
        raise error
    return None


def _answer(future: Future[Answer]) -> Steps[Answer]:
    """What is answered, once it is."""
    yield Until(lambda now: future.done())
    return future.result()
