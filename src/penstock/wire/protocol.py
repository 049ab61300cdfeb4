"""What is said to a broker and what comes back, in words that all systems share; and the seam of a connection.

A wire turns requests into buffers and bytes into events, without I/O: who waits, and for how long, is not its
business. Each system's wire serves the requests that it has an answer to and raises `RefusedError` for the others. Must
never import a wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.config.options import Acks
from penstock.errors import PenstockError
from penstock.message import Position
from penstock.wire.entry import Buffer

NodeId: TypeAlias = int | str


class Endpoint(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Partition(NamedTuple):
    """One partition of a topic by name."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


# What is known of a cluster


class PartitionView(NamedTuple):
    """A partition as the cluster tells it: its leader, None while there is none, and how often that changed."""

    leader: NodeId | None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as the cluster tells it; `error` says why it cannot be used (yet)."""

    partitions: Mapping[int, PartitionView]
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Brokers and topics as one broker tells them."""

    cluster_id: str | None
    nodes: Mapping[NodeId, Endpoint]
    topics: Mapping[str, TopicView]
    controller: NodeId | None = None


# Requests; each names the type of its answer.

Answer_co = TypeVar("Answer_co", covariant=True)


class Request(Generic[Answer_co]):
    """Something that can be asked of a broker."""

    __slots__ = ()


class Done(NamedTuple):
    """It was done; there is nothing more to tell."""


@dataclass(frozen=True, slots=True)
class LookUp(Request[ClusterView]):
    """Who leads these topics' partitions (None: all)? Missing topics are created where that is asked and allowed."""

    topics: frozenset[str] | None
    create: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a producer is to the cluster."""

    producer: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Identify(Request[Identity]):
    """Give this producer an identity; one that names a transactional id takes it over and fences who had it."""

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    current: Identity | None = None


class Outgoing(NamedTuple):
    """A stamped batch on its way to a partition."""

    partition: Partition
    header: Buffer
    payload: Buffer


class Stored(NamedTuple):
    """Where a batch was stored: its first message's position (None when the broker kept silent about it)."""

    first: Position | None
    log_time_ms: int | None = None
    """When the log gave its own times, this one."""


class Spoilt(NamedTuple):
    """A batch that was refused because of some of its messages: their indexes and why."""

    error: PenstockError
    messages: Mapping[int, str]


Verdict: TypeAlias = Stored | Spoilt | PenstockError


@dataclass(frozen=True, slots=True)
class Publish(Request[Mapping[Partition, Verdict]]):
    """Store these batches, at most one for each partition. Without acks there is no answer."""

    batches: Sequence[Outgoing]
    acks: Acks = "all"
    timeout_ms: int = 30_000
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateTopic(Request[Done]):
    """Create a topic; -1 leaves a number to the cluster."""

    name: str
    partitions: int = -1
    replicas: int = -1
    settings: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class DeleteTopic(Request[Done]):
    """Delete a topic."""

    name: str
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class GrowTopic(Request[Done]):
    """Give a topic more partitions: `partitions` in all."""

    name: str
    partitions: int
    timeout_ms: int = 30_000


# Transactions


@dataclass(frozen=True, slots=True)
class FindHome(Request[tuple[NodeId, Endpoint]]):
    """Which broker keeps the books of this transactional id (or of this group)?"""

    name: str
    of_group: bool = False


@dataclass(frozen=True, slots=True)
class Enlist(Request[Mapping[Partition, PenstockError]]):
    """Make these partitions part of the open transaction; the answer holds those that could not be."""

    transactional_id: str
    identity: Identity
    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class EnlistGroup(Request[Done]):
    """Make a group's positions part of the open transaction."""

    transactional_id: str
    identity: Identity
    group: str


class GroupMember(NamedTuple):
    """Who commits positions for a group; the default commits without being a member."""

    generation: int = -1
    member: str = ""
    instance: str | None = None


NO_MEMBER = GroupMember()


class Mark(NamedTuple):
    """A position to be committed: the next one to read, and a note beside it."""

    position: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class CommitMarks(Request[Mapping[Partition, PenstockError]]):
    """Commit positions of a group within the open transaction; the answer holds those that could not be."""

    transactional_id: str
    identity: Identity
    group: str
    marks: Mapping[Partition, Mark]
    member: GroupMember = NO_MEMBER


@dataclass(frozen=True, slots=True)
class EndTransaction(Request[Identity]):
    """Commit or abort; the answer is the identity to go on with."""

    transactional_id: str
    identity: Identity
    commit: bool


# A connection


@dataclass(frozen=True, slots=True)
class Ready:
    """The greeting is over: requests may be sent."""

    features: Mapping[str, int]
    """What the cluster as a whole has agreed on, by name and version."""
    enlists: bool = False
    """Whether the broker enlists partitions and groups by itself when they are first used in a transaction; where it
    does not, `Enlist` and `EnlistGroup` must have been answered before."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to the request that was sent with this token; an error where it failed as a whole."""

    token: Any
    answer: Any
    throttle_ms: int = 0
    """How long the broker asks to be left alone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the protocol itself has to say now; to be written before anything else."""

    buffers: Sequence[Buffer]


Event: TypeAlias = Ready | Answered | Reply


class WireConnection(Protocol):
    """One connection's side of the protocol: requests in, buffers out; bytes in, events out. No I/O.

    A connection that raised `DecodeError` from `receive` is beyond repair and must be closed; requests whose answers
    it had not handed out by then are still `unanswered`. Runs on: the I/O thread.
    """

    def greet(self) -> Sequence[Buffer]:
        """What is sent first, before anything else; `Ready` follows."""

    def send(self, request: Request[Any], token: object) -> Sequence[Buffer]:
        """The frame of a request; its answer will come with this token."""

    def receive(self, data: memoryview) -> Sequence[Event]:
        """The events that these bytes complete; the rest is kept, copied, until more comes."""

    def unanswered(self) -> Sequence[object]:
        """Tokens of requests that are not answered yet, in the order in which they were sent."""


class Wire(Protocol):
    """A system: what it calls itself, and how a connection to one of its brokers speaks."""

    scheme: str
    port: int

    def connection(self, client_id: str, frame_bytes_max: int) -> WireConnection:
        """A connection that has said nothing yet."""
