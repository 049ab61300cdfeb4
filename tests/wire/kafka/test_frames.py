"""Frames, however their bytes arrive."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DecodeError, LimitError
from penstock.wire.entry import Buffer
from penstock.wire.kafka.frames import ROOM_BYTES_MIN, FrameReader
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


@given(
    sizes=st.lists(st.integers(4, 3 * ROOM_BYTES_MIN), max_size=5),
    arrivals=st.lists(st.integers(1, 2 * ROOM_BYTES_MIN), min_size=1),
)
def test_frames_are_found_when_each_arrival_is_received_in_the_room_that_is_asked_for(
    sizes: list[int], arrivals: list[int]
) -> None:
    bodies = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(framed, bodies))
    reader, shared = FrameReader(1 << 20), memoryview(bytearray(ROOM_BYTES_MIN))
    found: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        room = reader.room()
        room = shared if room is None else room
        count = min(len(room), arrivals[turn % len(arrivals)], len(stream) - at)
        room[:count] = stream[at : at + count]
        found += fed(reader, room[:count])
        at, turn = at + count, turn + 1
        shared[:] = bytes(len(shared))
    assert found == bodies


def test_what_is_received_in_a_large_frames_room_is_not_copied() -> None:
    reader, size = FrameReader(1 << 20), 4 * ROOM_BYTES_MIN
    assert reader.room() is None
    assert fed(reader, framed(b"a" * size)[:10]) == []
    room = reader.room()
    assert room is not None
    room[:] = b"b" * len(room)
    (frame,) = reader.feed(room)
    room[-1:] = b"c"
    assert bytes(frame[5:]) == b"a" + b"b" * (size - 7) + b"c"
    assert reader.room() is None


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
