"""HTTP on the second port: statistics, metrics, health, for whoever asks with GET.

Read only, plain, and as small as that needs: HTTP/1.1 with connections that stay open, no bodies in requests, no
chunks, nothing negotiated. What to answer is for `pages.py`.

An answer may take long to make, on a broker with many topics. So a page may be made piece by piece, one piece for each
turn of the loop, and one page at a time: whoever asks for statistics waits, and messages do not.

| limit            | whoever passes it                                                      |
|------------------|------------------------------------------------------------------------|
| HEAD_BYTES_MAX   | is told 431 and closed                                                 |
| HEAD_S           | has begun a request and not finished it in time: told 408 and closed   |
| IDLE_S           | neither asks nor takes its answer: closed                              |
| CONNECTIONS_MAX  | the connection that stood still longest is closed for the new one      |
| PAGES_MAX        | pages that wait to be made; one more is answered with 503              |

Runs on: the loop thread.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from urllib.parse import unquote

from penstock.broker.server.connection import Connection, Slot
from penstock.broker.server.loop import PlainDoor

if TYPE_CHECKING:
    from penstock.broker.server.timers import Timer

_log = logging.getLogger("penstock.broker.http")

HEAD_BYTES_MAX: Final = 8192
HEAD_S: Final = 10.0
IDLE_S: Final = 30.0
CHECK_S: Final = 5.0
CONNECTIONS_MAX: Final = 64
PAGES_MAX: Final = 64

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(r"\r?\n")
_REQUEST_LINE = re.compile(r"([A-Z]+) (/[!-~]*) HTTP/1\.([01])")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What was asked for."""

    method: str
    path: str
    """Without the query, and with what was encoded in it as it is meant."""
    stays_open: bool = True


Pieces: TypeAlias = Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered: all of it, or the pieces of which it will consist."""

    body: bytes | Pieces
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    fields: dict[str, str] = field(default_factory=dict)


class BadRequest(Exception):  # noqa: N818
    """A request that is answered with this status, and after which the connection closes."""

    def __init__(self, status: HTTPStatus, text: str, **fields: str) -> None:
        super().__init__(text)
        self.status = status
        self.fields = fields


class Turns(Protocol):
    """What the door asks of its loop."""

    now: float

    def call(self, function: Callable[[], None]) -> None:
        """Have this called in the next turn."""


def parse_request(head: bytes) -> HttpRequest:
    """A request's head, without the empty line that ends it; BadRequest when it is not one that is served."""
    line, *lines = _LINE_END.split(head.decode("latin-1").lstrip("\r\n"))
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "expected GET, a path and HTTP/1.1")
    method, target, minor = found.groups()
    fields: dict[str, str] = {}
    for each in lines:
        name, colon, value = each.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header field is not of the form `name: value`")
        fields[name.lower()] = value.strip(" \t")
    if method not in ("GET", "HEAD"):
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served", Allow="GET, HEAD")
    if "transfer-encoding" in fields or fields.get("content-length", "0") != "0":
        raise BadRequest(HTTPStatus.BAD_REQUEST, "a request has no body here")
    wish = fields.get("connection", "").lower()
    stays_open = wish == "keep-alive" if minor == "0" else wish != "close"
    return HttpRequest(method, unquote(target.partition("?")[0]), stays_open)


