"""The points of a copy, kept at its target: written while it goes on, read into position maps by whoever asks.

They are offset syncs in MirrorMaker's format, in a topic of one partition that forgets nothing. The copier writes them
as any producer does, and not within the transactions that carry the messages: one that stays open would hold up the
points of all partitions. So it can happen that a copier whose place was taken tells a point late, when its successor
has told others. Each point therefore carries the id of the target's topic, as a property that other tools pass over:
in one log positions only rise, and a point that falls behind is late; and points of a topic that was deleted and made
anew are not mixed with those of the old one. A cluster that has no such ids leaves it out, and late points unnoticed.

A copier keeps this order, on which readers of the map rely:

1. A point is stored before messages behind it count: before their transaction is committed.
2. Without transactions they count as soon as they are stored, when their target position is known but not told. That
   may only err towards reading again. So where messages of the source are left out, the point behind them is stored
   before the next message is sent, with the target position that is expected, and told again if it comes otherwise.
3. When it begins with a partition it tells where, before it sends: the position that it reads next, and the end of the
   target's log, uncommitted messages included. So partitions in which there was nothing to copy have a point too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client import Client
from penstock.errors import DecodeError, GapError, RefusedError, UnknownTopicError
from penstock.produce.kernel import Receipt
from penstock.replicate.mirror_formats import SYNC_BYTES, OffsetSync, SyncKey, syncs_topic
from penstock.replicate.position_map import Point, PositionMap
from penstock.wire.columns import Int64s
from penstock.wire.protocol import Partition

LOG: Final = "penstock.log"
"""The property that holds the id of the target's topic."""
KEPT_FOR_EVER: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
FOLD_MIN: Final = 1 << 20
"""So many points are read before they are put into the maps; more, where the maps hold more."""
TIMEOUT: Final = 30.0


def create_missing(client: Client, topic: str, settings: Mapping[str, str]) -> bool:
    """Create a topic of one partition unless there is one; whether it was created."""
    try:
        client.partitions(topic)
    except UnknownTopicError:
        try:
            client.create_topic(topic, 1, settings=settings)
        except RefusedError as error:
            if error.code != "TOPIC_ALREADY_EXISTS":  # somebody else was faster
                raise
        return True
    return False


class PointWriter:
    """Tells the points of a copy. Runs on: any thread."""

    def __init__(self, target: Client, alias: str) -> None:
        self._topic = syncs_topic(alias)
        create_missing(target, self._topic, KEPT_FOR_EVER)
        self._producer = target.producer(self._topic)

    def __repr__(self) -> str:
        return f"<PointWriter to {self._topic}>"

    def tell(self, partition: Partition, point: Point, log: UUID | None) -> Receipt:
        """Store a point of a source partition; `log` is the id of the target's topic, None where there is none."""
        key, value = OffsetSync(*partition, *point).encode()
        return self._producer.send(value, key, None if log is None else {LOG: log.bytes}, partition=0)

    def close(self, timeout: float | None = None) -> None:
        """Store what is on its way, and end."""
        self._producer.close(timeout)


class Line(NamedTuple):
    """What points belong together: a partition of the source, and the log at the target that it was copied to."""

    partition: Partition
    log: bytes
    """The id of the target's topic; empty where it was not told."""


