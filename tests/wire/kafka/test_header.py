"""Batches unopened: what a bad header is told, how a fetched buffer is cut, and headers given anew."""

from __future__ import annotations

import random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ChecksumError, DecodeError, UnsupportedError
from penstock.wire.compression import Codec
from penstock.wire.entry import EntryFlag, PropertyClaim, Stamp
from penstock.wire.kafka.header import BatchHeader, parse_header, peek, rewrite_header, split, verify
from penstock.wire.kafka.layout import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CHECKED_AT,
    CLAIM,
    CODEC_BITS,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from penstock.wire.kafka.records import decode
from tests.wire.kafka.entries import make_entry, read, record, with_checksum, with_fields, write
from tests.wire.kafka.messages import NOW_MS, Sent, expected
from tests.wire.kafka.twins import outcome

PAYLOAD = record() + record(offset_delta=b"\x02")
ENTRY = make_entry(PAYLOAD, count=2)
SIZE = len(ENTRY)
MOST = (1 << 31) - 1
OLD = "a message set of version {0}, from before Kafka 0.11"


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"magic": 0}, UnsupportedError, f"magic at byte 16: expected 2, found 0: {OLD.format(0)}"),
        ({"magic": 1}, UnsupportedError, f"magic at byte 16: expected 2, found 1: {OLD.format(1)}"),
        ({"magic": 3}, UnsupportedError, "magic at byte 16: expected 2, found 3"),
        ({"magic": -1}, UnsupportedError, "magic at byte 16: expected 2, found 255"),
        ({"length": SIZE - 13}, DecodeError, "batch length at byte 8: expected 63, the bytes that follow, found 62"),
        ({"length": SIZE - 11}, DecodeError, "batch length at byte 8: expected 63, the bytes that follow, found 64"),
        ({"length": -1}, DecodeError, "batch length at byte 8: expected 63, the bytes that follow, found -1"),
        ({"length": MOST}, DecodeError, f"batch length at byte 8: expected 63, the bytes that follow, found {MOST}"),
        (
            {"attributes": 5},
            UnsupportedError,
            "attributes at byte 21: expected codec 0 to 4 (none, gzip, snappy, lz4, zstd), found codec 5",
        ),
        (
            {"attributes": 6},
            UnsupportedError,
            "attributes at byte 21: expected codec 0 to 4 (none, gzip, snappy, lz4, zstd), found codec 6",
        ),
        (
            {"attributes": 7 | TRANSACTIONAL},
            UnsupportedError,
            "attributes at byte 21: expected codec 0 to 4 (none, gzip, snappy, lz4, zstd), found codec 7",
        ),
        ({"last_offset_delta": -1}, DecodeError, "last offset delta at byte 23: expected 0 or more, found -1"),
        ({"count": -1}, DecodeError, "records count at byte 57: expected 0 to 2, found -1"),
        ({"count": 3}, DecodeError, "records count at byte 57: expected 0 to 2, found 3"),
        ({"count": MOST}, DecodeError, f"records count at byte 57: expected 0 to 2, found {MOST}"),
        (
            {"count": MOST, "last_offset_delta": MOST},
            DecodeError,
            f"records count at byte 57: expected 2 at most in {SIZE} bytes, found {MOST}",
        ),
        (
            {"count": 3, "last_offset_delta": 2},
            DecodeError,
            f"records count at byte 57: expected 2 at most in {SIZE} bytes, found 3",
        ),
    ],
)
def test_bad_field_is_told_with_offset_and_expectation(
    fields: dict[str, int], error: type[Exception], text: str
) -> None:
    entry = with_fields(ENTRY, **fields)
    for judge in (parse_header, peek, verify, decode):
        assert outcome(judge, entry) == (error, text)
    assert outcome(rewrite_header, entry, Stamp()) == (error, text)


@pytest.mark.parametrize("bit", [bit for bit in range(3, 16) if 1 << bit & ~0x4078])
def test_unknown_flag_bit_is_named(bit: int) -> None:
    signed = (1 << bit) - (1 << 16) * (bit == 15)
    assert outcome(peek, with_fields(ENTRY, attributes=signed)) == (
        UnsupportedError,
        f"attributes at byte 21: expected flag bits within 0x407f, found {1 << bit:#06x}",
    )


@pytest.mark.parametrize(
    ("bit", "flag"),
    [
        (LOG_APPEND_TIME, EntryFlag.LOG_TIME),
        (TRANSACTIONAL, EntryFlag.TRANSACTIONAL),
        (CONTROL, EntryFlag.CONTROL),
        (DELETE_HORIZON, EntryFlag.PURGE_DATED),
        (TRANSACTIONAL | CONTROL, EntryFlag.TRANSACTIONAL | EntryFlag.CONTROL),
    ],
)
def test_known_flag_bits_are_told(bit: int, flag: EntryFlag) -> None:
    assert peek(with_fields(ENTRY, attributes=bit)).flags == flag


