"""ApiVersions: what is served, told once as bytes and then again as it is; by hand, so that the first answer is fast.

    request   from 3   software name string | software version string
    answer             error i16 | requests [ key i16 | oldest i16 | newest i16 ]
              from 1   throttle ms i32
              from 3   tags: 0 supported [ feature string | lowest i16 | highest i16 ], 1 epoch i64,
                       2 finalized [ feature string | highest i16 | lowest i16 ]

From version 3 on strings and arrays are compact, and every structure ends with tags; the answer's header has none ever.

A version of it that is not served is answered in version 0 with UNSUPPORTED_VERSION and the list all the same, so that
the client can ask again in one that is.

Finalized features tell clients how transactions work here: `transaction.version` 2 means that the broker enlists
partitions by itself and that each transaction ends with a new epoch. That a feature can be off altogether is told from
version 4 on only, since clients before it refuse a lowest level of 0. One feature is Penstock's own: that readers may
say what they wish for (`wire/kafka/wishes.py`).
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Final, NamedTuple

from penstock.broker.server.kafka.apis import TABLE
from penstock.broker.server.kafka.codec import finish_answer
from penstock.broker.server.kafka.codes import NONE, NUMBERS
from penstock.broker.server.kafka.dispatch import Context
from penstock.wire.kafka.primitives import NO_TAGS, compact_string, read_string, skip_tags, uvarint
from penstock.wire.kafka.wishes import FILTER_FEATURE, FILTER_LEVEL

UNSERVED: Final = -1
SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
THROTTLE_FROM: Final = 1
FLEXIBLE_FROM: Final = 3
FEATURES_OFF_FROM: Final = 4
SUPPORTED, EPOCH, FINALIZED = 0, 1, 2
NO_THROTTLE: Final = bytes(4)
FEATURES_EPOCH: Final = 1
HEAD_BYTES: Final = 8

INT16 = struct.Struct(">h")
INT16S = struct.Struct(">hh")
ROW = struct.Struct(">hhh")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")


class Feature(NamedTuple):
    """A feature of the cluster: the levels that are served, and the one that holds."""

    name: str
    lowest: int
    highest: int
    level: int


FEATURES: Final = (
    Feature("transaction.version", 0, 2, 2),
    Feature("group.version", 0, 1, 1),
    Feature(FILTER_FEATURE, FILTER_LEVEL, FILTER_LEVEL, FILTER_LEVEL),
)


def api_versions(body: memoryview, at: int, context: Context) -> None:
    """Answer what is served."""
    version, code = context.version, NONE
    if version == UNSERVED:
        version, code = 0, NUMBERS["UNSUPPORTED_VERSION"]
    elif version >= FLEXIBLE_FROM and not _is_named(body, at):
        code = NUMBERS["INVALID_REQUEST"]
    answer = bytearray(HEAD_BYTES) + told(version, code)
    context.slot.answer((finish_answer(answer, context.correlation),))


def _is_named(body: memoryview, at: int) -> bool:
    """Whether the client's software has a name and a version."""
    name, at = read_string(body, at, True)
    number, at = read_string(body, at, True)
    skip_tags(body, at)
    return all(text is not None and SOFTWARE.fullmatch(text) for text in (name, number))


@cache
def told(version: int, code: int) -> bytes:
    """The body of the answer."""
    rows = [ROW.pack(*api.told) for api in TABLE]
    throttle = NO_THROTTLE if version >= THROTTLE_FROM else b""
    if version < FLEXIBLE_FROM:
        return INT16.pack(code) + INT32.pack(len(rows)) + b"".join(rows) + throttle
    served = uvarint(len(rows) + 1) + NO_TAGS.join(rows) + NO_TAGS
    return INT16.pack(code) + served + throttle + _tags(version)


def _tags(version: int) -> bytes:
    known = [each for each in FEATURES if each.lowest or version >= FEATURES_OFF_FROM]
    supported = [compact_string(each.name) + INT16S.pack(each.lowest, each.highest) + NO_TAGS for each in known]
    finalized = [compact_string(each.name) + INT16S.pack(each.level, each.level) + NO_TAGS for each in FEATURES]
    tags = [(EPOCH, INT64.pack(FEATURES_EPOCH)), (FINALIZED, uvarint(len(finalized) + 1) + b"".join(finalized))]
    if supported:
        tags.insert(0, (SUPPORTED, uvarint(len(supported) + 1) + b"".join(supported)))
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in tags)