class PointMaps:
    """Points as they are stored, made into maps. They are taken by columns, and put into their maps many at a time."""

    def __init__(self) -> None:
        self.unreadable = 0
        """Messages that are no points."""
        self._maps: dict[Line, PositionMap] = {}
        self._lines: list[Line] = []
        self._numbers: dict[Line, int] = {}
        self._taken: list[tuple[Int64s, Int64s, Int64s]] = []  # numbers of lines, source and target positions
        self._waiting = 0

    def __len__(self) -> int:
        """How many points the maps hold."""
        return sum(map(len, self._maps.values()))

    def topics(self) -> list[str]:
        """The topics of the source that have points."""
        return sorted({line.partition.topic for line in self._maps})

    def get(self, partition: Partition, log: UUID | None) -> PositionMap:
        """The map of a source partition to this log of the target, or to one of which was not told which it is."""
        known = b"" if log is None else log.bytes
        return self._maps.get(Line(partition, known)) or self._maps.get(Line(partition, b"")) or PositionMap()

    def take(self, batch: pa.RecordBatch) -> None:
        """Take messages: their keys, values and properties, in the order in which they were stored."""
        keys, values, properties = batch.columns
        lines = self._lines_of(keys, pc.fill_null(pc.map_lookup(properties, LOG, "last"), b""))
        is_sync = np.asarray(pc.fill_null(pc.equal(pc.binary_length(values), SYNC_BYTES), False))
        syncs = values.filter(pa.array(is_sync)).cast(pa.binary(SYNC_BYTES))
        source, target = np.frombuffer(syncs.buffers()[1], ">i8").reshape(-1, 2).astype(np.int64).T
        line = lines[is_sync]
        is_point = (line >= 0) & (source >= 0) & (target >= 0)
        self.unreadable += len(batch) - int(is_point.sum())
        self._taken.append((line[is_point], source[is_point], target[is_point]))
        self._waiting += len(batch)
        if self._waiting >= FOLD_MIN + len(self):
            self.fold()

    def fold(self) -> None:
        """Put what was taken into the maps."""
        taken, self._taken, self._waiting = self._taken, [], 0
        if not taken:
            return
        line, source, target = (np.concatenate(column) for column in zip(*taken, strict=True))
        order = np.argsort(line, kind="stable")
        numbers, starts = np.unique(line[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(order, starts)[1:], strict=True):
            name = self._lines[number]
            before = self._maps.get(name, PositionMap())
            self._maps[name] = before.then(source[some], target[some], one_log=name.log != b"")

    def _lines_of(self, keys: pa.Array, logs: pa.Array) -> Int64s:
        """The number of each message's line; -1 where its key is none."""
        keys, logs = pc.fill_null(keys, b"").dictionary_encode(), logs.dictionary_encode()
        count = len(logs.dictionary)
        pairs = keys.indices.to_numpy().astype(np.int64) * count + logs.indices.to_numpy()
        found, where = np.unique(pairs, return_inverse=True)
        names, ids = keys.dictionary.to_pylist(), logs.dictionary.to_pylist()
        numbers: Int64s = np.array([self._number_of(names[one // count], ids[one % count]) for one in found], np.int64)
        return numbers[where]

    def _number_of(self, key: bytes, log: bytes) -> int:
        try:
            line = Line(Partition(*SyncKey.decode(key)), log)
        except DecodeError:
            return -1
        number = self._numbers.setdefault(line, len(self._lines))
        if number == len(self._lines):
            self._lines.append(line)
        return number


class PointLog:
    """The points of one source as the target keeps them, read up to some moment. Runs on: one thread at a time."""

    def __init__(self, target: Client, alias: str) -> None:
        self.topic = syncs_topic(alias)
        self.maps = PointMaps()
        self._target = target
        self._id: UUID | None = None
        self._next: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<PointLog of {self.topic}, {len(self.maps)} points>"

    def read_on(self, timeout: float = TIMEOUT) -> PointMaps:
        """All that was told up to now; UnknownTopicError when there is nothing where points would be."""
        view = self._target.metadata([self.topic], timeout).topics.get(self.topic)
        if view is None or isinstance(view.error, UnknownTopicError):
            raise UnknownTopicError(
                f"the target has no topic {self.topic}, where points would be: is something copied under this alias?"
            )
        if view.id != self._id:
            self._begin_anew()
            self._id = view.id
        try:
            self._read(timeout)
        except GapError:  # points were deleted before they were read: those that are left tell what is known
            self._begin_anew()
            self._read(timeout)
        return self.maps

    def _begin_anew(self) -> None:
        self.maps, self._next = PointMaps(), {}

    def _read(self, timeout: float) -> None:
        columns = ("key", "value", "properties")
        with self._target.reader(self.topic, self._next or "earliest", "latest", columns=columns) as reader:
            while (batch := reader.read(timeout)) is not None:
                self.maps.take(batch)
            self._next = reader.positions()
        self.maps.fold()
