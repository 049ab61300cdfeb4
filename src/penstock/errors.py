"""The one tree of errors, and what each says about the message it befell.

    PenstockError
    ├── ConfigError                an option or a combination of options is wrong
    │   └── UnknownOptionError     no such option; names the nearest one
    ├── MessageError               this message cannot be sent as it is
    │   └── MessageTooLargeError   larger than the limit, alone
    ├── BatchStateError            a batch was asked for what its state forbids
    └── DecodeError                bytes that are not what they should be
        ├── ChecksumError          the checksum does not match the bytes
        ├── LimitError             a length above the limit, refused before allocating
        └── UnsupportedError       well formed, but of a version, codec or flag that is not served

Each class answers three questions for whoever handles it: is trying again of use (`retriable`), should the cluster's
metadata be asked for anew (`refresh_metadata`), and was the message stored (`persisted`). Errors that brokers answer
join this tree below `PenstockError`, one class per meaning; their wire codes are rows of a table in `wire`.
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


class BatchStateError(PenstockError, RuntimeError):
    """A batch was asked for something that its state forbids."""


class DecodeError(PenstockError, ValueError):
    """Bytes that are not what they should be.

    `offset` counts from the start of the bytes given to the decoder; inside a compressed payload it counts from the
    start of the decompressed records, and `field` then begins with "record".
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
