"""What is said to a broker and what comes back, in words that all systems share; and the seam of a connection.

A wire turns requests into buffers and bytes into events, without I/O: who waits, and for how long, is not its
business. Each system's wire serves the requests that it has an answer to and raises `RefusedError` for the others. Must
never import a wire.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from penstock.config.options import Acks
from penstock.errors import PenstockError
from penstock.message import Position, Properties
from penstock.wire.entry import BatchBuffer, Buffer, EntryHeader

if TYPE_CHECKING:
    from penstock.wire.columns import BufferColumns

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
    id: UUID | None = None
    """What a topic of the same name that is made later does not share; None where the cluster does not tell."""


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


class TopicSettings(NamedTuple):
    """How a topic is set, in the system's own words, and what of it matters to whoever reads."""

    values: Mapping[str, str | None]
    is_compacted: bool
    """Whether messages are taken out of the middle, so that positions have holes."""
    for_copies: Mapping[str, str] = MappingProxyType({})
    """Those that a copy of the topic must have too, to take the same batches and treat them alike; where the topic has
    the system's defaults, they are left out."""
    batch_bytes_max: int | None = None
    """The largest batch that it takes, as far as told."""


@dataclass(frozen=True, slots=True)
class ReadSettings(Request[TopicSettings]):
    """How is this topic set?"""

    topic: str


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
    """A position to be committed: the next one to read, a note beside it, and under which leader the one before it
    was stored, -1 where that is not known."""

    position: int
    note: str = ""
    leader_epoch: int = -1


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


# Reading


class Wanted(NamedTuple):
    """What to give of a partition: entries from the one that holds this position on, about so many bytes of them."""

    position: int
    bytes_max: int
    leader_epoch: int = -1
    """Under which leader this is asked, so that one who is behind says so; -1 asks whoever it is."""


class Aborted(NamedTuple):
    """A transaction that was aborted: whose, and the first position of it in the partition."""

    producer: int
    first: int


class Fetched(NamedTuple):
    """What a broker gave of a partition: whole entries in order, views that stay as they are."""

    entries: Sequence[memoryview]
    size: int
    """Bytes that were given, those of a last entry that was cut included."""
    next: int
    """The position behind the last entry; -1 without entries."""
    first_epoch: int
    """The leader under whom the first entry was stored, and the last one; they never fall."""
    last_epoch: int
    start: int
    """The first position that the log still has; -1 where that is not told."""
    end: int
    """Where the log ends for readers who take everything."""
    stable: int
    """Where it ends for readers of what is committed; -1 where that is not told."""
    aborted: Sequence[Aborted]
    """Aborted transactions that have something among the entries; only for readers of what is committed."""


@dataclass(frozen=True, slots=True)
class Fetch(Request[Mapping[Partition, Fetched | PenstockError]]):
    """Give entries of these partitions, in this order while there is room; wait a while when there are none.

    A partition that the answer does not tell of was passed over. One whose log does not hold the position answers
    `PositionError`, which need not tell how far the log reaches.
    """

    wanted: Mapping[Partition, Wanted]
    topic_ids: Mapping[str, UUID | None]
    bytes_max: int = 8 << 20
    """The first entry is given however large it is."""
    bytes_min: int = 1
    wait_ms: int = 500
    committed: bool = True
    """Nothing behind a transaction that is still open; aborted entries are given, and told."""
    group: str | None = None
    """For which group or cursor this is read: what the broker filters for that one, it filters here too. To be told to
    brokers that filter (`Ready.filters`), as is the next."""
    filter: str | None = None
    """A property filter: entries none of whose messages match need not be given. Those that are have to be judged."""


class Spot(enum.Enum):
    """A place in a log that moves."""

    EARLIEST = "earliest"
    LATEST = "latest"
    AT_HAND = "at hand"
    """The earliest that the leader has on its own disk, where older entries are kept elsewhere."""


class Found(NamedTuple):
    """A position that was looked for; None where there is none, as of a time after the last message's."""

    position: int | None
    time_ms: int | None = None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FindPositions(Request[Mapping[Partition, Found | PenstockError]]):
    """Where are these spots, and the first messages of these times or later ones? All led by the one who is asked."""

    spots: Mapping[Partition, Spot | int]
    """A number is a time in ms."""
    committed: bool = True
    timeout_ms: int = 30_000


