"""Whether the topic that a reader began with is still there, and still that one.

A topic that is deleted and made anew has another id. Brokers that lag may tell the old one for a while, so the other
id must have been told for `MADE_ANEW_S` seconds before it is believed; meanwhile nothing is read. Where brokers do not
tell ids (Kafka before 2.8) a new topic shows only in positions that are outside of its log.

Runs on: the I/O thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from penstock.errors import PenstockError, UnknownTopicError
from penstock.net.cluster import Cluster

MADE_ANEW_S: Final = 1.0


class Gone(NamedTuple):
    """The topic is not there any more."""

    error: PenstockError


class MadeAnew(NamedTuple):
    """Another topic has its name."""

    topic_id: UUID
    why: str


class Doubtful(NamedTuple):
    """Nothing is to be asked for now; when to look again."""

    until: float


class TopicWatch:
    """Watches one topic."""

    def __init__(self, topic: str, cluster: Cluster, unknown_topic: float) -> None:
        """`unknown_topic`: for how many seconds it may be unknown."""
        self.topic_id: UUID | None = None
        """The id of the topic that is read; None while it is not known."""
        self._topic = topic
        self._cluster = cluster
        self._unknown_topic = unknown_topic
        self._unknown_since: float | None = None
        self._other_since: float | None = None

    def begin(self) -> None:
        """The topic as it is known now is the one to be read."""
        self.topic_id = self._cluster.topology.topic_id(self._topic)
        self._other_since = None

    def known(self) -> None:
        """The cluster knows the topic."""
        self._unknown_since = None

    def failed(self, error: PenstockError, now: float) -> None:
        """The cluster cannot tell anything of the topic."""
        if isinstance(error, UnknownTopicError) and self._unknown_since is None:
            self._unknown_since = now

    def check(self, now: float) -> Gone | MadeAnew | Doubtful | None:
        """What has become of the topic; None: it can be read on."""
        if self._unknown_since is not None:
            gone_at = self._unknown_since + self._unknown_topic
            error = self._cluster.error(self._topic) or UnknownTopicError(f"there is no topic {self._topic} any more")
            return Gone(error) if now >= gone_at else Doubtful(gone_at)
        told = self._cluster.topology.topic_id(self._topic)
        if told is None or self.topic_id in (None, told):
            self.topic_id = self.topic_id or told
            self._other_since = None
            return None
        if self._other_since is None:
            self._other_since = now
        believed_at = self._other_since + MADE_ANEW_S
        if now < believed_at:
            self._cluster.refresh(self._topic)
            return Doubtful(believed_at)
        return MadeAnew(told, f"the topic was deleted and made anew: its id is {told}, and was {self.topic_id}")
