from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.server.connection import READ, WRITE, Connection, Slot
from penstock.broker.server.memory import AHEAD, FIRST_BYTES, ROUND_BYTES
from tests.broker.server.fakes import FakeHub, FramedSession, MemoryTransport, Pins, echo, framed

FRAMES = [b"", b"a", b"abc" * 100, bytes(5), b"end"]


class Wired:
    """A connection between a test's transport, hub and session."""

    def __init__(self, handle: Callable[[bytes, Slot], None] | None = echo, **limits: int) -> None:
        self.hub = FakeHub(**limits)
        self.transport = MemoryTransport()
        self.connection = Connection(self.transport, ("127.0.0.1", 5), self.hub)
        self.session = FramedSession(self.connection, handle)
        self.connection.session = self.session

    def arrive(self, *parts: bytes) -> None:
        for part in parts:
            self.transport.arrivals.append(part)
            self.connection.readable()
            self.hub.end_turn()

    def turns(self, count: int = 100) -> None:
        for _ in range(count):
            if not self.hub.resuming and not self.transport.arrivals:
                return
            self.hub.next_turn()
            if self.transport.arrivals:
                self.connection.readable()
                self.hub.end_turn()


@pytest.fixture
def pins(tmp_path: Path) -> Iterator[Pins]:
    pins = Pins(tmp_path / "entries", bytes(range(256)) * 100)
    yield pins
    pins.close()
    assert pins.held == 0


def test_frames_cut_anywhere_arrive_whole_and_are_answered() -> None:
    data = framed(*FRAMES)
    for cut in range(len(data) + 1):
        wired = Wired()
        wired.arrive(*(part for part in (data[:cut], data[cut:]) if part))
        assert wired.session.frames == FRAMES
        assert wired.transport.sent == data
        assert wired.hub.memory.used == 0


def test_frames_that_arrive_byte_by_byte_arrive_whole() -> None:
    wired = Wired()
    wired.arrive(*(bytes((byte,)) for byte in framed(*FRAMES)))
    assert wired.session.frames == FRAMES
    assert wired.transport.sent == framed(*FRAMES)


@given(frames=st.lists(st.binary(max_size=300), max_size=20), data=st.data())
def test_frames_cut_at_random_arrive_whole(frames: list[bytes], data: st.DataObject) -> None:
    wired = Wired(requests_per_turn=3, receive_bytes=64, in_flight_max=4)
    whole = framed(*frames)
    while whole:
        cut = data.draw(st.integers(1, len(whole)))
        wired.arrive(whole[:cut])
        whole = whole[cut:]
        wired.turns()
    wired.turns()
    assert wired.session.frames == frames
    assert wired.transport.sent == framed(*frames)
    assert wired.hub.memory.used == 0


def test_answers_leave_in_the_order_of_their_requests() -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1", b"2", b"3"))
    first, second, third = wired.session.slots
    third.answer((b"three",))
    second.answer((b"two",))
    wired.hub.end_turn()
    assert wired.transport.sent == b""
    first.answer((b"one",))
    wired.hub.end_turn()
    assert wired.transport.sent == b"onetwothree"
    assert wired.transport.writes == [11]
    assert not wired.connection.is_waiting


def test_a_request_without_an_answer_holds_up_nobody() -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1", b"2"))
    first, second = wired.session.slots
    second.answer((b"two",))
    first.answer(())
    wired.hub.end_turn()
    assert wired.transport.sent == b"two"


def test_whatever_a_transport_takes_at_a_time_all_is_sent_once(pins: Pins) -> None:
    expected = b"head" + bytes(range(50, 250)) + b"middle" + b"x" * 90 + bytes(range(10)) + b"tail"
    for share in range(1, 60):
        wired = Wired(handle=None)
        wired.arrive(framed(b"1", b"2"))
        wired.transport.takes = 0
        wired.session.slots[0].answer((b"head", pins.slice(50, 200), b"middle"))
        wired.session.slots[1].answer((memoryview(b"x" * 90), pins.slice(0, 10), b"tail"))
        wired.hub.end_turn()
        assert wired.hub.masks == [READ | WRITE]
        while wired.hub.masks[-1] & WRITE:
            wired.transport.takes = share
            wired.hub.changed(wired.connection)
            wired.hub.end_turn()
        assert wired.transport.sent == expected
        assert pins.held == 0
        assert wired.hub.masks == [READ | WRITE, READ]


def test_answers_that_wait_together_leave_in_one_write() -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1", b"2", b"3"))
    for slot in wired.session.slots:
        slot.answer((bytes(100),))
    wired.hub.end_turn()
    assert wired.transport.writes == [300]


