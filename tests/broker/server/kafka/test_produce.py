from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.refusals import Refusal
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.dispatch import KafkaSession
from penstock.errors import StorageFullError
from penstock.wire.kafka.layout import BATCH_HEADER, CONTROL, LOG_APPEND_TIME
from tests.broker.batches import batch
from tests.broker.server.kafka.desk import APIS, NOW_MS, Client, Desk
from tests.broker.server.kafka.samples import fill, kio_bytes
from tests.broker.server.kafka.times import timed

VERSIONS = range(3, 14)
HOUR_MS = 3_600_000


def changed(entry: bytes, at: int, value: bytes, good_crc: bool = True) -> bytes:
    """The batch with other bytes somewhere."""
    from crc32c import crc32c

    new = bytearray(entry)
    new[at : at + len(value)] = value
    if good_crc:
        new[17:21] = struct.pack(">I", crc32c(bytes(new[21:])))
    return bytes(new)


def asked(desk: Desk, version: int, *batches: tuple[int, bytes | None], topic: str = "orders") -> dict[str, Any]:
    name: dict[str, Any] = {"name": topic}
    if version >= 13:
        found = desk.topics.find(topic)
        name = {"topic_id": found.id if found else None}
    data = [{"index": number, "records": records} for number, records in batches]
    return name | {"partition_data": data}


def ask(
    client: Client, version: int, *batches: tuple[int, bytes | None], topic: str = "orders", **more: Any
) -> list[Any]:
    """The partitions' parts of the answer."""
    values = {"acks": -1, "timeout": 1000, "topic_data": [asked(client.desk, version, *batches, topic=topic)]} | more
    answer = client.ask("Produce", version, **values)
    assert len(answer.responses) == 1
    return list(answer.responses[0].partition_responses)


def code(client: Client, entry: bytes | None, version: int = 9, **more: Any) -> int:
    (part,) = ask(client, version, (0, entry), **more)
    return int(part.error_code.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_stored_and_answered_in_every_version(desk: Desk, version: int) -> None:
    client = desk.client()
    desk.put(batch(5))
    first, second = ask(client, version, (0, batch(3)), (2, batch(2)))
    assert (first.index, first.error_code.value, first.base_offset) == (0, 0, 5)
    assert (second.index, second.error_code.value, second.base_offset) == (2, 0, 0)
    assert first.log_append_time is None
    if version >= 5:
        assert first.log_start_offset == 0
    if version >= 8:
        assert first.record_errors == ()
        assert first.error_message is None
    assert desk.partition("orders", 0).log.end == 8
    assert desk.partition("orders", 2).log.end == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_is_told_in_every_version(desk: Desk, version: int) -> None:
    (bad, good) = ask(desk.client(), version, (0, batch()[:-1]), (1, batch()))
    assert (bad.error_code.value, bad.base_offset) == (87, -1)
    assert (good.error_code.value, good.base_offset) == (0, 0)
    if version >= 8:
        assert "batch" in bad.error_message


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (None, 87),
        (b"", 87),
        (b"short", 87),
        (batch()[:16], 87),
        (batch()[:30], 87),
        (batch()[:-1], 87),
        (batch() + batch(), 87),
        (batch() + b"more", 87),
        (changed(batch(), 0, struct.pack(">q", 7)), 87),
        (changed(batch(), 12, struct.pack(">i", 77)), 0),
        (changed(batch(), 8, struct.pack(">i", 5)), 2),
        (changed(batch(), 8, struct.pack(">i", 20)), 2),
        (changed(batch(), 16, b"\x00"), 87),
        (changed(batch(), 16, b"\x01"), 87),
        (changed(batch(), 16, b"\x03"), 2),
        (changed(batch(), 16, b"\xff"), 2),
        (changed(batch(3), 63, b"\xaa", good_crc=False), 2),
        (changed(batch(), 21, struct.pack(">h", 5)), -1),
        (changed(batch(), 21, struct.pack(">h", 7)), -1),
        (changed(batch(), 21, struct.pack(">h", 0x40)), 0),
        (changed(batch(), 21, struct.pack(">h", 0x100)), 0),
        (batch(attributes=CONTROL), 87),
        (batch(attributes=LOG_APPEND_TIME), 0),
        (batch(3, delta=4), 87),
        (batch(3, delta=1), 87),
        (batch(3, delta=-1), 87),
        (changed(batch(), 57, struct.pack(">i", 0)), 87),
        (batch(transactional=True), 53),
        (batch(time_ms=NOW_MS + 2 * HOUR_MS), 32),
        (batch(time_ms=0), 0),
        (batch(time_ms=-1), 0),
        (batch(producer=5, epoch=0, sequence=-1), 87),
        (batch(producer=5, epoch=0, sequence=5), 0),
        (batch(size=1_048_588), 0),
        (batch(size=1_048_589), 10),
    ],
)
def test_what_kafka_refuses_is_refused_in_its_words(desk: Desk, entry: bytes | None, expected: int) -> None:
    client = desk.client()
    assert code(client, entry) == expected
    assert desk.partition("orders", 0).log.end == (0 if expected else 1)
    assert not client.connection.is_closed


