"""What official clients store on one end is found equal on the other by official consumers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.consume.real.test_equal import CODECS, PARTITIONS, store
from tests.produce.real.reading import LIMIT_S, create
from tests.replicate.pair import Pair
from tests.replicate.real.equality import DELIVERIES, Contents, bootstrap, check_equal, contents

SHAPES = {
    "one by one": (60, {"batch.num.messages": 1}),
    "some together": (300, {"batch.num.messages": 13}),
    "large": (3000, {"linger.ms": 200, "batch.size": 900_000}),
}


def store_shapes(bootstrap: str, topic: str, seed: int) -> int:
    """Messages in batches of all sizes and codecs; how many."""
    chance = random.Random(seed)
    total = 0
    for codec in CODECS:
        for count, settings in SHAPES.values():
            asked: Any = settings
            producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5, **asked})
            for _ in range(count):
                value = chance.randbytes(chance.choice([0, 20, 500]))
                producer.produce(topic, value, b"%d" % chance.randrange(9), chance.randrange(PARTITIONS))
            assert producer.flush(LIMIT_S) == 0
            total += count
    return total


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_messages_of_all_kinds_are_copied_equal(pair: Pair, delivery: str) -> None:
    topic = create(bootstrap(pair.source), PARTITIONS)
    store(bootstrap(pair.source), topic, 200)
    copying = pair.copy_all(topic, name=topic, delivery=delivery)
    check_equal(contents(pair.target, topic), contents(pair.source, topic))
    assert copying.stats().total.messages_copied == 5 * 200


@pytest.mark.parametrize("repack", ["never", "auto", "always"])
def test_batches_of_all_sizes_are_copied_equal(pair: Pair, repack: str) -> None:
    topic = create(bootstrap(pair.source), PARTITIONS)
    total = store_shapes(bootstrap(pair.source), topic, 3)
    counts = pair.copy_all(topic, name=topic, repack=repack).stats().total
    check_equal(contents(pair.target, topic), contents(pair.source, topic))
    assert counts.messages_copied == total
    assert (counts.entries_unopened > 0) is (repack != "always")
    assert (counts.opened.total() > 0) is (repack != "never")


def without_times(found: Contents) -> Contents:
    return {number: [message._replace(time_ms=0) for message in some] for number, some in found.items()}


@pytest.mark.parametrize("repack", ["never", "always"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime", None])
def test_times_that_the_source_gave_are_its_own(pair: Pair, kind: str | None, repack: str) -> None:
    """None: the target has no such topic yet."""
    topic = create(bootstrap(pair.source), PARTITIONS, message_timestamp_type="LogAppendTime")
    store(bootstrap(pair.source), topic, 40)
    if kind is not None:
        settings = {"message.timestamp.type": kind, "retention.ms": "-1"}
        pair.target.client.create_topic(topic, PARTITIONS, settings=settings)
    pair.copy_all(topic, name=topic, repack=repack)
    original, copy = contents(pair.source, topic), contents(pair.target, topic)
    check_equal(without_times(copy), without_times(original))
    newest = max(message.time_ms for some in original.values() for message in some)
    assert all((message.time_ms < newest) is (kind == "CreateTime") for some in copy.values() for message in some)
