"""A target that takes smaller batches than its source holds: they are split; what cannot be split stops the copy."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from penstock.errors import RefusedError
from penstock.replicate.consignment import Reason
from tests.consume.real.test_equal import CODECS
from tests.produce.real.reading import LIMIT_S, Read, by_partition, create, read_all
from tests.replicate.pair import End, Pair, until
from tests.replicate.real.equality import COMMITTED, DELIVERIES, bootstrap, check_equal, contents
from tests.replicate.real.raid import check_repeats
from tests.replicate.test_copying import numbered

SMALL = 20_000


def in_order(end: End, topic: str) -> dict[int, list[Read]]:
    return by_partition(read_all(bootstrap(end), topic, **COMMITTED))


def send_large(end: End, topic: str, codec: str, count: int, seed: int) -> None:
    """Messages in one large batch, of which compression saves next to nothing."""
    chance = random.Random(seed)
    settings = {"linger.ms": 500, "batch.size": 900_000, "compression.type": codec}
    producer = Producer({"bootstrap.servers": bootstrap(end), **settings})
    for number in range(count):
        value = b"%d" % number + chance.randbytes(chance.choice([100, 3000]))
        producer.produce(topic, value, b"%d" % (number % 5), 0, headers=[("codec", codec)])
    assert producer.flush(LIMIT_S) == 0


def limit(end: End, topic: str, size: int) -> None:
    """Have a topic take no larger batches from now on."""
    admin = AdminClient({"bootstrap.servers": bootstrap(end)})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("repack", ["never", "auto"])
def test_batches_that_are_too_large_are_split(pair: Pair, delivery: str, repack: str) -> None:
    topic = create(bootstrap(pair.source), 1)
    for seed, codec in enumerate(CODECS):
        send_large(pair.source, topic, codec, 150, seed)
    pair.target.client.create_topic(topic, 1, settings={"max.message.bytes": str(SMALL)})
    total = pair.copy_all(topic, name=topic, delivery=delivery, repack=repack).stats().total
    check_equal(contents(pair.target, topic), contents(pair.source, topic))
    assert total.opened[Reason.TOO_LARGE] >= len(CODECS)
    assert total.batches > total.entries_copied


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_limit_that_is_lowered_while_copying_is_found_out(pair: Pair, delivery: str) -> None:
    topic = create(bootstrap(pair.source), 1)
    send_large(pair.source, topic, "lz4", 20, 1)
    with pair.copying(topic, name=topic, delivery=delivery) as copying:
        until(lambda: copying.stats().total.messages_copied == 20, copying)
        limit(pair.target, topic, SMALL)
        send_large(pair.source, topic, "lz4", 150, 2)
        until(lambda: len(set(pair.target.values(topic))) == 170, copying)
        until(lambda: copying.stats().delay_ms == 0, copying)
    if delivery == "exactly-once":
        check_equal(contents(pair.target, topic), contents(pair.source, topic))
    else:
        check_repeats(in_order(pair.source, topic), in_order(pair.target, topic))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_message_that_is_too_large_stops_the_copy_and_is_named(pair: Pair, delivery: str, codec: str) -> None:
    topic = create(bootstrap(pair.source), 1)
    pair.source.send(topic, numbered(0, 30))
    large = random.Random(3).randbytes(2 * SMALL)
    pair.source.send(topic, [large], compression=codec)
    pair.source.send(topic, numbered(31, 60))
    pair.target.client.create_topic(topic, 1, settings={"max.message.bytes": str(SMALL)})
    with pytest.raises(RefusedError, match=f"{topic}-0: the target refuses positions 30 to 30.*max.message.bytes"):
        pair.copy_all(topic, name=topic, delivery=delivery, repack="never")
    assert set(pair.target.values(topic)) <= set(numbered(0, 30))
    limit(pair.target, topic, 8 * SMALL)
    pair.copy_all(topic, name=topic, delivery=delivery, repack="never")
    if delivery == "exactly-once":
        check_equal(contents(pair.target, topic), contents(pair.source, topic))
    assert set(pair.target.values(topic)) == {*numbered(0, 30), large, *numbered(31, 60)}
