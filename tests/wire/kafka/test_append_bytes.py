"""The compiled seam for senders: the same bytes as `append`, or a number that says why not; never an error."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BatchStateError, MessageTooLargeError
from penstock.wire.compression import Codec
from tests.wire.kafka.conftest import Both
from tests.wire.kafka.messages import DICTS, LONG_DICTS, MANY, NOW_MS, STRINGS, TIMES, OddDict, Sent
from tests.wire.kafka.twins import COMPILED, kit_of, load_seam, load_twin, outcome, state_of

NO_ROOM, NOT_PLAIN = -1, -3
BAD_DICTS: st.SearchStrategy[Any] = st.sampled_from([{5: b"1"}, {"a": 5}, {"\ud800": b""}, {"a": b"1", "b": "\udfff"}])
PLAIN_SENT = st.builds(Sent, STRINGS, STRINGS, st.none() | DICTS, TIMES)
ANY_SENT = PLAIN_SENT | st.builds(Sent, STRINGS, STRINGS, LONG_DICTS | BAD_DICTS, TIMES)
SIZES = st.sampled_from([0, 61, 100, 200, 1000, 20_000, 1 << 26])


@pytest.fixture(scope="module")
def seam() -> ModuleType:
    return load_seam()


@given(SIZES, st.lists(ANY_SENT, max_size=8))
def test_what_is_taken_is_framed_as_the_plain_twin_does(
    both: Both, seam: ModuleType, bytes_max: int, messages: list[Sent]
) -> None:
    plain, compiled = (twin.RecordBuffer(bytes_max) for twin in both)
    for sent in messages:
        index = seam.append_bytes(compiled, *sent)
        if index == NOT_PLAIN:
            index = outcome(compiled.append, *sent)
        assert index == outcome(plain.append, *sent)
        assert state_of(compiled) == state_of(plain)


@given(SIZES, st.lists(PLAIN_SENT, max_size=8))
def test_plain_messages_are_never_sent_the_slow_way(
    both: Both, seam: ModuleType, bytes_max: int, messages: list[Sent]
) -> None:
    compiled = both.compiled.RecordBuffer(bytes_max)
    assert all(seam.append_bytes(compiled, *sent) >= NO_ROOM for sent in messages)


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 100, 8180, 8191, 8192, 9000])
def test_values_alone_are_framed_the_same_at_every_size_and_index(both: Both, seam: ModuleType, size: int) -> None:
    plain, compiled = (twin.RecordBuffer(1 << 26) for twin in both)
    for i in range(9000 if size < 200 else 200):
        message = Sent(bytes(size), time_ms=NOW_MS + i % 70)
        assert seam.append_bytes(compiled, *message) == plain.append(*message) == i
    assert state_of(compiled) == state_of(plain)


def test_bad_properties_and_too_many_are_left_to_the_slow_way(both: Both, seam: ModuleType) -> None:
    compiled = both.compiled.RecordBuffer()
    before = state_of(compiled)
    many = {f"p{i}": "x" for i in range(MANY)}
    for properties in ({5: b"1"}, {"a": 5}, {"a": "\udfff"}, {"a": bytearray(b"1")}, many):
        assert seam.append_bytes(compiled, b"v", None, properties, 5) == NOT_PLAIN
    assert state_of(compiled) == before


def test_batch_of_a_python_class_is_served(seam: ModuleType) -> None:
    batch = kit_of(load_twin(COMPILED)).BatchBuffer(200)
    assert [seam.append_bytes(batch, bytes(50), None, None, 5) for _ in range(3)] == [0, 1, NO_ROOM]
    batch.bytes_max = 1000
    assert seam.append_bytes(batch, bytes(50), b"key", {"a": "b"}, 5) == 2
    for codec in (Codec.NONE, Codec.LZ4):
        batch.seal(codec)
        assert seam.append_bytes(batch, b"x", None, None, 5) == NO_ROOM
        assert seam.append_bytes(batch, b"x", b"k", None, 5) == NO_ROOM
        with pytest.raises(BatchStateError, match="takes no more messages"):
            batch.append(b"x")
        batch.clear()
        assert seam.append_bytes(batch, b"x", None, None, 5) == 0


def test_while_records_are_held_the_slow_way_tells_so(both: Both, seam: ModuleType) -> None:
    compiled = both.compiled.RecordBuffer()
    compiled.append(b"x")
    with compiled.records():
        assert seam.append_bytes(compiled, b"y", None, None, 5) == NOT_PLAIN
        with pytest.raises(BufferError):
            compiled.append(b"y")
    assert seam.append_bytes(compiled, b"y", None, None, 5) == 1


def test_record_that_is_too_large_is_left_to_the_slow_way(both: Both, seam: ModuleType) -> None:
    compiled = both.compiled.RecordBuffer(1 << 40)
    value = bytes(1 << 30)  # zeros that nobody touches cost no memory
    before = state_of(compiled)
    assert seam.append_bytes(compiled, value, None, None, 5) == NOT_PLAIN
    assert seam.append_bytes(compiled, value, b"k", {"a": "b"}, 5) == NOT_PLAIN
    with pytest.raises(MessageTooLargeError):
        compiled.append(value)
    assert state_of(compiled) == before


def test_buffer_of_no_system_sends_everything_the_slow_way(seam: ModuleType) -> None:
    assert seam.append_bytes(seam.MessageBuffer(), b"v", None, None, 5) == NOT_PLAIN


@pytest.mark.parametrize("odd", [(bytearray(b"v"), None, None), (b"v", "key", None), (b"v", None, OddDict())])
def test_arguments_that_senders_must_not_give_are_told_to_tests(
    both: Both, seam: ModuleType, odd: tuple[Any, Any, Any]
) -> None:
    with pytest.raises(TypeError, match="expected exactly"):
        seam.append_bytes(both.compiled.RecordBuffer(), *odd, 5)
