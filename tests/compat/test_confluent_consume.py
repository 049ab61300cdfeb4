"""confluent-kafka consumes: from any place, by time, in small portions, waiting, and past the end."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

from tests.compat.confluent import (
    TIME_MS,
    admin,
    consumer,
    create,
    outcome,
    positions,
    producer,
    read,
    send,
    shown,
    take,
    values,
)
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides

COUNT = 60


def filled(side: Side, partitions: int = 1, **settings: Any) -> str:
    """A topic with so many messages in each partition, ten in a batch, one second apart."""
    topic = create(side, "t", partitions)
    source = producer(side, linger_ms=0, batch_num_messages=10, **settings)
    for number in range(partitions):
        for first in range(0, COUNT, 10):
            batch = [{"value": b"%d" % n, "timestamp": TIME_MS + 1000 * n} for n in range(first, first + 10)]
            send(source, topic, batch, partition=number)
    return topic


@pytest.mark.parametrize(
    "place", [0, 1, 9, 10, 35, COUNT - 1, COUNT, OFFSET_BEGINNING, OFFSET_END, -2001 - 15], ids=str
)
def test_reading_starts_where_it_is_told_to(sides: Sides, place: int) -> None:
    def script(side: Side) -> Outcome:
        topic = filled(side)
        with consumer(side, enable_partition_eof=True) as source:
            source.assign([TopicPartition(topic, 0, place)])
            found: list[Any] = []
            while not found or found[-1].error() is None:
                found += take(source, 1)
            return {
                "read": values(found[:-1]),
                "then": found[-1].error().name(),
                "position": positions(source.position([TopicPartition(topic, 0)])),
            }

    assert sides.alike(script)["then"] == "_PARTITION_EOF"


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_a_place_that_is_not_there(sides: Sides, reset: str) -> None:
    def script(side: Side) -> Outcome:
        topic = filled(side)
        with consumer(side, auto_offset_reset=reset, enable_partition_eof=True) as source:
            source.assign([TopicPartition(topic, 0, 1000)])
            (first,) = take(source, 1)
            return {"first": shown(first)}

    told = sides.alike(script)
    assert told["first"].get("error") == {"earliest": None, "latest": "_PARTITION_EOF"}.get(reset, "_AUTO_OFFSET_RESET")


def test_places_are_found_by_time(sides: Sides) -> None:
    times = [0, TIME_MS - 1, TIME_MS, TIME_MS + 1, TIME_MS + 9500, TIME_MS + 33_000, TIME_MS + 59_000, TIME_MS + 60_000]

    def script(side: Side) -> Outcome:
        topic = filled(side, 2)
        with consumer(side) as source:
            asked = [[TopicPartition(topic, number, time_ms) for number in range(2)] for time_ms in times]
            return {
                str(time_ms): positions(source.offsets_for_times(each, LIMIT_S))
                for time_ms, each in zip(times, asked, strict=True)
            }

    told = sides.alike(script)
    assert [told[str(time_ms)]["0"] for time_ms in times[:6]] == [0, 0, 0, 1, 10, 33]


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_times_inside_of_batches_are_found(sides: Sides, codec: str) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        batch = [{"value": b"%d" % n, "timestamp": TIME_MS + 100 * ((n * 7) % 20)} for n in range(20)]
        send(producer(side, linger_ms=200, compression_type=codec), topic, batch)
        with consumer(side) as source:
            asked = [TIME_MS + 50 * n for n in range(0, 42, 3)]
            return {
                str(time_ms - TIME_MS): positions(
                    source.offsets_for_times([TopicPartition(topic, 0, time_ms)], LIMIT_S)
                )
                for time_ms in asked
            }

    sides.alike(script)


@pytest.mark.parametrize(
    "settings", [{"max_partition_fetch_bytes": 1}, {"fetch_max_bytes": 1000, "message_max_bytes": 1000}]
)
def test_small_portions_bring_everything(sides: Sides, settings: dict[str, int]) -> None:
    def script(side: Side) -> Outcome:
        topic = filled(side, 3)
        found = read(side, topic, 3, **settings)
        return {"read": [values([each for each in found if each.partition() == number]) for number in range(3)]}

    assert sides.alike(script)["read"] == [[str(n) for n in range(COUNT)]] * 3


def test_who_waits_for_long_is_told_of_the_first_message(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        with consumer(side, fetch_wait_max_ms=50_000, socket_timeout_ms=60_000) as source:
            source.assign([TopicPartition(topic, 0, 0)])
            before = source.poll(0.5)
            send(producer(side), topic, [b"late"])
            return {"before": before, "read": values(take(source, 1, 30))}

    assert sides.alike(script) == {"before": None, "read": ["late"]}


def test_watermarks_follow_what_is_stored_and_deleted(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = filled(side)
        client = admin(side)
        with consumer(side, enable_partition_eof=True) as source:
            place = TopicPartition(topic, 0)
            told: Outcome = {"full": source.get_watermark_offsets(place, LIMIT_S)}
            deleted = client.delete_records([TopicPartition(topic, 0, 25)])
            told["deleted"] = outcome(lambda: [each.result(LIMIT_S).low_watermark for each in deleted.values()])
            told["cut"] = source.get_watermark_offsets(place, LIMIT_S)
            source.assign([TopicPartition(topic, 0, 3)])
            told["first"] = [shown(each)["place"] for each in take(source, 1)]
        return told

    told = sides.alike(script)
    assert (told["full"], told["cut"], told["first"]) == ((0, COUNT), (25, COUNT), [[0, 25]])


def test_a_paused_partition_brings_nothing_and_goes_on(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = filled(side, 2)
        with consumer(side) as source:
            source.assign([TopicPartition(topic, number, 0) for number in range(2)])
            source.pause([TopicPartition(topic, 0)])
            first = [message.partition() for message in take(source, COUNT)]
            source.resume([TopicPartition(topic, 0)])
            rest = take(source, COUNT)
        return {"first": first, "rest": [[message.partition(), *values([message])] for message in rest]}

    told = sides.alike(script)
    assert set(told["first"]) == {1}
    assert told["rest"] == [[0, str(n)] for n in range(COUNT)]


def test_a_topic_that_does_not_exist(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        with consumer(side, allow_auto_create_topics=False, topic_metadata_refresh_interval_ms=200) as source:
            source.subscribe([side.name("nothing")])
            subscribed = [shown(each) for each in take(source, 1)]
        with consumer(side, allow_auto_create_topics=False) as source:
            asked = outcome(lambda: source.get_watermark_offsets(TopicPartition(side.name("nothing"), 0), 5))
        return {"subscribed": subscribed, "asked": asked}

    told = sides.alike(script)
    assert told["subscribed"] == [{"error": "UNKNOWN_TOPIC_OR_PART"}]


def test_an_empty_topic_and_a_deleted_one(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        told: Outcome = {"empty": values(read(side, topic))}
        client = admin(side)
        client.delete_topics([topic])[topic].result(LIMIT_S)
        with consumer(side, allow_auto_create_topics=False) as source:
            gone = outcome(lambda: source.get_watermark_offsets(TopicPartition(topic, 0), 5))
        told["gone"] = gone
        return told

    assert sides.alike(script)["empty"] == []