def test_zstd_is_taken_from_version_7_on(desk: Desk) -> None:
    client = desk.client()
    entry = changed(batch(), 21, struct.pack(">h", 4))
    assert [code(client, entry, version) for version in (3, 6, 7, 9)] == [76, 76, 0, 0]


def test_a_number_of_acknowledgements_that_does_not_exist_is_refused(desk: Desk) -> None:
    parts = ask(desk.client(), 9, (0, batch()), (1, batch()), acks=2)
    assert [part.error_code.value for part in parts] == [21, 21]
    assert desk.partition("orders", 0).log.end == 0


@pytest.mark.parametrize("version", [9, 13])
def test_topics_and_partitions_that_do_not_exist(desk: Desk, version: int) -> None:
    client = desk.client()
    (part,) = ask(client, version, (9, batch()))
    assert part.error_code.value == 3
    (part,) = ask(client, version, (0, batch()), topic="nowhere")
    assert part.error_code.value == (3 if version < 13 else 100)


def test_what_is_sent_twice_is_stored_once(desk: Desk) -> None:
    client = desk.client()
    entry = batch(2, producer=5, epoch=0, sequence=0)
    assert [ask(client, 9, (0, entry))[0].base_offset for _ in range(2)] == [0, 0]
    assert desk.partition("orders", 0).log.end == 2
    assert code(client, batch(1, producer=5, epoch=0, sequence=9)) == 45


def test_a_duplicate_is_told_with_the_time_of_the_batch_as_kafka_does(desk: Desk) -> None:
    client = desk.client()
    entry = batch(2, producer=5, epoch=0, sequence=0, time_ms=12_000)
    first, again = (ask(client, 9, (0, entry))[0] for _ in range(2))
    assert first.log_append_time is None
    assert again.log_append_time.timestamp() == 12


def test_messages_whose_times_are_wrong_are_named(desk: Desk) -> None:
    desk.topics.add("strict", time_before_max_ms=HOUR_MS)
    client = desk.client()
    far = NOW_MS + 2 * HOUR_MS
    (part,) = ask(client, 8, (0, timed(NOW_MS, far, NOW_MS + 5, far, attributes=1)))
    assert part.error_code.value == 32
    assert [(each.batch_index, str(far) in each.batch_index_error_message) for each in part.record_errors] == [
        (1, True),
        (3, True),
    ]
    (part,) = ask(client, 9, (0, timed(5)), topic="strict")
    assert [each.batch_index for each in part.record_errors] == [0]
    (part,) = ask(client, 9, (0, changed(timed(far, far), 61, b"\xff\xff\xff\xff")))
    assert (part.error_code.value, part.record_errors) == (32, ())


def test_the_answer_waits_until_all_batches_are_durable(desk: Desk) -> None:
    desk.at_once = False
    client = desk.client()
    client.send("Produce", 9, acks=1, topic_data=[asked(desk, 9, (0, batch()), (1, batch()))])
    client.send("ApiVersions", 0)
    assert client.answers() == []
    desk.round()
    produced, greeted = client.answers()
    assert [part.error_code.value for part in produced.responses[0].partition_responses] == [0, 0]
    assert greeted.error_code.value == 0


def test_a_round_that_fails_is_told(desk: Desk) -> None:
    desk.at_once = False
    client = desk.client()
    client.send("Produce", 9, acks=-1, topic_data=[asked(desk, 9, (0, batch()))])
    desk.round(StorageFullError("no room"))
    (answer,) = client.answers()
    assert answer.responses[0].partition_responses[0].error_code.value == 56


def test_without_acknowledgement_there_is_no_answer(desk: Desk) -> None:
    desk.at_once = False
    client = desk.client()
    client.send("Produce", 9, acks=0, topic_data=[asked(desk, 9, (0, batch()))])
    client._asked.clear()
    client.send("ApiVersions", 0)
    (greeted,) = client.answers()
    assert greeted.error_code.value == 0
    desk.round()
    assert client.answers() == []
    assert desk.partition("orders", 0).log.end == 1


