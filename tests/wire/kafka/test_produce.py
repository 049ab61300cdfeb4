"""Produce by hand, compared with kio byte for byte in every version."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from penstock.config.options import Acks
from penstock.errors import BatchTooLargeError, DecodeError, NotLeaderError, RefusedError, UnforeseenError
from penstock.wire.kafka import schema
from penstock.wire.kafka.requests import produce
from penstock.wire.kafka.versions import PRODUCE
from penstock.wire.protocol import Answered, Outgoing, Partition, Publish, Spoilt, Stored, Verdict
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.talk import answer, greeted, kio_bytes, receive, response, schema_error, schema_time

VERSIONS = range(PRODUCE.oldest, PRODUCE.newest + 1)
NAMES = st.text(min_size=1, max_size=200)
BATCHES = st.dictionaries(
    st.builds(Partition, NAMES, st.integers(0, 2**31 - 1)), st.tuples(st.binary(max_size=70), st.binary(max_size=200))
)


def publish(*partitions: Partition, acks: Acks = "all", transactional_id: str | None = None) -> Publish:
    batches = [Outgoing(partition, b"header", bytes(partition.number)) for partition in partitions]
    return Publish(batches, acks, 1234, transactional_id)


def read_request(version: int, data: bytes) -> Any:
    kind = schema.module_of(PRODUCE, version, "request").ProduceRequest
    request, size = entity_reader(kind)(data, 0)
    assert size == len(data)
    return request


@pytest.mark.parametrize("version", VERSIONS)
@given(batches=BATCHES, transactional_id=st.none() | NAMES, acks=st.sampled_from(["all", "leader", "none"]))
def test_kio_reads_what_is_written_by_hand(
    version: int, batches: dict[Partition, tuple[bytes, bytes]], transactional_id: str | None, acks: Acks
) -> None:
    request = Publish(
        [Outgoing(partition, *parts) for partition, parts in batches.items()], acks, 1234, transactional_id
    )
    told = read_request(version, b"".join(produce.encode(request, version)))
    assert told.transactional_id == transactional_id
    assert told.acks == {"all": -1, "leader": 1, "none": 0}[acks]
    assert told.timeout == datetime.timedelta(milliseconds=1234)
    assert {
        Partition(topic.name, partition.index): partition.records
        for topic in told.topic_data
        for partition in topic.partition_data
    } == {partition: header + payload for partition, (header, payload) in batches.items()}
    assert len({topic.name for topic in told.topic_data}) == len(told.topic_data)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 126, 127, 128, 16_383, 16_384, 300_000])
def test_payloads_of_all_lengths_are_passed_on_uncopied(version: int, size: int) -> None:
    header, payload = b"h", memoryview(bytes(size))
    batches = [Outgoing(Partition(topic, number), header, payload) for topic in "tu" for number in (0, 1)]
    buffers = produce.encode(Publish(batches), version)
    assert sum(buffer is payload for buffer in buffers) == 4
    told = read_request(version, b"".join(buffers))
    assert [len(part.records) for topic in told.topic_data for part in topic.partition_data] == [size + 1] * 4


def kio_answer(version: int, rows: Sequence[tuple[Partition, dict[str, Any]]], throttle_ms: int = 0) -> bytes:
    """An answer as a broker sends it; fields that the version lacks are left out."""
    topics: dict[str, list[Any]] = {}
    for partition, values in rows:
        fields: dict[str, Any] = {"index": partition.number, "log_append_time": None}
        if version >= 5:
            fields["log_start_offset"] = 3
        if version >= 8:
            errors = values.pop("errors", {})
            fields["record_errors"] = tuple(
                response(PRODUCE, version, "BatchIndexAndErrorMessage", batch_index=i, batch_index_error_message=text)
                for i, text in errors.items()
            )
        if version >= 10 and values.pop("leader", None):
            fields["current_leader"] = response(PRODUCE, version, "LeaderIdAndEpoch", leader_id=5, leader_epoch=6)
        known = {"errors", "leader"} | ({"error_message"} if version < 8 else set())
        fields |= {name: value for name, value in values.items() if name not in known}
        topics.setdefault(partition.topic, []).append(response(PRODUCE, version, "PartitionProduceResponse", **fields))
    responses = tuple(
        response(PRODUCE, version, "TopicProduceResponse", name=topic, partition_responses=tuple(partitions))
        for topic, partitions in topics.items()
    )
    more: dict[str, Any] = {}
    if version >= 10:
        node = response(PRODUCE, version, "NodeEndpoint", node_id=5, host="h", port=9)
        more["node_endpoints"] = (node,)
    return kio_bytes(response(PRODUCE, version, responses=responses, throttle_time=schema_time(throttle_ms), **more))


def heard(version: int, request: Publish, body: bytes) -> Answered:
    connection = greeted(pinned(PRODUCE, version))
    connection.send(request, "token")
    (event,) = receive(connection, answer(PRODUCE, version, 2, body))
    assert isinstance(event, Answered)
    return event


A, B, C = Partition("t", 0), Partition("t", 1), Partition("ü", 7)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_kio_writes_is_read_by_hand(version: int) -> None:
    time = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    body = kio_answer(
        version,
        [
            (A, {"error_code": schema_error(0), "base_offset": 5}),
            (B, {"error_code": schema_error(0), "base_offset": 2**62, "log_append_time": time}),
            (C, {"error_code": schema_error(6), "base_offset": -1, "leader": True}),
        ],
        throttle_ms=77,
    )
    told = heard(version, publish(A, B, C), body)
    assert told.throttle_ms == 77
    assert told.answer[A] == Stored(5, None)
    assert told.answer[B] == Stored(2**62, 1_704_153_600_000)
    assert isinstance(told.answer[C], NotLeaderError)
    assert "ü-7" in str(told.answer[C])


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_that_spoilt_a_batch_are_named_where_the_version_can(version: int) -> None:
    spoilt = {"error_code": schema_error(87), "base_offset": -1, "errors": {0: "no key", 300: None}}
    body = kio_answer(version, [(A, {**spoilt, "error_message": "bad messages"})])
    verdict: Verdict = heard(version, publish(A), body).answer[A]
    if version < 8:
        assert isinstance(verdict, RefusedError)
        return
    assert isinstance(verdict, Spoilt)
    assert verdict.messages == {0: "no key", 300: ""}
    assert isinstance(verdict.error, RefusedError)
    assert str(verdict.error).endswith("the broker said: bad messages")


def verdict_of(code: int, offset: int = -1) -> Verdict:
    body = kio_answer(12, [(A, {"error_code": schema_error(0), "base_offset": offset})])
    at = body.index(bytes(4) + bytes(2) + offset.to_bytes(8, "big", signed=True))
    body = body[: at + 4] + code.to_bytes(2, "big", signed=True) + body[at + 6 :]
    verdict: Verdict = heard(12, publish(A), body).answer[A]
    return verdict


def test_a_batch_that_the_broker_has_already_counts_as_stored() -> None:
    assert verdict_of(46) == Stored(None)
    assert verdict_of(46, 12) == Stored(12)


def test_a_batch_that_is_too_large_says_so_by_its_class() -> None:
    assert type(verdict_of(10)) is BatchTooLargeError


def test_an_unknown_code_befalls_its_partition_only() -> None:
    assert type(verdict_of(9999)) is UnforeseenError


@pytest.mark.parametrize("told", [[], [A], [A, B, C], [A, C]])
def test_an_answer_about_other_partitions_is_refused(told: list[Partition]) -> None:
    body = kio_answer(12, [(partition, {"error_code": schema_error(0), "base_offset": 0}) for partition in told])
    with pytest.raises(DecodeError, match="partitions at byte 0: expected t-0, t-1, found"):
        heard(12, publish(A, B), body)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_anywhere_is_refused(version: int) -> None:
    spoilt = {"error_code": schema_error(87), "base_offset": -1, "errors": {0: "no key"}, "leader": True}
    body = kio_answer(version, [(A, spoilt)])
    for cut in range(len(body)):
        with pytest.raises(DecodeError):
            heard(version, publish(A), body[:cut])


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_damaged_answer_raises_nothing_but_decode_errors(version: int, data: st.DataObject) -> None:
    spoilt = {"error_code": schema_error(87), "base_offset": -1, "errors": {0: "no key"}, "leader": True}
    body = bytearray(kio_answer(version, [(A, spoilt), (B, {"error_code": schema_error(0), "base_offset": 0})]))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    with contextlib.suppress(DecodeError):
        heard(version, publish(A, B), bytes(body))


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@given(body=st.binary(max_size=100))
def test_garbage_raises_nothing_but_decode_errors(version: int, body: bytes) -> None:
    with contextlib.suppress(DecodeError):
        heard(version, publish(A), body)
