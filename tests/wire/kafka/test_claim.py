"""What a batch claims about its messages' properties: said by peek, believed only when it is whole and meant."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.compression import Codec, compress
from penstock.wire.entry import NO_CLAIM, PropertyClaim, Scope
from penstock.wire.kafka import claim as claims
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.claim import CLAIM_BYTES_MAX, NAME, frame_claim
from penstock.wire.kafka.framing import frame_header, varint
from penstock.wire.kafka.header import parse_header, peek
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CLAIM, CODEC_NUMBERS
from penstock.wire.kafka.records import decode
from tests.wire.kafka.entries import make_entry, read, record, with_fields, write
from tests.wire.kafka.messages import Sent, expected

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
WHOLE = PropertyClaim({"region": "eu", "version": None}, {"city": frozenset(("oslo", "bergen", None))})
REGION = Sent(b"v", None, {"region": "eu"})
TEXTS = st.text(max_size=5)
CLAIMS = st.builds(
    PropertyClaim,
    st.dictionaries(TEXTS, st.none() | TEXTS, max_size=4),
    st.dictionaries(TEXTS, st.frozensets(st.none() | TEXTS, max_size=4), max_size=4),
)


def claimed(text: bytes | None, *, name: str = NAME, codec: Codec = Codec.NONE, count: int = 1) -> bytes:
    """A batch with the bit set whose first record has this as its first header."""
    header = frame_header(name, text)
    payload = record(header_count=varint(1), headers=header) + record() * (count - 1)
    return make_entry(compress(codec, payload), count=count, attributes=CLAIM | CODEC_NUMBERS[codec])


@pytest.mark.parametrize("codec", Codec)
def test_peek_says_for_all_listed_or_unknown(codec: Codec) -> None:
    claim = peek(write([REGION] * 3, codec, claim=WHOLE)).claim
    assert [claim.scope(name) for name in ("region", "version", "city", "tag")] == [
        Scope.FOR_ALL,
        Scope.FOR_ALL,
        Scope.LISTED,
        Scope.UNKNOWN,
    ]
    assert claim.values("region") == frozenset({"eu"})
    assert claim.values("version") == frozenset({None})
    assert claim.values("city") == frozenset({"oslo", "bergen", None})
    assert claim.values("tag") is None


@given(CLAIMS, st.sampled_from(Codec), st.integers(0, 3000))
@settings(max_examples=80)
def test_any_claim_makes_the_round_trip(claim: PropertyClaim, codec: Codec, size: int) -> None:
    messages = [Sent(random.Random(size).randbytes(size), b"key", {"a": "1"}), REGION]
    entry = write(messages, codec, claim=claim)
    assert peek(entry).claim == claim
    assert read(decode(entry)) == expected(messages)


# The eight messages and five batches of Pulsar's PIP-191, with restrictSameValuesInBatchProperties region=us,eu and
# version=1,2: a value outside the list counts as absent.
SEED_POLICY = {"region": ("us", "eu"), "version": ("1", "2")}
SEED_BATCHES: list[tuple[list[dict[str, str]], dict[str, str | None]]] = [
    ([{"region": "eu"}, {"region": "eu"}], {"region": "eu", "version": None}),
    (
        [{"region": "eu", "version": "1", "tag": "a"}, {"region": "eu", "version": "1"}],
        {"region": "eu", "version": "1"},
    ),
    ([{"region": "us", "version": "1"}], {"region": "us", "version": "1"}),
    ([{"region": "us", "version": "2"}], {"region": "us", "version": "2"}),
    ([{"region": "us", "version": "5"}, {"region": "us", "version": "6"}], {"region": "us", "version": None}),
]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(("properties", "same"), SEED_BATCHES)
def test_batches_of_the_seeds_example_claim_their_shared_values(
    properties: Sequence[dict[str, str]], same: dict[str, str | None], codec: Codec
) -> None:
    for pairs in properties:
        assert same == {name: pairs.get(name) if pairs.get(name) in SEED_POLICY[name] else None for name in SEED_POLICY}
    messages = [Sent(b"msg", None, pairs) for pairs in properties]
    entry = write(messages, codec, claim=PropertyClaim(same))
    claim = peek(entry).claim
    assert {name: claim.values(name) for name in SEED_POLICY} == {
        name: frozenset({value}) for name, value in same.items()
    }
    assert claim.scope("tag") is Scope.UNKNOWN
    assert read(decode(entry)) == expected(messages)


@pytest.mark.parametrize("codec", Codec)
def test_batch_of_one_looks_like_a_batch_of_many(codec: Codec) -> None:
    one, many = (peek(write([REGION] * count, codec, claim=WHOLE)) for count in (1, 500))
    assert one.claim == many.claim == WHOLE


def test_nothing_claimed_leaves_no_trace() -> None:
    assert frame_claim(NO_CLAIM) == b""
    assert write([REGION], claim=NO_CLAIM) == write([REGION])


@pytest.mark.parametrize("codec", Codec)
def test_bit_without_the_header_claims_nothing(codec: Codec) -> None:
    for messages in ([REGION], [Sent(b"v")]):
        entry = write(messages, codec)
        set_bit = with_fields(entry, attributes=parse_header(entry).attributes | CLAIM)
        assert peek(set_bit).claim == NO_CLAIM
        assert read(decode(set_bit)) == expected(messages)


@pytest.mark.parametrize("codec", Codec)
def test_header_without_the_bit_claims_nothing_and_is_a_property_like_others(codec: Codec) -> None:
    entry = write([REGION], codec, claim=WHOLE)
    copied = with_fields(entry, attributes=CODEC_NUMBERS[codec])
    assert peek(copied).claim == NO_CLAIM
    assert [name for name, _ in read(decode(copied))[0].properties] == [NAME, "region"]


def test_header_that_is_not_the_first_claims_nothing() -> None:
    text = json.dumps({"same": {"region": "eu"}})
    entry = write([Sent(b"v", None, {"region": "us", NAME: text})])
    assert peek(with_fields(entry, attributes=CLAIM)).claim == NO_CLAIM


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"{",
        b"\xff\xfe",
        b'{"same": {"a": "b"}',
        b"[]",
        b"5",
        b"null",
        b'"same"',
        b'{"same": null}',
        b'{"same": []}',
        b'{"same": "ab"}',
        b'{"same": {"a": 5}}',
        b'{"same": {"a": ["b"]}}',
        b'{"same": {"a": "b"}, "listed": 5}',
        b'{"same": {"a": "b"}, "listed": {"c": null}}',
        b'{"same": {"a": "b"}, "listed": {"c": "oslo"}}',
        b'{"same": {"a": "b"}, "listed": {"c": {"oslo": 1}}}',
        b'{"same": {"a": "b"}, "listed": {"c": ["oslo", 5]}}',
        b'{"listed": {"c": [["oslo"]]}}',
        b'{"listed": {"c": [true]}}',
        b'{"same": {"a": NaN}}',
        b'{"same": ' + b'{"a": ' * 1200 + b"1" + b"}" * 1200 + b"}",
        b"[" * 8000,
        b'{"same": {"a": ' + b"9" * 8000 + b"}}",
    ],
    ids=lambda text: repr(text)[:50],
)
def test_claim_that_cannot_be_read_claims_nothing(text: bytes | None) -> None:
    assert peek(claimed(text)).claim == NO_CLAIM
    assert peek(claimed(text, codec=Codec.ZSTD)).claim == NO_CLAIM


def test_claim_may_say_more_than_this_version_reads() -> None:
    text = b'{"same": {"a": "b"}, "later": {"c": 5}}'
    assert peek(claimed(text)).claim == PropertyClaim({"a": "b"})


def test_empty_claim_claims_nothing() -> None:
    assert peek(claimed(b"{}")).claim == NO_CLAIM


def test_other_name_claims_nothing() -> None:
    assert peek(claimed(b'{"same": {"a": "b"}}', name="penstock.claim2")).claim == NO_CLAIM


def test_oversize_claim_is_neither_written_nor_believed() -> None:
    large = PropertyClaim({"a": "x" * CLAIM_BYTES_MAX})
    entry = write([REGION], claim=large)
    assert entry == write([REGION])
    text = json.dumps({"same": dict(large.same)}).encode()
    assert peek(claimed(text)).claim == NO_CLAIM


def test_largest_claim_is_written_and_believed() -> None:
    room = CLAIM_BYTES_MAX - len(frame_claim(PropertyClaim({"a": "x" * 4000}))) + 4000
    for size, is_claimed in ((room, True), (room + 1, False)):
        claim = PropertyClaim({"a": "x" * size})
        assert peek(write([REGION], claim=claim)).claim == (claim if is_claimed else NO_CLAIM)


@pytest.mark.parametrize(
    ("codec", "level", "size"),
    [(Codec.SNAPPY, None, 40_000), (Codec.LZ4, 9, 100_000), (Codec.LZ4, None, 5_000_000), (Codec.ZSTD, None, 200_000)],
)
def test_claim_beyond_the_first_block_is_unknown_and_no_error(codec: Codec, level: int | None, size: int) -> None:
    messages = [Sent(random.Random(5).randbytes(size), None, {"region": "eu"}), REGION]
    entry = write(messages, codec, level, claim=WHOLE)
    assert peek(entry).claim == NO_CLAIM
    assert read(decode(entry)) == expected(messages)


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (Codec.NONE, 1_000_000),
        (Codec.GZIP, 1_000_000),
        (Codec.SNAPPY, 30_000),
        (Codec.LZ4, 1_000_000),
        (Codec.ZSTD, 100_000),
    ],
)
def test_claim_behind_a_large_value_in_the_first_block_is_read(codec: Codec, size: int) -> None:
    entry = write([Sent(random.Random(5).randbytes(size)), REGION], codec, claim=WHOLE)
    assert peek(entry).claim == WHOLE


def first_lz4_block_end(payload: bytes) -> int:
    return 11 + (int.from_bytes(payload[7:11], "little") & 0x7FFFFFFF)


def first_snappy_chunk_end(payload: bytes) -> int:
    return 20 + int.from_bytes(payload[16:20], "big")


def first_zstd_block_end(payload: bytes) -> int:
    """Behind magic, descriptor, content size of 4 bytes (with a single segment no window) and the block's header."""
    assert payload[4] >> 5 == 0b101
    return 12 + (int.from_bytes(payload[9:12], "little") >> 3)


