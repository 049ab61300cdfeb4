"""The system-neutral nouns of a batch: its header, what it claims about its messages, and the buffer it is written in.

Every wire fills these from its own bytes, so that filters, replicators, brokers and Spark never ask which system a
batch came from. Must never import a wire, pyarrow or numpy: headers are judged where neither is loaded.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock.message import Position, Properties
from penstock.wire.compression import Codec

Buffer: TypeAlias = bytes | bytearray | memoryview


class EntryFlag(enum.IntFlag):
    """What a header says beside its numbers."""

    NONE = 0
    TRANSACTIONAL = 1
    """Belongs to a transaction; whether it counts is told by a later control entry."""
    CONTROL = 2
    """Holds a marker of the log itself, no message of a user."""
    LOG_TIME = 4
    """Times were given by the log on arrival, not by the sender."""
    THINNED = 8
    """Messages were taken out after it was stored: positions have holes."""
    PURGE_DATED = 16
    """The log noted when tombstones inside may be dropped."""


class Scope(enum.Enum):
    """How far a header's word on one property reaches."""

    FOR_ALL = "for all"
    """Every message has the one value (None: every message lacks it, or has a value the policy does not list)."""
    LISTED = "listed"
    """Every message has one of these values (None among them: some lack it)."""
    UNKNOWN = "unknown"
    """Nothing is said; only the messages themselves can tell."""


@dataclass(frozen=True, slots=True)
class PropertyClaim:
    """What a batch's header claims about its messages' properties, so that a filter can judge it unopened."""

    same: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    listed: Mapping[str, frozenset[str | None]] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.same or self.listed)

    def scope(self, name: str) -> Scope:
        """How far the claim reaches for this property."""
        if name in self.same:
            return Scope.FOR_ALL
        return Scope.LISTED if name in self.listed else Scope.UNKNOWN

    def values(self, name: str) -> frozenset[str | None] | None:
        """The values that can occur, None standing for absent; None when nothing is known."""
        if name in self.same:
            return frozenset((self.same[name],))
        return self.listed.get(name)


NO_CLAIM = PropertyClaim()


class EntryHeader(NamedTuple):
    """What can be known of an entry unopened. A named tuple, since one is made for every entry that passes by."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a header for
    size: int
    codec: Codec
    first: Position
    last: Position
    min_time_ms: int | None
    """No message is older; None where the header cannot tell."""
    max_time_ms: int
    producer: int | str | None
    epoch: int
    sequence: int
    flags: EntryFlag
    claim: PropertyClaim


class Stamp(NamedTuple):
    """Who wrote a batch and as which in order: written late, when the batch leaves, and again when it is renumbered."""

    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False


UNSTAMPED = Stamp()


class BatchBuffer(Protocol):
    """A batch being written. Messages go in framed; once sealed, only its header can still change.

    OPEN (append, extend) -> SEALED (stamp, as often as needed). `clear` opens it anew once nobody holds its bytes.
    """

    sealed: bool
    """Whether it takes no more messages."""
    bytes_max: int
    """What the batch may grow to, uncompressed; may be set anew while it is open. The first message is taken anyway."""

    @property
    def count(self) -> int:
        """Messages in it."""

    @property
    def size(self) -> int:
        """Size of the batch if it left uncompressed now: header, keys, properties and framing included.

        Compressed, it still tells what went in.
        """

    @property
    def held(self) -> int:
        """Bytes of payload that it holds now: fewer once it is compressed."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        properties: Properties | None = None,
        event_time_ms: int = -1,
    ) -> int:
        """Frame one message and return its index, or -1 when the batch has no room for it."""

    def extend(
        self,
        values: Sequence[bytes | None] | Any,
        keys: Sequence[bytes | None] | Any = None,
        properties: Properties | Sequence[Properties | None] | Any = None,
        event_times_ms: int | Sequence[int] | Any = -1,
        start: int = 0,
    ) -> int:
        """Frame as many of these messages, from index `start` on, as there is room for; return how many."""

    def seal(self, codec: Codec = Codec.NONE, level: int | None = None, claim: PropertyClaim = NO_CLAIM) -> None:
        """Compress; no message can follow."""

    def stamp(self, stamp: Stamp = UNSTAMPED) -> tuple[Buffer, Buffer]:
        """Write the header for this stamp; return header and payload, ready to be sent one after the other."""

    def columns(self) -> Any:
        """The messages in it as `wire.columns.BufferColumns`, open or sealed, as they were given."""

    def clear(self) -> None:
        """Open it anew; refused while somebody still holds its bytes."""


class EntryFormat(Protocol):
    """A format in which a log stores entries: all that a log knows of it.

    A log writes entries of one format one after the other, as they arrived but for their position, so that a reader is
    served by sending a range of a file. In a stored entry the positions of its header are integers that count messages.
    None of this opens an entry but to read its claim.
    """

    @property
    def number(self) -> int:
        """What files call it; never given to another format."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def head_bytes(self) -> int:
        """How many bytes of an entry `measure` and `glance` need to see."""

    def measure(self, data: Buffer) -> int | None:
        """The size that the first entry in these bytes says it has; None when too few of them are there to tell.

        DecodeError when no entry begins here. The entry may be longer than the bytes given.
        """

    def glance(self, head: Buffer) -> EntryHeader:
        """What the head of an entry tells, its claim left out; nothing is verified that needs more than the head."""

    def check(self, entry: Buffer) -> EntryHeader:
        """The header of one whole entry, claim included, whose checksum is right; DecodeError otherwise."""

    def place(self, entry: Buffer, position: int, epoch: int) -> tuple[Buffer, Buffer]:
        """The entry as it stands in a log at this position: a new head, and a view of the rest, uncopied."""

    def marker(self, commit: bool, producer: int, epoch: int, time_ms: int, coordinator_epoch: int = 0) -> Buffer:
        """A control entry that ends a producer's transaction in this log, to be stored like any other entry."""

    def marker_of(self, entry: Buffer) -> bool | None:
        """Whether a whole control entry commits (True) or aborts (False) a transaction; None: it is another one."""

    def dated(self, entry: Buffer, time_ms: int | None) -> Buffer:
        """The entry with the log's time for all of its messages; None: with the times that their senders gave them.

        The checksum follows the change: a damaged entry stays damaged.
        """
