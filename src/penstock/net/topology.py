"""What is known of one cluster: its id, brokers, topics and leaders. Views in, changes out; asks nobody. Pure.

How a view is merged:

- A view of another cluster is refused as a whole, whoever told it: clusters never mix.
- A partition's leader epoch never goes back. Brokers learn of a new leader at different times, and one that lags must
  not undo what a better informed one told. Epochs start anew with a new topic of the same name, which shows in one of
  three ways: the topic was missing in between, it has fewer partitions, or views of an older epoch keep coming
  (`OLDER_VIEWS_MAX` in a row; else a topic that was deleted and made again between two views would stay leaderless).
  Where views tell a topic's id, one of another id is taken as it is told.
- A topic that was asked for and is missing is unknown. What was known of it is forgotten, since it may come back as
  another one.
- A topic with another error keeps its partitions while the error is one that passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from penstock.errors import PenstockError, RefusedError, UnknownTopicError
from penstock.wire.protocol import ClusterView, Endpoint, NodeId, Partition, PartitionView, TopicView

OLDER_VIEWS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic can be used: it became known, has other leaders, more partitions or another id; `partitions` is their
    number."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicFailed:
    """A topic cannot be used, or not yet, as told by this view."""

    topic: str
    error: PenstockError


@dataclass(frozen=True, slots=True)
class NodeMoved:
    """A broker listens elsewhere now."""

    node: NodeId
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The cluster does not name this broker any more."""

    node: NodeId


TopicEvent: TypeAlias = TopicChanged | TopicFailed
Change: TypeAlias = TopicEvent | NodeMoved | NodeGone


@dataclass(slots=True)
class _Topic:
    """A topic as known from all views so far."""

    partitions: Mapping[int, PartitionView] = field(default_factory=dict)
    error: PenstockError | None = None
    older_views: int = 0
    id: UUID | None = None


class Topology:
    """Brokers and topics of one cluster, as far as anybody asked. Runs on: the I/O thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cluster_id: str | None = None
        self.controller: NodeId | None = None
        self._nodes: dict[NodeId, Endpoint] = {}
        self._topics: dict[str, _Topic] = {}

    @property
    def nodes(self) -> Mapping[NodeId, Endpoint]:
        """The brokers, and where they listen."""
        return self._nodes

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is not known."""
        known = self._topics.get(topic)
        return len(known.partitions) or None if known else None

    def error(self, topic: str) -> PenstockError | None:
        """Why a topic cannot be used, as last told."""
        known = self._topics.get(topic)
        return known.error if known else None

    def leader(self, partition: Partition) -> NodeId | None:
        """Who leads a partition; None while nobody does, or it is not known."""
        known = self._topics.get(partition.topic)
        view = known.partitions.get(partition.number) if known else None
        return view.leader if view else None

    def leader_epoch(self, partition: Partition) -> int:
        """How often a partition's leader has changed; -1 where that is not known."""
        known = self._topics.get(partition.topic)
        view = known.partitions.get(partition.number) if known else None
        return view.leader_epoch if view else -1

    def topic_id(self, topic: str) -> UUID | None:
        """A topic's id, as last told; None where that is not known."""
        known = self._topics.get(topic)
        return known.id if known else None

    def is_settled(self, topic: str) -> bool:
        """Whether asking again soon would bring nothing: all partitions have leaders, or the error will not pass."""
        known = self._topics.get(topic)
        if known is None:
            return False
        if known.error is not None:
            return not known.error.retriable
        views = known.partitions.values()
        return bool(views) and all(view.leader is not None for view in views)

    def forget(self, topic: str) -> None:
        """Know nothing of this topic any more."""
        self._topics.pop(topic, None)

    def meet(self, node: NodeId, endpoint: Endpoint) -> list[Change]:
        """A broker named outside of a view, as the home of a transaction."""
        return list(self._merge_nodes({**self._nodes, node: endpoint}))

    def learn(self, view: ClusterView, asked: Collection[str]) -> list[Change]:
        """Merge a view that answers for these topics. Learns nothing from another cluster: raises `RefusedError`."""
        if view.cluster_id is not None:
            if self.cluster_id is not None and self.cluster_id != view.cluster_id:
                raise RefusedError(
                    f"the broker belongs to cluster {view.cluster_id}, but {self.name} is cluster {self.cluster_id}: "
                    "clusters are never mixed"
                )
            self.cluster_id = view.cluster_id
        changes: list[Change] = list(self._merge_nodes(view.nodes)) if view.nodes else []
        self.controller = view.controller
        for topic in sorted(asked):
            told = view.topics.get(topic)
            if told is None:
                told = TopicView({}, UnknownTopicError(f"{self.name} does not know the topic {topic}"))
            change = self._merge_topic(topic, told)
            if change is not None:
                changes.append(change)
        return changes

    def _merge_nodes(self, nodes: Mapping[NodeId, Endpoint]) -> Iterator[Change]:
        before, self._nodes = self._nodes, dict(nodes)
        for node, endpoint in before.items():
            if node not in nodes:
                yield NodeGone(node)
            elif nodes[node] != endpoint:
                yield NodeMoved(node, nodes[node])

    def _merge_topic(self, topic: str, told: TopicView) -> TopicEvent | None:
        known = self._topics.setdefault(topic, _Topic())
        known.error, error_before = told.error, known.error
        if told.error is not None:
            if isinstance(told.error, UnknownTopicError) or not told.error.retriable:
                known.partitions, known.id = {}, None
            return TopicFailed(topic, told.error)
        merged, topic_id = _merge_partitions(known, told), told.id or known.id
        changed = merged != known.partitions or error_before is not None or topic_id != known.id
        known.partitions, known.id = merged, topic_id
        return TopicChanged(topic, len(merged)) if changed else None

    def __repr__(self) -> str:
        return (
            f"<Topology of {self.name}, cluster {self.cluster_id}, {len(self._nodes)} nodes, controller "
            f"{self.controller}, {len(self._topics)} topics>"
        )


def _merge_partitions(known: _Topic, view: TopicView) -> dict[int, PartitionView]:
    told = view.partitions
    if len(told) < len(known.partitions) or (known.id is not None and view.id not in (None, known.id)):
        known.older_views = 0
        return dict(told)
    older = {
        number: known.partitions[number]
        for number, view in told.items()
        if number in known.partitions and 0 <= view.leader_epoch < known.partitions[number].leader_epoch
    }
    known.older_views = known.older_views + 1 if older else 0
    if known.older_views >= OLDER_VIEWS_MAX:
        known.older_views = 0
        return dict(told)
    return {**told, **older}
