"""aiokafka, which speaks older versions than the others: produce, consume, groups, transactions, admin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from tests.compat.confluent import TIME_MS, create
from tests.compat.sides import LIMIT_S, Outcome, Script, Side, Sides, shared_out, text

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def awaited(script: Callable[[Side], Awaitable[Outcome]]) -> Script:
    """A script whose client works in an event loop of its own."""

    async def run(side: Side) -> Outcome:
        return await asyncio.wait_for(script(side), 2 * LIMIT_S)

    return lambda side: asyncio.run(run(side))


def producer(side: Side, **settings: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=side.bootstrap, **settings)


def consumer(side: Side, *topics: str, **settings: Any) -> AIOKafkaConsumer:
    base = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, "enable_auto_commit": False}
    return AIOKafkaConsumer(*topics, bootstrap_servers=side.bootstrap, **{**base, **settings})


async def take(source: AIOKafkaConsumer, count: int, limit_s: float = LIMIT_S) -> list[Any]:
    taken: list[Any] = []
    over = time.monotonic() + limit_s
    while len(taken) < count and time.monotonic() < over:
        for records in (await source.getmany(timeout_ms=200, max_records=count - len(taken))).values():
            taken += records
    return taken


async def read(side: Side, topic: str, **settings: Any) -> list[Any]:
    """Partition 0 up to where it ended when asked, for readers of this kind."""
    async with consumer(side, **settings) as source:
        place = TopicPartition(topic, 0)
        source.assign([place])
        await source.seek_to_beginning(place)
        end = (await source.end_offsets([place]))[place]
        found: list[Any] = []
        over = time.monotonic() + LIMIT_S
        while await source.position(place) < end:
            assert time.monotonic() < over, f"{topic} was not read to its end {end}"
            found += await take(source, 1000, 0.1)
        return found


async def attempt(waiting: Awaitable[Any]) -> Any:
    """What comes of it, or the name of its error."""
    try:
        return await waiting
    except KafkaError as error:
        return {"error": type(error).__name__}


def shown(record: Any) -> Outcome:
    return {
        "place": [record.partition, record.offset],
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
        "time": [record.timestamp_type, record.timestamp],
    }


def values(records: Sequence[Any]) -> list[str | None]:
    return [text(record.value) for record in records]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_aiokafka_reads_what_it_sent(sides: Sides, codec: str | None) -> None:
    messages: list[dict[str, Any]] = [
        {"value": b"plain"},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": b""},
        {"value": b"\x00\xff", "key": b"\x00", "headers": [("a", b"1"), ("a", b"2"), ("", b"")]},
        {"value": b"v" * 20_000, "key": b"k"},
    ]

    @awaited
    async def script(side: Side) -> Outcome:
        topic = create(side, "t")
        async with producer(side, compression_type=codec, enable_idempotence=True) as source:
            sent = [
                await source.send(topic, timestamp_ms=TIME_MS + number, partition=0, **message)
                for number, message in enumerate(messages)
            ]
            places = [(await each).offset for each in sent]
        return {"places": places, "read": [shown(record) for record in await read(side, topic)]}

    told = sides.alike(script)
    assert told["places"] == list(range(len(messages)))
    assert [each["value"] for each in told["read"]][:4] == ["plain", None, "", "\x00\\xff"]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_aiokafka_acknowledgements(sides: Sides, acks: Any) -> None:
    @awaited
    async def script(side: Side) -> Outcome:
        topic = create(side, "t")
        async with producer(side, acks=acks) as source:
            sent = [await source.send_and_wait(topic, b"%d" % n) for n in range(20)]
        over = time.monotonic() + LIMIT_S
        while len(found := await read(side, topic)) < 20 and time.monotonic() < over:
            pass
        return {"sent": [None if each is None else each.offset for each in sent], "read": values(found)}

    assert sides.alike(script)["read"] == [str(n) for n in range(20)]


def test_aiokafka_finds_places(sides: Sides) -> None:
    @awaited
    async def script(side: Side) -> Outcome:
        topic, place = create(side, "t"), TopicPartition(side.name("t"), 0)
        async with producer(side) as source:
            for n in range(30):
                await source.send_and_wait(topic, b"%d" % n, timestamp_ms=TIME_MS + 1000 * n)
        async with consumer(side, max_partition_fetch_bytes=100) as reader:
            reader.assign([place])
            times = [0, TIME_MS + 500, TIME_MS + 12_000, TIME_MS + 29_001]
            found = [(await reader.offsets_for_times({place: time_ms}))[place] for time_ms in times]
            told: Outcome = {
                "by time": [each and [each.offset, each.timestamp] for each in found],
                "first": list((await reader.beginning_offsets([place])).values()),
                "end": list((await reader.end_offsets([place])).values()),
            }
            reader.seek(place, 27)
            told["from 27"] = values(await take(reader, 3))
            await reader.seek_to_end(place)
            told["at the end"] = await reader.position(place)
            reader.seek(place, 1000)
            told["beyond"] = values(await take(reader, 1))
        return told

    told = sides.alike(script)
    assert told["by time"][:3] == [[0, TIME_MS], [1, TIME_MS + 1000], [12, TIME_MS + 12_000]]
    assert told["from 27"] == ["27", "28", "29"]


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, StickyPartitionAssignor], ids=["range", "sticky"])
def test_aiokafka_groups(sides: Sides, assignor: Any) -> None:
    settings: dict[str, Any] = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000}

    def settled(members: Sequence[AIOKafkaConsumer]) -> bool:
        return shared_out(([each.partition for each in member.assignment()] for member in members), 4)

    async def settle(members: Sequence[AIOKafkaConsumer]) -> list[int]:
        over = time.monotonic() + LIMIT_S
        while not settled(members) and time.monotonic() < over:
            for member in members:
                await member.getmany(timeout_ms=20)
        return sorted(len(member.assignment()) for member in members)

    @awaited
    async def script(side: Side) -> Outcome:
        topic = create(side, "t", 4)
        more = {**settings, "group_id": side.name("group"), "partition_assignment_strategy": [assignor]}
        told: Outcome = {}
        async with AsyncExitStack() as joined:
            one = await joined.enter_async_context(consumer(side, topic, **more))
            told["alone"] = await settle([one])
            async with consumer(side, topic, **more) as two:
                told["two"] = await settle([one, two])
            told["left"] = await settle([one])
            await one.commit({TopicPartition(topic, 2): (7, "note")})
            told["committed"] = [await one.committed(TopicPartition(topic, number)) for number in range(4)]
        return told

    told = sides.alike(script)
    assert told == {"alone": [4], "two": [2, 2], "left": [4], "committed": [None, None, 7, None]}


def test_aiokafka_transactions(sides: Sides) -> None:
    @awaited
    async def script(side: Side) -> Outcome:
        topic = create(side, "t")
        async with producer(side, transactional_id=side.name("tx")) as source:
            async with source.transaction():
                await source.send_and_wait(topic, b"a")
                await source.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, side.name("group"))
            await source.begin_transaction()
            await source.send_and_wait(topic, b"b")
            open_one = values(await read(side, topic, isolation_level="read_committed"))
            await source.abort_transaction()
            async with source.transaction():
                await source.send_and_wait(topic, b"c")
        async with consumer(side, group_id=side.name("group")) as reader:
            committed = await reader.committed(TopicPartition(topic, 0))
        return {
            "open": open_one,
            "committed": values(await read(side, topic, isolation_level="read_committed")),
            "all": values(await read(side, topic)),
            "offset": committed,
        }

    assert sides.alike(script) == {"open": ["a"], "committed": ["a", "c"], "all": ["a", "b", "c"], "offset": 5}


def test_aiokafka_fences(sides: Sides) -> None:
    @awaited
    async def script(side: Side) -> Outcome:
        topic = create(side, "t")
        old, new = (producer(side, transactional_id=side.name("tx")) for _ in range(2))
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait(topic, b"left")
        async with new:
            async with new.transaction():
                await new.send_and_wait(topic, b"new")
            told = {"old sends": await attempt(old.send_and_wait(topic, b"late"))}
            told["old commits"] = await attempt(old.commit_transaction())
        await attempt(old.stop())
        return {**told, "committed": values(await read(side, topic, isolation_level="read_committed"))}

    told = sides.alike(script)
    assert told["committed"] == ["new"]
    assert "error" in told["old sends"]


def test_aiokafka_administers(sides: Sides) -> None:
    @awaited
    async def script(side: Side) -> Outcome:
        client = AIOKafkaAdminClient(bootstrap_servers=side.bootstrap)
        await client.start()
        try:
            return await administered(side, client)
        finally:
            await client.close()

    told = sides.alike(script)
    assert told["described"][0]["partitions"] == [[0, 1], [1, 1], [2, 1]]


async def administered(side: Side, client: AIOKafkaAdminClient) -> Outcome:
    topic = side.name("t")
    told: Outcome = {}

    def codes(response: Any) -> Any:
        return [[each[0], each[1]] for each in response.topic_errors]

    made = [NewTopic(topic, 2, 1, topic_configs={"retention.ms": "-1"}), NewTopic(topic + "/bad", 1, 1)]
    told["made"] = codes(await client.create_topics(made))
    told["listed"] = topic in await client.list_topics()
    grown = await client.create_partitions({topic: NewPartitions(3)})
    told["grown"] = [each[1] for each in grown.topic_errors]
    async with producer(side) as source:
        await source.send_and_wait(topic, b"a", partition=0)
        await source.send_and_wait(topic, b"b", partition=0)
    deleted = await attempt(client.delete_records({TopicPartition(topic, 0): RecordsToDelete(1)}))
    told["deleted records"] = sorted(deleted.values()) if isinstance(deleted, dict) else deleted
    told["described"] = [
        {
            "error": each["error_code"],
            "partitions": sorted([one["partition"], one["leader"]] for one in each["partitions"]),
        }
        for each in await client.describe_topics([topic])
    ]
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    (answer,) = await client.describe_configs([resource])
    told["settings"] = sorted(
        [name, value] for name, value, *_ in answer.resources[0][4] if name in ("retention.ms", "max.message.bytes")
    )
    async with consumer(side, topic, group_id=side.name("group")) as member:
        await member.commit({TopicPartition(topic, 0): 2})
        told["groups"] = [each for each in await client.list_consumer_groups() if each[0] == side.name("group")]
        (described,) = await client.describe_consumer_groups([side.name("group")])
        told["group"] = [[group[0], group[2], group[3], len(group[5])] for group in described.groups]
        offsets = await client.list_consumer_group_offsets(side.name("group"))
        told["offsets"] = sorted([place.partition, offset.offset] for place, offset in offsets.items())
    told["deleted"] = codes_of_deletion(await client.delete_topics([topic]))
    return told


def codes_of_deletion(response: Any) -> list[Any]:
    return [each[1] for each in response.topic_error_codes]
