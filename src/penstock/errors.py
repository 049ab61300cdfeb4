"""The one tree of errors, and what each says about the message it befell.

    PenstockError
    ├── ConfigError                an option or a combination of options is wrong
    │   └── UnknownOptionError     no such option; names the nearest one
    ├── MessageError               this message cannot be sent as it is
    │   └── MessageTooLargeError   larger than the limit, alone
    ├── NoRoomError                the client's memory for messages is used up
    ├── ClosedError                the client or producer is closed
    │   └── ClosedInFlightError    and was while the answer to this message was awaited
    ├── BatchStateError            a batch was asked for what its state forbids
    ├── TransactionStateError      outside of a transaction, or within another one
    ├── BrokerError                a broker said no, or said nothing
    │   ├── ConnectionLostError    the connection ended before the answer came
    │   │   └── NotSentError       and before the request had left
    │   ├── TimedOutError          no answer in time
    │   ├── ExpiredError           its time was over before it could be stored
    │   ├── UnresolvedError        what became of it cannot be found out any more
    │   ├── NotLeaderError         that broker does not lead the partition (any more)
    │   ├── UnknownTopicError      the cluster does not know the topic or partition (yet)
    │   ├── BusyError              the broker cannot do it now; nothing was stored
    │   ├── UnsureError            the broker stored it but cannot vouch for it
    │   ├── DuplicateError         the broker has it already, from an earlier try
    │   ├── SequenceError          a batch came out of order for its producer
    │   ├── FencedError            another instance took this producer's place; this one ends for good
    │   ├── TransactionError       the transaction cannot go on and must be aborted
    │   ├── DeniedError            not allowed, or not who one claims to be
    │   ├── UnforeseenError        the broker failed in a way that it, or we, have no word for
    │   └── RefusedError           the broker will never take this request as it is
    │       └── BatchTooLargeError its batch is too large; smaller ones may pass
    ├── PositionError              a log does not hold that position (any more, or yet)
    │   └── GapError               what a reader was to read next is gone
    ├── StorageError               a disk did not do what it was asked
    │   ├── StorageFullError       it has no room; what was begun was taken back
    │   ├── StorageReadOnlyError   it, or the folder, cannot be written by this process
    │   ├── StorageFailedError     it could not vouch for what was written: this log takes no more
    │   ├── StorageDamagedError    what was known to be stored is not there any more
    │   ├── FolderInUseError       another process has this data folder
    │   └── FolderFormatError      no data folder, or one of another version
    └── DecodeError                bytes that are not what they should be
        ├── ChecksumError          the checksum does not match the bytes
        ├── LimitError             a length above the limit, refused before allocating
        └── UnsupportedError       well formed, but of a version, codec or flag that is not served

Each class answers three questions for whoever handles it: is trying again of use (`retriable`), should the cluster's
metadata be asked for anew (`refresh_metadata`), and was the message stored (`persisted`). Errors that brokers answer
are one class per meaning; their wire codes are rows of a table in each system's wire.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Persisted(enum.Enum):
    """Whether the message an error is about was stored by the broker."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class PenstockError(Exception):
    """What all errors of Penstock have in common."""

    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False
    persisted: ClassVar[Persisted] = Persisted.NO


class ConfigError(PenstockError, ValueError):
    """An option, or a combination of options, is wrong."""


class UnknownOptionError(ConfigError):
    """There is no option of that name."""


class MessageError(PenstockError, ValueError):
    """This message cannot be sent as it is; others are not concerned."""


class MessageTooLargeError(MessageError):
    """The message alone is larger than the limit."""


class NoRoomError(PenstockError):
    """The client's memory for messages that are not acknowledged yet is used up; nothing was taken."""

    retriable = True


class ClosedError(PenstockError, RuntimeError):
    """The client or the producer is closed; nothing was taken, or what was taken has not been sent."""


class ClosedInFlightError(ClosedError):
    """The producer was closed before the answer to this message came: it may or may not have been stored."""

    persisted = Persisted.MAYBE


class BatchStateError(PenstockError, RuntimeError):
    """A batch was asked for something that its state forbids."""


class TransactionStateError(PenstockError, RuntimeError):
    """Something that needs an open transaction, or that none is open; nothing was taken."""


