"""Whether a copy is equal, as official consumers of what is committed see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.produce.real.reading import Headers, Read, by_partition, read_all
from tests.replicate.pair import End

COMMITTED: dict[str, Any] = {"isolation.level": "read_committed"}
UNCOMMITTED: dict[str, Any] = {"isolation.level": "read_uncommitted"}
DELIVERIES = ("exactly-once", "at-least-once")


class Content(NamedTuple):
    """A message without its place."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int


Contents = dict[int, list[Content]]
"""The messages of each partition, in order."""


def bootstrap(end: End) -> str:
    """An end's addresses as official clients want them."""
    return end.url.removeprefix("kafka://")


def contents(end: End, topic: str) -> Contents:
    """What an official consumer finds of what is committed."""
    return sorted_out(read_all(bootstrap(end), topic, **COMMITTED))


def sorted_out(found: Iterable[Read]) -> Contents:
    """Messages by partition, in order, without their places."""
    return {
        number: [Content(read.key, read.value, read.headers, read.time_ms) for read in reads]
        for number, reads in by_partition(found).items()
    }


def check_equal(copy: Contents, original: Contents) -> None:
    """Whether both hold the same messages in the same order; names the first difference."""
    assert copy.keys() == original.keys()
    for number, wanted in original.items():
        found = copy[number]
        for index, (one, other) in enumerate(zip(found, wanted, strict=False)):
            assert one == other, f"partition {number}, message {index}"
        assert len(found) == len(wanted), f"partition {number}"
