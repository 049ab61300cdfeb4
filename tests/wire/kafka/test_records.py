"""Opening a batch whose bytes come from a stranger: one clear error, and no memory for what is only announced."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError, LimitError
from penstock.wire.compression import Codec, compress
from penstock.wire.entry import Buffer, PropertyClaim
from penstock.wire.kafka.header import peek, split
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CODEC_NUMBERS
from penstock.wire.kafka.records import decode
from tests.wire.kafka.entries import make_entry, read, record, with_checksum, with_fields, write
from tests.wire.kafka.messages import SENT, Sent, damaged, expected
from tests.wire.kafka.twins import Kit

MOST = (1 << 31) - 1
PEAK_BYTES_MAX = 1 << 20
CLAIMED = PropertyClaim({"a": "1"}, {"b": frozenset(("x", None))})
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", Codec)
def test_records_above_the_limit_are_refused(kit: Kit, codec: Codec) -> None:
    messages = [Sent(bytes(50_000))] * 4
    entry = write(messages, codec)
    assert len(kit.decode(entry, bytes_max=201_000)) == 4
    with pytest.raises(LimitError):
        kit.decode(entry, bytes_max=199_999)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_decompression_bomb_is_refused_without_the_memory_it_asks_for(kit: Kit, codec: Codec) -> None:
    bomb = make_entry(compress(codec, bytes(64 << 20)), count=1, attributes=CODEC_NUMBERS[codec])
    assert len(bomb) < 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(LimitError):
            kit.decode(bomb, bytes_max=PEAK_BYTES_MAX)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [1000, 1 << 20, MOST])
def test_count_that_is_only_announced_allocates_nothing(kit: Kit, codec: Codec, count: int) -> None:
    payload = compress(codec, record() * 10)
    entry = make_entry(payload, count=count, last_offset_delta=count - 1, attributes=CODEC_NUMBERS[codec])
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="records count at byte 57"):
            kit.decode(entry)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_lengths_that_are_only_announced_allocate_nothing(kit: Kit) -> None:
    huge = b"\xfe\xff\xff\xff\x0f"
    entries = [
        make_entry(record(length=MOST), count=1),
        make_entry(record(key=huge), count=1),
        make_entry(record(value=huge), count=1),
        make_entry(record(header_count=huge, headers=bytes(40)), count=1),
        make_entry(record(header_count=b"\x02", headers=huge), count=1),
        make_entry(record(header_count=b"\x02", headers=b"\x00" + huge), count=1),
    ]
    tracemalloc.start()
    try:
        for entry in entries:
            with pytest.raises(DecodeError, match="found 2147483647"):
                kit.decode(entry)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(("count", "text"), [(1, "no bytes after the last field"), (3, "a varint")])
def test_count_that_differs_from_the_records_is_told(kit: Kit, codec: Codec, count: int, text: str) -> None:
    payload = compress(codec, record(value=b"\x10" + bytes(8)) * 2)
    with pytest.raises(DecodeError, match=text) as caught:
        kit.decode(make_entry(payload, count=count, attributes=CODEC_NUMBERS[codec]))
    assert caught.value.field.startswith("record")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_payload_of_another_codec_is_refused(kit: Kit, codec: Codec) -> None:
    for other in Codec:
        if other is not codec:
            payload = compress(other, record() * 50)
            with pytest.raises(DecodeError):
                kit.decode(make_entry(payload, count=50, attributes=CODEC_NUMBERS[codec]))


def touch(buffer: bytes) -> None:
    """Everything a reader does with fetched bytes; only the one family of errors is allowed."""
    entries: list[Buffer] = [buffer]
    with suppress(DecodeError):
        entries += split(buffer)
    for entry in entries:
        with suppress(DecodeError):
            peek(entry, bytes_max=1 << 20)
        with suppress(DecodeError):
            decode(entry, bytes_max=1 << 20).to_record_batch().validate(full=True)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(buffer: bytes) -> None:
    touch(buffer)


@given(st.binary(max_size=150), st.integers(0, 7), st.integers(0, 1 << 16), st.booleans())
def test_any_payload_behind_a_right_header_is_read_or_refused(
    payload: bytes, codec: int, count: int, has_claim: bool
) -> None:
    touch(make_entry(payload, count=count, attributes=codec | 0x4000 * has_claim))


@pytest.mark.parametrize("codec", Codec)
@given(payload=st.binary(max_size=100), count=st.integers(0, 16), has_claim=st.booleans())
@settings(max_examples=50)
def test_any_records_in_a_right_compression_are_read_or_refused(
    codec: Codec, payload: bytes, count: int, has_claim: bool
) -> None:
    attributes = CODEC_NUMBERS[codec] | 0x4000 * has_claim
    touch(make_entry(compress(codec, payload), count=count, attributes=attributes))


@pytest.mark.parametrize("codec", Codec)
@given(data=st.data(), messages=st.lists(SENT, min_size=1, max_size=3), has_claim=st.booleans())
@settings(max_examples=60)
def test_damaged_batches_with_a_right_checksum_are_read_or_refused(
    codec: Codec, data: st.DataObject, messages: list[Sent], has_claim: bool
) -> None:
    entry = write(messages, codec, claim=CLAIMED if has_claim else PropertyClaim())
    spoilt = data.draw(damaged(entry))
    touch(with_checksum(spoilt))
    if len(spoilt) >= BATCH_HEADER_BYTES:
        touch(with_fields(spoilt, length=len(spoilt) - 12, magic=2))


@pytest.mark.parametrize("codec", Codec)
@given(data=st.data(), messages=st.lists(SENT, min_size=1, max_size=3))
@settings(max_examples=40)
def test_damaged_batch_is_found_by_its_checksum(codec: Codec, data: st.DataObject, messages: list[Sent]) -> None:
    entry = write(messages, codec)
    at = data.draw(st.integers(BATCH_HEADER_BYTES, len(entry) - 1))
    spoilt = entry[:at] + bytes([entry[at] ^ data.draw(st.integers(1, 255))]) + entry[at + 1 :]
    with pytest.raises(DecodeError, match="crc"):
        decode(spoilt)


def test_payload_of_any_size_class_is_read(kit: Kit) -> None:
    for size in (0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152):
        messages = [Sent(bytes(size), bytes(size // 2))]
        assert read(kit.decode(write(messages, make=kit.BatchBuffer))) == expected(messages)
