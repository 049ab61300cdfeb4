from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import cast

import pytest

from penstock.broker.server.connection import Connection, Slot
from penstock.broker.server.limits import ServerLimits
from penstock.broker.server.loop import Loop, PlainDoor
from penstock.clock import ManualClock
from penstock.errors import ConfigError, DecodeError
from tests.broker.server.fakes import FramedSession, echo, framed

LIMIT_S = 20.0
TURNS_MAX = 20_000
LOOPBACK = "127.0.0.1"


class EchoDoor(PlainDoor):
    """Answers every frame with itself, or lets the test do it."""

    def __init__(self, handle: Callable[[bytes, Slot], None] | None = echo) -> None:
        self.sessions: list[FramedSession] = []
        self._handle = handle

    def session(self, connection: Connection) -> FramedSession:
        self.sessions.append(FramedSession(connection, self._handle))
        return self.sessions[-1]


class Served:
    """A loop that turns when the test says so, and clients of it."""

    def __init__(self, handle: Callable[[bytes, Slot], None] | None = echo, **limits: int | float) -> None:
        self.clock = ManualClock(100.0, 1_700_000_000_000)
        self.loop = Loop(ServerLimits(**limits), self.clock)  # type: ignore[arg-type]
        self.door = EchoDoor(handle)
        self.port = self.loop.listen(self.door, LOOPBACK, 0)
        self._clients = ExitStack()

    def client(self) -> socket.socket:
        client = socket.create_connection((LOOPBACK, self.port), LIMIT_S)
        client.setblocking(False)
        return self._clients.enter_context(client)

    def until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if is_so():
                return
            self.loop.turn(0.01)
        raise AssertionError("it never came about")

    def received(self, client: socket.socket, count: int) -> bytes:
        data = bytearray()

        def is_all() -> bool:
            try:
                part = client.recv(count - len(data))
            except BlockingIOError:
                return False
            data.extend(part)
            return len(data) >= count or not part

        self.until(is_all)
        return bytes(data)

    def is_closed(self, client: socket.socket) -> bool:
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._clients.close()
        self.loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def make(*arguments: object, **limits: int | float) -> Served:
            served = Served(*arguments, **limits)  # type: ignore[arg-type]
            stack.callback(served.close)
            return served

        yield make


def test_requests_are_answered(serve: Callable[..., Served]) -> None:
    served = serve()
    client = served.client()
    client.sendall(framed(b"one", b"two"))
    assert served.received(client, 14) == framed(b"one", b"two")


def test_a_large_request_and_answer_pass(serve: Callable[..., Served]) -> None:
    served = serve()
    client = served.client()
    data = framed(os.urandom(5 << 20))
    sent = 0
    received = bytearray()

    def pump() -> bool:
        nonlocal sent
        try:
            if sent < len(data):
                sent += client.send(data[sent : sent + 100_000])
            received.extend(client.recv(1 << 20))
        except BlockingIOError:
            pass
        return len(received) == len(data)

    served.until(pump)
    assert received == data
    assert served.loop.memory.used == 0


def test_a_thousand_connections_are_served(serve: Callable[..., Served]) -> None:
    served = serve()
    clients: list[socket.socket] = []
    for hundreds in range(1, 11):
        clients += [served.client() for _ in range(100)]
        served.until(lambda count=100 * hundreds: len(served.loop.connections) == count)  # type: ignore[misc]
    for number, client in enumerate(clients):
        client.sendall(framed(str(number).encode()))
    for number, client in enumerate(clients):
        expected = framed(str(number).encode())
        assert served.received(client, len(expected)) == expected


