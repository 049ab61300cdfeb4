"""The checksum that follows a change of the header, against one made over all the bytes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.kafka.checksum import batch_checksum, carried, patched_checksum


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    size = draw(st.integers(0, 60))
    return draw(st.binary(min_size=size, max_size=size)), draw(st.binary(min_size=size, max_size=size))


@given(pairs(), st.binary(max_size=300))
def test_patched_is_the_same_as_made_anew(heads: tuple[bytes, bytes], payload: bytes) -> None:
    old, new = heads
    assert patched_checksum(crc32c(old + payload), old, new, payload) == crc32c(new + payload)


@pytest.mark.parametrize("following", [0, 1, 2, 3, 255, 256, 257, 65_535, 65_536, 1_000_003, 2_097_152])
def test_patched_is_right_over_payloads_of_any_size(following: int) -> None:
    payload = b"\x5a" * following
    old, new = b"\x00" * 40, b"\xff" * 40
    assert patched_checksum(crc32c(old + payload), old, new, payload) == crc32c(new + payload)


@given(pairs(), st.binary(max_size=100), st.integers(0, (1 << 32) - 1))
def test_wrong_checksum_stays_wrong_by_as_much(heads: tuple[bytes, bytes], payload: bytes, error: int) -> None:
    old, new = heads
    wrong = crc32c(old + payload) ^ error
    assert patched_checksum(wrong, old, new, payload) == crc32c(new + payload) ^ error


@given(pairs(), st.binary(max_size=300))
def test_a_difference_is_carried_over_what_is_the_same(heads: tuple[bytes, bytes], payload: bytes) -> None:
    old, new = heads
    difference = crc32c(old + payload) ^ crc32c(new + payload)
    assert carried(crc32c(old) ^ crc32c(new), len(payload)) == difference


def test_distance_of_more_than_any_batch_is_carried() -> None:
    assert carried(1, 1 << 31) == carried(carried(1, 1 << 20), (1 << 31) - (1 << 20))


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_batch_checksum_is_over_both_parts(head: bytes, payload: bytes) -> None:
    assert batch_checksum(head, memoryview(payload)) == crc32c(head + payload)


def test_checksum_is_castagnoli() -> None:
    assert batch_checksum(b"1234", b"56789") == 0xE3069283
