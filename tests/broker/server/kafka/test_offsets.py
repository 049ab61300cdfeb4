from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.broker.server.kafka.record_times import ENTRY_RECORDS, Opening, Reached
from penstock.wire.kafka.layout import LOG_APPEND_TIME
from tests.broker.batches import batch
from tests.broker.server.kafka.desk import Desk, FileLog
from tests.broker.server.kafka.live import LiveClient
from tests.broker.server.kafka.test_admin import create, produce, versions
from tests.broker.server.kafka.times import timed

LATEST, EARLIEST, MAX_TIME, EARLIEST_LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6


def listed(client: LiveClient, time_ms: int, version: int = 11, number: int = 0, **more: Any) -> tuple[int, int, int]:
    row = {"partition_index": number, "timestamp": time_ms, "current_leader_epoch": -1}
    row |= {name: more.pop(name) for name in ("current_leader_epoch",) if name in more}
    asked = [{"name": "orders", "partitions": [row]}]
    told = client.ask("ListOffsets", version, replica_id=-1, topics=asked, **more)
    (part,) = told.topics[0].partitions
    return part.error_code.value, part.offset, part.timestamp


@pytest.mark.parametrize("version", versions("ListOffsets"))
def test_positions_are_found_by_time(client: LiveClient, version: int) -> None:
    create(client, "orders")
    assert listed(client, LATEST, version) == (0, 0, -1)
    assert listed(client, 100, version) == (0, -1, -1)
    produce(client, "orders", timed(100, 90, 120), timed(200, 300), timed(150))
    assert listed(client, LATEST, version) == (0, 6, -1)
    assert listed(client, EARLIEST, version) == (0, 0, -1)
    assert listed(client, 0, version) == (0, 0, 100)
    assert listed(client, 101, version) == (0, 2, 120)
    assert listed(client, 121, version) == (0, 3, 200)
    assert listed(client, 201, version) == (0, 4, 300)
    assert listed(client, 301, version) == (0, -1, -1)
    assert listed(client, MAX_TIME, version) == ((0, 4, 300) if version >= 7 else (35, -1, -1))
    assert listed(client, EARLIEST_LOCAL, version) == ((0, 0, -1) if version >= 8 else (35, -1, -1))
    assert listed(client, TIERED, version) == ((0, -1, -1) if version >= 9 else (35, -1, -1))
    assert listed(client, PENDING, version) == ((0, -1, -1) if version >= 11 else (35, -1, -1))


def test_times_before_the_start_of_a_log_that_was_cut(client: LiveClient) -> None:
    create(client, "orders")
    produce(client, "orders", timed(100, 110, 120, 130))
    cut = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}]
    client.ask("DeleteRecords", 2, topics=cut, timeout=1000)
    assert listed(client, EARLIEST) == (0, 2, -1)
    assert listed(client, 100) == (0, 2, 120)
    assert listed(client, 125) == (0, 3, 130)


def test_a_time_that_only_deleted_messages_of_a_batch_have_is_looked_for_behind_it(client: LiveClient) -> None:
    create(client, "orders")
    produce(client, "orders", timed(500, 110, 120), timed(400, 90), timed(300), timed(50))
    cut = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]
    client.ask("DeleteRecords", 2, topics=cut, timeout=1000)
    assert listed(client, 100) == (0, 1, 110)
    assert listed(client, 115) == (0, 2, 120)
    assert listed(client, 130) == (0, 3, 400)
    assert listed(client, 401) == (0, -1, -1)
    assert listed(client, MAX_TIME) == (0, 3, 400)


def test_the_largest_time_of_what_is_left_of_a_batch(client: LiveClient) -> None:
    create(client, "orders")
    produce(client, "orders", timed(500, 450, 120), timed(400))
    cut = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]
    client.ask("DeleteRecords", 2, topics=cut, timeout=1000)
    assert listed(client, MAX_TIME) == (0, 1, 450)


def test_a_batch_whose_header_claims_a_time_that_none_of_its_messages_has(client: LiveClient) -> None:
    create(client, "orders")
    claims = timed(100, 110, largest_ms=900)
    produce(client, "orders", claims, timed(300), claims, timed(200))
    assert listed(client, 105) == (0, 1, 110)
    assert listed(client, 150) == (0, 2, 300)
    assert listed(client, 301) == (0, -1, -1)


def test_how_many_batches_are_opened_for_one_request_is_bounded() -> None:
    opening = Opening(records=3 * ENTRY_RECORDS)
    entry = timed(100, base_offset=10, largest_ms=900)
    assert [opening.first_at(entry, 500, 0) for _ in range(4)] == [None, None, None, Reached(10, 900)]
    assert opening.latest(entry, 0) == Reached(10, 900)


