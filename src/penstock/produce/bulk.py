"""Many messages with one call: into the lanes' batches by lists or by columns.

Messages with keys are sorted by partition first, the order within each kept. Then a run of messages goes into the open
batch of its lane, as many as it takes, the next into the next batch, and so on.

Where memory is used up the sending stops in the middle. It is written as steps that ask for memory, so that one caller
can block for it and another await it. Who gets none throws the error in here: when some messages were taken already,
the receipt tells it for each of the others; when none was, it is raised.

Runs on: the thread that sends.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from penstock.errors import MessageError, MessageTooLargeError, PenstockError
from penstock.message import Properties
from penstock.produce.batch import NO_FIELDS, Batch, SealReason
from penstock.produce.bulk_receipt import BulkReceipt, Run
from penstock.produce.incoming import FRAMING_BYTES, PAIR_BYTES, checked_pairs, checked_partition
from penstock.produce.kernel import Parcel, partitions_of, survey
from penstock.produce.lanes import UNDESIGNATED, Lanes, ProducerLane, as_ours
from penstock.produce.memory import Purse
from penstock.produce.regroup import framed_size
from penstock.produce.router import check_partition
from penstock.wire.columns import BufferColumns, Int32s, Int64s, take, to_arrow

FRAMING_BYTES_MIN = 7
"""No system's framing of one message takes less."""

Steps: TypeAlias = Generator[int, int, BulkReceipt]
"""Asks for so many bytes of memory, is sent as many, and returns the receipt in the end."""


class Source(Protocol):
    """Messages to be framed, numbered from 0."""

    def __len__(self) -> int: ...

    def fill(self, buffer: Any, start: int) -> int:
        """Frame from this one on as many as there is room for."""

    def size(self, index: int) -> int:
        """No less than what one message takes framed."""

    def properties(self, index: int) -> Any:
        """The properties of one message."""

    def key_list(self) -> Sequence[bytes | None] | None:
        """The keys, None where no message has one."""

    def largest(self) -> int:
        """No less than what the largest message takes framed."""

    def smallest(self) -> int:
        """No more than what the smallest message takes framed."""

    def value(self, index: int) -> bytes | None:
        """The value of one message."""

    def taken(self, order: Int64s) -> Source:
        """These messages in this order."""


class ListSource:
    """Messages as lists of bytes."""

    def __init__(
        self, values: Sequence[Any], keys: Sequence[Any] | None, properties: Any, times_ms: int | Sequence[int]
    ) -> None:
        self.values, shortest, longest = _bytes_list("values", values)
        self.keys = None
        self._smallest, self._largest = FRAMING_BYTES_MIN + shortest, FRAMING_BYTES + longest
        if keys is not None:
            self.keys, shortest, longest = _bytes_list("keys", keys)
            self._largest += longest
        self.pairs = properties
        self.times_ms = times_ms
        self._check()

    def __len__(self) -> int:
        return len(self.values)

    def fill(self, buffer: Any, start: int) -> int:
        """Frame from this one on as many as there is room for."""
        return int(buffer.extend(self.values, self.keys, self.pairs, self.times_ms, start))

    def size(self, index: int) -> int:
        """No less than what one message takes framed."""
        key = self.keys[index] if self.keys is not None else None
        return FRAMING_BYTES + len(self.values[index] or b"") + len(key or b"") + _pairs_size(self.properties(index))

    def properties(self, index: int) -> Any:
        """The properties of one message."""
        return self.pairs if self.pairs is None or isinstance(self.pairs, Mapping) else self.pairs[index]

    def key_list(self) -> Sequence[bytes | None] | None:
        """The keys."""
        return self.keys

    def largest(self) -> int:
        """No less than what the largest message takes framed."""
        if self.pairs is None or isinstance(self.pairs, Mapping):
            return self._largest + _pairs_size(self.pairs)
        return self._largest + max(map(_pairs_size, self.pairs), default=0)

    def smallest(self) -> int:
        """No more than what the smallest message takes framed."""
        return self._smallest

    def value(self, index: int) -> bytes | None:
        """The value of one message."""
        found: bytes | None = self.values[index]
        return found

    def taken(self, order: Int64s) -> ListSource:
        """These messages in this order."""
        at = order.tolist()
        one_for_all = self.pairs is None or isinstance(self.pairs, Mapping)
        return ListSource(
            [self.values[i] for i in at],
            None if self.keys is None else [self.keys[i] for i in at],
            self.pairs if one_for_all else [self.pairs[i] for i in at],
            self.times_ms if isinstance(self.times_ms, int) else np.asarray(self.times_ms, np.int64)[order],  # type: ignore[arg-type]
        )

    def _check(self) -> None:
        """Lists that do not fit together are refused before the first message is taken."""
        pairs = None if isinstance(self.pairs, Mapping) else self.pairs
        for field, others in (("keys", self.keys), ("properties", pairs)):
            if others is not None and len(others) != len(self.values):
                raise MessageError(
                    f"{field}: expected {len(self.values)} of them, one for each value, found {len(others)}"
                )
        if not isinstance(self.times_ms, int) and len(self.times_ms) != len(self.values):
            raise MessageError(
                f"event_times: expected {len(self.values)} of them, one for each value, found {len(self.times_ms)}"
            )


