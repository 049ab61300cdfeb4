from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.apis import BY_KEY, TABLE, Served
from penstock.broker.server.kafka.codes import CODES, UNKNOWN_SERVER_ERROR, code_of
from penstock.errors import ChecksumError, DecodeError, StorageFullError
from penstock.wire.kafka.writer import writer_of
from tests.broker.server.kafka.samples import in_all_versions, kio_bytes, kio_entity, named, plain, values_of

SEEDS = range(5)
KNOWN = in_all_versions()
BAD = (DecodeError, IndexError, struct.error)


def request_bytes(api: Served, version: int, seed: int) -> tuple[dict[str, Any], bytes]:
    kind = codec.schema_of(api, version, "request")
    values = values_of(kind, random.Random(f"{api} {version} {seed}"))
    return values, kio_bytes(kio_entity(kind, values))


@pytest.mark.parametrize("case", KNOWN, ids=named)
def test_requests_are_read_as_kio_writes_them(case: tuple[Served, int]) -> None:
    api, version = case
    for seed in SEEDS:
        values, data = request_bytes(api, version, seed)
        request, end = codec.request_reader(api, version)(memoryview(data), 0)
        assert plain(request) == values
        assert end == len(data)


@pytest.mark.parametrize("case", KNOWN, ids=named)
def test_a_request_cut_anywhere_is_refused(case: tuple[Served, int]) -> None:
    api, version = case
    _values, data = request_bytes(api, version, 1)
    for cut in range(0, len(data), max(1, len(data) // 200)):
        with pytest.raises(BAD):
            codec.request_reader(api, version)(memoryview(data[:cut]), 0)


@pytest.mark.parametrize("case", [(api, api.newest) for api in TABLE], ids=named)
@given(data=st.data())
def test_a_damaged_request_does_no_more_than_be_refused(case: tuple[Served, int], data: st.DataObject) -> None:
    api, version = case
    _values, body = request_bytes(api, version, data.draw(st.integers(0, 20)))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    with contextlib.suppress(*BAD):
        codec.request_reader(api, version)(memoryview(damaged), 0)


def test_null_is_refused_where_the_schema_does_not_allow_it() -> None:
    metadata = BY_KEY[3]
    assert codec.request_reader(metadata, 8)(memoryview(b"\xff\xff\xff\xff\0\0\0"), 0)[0].topics is None
    with pytest.raises(DecodeError, match="found null"):
        codec.request_reader(metadata, 0)(memoryview(b"\xff\xff\xff\xff"), 0)
    with pytest.raises(DecodeError, match="found null"):
        codec.request_reader(metadata, 8)(memoryview(b"\0\0\0\1\xff\xff\0\0\0"), 0)


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x05", b"\xff" * 9 + b"\x01"])
def test_an_array_longer_than_its_request_is_refused_at_once(count: bytes) -> None:
    with pytest.raises(DecodeError, match=r"array|uvarint"):
        codec.request_reader(BY_KEY[3], 12)(memoryview(count + b"\0\0\0"), 0)


@pytest.mark.parametrize("case", KNOWN, ids=named)
def test_answers_are_written_as_kio_writes_them(case: tuple[Served, int]) -> None:
    api, version = case
    kind = codec.schema_of(api, version, "response")
    for seed in SEEDS:
        values = values_of(kind, random.Random(f"{api} {version} {seed}"))
        out = bytearray()
        codec.answer_writer(api, version)(out, values)
        assert bytes(out) == kio_bytes(kio_entity(kind, values))


@pytest.mark.parametrize("case", KNOWN, ids=named)
def test_the_table_says_which_versions_are_compact(case: tuple[Served, int]) -> None:
    api, version = case
    kind = codec.schema_of(api, version, "request")
    assert api.is_flexible(version) == kind.__flexible__
    assert kind.__api_key__ == api.key


def test_the_table_keeps_what_old_clients_conclude_from() -> None:
    oldest = {api.name: api.oldest for api in TABLE}
    assert (oldest["Produce"], oldest["Fetch"]) == (3, 4)
    assert {oldest[name] for name in ("FindCoordinator", "JoinGroup", "Heartbeat", "ApiVersions")} == {0}


def test_missing_values_get_their_defaults_and_fields_of_other_versions_are_left_out() -> None:
    api = BY_KEY[12]  # Heartbeat: version 0 has no throttle time
    assert codec.encode_answer(api, 0, 7, {"error_code": 27, "throttle_time": 3}) == b"\0\0\0\6\0\0\0\7\0\33"
    assert codec.encode_answer(api, 4, 7, {"error_code": 27}) == b"\0\0\0\14\0\0\0\7\0\0\0\0\0\0\33\0"


def test_a_field_that_no_version_has_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="eror_code"):
        codec.encode_answer(BY_KEY[12], 4, 7, {"eror_code": 27})


def test_a_structure_that_is_written_already_is_taken_as_it_is() -> None:
    api = BY_KEY[3]
    broker = {"node_id": 1, "host": "h", "port": 2, "rack": None}
    part = bytearray()
    writer_of(codec.part_of(api, 12, "response", "MetadataResponseBroker"))(part, broker)  # type: ignore[arg-type]
    plain_way = codec.encode_answer(api, 12, 1, {"brokers": [broker, broker]})
    assert codec.encode_answer(api, 12, 1, {"brokers": [bytes(part), bytes(part)]}) == plain_way


def test_every_refusal_has_a_code() -> None:
    assert set(CODES) == set(Refusal)
    assert UNKNOWN_SERVER_ERROR not in CODES.values()


def test_errors_have_codes() -> None:
    assert code_of(Refused(Refusal.UNKNOWN_TOPIC)) == 3
    assert code_of(ChecksumError(0, "crc", "1", 2)) == 2
    assert code_of(StorageFullError("full")) == 56
    assert code_of(ZeroDivisionError()) == -1