def test_a_share_of_the_turn_bounds_what_is_sent_at_once(pins: Pins) -> None:
    wired = Wired(handle=None, send_bytes=100)
    wired.arrive(framed(b"1"))
    wired.session.slots[0].answer(tuple(pins.slice(0, 60) for _ in range(5)))
    wired.hub.end_turn()
    assert wired.transport.writes == [60, 60]
    assert wired.hub.masks == [READ | WRITE]
    wired.hub.changed(wired.connection)
    wired.hub.end_turn()
    assert wired.transport.writes == [60, 60, 60, 60]
    wired.hub.changed(wired.connection)
    wired.hub.end_turn()
    assert len(wired.transport.sent) == 300


def test_closing_abandons_what_is_unanswered_and_releases_what_is_unsent(pins: Pins) -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1", b"2", b"3", b"4"))
    told: list[int] = []
    for number, slot in enumerate(wired.session.slots):
        slot.abandoned = lambda number=number: told.append(number)
    wired.transport.takes = 0
    wired.session.slots[0].answer((b"head", pins.slice(0, 100)))
    wired.session.slots[2].answer((pins.slice(100, 100),))
    wired.connection.close("because")
    assert told == [1, 3]
    assert pins.held == 0
    assert wired.session.is_closed
    assert wired.transport.is_closed
    assert wired.hub.reasons == [("because", False)]
    wired.session.slots[1].answer((pins.slice(0, 1),))
    assert pins.held == 0
    assert not wired.session.slots[3].is_open
    wired.connection.close("again")
    assert len(wired.hub.reasons) == 1


def test_a_slice_half_sent_is_released_when_the_connection_closes(pins: Pins) -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1"))
    wired.transport.takes = 10
    wired.session.slots[0].answer((b"head", pins.slice(0, 100)))
    wired.hub.end_turn()
    assert wired.transport.sent == b"head" + bytes(range(6))
    wired.connection.close("because")
    assert pins.held == 0


def test_a_file_that_is_too_short_ends_the_connection(pins: Pins) -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1"))
    wired.session.slots[0].answer((pins.slice(25_590, 100),))
    wired.hub.end_turn()
    assert wired.connection.is_closed
    ((reason, is_fault),) = wired.hub.reasons
    assert "too early" in reason
    assert is_fault


def test_a_file_that_cannot_be_read_ends_the_connection_and_is_told(pins: Pins) -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1"))
    wired.session.slots[0].answer((pins.slice(0, 100),))
    wired.transport.fails = OSError(errno.EIO, "Input/output error")
    wired.hub.end_turn()
    assert wired.hub.reasons == [("the log cannot be read: [Errno 5] Input/output error", True)]


def test_no_more_requests_are_read_than_may_be_in_flight() -> None:
    wired = Wired(handle=None, in_flight_max=3)
    wired.arrive(framed(*(bytes((number,)) for number in range(10))))
    assert len(wired.session.frames) == 3
    assert wired.hub.masks == [0]
    wired.session.slots[1].answer((b"",))
    wired.hub.end_turn()
    assert not wired.hub.resuming
    wired.session.slots[0].answer((b"",))
    wired.hub.end_turn()
    wired.turns()
    assert len(wired.session.frames) == 5
    for slot in wired.session.slots[2:]:
        slot.answer((b"",))
        wired.hub.end_turn()
        wired.turns()
    assert len(wired.session.frames) == 8


def test_a_client_that_does_not_read_its_answers_is_not_read_from() -> None:
    wired = Wired(handle=lambda frame, slot: slot.answer((bytes(1000),)), out_bytes_max=2500)
    wired.transport.takes = 0
    wired.arrive(framed(*(b"x" for _ in range(10))))
    assert len(wired.session.frames) == 3
    assert wired.hub.masks == [WRITE]
    wired.transport.takes = 10_000
    wired.hub.changed(wired.connection)
    wired.hub.end_turn()
    wired.turns()
    assert len(wired.session.frames) == 10
    assert len(wired.transport.sent) == 10_000


def test_answers_that_wait_behind_an_unanswered_request_count() -> None:
    def all_but_the_first(frame: bytes, slot: Slot) -> None:
        if frame != b"first":
            slot.answer((bytes(600), bytes(400)))

    wired = Wired(handle=all_but_the_first, out_bytes_max=2500)
    wired.arrive(framed(b"first", *(b"x" for _ in range(10))))
    assert len(wired.session.frames) == 4
    assert wired.hub.masks == [0]
    assert "3000 bytes unsent" in repr(wired.connection)
    wired.turns()
    assert len(wired.session.frames) == 4
    wired.session.slots[0].answer((b"",))
    wired.hub.end_turn()
    wired.turns()
    assert len(wired.session.frames) == 11
    assert len(wired.transport.sent) == 10_000
    assert wired.hub.masks == [0, READ]


