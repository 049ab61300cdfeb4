"""Messages as plain values, as record batches, and as topics: what tests of `verify` compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

import penstock
from penstock.consume.shape import SCHEMA
from penstock.replicate.comparison import COLUMNS

LIMIT_S = 60.0
TIME_MS = 1_700_000_000_000
ROWS = pa.schema([SCHEMA.field(name) for name in COLUMNS])
topics = itertools.count()


class Message(NamedTuple):
    """One message; without `sent`, the log gave its time."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    properties: tuple[tuple[str, bytes | None], ...] = ()
    time_ms: int = TIME_MS
    sent: bool = True


def numbered(count: int, **fields: Any) -> list[Message]:
    """So many messages, each unlike all others."""
    return [Message(b"k%d" % n, b"v%d" % n, (("n", b"%d" % n),), TIME_MS + n)._replace(**fields) for n in range(count)]


def changed(messages: Sequence[Message], at: int, **fields: Any) -> list[Message]:
    """The same with one that is other."""
    return [*messages[:at], messages[at]._replace(**fields), *messages[at + 1 :]]


def rows(messages: Sequence[Message], first: int = 0, step: int = 1) -> pa.RecordBatch:
    """Messages as one record batch, at positions from `first` on."""
    columns = [
        pa.array(range(first, first + step * len(messages), step), pa.int64()),
        pa.array([message.time_ms for message in messages], pa.int64()).cast(ROWS.field("event_time").type),
        pa.array([not message.sent for message in messages], pa.bool_()),
        pa.array([message.key for message in messages], pa.binary()),
        pa.array([message.value for message in messages], pa.binary()),
        pa.array([list(message.properties) for message in messages], ROWS.field("properties").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def cut(batch: pa.RecordBatch, sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """A record batch in pieces of these sizes, over and over; some may be empty."""
    at = 0
    for size in itertools.cycle(sizes):
        if at >= batch.num_rows:
            return
        yield batch.slice(at, size)
        at += size


class Topics:
    """Topics of one broker, and the client that fills them."""

    def __init__(self, client: penstock.Client) -> None:
        self.client = client

    def create(self, partitions: int = 1, **settings: str) -> str:
        name = f"verified-{next(topics)}"
        dotted = {setting.replace("_", "."): value for setting, value in settings.items()}
        self.client.create_topic(name, partitions, settings=dotted)
        return name

    def filled(self, messages: Sequence[Message], batch: int = 1000, **settings: str) -> str:
        """A topic of one partition with these messages, so many in a batch."""
        name = self.create(1, **settings)
        self.send(name, messages, batch_count_max=batch)
        return name

    def send(self, topic: str, messages: Sequence[Message], partition: int = 0, **options: Any) -> None:
        with self.client.producer(topic, **options) as producer:
            for message in messages:
                send(producer.send, message, partition)


def send(sending: Callable[..., Any], message: Message, partition: int = 0) -> None:
    properties = dict(message.properties)
    sending(message.value, message.key, properties, event_time=message.time_ms, partition=partition)