@pytest.mark.parametrize("end", range(SIZE))
def test_batch_cut_anywhere_is_refused(end: int) -> None:
    cut = ENTRY[:end]
    with pytest.raises(DecodeError) as caught:
        peek(cut)
    if end < BATCH_HEADER_BYTES:
        assert str(caught.value) == f"batch header at byte {end}: expected 61 bytes, found {end} bytes"
    else:
        assert caught.value.field == "batch length"
    with pytest.raises(DecodeError):
        decode(cut)
    assert split(cut) == []


def test_old_message_set_is_named_even_when_it_is_short() -> None:
    message = bytes(8) + (26).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(21)
    for judge in (peek, decode, split):
        with pytest.raises(UnsupportedError, match="a message set of version 1, from before Kafka"):
            judge(message)


@pytest.mark.parametrize("at", range(CHECKED_AT, SIZE))
def test_any_changed_byte_after_the_checksum_is_found(at: int) -> None:
    changed = bytearray(ENTRY)
    changed[at] ^= 0x10
    with pytest.raises(DecodeError):
        verify(bytes(changed))


def test_wrong_checksum_tells_both() -> None:
    entry = with_fields(ENTRY, crc=0x12345678)
    right = crc32c(ENTRY[CHECKED_AT:])
    for judge in (verify, decode):
        assert outcome(judge, entry) == (
            ChecksumError,
            f"crc at byte 17: expected 0x12345678 over the bytes that follow, found {right:#010x}",
        )
    assert peek(entry).count == 2


def test_offset_and_leader_epoch_are_outside_the_checksum() -> None:
    changed = with_fields(ENTRY, crc=crc32c(ENTRY[CHECKED_AT:]), base_offset=1 << 60, leader_epoch=12)
    assert verify(changed).base_offset == 1 << 60


def test_thinned_batch_is_recognised_and_read() -> None:
    payload = record(offset_delta=b"\x04") + record(offset_delta=b"\x0a")
    entry = make_entry(payload, count=2, last_offset_delta=9, base_offset=100)
    assert peek(entry).flags == EntryFlag.THINNED
    assert (peek(entry).first, peek(entry).last) == (100, 109)
    assert decode(entry).position.to_pylist() == [102, 105]


def test_batch_that_lost_all_its_messages_is_read() -> None:
    entry = make_entry(b"", count=0, last_offset_delta=9, base_offset=100)
    assert peek(entry).flags == EntryFlag.THINNED
    assert len(decode(entry)) == 0


def test_times_are_counted_from_the_delete_horizon_where_there_is_one() -> None:
    entry = make_entry(
        record(timestamp_delta=b"\x09"),
        count=1,
        attributes=DELETE_HORIZON,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS - 5,
    )
    assert [message.time_ms for message in read(decode(entry))] == [NOW_MS - 5]


THREE = [
    write([Sent(b"one", b"k"), Sent(None)]),
    write([Sent(b"two" * 30, None, {"a": "b"})], Codec.LZ4),
    write([Sent(b"three")]),
]


@pytest.mark.parametrize("end", range(sum(map(len, THREE)) + 1))
def test_every_prefix_of_a_fetched_buffer_gives_its_whole_batches(end: int) -> None:
    whole = [entry for i, entry in enumerate(THREE) if sum(map(len, THREE[: i + 1])) <= end]
    assert split(b"".join(THREE)[:end]) == whole


def test_split_batches_are_views_of_the_buffer() -> None:
    buffer = bytearray(b"".join(THREE))
    entries = split(buffer)
    buffer[0] = 0x7F
    assert entries[0][0] == 0x7F
    assert all(isinstance(entry, memoryview) for entry in entries)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_kind_is_cut_and_judged(kind: Any) -> None:
    entries = split(kind(b"".join(THREE)))
    assert entries == THREE
    for entry, original in zip(entries, THREE, strict=True):
        assert peek(entry) == peek(kind(original)) == peek(original)
        assert read(decode(entry)) == read(decode(kind(original)))


@pytest.mark.parametrize("tail", [b"\x00", bytes(16), b"\xff" * 16, THREE[0][:-1], THREE[1][:40]])
def test_bytes_of_a_cut_batch_at_the_end_are_left_out(tail: bytes) -> None:
    assert split(b"".join(THREE) + tail) == THREE


@pytest.mark.parametrize(
    ("tail", "error", "text"),
    [
        (bytes(17), UnsupportedError, "magic at byte {0}: expected 2, found 0: " + OLD.format(0)),
        (b"\xff" * 17, UnsupportedError, "magic at byte {0}: expected 2, found 255"),
        (make_entry(b"", length=48), DecodeError, "batch length at byte {1}: expected 49 or more, found 48"),
        (make_entry(b"", length=-1), DecodeError, "batch length at byte {1}: expected 49 or more, found -1"),
    ],
)
def test_bytes_at_the_end_that_are_no_batch_are_told(tail: bytes, error: type[Exception], text: str) -> None:
    end = sum(map(len, THREE))
    wanted = error, text.format(end + 16, end + 8)
    assert outcome(split, b"".join(THREE) + tail) == wanted


