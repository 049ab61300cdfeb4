"""Topics that are deleted, made anew or cut while or before they are copied: nothing is passed over in silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.config import Options, parse
from penstock.errors import GapError, UnknownTopicError
from penstock.replicate import copying as module
from penstock.replicate.translate import Translator
from tests.produce.real.reading import create, delete, read_all
from tests.replicate.pair import LIMIT_S, End, Pair, until
from tests.replicate.real.equality import COMMITTED, DELIVERIES, bootstrap, check_equal, contents
from tests.replicate.test_copying import numbered


def drop_before(end: End, topic: str, position: int) -> None:
    """Delete what lies before a position."""
    admin = AdminClient({"bootstrap.servers": bootstrap(end)})
    for future in admin.delete_records([TopicPartition(topic, 0, position)]).values():
        future.result(LIMIT_S)


def impatiently(*arguments: Any) -> Options:
    """Options by which a topic that is not known is not waited for."""
    read = parse(*arguments)
    return replace(read, producer=replace(read.producer, unknown_topic_ms=500))


def check_map(pair: Pair, topic: str) -> None:
    """Whoever reads the copy from where the map says misses nothing."""
    mapped = Translator(pair.source.client, pair.target.client, topic, lambda name: name).map_of(topic, 0)
    lasts = {read.value: read.offset for read in read_all(bootstrap(pair.target), topic, **COMMITTED)}
    places = mapped.targets_of(np.array([read.offset for read in read_all(bootstrap(pair.source), topic)]))
    assert (places >= 0).all(), f"{mapped} does not know of all messages"
    values = [read.value for read in read_all(bootstrap(pair.source), topic)]
    assert all(lasts[value] >= place for value, place in zip(values, places.tolist(), strict=True))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_messages_that_were_deleted_before_they_were_copied_are_named(pair: Pair, delivery: str) -> None:
    topic = create(bootstrap(pair.source), 1)
    pair.source.send(topic, numbered(0, 100))
    pair.copy_all(topic, name=topic, delivery=delivery)
    pair.source.send(topic, numbered(100, 200))
    drop_before(pair.source, topic, 140)
    with pytest.raises(GapError, match=f"{topic}-0.*positions 100 to 139 are missing: they were deleted") as caught:
        pair.copy_all(topic, name=topic, delivery=delivery)
    assert (caught.value.first, caught.value.next) == (100, 140)
    assert pair.target.values(topic) == numbered(0, 100)
    copying = pair.copy_all(topic, name=topic, delivery=delivery, on_gap="skip")
    assert copying.stats().missing == 40
    assert copying.metrics.snapshot().value("penstock_copy_missing_total", pipeline=topic, topic=topic) == 40
    assert pair.target.values(topic) == [*numbered(0, 100), *numbered(140, 200)]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_source_that_was_made_anew_stops_the_copy(kafkas: Pair, delivery: str) -> None:
    topic = create(bootstrap(kafkas.source), 1)
    kafkas.source.send(topic, numbered(0, 50))
    kafkas.copy_all(topic, name=topic, delivery=delivery)
    delete(bootstrap(kafkas.source), topic)
    until(lambda: topic not in kafkas.source.client.topics())
    kafkas.source.client.create_topic(topic, 1)
    kafkas.source.send(topic, numbered(50, 120))
    with pytest.raises(GapError, match="deleted and created again"):
        kafkas.copy_all(topic, name=topic, delivery=delivery)
    kafkas.copy_all(topic, name=topic, delivery=delivery, on_gap="skip")
    assert kafkas.target.values(topic) == numbered(0, 120)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_target_that_is_deleted_ends_the_copy_and_is_filled_anew(
    pair: Pair, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "parse", impatiently)
    topic = create(bootstrap(pair.source), 1)
    pair.source.send(topic, numbered(0, 50))
    with pair.copying(topic, name=topic, delivery=delivery) as copying:
        until(lambda: copying.stats().total.messages_copied == 50, copying)
        until(lambda: copying.stats().delay_ms == 0, copying)
        pair.target.client.delete_topic(topic)
        pair.source.send(topic, numbered(50, 80))
        with pytest.raises(UnknownTopicError, match=topic):
            copying.wait(LIMIT_S)
    pair.copy_all(topic, name=topic, delivery=delivery)
    check_equal(contents(pair.target, topic), contents(pair.source, topic))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_target_that_is_made_anew_is_filled_from_the_beginning(pair: Pair, delivery: str) -> None:
    topic = create(bootstrap(pair.source), 1)
    pair.source.send(topic, numbered(0, 50))
    with pair.copying(topic, name=topic, delivery=delivery) as copying:
        until(lambda: copying.stats().total.messages_copied == 50, copying)
        until(lambda: copying.stats().delay_ms == 0, copying)
        pair.target.client.delete_topic(topic)
        pair.target.client.create_topic(topic, 1)
        pair.source.send(topic, numbered(50, 80))
        until(lambda: set(pair.target.values(topic)) == set(numbered(0, 80)), copying)
        until(lambda: copying.stats().delay_ms == 0, copying)
    if delivery == "exactly-once":
        check_equal(contents(pair.target, topic), contents(pair.source, topic))
    check_map(pair, topic)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_what_comes_while_a_pipeline_that_began_at_the_end_is_down_is_copied(pair: Pair, delivery: str) -> None:
    topic = create(bootstrap(pair.source), 1)
    pair.source.send(topic, numbered(0, 30))
    with pair.copying(topic, name=topic, delivery=delivery, start="latest") as copying:
        until(lambda: [one.committed for one in copying.stats().partitions.values()] == [30], copying)
    pair.source.send(topic, numbered(30, 60))
    pair.copy_all(topic, name=topic, delivery=delivery, start="latest")
    assert pair.target.values(topic) == numbered(30, 60)
