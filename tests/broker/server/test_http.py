from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.server import http
from penstock.broker.server.http import (
    CHECK_S,
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    HEAD_S,
    IDLE_S,
    BadRequest,
    HttpDoor,
    HttpRequest,
    Page,
    parse_request,
)
from penstock.broker.server.loop import Loop
from penstock.clock import ManualClock

TURNS_MAX = 1000


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET / HTTP/1.1\r\nHost: x", HttpRequest("GET", "/")),
        (b"HEAD /stats?x=1&y HTTP/1.1", HttpRequest("HEAD", "/stats")),
        (b"\r\nGET /a%20b%2Fc HTTP/1.1", HttpRequest("GET", "/a b/c")),
        (b"GET / HTTP/1.1\r\nConnection: Close", HttpRequest("GET", "/", stays_open=False)),
        (b"GET / HTTP/1.0", HttpRequest("GET", "/", stays_open=False)),
        (b"GET / HTTP/1.0\nconnection:keep-alive", HttpRequest("GET", "/")),
        (b"GET / HTTP/1.1\r\nContent-Length: 0\r\nX-Odd:  a: b ", HttpRequest("GET", "/")),
    ],
)
def test_a_request_is_read(head: bytes, request_: HttpRequest) -> None:
    assert parse_request(head) == request_


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1", 400),
        (b"GET / HTTP/2.0", 400),
        (b"get / HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nno field", 400),
        (b"GET / HTTP/1.1\r\nfolded: a\r\n b", 400),
        (b"GET / HTTP/1.1\r\nname : value", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 3", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
    ],
)
def test_what_is_no_request_to_be_served_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(head)
    assert caught.value.status.value == status


@given(st.binary(max_size=200) | st.text(alphabet="GET /HP.1\r\n:a ", max_size=200).map(str.encode))
def test_whatever_comes_is_a_request_or_a_bad_one(head: bytes) -> None:
    try:
        status = 200
        assert parse_request(head).path.startswith("/")
    except BadRequest as error:
        status = error.status.value
    assert status in (200, 400, 405)


