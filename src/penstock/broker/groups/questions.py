"""What members ask of a group and what they are answered, as values.

A question that can take a while comes with a callback, which is called exactly once with its answer. An answer with a
`refusal` says no; its other fields then mean nothing but where said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from penstock.broker.refusals import Refusal, Refused
from penstock.wire.protocol import Partition


class Moment(NamedTuple):
    """A moment on both clocks: monotonic seconds for waiting, wall clock milliseconds for what lasts."""

    now: float
    now_ms: int


class Client(NamedTuple):
    """Who stands behind a member."""

    id: str
    host: str


# Groups whose members agree among themselves: one of them, the leader, shares the partitions out.


class Offer(NamedTuple):
    """A way of sharing out that a member takes part in, and what it says to the leader about itself."""

    name: str
    metadata: bytes
    topics: frozenset[str] | None = None
    """The topics it wants, as far as the door could read that in the metadata."""


@dataclass(frozen=True, slots=True)
class Join:
    """A member wants to be in the group's next generation; `member` is empty when it is new."""

    group: str
    member: str
    client: Client
    kind: str
    """What the members of the group agree upon; groups of another kind cannot be joined."""
    offers: tuple[Offer, ...]
    """In the order of preference."""
    session_ms: int
    rebalance_ms: int
    instance: str | None = None
    takes_id: bool = False
    """Whether a new member knows to join again under the id that it is given."""
    skips_assignment: bool = False
    """Whether it understands to lead without sharing out anew."""
    reads_topics: bool = False
    """Whether members of this kind read topics, so that their metadata should name some."""

    @property
    def size(self) -> int:
        """How much the member says about itself."""
        return sum(len(offer.name) + len(offer.metadata) for offer in self.offers)


class Peer(NamedTuple):
    """A member as the leader sees it."""

    member: str
    instance: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The member is in this generation. `peers` are told to the leader only.

    A refusal has the member's id in it, and MEMBER_ID_NEEDED the id to join again under.
    """

    member: str
    generation: int = -1
    leader: str = ""
    kind: str | None = None
    protocol: str | None = None
    peers: tuple[Peer, ...] = ()
    skip_assignment: bool = False
    refusal: Refusal | None = None


class Share(NamedTuple):
    """What the leader gave a member: bytes between the two, and the partitions that the door could read in them."""

    data: bytes
    partitions: frozenset[Partition] = frozenset()


NO_SHARE = Share(b"")


@dataclass(frozen=True, slots=True)
class Sync:
    """A member asks for its share; the leader brings everybody's."""

    group: str
    member: str
    generation: int
    instance: str | None = None
    kind: str | None = None
    protocol: str | None = None
    shares: Mapping[str, Share] = field(default_factory=dict)


class Synced(NamedTuple):
    """The member's share."""

    data: bytes = b""
    kind: str | None = None
    protocol: str | None = None
    refusal: Refusal | None = None


class Leaver(NamedTuple):
    """A member that leaves, by its id, its instance, or both."""

    member: str
    instance: str | None = None


# Groups whose partitions the broker shares out.

Slot: TypeAlias = tuple[UUID, int]
"""A partition by its topic's id, since a topic that is created again is another one."""

JOINING = 0
LEAVING = -1
RETURNING = -2
"""Epochs with a meaning of their own: the member joins; leaves; leaves, and will be back under its instance."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A member comes by; what is None is as it was before."""

    group: str
    member: str
    epoch: int
    client: Client
    instance: str | None = None
    rack: str | None = None
    rebalance_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    """Topics by a pattern; empty takes it back."""
    assignor: str | None = None
    owned: frozenset[Slot] | None = None

    @property
    def size(self) -> int:
        """How much the member says about itself."""
        return sum(map(len, self.topics or ())) + len(self.pattern or "")

    @property
    def tells_all(self) -> bool:
        """Whether nothing is left as it was before, so that everything should be answered."""
        wishes = self.topics is not None or self.pattern is not None
        return wishes and self.rebalance_ms is not None and self.owned is not None


class Beaten(NamedTuple):
    """The epoch the member is at, when to come by again, and its partitions where it should be told them."""

    member: str
    epoch: int = 0
    interval_ms: int = 0
    assigned: frozenset[Slot] | None = None
    refused: Refused | None = None


# Offsets


class Offset(NamedTuple):
    """How far a group has come in a partition: the position it reads next."""

    position: int
    epoch: int = -1
    """The leader's epoch that the member read it under; -1 when it did not say."""
    metadata: str = ""
    committed_ms: int = 0
    expires_ms: int | None = None
    """When it ends, if the member said so."""


Fetched: TypeAlias = dict[Partition, Offset | Refusal | None]
"""Each partition's offset, None where there is none, or why it cannot be told."""


# What is told of groups


class GroupSeen(NamedTuple):
    """A group in a list."""

    name: str
    protocol: str
    kind: str
    state: str
    members: int


class GroupPosition(NamedTuple):
    """How far a group has come in a partition."""

    group: str
    topic: str
    partition: int
    position: int


Reply: TypeAlias = Callable[[Any], None]
Replies: TypeAlias = list[tuple[Reply, Any]]
"""Answers that are decided, until they are handed out."""
