"""Readers and cursors as users have them, both faces, on an embedded broker."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import penstock
import penstock.aio
from penstock.broker.embedded import EmbeddedBroker
from penstock.consume.opening import Entry
from penstock.consume.shape import SCHEMA
from penstock.errors import ClosedError, ConfigError, PenstockError, UnknownOptionError, UnknownTopicError
from penstock.wire.property_filter import PropertyCondition
from tests.consume.faces import LIMIT_S, Face, new_id


def filled(broker: EmbeddedBroker, partitions: int = 2, count: int = 100, **fields: Any) -> str:
    """A topic with so many messages in each partition, which say where they are; its name."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with penstock.connect(broker.url, client_id=new_id()) as client:
        client.create_topic(topic, partitions)
        send(client, topic, partitions, count, **fields)
    return topic


def send(client: penstock.Client, topic: str, partitions: int, count: int, first: int = 0, **fields: Any) -> None:
    with client.producer(topic, batch_bytes_max=500) as producer:
        for number in range(partitions):
            for i in range(first, first + count):
                producer.send(b"%d-%d" % (number, i), partition=number, **fields)


def values(items: list[Any]) -> list[bytes]:
    return sorted(value for item in items for value in item.column("value").to_pylist())


def expected(partitions: int, count: int, first: int = 0) -> list[bytes]:
    return sorted(b"%d-%d" % (number, i) for number in range(partitions) for i in range(first, first + count))