def test_one_connection_more_than_allowed_is_closed(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(connections_max=2)
    kept = [served.client(), served.client()]
    served.until(lambda: len(served.loop.connections) == 2)
    refused = served.client()
    served.until(lambda: served.is_closed(refused))
    assert "there are 2 already" in caplog.text
    kept[0].close()
    served.until(lambda: len(served.loop.connections) == 1)
    late = served.client()
    late.sendall(framed(b"x"))
    assert served.received(late, 5) == framed(b"x")


def test_idle_connections_are_closed_but_those_that_wait_are_not(serve: Callable[..., Served]) -> None:
    served = serve(None, idle_s=60.0)
    idle, waiting, active = served.client(), served.client(), served.client()
    waiting.sendall(framed(b"x"))
    served.until(lambda: len(served.door.sessions) == 3 and any(session.frames for session in served.door.sessions))
    for _ in range(10):
        served.clock.advance(15)
        active.sendall(framed(b"y"))
        served.until(lambda: any(session.slots and session.frames[-1] == b"y" for session in served.door.sessions))
        served.loop.turn(0)
    assert served.is_closed(idle)
    assert not served.is_closed(waiting)
    assert not served.is_closed(active)


def test_a_client_that_does_not_read_harms_only_itself(serve: Callable[..., Served]) -> None:
    served = serve(lambda frame, slot: slot.answer((bytes(100_000),)), out_bytes_max=1 << 20, in_flight_max=10_000)
    greedy, modest = served.client(), served.client()
    greedy.sendall(framed(*(b"x" for _ in range(1000))))
    for _ in range(200):
        served.loop.turn(0)
    (stuck,) = [session for session in served.door.sessions if session.frames]
    assert len(stuck.frames) < 1000
    modest.sendall(framed(b"y"))
    assert len(served.received(modest, 100_000)) == 100_000
    assert len(served.received(greedy, 100_000_000)) == 100_000_000
    assert len(stuck.frames) == 1000


def test_whoever_stands_still_makes_room_for_others(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(request_memory_max=1 << 20, frame_bytes_max=1 << 20)
    still, busy = served.client(), served.client()
    still.sendall((900_000).to_bytes(4, "big") + bytes(60_000))
    served.until(lambda: served.loop.memory.used > 800_000)
    served.clock.advance(1)
    data = framed(bytes(900_000))
    sent = 0

    def pump() -> bool:
        nonlocal sent
        with suppress(BlockingIOError):
            sent += busy.send(data[sent : sent + 200_000])
        return sent == len(data)

    served.until(pump)
    assert served.received(busy, len(data)) == data
    assert served.is_closed(still)
    assert "stood still" in caplog.text


def test_a_client_that_resets_is_forgotten(serve: Callable[..., Served]) -> None:
    served = serve(None)
    client = served.client()
    client.sendall(framed(b"x"))
    served.until(lambda: bool(served.door.sessions and served.door.sessions[0].frames))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    client.close()
    served.until(lambda: not served.loop.connections)
    assert served.door.sessions[0].is_closed
    served.door.sessions[0].slots[0].answer((b"late",))


def test_faults_are_told_but_not_without_end(serve: Callable[..., Served], caplog: pytest.LogCaptureFixture) -> None:
    served = serve(frame_bytes_max=1000)
    for _ in range(30):
        client = served.client()
        client.sendall((2000).to_bytes(4, "big"))
        served.until(lambda client=client: served.is_closed(client))  # type: ignore[misc]
    assert len(caplog.records) == 10
    assert "127.0.0.1" in caplog.text
    served.clock.advance(2)
    client = served.client()
    client.sendall((2000).to_bytes(4, "big"))
    served.until(lambda: served.is_closed(client))
    assert "20 more faults" in caplog.text


def test_duties_are_called_each_turn_and_when_they_want_to_be(serve: Callable[..., Served]) -> None:
    served = serve()
    calls: list[float] = []

    def duty(now: float, now_ms: int) -> float | None:
        calls.append(now)
        return 103.0

    served.loop.add_duty(duty)
    served.loop.turn(0)
    assert served.loop._wait(None) == 3.0
    assert served.loop._wait(1.0) == 1.0
    served.clock.advance(5)
    served.loop.turn()  # is due, so that it does not wait
    assert calls == [100.0, 105.0]


def test_what_is_due_soon_is_done_before_answers_leave(serve: Callable[..., Served]) -> None:
    loops: list[Loop] = []
    served = serve(lambda frame, slot: loops[0].soon(lambda: slot.answer((b"soon",))))
    loops.append(served.loop)
    client = served.client()
    client.sendall(framed(b"x"))
    served.until(lambda: any(session.frames for session in served.door.sessions))
    assert served.received(client, 4) == b"soon"


def test_without_work_nothing_is_waited_for_but_the_idle_check(serve: Callable[..., Served]) -> None:
    served = serve(idle_s=600.0)
    assert served.loop._wait(None) == 150.0
    served.loop.timers.at(101.0, lambda: None)
    assert served.loop._wait(None) == 1.0


def test_other_threads_have_things_called_and_stop_the_loop() -> None:
    loop = Loop()
    told: list[str] = []
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call(lambda: told.append(threading.current_thread().name))
    loop.stop()
    thread.join(LIMIT_S)
    assert told == [thread.name]
    loop.close()


class Listener:
    """A listening socket of which connections are taken only after these errors."""

    def __init__(self, real: socket.socket, *errors: int) -> None:
        self._real = real
        self.errors = list(errors)

    def fileno(self) -> int:
        return self._real.fileno()

    def accept(self) -> object:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return self._real.accept()


@pytest.mark.parametrize("name", ["ECONNABORTED", "EPROTO", "ENETDOWN", "EHOSTUNREACH", "ETIMEDOUT", "EPERM"])
def test_what_befalls_a_connection_before_it_is_taken_harms_no_other(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    served = serve()
    listener, door = next(iter(served.loop._listeners.values()))
    client = served.client()
    number = getattr(errno, name)
    served.loop._accept(cast(socket.socket, Listener(listener, number, number)), door)
    assert len(served.loop.connections) == 1
    client.sendall(framed(b"x"))
    assert served.received(client, 5) == framed(b"x")
    assert os.strerror(number) in caplog.text


def test_a_listener_that_fails_for_another_reason_is_left_alone_for_a_while(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    listener, door = next(iter(served.loop._listeners.values()))
    failing = Listener(listener, errno.EIO)
    served.loop._accept(cast(socket.socket, failing), door)
    assert os.strerror(errno.EIO) in caplog.text
    client = served.client()
    client.sendall(framed(b"x"))
    served.loop.turn(0)
    assert not served.loop.connections
    served.clock.advance(1.5)
    assert served.received(client, 5) == framed(b"x")


@pytest.mark.parametrize("error", [RuntimeError("unforeseen"), DecodeError(0, "a", "b", "c")], ids=["bug", "refusal"])
@pytest.mark.parametrize("where", ["request", "soon", "timer", "closing"])
def test_what_is_done_for_a_connection_and_fails_ends_that_connection_alone(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture, error: Exception, where: str
) -> None:
    def fail() -> None:
        raise error

    def handle(frame: bytes, slot: Slot) -> None:
        connection = slot._connection
        assert connection is not None
        if frame == b"well":
            slot.answer((b"fine",))
        elif where == "request":
            fail()
        elif where == "soon":
            connection.soon(fail)
        elif where == "timer":
            connection.at(served.loop.now + 1, fail)
        else:
            slot.abandoned = fail
            connection.close("a test")

    served = serve(handle)
    sick, well = served.client(), served.client()
    sick.sendall(framed(b"sick"))
    served.until(lambda: any(session.frames for session in served.door.sessions))
    served.clock.advance(2)
    served.until(lambda: served.is_closed(sick))
    well.sendall(framed(b"well"))
    assert served.received(well, 4) == b"fine"
    assert len(served.loop.connections) == 1
    if where != "closing":
        assert "was closed" in caplog.text
    if isinstance(error, RuntimeError):
        assert "unforeseen" in caplog.text


def test_without_descriptors_accepting_pauses(serve: Callable[..., Served], caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    (listener, door) = next(iter(served.loop._listeners.values()))
    served.loop._pause_accepting(listener, door, OSError(24, "Too many open files"))
    client = served.client()
    client.sendall(framed(b"x"))
    for _ in range(10):
        served.loop.turn(0)
    assert not served.loop.connections
    assert "no connection can be taken" in caplog.text
    served.clock.advance(1.5)
    assert served.received(client, 5) == framed(b"x")


def test_after_it_is_shut_nobody_connects_but_those_there_are_served(serve: Callable[..., Served]) -> None:
    served = serve()
    client = served.client()
    served.until(lambda: bool(served.loop.connections))
    served.loop.shut()
    with pytest.raises(ConnectionRefusedError):
        served.client()
    client.sendall(framed(b"x"))
    assert served.received(client, 5) == framed(b"x")


@pytest.mark.parametrize("limits", [{"connections_max": 0}, {"idle_s": -1.0}, {"request_memory_max": 1000}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        ServerLimits(**limits)  # type: ignore[arg-type]
