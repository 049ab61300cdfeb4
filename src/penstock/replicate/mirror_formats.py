"""The records in which MirrorMaker 2 tells where messages and consumer groups are, byte for byte.

Offset syncs, in `mm2-offset-syncs.<alias>.internal`: a position of a source partition, and where it is at the target.

    key    topic           string    the topic's name at the source
           partition       int32
    value  upstream        int64     the position at the source
           downstream      int64     and at the target

Checkpoints, in `<alias>.checkpoints.internal` at the target: where a consumer group is on both sides.

    key    group           string
           topic           string    the topic's name at the target
           partition       int32
    value  version         int16     0
           upstream        int64     what the group has committed at the source
           downstream      int64     what it is to commit at the target
           metadata        string    the note that it has committed beside it

Numbers are big-endian; a string is its length in two bytes and its bytes in UTF-8. The alias names the source cluster.
Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from penstock.errors import ConfigError, DecodeError, UnsupportedError

SYNC_BYTES: Final = 16
"""What the value of an offset sync takes."""
CHECKPOINT_VERSION: Final = 0
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_SYNC = struct.Struct(">qq")
_CHECKPOINT = struct.Struct(">hqq")

Value = TypeVar("Value")


def syncs_topic(alias: str) -> str:
    """The topic at the target that holds the offset syncs of this source."""
    return f"mm2-offset-syncs.{checked_alias(alias)}.internal"


def checkpoints_topic(alias: str) -> str:
    """The topic at the target that holds the checkpoints of this source's groups."""
    return f"{checked_alias(alias)}.checkpoints.internal"


def checked_alias(alias: str) -> str:
    """The alias, if topics can be named after it."""
    if not isinstance(alias, str) or not TOPIC_NAME.fullmatch(alias):
        raise ConfigError(f"alias: expected letters, digits, dots, dashes and underscores, found {alias!r}")
    return alias


class SyncKey(NamedTuple):
    """Which partition of the source an offset sync is about."""

    topic: str
    partition: int

    def encode(self) -> bytes:
        """Its bytes."""
        return _string(self.topic) + _INT32.pack(self.partition)

    @classmethod
    def decode(cls, data: bytes) -> SyncKey:
        """The key in these bytes; DecodeError when they are none."""
        return _whole(data, lambda fields: cls(fields.string("topic"), fields.int32("partition")))


class OffsetSync(NamedTuple):
    """A position of a source partition, and where it is at the target."""

    topic: str
    partition: int
    upstream: int
    downstream: int

    def encode(self) -> tuple[bytes, bytes]:
        """Key and value."""
        return SyncKey(self.topic, self.partition).encode(), _SYNC.pack(self.upstream, self.downstream)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> OffsetSync:
        """What a record says; DecodeError when it is no offset sync."""
        return cls(*SyncKey.decode(key), *_whole(value, lambda fields: fields.numbers("upstream", _SYNC)))


class Checkpoint(NamedTuple):
    """Where a consumer group is in a partition, on both sides."""

    group: str
    topic: str
    partition: int
    upstream: int
    downstream: int
    metadata: str = ""

    def encode(self) -> tuple[bytes, bytes]:
        """Key and value."""
        key = _string(self.group) + _string(self.topic) + _INT32.pack(self.partition)
        value = _CHECKPOINT.pack(CHECKPOINT_VERSION, self.upstream, self.downstream) + _string(self.metadata)
        return key, value

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Checkpoint:
        """What a record says; DecodeError when it is no checkpoint."""
        about = _whole(key, lambda fields: (fields.string("group"), fields.string("topic"), fields.int32("partition")))
        return cls(*about, *_whole(value, _checkpoint_value))


def _checkpoint_value(fields: _Fields) -> tuple[int, int, str]:
    version = fields.int16("version")
    if version != CHECKPOINT_VERSION:
        raise UnsupportedError(0, "version", str(CHECKPOINT_VERSION), version)
    upstream, downstream = fields.numbers("upstream", _SYNC)
    return upstream, downstream, fields.string("metadata")


class _Fields:
    """Bytes that are read field after field."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def int16(self, field: str) -> int:
        return int(self.numbers(field, _INT16)[0])

    def int32(self, field: str) -> int:
        return int(self.numbers(field, _INT32)[0])

    def numbers(self, field: str, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self._bytes(field, layout.size))

    def string(self, field: str) -> str:
        at, size = self.at, self.int16(field)
        if size < 0:
            raise DecodeError(at, field, "a length of 0 or more", size)
        data = self._bytes(field, size)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(at + _INT16.size, field, "UTF-8", data) from error

    def _bytes(self, field: str, size: int) -> bytes:
        data = self.data[self.at : self.at + size]
        if len(data) < size:
            raise DecodeError(self.at, field, f"{size} bytes", len(data))
        self.at += size
        return data


def _whole(data: bytes, read: Callable[[_Fields], Value]) -> Value:
    """What these bytes hold, and nothing behind it."""
    fields = _Fields(data)
    value = read(fields)
    if fields.at < len(data):
        raise DecodeError(fields.at, "end", "no more bytes", len(data) - fields.at)
    return value


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data
