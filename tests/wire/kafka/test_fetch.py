"""Fetch by hand, compared with kio in every version."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader
from kio.static.primitive import Records

from penstock.errors import (
    DecodeError,
    NotLeaderError,
    PenstockError,
    PositionError,
    RefusedError,
    UnforeseenError,
    UnknownTopicError,
    UnsupportedError,
)
from penstock.wire.kafka import schema
from penstock.wire.kafka.requests import fetch
from penstock.wire.kafka.versions import FETCH
from penstock.wire.protocol import Aborted, Answered, Fetch, Fetched, Partition, Wanted
from tests.wire.kafka.entries import make_entry
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.talk import answer, framed, greeted, kio_bytes, receive, response, schema_error, schema_time

VERSIONS = range(FETCH.oldest, FETCH.newest + 1)
IDS_FROM = 13
A, B, C = Partition("t", 0), Partition("t", 1), Partition("ü", 7)
IDS = {"t": uuid.UUID(int=5), "ü": uuid.UUID(int=2**100)}
ASKED = Fetch({A: Wanted(5, 1000), B: Wanted(0, 1000), C: Wanted(2**62, 1)}, IDS)
NAMES = st.text(min_size=1, max_size=100)
WANTED = st.builds(Wanted, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1))


def batch(first: int, count: int = 1, epoch: int = 3) -> bytes:
    payload = b"\x0e" + bytes(6)
    return make_entry(payload * count, base_offset=first, count=count, leader_epoch=epoch)


def read_request(version: int, data: bytes) -> Any:
    request, size = entity_reader(schema.module_of(FETCH, version, "request").FetchRequest)(data, 0)
    assert size == len(data)
    return request


@pytest.mark.parametrize("version", VERSIONS)
@given(
    wanted=st.dictionaries(st.builds(Partition, NAMES, st.integers(0, 2**31 - 1)), WANTED, max_size=5),
    committed=st.booleans(),
)
def test_kio_reads_what_is_written_by_hand(version: int, wanted: dict[Partition, Wanted], committed: bool) -> None:
    ids = {name: uuid.uuid5(uuid.NAMESPACE_URL, name) for name, _ in wanted}
    request = Fetch(wanted, ids, 12_345, 7, 321, committed)
    told = read_request(version, b"".join(fetch.encode(request, version)))
    assert (told.max_bytes, told.min_bytes, told.isolation_level) == (12_345, 7, int(committed))
    assert told.max_wait == datetime.timedelta(milliseconds=321)
    assert getattr(told, "replica_id", -1) == -1
    assert (getattr(told, "session_id", 0), getattr(told, "session_epoch", -1)) == (0, -1)
    assert not getattr(told, "forgotten_topics_data", ())
    assert getattr(told, "rack_id", "") == ""
    names = {topic_id: name for name, topic_id in ids.items()}
    found = {}
    for topic in told.topics:
        name = names[topic.topic_id] if version >= IDS_FROM else topic.topic
        for row in topic.partitions:
            epoch = row.current_leader_epoch if version >= 9 else wanted[Partition(name, row.partition)].leader_epoch
            found[Partition(name, row.partition)] = Wanted(row.fetch_offset, row.partition_max_bytes, epoch)
            assert getattr(row, "last_fetched_epoch", -1) == -1
            assert getattr(row, "log_start_offset", -1) == -1
    assert found == wanted
    assert len(told.topics) == len({name for name, _ in wanted})


def test_partitions_are_asked_for_in_the_order_given() -> None:
    order = [Partition("t", number) for number in (3, 1, 2)]
    told = read_request(12, b"".join(fetch.encode(Fetch(dict.fromkeys(order, Wanted(0, 1)), {}), 12)))
    assert [row.partition for row in told.topics[0].partitions] == [3, 1, 2]


@pytest.mark.parametrize("version", [13, 17])
def test_a_topic_whose_id_is_not_known_cannot_be_asked_for_by_id(version: int) -> None:
    with pytest.raises(RefusedError, match="knows topics by their ids"):
        fetch.encode(Fetch({A: Wanted(0, 1)}, {"t": None}), version)
    assert fetch.encode(Fetch({A: Wanted(0, 1)}, {"t": None}), 12)


def kio_answer(version: int, rows: Mapping[Partition, dict[str, Any]], throttle_ms: int = 0, code: int = 0) -> bytes:
    """An answer as a broker sends it; fields that the version lacks are left out."""
    topics: dict[str, list[Any]] = {}
    for partition, values in rows.items():
        fields: dict[str, Any] = {
            "partition_index": partition.number,
            "error_code": schema_error(values.get("code", 0)),
            "high_watermark": values.get("end", 0),
            "last_stable_offset": values.get("stable", 0),
            "records": values.get("records") if values.get("records") is None else Records(values["records"]),
            "aborted_transactions": None,
        }
        if "aborted" in values:
            fields["aborted_transactions"] = tuple(
                response(FETCH, version, "AbortedTransaction", producer_id=producer, first_offset=first)
                for producer, first in values["aborted"]
            )
        if version >= 5:
            fields["log_start_offset"] = values.get("start", -1)
        if version >= 12 and values.get("leader"):
            fields["current_leader"] = response(FETCH, version, "LeaderIdAndEpoch", leader_id=5, leader_epoch=6)
            fields["diverging_epoch"] = response(FETCH, version, "EpochEndOffset", epoch=5, end_offset=6)
        topics.setdefault(partition.topic, []).append(response(FETCH, version, "PartitionData", **fields))
    named = [{"topic_id": IDS[name]} if version >= IDS_FROM else {"topic": name} for name in topics]
    responses = tuple(
        response(FETCH, version, "FetchableTopicResponse", partitions=tuple(partitions), **name)
        for name, partitions in zip(named, topics.values(), strict=True)
    )
    more: dict[str, Any] = {"error_code": schema_error(code)} if version >= 7 else {}
    if version >= 16:
        more["node_endpoints"] = (response(FETCH, version, "NodeEndpoint", node_id=5, host="h", port=9),)
    return kio_bytes(response(FETCH, version, responses=responses, throttle_time=schema_time(throttle_ms), **more))


def heard(version: int, body: bytes, request: Fetch = ASKED) -> Answered:
    connection = greeted(pinned(FETCH, version))
    connection.send(request, "token")
    (event,) = receive(connection, answer(FETCH, version, 2, body))
    assert isinstance(event, Answered)
    return event


def fetched(version: int, values: dict[str, Any]) -> Any:
    return heard(version, kio_answer(version, {A: values})).answer[A]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_kio_writes_is_read_by_hand(version: int) -> None:
    batches = [batch(3, 2), batch(5, 10, epoch=4)]
    rows: dict[Partition, dict[str, Any]] = {
        A: {"records": b"".join(batches), "start": 1, "end": 30, "stable": 20, "aborted": [(7, 4), (8, 5)]},
        B: {"records": b"", "end": 2**62, "stable": -1, "aborted": []},
        C: {"code": 6, "end": -1, "stable": -1, "leader": True},
    }
    told = heard(version, kio_answer(version, rows, 77))
    assert told.throttle_ms == 77
    start = 1 if version >= 5 else -1
    size = sum(map(len, batches))
    aborted = [Aborted(7, 4), Aborted(8, 5)]
    assert told.answer[A] == Fetched([memoryview(one) for one in batches], size, 15, 3, 4, start, 30, 20, aborted)
    assert told.answer[B] == Fetched((), 0, -1, -1, -1, -1, 2**62, -1, ())
    assert isinstance(told.answer[C], NotLeaderError)
    assert "ü-7" in str(told.answer[C])


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_null_records_are_none(version: int) -> None:
    assert fetched(version, {"records": None}).entries == ()


@pytest.mark.parametrize("version", [4, 12, 17])
def test_a_last_batch_that_was_cut_is_left_out_and_counted(version: int) -> None:
    data = batch(0, 3) + batch(3, 3)[:-1]
    told = fetched(version, {"records": data})
    assert (told.entries, told.size, told.next) == ([batch(0, 3)], len(data), 3)
    told = fetched(version, {"records": batch(3, 3)[:-1]})
    assert (told.entries, told.next) == ((), -1)
    assert told.size > 0


@pytest.mark.parametrize("version", [7, 12, 17])
def test_an_error_of_the_whole_answer_is_the_answer(version: int) -> None:
    told = heard(version, kio_answer(version, {}, 5, code=70))
    assert isinstance(told.answer, PenstockError)
    assert told.throttle_ms == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_may_be_passed_over(version: int) -> None:
    assert heard(version, kio_answer(version, {}, 300)).answer == {}


@pytest.mark.parametrize(
    ("code", "kind"), [(1, PositionError), (2, RefusedError), (3, UnknownTopicError), (74, NotLeaderError)]
)
def test_codes_become_errors(code: int, kind: type[PenstockError]) -> None:
    assert type(fetched(17, {"code": code})) is kind


def test_a_position_outside_of_the_log_is_named() -> None:
    assert fetched(12, {"code": 1}).position == ASKED.wanted[A].position


def test_a_damaged_log_is_not_tried_again() -> None:
    assert not fetched(12, {"code": 2}).retriable


def test_an_unknown_code_befalls_its_partition_only() -> None:
    body = kio_answer(12, {A: {}, B: {"records": batch(0)}})
    at = body.index(bytes(6) + bytes(16))
    body = body[: at + 4] + (9999).to_bytes(2, "big") + body[at + 6 :]
    told = heard(12, body).answer
    assert type(told[A]) is UnforeseenError
    assert told[B].next == 1


@pytest.mark.parametrize(
    ("data", "kind"), [(batch(0)[:16] + b"\x01" + batch(0)[17:], UnsupportedError), (bytes(70), UnsupportedError)]
)
def test_what_is_no_batch_befalls_its_partition_only(data: bytes, kind: type[PenstockError]) -> None:
    told = heard(12, kio_answer(12, {A: {"records": data}, B: {"records": batch(0)}})).answer
    assert type(told[A]) is kind
    assert told[B].next == 1


@pytest.mark.parametrize("version", [4, 12, 17])
def test_an_answer_about_others_is_refused(version: int) -> None:
    request = Fetch({A: Wanted(5, 1000)}, IDS)
    with pytest.raises(DecodeError, match="those that were asked for"):
        heard(version, kio_answer(version, {B: {}}), request)


def test_a_topic_id_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(DecodeError, match="one that was asked for"):
        heard(13, kio_answer(13, {C: {}}), Fetch({A: Wanted(5, 1000)}, {"t": IDS["t"]}))


def in_pieces(data: bytes, room: bytearray, sizes: list[int]) -> list[Any]:
    """The events of bytes that arrive in pieces, in a room that is used again for each."""
    connection = greeted(pinned(FETCH, 12))
    connection.send(ASKED, "token")
    events: list[Any] = []
    at = 0
    for size in [*sizes, len(data)]:
        piece = data[at : at + size]
        room[: len(piece)] = piece
        events += connection.receive(memoryview(room)[: len(piece)])
        room[:] = b"\xee" * len(room)
        at += len(piece)
    return events


@pytest.mark.parametrize("sizes", [[], [1], [3], [4], [5], [100]])
def test_entries_stay_as_they_are_when_the_memory_they_arrived_in_is_used_again(sizes: list[int]) -> None:
    entry = batch(0, 50)
    data = answer(FETCH, 12, 2, kio_answer(12, {A: {"records": entry}, B: {"records": batch(0)}}))
    (event,) = in_pieces(data, bytearray(len(data)), sizes)
    assert event.answer[A].entries == [entry]
    assert event.answer[B].entries == [batch(0)]


def test_a_large_answer_is_not_copied() -> None:
    entry = batch(0, 50)
    body = kio_answer(12, {A: {"records": entry}, B: {"records": batch(0)}})
    data = answer(FETCH, 12, 2, body)
    (event,) = in_pieces(data, bytearray(len(data)), [100])
    first, second = event.answer[A].entries[0], event.answer[B].entries[0]
    assert first.obj is second.obj
    assert first.readonly
    assert len(first.obj) == len(data) - len(framed(b""))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_anywhere_is_refused(version: int) -> None:
    rows: dict[Partition, dict[str, Any]] = {
        A: {"records": batch(0), "aborted": [(1, 2)], "leader": True},
        C: {"code": 6, "leader": True},
    }
    body = kio_answer(version, rows)
    for cut in range(len(body)):
        with pytest.raises(DecodeError):
            heard(version, body[:cut])


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_damaged_answer_raises_nothing_but_decode_errors(version: int, data: st.DataObject) -> None:
    rows: dict[Partition, dict[str, Any]] = {A: {"records": batch(0), "aborted": [(1, 2)]}, B: {"leader": True}}
    body = bytearray(kio_answer(version, rows))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    with contextlib.suppress(DecodeError):
        heard(version, bytes(body))


@pytest.mark.parametrize("version", [4, 7, 12, 13, 17])
@given(body=st.binary(max_size=100))
def test_garbage_raises_nothing_but_decode_errors(version: int, body: bytes) -> None:
    with contextlib.suppress(DecodeError):
        heard(version, body)
