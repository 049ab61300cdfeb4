"""What tests on a real Kafka do often: make a topic, send a batch, keep to certain versions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

from penstock.wire.compression import Codec
from penstock.wire.entry import UNSTAMPED, Stamp
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.versions import Api
from penstock.wire.protocol import (
    ClusterView,
    CreateTopic,
    Done,
    Identity,
    LookUp,
    Outgoing,
    Partition,
    Publish,
    TopicView,
    Verdict,
)
from tests.wire.kafka.talk import LIMIT_S, Talk

numbers = itertools.count()


def versions_of(api: Api) -> range:
    return range(api.oldest, api.newest + 1)


def new_name(what: str) -> str:
    """A name that no other test uses."""
    return f"{what}-{next(numbers)}"


def look_up(broker: Talk, topic: str) -> TopicView:
    cluster = broker.ask(LookUp(frozenset({topic})))
    assert isinstance(cluster, ClusterView)
    return cluster.topics[topic]


def new_topic(broker: Talk, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
    """A topic of which all partitions can be written to.

    A broker says that it leads a partition a little before it does, so it is asked to store what it cannot.
    """
    topic = new_name("topic")
    assert broker.ask(CreateTopic(topic, partitions, 1, settings or {})) == Done()
    damaged = damage(batch(topic, b"x"))
    request = Publish([damaged._replace(partition=Partition(topic, number)) for number in range(partitions)])
    deadline = time.monotonic() + LIMIT_S
    while {error.code for error in broker.ask_once(request).values()} != {"CORRUPT_MESSAGE"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return topic


def stamp(identity: Identity, sequence: int, transactional: bool = False) -> Stamp:
    return Stamp(identity.producer, identity.epoch, sequence, transactional)


def batch(topic: str, *values: bytes, stamp: Stamp = UNSTAMPED, codec: Codec = Codec.NONE) -> Outgoing:
    """A batch for partition 0."""
    buffer = BatchBuffer()
    for value in values:
        buffer.append(value, b"key")
    buffer.seal(codec)
    return Outgoing(Partition(topic, 0), *buffer.stamp(stamp))


def damage(outgoing: Outgoing) -> Outgoing:
    """The same batch with a byte that its checksum does not vouch for."""
    return outgoing._replace(payload=bytes(outgoing.payload[:-1]) + b"\xff")


def publish(broker: Talk, outgoing: Outgoing, transactional_id: str | None = None) -> Verdict:
    told = broker.ask(Publish([outgoing], transactional_id=transactional_id))
    verdict: Verdict = told[outgoing.partition]
    return verdict