class ColumnSource:
    """Messages as columns, with properties of their own or one mapping for all."""

    def __init__(self, columns: BufferColumns, common: Properties | None = None) -> None:
        self.columns = columns
        self.common = common
        self._smallest = -1

    def __len__(self) -> int:
        return len(self.columns)

    def fill(self, buffer: Any, start: int) -> int:
        """Frame from this one on as many as there is room for."""
        return int(buffer.extend(self.columns, properties=self.common, start=start))

    def size(self, index: int) -> int:
        """No less than what one message takes framed."""
        return framed_size(self.columns, [index]) + _pairs_size(self.common)

    def properties(self, index: int) -> Any:
        """The properties of one message."""
        pairs = self.columns.properties
        if pairs is None:
            return self.common
        one = take(self.columns, np.array([index]))
        return dict(to_arrow(one).properties[0].as_py() or ())

    def key_list(self) -> Sequence[bytes | None] | None:
        """The keys."""
        keys: Sequence[bytes | None] | None = None
        if self.columns.keys is not None:
            keys = to_arrow(self.columns).key.to_pylist()
        return keys

    def largest(self) -> int:
        """No less than what the largest message takes framed."""
        columns = self.columns
        size = np.diff(columns.values.offsets).astype(np.int64)
        if columns.keys is not None:
            size = size + np.diff(columns.keys.offsets)
        if columns.properties is not None:
            pairs = columns.properties
            begins, ends = pairs.offsets[:-1], pairs.offsets[1:]
            size = size + PAIR_BYTES * (ends - begins)
            for column in (pairs.names, pairs.values):
                size = size + column.offsets[ends] - column.offsets[begins]
        return FRAMING_BYTES + int(size.max(initial=0)) + _pairs_size(self.common)

    def smallest(self) -> int:
        """No more than what the smallest message takes framed."""
        if self._smallest < 0:
            self._smallest = FRAMING_BYTES_MIN + int(np.diff(self.columns.values.offsets).min(initial=1 << 30))
        return self._smallest

    def value(self, index: int) -> bytes | None:
        """The value of one message."""
        found: bytes | None = to_arrow(take(self.columns, np.array([index]))).value[0].as_py()
        return found

    def taken(self, order: Int64s) -> ColumnSource:
        """These messages in this order."""
        return ColumnSource(take(self.columns, order), self.common)


def send_all(lanes: Lanes, source: Source, partition: int | None = None) -> Steps:
    """Put all of these messages into batches, sorted by partition unless they all go to one."""
    lanes.check_open()
    check_sizes(lanes, source)
    if partition is not None:
        check_partition(checked_partition(partition), lanes.directions.partitions or partition + 1)
    runs: list[Run] = []
    order: Int64s | None = None
    put = 0
    try:
        if partition is None and not lanes.directions.partitions:
            put = yield from _put(lanes, source, UNDESIGNATED, runs, 0)
        rest = source.taken(np.arange(put, len(source))) if put else source
        places = None if partition is not None else _places(lanes, rest)
        if places is None:
            yield from _put(lanes, rest, partition, runs, put)
        else:
            order = np.argsort(places, kind="stable")
            yield from _put_by_place(lanes, rest, places, order, runs, put)
    except Exception as error:
        if not runs:
            raise
        runs.append(_not_taken(lanes, runs[-1], len(source), as_ours("it cannot be sent", error)))
    return BulkReceipt(runs, None if order is None else _place_of(order, put))


