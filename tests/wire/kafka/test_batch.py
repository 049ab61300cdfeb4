"""Framing: what the twins make of messages, of too many of them, and of bad ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BatchStateError, MessageError, MessageTooLargeError
from penstock.wire.columns import from_arrow
from penstock.wire.kafka import batch
from penstock.wire.kafka.framing import NO_HEADERS, frame_header, frame_properties
from tests.wire.kafka.conftest import Both
from tests.wire.kafka.messages import (
    BAD_MAPPINGS,
    BAD_STRINGS,
    BAD_TIMES,
    MAPPINGS,
    SENT,
    STRINGS,
    TIME_MS_MAX,
    TIMES,
    OddDict,
    Sent,
    map_column,
)
from tests.wire.kafka.twins import Twin, outcome, state_of

ROOMY = 1 << 26
SIZES = st.sampled_from([0, 61, 100, 200, 1000, 20_000, ROOMY])
SENT_OR_BAD = SENT | st.builds(
    Sent, STRINGS | BAD_STRINGS, STRINGS | BAD_STRINGS, MAPPINGS | BAD_MAPPINGS, TIMES | BAD_TIMES
)
# Times that fit an array, some of which no log can hold.
ARRAY_TIMES = TIMES | st.sampled_from([-2, TIME_MS_MAX, -(1 << 63), (1 << 63) - 1])


def list_arguments(messages: list[Sent], with_keys: bool, with_properties: bool) -> tuple[Any, Any, Any, Any]:
    return (
        [sent.value for sent in messages],
        [sent.key for sent in messages] if with_keys else None,
        [sent.properties for sent in messages] if with_properties else None,
        np.array([sent.time_ms for sent in messages], np.int64),
    )


def fill(buffer: batch.RecordBuffer, messages: list[Sent]) -> batch.RecordBuffer:
    for sent in messages:
        buffer.append(*sent)
    return buffer


@given(SIZES, st.lists(SENT_OR_BAD, max_size=8))
def test_twins_append_the_same(both: Both, bytes_max: int, messages: list[Sent]) -> None:
    plain, compiled = (twin.RecordBuffer(bytes_max) for twin in both)
    for sent in messages:
        assert outcome(plain.append, *sent) == outcome(compiled.append, *sent)
        assert state_of(plain) == state_of(compiled)


@given(
    SIZES,
    st.lists(SENT, max_size=2),
    st.lists(st.builds(Sent, STRINGS | BAD_STRINGS, STRINGS | BAD_STRINGS, MAPPINGS | BAD_MAPPINGS, ARRAY_TIMES)),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_twins_extend_the_same_from_lists(
    both: Both,
    bytes_max: int,
    before: list[Sent],
    messages: list[Sent],
    with_keys: bool,
    with_properties: bool,
    data: st.DataObject,
) -> None:
    plain, compiled = (fill(twin.RecordBuffer(bytes_max), before) for twin in both)
    start = data.draw(st.integers(0, len(messages)))
    values, keys, properties, times = list_arguments(messages, with_keys, with_properties)
    one_time = data.draw(st.none() | ARRAY_TIMES)
    times = times if one_time is None else one_time
    common = data.draw(st.sampled_from([NO_HEADERS, frame_properties({"a": "1", "b": None})]))
    assert outcome(plain.extend_list, values, keys, properties, times, common, start) == outcome(
        compiled.extend_list, values, keys, properties, times, common, start
    )
    assert state_of(plain) == state_of(compiled)


@given(
    SIZES,
    st.lists(SENT, max_size=2),
    st.lists(st.builds(Sent, STRINGS, STRINGS, MAPPINGS, ARRAY_TIMES)),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_twins_extend_the_same_from_columns(
    both: Both,
    bytes_max: int,
    before: list[Sent],
    messages: list[Sent],
    with_keys: bool,
    with_properties: bool,
    data: st.DataObject,
) -> None:
    plain, compiled = (fill(twin.RecordBuffer(bytes_max), before) for twin in both)
    start = data.draw(st.integers(0, len(messages)))
    columns = from_arrow(
        pa.array([sent.value for sent in messages], pa.binary()),
        pa.array([sent.key for sent in messages], pa.binary()) if with_keys else None,
        map_column([sent.properties for sent in messages]) if with_properties else None,
        [sent.time_ms for sent in messages],
    )
    common = data.draw(st.sampled_from([NO_HEADERS, frame_properties({"a": "1", "b": None})]))
    assert outcome(plain.extend_columns, columns, common, start) == outcome(
        compiled.extend_columns, columns, common, start
    )
    assert state_of(plain) == state_of(compiled)


@given(SIZES, st.lists(SENT, min_size=1, max_size=8))
def test_append_list_and_columns_frame_the_same_bytes(twin: Twin, bytes_max: int, messages: list[Sent]) -> None:
    one_by_one, from_list, from_columns = (twin.RecordBuffer(bytes_max) for _ in range(3))
    taken = 0
    for sent in messages:
        if one_by_one.append(*sent) < 0:
            break
        taken += 1
    values, keys, properties, times = list_arguments(messages, with_keys=True, with_properties=True)
    assert from_list.extend_list(values, keys, properties, times, NO_HEADERS, 0) == taken
    columns = from_arrow(pa.array(values, pa.binary()), pa.array(keys, pa.binary()), map_column(properties), times)
    assert from_columns.extend_columns(columns, NO_HEADERS, 0) == taken
    assert state_of(one_by_one) == state_of(from_list) == state_of(from_columns)


@given(st.lists(SENT, max_size=5), st.lists(SENT, max_size=5))
def test_cleared_buffer_frames_like_a_new_one(twin: Twin, before: list[Sent], messages: list[Sent]) -> None:
    used = fill(twin.RecordBuffer(ROOMY), before)
    used.clear()
    assert state_of(used) == state_of(twin.RecordBuffer(ROOMY))
    assert state_of(fill(used, messages)) == state_of(fill(twin.RecordBuffer(ROOMY), messages))


def test_bytes_of_a_record_are_as_the_protocol_says(twin: Twin) -> None:
    buffer = twin.RecordBuffer()
    buffer.append(b"v", b"", {"n": b"x", "m": None}, 1000)
    buffer.append(None, b"key", None, 999)
    with buffer.records() as records:
        assert bytes(records) == (
            b"\x1c\x00\x00\x00\x00\x02v\x04\x02n\x02x\x02m\x01"  # no time since itself, empty key, two headers
            b"\x12\x00\x01\x02\x06key\x01\x00"  # 1 ms earlier, null value
        )


def test_message_that_would_pass_the_limit_is_refused_and_the_next_smaller_one_taken(twin: Twin) -> None:
    buffer = twin.RecordBuffer(61 + 2 * 17)
    assert buffer.append(b"0123456789") == 0
    assert buffer.append(b"0123456789a") == -1
    assert buffer.append(b"0123456789") == 1
    assert buffer.size == 61 + 2 * 17
    assert buffer.append(None) == -1


def test_first_message_is_taken_however_large(twin: Twin) -> None:
    buffer = twin.RecordBuffer(100)
    assert buffer.append(b"x" * 1000) == 0
    assert buffer.append(None) == -1
    buffer.clear()
    assert buffer.extend_list([b"x" * 1000, b"y"], None, None, -1, NO_HEADERS, 0) == 1


def test_times_may_fall_and_the_extremes_are_kept(twin: Twin) -> None:
    buffer = twin.RecordBuffer()
    assert (buffer.first_time_ms, buffer.min_time_ms, buffer.max_time_ms) == (-1, -1, -1)
    for time_ms in (50, 80, 20, 60):
        buffer.append(b"", event_time_ms=time_ms)
    assert (buffer.first_time_ms, buffer.min_time_ms, buffer.max_time_ms) == (50, 20, 80)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_like_values_and_keys_are_framed_like_bytes(twin: Twin, kind: type) -> None:
    buffer, like = twin.RecordBuffer(), twin.RecordBuffer()
    buffer.append(b"value", b"key")
    like.append(kind(b"value"), kind(b"key"))
    assert state_of(buffer) == state_of(like)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (Sent("text"), "value: expected bytes or None, found str; encode it or give a serializer"),  # type: ignore[arg-type]
        (Sent(b"", 5), "key: expected bytes or None, found int; encode it or give a serializer"),  # type: ignore[arg-type]
        (Sent(b"", None, [("a", b"")]), "properties: expected a mapping of names to values, found list"),  # type: ignore[arg-type]
        (Sent(b"", None, {5: b""}), "properties: expected names of type str, found int"),  # type: ignore[dict-item]
        (
            Sent(b"", None, {"a": 5}),  # type: ignore[dict-item]
            "properties: expected a value of type str, bytes or None, found int",
        ),
        (
            Sent(b"", None, {"\ud800": b""}),
            "properties: '\\ud800' cannot be written as UTF-8: surrogates not allowed",
        ),
        (Sent(b"", time_ms=-2), f"event_time_ms: expected -1 (none) to {TIME_MS_MAX - 1}, found -2"),
        (Sent(b"", time_ms=1 << 70), f"event_time_ms: expected -1 (none) to {TIME_MS_MAX - 1}, found {1 << 70}"),
        (Sent(b"", time_ms=1.5), "event_time_ms: expected an int, found float"),  # type: ignore[arg-type]
    ],
)
def test_bad_message_is_refused_with_its_reason_and_leaves_nothing(twin: Twin, sent: Sent, text: str) -> None:
    buffer = fill(twin.RecordBuffer(), [Sent(b"good")])
    before = state_of(buffer)
    with pytest.raises(MessageError) as caught:
        buffer.append(*sent)
    assert str(caught.value) == text
    assert state_of(buffer) == before


@pytest.mark.parametrize("good", [0, 1, 5])
@pytest.mark.parametrize("has_message_before", [False, True])
def test_bad_element_of_a_list_takes_back_the_good_ones_before_it(
    twin: Twin, good: int, has_message_before: bool
) -> None:
    buffer = fill(twin.RecordBuffer(), [Sent(b"before", time_ms=7)] if has_message_before else [])
    before = state_of(buffer)
    values: list[Any] = [b"good"] * good + ["bad"] + [b"good"]
    with pytest.raises(MessageError, match="found str"):
        buffer.extend_list(values, None, None, 99, NO_HEADERS, 0)
    properties: list[Any] = [{"a": "b"}] * good + [{"a": 5}] + [None]
    with pytest.raises(MessageError, match="found int"):
        buffer.extend_list([b"good"] * len(values), None, properties, 99, NO_HEADERS, 0)
    times = np.array([99] * good + [-5] + [99])
    with pytest.raises(MessageError, match="found -5"):
        buffer.extend_list([b"good"] * len(values), None, None, times, NO_HEADERS, 0)
    assert state_of(buffer) == before


def test_bad_time_in_a_column_takes_back_the_good_ones_before_it(twin: Twin) -> None:
    buffer = fill(twin.RecordBuffer(), [Sent(b"before", time_ms=7)])
    before = state_of(buffer)
    columns = from_arrow(pa.array([b"a", b"b", b"c"]), None, None, [5, 3, -2])
    with pytest.raises(MessageError, match="found -2"):
        buffer.extend_columns(columns, NO_HEADERS, 0)
    assert state_of(buffer) == before


class BrokenMapping(Mapping[str, bytes]):
    """Properties whose own code fails half-way."""

    def __getitem__(self, name: str) -> bytes:
        if name == "bad":
            raise KeyboardInterrupt
        return b"x"

    def __iter__(self) -> Iterator[str]:
        return iter(("good", "bad"))

    def __len__(self) -> int:
        return 2


def test_interrupt_in_the_middle_of_a_list_takes_it_back(twin: Twin) -> None:
    buffer = fill(twin.RecordBuffer(), [Sent(b"before", time_ms=7)])
    before = state_of(buffer)
    with pytest.raises(KeyboardInterrupt):
        buffer.extend_list([b"a", b"b"], None, [{"a": b""}, BrokenMapping()], 9, NO_HEADERS, 0)
    assert state_of(buffer) == before


class BoastingMapping(OddDict):
    """Properties that tell a wrong length."""

    def __len__(self) -> int:
        return 40


def test_headers_are_counted_not_believed(twin: Twin) -> None:
    buffer, honest = twin.RecordBuffer(), twin.RecordBuffer()
    buffer.append(b"", None, BoastingMapping({"a": b"1"}))
    honest.append(b"", None, {"a": b"1"})
    assert state_of(buffer) == state_of(honest)


def test_list_that_shrinks_while_it_is_framed_does_no_harm(twin: Twin) -> None:
    values = [b"x" * 100] * 50

    class Shrinking(OddDict):
        def items(self) -> Any:
            values.clear()
            return super().items()

    buffer = twin.RecordBuffer(ROOMY)
    outcome(buffer.extend_list, values, None, [Shrinking({"a": b"1"})] * 50, 5, NO_HEADERS, 0)
    with buffer.records() as records:
        twin.gather(bytes(records), buffer.count, 0, 0)


def test_record_above_what_its_length_can_tell_is_refused(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = twin.RecordBuffer(1 << 40)
    before = state_of(buffer)
    # Zeros that nobody touches cost no memory; the plain twin would copy them, so its limit is brought nearer.
    most = 1 << 30 if twin.name == "_batch" else 1 << 20
    monkeypatch.setattr(batch, "RECORD_BYTES_MAX", most)
    value = bytes(most)
    text = f"message: framed it takes more than the {most} bytes a record can hold"
    with pytest.raises(MessageTooLargeError) as caught:
        buffer.append(value)
    assert str(caught.value) == text
    with pytest.raises(MessageTooLargeError):
        buffer.extend_list([b"small", value], None, None, -1, NO_HEADERS, 0)
    assert state_of(buffer) == before


def test_sealed_buffer_takes_nothing(twin: Twin) -> None:
    buffer = fill(twin.RecordBuffer(), [Sent(b"x")])
    buffer.sealed = True
    before = state_of(buffer)
    with pytest.raises(BatchStateError, match="sealed"):
        buffer.append(b"")
    with pytest.raises(BatchStateError, match="sealed"):
        buffer.extend_list([], None, None, -1, NO_HEADERS, 0)
    with pytest.raises(BatchStateError, match="sealed"):
        buffer.extend_columns(from_arrow(pa.array([], pa.binary()), None, None, -1), NO_HEADERS, 0)
    assert state_of(buffer) == before


def test_while_records_are_held_nothing_moves(twin: Twin) -> None:
    buffer = fill(twin.RecordBuffer(), [Sent(b"x")])
    view = buffer.records()
    held = bytes(view)
    with pytest.raises(BufferError):
        buffer.append(b"y")
    with pytest.raises(BufferError):
        buffer.extend_list([b"y"], None, None, -1, NO_HEADERS, 0)
    with pytest.raises(BufferError):
        buffer.insert_header(frame_header("a", b"b"))
    with pytest.raises(BufferError):
        buffer.clear()
    assert bytes(view) == held
    assert buffer.count == 1
    view.release()
    assert buffer.append(b"y") == 1
    buffer.clear()
    assert buffer.count == 0


def test_records_are_read_only(twin: Twin) -> None:
    with fill(twin.RecordBuffer(), [Sent(b"x")]).records() as view:
        assert view.readonly


def test_held_records_outlive_their_buffer(twin: Twin) -> None:
    view = fill(twin.RecordBuffer(), [Sent(b"value")]).records()
    assert b"value" in bytes(view)


@given(st.lists(SENT, min_size=1, max_size=4), st.text(max_size=8), STRINGS)
@settings(max_examples=50)
def test_inserted_header_comes_first_and_all_else_stays(
    both: Both, messages: list[Sent], name: str, value: bytes | None
) -> None:
    plain, compiled = (fill(twin.RecordBuffer(ROOMY), messages) for twin in both)
    with plain.records() as records:
        before = both.plain.gather(bytes(records), plain.count, 0, 0)
    for buffer in (plain, compiled):
        buffer.insert_header(frame_header(name, value))
    assert state_of(plain) == state_of(compiled)
    with plain.records() as records:
        after = both.plain.gather(bytes(records), plain.count, 0, 0)
    assert np.array_equal(before.values.data, after.values.data)
    assert after.properties is not None
    first = after.properties.names.offsets[1]
    assert after.properties.names.data[:first].tobytes() == name.encode()
    old_pairs = 0 if before.properties is None else len(before.properties.names.offsets) - 1
    assert len(after.properties.names.offsets) - 1 == old_pairs + 1


@pytest.mark.parametrize("size", [*range(40, 70), *range(8170, 8200), *range(1_048_550, 1_048_580)])
def test_inserted_header_may_lengthen_the_records_own_length(both: Both, size: int) -> None:
    plain, compiled = (fill(twin.RecordBuffer(ROOMY), [Sent(bytes(size)), Sent(b"next")]) for twin in both)
    for buffer in (plain, compiled):
        buffer.insert_header(frame_header("name", b"value"))
    assert state_of(plain) == state_of(compiled)


def test_header_count_may_lengthen_too(both: Both) -> None:
    many = {f"p{i}": b"" for i in range(63)}
    plain, compiled = (fill(twin.RecordBuffer(ROOMY), [Sent(b"", None, many)]) for twin in both)
    for buffer in (plain, compiled):
        buffer.insert_header(frame_header("name", b"value"))
    assert state_of(plain) == state_of(compiled)


def test_empty_buffer_has_no_record_to_insert_into(both: Both) -> None:
    plain, compiled = (outcome(twin.RecordBuffer().insert_header, b"\x00\x00") for twin in both)
    assert plain == compiled
    assert plain[1] == "record 0 length at byte 0: expected a varint, found the end of the bytes at 0"
