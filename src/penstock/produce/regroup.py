"""Messages that were framed together and go on apart, by columns: sorted by partition, cut in two, or some left out.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import MessageError, PenstockError
from penstock.message import Properties
from penstock.net.failures import because
from penstock.produce.batch import Batch
from penstock.produce.incoming import FRAMING_BYTES, PAIR_BYTES
from penstock.produce.kernel import partitions_of
from penstock.produce.receipts import Moved
from penstock.wire.columns import BinaryColumn, BufferColumns, Int32s, take, to_arrow

NOWHERE = -1

NewBatch: TypeAlias = Callable[[int, int], Batch]
"""Makes an empty batch for a partition (or for part number so and so) and a number of bytes."""
AskRouter: TypeAlias = Callable[[bytes | None, bytes | None, Properties | None], int]


class Arrivals(NamedTuple):
    """Which partition, or part, each message goes to; `NOWHERE` for those that have an error instead."""

    places: Int32s
    errors: Mapping[int, PenstockError]

    @classmethod
    def of(
        cls,
        columns: BufferColumns,
        partitions: int,
        hash_key: Callable[[bytes, int], int],
        without_key: int | None,
        ask_router: AskRouter,
    ) -> Arrivals:
        """By the hash of its key, or to the one partition for those without; by the user's router if there is one."""
        if without_key is None:
            return cls._by_router(columns, ask_router)
        places = np.full(len(columns), without_key, np.int32)
        keyed = _valid(columns.keys, len(columns))
        keys = [key for key in _strings(columns.keys, len(columns)) if key is not None]
        hashed = np.empty(len(keys), np.int32)
        partitions_of(keys, partitions, hash_key, hashed)
        places[keyed] = hashed
        return cls(places, {})

    @classmethod
    def _by_router(cls, columns: BufferColumns, ask_router: AskRouter) -> Arrivals:
        places = np.full(len(columns), NOWHERE, np.int32)
        errors: dict[int, PenstockError] = {}
        shown = to_arrow(columns)
        rows = zip(shown.value.to_pylist(), shown.key.to_pylist(), shown.properties.to_pylist(), strict=True)
        for index, (value, key, pairs) in enumerate(rows):
            try:
                places[index] = ask_router(value, key, dict(pairs or ()))
            except Exception as error:  # noqa: BLE001  # of a user's router; only its message has to bear it
                errors[index] = as_routed(error)
        return cls(places, errors)


def as_routed(error: Exception) -> PenstockError:
    """What a router, or looking for one's place, raised: as the error of the messages that it was asked about."""
    if isinstance(error, PenstockError):
        return error
    return because(MessageError(f"partition: the router raised {error!r}"), error)


def regroup(columns: BufferColumns, arrivals: Arrivals, new_batch: NewBatch) -> tuple[list[Batch], Moved]:
    """A batch for each place that messages go to, their order kept; and where each message went."""
    part_of = np.full(len(columns), NOWHERE, np.int32)
    place_in = np.zeros(len(columns), np.int32)
    parts: list[Batch] = []
    for place in np.unique(arrivals.places).tolist():
        if place == NOWHERE:
            continue
        indexes = np.flatnonzero(arrivals.places == place)
        part = new_batch(place, framed_size(columns, indexes))
        fill(part, take(columns, indexes))
        part_of[indexes] = len(parts)
        place_in[indexes] = np.arange(len(indexes), dtype=np.int32)
        parts.append(part)
    return parts, Moved(parts, part_of, place_in, arrivals.errors)


def halves(count: int) -> Arrivals:
    """The first half and the second."""
    places = np.zeros(count, np.int32)
    places[(count + 1) // 2 :] = 1
    return Arrivals(places, {})


def without(count: int, errors: Mapping[int, PenstockError]) -> Arrivals:
    """All but those that have an error."""
    places = np.zeros(count, np.int32)
    places[list(errors)] = NOWHERE
    return Arrivals(places, errors)


def fill(batch: Batch, columns: BufferColumns) -> None:
    """Frame all of these messages into an empty batch with room for them."""
    taken = batch.buffer.extend(columns)
    if taken != len(columns):
        raise MessageError(f"regrouping: {taken} of {len(columns)} messages found room")


def framed_size(columns: BufferColumns, indexes: npt.ArrayLike) -> int:
    """No less than what these messages take framed."""
    at = np.asarray(indexes, np.int64)
    size = FRAMING_BYTES * len(at) + _size(columns.values, at)
    if columns.keys is not None:
        size += _size(columns.keys, at)
    if columns.properties is not None:
        pairs = columns.properties
        begins, ends = pairs.offsets[at].astype(np.int64), pairs.offsets[at + 1].astype(np.int64)
        size += PAIR_BYTES * int((ends - begins).sum())
        for column in (pairs.names, pairs.values):
            size += int((column.offsets[ends].astype(np.int64) - column.offsets[begins]).sum())
    return size


def _size(column: BinaryColumn, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    return int((column.offsets[at + 1].astype(np.int64) - column.offsets[at]).sum())


def _valid(column: BinaryColumn | None, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if column is None:
        return np.zeros(count, bool)
    if column.validity is None:
        return np.ones(count, bool)
    bits = np.unpackbits(column.validity, bitorder="little")[column.bit_offset : column.bit_offset + count]
    return bits.astype(bool)


def _strings(column: BinaryColumn | None, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    valid = _valid(column, count).tolist()
    data = column.data.tobytes()
    ends = column.offsets.tolist()
    return [data[ends[i] : ends[i + 1]] if valid[i] else None for i in range(count)]
