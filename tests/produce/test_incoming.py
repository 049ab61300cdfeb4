from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MessageError
from penstock.produce.batch import NO_FIELDS, Fields
from penstock.produce.incoming import Incoming, check, time_ms_of
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.system import KafkaWire

WIRE = KafkaWire()
texts = st.text(max_size=20)
pairs = st.dictionaries(texts, st.none() | texts | st.binary(max_size=40), max_size=5)
times = st.integers(0, (1 << 62) - 1)


def test_a_plain_message_is_taken_as_it_is() -> None:
    message = check(WIRE, b"v", b"k", {"a": "b"}, 5, 3)
    assert message[:6] == (b"v", b"k", {"a": "b"}, 5, 3, NO_FIELDS)
    assert check(WIRE, None)[:6] == (None, None, None, None, None, NO_FIELDS)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_of_any_kind_are_copied(kind: Any) -> None:
    message = check(WIRE, kind(b"v"), kind(b"k"))
    assert (message.value, message.key) == (b"v", b"k")
    assert type(message.value) is type(message.key) is bytes


def test_what_kafka_has_no_field_for_is_put_among_the_properties() -> None:
    message = check(WIRE, b"v", None, {"a": "b"}, None, None, "red", ["one", "two"], None, True)
    assert message.properties == {"a": "b", "penstock.tag": "red", "penstock.keys": "one two"}
    assert message.fields == Fields("red", True)
    assert check(WIRE, b"v", keys="one").properties == {"penstock.keys": "one"}
    assert check(WIRE, b"v", keys=[]).properties is None


def test_a_mapping_that_changes_later_changes_no_message() -> None:
    given_ = {"a": "b"}
    message = check(WIRE, b"v", None, given_)
    given_["a"] = "c"
    assert message.properties == {"a": "b"}


@given(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=40),
    st.none() | pairs,
    times,
    st.none() | st.text(min_size=1, max_size=20),
)
def test_the_size_of_a_message_is_no_less_than_what_it_takes_framed(
    value: bytes | None, key: bytes | None, properties: Any, time_ms: int, tag: str | None
) -> None:
    if properties is not None:
        properties.pop("penstock.tag", None)
    message: Incoming = check(WIRE, value, key, properties, time_ms, None, tag)
    buffer = BatchBuffer(1 << 20)
    buffer.append(b"first", None, None, 0)
    before = buffer.size
    buffer.append(message.value, message.key, message.properties, time_ms)
    assert buffer.size - before <= message.size <= buffer.size - before + 40 + 10 * len(message.properties or ())


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (0, 0),
        (1_700_000_000_123, 1_700_000_000_123),
        (datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200_000),
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 1_704_067_200_000),
        (datetime(2024, 1, 1, 0, 0, 0, 1600, tzinfo=UTC), 1_704_067_200_002),
    ],
)
def test_times_are_milliseconds_or_datetimes_that_know_their_zone(time: Any, expected: int) -> None:
    assert time_ms_of(time, "event_time") == expected


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(2024, 1, 1), "does not say in which time zone it is"),
        (True, "expected milliseconds as an int, or a datetime, found bool"),
        (1.5, "found float"),
        (-1, "expected 0 to"),
        (1 << 62, "expected 0 to"),
        (datetime(1969, 1, 1, tzinfo=UTC), "expected 0 to"),
    ],
)
def test_times_that_cannot_be_are_named(time: Any, text: str) -> None:
    with pytest.raises(MessageError, match=f"event_time: .*{text}"):
        time_ms_of(time, "event_time")
