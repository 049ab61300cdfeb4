"""Batches given the log's time, or their senders' again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ChecksumError
from penstock.wire.entry import EntryFlag
from penstock.wire.kafka.header import parse_header, peek, redate, verify
from penstock.wire.kafka.layout import LOG_APPEND_TIME
from tests.wire.kafka.entries import make_entry, record, with_fields

ENTRY = make_entry(record() + record(offset_delta=b"\x02"), count=2, max_timestamp=1000, producer_id=7, base_sequence=3)
LARGE = make_entry(record() * 10_000, count=10_000, attributes=1)


@pytest.mark.parametrize("entry", [ENTRY, LARGE])
def test_an_entry_gets_the_logs_time_and_nothing_else_changes(entry: bytes) -> None:
    dated = redate(entry, 5000)
    header = parse_header(entry)
    expected = {"attributes": header.attributes | LOG_APPEND_TIME, "max_timestamp": 5000}
    assert dated == with_fields(entry, **expected)
    verify(dated)
    assert peek(dated).min_time_ms == peek(dated).max_time_ms == 5000


def test_an_entry_gets_its_senders_times_back() -> None:
    dated = with_fields(ENTRY, attributes=LOG_APPEND_TIME)
    assert redate(dated, None) == ENTRY
    assert not peek(redate(dated, None)).flags & EntryFlag.LOG_TIME


@given(time_ms=st.integers(-1, (1 << 63) - 1), damage=st.integers(len(ENTRY) - 5, len(ENTRY) - 1))
def test_damage_stays_detectable(time_ms: int, damage: int) -> None:
    damaged = bytearray(ENTRY)
    damaged[damage] ^= 1
    with pytest.raises(ChecksumError):
        verify(redate(damaged, time_ms))


def test_a_view_is_as_good_as_bytes() -> None:
    assert redate(memoryview(ENTRY), 1) == redate(bytearray(ENTRY), 1) == redate(ENTRY, 1)
