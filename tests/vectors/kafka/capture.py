"""Captures all vectors anew: `python -m tests.vectors.kafka.capture`, by hand, from the root of the checkout.

Starts a real Kafka, lets each official client produce every case with every compression, and keeps the bytes of the
partitions' log files beside what official tools say of them. See `../README.md` for what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from brokers.kafka import KafkaCluster
from tests.vectors.kafka import vector
from tests.vectors.kafka.cases import CASES, CODECS, COMPACTED_CASES, HEADERS, LARGE, NOTHING, PLAIN, TIMES, Case, Sent
from tests.vectors.kafka.official import consume, dump_segments, kafka_version
from tests.vectors.kafka.producers import CLIENTS, CONFLUENT, KAFKA_PYTHON, Client
from tests.vectors.kafka.topics import (
    COMPACTED,
    LOG_APPEND_TIME,
    closing_time_ms,
    create_topics,
    segment_path,
    wait_cleaned,
)
from tests.vectors.kafka.vector import Batch, Read, Vector

BROKER = "broker"
MIXED = "mixed"
# Messages of the past must not be cleared away, and the cleaner must not take its time.
BROKER_PROPERTIES = {"log.retention.ms": "-1", "log.cleaner.backoff.ms": "100"}


@dataclass(frozen=True, slots=True)
class Capture:
    """One segment to be: a case that a client sends to a topic of its own, once for each of `sent_codecs`."""

    file: str
    client: Client
    codec: str
    name: str
    case: Case
    sent_codecs: tuple[str, ...]
    topic_settings: dict[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return f"{self.file}.{self.name}.{self.codec}"

    @property
    def settings(self) -> dict[str, Any]:
        """What the client was told, and the topic where that matters."""
        settings: dict[str, Any] = dict(self.client.settings(self.case, ", ".join(self.sent_codecs), self.topic))
        return settings | ({"topic": self.topic_settings} if self.topic_settings else {})

    def send(self, bootstrap: str) -> None:
        """Let the client send the case."""
        for codec in self.sent_codecs:
            settings = self.client.settings(self.case, codec, self.topic)
            self.client.send(bootstrap, self.topic, self.case, self.client.common | settings)
        if self.case.after:
            send_alone(bootstrap, self.topic, *self.case.after)

    def vector(self, kafka: KafkaCluster, segment: bytes, batches: tuple[Batch, ...]) -> Vector:
        """The segment with what the consumer says of it."""
        last = batches[-1].last
        sent = {replace(message, time_ms=None): message for message in self.case.messages}
        read = [each for each in consume(kafka.bootstrap, self.topic) if each[0] <= last]
        committed = None
        if self.case.outcomes:
            seen = consume(kafka.bootstrap, self.topic, committed=True)
            committed = tuple(offset for offset, _, _ in seen if offset <= last)
        return Vector(
            file=self.file,
            codec=self.codec,
            case=self.name,
            settings=self.settings,
            segment=segment,
            batches=batches,
            sent=tuple(self.case.messages),
            read=tuple(Read(offset, time_ms, sent[content]) for offset, time_ms, content in read),
            committed=committed,
        )


def captures() -> Iterator[Capture]:
    """Everything that is to be captured."""
    for client in CLIENTS:
        cases = {**CASES, "nothing": NOTHING} if client is CONFLUENT else CASES
        for name, each in cases.items():
            case = without_null_headers(each) if client is KAFKA_PYTHON else each
            yield from (Capture(client.name, client, codec, name, case, (codec,)) for codec in case.codecs)
    yield Capture(BROKER, CONFLUENT, MIXED, MIXED, PLAIN, CODECS)
    for codec in CODECS:
        yield Capture(BROKER, CONFLUENT, codec, "log-append-time", TIMES, (codec,), LOG_APPEND_TIME)
    for codec in CODECS:
        sent_codecs, topic_codec = (("gzip",), "uncompressed") if codec == "none" else (("none",), codec)
        topic_settings = {"compression.type": topic_codec}
        yield Capture(BROKER, CONFLUENT, codec, "recompressed", HEADERS, sent_codecs, topic_settings)
        if codec in LARGE.codecs:
            yield Capture(BROKER, CONFLUENT, codec, "recompressed-large", LARGE, sent_codecs, topic_settings)
    for name, case in COMPACTED_CASES.items():
        yield from (Capture(BROKER, CONFLUENT, codec, name, case, (codec,), COMPACTED) for codec in case.codecs)


def without_null_headers(case: Case) -> Case:
    """kafka-python refuses to send a header whose value is null."""

    def kept(message: Sent) -> Sent:
        return replace(message, headers=tuple(header for header in message.headers if header[1] is not None))

    return replace(case, flushes=tuple(tuple(kept(message) for message in flush) for flush in case.flushes))


def send_alone(bootstrap: str, topic: str, *messages: Sent) -> None:
    """Send these in one batch of a producer without an id."""
    case = Case((messages,))
    CONFLUENT.send(bootstrap, topic, case, CONFLUENT.common | CONFLUENT.settings(case, "none", topic))


def main() -> None:
    """Capture everything and write the files."""
    todo = list(captures())
    with KafkaCluster(properties=BROKER_PROPERTIES, say=say) as kafka:
        create_topics(kafka, {capture.topic: capture.topic_settings for capture in todo})
        for capture in todo:
            say(capture.topic)
            capture.send(kafka.bootstrap)
        compact(kafka, [capture.topic for capture in todo if capture.topic_settings is COMPACTED])
        vectors = collect(kafka, todo)
    for file in dict.fromkeys(capture.file for capture in todo):
        write(file, [capture for capture in todo if capture.file == file], vectors)


def say(text: str) -> None:
    """Show what is going on."""
    sys.stderr.write(f"capture: {text}\n")


def compact(kafka: KafkaCluster, topics: list[str]) -> None:
    """Have the first segment of these topics cleaned."""
    for topic in topics:
        send_alone(kafka.bootstrap, topic, Sent(b"closes the segment", b"closing", time_ms=closing_time_ms()))
    wait_cleaned(kafka, topics)


def collect(kafka: KafkaCluster, todo: list[Capture]) -> dict[str, Vector]:
    """The segment of each topic, and what official tools say of it."""
    paths = {each.topic: segment_path(kafka, each.topic) for each in todo}
    batches = dump_segments(kafka, list(paths.values()))
    say("reading everything back")
    return {each.topic: each.vector(kafka, paths[each.topic].read_bytes(), batches[paths[each.topic]]) for each in todo}


def write(file: str, captured: list[Capture], vectors: dict[str, Vector]) -> None:
    """Write the file of one client."""
    client = captured[0].client
    made_by = {
        "file": file,
        "client": f"{client.name} {client.version()}",
        "broker": f"Apache Kafka {kafka_version()}",
        "settings": client.common,
    }
    vector.save(vector.HERE / f"{file}.json", made_by, [vectors[each.topic] for each in captured])


if __name__ == "__main__":
    main()
