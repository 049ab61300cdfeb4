"""Which topics to ask a cluster about next, and when. One look-up at a time; time in, look-ups out. Pure.

| why a topic is asked for | when |
|---|---|
| nobody asked before | at once |
| somebody failed because of what was known, or it was not settled | after a pause that grows while it stays so |
| what is known is old (`metadata_age_max_ms`) | then; topics that nobody wanted meanwhile are forgotten |
| the look-up failed | after a pause that grows, whatever it was for |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.errors import BusyError
from penstock.net.backoff import Backoff
from penstock.wire.protocol import LookUp

TOPICS_MAX: Final = 10_000
LOOK_UP_TOPICS_MAX: Final = 1_000


@dataclass(slots=True)
class _Wanted:
    """A topic that somebody uses; whether the cluster may create it, when it was last wanted, and whether for good."""

    create: bool
    used: float
    kept: bool = False


class LookUps:
    """What to ask next about the topics in use, of which there are at most `topics_max`. Runs on: the I/O thread."""

    def __init__(self, backoff: Backoff, age_max: float, topics_max: int = TOPICS_MAX) -> None:
        self._backoff = backoff
        self._age_max = age_max
        self._topics_max = topics_max
        self._wanted: dict[str, _Wanted] = {}
        self._new: dict[str, None] = {}  # sets in order of arrival: who waits longest is asked for first
        self._stale: dict[str, None] = {}
        self._nodes_asked = False
        self._outstanding: LookUp | None = None
        self._not_before = -math.inf
        self._failing = False
        self._renew_at = math.inf
        self._created_last = False

    @property
    def topics(self) -> Collection[str]:
        """The topics in use."""
        return self._wanted.keys()

    def want(self, topic: str, now: float, *, create: bool = False, keep: bool = False) -> None:
        """This topic is in use; with `keep` until it is forgotten. Raises `BusyError` when too many are."""
        wanted = self._wanted.get(topic)
        if wanted is not None:
            wanted.used = now
            wanted.kept = wanted.kept or keep
            if create and not wanted.create:
                wanted.create = True
                self._make_stale([topic])
            return
        if len(self._wanted) >= self._topics_max:
            raise BusyError(f"{self._topics_max} topics are in use, which is the limit: no room for {topic}")
        self._wanted[topic] = _Wanted(create, now, keep)
        self._new[topic] = None
        if self._renew_at == math.inf:
            self._renew_at = now + self._age_max

    def forget(self, topic: str) -> None:
        """Nobody uses this topic any more."""
        self._wanted.pop(topic, None)
        self._new.pop(topic, None)
        self._stale.pop(topic, None)

    def refresh(self, topic: str | None = None) -> None:
        """Ask anew for a topic, or for the brokers and all topics, no sooner than the pause allows."""
        if topic is None:
            self.refresh_nodes()
        self._make_stale(self._wanted if topic is None else [topic])

    def refresh_nodes(self) -> None:
        """Ask anew for the brokers, no sooner than the pause allows; any look-up tells them."""
        self._nodes_asked = True

    def next(self, now: float) -> LookUp | None:
        """The look-up to make now, if one is due; it is outstanding until it is answered or has failed."""
        due = self.next_deadline()
        if due is None or now < due:
            return None
        if now >= self._renew_at:
            self._renew_at = now + self._age_max
            self._make_stale(self._wanted)
        topics = list(self._new)
        if now >= self._not_before:
            topics += self._stale
        self._outstanding = self._choose(topics)
        for topic in self._outstanding.topics or ():
            self._new.pop(topic, None)
            self._stale.pop(topic, None)
        self._nodes_asked = False
        return self._outstanding

    def answered(self, unsettled: Collection[str], now: float) -> list[str]:
        """The look-up was answered, these topics of it being worth asking for again; the topics forgotten as unused."""
        self._outstanding = None
        self._failing = False
        self._make_stale(unsettled)
        if unsettled:
            self._not_before = now + self._backoff.next()
        else:
            self._backoff.reset()
            self._not_before = now + self._backoff.first
        unused = [
            topic for topic, wanted in self._wanted.items() if not wanted.kept and now - wanted.used >= self._age_max
        ]
        for topic in unused:
            self.forget(topic)
        return unused

    def failed(self, now: float) -> None:
        """The look-up was not answered: what it asked for is asked for again after a pause."""
        asked = (self._outstanding and self._outstanding.topics) or frozenset()
        self._outstanding = None
        self._failing = True
        self._nodes_asked = True
        self._make_stale(asked)
        self._not_before = now + self._backoff.next()

    def next_deadline(self) -> float | None:
        """When `next` has something; None while a look-up is outstanding or nothing is wanted."""
        if self._outstanding is not None:
            return None
        if self._new and not self._failing:
            return -math.inf
        if self._new or self._stale or self._nodes_asked:
            return self._not_before
        return self._renew_at if self._wanted else None

    def _make_stale(self, topics: Iterable[str]) -> None:
        self._stale.update((topic, None) for topic in topics if topic in self._wanted and topic not in self._new)

    def _choose(self, topics: list[str]) -> LookUp:
        """As many as one look-up takes; those that may be created and the others take turns."""
        creating = [topic for topic in topics if self._wanted[topic].create]
        others = [topic for topic in topics if not self._wanted[topic].create]
        create = bool(creating) and not (others and self._created_last)
        self._created_last = create
        return LookUp(frozenset((creating if create else others)[:LOOK_UP_TOPICS_MAX]), create=create)

    def __repr__(self) -> str:
        state = "outstanding" if self._outstanding is not None else "failing" if self._failing else "idle"
        return (
            f"<LookUps {state}, {len(self._wanted)} topics, {len(self._new)} new, {len(self._stale)} stale, "
            f"{self._backoff!r}>"
        )