def test_answers_that_come_later_behind_an_unanswered_request_count_too() -> None:
    wired = Wired(handle=None, out_bytes_max=2500)
    wired.arrive(framed(b"1", b"2"))
    wired.session.slots[1].answer((bytes(3000),))
    wired.hub.end_turn()
    assert wired.hub.masks == [0]
    wired.session.slots[0].answer((b"",))
    wired.hub.end_turn()
    assert wired.hub.masks == [0, READ]


def test_no_more_requests_are_read_while_an_answer_is_made_in_steps() -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1"))
    wired.connection.pause()
    wired.hub.end_turn()
    assert wired.hub.masks == [0]
    wired.connection.go_on()
    wired.session.slots[0].answer((b"one",))
    wired.hub.end_turn()
    assert wired.hub.masks == [0, READ]
    assert wired.transport.sent == b"one"


def test_a_connection_has_a_share_of_each_turn_and_goes_on_in_the_next() -> None:
    wired = Wired(requests_per_turn=4)
    wired.arrive(framed(*(b"x" for _ in range(10))))
    assert len(wired.session.frames) == 4
    wired.hub.next_turn()
    assert len(wired.session.frames) == 8
    wired.hub.next_turn()
    assert len(wired.session.frames) == 10
    assert not wired.hub.resuming
    assert wired.hub.memory.used == 0


def test_a_claimed_size_reserves_nothing() -> None:
    wired = Wired(receive_bytes=100_000)
    claimed = (50 << 20).to_bytes(4, "big")
    wired.arrive(claimed)
    assert wired.hub.memory.used <= FIRST_BYTES
    arrived = 4
    while arrived < 2 << 20:
        wired.arrive(bytes(99_000))
        arrived += 99_000
        assert wired.hub.memory.used <= arrived * AHEAD + ROUND_BYTES
    wired.connection.close("enough")
    assert wired.hub.memory.used == 0


def test_a_large_frame_arrives_whole_through_growing_buffers() -> None:
    wired = Wired(receive_bytes=1000)
    frame = bytes(range(256)) * 2000
    data = framed(frame, b"next")
    wired.arrive(*(data[at : at + 30_000] for at in range(0, len(data), 30_000)))
    wired.turns(1000)
    while wired.transport.arrivals:
        wired.connection.readable()
        wired.hub.end_turn()
    assert wired.session.frames == [frame, b"next"]
    assert wired.hub.memory.used == 0


def test_without_memory_others_are_asked_to_make_room_and_then_the_connection_ends() -> None:
    wired = Wired(request_memory_max=200_000, frame_bytes_max=200_000, receive_bytes=50_000)
    wired.hub.memory.used = 190_000
    wired.arrive((150_000).to_bytes(4, "big") + bytes(40_000))
    assert wired.hub.asked_room == [150_004]
    assert wired.hub.reasons == [("there is no memory for a request of 150004 bytes", True)]


def test_a_fault_ends_the_connection_after_what_was_answered_before() -> None:
    wired = Wired(frame_bytes_max=1000)
    wired.arrive(framed(b"good") + (2000).to_bytes(4, "big"))
    assert wired.transport.sent == framed(b"good")
    assert wired.hub.reasons == [("size at byte 8: expected less, found 2000", True)]


def test_the_end_of_the_stream_and_failures_end_the_connection() -> None:
    for failure in (None, ConnectionResetError("reset")):
        wired = Wired()
        if failure is None:
            wired.transport.arrivals.append(b"")
        wired.transport.fails = failure
        wired.connection.readable()
        assert wired.connection.is_closed
        assert not wired.hub.reasons[0][1]


def test_a_failure_while_sending_ends_the_connection(pins: Pins) -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1"))
    wired.session.slots[0].answer((b"head", pins.slice(0, 10)))
    wired.transport.fails = BrokenPipeError("gone")
    wired.hub.end_turn()
    assert wired.hub.reasons == [("sending failed: gone", False)]


def test_finishing_answers_what_was_asked_and_then_closes() -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1", b"2"))
    wired.connection.finish()
    wired.hub.end_turn()
    assert not wired.connection.is_closed
    wired.arrive(framed(b"3"))
    assert len(wired.session.frames) == 2
    for slot in wired.session.slots:
        slot.answer((b"bye",))
    wired.hub.end_turn()
    assert wired.connection.is_closed
    assert wired.transport.sent == b"byebye"


def test_its_repr_tells_its_state() -> None:
    wired = Wired(handle=None)
    wired.arrive(framed(b"1"))
    assert repr(wired.connection) == "<Connection from 127.0.0.1:5, open, 1 unanswered, 0 bytes unsent>"