def test_length_beyond_the_buffer_is_a_cut_batch() -> None:
    assert split(make_entry(b"", length=MOST)) == []


STAMPS = st.builds(
    Stamp,
    st.integers(-1, (1 << 63) - 1),
    st.integers(-1, (1 << 15) - 1),
    st.integers(-1, MOST),
    st.booleans(),
)
KEPT = CODEC_BITS | CLAIM


def from_scratch(entry: bytes, stamp: Stamp) -> bytes:
    """What rewriting must give, all made anew."""
    old = BatchHeader._make(BATCH_HEADER.unpack_from(entry))
    return with_fields(
        entry,
        base_offset=0,
        leader_epoch=-1,
        attributes=old.attributes & KEPT | TRANSACTIONAL * stamp.transactional,
        producer_id=stamp.producer,
        producer_epoch=stamp.epoch,
        base_sequence=stamp.sequence,
    )


@given(
    size=st.integers(0, 2000) | st.sampled_from([65_536, 1_048_576, 2_000_000, 2_097_152]),
    flags=st.sets(st.sampled_from([LOG_APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON, CLAIM])),
    codec=st.integers(1, 4),
    stamp=STAMPS,
    base_offset=st.integers(0, 1 << 62),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=60)
def test_rewritten_header_is_the_one_made_from_scratch(
    size: int, flags: set[int], codec: int, stamp: Stamp, base_offset: int, seed: int
) -> None:
    payload = random.Random(seed).randbytes(size)
    entry = make_entry(
        payload,
        count=3,
        attributes=codec | sum(flags),
        base_offset=base_offset,
        leader_epoch=5,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + 9,
        producer_id=77,
    )
    head, body = rewrite_header(entry, stamp)
    rewritten = head + body
    assert rewritten == from_scratch(entry, stamp)
    assert rewritten == with_checksum(rewritten)


def test_rewriting_copies_no_payload() -> None:
    entry = bytearray(ENTRY)
    _, payload = rewrite_header(entry, Stamp())
    entry[BATCH_HEADER_BYTES] ^= 0xFF
    assert payload[0] == entry[BATCH_HEADER_BYTES]
    assert payload.readonly


@pytest.mark.parametrize("at", [BATCH_HEADER_BYTES, SIZE - 1])
def test_damaged_payload_stays_detectably_damaged_when_the_header_is_rewritten(at: int) -> None:
    damaged = bytearray(ENTRY)
    damaged[at] ^= 1
    rewritten = b"".join(rewrite_header(bytes(damaged), Stamp(5, 6, 7)))
    with pytest.raises(ChecksumError):
        decode(rewritten)


def test_rewritten_twice_is_like_rewritten_once() -> None:
    once = b"".join(rewrite_header(ENTRY, Stamp(1, 2, 3)))
    twice = b"".join(
        rewrite_header(b"".join(rewrite_header(ENTRY, Stamp(9, 9, 9, transactional=True))), Stamp(1, 2, 3))
    )
    assert once == twice


def test_senders_times_show_again_when_a_batch_with_log_append_time_is_rewritten() -> None:
    messages = [Sent(b"x", time_ms=NOW_MS), Sent(b"y", time_ms=NOW_MS + 3)]
    stored = with_fields(write(messages), attributes=LOG_APPEND_TIME, max_timestamp=NOW_MS + 60_000)
    assert {message.time_ms for message in read(decode(stored))} == {NOW_MS + 60_000}
    assert read(decode(b"".join(rewrite_header(stored, Stamp())))) == expected(messages)


def test_earliest_time_is_unknown_where_the_header_cannot_tell_it() -> None:
    alone = write([Sent(b"x", time_ms=NOW_MS)])
    assert peek(alone).min_time_ms == NOW_MS
    stored = with_fields(alone, attributes=LOG_APPEND_TIME, max_timestamp=NOW_MS + 60_000)
    assert peek(stored).min_time_ms == NOW_MS + 60_000
    assert peek(b"".join(rewrite_header(stored, Stamp()))).min_time_ms is None
    thinned = make_entry(record(timestamp_delta=b"\x06"), count=1, last_offset_delta=4, max_timestamp=3)
    assert peek(thinned).min_time_ms is None


def test_control_batch_is_not_copied() -> None:
    for attributes in (CONTROL, CONTROL | TRANSACTIONAL):
        assert outcome(rewrite_header, with_fields(ENTRY, attributes=attributes), Stamp()) == (
            UnsupportedError,
            "attributes at byte 21: expected a batch of messages, found a control batch",
        )


def test_claim_and_messages_survive_rewriting() -> None:
    messages = [Sent(b"x", None, {"a": "1"}), Sent(b"y", None, {"a": "1"})]
    entry = write(messages, Codec.ZSTD, claim=PropertyClaim({"a": "1"}))
    rewritten = b"".join(rewrite_header(entry, Stamp(1, 2, 3)))
    assert peek(rewritten).claim == PropertyClaim({"a": "1"})
    assert read(decode(rewritten)) == expected(messages)