class Service:
    """A loop with the door, turned by the test, and clients of it."""

    def __init__(self, page_of: Callable[[HttpRequest], Page]) -> None:
        self.clock = ManualClock()
        self.loop = Loop(clock=self.clock)
        self.door = HttpDoor(self.loop, page_of)
        self.port = self.loop.listen(self.door, "127.0.0.1", 0)
        self.clients: list[socket.socket] = []

    def client(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port))
        client.setblocking(False)
        self.clients.append(client)
        known = len(self.door.sessions)
        self.turn_until(lambda: len(self.door.sessions) > known or known == CONNECTIONS_MAX)
        return client

    def turn_until(self, holds: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if holds():
                return
            self.loop.turn(0.01)
        pytest.fail(f"nothing came of it in {TURNS_MAX} turns")

    def receive(self, client: socket.socket, ended: Callable[[bytes], bool]) -> bytes:
        """What the client gets until that holds, or until it is closed."""
        got = b""
        closed = False

        def more() -> bool:
            nonlocal got, closed
            try:
                part = client.recv(1 << 20)
            except BlockingIOError:
                return ended(got)
            closed = not part
            got += part
            return closed or ended(got)

        self.turn_until(more)
        return got

    def ask(self, client: socket.socket, request: bytes, answers: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
        """Send, and the answers to it: status, fields, body."""
        client.sendall(request)
        got = self.receive(client, lambda got: len(read_answers(got)) == answers)
        return read_answers(got)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.loop.close()


def read_answers(data: bytes, bodies: bool = True) -> list[tuple[int, dict[str, str], bytes]]:
    """The whole answers in these bytes."""
    answers = []
    while b"\r\n\r\n" in data:
        head, _, data = data.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        fields = dict(each.split(": ", 1) for each in lines)
        length = int(fields["Content-Length"]) if bodies else 0
        if len(data) < length:
            break
        answers.append((int(line.split()[1]), fields, data[:length]))
        data = data[length:]
    return answers


def echo(request: HttpRequest) -> Page:
    if request.path == "/pieces":
        return Page(iter([b"one ", b"", b"two ", b"three"]))
    if request.path == "/fails":
        raise ZeroDivisionError
    if request.path == "/breaks":
        return Page(1 // (3 - number) * b"piece" for number in range(5))
    return Page(f"you asked for {request.path}".encode())


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(echo)
    yield made
    made.close()


def test_a_page_is_answered_and_the_connection_stays_open(service: Service) -> None:
    client = service.client()
    for path in ("/a", "/b"):
        (answer,) = service.ask(client, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, fields, body = answer
        assert (status, body) == (200, f"you asked for {path}".encode())
        assert fields["Connection"] == "keep-alive"
        assert fields["Content-Type"] == "text/plain; charset=utf-8"


def test_a_request_may_come_byte_by_byte_and_several_at_once(service: Service) -> None:
    client = service.client()
    for byte in b"GET /a HTTP/1.1\r\nHost: x\r\n\r":
        client.sendall(bytes([byte]))
        service.loop.turn(0.01)
    answers = service.ask(client, b"\nGET /b HTTP/1.1\r\n\r\nGET /pieces HTTP/1.1\r\n\r\nGET /c HTTP/1.1\r\n\r\n", 4)
    bodies = [body for _, _, body in answers]
    assert bodies == [b"you asked for /a", b"you asked for /b", b"one two three", b"you asked for /c"]


@pytest.mark.parametrize("request_", [b"GET /a HTTP/1.0\r\n\r\n", b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n"])
def test_a_client_that_wants_it_so_is_closed(service: Service, request_: bytes) -> None:
    client = service.client()
    client.sendall(request_ + b"GET /never HTTP/1.1\r\n\r\n")
    ((status, fields, body),) = read_answers(service.receive(client, lambda got: False))
    assert (status, body, fields["Connection"]) == (200, b"you asked for /a", "close")


def test_head_gets_the_head_alone(service: Service) -> None:
    client = service.client()
    client.sendall(b"HEAD /pieces HTTP/1.1\r\nConnection: close\r\n\r\n")
    ((status, fields, _),) = read_answers(service.receive(client, lambda got: False), bodies=False)
    assert (status, fields["Content-Length"]) == (200, "13")


def test_a_page_is_made_piece_by_piece_with_turns_in_between(service: Service) -> None:
    turns_between: list[float] = []
    pieces = (turns_between.append(service.loop.now) or b"x" for _ in range(3))  # type: ignore[func-returns-value]
    service.door._page_of = lambda request: Page(pieces)
    client = service.client()
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    service.turn_until(lambda: len(turns_between) == 1)
    service.clock.advance(1)
    service.loop.turn(0.01)
    service.clock.advance(1)
    assert service.receive(client, lambda got: bool(read_answers(got))).endswith(b"\r\n\r\nxxx")
    assert turns_between == [0.0, 1.0, 2.0]


def test_a_page_whose_client_is_gone_is_not_made_further(service: Service) -> None:
    made: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(10_000):
            made.append(number)
            yield b"x"

    service.door._page_of = lambda request: Page(pieces())
    client = service.client()
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    service.turn_until(lambda: bool(made))
    client.close()
    service.turn_until(lambda: not service.door.sessions)
    service.turn_until(lambda: not service.door._jobs)
    assert len(made) < 10_000


@pytest.mark.parametrize("path", ["/fails", "/breaks"])
def test_a_page_that_cannot_be_made_is_told_and_logged(
    service: Service, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = service.client()
    answers = service.ask(client, f"GET {path} HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\n\r\n".encode(), 2)
    assert [status for status, _, _ in answers] == [500, 200]
    assert f"{path} cannot be answered" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_too_many_pages_that_wait_to_be_made_are_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAGES_MAX", 2)
    answers = service.ask(service.client(), b"GET /pieces HTTP/1.1\r\n\r\n" * 4, 4)
    assert [status for status, _, _ in answers] == [200, 200, 503, 503]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"PUT /stats HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * HEAD_BYTES_MAX, 431),
    ],
)
def test_bad_requests_are_told_why_and_closed(service: Service, request_: bytes, status: int) -> None:
    client = service.client()
    client.sendall(request_)
    ((told, fields, body),) = read_answers(service.receive(client, lambda got: False))
    assert (told, fields["Connection"]) == (status, "close")
    assert body
    if status == 405:
        assert fields["Allow"] == "GET, HEAD"
    assert not service.door.sessions


def test_a_request_that_is_not_finished_in_time_is_closed(service: Service) -> None:
    client = service.client()
    client.sendall(b"GET / HT")
    service.turn_until(lambda: any(session._head_since is not None for session in service.door.sessions))
    for _ in range(int(HEAD_S / CHECK_S)):
        client.sendall(b"T")
        service.clock.advance(CHECK_S)
        service.loop.turn(0.01)
    ((status, _, _),) = read_answers(service.receive(client, lambda got: False))
    assert status == HTTPStatus.REQUEST_TIMEOUT


def test_a_connection_that_stands_still_is_closed(service: Service) -> None:
    client = service.client()
    service.ask(client, b"GET /a HTTP/1.1\r\n\r\n")
    for _ in range(int(IDLE_S / CHECK_S) + 1):
        service.clock.advance(CHECK_S)
        service.loop.turn(0.01)
    assert service.receive(client, lambda got: False) == b""
    assert len(service.loop.timers) == 1


def test_with_too_many_connections_the_one_that_stood_still_longest_makes_room(service: Service) -> None:
    clients = []
    for _ in range(CONNECTIONS_MAX):
        clients.append(service.client())
        service.clock.advance(0.01)
    service.ask(clients[0], b"GET /a HTTP/1.1\r\n\r\n")
    another = service.client()
    assert service.ask(another, b"GET /a HTTP/1.1\r\n\r\n")[0][0] == 200
    assert service.receive(clients[1], lambda got: False) == b""
    assert service.ask(clients[0], b"GET /b HTTP/1.1\r\n\r\n")[0][0] == 200
    assert len(service.door.sessions) == CONNECTIONS_MAX


def test_a_client_that_takes_nothing_holds_up_nobody(service: Service) -> None:
    large = Page(b"x" * (16 << 20))
    service.door._page_of = lambda request: large if request.path == "/large" else Page(b"small")
    slow, quick = service.client(), service.client()
    slow.sendall(b"GET /large HTTP/1.1\r\n\r\n")
    service.turn_until(lambda: any(connection.has_unsent for connection in service.door.sessions.values()))
    assert service.ask(quick, b"GET / HTTP/1.1\r\n\r\n")[0][2] == b"small"
    for _ in range(int(IDLE_S / CHECK_S) + 1):
        service.clock.advance(CHECK_S)
        service.loop.turn(0.01)
    assert not any(connection.has_unsent for connection in service.door.sessions.values())
