"""Positions found out: how many partitions a topic has, where spots and times are, where a leader's entries end.

Each is a series of steps that asks whoever leads, again after a pause that grows while that is of use, and until its
time is over.

Runs on: the I/O thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from penstock.clock import Clock
from penstock.consume.places import Since
from penstock.errors import NotLeaderError, PenstockError, TimedOutError, UnforeseenError, UnknownTopicError
from penstock.net.asks import Whom
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster
from penstock.net.errand import Ask, Pause, Steps, Until
from penstock.net.failures import because
from penstock.wire.protocol import (
    EpochEnd,
    FindEpochEnds,
    FindPositions,
    Found,
    NodeId,
    Partition,
    ReadSettings,
    Request,
    Spot,
    TopicSettings,
)


class Seeker:
    """Asks one cluster."""

    def __init__(self, cluster: Cluster, clock: Clock, backoff: Callable[[], Backoff], unknown_topic: float) -> None:
        """`unknown_topic`: for how many seconds a topic may be unknown."""
        self.trouble: PenstockError | None = None
        """Why asking did not succeed yet."""
        self._cluster = cluster
        self._clock = clock
        self._backoff = backoff
        self._unknown_topic = unknown_topic

    def __repr__(self) -> str:
        return f"<Seeker in {self._cluster.name}>"

    def partitions(self, topic: str, until: float = math.inf) -> Steps[int]:
        """How many partitions a topic has."""
        cluster = self._cluster
        began = self._clock.monotonic()
        unknown_by = min(began + self._unknown_topic, until)

        def is_decided(now: float) -> bool:
            cluster.want(topic, now)  # in each turn, or a look-up might forget it
            error = cluster.error(topic)
            return (
                cluster.partitions(topic) is not None
                or now >= until
                or (error is not None and (not error.retriable or (_is_unknown(error) and now >= unknown_by)))
            )

        while not is_decided(now := self._clock.monotonic()):
            look_at = min((moment for moment in (unknown_by, until) if now < moment < math.inf), default=None)
            yield Until(partial(self._is_time, is_decided, look_at), look_at)
        count = cluster.partitions(topic)
        if count is not None:
            return count
        error = cluster.error(topic)
        if error is not None and (not error.retriable or _is_unknown(error)):
            raise error
        raise self._late(f"the partitions of {topic} could not be looked up", error)

    def _is_time(self, is_decided: Callable[[float], bool], look_at: float | None, now: float) -> bool:
        return is_decided(now) or (look_at is not None and now >= look_at)

    def find(
        self, places: Mapping[Partition, Spot | Since], *, committed: bool, until: float = math.inf
    ) -> Steps[dict[Partition, int]]:
        """The positions of these places; of a time after the last message's, the one behind that message."""
        spots = {one: place.time_ms if isinstance(place, Since) else place for one, place in places.items()}
        told: dict[Partition, Found] = yield from self._all(
            spots, lambda some: FindPositions({one: spots[one] for one in some}, committed), until
        )
        found = {partition: one.position for partition, one in told.items() if one.position is not None}
        late = spots.keys() - found
        if any(isinstance(spots[partition], Spot) for partition in late):
            raise UnforeseenError(f"the broker knows no {spots[next(iter(late))]} of {next(iter(late))}")
        if late:
            found |= yield from self.find(dict.fromkeys(late, Spot.LATEST), committed=committed, until=until)
        return found

    def epoch_end(self, partition: Partition, epoch: int, until: float = math.inf) -> Steps[EpochEnd]:
        """Where the entries of this leader end."""
        current = self._cluster.topology.leader_epoch
        found: dict[Partition, EpochEnd] = yield from self._all(
            [partition], lambda some: FindEpochEnds({partition: epoch}, {partition: current(partition)}), until
        )
        return found[partition]

    def settings(self, topic: str, until: float = math.inf) -> Steps[TopicSettings]:
        """How a topic is set."""
        backoff, began = self._backoff(), self._clock.monotonic()
        while True:
            told: TopicSettings | PenstockError = yield Ask(ReadSettings(topic), Whom.ANYBODY)
            self.trouble = told if isinstance(told, PenstockError) else None
            if not isinstance(told, PenstockError):
                return told
            again_at = self._clock.monotonic() + backoff.next()
            self._give_up_if(told, again_at, until, began)
            yield Pause(again_at)

    def _all(
        self,
        partitions: Iterable[Partition],
        request: Callable[[list[Partition]], Request[Mapping[Partition, Any]]],
        until: float,
    ) -> Steps[dict[Partition, Any]]:
        """What the leaders of these partitions say, each asked for those that it leads."""
        left, found = set(partitions), dict[Partition, Any]()
        backoff, began = self._backoff(), self._clock.monotonic()
        while True:
            error: PenstockError | None = None
            for node, some in self._by_leader(left).items():
                told: Any = NotLeaderError(f"{some[0]} has no leader at the moment")
                if node is not None:
                    told = yield Ask(request(some), node)
                for partition in some:
                    one = told if isinstance(told, PenstockError) else told[partition]
                    if not isinstance(one, PenstockError):
                        found[partition] = one
                        left.discard(partition)
                    elif error is None or error.retriable:
                        error = one
            self.trouble = error
            if error is None:
                return found
            again_at = self._clock.monotonic() + backoff.next()
            self._give_up_if(error, again_at, until, began)
            if error.refresh_metadata:
                self._cluster.refresh(next(iter(left)).topic)
            yield Pause(again_at)

    def _give_up_if(self, error: PenstockError, again_at: float, until: float, began: float) -> None:
        if not error.retriable or (_is_unknown(error) and again_at > min(until, began + self._unknown_topic)):
            raise error
        if again_at > until:
            raise self._late("positions could not be found out", error)

    def _by_leader(self, partitions: Iterable[Partition]) -> dict[NodeId | None, list[Partition]]:
        groups: dict[NodeId | None, list[Partition]] = {}
        now = self._clock.monotonic()
        for partition in sorted(partitions):
            self._cluster.want(partition.topic, now)
            groups.setdefault(self._cluster.leader(partition), []).append(partition)
        return groups

    def _late(self, what: str, cause: PenstockError | None) -> TimedOutError:
        cause = cause or self._cluster.trouble(self._clock.monotonic())
        return because(TimedOutError(f"{what} in time: {cause or f'{self._cluster.name} has not answered'}"), cause)


def _is_unknown(error: PenstockError) -> bool:
    return isinstance(error, UnknownTopicError)
