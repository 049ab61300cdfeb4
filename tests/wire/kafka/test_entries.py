"""Stored batches opened together, compared with the same batches opened one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ChecksumError, DecodeError, LimitError
from penstock.wire.columns import to_arrow
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, PropertyClaim, Stamp
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.kafka.header import BatchHeader, peek, span
from penstock.wire.kafka.layout import BATCH_HEADER, LOG_APPEND_TIME
from penstock.wire.kafka.log_format import KafkaLogFormat
from penstock.wire.kafka.records import decode
from tests.wire.kafka.entries import make_entry, read, with_fields, write
from tests.wire.kafka.messages import Sent

MANY = 1 << 20
LIMIT = 1 << 24
CLAIM = PropertyClaim({"region": "eu"})
ENTRIES = KafkaEntries()


def stored(first: int, messages: list[Sent], codec: Codec = Codec.NONE, claim: PropertyClaim = NO_CLAIM) -> bytes:
    return with_fields(write(messages, codec, claim=claim), base_offset=first)


def opened(entries: list[bytes], bytes_aim: int = MANY) -> tuple[list[Any], list[int]]:
    """All messages, and how many batches were opened at a time."""
    rows, taken = [], []
    while entries:
        columns, count = ENTRIES.open(entries, LIMIT, bytes_aim)
        rows += read(to_arrow(columns))
        taken.append(count)
        entries = entries[count:]
    return rows, taken


MESSAGES = st.lists(
    st.builds(
        Sent,
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none() | st.dictionaries(st.sampled_from("abc"), st.none() | st.text(max_size=3), max_size=2),
        st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=6,
)
BATCHES = st.lists(
    st.tuples(MESSAGES, st.sampled_from(Codec), st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6
)


@given(batches=BATCHES, aim=st.sampled_from([0, 1, 100, 300, MANY]))
def test_batches_opened_together_are_those_opened_one_by_one(batches: list[Any], aim: int) -> None:
    entries, first = [], 0
    for messages, codec, has_claim, log_time, hole in batches:
        entry = stored(first, messages, codec, CLAIM if has_claim else NO_CLAIM)
        if log_time:
            attributes = BatchHeader._make(BATCH_HEADER.unpack_from(entry)).attributes | LOG_APPEND_TIME
            entry = with_fields(entry, attributes=attributes, max_timestamp=77)
        entries.append(entry)
        first += len(messages) + hole
    rows, taken = opened(entries, aim)
    assert rows == [row for entry in entries for row in read(decode(entry))]
    assert sum(taken) == len(entries)


def test_small_batches_are_opened_together_up_to_the_aim() -> None:
    entries = [stored(10 * i, [Sent(b"x" * 50)] * 10, Codec.LZ4) for i in range(20)]
    assert opened(entries)[1] == [20]
    assert opened(entries, 0)[1] == [1] * 20
    taken = opened(entries, 3000)[1]
    assert sum(taken) == 20
    assert max(taken) > 1


def test_a_batch_with_a_claim_is_opened_alone_and_shows_it_not() -> None:
    plain = [stored(i, [Sent(b"x")]) for i in range(2)]
    claimed = stored(2, [Sent(b"x", properties={"a": "b"})], claim=CLAIM)
    rows, taken = opened([*plain, claimed, claimed, stored(9, [Sent(b"y")])])
    assert taken == [2, 1, 1, 1]
    assert [row.properties for row in rows[2:4]] == [(("a", b"b"),)] * 2


def test_a_thinned_batch_keeps_its_positions() -> None:
    thinned = [with_fields(stored(first, [Sent(b"x")] * 3), last_offset_delta=9) for first in (0, 10)]
    columns, taken = ENTRIES.open(thinned, LIMIT, MANY)
    assert columns.positions is not None
    assert (columns.positions.tolist(), taken) == ([0, 1, 2, 10, 11, 12], 2)


def test_an_error_is_that_of_the_batch_in_question() -> None:
    good = [stored(0, [Sent(b"x")] * 2), stored(2, [Sent(b"x")] * 2)]
    bad = stored(4, [Sent(b"x")] * 2)[:-1] + b"\x05"
    assert ENTRIES.open([*good, bad], LIMIT, MANY)[1] == 1
    assert ENTRIES.open([good[1], bad], LIMIT, MANY)[1] == 1
    with pytest.raises(DecodeError) as alone:
        decode(bad, check=False)
    with pytest.raises(DecodeError) as first:
        ENTRIES.open([bad, *good], LIMIT, MANY)
    assert str(first.value) == str(alone.value)


def test_a_batch_that_does_not_unpack_fails_when_it_is_the_first() -> None:
    good = stored(0, [Sent(b"x" * 100)] * 2, Codec.LZ4)
    bad = make_entry(b"no frame at all", attributes=3, count=2, base_offset=2)
    assert ENTRIES.open([good, bad], LIMIT, MANY)[1] == 1
    with pytest.raises(DecodeError):
        ENTRIES.open([bad, good], LIMIT, MANY)


def test_a_record_too_many_in_one_batch_and_too_few_in_the_next_is_noticed() -> None:
    two, three = stored(0, [Sent(b"x")] * 2), stored(2, [Sent(b"y")] * 3)
    swapped = [
        with_fields(three, base_offset=0, count=2),
        with_fields(two, base_offset=2, count=3, last_offset_delta=2),
    ]
    with pytest.raises(DecodeError):
        ENTRIES.open(swapped, LIMIT, MANY)
    fewer = [with_fields(two, base_offset=0, count=3, last_offset_delta=2), with_fields(three, base_offset=3, count=2)]
    with pytest.raises(DecodeError):
        ENTRIES.open(fewer, LIMIT, MANY)


def test_no_batch_unpacks_to_more_than_the_limit() -> None:
    entry = stored(0, [Sent(b"x" * 1000)], Codec.LZ4)
    with pytest.raises(LimitError):
        ENTRIES.open([entry], 500, MANY)
    assert ENTRIES.open([stored(0, [Sent(b"x")]), entry], 500, MANY)[1] == 1


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("claim", [True, False])
def test_judging_tells_what_peeking_does(check: bool, claim: bool) -> None:
    entry = stored(7, [Sent(b"x")] * 3, Codec.ZSTD, CLAIM)
    header = ENTRIES.judge(entry, check=check, claim=claim, bytes_max=LIMIT)
    assert header == (peek(entry) if claim else peek(entry)._replace(claim=NO_CLAIM))


def test_a_wrong_checksum_is_found_where_it_is_looked_for() -> None:
    entry = with_fields(stored(7, [Sent(b"x")] * 3), crc=1)
    with pytest.raises(ChecksumError):
        ENTRIES.judge(entry, check=True, claim=False, bytes_max=LIMIT)
    assert ENTRIES.judge(entry, check=False, claim=False, bytes_max=LIMIT).count == 3


def test_markers_are_told_apart() -> None:
    kinds = KafkaLogFormat()
    assert ENTRIES.is_abort(kinds.marker(commit=False, producer=1, epoch=0, time_ms=5))
    assert not ENTRIES.is_abort(kinds.marker(commit=True, producer=1, epoch=0, time_ms=5))
    assert not ENTRIES.is_abort(write([Sent(b"x")], stamp=Stamp(1, 0, 0, transactional=True)))


def test_a_batch_tells_where_it_ends() -> None:
    entry = with_fields(stored(7, [Sent(b"x")] * 3), leader_epoch=9)
    assert span(entry) == (10, 9)