def _place_of(order: Int64s, put: int) -> Int64s:
    """As which each message was put into batches: so many as they came, the others in this order."""
    place_of = np.arange(put + len(order))
    place_of[put + order] = np.arange(put, put + len(order))
    return place_of


def _put_by_place(
    lanes: Lanes, source: Source, places: Int32s, order: Int64s, runs: list[Run], number: int
) -> Generator[int, int, None]:
    numbers, starts = np.unique(places[order], return_index=True)
    for place, (start, stop) in zip(numbers.tolist(), itertools.pairwise([*starts.tolist(), len(order)]), strict=True):
        yield from _put(lanes, source.taken(order[start:stop]), place, runs, number + start)


def _not_taken(lanes: Lanes, last: Run, count: int, error: PenstockError) -> Run:
    """The messages behind the last that was taken, all with this outcome."""
    failed = Parcel(lanes.topic, UNDESIGNATED, lanes.home)
    failed.verdict = error
    start = last.start + last.count
    return Run(start, failed, 0, count - start)


def check_sizes(lanes: Lanes, source: Source) -> None:
    """Raise where one of these messages is larger than a message may be."""
    most = lanes.options.message_bytes_max
    if source.largest() > most:
        for index in range(len(source)):
            if source.size(index) > most:
                raise MessageTooLargeError(
                    f"message {index}: it takes {source.size(index)} bytes with key, properties and framing, and "
                    f"message_bytes_max is {most}: send less, or raise it together with the broker's limit"
                )


def _places(lanes: Lanes, source: Source) -> Int32s | None:
    """The partition of each message; None: all may go together."""
    partitions = lanes.directions.partitions
    if not partitions:
        return None
    keys = source.key_list()
    if lanes.directions.own_router is not None:
        rows = range(len(source))
        asked = [
            lanes.directions.ask_router(source.value(i), keys[i] if keys else None, source.properties(i)) for i in rows
        ]
        return np.array(asked, np.int32)
    return None if keys is None else _places_by_key(lanes, keys, partitions)


def _places_by_key(lanes: Lanes, keys: Sequence[bytes | None], partitions: int) -> Int32s:
    """Those without a key all go to one partition, so that their order among those with one is kept there."""
    without_key = 0
    if None in keys:
        with lanes.lock:
            without_key = lanes.present_locked().partition
    places = np.full(len(keys), without_key, np.int32)
    keyed = [index for index, key in enumerate(keys) if key is not None] if None in keys else range(len(keys))
    hashed = np.empty(len(keyed), np.int32)
    hash_key = lanes.directions.hash_key
    partitions_of([keys[index] for index in keyed], partitions, hash_key, hashed)  # type: ignore[misc]
    places[keyed] = hashed
    return places


def _put(lanes: Lanes, source: Source, partition: int | None, runs: list[Run], number: int) -> Generator[int, int, int]:
    """Put the messages of one partition into batches, those with the same restricted properties together; how many.

    Those for the undesignated lane are put there as long as the topic is not known: the others have a place then.
    """
    if lanes.restriction is None:
        return (yield from Alike(lanes, source, partition, runs, number).put())
    shared = [lanes.restriction.shared(source.properties(index)) for index in range(len(source))]
    start = 0
    for _, group in itertools.groupby(shared):
        stop = start + len(list(group))
        alike = source.taken(np.arange(start, stop))
        start += yield from Alike(lanes, alike, partition, runs, number + start).put()
        if start < stop:
            break
    return start


