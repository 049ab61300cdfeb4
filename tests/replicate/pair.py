"""Two clusters with a pipeline between them, for tests: what is sent to the one, what is read from the other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import penstock
from penstock.replicate.copying import Copying

LIMIT_S = 60.0
numbers = itertools.count()

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Partition, key, value, properties, time."""


class End:
    """One cluster, and a client of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = penstock.connect(url, client_id=f"end-{next(numbers)}", metadata_age_max_ms=100)

    def close(self) -> None:
        self.client.close(timeout=0)

    def send(self, topic: str, values: Sequence[bytes], **options: Any) -> None:
        """Send these messages, each with a key of its own, in batches of a few hundred bytes unless told otherwise."""
        sending = {name: options.pop(name) for name in ("properties", "partition") if name in options}
        batch = options.pop("batch", penstock.BatchPolicy(bytes_max=400))
        with self.client.producer(topic, batch=batch, **options) as producer:
            producer.send_many(list(values), [b"key-" + value for value in values], **sending).result(LIMIT_S)

    def rows(self, topic: str, partition: int | None = None) -> list[Row]:
        """All messages, partition by partition."""
        partitions = None if partition is None else [partition]
        with self.client.reader(topic, end="latest", partitions=partitions) as reader:
            table = reader.read_all(LIMIT_S)
        rows: list[Row] = [
            (
                row["partition"],
                row["key"],
                row["value"],
                tuple(row["properties"] or ()),
                int(row["event_time"].timestamp() * 1000),
            )
            for row in table.to_pylist()
        ]
        return sorted(rows, key=lambda row: row[0])

    def values(self, topic: str) -> list[bytes | None]:
        """The values of all messages, sorted."""
        return sorted((row[2] for row in self.rows(topic)), key=lambda value: value or b"")


class Pair:
    """Source and target."""

    def __init__(self, source: str, target: str) -> None:
        self.source = End(source)
        self.target = End(target)

    def close(self) -> None:
        self.source.close()
        self.target.close()

    def copying(self, topics: str | Sequence[str] = (), *, name: str, back: bool = False, **options: Any) -> Copying:
        """A pipeline from source to target, or back."""
        ends = (self.target.url, self.source.url) if back else (self.source.url, self.target.url)
        options = {"client_id": f"copy-{next(numbers)}", "commit_interval_ms": 50, **options}
        return penstock.copy(*ends, topics, name=name, **options)

    def copy_all(self, topics: str | Sequence[str] = (), *, name: str, **options: Any) -> Copying:
        """Copy what is there, and end; the pipeline, to be asked what it did."""
        with self.copying(topics, name=name, until="end", **options) as copying:
            copying.wait(LIMIT_S)
        return copying


def until(condition: Callable[[], bool], copying: Copying | None = None) -> None:
    """Wait until something holds, asking again and again; fail when a pipeline has ended before."""
    over = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < over, f"in vain: {copying and copying.stats()}"
        if copying is not None and copying.is_over:
            copying.wait(0)
        time.sleep(0.02)
