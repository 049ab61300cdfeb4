"""The shape of an exchange: a neutral request becomes a body of some version, and its answer neutral words again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from penstock.errors import DecodeError
from penstock.wire.entry import Buffer
from penstock.wire.kafka import schema
from penstock.wire.kafka.versions import Api
from penstock.wire.protocol import Partition

MILLISECOND = timedelta(milliseconds=1)

T = TypeVar("T")


class Told(NamedTuple):
    """An answer, and how long the broker asks to be left alone."""

    answer: Any
    throttle_ms: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One kind of request. Both functions get request and version; `decode` also the frame and where to read."""

    api: Api
    encode: Callable[[Any, int], Sequence[Buffer]]
    decode: Callable[[Any, int, memoryview, int], Told]
    needs: str | None = None
    """A feature without which a broker is not asked."""


def control(api: Api, say: Callable[[Any, int], Any], hear: Callable[[Any, Any], Any]) -> Exchange:
    """An exchange by kio's schemas: `say` makes the request, `hear` turns kio's answer into neutral words."""

    def encode(request: Any, version: int) -> Sequence[Buffer]:
        return [schema.encode(api, version, say(request, version))]

    def decode(request: Any, version: int, data: memoryview, at: int) -> Told:
        answer = schema.decode(api, version, data, at)
        throttle = getattr(answer, "throttle_time", timedelta())
        return Told(hear(request, answer), throttle // MILLISECOND)

    return Exchange(api, encode, decode)


def elements(array: Sequence[T] | None, field: str) -> Sequence[T]:
    """An array that must not be null."""
    if array is None:
        raise DecodeError(0, field, "an array", "null")
    return array


def only(array: Sequence[T] | None, field: str) -> T:
    """The one element of an array that must have one."""
    if array is None or len(array) != 1:
        raise DecodeError(0, field, "one element", "null" if array is None else f"{len(array)} elements")
    return array[0]


def check_told(asked: Iterable[Partition], told: Mapping[Partition, object]) -> None:
    """An answer is about the partitions that were asked about, all of them and no others."""
    if (wanted := set(asked)) != told.keys():
        expected, found = (", ".join(sorted(map(str, partitions))) for partitions in (wanted, told))
        raise DecodeError(0, "partitions", expected or "none", found or "none")


def by_topic(partitions: Iterable[Partition]) -> Mapping[str, Sequence[Partition]]:
    """Partitions grouped as Kafka's requests name them."""
    groups: dict[str, list[Partition]] = {}
    for partition in partitions:
        groups.setdefault(partition.topic, []).append(partition)
    return groups
