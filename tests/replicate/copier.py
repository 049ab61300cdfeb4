"""A copier for tests: messages one by one, a transaction at a time, and points as a copier tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import Client
from penstock.replicate.point_log import PointWriter
from penstock.replicate.position_map import Point
from penstock.wire.protocol import Mark, Partition

LIMIT_S = 60.0


class SmallCopier:
    """Copies one topic."""

    def __init__(
        self, source: Client, target: Client, alias: str, topic: str, renamed: str, keep: Callable[[bytes], bool]
    ) -> None:
        self.group = f"penstock.{alias}"
        self._source = source
        self._topic = topic
        self._renamed = renamed
        self._keep = keep
        self._points = PointWriter(target, alias)
        self._log = target.metadata([renamed]).topics[renamed].id
        self._producer = target.producer(renamed, transactional_id=f"{alias}-{topic}")
        self._next = dict.fromkeys(range(source.partitions(topic)), 0)
        for number, position in self._next.items():
            self._tell(number, Point(position, 0))

    def close(self) -> None:
        self._producer.close()
        self._points.close()

    def copy(self, number: int, end: int, *, abort: bool = False) -> None:
        """Copy one partition up to a position, in one transaction; or all but its end."""
        with self._source.reader(self._topic, {number: self._next[number]}, {number: end}) as reader:
            rows = reader.read_all(LIMIT_S).select(["position", "value"]).to_pylist()
        with self._producer.transaction() as transaction:
            self._send(number, [row for row in rows if self._keep(row["value"])])
            if abort:
                transaction.abort()
                return
            transaction.send_offsets({(self._renamed, number): Mark(end)}, group=self.group)
        self._next[number] = end

    def _send(self, number: int, rows: list[dict[str, Any]]) -> None:
        receipts = [self._producer.send(row["value"], partition=number) for row in rows]
        self._producer.flush(LIMIT_S)
        expected: Point | None = None
        for row, receipt in zip(rows, receipts, strict=True):
            stored = receipt.result(LIMIT_S)
            assert isinstance(stored.position, int)
            point = Point(row["position"], stored.position)
            if point != expected:
                self._tell(number, point)
            expected = Point(point.source + 1, point.target + 1)

    def _tell(self, number: int, point: Point) -> None:
        self._points.tell(Partition(self._topic, number), point, self._log).result(LIMIT_S)
