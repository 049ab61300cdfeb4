"""A broker that really runs, and clients that do what they should not: it harms them, and nobody else."""

from __future__ import annotations

import logging
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.broker.server.kafka import codec
from penstock.broker.server.limits import ServerLimits
from penstock.broker.server.service import Service
from penstock.wire.kafka.header import split, verify
from tests.broker.batches import batch
from tests.broker.server.kafka.desk import APIS, Desk
from tests.broker.server.kafka.live import LiveClient
from tests.broker.server.kafka.samples import fill, in_all_versions, kio_bytes, kio_entity, values_of
from tests.broker.server.kafka.test_admin import create, produce

ROUNDS = 300


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connect(service: Service) -> socket.socket:
    return socket.create_connection(service.address, 30)


def test_random_bytes_from_many_connections(service: Service, client: LiveClient) -> None:
    create(client, "orders")
    chance = random.Random(5)
    for _ in range(ROUNDS):
        with connect(service) as hostile:
            size = chance.choice((0, 3, 50, 2000))
            data = chance.randbytes(size)
            if chance.random() < 0.7:
                data = struct.pack(">i", chance.choice((len(data), len(data) + 5, 1 << 20, -1))) + data
            hostile.sendall(data)
    produce(client, "orders", batch(1))


def test_requests_with_random_values_and_damage_are_no_surprise_to_any_handler(
    service: Service, client: LiveClient, caplog: pytest.LogCaptureFixture
) -> None:
    create(client, "orders", 3)
    chance = random.Random(6)
    for api, version in in_all_versions() * 2:
        kind = codec.schema_of(api, version, "request")
        body = bytearray(kio_bytes(kio_entity(kind, values_of(kind, chance))))
        for _ in range(chance.choice((0, 0, 1, 2))):
            if body:
                body[chance.randrange(len(body))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        with LiveClient(service.address) as hostile:
            hostile.socket.sendall(hostile.framed(api.name, version, bytes(body)))
            hostile.send("ApiVersions", 0)
            hostile.hear_something()
    produce(client, "orders", batch(1))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_sizes_that_are_claimed_take_no_memory(serve: Callable[..., Service]) -> None:
    service = serve(ServerLimits(request_memory_max=110 << 20))
    before = resident_bytes()
    hostiles = [connect(service) for _ in range(200)]
    for hostile in hostiles:
        hostile.sendall(struct.pack(">ihhih", 100 << 20, 0, 9, 1, -1))
    with LiveClient(service.address) as client:
        create(client, "orders")
        produce(client, "orders", batch(1, size=1_000_000))
    assert resident_bytes() - before < 50 << 20
    for hostile in hostiles:
        hostile.close()


def test_a_flood_of_requests_is_answered_in_turns(serve: Callable[..., Service]) -> None:
    service = serve(ServerLimits(requests_per_turn=10, in_flight_max=20))
    with LiveClient(service.address) as flood, LiveClient(service.address) as client:
        one = flood.frame("ApiVersions", 0)
        flood.socket.sendall(one * 2000)
        create(client, "orders")
        for _ in range(2000):
            (size,) = struct.unpack(">i", flood.take(4))
            flood.take(size)


def test_a_reader_that_takes_nothing_holds_up_nobody(serve: Callable[..., Service]) -> None:
    service = serve(ServerLimits(out_bytes_max=1 << 20), fsync="system")
    with LiveClient(service.address) as greedy, LiveClient(service.address) as client:
        create(client, "orders")
        for _ in range(8):
            produce(client, "orders", batch(1, size=1_000_000))
        wanted = [
            {"topic": "orders", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 8 << 20}]}
        ]
        terms = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1, "topics": wanted}
        asked = 20
        greedy.socket.sendall(b"".join(greedy.frame("Fetch", 11, **terms) for _ in range(asked)))
        for _ in range(20):
            produce(client, "orders", batch(1))
        for _ in range(asked):
            told = greedy.receive("Fetch", 11)
            assert len(told.responses[0].partitions[0].records) > 7_900_000


@pytest.mark.parametrize("cut", [1, 3, 6, 20])
def test_requests_that_stop_in_the_middle_wait_for_their_rest(service: Service, client: LiveClient, cut: int) -> None:
    frame = client.frame("Metadata", 9, topics=[{"name": "orders"}])
    client.socket.sendall(frame[:cut])
    with LiveClient(service.address) as other:
        other.ask("ApiVersions", 0)
    client.socket.sendall(frame[cut:])
    assert client.receive("Metadata", 9).topics[0].name == "orders"


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_damaged_produce_requests_store_good_batches_or_nothing(
    desk: Desk, caplog: pytest.LogCaptureFixture, version: int, batches: int
) -> None:
    good = batch(3, size=200)
    asked = [(number, good) for number in range(batches)]
    client = desk.client()
    values = {"acks": -1, "timeout": 1000, "topic_data": [wanted_batches(desk, version, *asked)]}
    body = kio_bytes(fill(codec.schema_of(APIS["Produce"], version, "request"), values))
    for damaged in damages(body, 7):
        client = client if not client.connection.is_closed else desk.client()
        client.send_body("Produce", version, damaged)
        client.transport.sent.clear()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    for number in range(batches):
        found = desk.partition("orders", number).log.read(0, 1 << 30)
        assert found is not None
        stored = os.pread(found.fd, found.size, found.offset)
        found.release()
        for entry in split(stored):
            assert verify(entry).count == 3


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 18])
def test_damaged_fetch_requests_are_answered_or_end_the_connection(
    desk: Desk, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    desk.put(batch(3, size=20_000))
    name = {"topic_id": desk.topics.get("orders").id} if version >= 13 else {"topic": "orders"}
    rows = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(3)]
    values = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": 0,
        "topics": [name | {"partitions": rows}],
    }
    body = kio_bytes(fill(codec.schema_of(APIS["Fetch"], version, "request"), values))
    client = desk.client()
    for damaged in damages(body, 8):
        client = client if not client.connection.is_closed else desk.client()
        client.send_body("Fetch", version, damaged)
        client.transport.sent.clear()
        desk.pass_time(4000)  # whatever it waited for is over
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(desk.hub.timers) == 0


def wanted_batches(desk: Desk, version: int, *batches: tuple[int, bytes]) -> dict[str, object]:
    name = {"topic_id": desk.topics.get("orders").id} if version >= 13 else {"name": "orders"}
    return name | {"partition_data": [{"index": number, "records": records} for number, records in batches]}


def damages(body: bytes, seed: int) -> Iterator[bytes]:
    """The body as it is, cut, longer, and with some bytes changed."""
    chance = random.Random(seed)
    yield body
    for _ in range(ROUNDS):
        damaged = bytearray(body)
        for _ in range(chance.choice((1, 1, 2, 5))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        yield bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))]) + chance.randbytes(
            chance.choice((0, 0, 3))
        )