def test_a_batch_that_nobody_acknowledges_and_that_is_refused_closes_the_connection(desk: Desk) -> None:
    client = desk.client()
    client.send("Produce", 9, acks=0, topic_data=[asked(desk, 9, (0, batch()[:-1]))])
    assert client.connection.is_closed


def test_a_topic_with_the_brokers_time_tells_it(desk: Desk) -> None:
    desk.topics.add("stamped", time_type="log")
    (part,) = ask(desk.client(), 9, (0, batch(time_ms=5)), topic="stamped")
    assert part.log_append_time.timestamp() * 1000 == NOW_MS


def test_a_request_that_is_wrong_at_its_end_stores_nothing(desk: Desk) -> None:
    client = desk.client()
    kind = codec.schema_of(APIS["Produce"], 9, "request")
    values = {"acks": -1, "topic_data": [asked(desk, 9, (0, batch()), (1, batch()))]}
    body = kio_bytes(fill(kind, values))
    client.send_body("Produce", 9, body[:-3])
    assert client.connection.is_closed
    assert desk.partition("orders", 0).log.end == 0


@pytest.mark.parametrize(
    ("refusal", "version", "expected"),
    [
        (Refusal.NOT_ENLISTED, 9, 48),
        (Refusal.NOT_ENLISTED, 11, 120),
        (Refusal.BAD_TRANSACTION_STATE, 11, 48),
        (Refusal.CONCURRENT_TRANSACTION, 11, 19),
        (Refusal.CONCURRENT_TRANSACTION, 12, 51),
        (Refusal.FENCED, 9, 90),
    ],
)
def test_what_transactions_refuse_is_told_as_the_clients_version_knows_it(
    desk: Desk, refusal: Refusal, version: int, expected: int
) -> None:
    desk.refusal = refusal
    entry = batch(producer=5, epoch=0, sequence=0, transactional=True)
    assert code(desk.client(), entry, version, transactional_id="mine") == expected


def test_a_stored_batch_is_as_it_was_sent_but_for_its_place(desk: Desk) -> None:
    import os

    entry = batch(3, producer=7, epoch=1, sequence=0, time_ms=NOW_MS)
    desk.put(batch(4))
    ask(desk.client(), 9, (0, entry))
    found = desk.partition("orders", 0).log.read(4, 1 << 20)
    assert found is not None
    stored = os.pread(found.fd, found.size, found.offset)
    found.release()
    assert BATCH_HEADER.unpack_from(stored)[0] == 4
    assert stored[16:] == entry[16:]


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_requests_that_look_alike_are_answered_like_any_others(tmp_path: Path, version: int) -> None:
    """What is remembered of one request must not show in the answer to another."""
    chance = random.Random(version)
    desks = [Desk(tmp_path / name) for name in ("remembers", "forgets")]
    clients = [desk.client() for desk in desks]
    for desk in desks:
        desk.topics.add("orders", 3)
        desk.topics.add("others", 3)
    remembers, forgets = (cast(KafkaSession, client.connection.session) for client in clients)
    remembered = 0
    for _ in range(400):
        topics = chance.choice((["orders"], ["orders"], ["orders"], ["others"], ["orders", "others"], []))
        numbers = chance.choice(([0], [0], [1], [2], [7], [0, 1], []))
        records = chance.choice((batch(2, size=200), batch(1), b"", None, batch()[:-1], batch(size=20_000)))
        terms: dict[str, Any] = {
            "acks": chance.choice((-1, -1, -1, 1, 5)),
            "timeout": chance.choice((1000, 1000, 2000)),
        }
        terms |= {"transactional_id": chance.choice((None, None, "mine"))}
        tags = chance.random() < 0.1 and version >= 9
        forgets.shape = None
        told = []
        for desk, client in zip(desks, clients, strict=True):
            data = [asked(desk, version, *((number, records) for number in numbers), topic=each) for each in topics]
            body = kio_bytes(fill(codec.schema_of(APIS["Produce"], version, "request"), terms | {"topic_data": data}))
            client.send_body("Produce", version, body[:-1] + b"\x01\x05\x00" if tags else body)
            (answer,) = client.answers()
            told.append([topic.partition_responses for topic in answer.responses])
        assert told[0] == told[1]
        remembered += remembers.shape is not None
    assert remembered > 300
    for desk in desks:
        desk.close()