class EpochEnd(NamedTuple):
    """Where the entries of a leader end: the largest leader epoch up to the one asked for, and the position behind its
    last entry; -1 and -1 where the log knows none."""

    leader_epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class FindEpochEnds(Request[Mapping[Partition, EpochEnd | PenstockError]]):
    """Where do the entries of these leaders end? Tells whether what was read is still what the log holds."""

    epochs: Mapping[Partition, int]
    current: Mapping[Partition, int] = field(default_factory=dict)
    """Under which leaders this is asked."""


@dataclass(frozen=True, slots=True)
class ReadMarks(Request[Mapping[Partition, Mark]]):
    """Which positions has a group committed? Waits for none: those of open transactions are an error that passes.

    The answer lacks partitions that have none.
    """

    group: str
    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class ListGroups(Request[frozenset[str]]):
    """Of which groups does the one who is asked keep the books? Those of a cluster are known when all brokers told."""


@dataclass(frozen=True, slots=True)
class StoreMarks(Request[Mapping[Partition, PenstockError]]):
    """Commit positions of a group outside of a transaction; the answer holds those that could not be."""

    group: str
    marks: Mapping[Partition, Mark]
    member: GroupMember = NO_MEMBER


@dataclass(frozen=True, slots=True)
class SetFilter(Request[Done]):
    """Filter by this for whoever reads for the group, from now on; None: no more. Only of brokers that filter."""

    group: str
    filter: str | None


class GroupFilter(NamedTuple):
    """What a broker filters by for whoever reads for a group; in its own words where that is no property filter."""

    text: str | None


@dataclass(frozen=True, slots=True)
class ReadFilter(Request[GroupFilter]):
    """What is filtered by for whoever reads for the group? Only of brokers that filter."""

    group: str


class StoredEntries(Protocol):
    """How a system's stored entries are judged and opened."""

    def judge(self, entry: Buffer, *, check: bool, claim: bool, bytes_max: int) -> EntryHeader:
        """What can be known of an entry unopened; `check` verifies its checksum, `claim` reads what it claims."""

    def is_abort(self, entry: Buffer) -> bool:
        """Whether a control entry says that its producer's transaction was aborted."""

    def undated(self, entry: Buffer) -> Buffer:
        """An entry whose times were given by its log, with the times that its senders gave."""

    def open(self, entries: Sequence[Buffer], bytes_max: int, bytes_aim: int) -> tuple[BufferColumns, int]:
        """The messages of the first of these entries, together, and of how many entries they are: of at least one, and
        of more while their messages take about `bytes_aim`. No entry may unpack to more than `bytes_max`. The entries
        were judged before."""


# A connection


@dataclass(frozen=True, slots=True)
class Ready:
    """The greeting is over: requests may be sent."""

    features: Mapping[str, int]
    """What the cluster as a whole has agreed on, by name and version."""
    enlists: bool = False
    """Whether the broker enlists partitions and groups by itself when they are first used in a transaction; where it
    does not, `Enlist` and `EnlistGroup` must have been answered before."""
    filters: bool = False
    """Whether the broker filters entries for its readers when it is asked to."""


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

    def room(self) -> memoryview | None:
        """Where the next bytes are best received, so that they need not be copied; None: anywhere."""

    def receive(self, data: memoryview) -> Sequence[Event]:
        """The events that these bytes complete, received anywhere or at the beginning of `room`; the rest is kept,
        copied where it has to be, until more comes."""

    def unanswered(self) -> Sequence[object]:
        """Tokens of requests that are not answered yet, in the order in which they were sent."""


class Wire(Protocol):
    """A system: what it calls itself, how a connection to one of its brokers speaks, how its batches are written."""

    scheme: str
    port: int

    def connection(self, client_id: str, frame_bytes_max: int) -> WireConnection:
        """A connection that has said nothing yet."""

    def buffer(self, bytes_max: int) -> BatchBuffer:
        """An empty batch that may grow to `bytes_max`."""

    def stored_batch(self, entry: Buffer, count: int) -> BatchBuffer:
        """An entry that was read and judged, with so many messages, as a sealed batch to be sent: its payload stays as
        it is."""

    def stored_entries(self) -> StoredEntries:
        """How entries that were read are judged and opened."""

    def labelled(
        self, properties: Properties | None, tag: str | None, keys: Sequence[str], deliver_at_ms: int | None
    ) -> Properties | None:
        """The properties with those of a message's fields among them that the system has no field for.

        `MessageError` for a field that cannot be carried at all, or whose property is taken.
        """