class BrokerError(PenstockError):
    """A broker said no, or said nothing. `code` is its own word for why, empty where it said nothing."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(f"{code}: {text}" if code else text)
        self.code = code
        self._text = text

    def __reduce__(self) -> tuple[type[BrokerError], tuple[str, str]]:
        return type(self), (self._text, self.code)


class ConnectionLostError(BrokerError):
    """The connection ended before the answer came: what was asked may or may not have been done."""

    retriable = True
    refresh_metadata = True
    persisted = Persisted.MAYBE


class NotSentError(ConnectionLostError):
    """The request never left whole, so that no broker can have acted on it."""

    persisted = Persisted.NO


class TimedOutError(BrokerError):
    """No answer in time: what was asked may or may not have been done."""

    retriable = True
    refresh_metadata = True
    persisted = Persisted.MAYBE


class ExpiredError(BrokerError):
    """Its delivery time was over before it could be stored; it was not, and will not be."""


class UnresolvedError(BrokerError):
    """It was sent, the answer was lost, and the broker has forgotten: what became of it cannot be found out."""

    persisted = Persisted.MAYBE


class NotLeaderError(BrokerError):
    """That broker does not lead the partition, or does not any more; nothing was stored."""

    retriable = True
    refresh_metadata = True


class UnknownTopicError(BrokerError):
    """The cluster does not know the topic or partition, or does not yet; nothing was stored."""

    retriable = True
    refresh_metadata = True


class BusyError(BrokerError):
    """The broker cannot do it now; nothing was stored."""

    retriable = True


class UnsureError(BrokerError):
    """The broker stored it but cannot vouch for it, too few replicas having it."""

    retriable = True
    persisted = Persisted.MAYBE


class DuplicateError(BrokerError):
    """The broker has it already, from an earlier try."""

    persisted = Persisted.YES


class SequenceError(BrokerError):
    """A batch came out of order for its producer; it was not stored."""


class FencedError(BrokerError):
    """Another instance took this producer's place; this one ends for good."""


class TransactionError(BrokerError):
    """The transaction cannot go on; it must be aborted."""


class DeniedError(BrokerError):
    """Not allowed, or not who one claims to be."""


class UnforeseenError(BrokerError):
    """The broker failed in a way that it, or we, have no word for: what was asked may or may not have been done."""

    persisted = Persisted.MAYBE


class RefusedError(BrokerError):
    """The broker will never take this request as it is."""


class BatchTooLargeError(RefusedError):
    """The batch is larger than the broker takes; cut into smaller ones its messages may pass."""


class PositionError(PenstockError, LookupError):
    """A log does not hold that position: entries before `start` are deleted, and none is at `end` yet."""

    def __init__(self, position: int, start: int, end: int) -> None:
        super().__init__(f"position {position} is outside of the log, which reaches from {start} to {end}")
        self.position = position
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[type[PositionError], tuple[int, int, int]]:
        return type(self), (self.position, self.start, self.end)


class GapError(PositionError):
    """What a reader was to read next, or had read, is gone: positions of `partition` from `first` up to `next`.

    `next` is not missing itself; None where nobody can tell how many are. The log reaches from `start` to `end`.
    """

    def __init__(self, partition: str, first: int, next: int | None, why: str, start: int = -1, end: int = -1) -> None:  # noqa: A002
        missing = f"positions from {first} on" if next is None else f"positions {first} to {next - 1}"
        LookupError.__init__(self, f"{partition}: {missing} are missing: {why}")
        self.partition = partition
        self.position = self.first = first
        self.next = next
        self.why = why
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[type[GapError], tuple[str, int, int | None, str, int, int]]:  # type: ignore[override]
        return type(self), (self.partition, self.first, self.next, self.why, self.start, self.end)


class StorageError(PenstockError):
    """A disk did not do what it was asked; what the system said is the cause."""


class StorageFullError(StorageError):
    """The disk, or somebody's share of it, has no room; what was begun was taken back, and nothing was stored."""

    retriable = True


class StorageReadOnlyError(StorageError):
    """The disk, the folder or a file cannot be written by this process; nothing was stored."""


class StorageFailedError(StorageError):
    """The disk could not vouch for what was written, which may be lost or not; the log takes no more until reopened."""

    persisted = Persisted.MAYBE


class StorageDamagedError(StorageError):
    """What was known to be stored is not there any more, or is not what was stored.

    `resume` is the next position that can be read, where there is one.
    """

    def __init__(self, text: str, resume: int | None = None) -> None:
        super().__init__(text if resume is None else f"{text}; reading can go on at position {resume}")
        self._text = text
        self.resume = resume

    def __reduce__(self) -> tuple[type[StorageDamagedError], tuple[str, int | None]]:
        return type(self), (self._text, self.resume)


class FolderInUseError(StorageError):
    """Another process has this data folder, or another part of this one."""


class FolderFormatError(StorageError):
    """The folder is no data folder, or one of a version that is not served."""


class DecodeError(PenstockError, ValueError):
    """Bytes that are not what they should be.

    `offset` counts from the start of the bytes given to the decoder; where `field` begins with "record", from the start
    of the records, decompressed if they were compressed.
    """

    def __init__(self, offset: int, field: str, expected: str, found: object) -> None:
        super().__init__(f"{field} at byte {offset}: expected {expected}, found {found}")
        self.offset = offset
        self.field = field
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type[DecodeError], tuple[int, str, str, object]]:
        return type(self), (self.offset, self.field, self.expected, self.found)


class ChecksumError(DecodeError):
    """The checksum does not match the bytes."""


class LimitError(DecodeError):
    """A length above the limit, refused before anything was allocated for it."""


class UnsupportedError(DecodeError):
    """Well formed, but of a version, codec or flag that is not served."""
