"""What scripts do with confluent-kafka, in few words; errors become the names of their codes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from penstock.wire.kafka.header import parse_header
from tests.compat import raw
from tests.compat.sides import LIMIT_S, Side, text

QUIET: dict[str, Any] = {"log_level": 0}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SPEC: Any = OffsetSpec  # whose makers say nothing of types
TIME_MS = 1_700_000_000_000


def admin(side: Side) -> AdminClient:
    """One for each broker, and kept: its answers end with it."""
    return _admin(side.bootstrap)


@cache
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({**QUIET, "bootstrap.servers": bootstrap})


def create(side: Side, part: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A topic that exists on return and has a leader; messages of any age stay in it."""
    name = side.name(part)
    settings = {"retention.ms": "-1", **(config or {})}
    admin(side).create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(LIMIT_S)
    raw.settle(side.address, name, partitions)
    return name


def producer(side: Side, **settings: Any) -> Producer:
    """Settings with underscores for dots."""
    return Producer({**QUIET, "bootstrap.servers": side.bootstrap, **dotted(settings)})


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def send(source: Producer, topic: str, values: Iterable[Any], **more: Any) -> list[dict[str, Any]]:
    """Send all and wait; what was reported of each, in the order of sending."""
    reports: dict[int, tuple[Any, Any]] = {}

    def note(number: int) -> Callable[[Any, Any], None]:
        return lambda error, message: reports.__setitem__(number, (error, message))

    count = 0
    for count, value in enumerate(values, 1):
        fields = value if isinstance(value, dict) else {"value": value}
        source.produce(topic, on_delivery=note(count), **{**more, **fields})
    over = time.monotonic() + LIMIT_S
    while len(reports) < count:
        assert time.monotonic() < over, f"{count - len(reports)} messages without an outcome"
        with suppress(KafkaException):  # a fatal error is raised here as well
            source.flush(0.2)
    return [reported(*reports[number]) for number in range(1, count + 1)]


def reported(error: KafkaError | None, message: Any) -> dict[str, Any]:
    if error is not None:
        return {"error": error.name()}
    return {"partition": message.partition(), "offset": message.offset()}


@contextmanager
def consumer(side: Side, **settings: Any) -> Iterator[Consumer]:
    """A consumer that reads from the start unless told otherwise, closed at the end."""
    base = {
        **QUIET,
        "bootstrap.servers": side.bootstrap,
        "group.id": side.name("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 5,
    }
    opened = Consumer({**base, **dotted(settings)})
    try:
        yield opened
    finally:
        opened.close()


def take(source: Consumer, count: int, limit_s: float = LIMIT_S) -> list[Any]:
    """So many messages or errors, fewer when the time is up."""
    taken: list[Any] = []
    over = time.monotonic() + limit_s
    while len(taken) < count and time.monotonic() < over:
        taken += source.consume(count - len(taken), 0.2)
    return taken


def read(side: Side, topic: str, partitions: int = 1, offset: int = 0, **settings: Any) -> list[Any]:
    """All messages of a topic from an offset to the end of each partition."""
    with consumer(side, enable_partition_eof=True, check_crcs=True, **settings) as source:
        source.assign([TopicPartition(topic, number, offset) for number in range(partitions)])
        found: list[Any] = []
        ended: set[Any] = set()
        over = time.monotonic() + LIMIT_S
        while len(ended) < partitions:
            assert time.monotonic() < over, f"only {sorted(ended)} of {topic} were read to their end"
            for message in source.consume(1000, 0.2):
                if (error := message.error()) is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif not error.retriable():
                    raise KafkaException(error)
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def shown(message: Any) -> dict[str, Any]:
    """All that a message has."""
    if (error := message.error()) is not None:
        return {"error": error.name()}
    kind, time_ms = message.timestamp()
    return {
        "place": [message.partition(), message.offset()],
        "key": text(message.key()),
        "value": text(message.value()),
        "headers": [[name, text(value)] for name, value in message.headers() or ()],
        "time": [kind, time_ms],
    }


def values(messages: Sequence[Any]) -> list[str | None]:
    return [text(message.value()) for message in messages]


def outcome_of(future: Future[Any], show: Callable[[Any], Any] = lambda _: "done") -> Any:
    """What a future brings, or the name of its error."""
    return outcome(lambda: show(future.result(LIMIT_S)))


def outcomes(futures: Mapping[Any, Future[Any]], show: Callable[[Any], Any] = lambda _: "done") -> dict[str, Any]:
    return {str(getattr(key, "name", key)): outcome_of(future, show) for key, future in futures.items()}


def outcome(call: Callable[[], Any]) -> Any:
    """What a call brings, or the name of its error."""
    try:
        return call()
    except KafkaException as error:
        return {"error": error.args[0].name()}


def positions(partitions: Iterable[TopicPartition]) -> dict[str, Any]:
    """Offsets, and metadata where there is some, by partition."""
    return {
        str(each.partition): each.error.name()
        if each.error
        else [each.offset, each.metadata]
        if each.metadata
        else each.offset
        for each in partitions
    }


def until_count(side: Side, topic: str, count: int) -> list[Any]:
    """The topic's messages once there are so many: what was sent with acks=0 arrives in its own time."""
    partitions = len(admin(side).list_topics(topic, timeout=LIMIT_S).topics[topic].partitions)
    over = time.monotonic() + LIMIT_S
    while len(found := read(side, topic, partitions)) < count and time.monotonic() < over:
        pass
    return found


def stored_codecs(side: Side, topic: str) -> set[str]:
    """The codecs of the batches as they are stored."""
    return {parse_header(batch).codec.value for batch in raw.stored_batches(side.address, topic)}
