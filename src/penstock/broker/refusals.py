"""What a broker says no with, in neutral words.

Everything below the doors raises, or hands to a callback, a `Refused` with one of these reasons; each door has a table
from them to its own codes. What the disk does is the `StorageError` tree of `penstock.errors`: `refusal_of` turns it
into a reason, so that a door needs one table only. Must never know a protocol's codes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from penstock.errors import (
    ChecksumError,
    DecodeError,
    PenstockError,
    Persisted,
    PositionError,
    StorageError,
    StorageFullError,
)


class Refusal(enum.Enum):
    """Why a broker says no; the value says it to people."""

    # Topics and their settings
    UNKNOWN_TOPIC = "there is no such topic"
    UNKNOWN_PARTITION = "the topic has no such partition"
    TOPIC_EXISTS = "there is a topic of that name already"
    BAD_TOPIC_NAME = "no topic can have that name"
    BAD_PARTITION_COUNT = "a topic cannot have that many partitions"
    BAD_SETTING = "there is no such setting, or it does not take that value"

    # Entries
    CORRUPT_ENTRY = "the checksum does not match the entry"
    BAD_ENTRY = "the entry cannot be stored as it is"
    ENTRY_TOO_LARGE = "the entry is larger than the topic takes"
    BAD_TIME = "the entry's time is too far from the broker's"
    TOO_MANY_PRODUCERS = "the topic or partition has as many producers as it takes"

    # Producers and transactions
    OUT_OF_ORDER = "the entry does not follow the last one stored for its producer"
    DUPLICATE = "the entry was stored before, where is not known any more"
    STALE_EPOCH = "a newer instance of the producer has stored entries here"
    FENCED = "a newer instance of the producer has taken its place"
    UNKNOWN_PRODUCER = "nothing is known of that producer"
    BAD_TRANSACTION_STATE = "the transaction's state does not allow it"
    NOT_ENLISTED = "the partition or group is not part of the transaction"
    BAD_TRANSACTION_TIMEOUT = "no transaction can take that long"
    CONCURRENT_TRANSACTION = "the transaction before is still being ended"
    WRONG_PRODUCER_ID = "the transactional id belongs to another producer id"
    UNKNOWN_TRANSACTION = "nothing is known of that transactional id"
    TRANSACTIONAL_ID_NEEDED = "the entry is transactional, and no transactional id came with it"

    # Reading
    POSITION_OUT_OF_RANGE = "the log does not hold that position"
    UNKNOWN_CURSOR = "there is no such cursor"
    CURSOR_EXISTS = "there is a cursor of that name already"
    BAD_CURSOR_NAME = "no cursor can have that name"
    TOO_MANY_RANGES = "the cursor has as many acknowledged ranges as it may"

    # Groups
    UNKNOWN_MEMBER = "the group has no such member"
    MEMBER_ID_NEEDED = "join again under the member id given"
    ILLEGAL_GENERATION = "the group is at another generation"
    REBALANCING = "the group is being rebalanced"
    INCONSISTENT_PROTOCOL = "the member has no protocol in common with the group"
    BAD_SESSION_TIMEOUT = "no session can be that short or long"
    FENCED_INSTANCE = "a newer member has taken that instance's place"
    FENCED_MEMBER_EPOCH = "the member is not at that epoch; it must join anew"
    STALE_MEMBER_EPOCH = "the member has moved to a newer epoch"
    UNRELEASED_INSTANCE = "the instance before has not left yet"
    UNSUPPORTED_ASSIGNOR = "there is no such assignor"
    GROUP_FULL = "the group has as many members as it takes"
    GROUP_NOT_EMPTY = "the group has members"
    UNKNOWN_GROUP = "there is no such group"
    BAD_GROUP_NAME = "no group can have that name"
    TOO_MANY_GROUPS = "there are as many groups as there may be"
    BAD_PATTERN = "that is no pattern of topic names that can be taken"
    GROUP_SUBSCRIBED = "the group is subscribed to that topic"
    UNSTABLE_OFFSET = "an offset of the group waits for the end of its transaction"
    OFFSET_METADATA_TOO_LARGE = "the text that came with the offset is too long"

    # Everything
    BAD_REQUEST = "what was asked for makes no sense"
    NOT_ALLOWED = "that is not allowed here"
    STORAGE_FULL = "the disk has no room"
    STORAGE_FAILED = "the disk did not do what it was asked"


MAYBE_STORED = frozenset({Refusal.STORAGE_FAILED})
"""Reasons that leave open whether what was asked for was done."""


class Refused(PenstockError):  # noqa: N818
    """The broker does not do it. `reason` is for doors, the text for people.

    `records` tells what is wrong with single messages of an entry, by their index, where that is known.
    """

    def __init__(self, reason: Refusal, text: str = "", records: Mapping[int, str] | None = None) -> None:
        super().__init__(text or reason.value)
        self.reason = reason
        self.text = text or reason.value
        self.records = records

    @property
    def stored(self) -> Persisted:
        """Whether what was refused may have been done all the same."""
        return Persisted.MAYBE if self.reason in MAYBE_STORED else Persisted.NO

    def __reduce__(self) -> tuple[type[Refused], tuple[Refusal, str, Mapping[int, str] | None]]:
        return type(self), (self.reason, self.text, self.records)


_BY_ERROR: tuple[tuple[type[PenstockError], Refusal], ...] = (
    (StorageFullError, Refusal.STORAGE_FULL),
    (StorageError, Refusal.STORAGE_FAILED),
    (PositionError, Refusal.POSITION_OUT_OF_RANGE),
    (ChecksumError, Refusal.CORRUPT_ENTRY),
    (DecodeError, Refusal.BAD_ENTRY),
)
"""The first row that fits counts."""


def refusal_of(error: BaseException) -> Refused:
    """The refusal that an error of the log or of an entry's format amounts to; itself if it is one.

    An error that is none of these is a fault of the broker: it is told as a disk that failed, with its text, because
    whoever asked must not believe that it was done.
    """
    if isinstance(error, Refused):
        return error
    for kind, reason in _BY_ERROR:
        if isinstance(error, kind):
            return Refused(reason, str(error))
    return Refused(Refusal.STORAGE_FAILED, f"{type(error).__name__}: {error}")