def test_a_range_is_iterated(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    reader = face.connect(broker.url).reader(topic, end="latest")
    items = face.items(reader)
    assert values(items) == expected(2, 100)
    assert all(item.schema.equals(SCHEMA) for item in items)
    assert reader.positions() == {0: 100, 1: 100}
    assert reader.backlog() == {0: 0, 1: 0}
    assert reader.stats().messages_read == 200
    assert face.run(reader.read()) is None
    assert face.items(reader) == []
    assert reader.topic == topic
    assert "at its end" in repr(reader)
    face.run(reader.close())


def test_a_range_becomes_a_table(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    client = face.connect(broker.url)
    table = face.run(client.reader(topic, {1: 10}, {1: 15}, columns=["position", "value"]).read_all(LIMIT_S))
    assert isinstance(table, pa.Table)
    assert table.column("position").to_pylist() == [10, 11, 12, 13, 14]
    empty = face.run(client.reader(topic, "latest", "latest").read_all(LIMIT_S))
    assert empty.schema.equals(SCHEMA)
    assert len(empty) == 0
    with pytest.raises(ConfigError, match="a reader without an end"):
        face.run(client.reader(topic).read_all(LIMIT_S))


def test_entries_come_unopened(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1)
    reader = face.connect(broker.url).reader(topic, end="latest", unit="batch")
    entries = face.items(reader)
    assert all(isinstance(entry, Entry) for entry in entries)
    assert sum(entry.header.count for entry in entries) == 100
    assert [entry.begin for entry in entries[1:]] == [entry.end for entry in entries[:-1]]
    assert reader.stats().entries_unopened == len(entries) > 1
    with pytest.raises(ConfigError, match="entries, which have no columns"):
        _ = reader.schema


def test_a_filter_is_text_or_was_read_before(face: Face, broker: EmbeddedBroker) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with penstock.connect(broker.url, client_id=new_id()) as client:
        client.create_topic(topic, 1)
        same = penstock.BatchPolicy(same_properties={"region": ["us", "eu"]})
        with client.producer(topic, batch=same) as producer:
            for i in range(100):
                producer.send(b"%d" % i, properties={"region": "us" if i < 60 else "eu"})
        with client.producer(topic) as producer:
            for i in range(100, 110):
                producer.send(b"%d" % i, properties={"region": "us" if i % 2 else "eu"})
    client = face.connect(broker.url)
    for given in ("region = eu", PropertyCondition.parse("region in eu")):
        reader = client.reader(topic, end="latest", filter=given)
        found = sorted(int(value) for value in values(face.items(reader)))
        assert found == [*range(60, 100), *range(100, 110, 2)]
        stats = reader.stats()
        assert (stats.skipped, stats.messages_filtered) == (60, 0), "a broker that filters does not even send them"
        assert stats.messages_sifted == 5, "only where a batch is mixed"


def test_a_topic_is_followed(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    client = face.connect(broker.url)
    reader = client.reader(topic, start="latest")
    face.run(reader.ready(LIMIT_S))
    with penstock.connect(broker.url, client_id=new_id()) as sending:
        send(sending, topic, 2, 50, 100)
        items: list[Any] = []
        while sum(item.num_rows for item in items) < 100:
            items.append(face.run(reader.read(LIMIT_S)))
    assert values(items) == expected(2, 50, 100)
    with pytest.raises(TimeoutError, match=rf"nothing came of {topic} within 0\.01 s, there was nothing to be read"):
        face.run(reader.read(0.01))
    with pytest.raises(TimeoutError):
        face.run(reader.read(0))
    face.run(reader.close())
    assert face.run(reader.read()) is None
    assert face.items(reader) == []


def test_time_starts_and_ends_it(face: Face, broker: EmbeddedBroker) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with penstock.connect(broker.url, client_id=new_id()) as client:
        client.create_topic(topic, 1)
        with client.producer(topic) as producer:
            for i in range(100):
                producer.send(b"%d" % i, event_time=1_600_000_000_000 + i * 1000)

    def at(second: int) -> datetime:
        return datetime.fromtimestamp(1_600_000_000 + second, UTC)

    reader = face.connect(broker.url).reader(topic, at(20), at(30))
    assert sorted(int(value) for value in values(face.items(reader))) == list(range(20, 30))


def test_a_cursor_remembers(face: Face, broker: EmbeddedBroker) -> None:
    topic, name = filled(broker), uuid.uuid4().hex
    client = face.connect(broker.url)
    cursor = client.cursor(topic, name)
    assert (cursor.topic, cursor.name) == (topic, name)
    assert face.run(cursor.positions()) == {}
    assert face.run(cursor.backlog()) == {0: 100, 1: 100}
    reader = client.reader(topic, start=cursor, end={0: 30, 1: 40})
    face.items(reader)
    face.run(cursor.commit(reader.marks()))
    again = face.connect(broker.url).cursor(topic, name)
    assert face.run(again.positions()) == {0: 30, 1: 40}
    face.run(cursor.commit({0: penstock.Mark(31, "half way")}))
    assert face.run(again.marks())[0].note == "half way"
    rest = client.reader(topic, start=client.cursor(topic, name), end="latest")
    assert len(values(face.items(rest))) == 69 + 60
    assert face.run(cursor.reset("earliest")) == {0: 0, 1: 0}
    assert face.run(cursor.backlog()) == {0: 100, 1: 100}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unit": ({"unit": "entry"}, "unit: expected one of message, batch, found 'entry'"),
    "filter": ({"filter": "region in"}, "property filter, at its end: expected a value"),
    "filter's kind": ({"filter": 5}, "filter: expected text such as region in us, eu, found int"),
    "columns": ({"columns": ["offset"]}, "columns: expected some of topic, partition"),
    "columns of entries": ({"unit": "batch", "columns": ["value"]}, "columns: entries have none"),
    "start": ({"start": "beginning"}, "start: expected earliest, latest, a position"),
    "order": ({"start": {0: 5}, "end": {0: 3}}, "the end, 3, lies before the start, 5"),
    "partitions": ({"partitions": [-1]}, "partitions: expected numbers from 0 on"),
    "option": ({"fetch_byte_max": 5}, "there is no option 'fetch_byte_max'; the nearest is fetch_bytes_max"),
    "value of an option": ({"fetch_bytes_max": 0}, "fetch_bytes_max=0 is not possible"),
    "option of producers": ({"acks": "all"}, "acks is an option of a producer: give it there"),
    "group": ({"group.id": "g"}, "positions are kept by a cursor"),
    "reset": ({"auto_offset_reset": "latest"}, "where reading starts is said by start"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_at_once(face: Face, case: str) -> None:
    options, text = BAD[case]
    client = face.connect("kafka://127.0.0.1:1")
    with pytest.raises(ConfigError, match=text) as caught:
        client.reader("t", **options)
    assert isinstance(caught.value, UnknownOptionError) == (case in ("option", "group", "reset"))
    assert not client._core._readers


def test_names_that_are_none_are_refused(face: Face, broker: EmbeddedBroker) -> None:
    client = face.connect(broker.url)
    for kind, arguments in ((client.reader, ("",)), (client.cursor, ("", "a")), (client.cursor, ("t", ""))):
        with pytest.raises(ConfigError):
            kind(*arguments)
    cursor = client.cursor("one", "mine")
    with pytest.raises(ConfigError, match=r"a cursor of one on .* is none of other on"):
        client.reader("other", start=cursor)


def test_options_of_readers_may_be_given_to_the_client(face: Face, broker: EmbeddedBroker) -> None:
    client = face.connect(broker.url, **{"isolation.level": "read_uncommitted", "fetch_wait_ms": 77})
    reader = client.reader("t", prefetch_bytes_max="1 MiB")
    options = reader._core.fetcher._options
    assert (options.isolation, options.fetch_wait_ms, options.prefetch_bytes_max) == ("uncommitted", 77, 1 << 20)


def test_an_unknown_topic_is_told(face: Face, broker: EmbeddedBroker) -> None:
    client = face.connect(broker.url, unknown_topic_ms=100)
    reader = client.reader("nothing")
    for call in (reader.ready, reader.read, reader.read):
        with pytest.raises(UnknownTopicError):
            face.run(call(LIMIT_S))
    with pytest.raises(UnknownTopicError):
        face.run(client.cursor("nothing", "mine").positions())


def test_a_cluster_that_is_not_there_is_told(face: Face) -> None:
    reader = face.connect("kafka://127.0.0.1:1").reader("t")
    for call in (reader.ready, reader.read):
        with pytest.raises(TimeoutError, match=r"nothing came of t within 0\.2 s: .*cannot be reached"):
            face.run(call(0.2))


def test_closing_a_client_closes_its_readers_and_no_others(face: Face, broker: EmbeddedBroker) -> None:
    topic, name = filled(broker, 1), new_id()
    client, other = (face.connect(broker.url, client_id=name) for _ in range(2))
    ranged, following, theirs = client.reader(topic, end=1000), client.reader(topic), other.reader(topic)
    for reader in (ranged, following, theirs):
        assert face.run(reader.read(LIMIT_S)) is not None
    face.run(client.close())
    with pytest.raises(ClosedError, match="was closed before it was at its end"):
        face.run(ranged.read())
    assert face.run(following.read()) is None
    with penstock.connect(broker.url, client_id=new_id()) as sending:
        send(sending, topic, 1, 1, 100)
    items: list[Any] = []
    while b"0-100" not in values(items):
        items.append(face.run(theirs.read(LIMIT_S)))
    with pytest.raises(ClosedError):
        client.reader(topic)
    with pytest.raises(ClosedError):
        client.cursor(topic, "mine")


def test_a_reader_that_was_read_to_its_end_is_forgotten(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    client = face.connect(broker.url)
    reader = client.reader(topic, end="latest")
    face.items(reader)
    reader._core.fetcher.gone.result(LIMIT_S)
    assert not client._core._readers
    assert len(client._core.engine.loop.clusters) == 1
    face.run(reader.close())


def test_producers_are_not_held_up_by_readers_that_wait(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1, 1)
    client = face.connect(broker.url, fetch_wait_ms=14_000)
    reader = client.reader(topic, start="latest")
    face.run(reader.ready(LIMIT_S))
    with pytest.raises(TimeoutError):
        face.run(reader.read(0.1))
    with penstock.connect(broker.url, client_id=client._core.options.client.client_id) as sending:
        elsewhere = filled(broker, 1, 0)
        sending.producer(elsewhere).send(b"x").result(10)
        assert sending.cursor(elsewhere, "mine").backlog(10) == {0: 1}


# The face that blocks


def test_blocks_close_readers(broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1)
    with penstock.connect(broker.url, client_id=new_id()) as client:
        with client.reader(topic) as reader:
            assert reader.read(LIMIT_S) is not None
        assert reader.read() is None

    async def awaiting() -> None:
        async with penstock.aio.connect(broker.url, client_id=new_id()) as client:
            async with client.reader(topic) as reader:
                async for item in reader:
                    assert isinstance(item, pa.RecordBatch)
                    break
            assert await reader.read() is None

    asyncio.run(awaiting())


@pytest.mark.parametrize("end", [None, 1_000_000])
def test_a_reader_is_closed_from_another_thread(broker: EmbeddedBroker, end: int | None) -> None:
    topic = filled(broker, 1, 1)
    with penstock.connect(broker.url, client_id=new_id()) as client:
        reader = client.reader(topic, end=end, partitions=[0])
        begun, outcome = threading.Event(), list[Any]()

        def iterate() -> None:
            try:
                for item in reader:
                    outcome.append(item)
                    begun.set()
            except PenstockError as error:
                outcome.append(error)

        thread = threading.Thread(target=iterate)
        thread.start()
        assert begun.wait(LIMIT_S)
        reader.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert len(outcome) == (1 if end is None else 2)
        if end is not None:
            assert isinstance(outcome[1], ClosedError)


def test_reading_in_a_callback_is_refused_and_closing_is_not(broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1, 0)
    with penstock.connect(broker.url, client_id=new_id()) as client:
        reader = client.reader(topic)
        told: list[Any] = []

        def called(receipt: Any) -> None:
            for call in (lambda: reader.read(0.1), lambda: client.cursor(topic, "mine").positions(), reader.close):
                try:
                    told.append(call())
                except PenstockError as error:
                    told.append(error)

        client.producer(topic).send(b"x", callback=called).result(LIMIT_S)
        reader._core.fetcher.gone.result(LIMIT_S)
        assert isinstance(told[1], ClosedError)
        assert told[2] is None


def test_what_is_interrupted_is_not_passed_over(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(broker, 1)
    with penstock.connect(broker.url, client_id=new_id()) as client:
        reader = client.reader(topic, end="latest")
        entries = reader._core._opener._entries
        monkeypatch.setattr(type(entries), "open", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.read(LIMIT_S)
        monkeypatch.undo()
        with pytest.raises(PenstockError, match="was interrupted: KeyboardInterrupt"):
            reader.read(LIMIT_S)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_no_thread_is_used_but_the_clients_own(broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    with penstock.connect(broker.url, client_id=new_id()) as client:
        client.topics()
        before = threading.active_count()
        readers = [client.reader(topic) for _ in range(5)]
        for reader in readers:
            reader.read(LIMIT_S)
        assert threading.active_count() == before


# The face that awaits


def in_a_loop(broker: EmbeddedBroker, test: Callable[[penstock.aio.AsyncClient], Any]) -> None:
    async def run() -> None:
        async with penstock.aio.connect(broker.url, client_id=new_id()) as client:
            await test(client)

    asyncio.run(run())


def test_a_cancelled_read_takes_nothing(broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1, 0)

    async def test(client: penstock.aio.AsyncClient) -> None:
        reader = client.reader(topic)
        await reader.ready(LIMIT_S)
        for _ in range(20):
            task = asyncio.create_task(reader.read())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not reader._core.feed._listeners
        await client.producer(topic).send_and_wait(b"x")
        item = await reader.read(LIMIT_S)
        assert item is not None
        assert values([item]) == [b"x"]

    in_a_loop(broker, test)


def test_other_tasks_have_their_turn_while_there_always_is_something(broker: EmbeddedBroker) -> None:
    topic = filled(broker, 1, 500)

    async def test(client: penstock.aio.AsyncClient) -> None:
        turns = [0]

        async def count() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        reader = client.reader(topic, end="latest", unit="batch")
        seen = [entry async for entry in reader]
        counting.cancel()
        assert turns[0] >= len(seen) > 5

    in_a_loop(broker, test)


def test_the_loop_is_woken_once_for_an_answer(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(broker, 1, 0)

    async def test(client: penstock.aio.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        reader = client.reader(topic, unit="batch")
        await reader.ready(LIMIT_S)
        woken = [0]
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> Any:
            woken[0] += threading.current_thread().name.startswith("penstock")
            return wake(*arguments, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        waiting = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sender = threading.Thread(target=_send_entries, args=(broker.url, topic, 40))
        sender.start()
        seen = [await waiting]
        while len(seen) < 40:
            seen.append(await reader.read(LIMIT_S))
        sender.join()
        assert woken[0] <= 40

    in_a_loop(broker, test)


def _send_entries(url: str, topic: str, count: int) -> None:
    with penstock.connect(url, client_id=new_id()) as client, client.producer(topic, batch_count_max=1) as producer:
        for _ in range(count):
            producer.send(b"x")


def test_readers_of_many_tasks_share_a_loop(broker: EmbeddedBroker) -> None:
    topics = [filled(broker, 2, 30) for _ in range(5)]

    async def test(client: penstock.aio.AsyncClient) -> None:
        async def read(topic: str) -> int:
            return len(await client.reader(topic, end="latest").read_all(LIMIT_S))

        assert await asyncio.gather(*map(read, topics)) == [60] * 5

    in_a_loop(broker, test)


def test_both_faces_have_the_same_methods() -> None:
    from penstock.aio import AsyncCursor, AsyncReader
    from penstock.consume.cursor import Cursor
    from penstock.consume.reader import Reader

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Reader) == public(AsyncReader)
    assert public(Cursor) == public(AsyncCursor)