def test_what_cannot_be_listed_is_told(client: LiveClient) -> None:
    create(client, "orders")
    assert listed(client, LATEST, number=5)[0] == 3
    assert listed(client, -99)[0] == 42
    assert listed(client, LATEST, current_leader_epoch=4)[0] == 75
    assert listed(client, LATEST, current_leader_epoch=0)[0] == 0


def test_who_reads_only_what_is_committed_sees_the_end_of_that(desk: Desk) -> None:
    desk.put(batch(2, time_ms=50))
    desk.put(batch(3, producer=9, epoch=0, sequence=0, transactional=True, time_ms=90), transactional_id="mine")
    client = desk.client()

    def ask(time_ms: int, level: int) -> int:
        asked = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": time_ms}]}]
        told = client.ask("ListOffsets", 8, replica_id=-1, isolation_level=level, topics=asked)
        return int(told.topics[0].partitions[0].offset)

    assert (ask(LATEST, 0), ask(LATEST, 1)) == (5, 2)
    assert (ask(60, 0), ask(60, 1)) == (2, -1)


def test_a_batch_that_cannot_be_read_is_an_error_of_its_partition(desk: Desk) -> None:
    for number in range(2):
        desk.put(batch(2, time_ms=50), number=number)
    cast(FileLog, desk.partition("orders", 0).log).is_unreadable = True
    asked = [{"partition_index": number, "timestamp": 10} for number in range(2)]
    told = desk.client().ask("ListOffsets", 8, replica_id=-1, topics=[{"name": "orders", "partitions": asked}])
    assert [part.error_code.name for part in told.topics[0].partitions] == ["kafka_storage_error", "none"]
    assert "orders-0 cannot be read" in desk.hub.told[0]


@pytest.mark.parametrize("version", versions("OffsetForLeaderEpoch"))
def test_the_one_epoch_ends_where_the_log_does(client: LiveClient, version: int) -> None:
    create(client, "orders")
    produce(client, "orders", batch(5))

    def ask(epoch: int, current: int = -1, number: int = 0) -> tuple[int, int, int]:
        row = {"partition": number, "leader_epoch": epoch, "current_leader_epoch": current}
        told = client.ask("OffsetForLeaderEpoch", version, topics=[{"topic": "orders", "partitions": [row]}])
        (part,) = told.topics[0].partitions
        return part.error_code.value, part.leader_epoch, part.end_offset

    assert ask(0) == (0, 0, 5)
    assert ask(3) == (0, -1, -1)
    assert ask(0, current=0) == (0, 0, 5)
    assert ask(0, current=2)[0] == 75
    assert ask(0, number=7)[0] == 3


@pytest.mark.parametrize("codec", [0, 1])
def test_the_first_message_with_a_time_is_found_in_a_batch(codec: int) -> None:
    entry = timed(100, 50, 200, 150, attributes=codec, base_offset=10)
    assert Opening().first_at(entry, 0, 0) == Reached(10, 100)
    assert Opening().first_at(entry, 101, 0) == Reached(12, 200)
    assert Opening().first_at(entry, 101, 13) == Reached(13, 150)
    assert Opening().first_at(entry, 201, 0) is None


def test_a_batch_with_the_logs_time_has_that_for_all() -> None:
    entry = timed(100, 50, attributes=LOG_APPEND_TIME, base_offset=10)
    assert Opening().first_at(entry, 90, 11) == Reached(11, 100)
    assert Opening().first_at(entry, 101, 0) is None


def test_what_is_too_much_to_open_or_damaged_is_answered_by_its_header() -> None:
    entry = timed(100, 50, 200, attributes=1, base_offset=10)
    assert Opening(records=2).first_at(entry, 150, 0) == Reached(10, 200)
    assert Opening(unpacked_bytes=5).first_at(entry, 150, 0) == Reached(10, 200)
    opening = Opening(records=4)
    assert opening.first_at(entry, 150, 0) == Reached(12, 200)
    assert opening.first_at(entry, 150, 0) == Reached(10, 200)
    damaged = bytearray(timed(100, 50, 200, base_offset=10))
    damaged[61:] = b"\xff" * (len(damaged) - 61)
    assert Opening().first_at(damaged, 150, 0) == Reached(10, 200)
    empty = entry[:61] + b"\0" * 10
    assert Opening().first_at(bytes(entry[:8]) + (59).to_bytes(4, "big") + empty[12:], 150, 0) == Reached(10, 200)