@pytest.mark.parametrize(
    ("codec", "level", "end_of_first_block"),
    [
        (Codec.LZ4, 9, first_lz4_block_end),
        (Codec.SNAPPY, None, first_snappy_chunk_end),
        (Codec.ZSTD, None, first_zstd_block_end),
    ],
)
def test_what_lies_behind_the_first_block_is_not_looked_at(
    codec: Codec, level: int | None, end_of_first_block: Callable[[bytes], int]
) -> None:
    values = [random.Random(i).randbytes(500) * 2 for i in range(600)]
    entry = write([REGION, *(Sent(value) for value in values)], codec, level, claim=WHOLE)
    end = BATCH_HEADER_BYTES + end_of_first_block(entry[BATCH_HEADER_BYTES:])
    assert end < len(entry) - 1000
    spoilt = entry[:end] + b"\xff" * (len(entry) - end)
    assert peek(spoilt).claim == WHOLE


def test_no_more_of_a_gzip_stream_is_opened_than_the_first_record() -> None:
    values = [random.Random(i).randbytes(1000) for i in range(300)]
    entry = write([REGION, *(Sent(value) for value in values)], Codec.GZIP, claim=WHOLE)
    half = len(entry) // 2
    assert peek(entry[:half] + b"\xff" * (len(entry) - half)).claim == WHOLE


