"""What a fetch can wish for beside the fields that Kafka's protocol gives it: entries that the broker has chosen.

A request of a compact version ends with tags, and whoever does not know one of them passes it over. In a Fetch the tag
5260622 (the letters PEN) holds

    string  group      that this is read for: what its settings filter is filtered here too; compact, or null
    string  filter     a property filter: entries none of whose messages match are not wanted; compact, or null

It is sent only to brokers that have said in their greeting that they heed it, by the feature `penstock.filter.version`,
so that no other broker ever sees it. Whoever reads judges what comes all the same: a broker may heed as much of it as
it likes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import DecodeError
from penstock.wire.kafka.primitives import NO_TAGS, compact_string, read_string, read_uvarint, uvarint
from penstock.wire.property_filter import FILTER_CHARS_MAX

FILTER_FEATURE: Final = "penstock.filter.version"
FILTER_LEVEL: Final = 1
WISH_TAG: Final = 0x50454E
GROUP_CHARS_MAX: Final = (1 << 15) - 1
"""No request names a longer group."""


class Wish(NamedTuple):
    """What a fetch wishes for."""

    group: str | None = None
    filter: str | None = None


NO_WISH: Final = Wish()


def wish_tags(wish: Wish) -> bytes:
    """The tags of a request that wishes for this."""
    group, condition = _heeded(wish)
    if group is None and condition is None:
        return NO_TAGS
    told = compact_string(group) + compact_string(condition)
    return uvarint(1) + uvarint(WISH_TAG) + uvarint(len(told)) + told


def read_wish(data: memoryview, at: int) -> Wish:
    """What the tags that stand there wish for; all others are passed over."""
    wish = NO_WISH
    count, at = read_uvarint(data, at)
    for _ in range(count):
        start = at
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > len(data) - at:
            raise DecodeError(start, "tag", f"{len(data) - at} bytes at most", size)
        if tag == WISH_TAG:
            wish = _wish(data[: at + size], at)
        at += size
    return wish


def _wish(data: memoryview, at: int) -> Wish:
    group, at = read_string(data, at, True)
    condition, _end = read_string(data, at, True)
    return _heeded(Wish(group, condition))


def _heeded(wish: Wish) -> Wish:
    """The wish without what is too long to be heeded."""
    group, condition = wish
    return Wish(
        group if group is None or len(group) <= GROUP_CHARS_MAX else None,
        condition if condition is None or len(condition) <= FILTER_CHARS_MAX else None,
    )