class Alike:
    """Messages that may share a batch, put into one after the other."""

    def __init__(self, lanes: Lanes, source: Source, partition: int | None, runs: list[Run], number: int) -> None:
        """`number` is that of the first, in the order in which all are put into batches."""
        self._lanes = lanes
        self._source = source
        self._partition = partition
        self._runs = runs
        self._number = number
        self._shared = lanes.restriction.shared(source.properties(0)) if lanes.restriction and len(source) else ()
        self._purse = Purse(lanes.accumulator.budget, 0)
        self._put = 0

    def put(self) -> Generator[int, int, int]:
        """Put them all into batches, asking for memory; how many it were when there is another place for the rest."""
        lanes, source = self._lanes, self._source
        try:
            while self._put < len(source):
                detached: list[Batch] = []
                try:
                    with lanes.lock:
                        lanes.check_open()
                        if self._partition == UNDESIGNATED and lanes.directions.partitions:
                            break
                        has_memory = self._fill_locked(lanes.choose_locked(self._partition), detached)
                finally:
                    lanes.seal_all(detached)
                if not has_memory:
                    self._purse.add((yield lanes.room_wanted(source.size(self._put))))
        finally:
            self._purse.empty()
        return self._put

    def _fill_locked(self, lane: ProducerLane, detached: list[Batch]) -> bool:
        """Put as many into the lane's open batch, or a new one, as it takes; False when there is no memory for one."""
        lanes, source, is_direct = self._lanes, self._source, False
        batch = lanes.fitting_locked(lane, NO_FIELDS, self._shared, detached)
        if batch is None:
            size, is_direct = self._reserve()
            if not size:
                return False
            batch = lanes.open_locked(lane, NO_FIELDS, self._shared, size)
        index, taken = lanes.fill_locked(lane, batch, source, self._put)
        if taken:
            self._runs.append(Run(self._number + self._put, batch, index, taken))
            self._put += taken
        if is_direct:
            lanes.detach_locked(lane, batch, SealReason.DIRECT, detached)
        elif self._put == len(source):
            lanes.maybe_due_locked(lane, batch, detached)
        elif not lanes.grow(batch, source.size(self._put)):
            lanes.detach_full_locked(lane, batch, detached)
        return True

    def _reserve(self) -> tuple[int, bool]:
        """Bytes for another batch, a whole batch's if they are to be had; and whether it must leave at once."""
        lanes = self._lanes
        least = lanes.opening_size(self._source.size(self._put))
        size = self._purse.pay(max(lanes.policy.bytes_max, least), least)
        is_direct = not size and lanes.options.when_full == "direct" and lanes.accumulator.budget.try_exceed(least)
        return (least, True) if is_direct else (size, False)


def _bytes_list(field: str, given: Sequence[Any]) -> tuple[list[bytes | None], int, int]:
    """These as a list of bytes, and the sizes of the shortest and the longest; names the first that is none."""
    items = _list(field, given)
    wrong, shortest, longest = survey(items)
    if wrong >= 0:
        items = [bytes(item) if isinstance(item, bytes | bytearray | memoryview) else item for item in items]
        wrong, shortest, longest = survey(items)
    if wrong >= 0:
        raise MessageError(
            f"{field}[{wrong}]: expected bytes or None, found {type(items[wrong]).__name__}; encode it or give a "
            "serializer"
        )
    return items, shortest, longest


def _list(field: str, given: Any) -> list[Any]:
    try:
        return given if type(given) is list else list(given)
    except TypeError as error:
        raise MessageError(f"{field}: expected a sequence of them, found {type(given).__name__}") from error


def checked_properties(properties: Any) -> Any:
    """One mapping for all, or a list of them; plain ones are looked at all at once, else each is."""
    if properties is None or isinstance(properties, Mapping):
        return None if properties is None else checked_pairs(properties)[0]
    pairs = _list("properties", properties)
    if set(map(type, pairs)) <= {dict, type(None)}:
        given = list(filter(None, pairs))
        names = list(itertools.chain.from_iterable(given))
        values = list(itertools.chain.from_iterable(map(dict.values, given)))
        kinds = set(map(type, values))
        if set(map(type, names)) <= {str} and kinds <= {str, bytes, type(None)}:
            texts = values if kinds <= {str} else [value for value in values if type(value) is str]
            if all(map(str.isascii, names)) and all(map(str.isascii, texts)):
                return pairs
    for index, one in enumerate(pairs):
        try:
            checked_pairs({} if one is None else one)
        except MessageError as error:
            raise MessageError(f"message {index}: {error}") from error
    return pairs


def _pairs_size(properties: Any) -> int:
    if not properties:
        return 0
    return sum(PAIR_BYTES + 3 * len(name) + 3 * len(value or "") for name, value in properties.items())