def test_without_the_bit_nothing_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not(*_: object) -> bytes:
        raise AssertionError

    entry = write([REGION], Codec.LZ4)
    monkeypatch.setattr(claims, "decompress_start", must_not)
    assert peek(entry).claim == NO_CLAIM


@pytest.mark.parametrize("codec", COMPRESSED)
def test_payload_that_cannot_be_opened_claims_nothing(codec: Codec) -> None:
    for payload in (b"", b"\x00", b"\xff" * 50, random.Random(1).randbytes(500), compress(codec, b"")):
        assert peek(make_entry(payload, count=1, attributes=CLAIM | CODEC_NUMBERS[codec])).claim == NO_CLAIM


@pytest.mark.parametrize("codec", Codec)
@given(payload=st.binary(min_size=7, max_size=80))
@settings(max_examples=40)
def test_first_record_of_any_bytes_claims_nothing_or_a_claim(codec: Codec, payload: bytes) -> None:
    entry = make_entry(compress(codec, payload), count=1, attributes=CLAIM | CODEC_NUMBERS[codec])
    assert isinstance(peek(entry).claim, PropertyClaim)


@pytest.mark.parametrize("codec", Codec)
def test_claim_behind_a_record_above_the_limit_is_unknown(codec: Codec) -> None:
    entry = write([Sent(bytes(100_000))], codec, claim=WHOLE)
    assert peek(entry, bytes_max=1000).claim == (WHOLE if codec is Codec.NONE else NO_CLAIM)


def test_claim_said_at_seal_counts_in_the_size() -> None:
    batch = BatchBuffer()
    batch.append(b"x")
    before = batch.size
    batch.seal(claim=WHOLE)
    assert batch.size == before + len(frame_claim(WHOLE)) + 1  # the record's own length takes a byte more
    head, payload = batch.stamp()
    assert len(head) + len(payload) == batch.size


def test_claim_is_written_as_documented() -> None:
    header = frame_claim(PropertyClaim({"region": "eu", "version": None}, {"city": frozenset(("oslo", None))}))
    text = b'{"same":{"region":"eu","version":null},"listed":{"city":["oslo",null]}}'
    assert header == frame_header("penstock.claim", text)


def test_same_claim_is_the_same_bytes() -> None:
    orders: list[Any] = [frozenset(("a", "b", "c", None)), frozenset((None, "c", "b", "a"))]
    assert len({frame_claim(PropertyClaim({}, {"x": values})) for values in orders}) == 1
