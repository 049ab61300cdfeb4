"""A batch from its first message to the bytes that leave, and back again through every codec."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BatchStateError, ConfigError, MessageError
from penstock.wire.columns import BufferColumns, from_arrow
from penstock.wire.compression import LEVELS, Codec
from penstock.wire.entry import EntryFlag, EntryHeader, PropertyClaim, Stamp
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.header import parse_header, peek, rewrite_header, split
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CHECKED_AT, LOG_APPEND_TIME
from tests.wire.kafka.entries import read, with_fields, write
from tests.wire.kafka.messages import NOW_MS, SENT, Read, Sent, expected
from tests.wire.kafka.twins import Kit, outcome, shape_of, state_of

CODECS_AND_LEVELS: list[tuple[Codec, int | None]] = [(codec, None) for codec in Codec]
CODECS_AND_LEVELS += [(codec, level) for codec, at in LEVELS.items() for level in (at.min, at.default, min(at.max, 12))]
MESSAGES = [
    Sent(b"value", b"key", {"a": "1", "b": None, "größe": b"\xff"}, NOW_MS),
    Sent(None, None, None, NOW_MS + 5),
    Sent(b"", b"", {}, NOW_MS - 7),
    Sent(b"x" * 5000, None, {"a": ""}, NOW_MS + 2),
]
STAMP = Stamp(producer=4711, epoch=3, sequence=99)


@pytest.mark.parametrize(("codec", "level"), CODECS_AND_LEVELS)
def test_what_was_written_is_read(kit: Kit, codec: Codec, level: int | None) -> None:
    entry = write(MESSAGES, codec, level, make=kit.BatchBuffer)
    assert read(kit.decode(entry)) == expected(MESSAGES)


@pytest.mark.parametrize("codec", Codec)
@given(messages=st.lists(SENT, min_size=1, max_size=5))
@settings(max_examples=30)
def test_any_messages_make_the_round_trip(kit: Kit, codec: Codec, messages: list[Sent]) -> None:
    assert read(kit.decode(write(messages, codec, make=kit.BatchBuffer))) == expected(messages)


@pytest.mark.parametrize("codec", Codec)
def test_header_tells_what_is_in_the_batch(kit: Kit, codec: Codec) -> None:
    entry = write(MESSAGES, codec, stamp=STAMP, make=kit.BatchBuffer)
    assert peek(entry) == EntryHeader(
        count=4,
        size=len(entry),
        codec=codec,
        first=0,
        last=3,
        min_time_ms=None,
        max_time_ms=NOW_MS + 5,
        producer=4711,
        epoch=3,
        sequence=99,
        flags=EntryFlag.NONE,
        claim=PropertyClaim(),
    )
    header = parse_header(entry)
    assert (header.base_timestamp, header.leader_epoch, header.magic) == (NOW_MS, -1, 2)
    assert header.crc == crc32c(entry[CHECKED_AT:])


def test_batch_without_a_producer_says_so(kit: Kit) -> None:
    header = peek(write([Sent(b"x")], make=kit.BatchBuffer))
    assert (header.producer, header.epoch, header.sequence, header.max_time_ms) == (None, -1, -1, -1)


@pytest.mark.parametrize("codec", Codec)
def test_base_offset_of_the_broker_is_applied(kit: Kit, codec: Codec) -> None:
    entry = with_fields(write(MESSAGES, codec, make=kit.BatchBuffer), base_offset=1 << 40)
    assert read(kit.decode(entry)) == expected(MESSAGES, base_offset=1 << 40)
    assert (peek(entry).first, peek(entry).last) == (1 << 40, (1 << 40) + 3)


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_is_the_time_of_every_message(kit: Kit, codec: Codec) -> None:
    entry = write(MESSAGES, codec, make=kit.BatchBuffer)
    stamped = with_fields(
        entry, attributes=parse_header(entry).attributes | LOG_APPEND_TIME, max_timestamp=NOW_MS + 60_000
    )
    assert [message.time_ms for message in read(kit.decode(stamped))] == [NOW_MS + 60_000] * 4
    header = peek(stamped)
    assert header.flags == EntryFlag.LOG_TIME
    assert header.min_time_ms == header.max_time_ms == NOW_MS + 60_000


def test_one_message_gives_the_header_its_only_time(kit: Kit) -> None:
    header = peek(write([Sent(b"x", time_ms=77)], make=kit.BatchBuffer))
    assert header.min_time_ms == header.max_time_ms == 77


def test_transaction_is_told_by_the_header(kit: Kit) -> None:
    entry = write(MESSAGES, stamp=STAMP._replace(transactional=True), make=kit.BatchBuffer)
    assert peek(entry).flags == EntryFlag.TRANSACTIONAL
    assert read(kit.decode(entry)) == expected(MESSAGES)


@pytest.mark.parametrize("codec", Codec)
def test_split_and_rewritten_batches_still_read_the_same(kit: Kit, codec: Codec) -> None:
    entry = with_fields(write(MESSAGES, codec, make=kit.BatchBuffer), base_offset=500, leader_epoch=8)
    first, second = split(entry + entry)
    assert first == second == entry
    copied = b"".join(rewrite_header(first, STAMP))
    assert read(kit.decode(copied)) == expected(MESSAGES)
    assert peek(copied)[:4] == (4, len(entry), codec, 0)


@pytest.mark.parametrize("codec", Codec)
def test_claim_is_shown_by_peek_and_hidden_by_decode(kit: Kit, codec: Codec) -> None:
    claim = PropertyClaim({"a": "1", "version": None}, {"city": frozenset(("oslo", None))})
    entry = write(MESSAGES, codec, claim=claim, make=kit.BatchBuffer)
    assert peek(entry).claim == claim
    assert read(kit.decode(entry)) == expected(MESSAGES)


@pytest.mark.parametrize(
    "properties",
    [
        [None],
        [{"a": b"1"}],
        [{"a": None}],
        [{"a": None, "b": b"2"}, {"c": None}],
        [{"größe": b"1"}, None, {"b": None}],
        [None, {"b": b"2"}],
        [{f"p{i}": None if i % 3 else b"x" for i in range(20)}] * 3,
    ],
)
def test_hidden_claim_leaves_the_other_properties_in_place(kit: Kit, properties: list[Any]) -> None:
    messages = [Sent(b"v", None, pairs) for pairs in properties]
    entry = write(messages, claim=PropertyClaim({"x": "y"}), make=kit.BatchBuffer)
    assert read(kit.decode(entry)) == expected(messages)
    again = kit.BatchBuffer()
    assert again.extend(kit.decode_buffers(entry)) == len(messages)
    again.seal()
    assert read(kit.decode(b"".join(again.stamp()))) == expected(messages)


def test_columns_that_were_read_can_be_written_again(kit: Kit) -> None:
    columns = kit.decode_buffers(write(MESSAGES, Codec.LZ4, make=kit.BatchBuffer))
    assert isinstance(columns, BufferColumns)
    again = kit.BatchBuffer()
    assert again.extend(columns) == 4
    again.seal()
    assert b"".join(again.stamp()) == write(MESSAGES, make=kit.BatchBuffer)


@pytest.mark.parametrize("codec", Codec)
def test_numbered_anew_the_payload_stays_and_the_checksum_is_right(kit: Kit, codec: Codec) -> None:
    batch = kit.BatchBuffer()
    batch.extend([b"value"] * 50)
    batch.seal(codec)
    seen = set()
    for stamp in (Stamp(), STAMP, Stamp(1 << 40, 7, 0, transactional=True), STAMP):
        head, payload = batch.stamp(stamp)
        entry = head + bytes(payload)
        assert len(head) == BATCH_HEADER_BYTES
        seen.add(bytes(payload))
        header = parse_header(entry)
        assert header.crc == crc32c(entry[CHECKED_AT:])
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == stamp[:3]
        assert bool(peek(entry).flags & EntryFlag.TRANSACTIONAL) is stamp.transactional
        assert len(kit.decode(entry)) == 50
    assert len(seen) == 1


def test_open_batch_has_no_header_yet(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"x")
    with pytest.raises(BatchStateError, match="still open"):
        batch.stamp()


def test_empty_batch_is_not_sealed(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    with pytest.raises(BatchStateError, match="empty"):
        batch.seal()
    assert batch.append(b"x") == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_sealed_batch_takes_no_message_and_no_second_seal(kit: Kit, codec: Codec) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"x")
    batch.seal(codec)
    with pytest.raises(BatchStateError, match="sealed already"):
        batch.seal(codec)
    with pytest.raises(BatchStateError, match="takes no more messages"):
        batch.append(b"y")
    for values in ([b"y"], []):
        with pytest.raises(BatchStateError, match="takes no more messages"):
            batch.extend(values)
    assert len(kit.decode(b"".join(batch.stamp()))) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"codec": Codec.ZSTD, "level": 99}, ConfigError),
        ({"codec": Codec.SNAPPY, "level": 1}, ConfigError),
        ({"claim": PropertyClaim({"\ud800": "x"})}, MessageError),
    ],
)
def test_seal_that_fails_leaves_the_batch_open_and_unchanged(
    kit: Kit, arguments: dict[str, Any], error: type[Exception]
) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"x")
    before = state_of(batch)
    with pytest.raises(error):
        batch.seal(**{"claim": PropertyClaim({"a": "b"})} | arguments)
    assert state_of(batch) == before
    batch.seal(claim=PropertyClaim({"a": "b"}))
    entry = b"".join(batch.stamp())
    assert peek(entry).claim == PropertyClaim({"a": "b"})
    assert read(kit.decode(entry)) == expected([Sent(b"x")])


def test_batch_is_not_cleared_while_its_bytes_are_held_and_serves_again_after(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"first")
    batch.seal()
    head, payload = batch.stamp()
    with pytest.raises(BufferError):
        batch.clear()
    assert batch.sealed
    assert read(kit.decode(head + bytes(payload))) == expected([Sent(b"first")])
    assert isinstance(payload, memoryview)
    payload.release()
    batch.clear()
    assert not batch.sealed
    batch.append(b"second", b"key")
    batch.seal(Codec.GZIP)
    assert read(kit.decode(b"".join(batch.stamp()))) == expected([Sent(b"second", b"key")])


def test_held_compressed_bytes_do_not_keep_the_batch(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"first")
    batch.seal(Codec.ZSTD)
    head, payload = batch.stamp()
    batch.clear()
    batch.append(b"second")
    assert read(kit.decode(head + bytes(payload))) == expected([Sent(b"first")])
    batch.seal()
    assert read(kit.decode(b"".join(batch.stamp()))) == expected([Sent(b"second")])


def test_claim_of_one_batch_is_not_left_to_the_next(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"first")
    batch.seal(Codec.LZ4, claim=PropertyClaim({"a": "b"}))
    batch.clear()
    batch.append(b"second")
    batch.seal()
    entry = b"".join(batch.stamp())
    assert peek(entry).claim == PropertyClaim()
    assert read(kit.decode(entry)) == expected([Sent(b"second")])


def test_size_counts_header_keys_properties_and_framing(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    assert batch.size == BATCH_HEADER_BYTES
    for sent in MESSAGES:
        batch.append(*sent)
    assert batch.size == len(write(MESSAGES, make=kit.BatchBuffer))


def test_batch_tells_its_state(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"x")
    assert repr(batch) == "<BatchBuffer open, 1 messages, 69 bytes>"
    batch.seal()
    assert repr(batch) == "<BatchBuffer sealed, 1 messages, 69 bytes>"


@given(messages=st.lists(SENT, min_size=1, max_size=6), bytes_max=st.integers(61, 3000))
@settings(max_examples=50)
def test_lists_are_spread_over_batches_from_where_the_last_one_was_full(
    kit: Kit, messages: list[Sent], bytes_max: int
) -> None:
    arguments: dict[str, Any] = {
        "values": [sent.value for sent in messages],
        "keys": tuple(sent.key for sent in messages),
        "properties": [sent.properties for sent in messages],
        "event_times_ms": [sent.time_ms for sent in messages],
    }
    seen: list[Read] = []
    while len(seen) < len(messages):
        batch = kit.BatchBuffer(bytes_max)
        assert batch.extend(**arguments, start=len(seen)) > 0
        assert batch.count == 1 or batch.size <= bytes_max
        batch.seal()
        seen += read(kit.decode(b"".join(batch.stamp()), check=True))
    assert [message[1:] for message in seen] == [message[1:] for message in expected(messages)]


def test_decoding_without_the_checksum_reads_the_same(kit: Kit) -> None:
    entry = with_fields(write(MESSAGES, make=kit.BatchBuffer), crc=1)
    assert outcome(kit.decode, entry)[0].__name__ == "ChecksumError"
    assert read(kit.decode(entry, check=False)) == expected(MESSAGES)
    unchecked = kit.decode_buffers(entry, check=False)
    assert shape_of(unchecked) == shape_of(kit.decode_buffers(write(MESSAGES, make=kit.BatchBuffer)))


@pytest.mark.parametrize("more", [{"keys": [b"k"]}, {"event_times_ms": 5}, {"properties": [{"a": "b"}]}])
def test_columns_bring_all_their_fields(more: dict[str, Any]) -> None:
    columns = from_arrow(pa.array([b"v"]), None, None, 1)
    with pytest.raises(MessageError, match="columns bring their own keys"):
        BatchBuffer().extend(columns, **more)
    batch = BatchBuffer()
    assert batch.extend(columns, properties={"a": "for all"}) == 1
