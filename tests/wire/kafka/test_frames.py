"""Frames, however their bytes arrive."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DecodeError, LimitError
from penstock.wire.entry import Buffer
from penstock.wire.kafka.frames import FrameReader
from tests.wire.kafka.talk import framed

BODIES = [b"four", b"and a longer one", b"the very last"]
STREAM = b"".join(map(framed, BODIES))


def fed(reader: FrameReader, *parts: Buffer) -> list[bytes]:
    return [bytes(frame) for part in parts for frame in reader.feed(part)]


def test_many_frames_in_one_read_are_all_found() -> None:
    assert fed(FrameReader(100), STREAM) == BODIES


def test_frames_that_arrive_byte_by_byte_are_found() -> None:
    assert fed(FrameReader(100), *(STREAM[at : at + 1] for at in range(len(STREAM)))) == BODIES


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_frames_cut_anywhere_are_found(at: int) -> None:
    assert fed(FrameReader(100), STREAM[:at], STREAM[at:]) == BODIES


@given(bodies=st.lists(st.binary(min_size=4, max_size=50)), cuts=st.lists(st.integers(0, 500)))
def test_frames_cut_in_many_places_are_found(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, bodies))
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    parts = [stream[low:high] for low, high in pairwise(places)]
    assert fed(FrameReader(100), *parts) == bodies


def test_a_frame_within_one_read_is_not_copied() -> None:
    data = bytearray(framed(b"abcd"))
    (frame,) = FrameReader(100).feed(data)
    data[4:8] = b"wxyz"
    assert bytes(frame) == b"wxyz"
    assert frame.readonly


def test_a_frame_cut_by_reads_survives_the_reuse_of_their_buffer() -> None:
    reader, data = FrameReader(100), bytearray(framed(b"abcdefgh"))
    assert fed(reader, data[:9]) == []
    data[:9] = bytes(9)
    assert fed(reader, data[9:]) == [b"abcdefgh"]


def test_a_large_frame_takes_its_own_size_of_memory_and_no_more() -> None:
    size, piece = 4 << 20, 1 << 16
    stream = framed(bytes(size))
    reader = FrameReader(size)
    tracemalloc.start()
    try:
        frames = [
            frame for at in range(0, len(stream), piece) for frame in reader.feed(memoryview(stream)[at : at + piece])
        ]
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(frame) for frame in frames] == [size]
    assert peak < size + 8 * piece


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 3])
def test_a_size_too_small_for_an_answer_is_refused(size: int) -> None:
    with pytest.raises(DecodeError, match="frame size"):
        fed(FrameReader(100), size.to_bytes(4, "big", signed=True))


def test_a_size_above_the_limit_is_refused_before_anything_is_allocated() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LimitError, match="100 at most, found 1073741824"):
            fed(FrameReader(100), (1 << 30).to_bytes(4, "big") + b"xx")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert fed(FrameReader(4), framed(b"full")) == [b"full"]


def test_a_reader_tells_where_it_is() -> None:
    reader = FrameReader(100)
    fed(reader, b"\x00\x00")
    assert repr(reader) == "<FrameReader between frames, 2 bytes of a size>"
    fed(reader, b"\x00\x09abc")
    assert repr(reader) == "<FrameReader at byte 3 of 9>"
