"""Gathering: the fields of records as columns; for bytes that are no records one error, the same from both twins."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.wire.columns import to_arrow
from penstock.wire.kafka.faults import Fault, Field, Kind, fault_error
from penstock.wire.kafka.framing import varint
from tests.wire.kafka.conftest import Both
from tests.wire.kafka.entries import read, record
from tests.wire.kafka.messages import SENT, Sent, damaged, expected
from tests.wire.kafka.twins import Twin, shape_of

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FRAMED = st.lists(SENT, max_size=6)


def payload_of(twin: Twin, messages: list[Sent]) -> bytes:
    buffer = twin.RecordBuffer(1 << 26)
    for sent in messages:
        buffer.append(*sent)
    with buffer.records() as records:
        return bytes(records)


@given(FRAMED)
def test_what_was_framed_is_gathered(twin: Twin, messages: list[Sent]) -> None:
    base_time_ms = messages[0].time_ms if messages else 0
    columns = twin.gather(payload_of(twin, messages), len(messages), 1000, base_time_ms)
    assert read(to_arrow(columns)) == expected(messages, base_offset=1000)


@given(FRAMED, INT64, INT64)
def test_twins_gather_the_same(both: Both, messages: list[Sent], base_offset: int, base_time_ms: int) -> None:
    payload = payload_of(both.plain, messages)
    plain, compiled = (twin.gather(payload, len(messages), base_offset, base_time_ms) for twin in both)
    assert shape_of(plain) == shape_of(compiled)


def story(twin: Twin, payload: bytes, count: int) -> Any:
    """The columns, or all that the one error tells that is allowed."""
    try:
        return shape_of(twin.gather(payload, count, 7, 9))
    except DecodeError as error:
        return type(error), str(error), error.offset, error.field, error.expected, error.found


@given(st.data(), st.lists(SENT, min_size=1, max_size=4), st.integers(-1, 2))
@settings(max_examples=400)
def test_twins_say_the_same_of_damaged_records(
    both: Both, data: st.DataObject, messages: list[Sent], more: int
) -> None:
    payload = data.draw(damaged(payload_of(both.plain, messages)))
    plain, compiled = (story(twin, payload, len(messages) + more) for twin in both)
    assert plain == compiled


@given(st.binary(max_size=60), st.integers(0, 8))
@settings(max_examples=400)
def test_twins_say_the_same_of_any_bytes(both: Both, payload: bytes, count: int) -> None:
    plain, compiled = (story(twin, payload, count) for twin in both)
    assert plain == compiled


@pytest.mark.parametrize("end", range(36))
def test_records_cut_anywhere_are_refused(both: Both, end: int) -> None:
    messages = [Sent(b"value", b"key", {"name": b"x", "other": None}), Sent(None)]
    whole = payload_of(both.plain, messages)
    assert len(whole) == 36
    plain, compiled = (story(twin, whole[:end], 2) for twin in both)
    assert plain == compiled
    assert plain[0] is DecodeError


class Faulty(NamedTuple):
    """A payload with one fault, and how it is told."""

    kind: Kind
    field: Field
    payload: bytes
    text: str
    records: int = 1


LONG_32, LONG_64 = b"\x80\x80\x80\x80\x10", b"\x80" * 9 + b"\x02"
TOO_MANY_32, TOO_MANY_64 = b"\x80" * 5 + b"\x00", b"\x80" * 10 + b"\x00"
TWO_RECORDS = record() + record(offset_delta=varint(1))

FAULTY = [
    # CUT: a varint without an end, at the end of the record or of the payload.
    Faulty(
        Kind.CUT, Field.LENGTH, b"", "record 0 length at byte 0: expected a varint, found the end of the bytes at 0"
    ),
    Faulty(
        Kind.CUT,
        Field.LENGTH,
        b"\x80\x80",
        "record 0 length at byte 0: expected a varint, found the end of the bytes at 2",
    ),
    Faulty(
        Kind.CUT,
        Field.LENGTH,
        record(),
        "record 1 length at byte 7: expected a varint, found the end of the bytes at 7",
        records=2,
    ),
    Faulty(
        Kind.CUT,
        Field.TIMESTAMP_DELTA,
        b"\x0c\x00" + b"\x80" * 5 + record(),
        "record 0 timestamp delta at byte 2: expected a varint, found the end of the bytes at 7",
    ),
    Faulty(
        Kind.CUT,
        Field.OFFSET_DELTA,
        b"\x0c\x00\x00" + b"\x80" * 4 + record(),
        "record 0 offset delta at byte 3: expected a varint, found the end of the bytes at 7",
    ),
    Faulty(
        Kind.CUT,
        Field.KEY_LENGTH,
        b"\x0c\x00\x00\x00" + b"\x80" * 3 + record(),
        "record 0 key length at byte 4: expected a varint, found the end of the bytes at 7",
    ),
    Faulty(
        Kind.CUT,
        Field.VALUE_LENGTH,
        b"\x0c\x00\x00\x00\x01\x80\x80" + record(),
        "record 0 value length at byte 5: expected a varint, found the end of the bytes at 7",
    ),
    Faulty(
        Kind.CUT,
        Field.HEADER_COUNT,
        b"\x0c\x00\x00\x00\x01\x01\x80" + record(),
        "record 0 header count at byte 6: expected a varint, found the end of the bytes at 7",
    ),
    Faulty(
        Kind.CUT,
        Field.HEADER_COUNT,
        b"\x0c\x00\x00\x00\x01\x02x" + record(),
        "record 0 header count at byte 7: expected a varint, found the end of the bytes at 7",
    ),
    Faulty(
        Kind.CUT,
        Field.HEADER_NAME_LENGTH,
        record(header_count=varint(1), headers=b"\x80"),
        "record 0 header name length at byte 7: expected a varint, found the end of the bytes at 8",
    ),
    Faulty(
        Kind.CUT,
        Field.HEADER_VALUE_LENGTH,
        record(header_count=varint(1), headers=b"\x02n"),
        "record 0 header value length at byte 9: expected a varint, found the end of the bytes at 9",
    ),
    # LONG: a varint of more bytes, or more bits, than its type has.
    Faulty(
        Kind.LONG,
        Field.LENGTH,
        TOO_MANY_32 + record(),
        "record 0 length at byte 0: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.LENGTH,
        LONG_32 + record(),
        "record 0 length at byte 0: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.TIMESTAMP_DELTA,
        record(timestamp_delta=LONG_64),
        "record 0 timestamp delta at byte 2: expected a varint of 64 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.TIMESTAMP_DELTA,
        record(timestamp_delta=TOO_MANY_64),
        "record 0 timestamp delta at byte 2: expected a varint of 64 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.OFFSET_DELTA,
        record(offset_delta=LONG_32),
        "record 0 offset delta at byte 3: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.KEY_LENGTH,
        record(key=TOO_MANY_32),
        "record 0 key length at byte 4: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.VALUE_LENGTH,
        record(value=LONG_32),
        "record 0 value length at byte 5: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.HEADER_COUNT,
        record(header_count=TOO_MANY_32),
        "record 0 header count at byte 6: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.HEADER_NAME_LENGTH,
        record(header_count=varint(1), headers=LONG_32),
        "record 0 header name length at byte 7: expected a varint of 32 bits at most, found a longer one",
    ),
    Faulty(
        Kind.LONG,
        Field.HEADER_VALUE_LENGTH,
        record(header_count=varint(1), headers=b"\x00" + LONG_32),
        "record 0 header value length at byte 8: expected a varint of 32 bits at most, found a longer one",
    ),
    # RANGE: negative beyond null, or longer than what is there.
    Faulty(Kind.RANGE, Field.LENGTH, record(length=5), "record 0 length at byte 0: expected 6 to 6, found 5"),
    Faulty(Kind.RANGE, Field.LENGTH, record(length=7), "record 0 length at byte 0: expected 6 to 6, found 7"),
    Faulty(Kind.RANGE, Field.LENGTH, record(length=-1), "record 0 length at byte 0: expected 6 to 6, found -1"),
    Faulty(
        Kind.RANGE,
        Field.LENGTH,
        record(length=(1 << 31) - 1),
        "record 0 length at byte 0: expected 6 to 6, found 2147483647",
    ),
    Faulty(
        Kind.RANGE,
        Field.LENGTH,
        record() + record(length=-(1 << 31)),
        "record 1 length at byte 7: expected 6 to 6, found -2147483648",
        records=2,
    ),
    Faulty(
        Kind.RANGE, Field.KEY_LENGTH, record(key=b"\x03"), "record 0 key length at byte 4: expected -1 to 2, found -2"
    ),
    Faulty(
        Kind.RANGE,
        Field.KEY_LENGTH,
        record(key=varint(3)) + record(),
        "record 0 key length at byte 4: expected -1 to 2, found 3",
    ),
    Faulty(
        Kind.RANGE,
        Field.VALUE_LENGTH,
        record(value=b"\x03"),
        "record 0 value length at byte 5: expected -1 to 1, found -2",
    ),
    Faulty(
        Kind.RANGE,
        Field.VALUE_LENGTH,
        record(value=varint((1 << 31) - 1)),
        "record 0 value length at byte 5: expected -1 to 1, found 2147483647",
    ),
    Faulty(
        Kind.RANGE,
        Field.HEADER_COUNT,
        record(header_count=varint(-1)),
        "record 0 header count at byte 6: expected 0 to 0, found -1",
    ),
    Faulty(
        Kind.RANGE,
        Field.HEADER_COUNT,
        record(header_count=varint((1 << 31) - 1), headers=b"\x00" * 6),
        "record 0 header count at byte 6: expected 0 to 5, found 2147483647",
    ),
    Faulty(
        Kind.RANGE,
        Field.HEADER_NAME_LENGTH,
        record(header_count=varint(1), headers=b"\x01\x01"),
        "record 0 header name length at byte 7: expected 0 to 1, found -1",
    ),
    Faulty(
        Kind.RANGE,
        Field.HEADER_NAME_LENGTH,
        record(header_count=varint(1), headers=varint(9) + b"n\x01") + record(),
        "record 0 header name length at byte 7: expected 0 to 2, found 9",
    ),
    Faulty(
        Kind.RANGE,
        Field.HEADER_VALUE_LENGTH,
        record(header_count=varint(1), headers=b"\x00\x03"),
        "record 0 header value length at byte 8: expected -1 to 0, found -2",
    ),
    Faulty(
        Kind.RANGE,
        Field.HEADER_VALUE_LENGTH,
        record(header_count=varint(1), headers=b"\x00\x02") + record(),
        "record 0 header value length at byte 8: expected -1 to 0, found 1",
    ),
    # LEFT OVER: bytes after the last field of a record, and after the last record.
    Faulty(
        Kind.LEFT_OVER,
        Field.END,
        record(headers=b"\x00\x00"),
        "record 0 end at byte 7: expected no bytes after the last field, found 2 bytes",
    ),
    Faulty(
        Kind.LEFT_OVER,
        Field.END,
        TWO_RECORDS + b"\x00",
        "record 2 end at byte 14: expected no bytes after the last field, found 1 bytes",
        records=2,
    ),
    Faulty(
        Kind.LEFT_OVER,
        Field.END,
        TWO_RECORDS,
        "record 1 end at byte 7: expected no bytes after the last field, found 7 bytes",
    ),
    Faulty(
        Kind.LEFT_OVER,
        Field.END,
        record(),
        "record 0 end at byte 0: expected no bytes after the last field, found 7 bytes",
        records=0,
    ),
]


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda faulty: f"{faulty.kind.name}-{faulty.field.name}")
def test_every_fault_is_told_with_offset_field_and_expectation(twin: Twin, faulty: Faulty) -> None:
    with pytest.raises(DecodeError) as caught:
        twin.gather(faulty.payload, faulty.records, 0, 0)
    assert str(caught.value) == faulty.text


def test_every_fault_that_can_be_is_among_the_cases() -> None:
    varints = set(Field) - {Field.ATTRIBUTES, Field.END}
    lengths = varints - {Field.TIMESTAMP_DELTA, Field.OFFSET_DELTA}
    # A record of the least length has its attributes, so that byte is never cut off.
    possible = {(Kind.CUT, field) for field in varints} | {(Kind.LONG, field) for field in varints}
    possible |= {(Kind.RANGE, field) for field in lengths} | {(Kind.LEFT_OVER, Field.END)}
    assert {(faulty.kind, faulty.field) for faulty in FAULTY} == possible


def test_fault_tells_where_and_why() -> None:
    error = fault_error(Fault(Kind.RANGE, Field.KEY_LENGTH, record=3, offset=17, low=-1, high=5, found=9))
    assert (error.offset, error.field, error.expected, error.found) == (17, "record 3 key length", "-1 to 5", 9)


def test_longest_varints_are_read(twin: Twin) -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    payload = record(timestamp_delta=varint(least), offset_delta=varint(-(1 << 31)))
    payload += record(timestamp_delta=varint(most), offset_delta=varint((1 << 31) - 1))
    columns = twin.gather(payload, 2, 0, 0)
    assert columns.positions is not None
    assert columns.times_ms.tolist() == [least, most]
    assert columns.positions.tolist() == [-(1 << 31), (1 << 31) - 1]


def test_varint_with_more_bytes_than_it_needs_is_read(twin: Twin) -> None:
    columns = twin.gather(record(offset_delta=b"\x82\x00", value=b"\x82\x80\x80\x80\x00x"), 1, 0, 0)
    assert columns.values.data.tobytes() == b"x"
    assert columns.positions is not None
    assert columns.positions.tolist() == [1]


def test_numbers_beyond_64_bits_wrap_as_in_other_clients(twin: Twin) -> None:
    most = (1 << 63) - 1
    columns = twin.gather(record(timestamp_delta=varint(1), offset_delta=varint(1)), 1, most, most)
    assert columns.positions is not None
    assert columns.positions.tolist() == columns.times_ms.tolist() == [-(1 << 63)]


def test_null_and_empty_are_told_apart(twin: Twin) -> None:
    payload = record(key=b"\x01", value=b"\x00") + record(key=b"\x00", value=b"\x01")
    columns = to_arrow(twin.gather(payload, 2, 0, 0))
    assert columns.key.to_pylist() == [None, b""]
    assert columns.value.to_pylist() == [b"", None]


def test_no_records_make_empty_columns(twin: Twin) -> None:
    columns = to_arrow(twin.gather(b"", 0, 5, 5))
    assert len(columns) == 0
    assert [len(column) for column in columns.to_record_batch()] == [0] * 5


def test_name_that_is_no_utf8_costs_no_message(twin: Twin) -> None:
    columns = to_arrow(twin.gather(record(header_count=varint(1), headers=b"\x04\xffn\x02v"), 1, 0, 0))
    assert columns.properties.to_pylist() == [[("�n", b"v")]]


def test_payload_of_any_buffer_kind_is_read(twin: Twin) -> None:
    for payload in (bytearray(TWO_RECORDS), memoryview(TWO_RECORDS), np.frombuffer(TWO_RECORDS, np.uint8)):
        assert len(twin.gather(payload, 2, 0, 0)) == 2  # type: ignore[arg-type]
