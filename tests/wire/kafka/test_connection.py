"""A connection's side of the protocol: greeting, headers, matching of answers, and hostile peers."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader

from penstock.errors import DecodeError, LimitError, RefusedError, UnsupportedError
from penstock.wire import protocol
from penstock.wire.kafka.connection import CORRELATION_MAX, KafkaConnection
from penstock.wire.kafka.requests import EXCHANGES
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.kafka.versions import API_VERSIONS, INIT_PRODUCER_ID, METADATA
from penstock.wire.protocol import (
    Answered,
    Identify,
    Identity,
    LookUp,
    Outgoing,
    Partition,
    Publish,
    Ready,
    Reply,
    Request,
    Wire,
    WireConnection,
)
from tests.wire.kafka.ranges import KAFKA_2_1, KAFKA_4_3, pinned
from tests.wire.kafka.talk import (
    CLIENT,
    FRAME_BYTES_MAX,
    NEWEST,
    answer,
    framed,
    greeted,
    greeting,
    kio_bytes,
    receive,
    response,
    schema_error,
    schema_time,
)

WIRE: Wire = KafkaWire()


def connection_of() -> KafkaConnection:
    return KafkaWire().connection(CLIENT, FRAME_BYTES_MAX)


def joined(buffers: Any) -> bytes:
    return b"".join(buffers)


def identity_answer(correlation: int, producer: int = 7, throttle_ms: int = 0, tags: bytes = b"\x00") -> bytes:
    body = response(
        INIT_PRODUCER_ID,
        5,
        throttle_time=schema_time(throttle_ms),
        error_code=schema_error(0),
        producer_id=producer,
        producer_epoch=0,
    )
    return answer(INIT_PRODUCER_ID, 5, correlation, kio_bytes(body), tags)


def asking(*tokens: str) -> KafkaConnection:
    """A connection with a question for each token; the first has correlation id 2."""
    connection = greeted()
    for token in tokens:
        connection.send(Identify(), token)
    return connection


def test_the_wire_names_itself() -> None:
    assert (WIRE.scheme, WIRE.port) == ("kafka", 9092)
    connection: WireConnection = WIRE.connection(CLIENT, 100)
    assert connection.unanswered() == []


# The greeting


def test_a_greeting_is_a_question_for_versions_that_names_client_and_software() -> None:
    from kio.schema.api_versions.v3.request import ApiVersionsRequest

    data = joined(KafkaWire(software_version="1.2.3").connection(CLIENT, 100).greet())
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    header, size = entity_reader(HeaderV2)(data, 4)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (18, 3, 1)
    assert header.client_id == CLIENT
    request, more = entity_reader(ApiVersionsRequest)(data, 4 + size)
    assert (request.client_software_name, request.client_software_version) == ("penstock", "1.2.3")
    assert 4 + size + more == len(data)


def test_an_answered_greeting_makes_ready_and_tells_what_the_cluster_agreed_on() -> None:
    connection = connection_of()
    connection.greet()
    assert "greeting" in repr(connection)
    assert receive(connection, greeting(KAFKA_4_3, NEWEST)) == [Ready({"transaction.version": 2}, enlists=True)]
    assert "ready" in repr(connection)


def test_a_broker_that_does_not_know_the_greetings_version_is_greeted_in_version_0() -> None:
    connection = connection_of()
    connection.greet()
    refusal = framed(b"\x00\x00\x00\x01" + b"\x00\x23" + b"\x00\x00\x00\x00")
    (event,) = receive(connection, refusal)
    assert isinstance(event, Reply)
    data = joined(event.buffers)
    header, size = entity_reader(HeaderV1)(data, 4)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (18, 0, 2)
    assert 4 + size == len(data)
    assert connection.unanswered() == []
    assert receive(connection, greeting(KAFKA_2_1, {}, correlation=2, version=0)) == [Ready({}, enlists=False)]
    assert connection.versions.choose(METADATA) == 7


@pytest.mark.parametrize(("code", "name"), [(b"\x00\x2a", "INVALID_REQUEST"), (b"\x7f\xff", "32767")])
def test_a_refused_greeting_ends_the_connection(code: bytes, name: str) -> None:
    connection = connection_of()
    connection.greet()
    with pytest.raises(UnsupportedError, match=name):
        receive(connection, framed(b"\x00\x00\x00\x01" + code + b"\x00\x00\x00\x00"))


def test_a_second_refusal_of_the_greeting_ends_the_connection() -> None:
    connection = connection_of()
    connection.greet()
    receive(connection, framed(b"\x00\x00\x00\x01" + b"\x00\x23" + b"\x00\x00\x00\x00"))
    with pytest.raises(UnsupportedError, match="UNSUPPORTED_VERSION"):
        receive(connection, framed(b"\x00\x00\x00\x02" + b"\x00\x23" + b"\x00\x00\x00\x00"))


def test_nothing_can_be_sent_before_the_greeting_is_answered() -> None:
    connection = connection_of()
    with pytest.raises(RuntimeError, match="greeting"):
        connection.send(Identify(), None)


# Requests


@pytest.mark.parametrize(("version", "kind"), [(1, HeaderV1), (8, HeaderV1), (9, HeaderV2), (13, HeaderV2)])
def test_a_request_has_the_header_of_its_version(version: int, kind: Any) -> None:
    connection = greeted(pinned(METADATA, version))
    data = joined(connection.send(LookUp(None), "token"))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    header, _ = entity_reader(kind)(data, 4)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (3, version, 2)
    assert header.client_id == CLIENT


def test_correlation_ids_start_anew_before_they_overflow() -> None:
    connection = greeted()
    connection._correlation = CORRELATION_MAX
    connection.send(Identify(), "token")
    assert receive(connection, identity_answer(1)) == [Answered("token", Identity(7, 0))]


def test_a_request_that_kafka_has_no_answer_to_is_refused() -> None:
    class Other(Request[int]):
        pass

    with pytest.raises(RefusedError, match="Kafka has no answer to Other"):
        greeted().send(Other(), None)


def test_a_request_that_the_broker_does_not_serve_is_refused_and_not_waited_for() -> None:
    connection = greeted({API_VERSIONS.key: (0, 4)})
    with pytest.raises(RefusedError, match="InitProducerId"):
        connection.send(Identify(), "token")
    assert connection.unanswered() == []


def test_every_neutral_request_has_an_exchange() -> None:
    kinds = {kind for kind in vars(protocol).values() if isinstance(kind, type) and issubclass(kind, Request)}
    assert set(EXCHANGES) == kinds - {Request}


def test_publishing_without_acks_waits_for_no_answer() -> None:
    connection = greeted()
    batch = Outgoing(Partition("t", 0), b"header", b"payload")
    connection.send(Publish([batch], acks="none"), "silent")
    assert connection.unanswered() == []
    connection.send(Publish([batch], acks="leader"), "loud")
    assert connection.unanswered() == ["loud"]


# Answers


def test_answers_come_with_their_tokens_and_are_forgotten() -> None:
    connection = asking("a", "b", "c")
    assert connection.unanswered() == ["a", "b", "c"]
    assert receive(connection, identity_answer(2, 70) + identity_answer(3, 71)) == [
        Answered("a", Identity(70, 0)),
        Answered("b", Identity(71, 0)),
    ]
    assert connection.unanswered() == ["c"]


def test_answers_that_arrive_byte_by_byte_are_found() -> None:
    connection = asking("a", "b")
    stream = identity_answer(2, 70) + identity_answer(3, 71)
    events = [event for at in range(len(stream)) for event in receive(connection, stream[at : at + 1])]
    assert events == [Answered("a", Identity(70, 0)), Answered("b", Identity(71, 0))]


def test_an_answer_with_the_beginning_of_the_next_is_found() -> None:
    connection = asking("a", "b")
    stream = identity_answer(2, 70) + identity_answer(3, 71)
    assert receive(connection, stream[:-1]) == [Answered("a", Identity(70, 0))]
    assert connection.unanswered() == ["b"]
    assert receive(connection, stream[-1:]) == [Answered("b", Identity(71, 0))]


def test_tags_of_a_header_are_skipped() -> None:
    tags = b"\x02" + b"\x00\x03abc" + b"\x85\x01\x00"
    assert receive(asking("a"), identity_answer(2, tags=tags)) == [Answered("a", Identity(7, 0))]


def test_an_answer_says_how_long_the_broker_wants_to_be_left_alone() -> None:
    assert receive(asking("a"), identity_answer(2, throttle_ms=1234)) == [Answered("a", Identity(7, 0), 1234)]


def test_bytes_after_the_last_field_are_ignored() -> None:
    body = identity_answer(2)[4:]
    assert receive(asking("a"), framed(body + b"more")) == [Answered("a", Identity(7, 0))]


@pytest.mark.parametrize("correlation", [1, 3, 99, -1, 0])
def test_an_answer_out_of_order_is_refused(correlation: int) -> None:
    connection = asking("a", "b")
    with pytest.raises(DecodeError, match="correlation id at byte 0: expected 2"):
        receive(connection, framed(correlation.to_bytes(4, "big", signed=True) + b"whatever"))
    assert connection.unanswered() == ["a", "b"]


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(DecodeError, match="correlation id at byte 0: expected no answer, found 2"):
        receive(greeted(), identity_answer(2))


def test_answers_before_a_failure_in_the_same_bytes_stay_unanswered() -> None:
    connection = asking("a", "b", "c")
    with pytest.raises(DecodeError):
        receive(connection, identity_answer(2) + identity_answer(4))
    assert connection.unanswered() == ["a", "b", "c"]


def test_a_failed_connection_stays_failed() -> None:
    connection = asking("a")
    with pytest.raises(LimitError):
        receive(connection, b"\x7f\xff\xff\xff")
    assert "failed" in repr(connection)
    with pytest.raises(LimitError):
        receive(connection, identity_answer(2))


@given(st.binary(max_size=200))
def test_a_greeting_answered_by_garbage_raises_nothing_but_decode_errors(data: bytes) -> None:
    connection = connection_of()
    connection.greet()
    for part in (data, framed(b"\x00\x00\x00\x01\x00\x00" + data)):
        try:
            receive(connection, part)
        except DecodeError:
            return


def test_kio_bytes_of_the_greeting_are_what_a_broker_sends() -> None:
    from kio.schema.api_versions.v3.response import ApiVersionsResponse

    data = greeting(KAFKA_4_3, NEWEST)
    told, size = entity_reader(ApiVersionsResponse)(io.BytesIO(data).getvalue(), 8)
    assert 8 + size == len(data)
    assert len(told.api_keys) == len(KAFKA_4_3)