def head_of(page: Page, length: int, stays_open: bool) -> bytes:
    """The head of an answer."""
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.kind}",
        f"Content-Length: {length}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if stays_open else 'close'}",
        *(f"{name}: {value}" for name, value in page.fields.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HttpSession:
    """One connection."""

    __slots__ = ("_connection", "_door", "_head_since", "_timer")

    def __init__(self, door: HttpDoor, connection: Connection) -> None:
        self._door = door
        self._connection = connection
        self._head_since: float | None = None
        self._timer: Timer = connection.at(door.turns.now + CHECK_S, self._check)

    def receive(self, data: memoryview) -> tuple[int, int]:
        """Take the requests that are whole."""
        used = 0
        while used < len(data):
            if not self._connection.has_room:
                return used, 0
            seen = bytes(data[used : used + HEAD_BYTES_MAX])
            end = _HEAD_END.search(seen)
            if end is None:
                if len(seen) == HEAD_BYTES_MAX:
                    text = f"the head of a request has at most {HEAD_BYTES_MAX} bytes"
                    self._refuse(BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text))
                    return len(data), 0
                if self._head_since is None:
                    self._head_since = self._door.turns.now
                return used, len(data) - used + 1
            self._head_since = None
            used += end.end()
            self._handle(seen[: end.start()])
            if self._connection.finishing:
                return len(data), 0
        return used, 0

    def closed(self) -> None:
        """The connection is gone."""
        self._timer.cancel()
        self._door.sessions.pop(self, None)

    def _handle(self, head: bytes) -> None:
        try:
            request = parse_request(head)
        except BadRequest as error:
            self._refuse(error)
            return
        self._door.answer(self._connection.slot(), request)
        if not request.stays_open:
            self._connection.finish()

    def _refuse(self, error: BadRequest) -> None:
        page = Page(f"{error}\n".encode(), status=error.status, fields=error.fields)
        self._connection.slot().answer([head_of(page, len(f"{error}\n"), stays_open=False), f"{error}\n".encode()])
        self._connection.finish()

    def _check(self) -> None:
        """Now and then: has it stood still for too long?"""
        turns, connection = self._door.turns, self._connection
        if self._head_since is not None and turns.now - self._head_since >= HEAD_S:
            self._head_since = None
            self._refuse(BadRequest(HTTPStatus.REQUEST_TIMEOUT, f"the request was not finished in {HEAD_S:.0f} s"))
        elif turns.now - connection.active_at >= IDLE_S and not connection.is_waiting:
            connection.close("nothing moved on it")
            return
        self._timer = connection.at(turns.now + CHECK_S, self._check)


class HttpDoor(PlainDoor):
    """The door for HTTP."""

    def __init__(self, turns: Turns, page_of: Callable[[HttpRequest], Page]) -> None:
        self.turns = turns
        self.sessions: dict[HttpSession, Connection] = {}
        self._page_of = page_of
        self._jobs: deque[_Job] = deque()

    def session(self, connection: Connection) -> HttpSession:
        """Its side of a new connection; the one that stood still longest makes room if there are too many."""
        if len(self.sessions) >= CONNECTIONS_MAX:
            min(self.sessions.values(), key=lambda other: other.active_at).close("another one needs its place")
        session = HttpSession(self, connection)
        self.sessions[session] = connection
        return session

    def answer(self, slot: Slot, request: HttpRequest) -> None:
        """Make the page, at once or piece by piece."""
        try:
            page = self._page_of(request)
        except Exception:  # noqa: BLE001
            _log.exception("%s cannot be answered", request.path)
            page = _FAILED
        if isinstance(page.body, bytes):
            answer(slot, request, page, [page.body])
            return
        if len(self._jobs) >= PAGES_MAX:
            answer(slot, request, _BUSY, [_BUSY_TEXT])
            return
        self._jobs.append(_Job(slot, request, page, page.body))
        if len(self._jobs) == 1:
            self.turns.call(self._step)

    def _step(self) -> None:
        """One more piece of the page that is being made."""
        if self._jobs[0].is_over():
            self._jobs.popleft()
        if self._jobs:
            self.turns.call(self._step)


class _Job:
    """A page that is made piece by piece."""

    __slots__ = ("_made", "_page", "_pieces", "_request", "_slot")

    def __init__(self, slot: Slot, request: HttpRequest, page: Page, pieces: Pieces) -> None:
        self._slot = slot
        self._request = request
        self._page = page
        self._pieces = pieces
        self._made: list[bytes] = []

    def is_over(self) -> bool:
        """Make the next piece, or answer with all of them; whether nothing is left to do."""
        if not self._slot.is_open:
            return True
        try:
            piece = next(self._pieces, None)
        except Exception:  # noqa: BLE001
            _log.exception("%s cannot be answered", self._request.path)
            answer(self._slot, self._request, _FAILED, [_FAILED_TEXT])
            return True
        if piece is None:
            answer(self._slot, self._request, self._page, self._made)
            return True
        self._made.append(piece)
        return False


def answer(slot: Slot, request: HttpRequest, page: Page, body: list[bytes]) -> None:
    """Send a page that is made."""
    head = head_of(page, sum(map(len, body)), request.stays_open)
    slot.answer([head] if request.method == "HEAD" else [head, *filter(None, body)])


_BUSY_TEXT = b"too many pages are being made; ask again later\n"
_BUSY = Page(_BUSY_TEXT, status=HTTPStatus.SERVICE_UNAVAILABLE)
_FAILED_TEXT = b"the broker failed to make this page; its log tells why\n"
_FAILED = Page(_FAILED_TEXT, status=HTTPStatus.INTERNAL_SERVER_ERROR)
