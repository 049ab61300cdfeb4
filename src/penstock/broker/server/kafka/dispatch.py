"""A request's header read, its handler found, and what a handler needs to know.

| what comes                                | what happens                                                       |
|-------------------------------------------|--------------------------------------------------------------------|
| a frame too large, or cut short           | the connection closes, with a logged reason                        |
| an API that is not served                 | the same, as Kafka does it                                         |
| a version that is not served              | the same; ApiVersions is answered in version 0, with what is served |
| a body that is not what it should be      | the connection closes, with a logged reason                        |
| a handler that refuses                    | the answer's own error code; where it has none, the connection closes |
| a handler that fails                      | the same with UNKNOWN_SERVER_ERROR, and the failure is logged      |
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock.broker.server.connection import Connection, Slot
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.apis import BY_KEY, Served
from penstock.broker.server.kafka.codes import code_of
from penstock.errors import DecodeError, LimitError, PenstockError, UnsupportedError
from penstock.wire.kafka.primitives import skip_tags

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.server.kafka.door import KafkaDoor

_log = logging.getLogger("penstock.broker")

SIZE = struct.Struct(">i")
HEADER = struct.Struct(">hhih")
KEY_END = 6
PRODUCE, API_VERSIONS = 0, 18


class Handler(Protocol):
    """Answers one kind of request, at once or later, by `context.answer` or `context.slot.answer`.

    `request` is a named tuple with the fields of kio's request class of that version, read without trust: strings,
    bytes and arrays are what the schema allows (null only where it may be), durations are whole milliseconds, tags
    that are not known are skipped. Fields that a version has not are absent: use `getattr(request, name, default)`.

    A `Refused` (or another PenstockError) that a handler lets out is answered with its code in the answer's own
    `error_code` and `error_message`; where the answer has none, and for every other exception, the connection closes.
    """

    def __call__(self, request: Any, context: Context) -> None:
        """Handle the request."""


RawHandler: TypeAlias = "Callable[[memoryview, int, Context], None]"
"""The same for a handler that reads the body itself, from there on; it must keep no view of it."""


class Context:
    """What a handler knows beside the request. One for each request; may be kept until it is answered."""

    __slots__ = ("api", "client_id", "connection", "correlation", "door", "now", "now_ms", "session", "slot", "version")

    def __init__(self, session: KafkaSession, api: Served, version: int, correlation: int, slot: Slot) -> None:
        door = session.door
        self.session = session
        self.door = door
        self.connection = session.connection
        self.api = api
        self.version = version
        self.correlation = correlation
        self.client_id = session.client_id
        self.slot = slot
        self.now = door.loop.now
        """Monotonic seconds when the request arrived."""
        self.now_ms = door.loop.now_ms
        """Wall clock milliseconds when the request arrived."""

    def __repr__(self) -> str:
        return f"<{self.api} {self.version} of {self.client_id!r} at {self.host}>"

    @property
    def broker(self) -> Broker:
        """The broker behind the door."""
        return self.door.broker

    @property
    def host(self) -> str:
        """The client's address, without its port."""
        return self.connection.host

    @property
    def address(self) -> tuple[str, int]:
        """Host and port under which this client is told to find the broker."""
        return self.door.address(self.connection)

    def answer(self, **values: Any) -> None:
        """Answer with these fields of kio's response class of this version, by `wire.kafka.writer`: plain mappings.

        Fields that this version has not are left out, missing ones get their default. Once for each request.
        """
        self.slot.answer((codec.encode_answer(self.api, self.version, self.correlation, values),))

    def fail(self, error: Exception) -> None:
        """The handler let an error out: one that nobody foresaw is logged."""
        if not isinstance(error, PenstockError):
            _log.error("%r failed", self, exc_info=error)
        self.refuse(error)

    def refuse(self, error: BaseException) -> None:
        """Answer that it failed as a whole, for a handler that learns so later."""
        if not self.slot.is_open:
            return
        if "error_code" in codec.answer_names(self.api, self.version):
            text = (
                {"error_message": str(error)} if "error_message" in codec.answer_names(self.api, self.version) else {}
            )
            self.answer(error_code=code_of(error), **text)
        else:
            self.connection.close(f"{self!r} failed: {error}", fault=True)


class Route:
    """A kind of request, and its handler once somebody asked for it."""

    __slots__ = ("api", "handle", "read")

    def __init__(self, api: Served) -> None:
        self.api = api
        self.handle: Callable[..., None] = self._load
        self.read = codec.request_reader

    def _load(self, *arguments: Any) -> None:
        module, function = self.api.handler.split(".")
        self.handle = getattr(import_module(f"{__package__}.{module}"), function)
        self.handle(*arguments)


ROUTES = {key: Route(api) for key, api in BY_KEY.items()}


class KafkaSession:
    """The door's side of one connection. Runs on: the loop thread."""

    __slots__ = ("_client_bytes", "_counted_as", "client_id", "connection", "door", "fetches", "shape", "unlike")

    def __init__(self, door: KafkaDoor, connection: Connection) -> None:
        self.door = door
        self.connection = connection
        self.client_id: str | None = None
        self.fetches: Any = None
        """What `fetch` remembers of this connection."""
        self.shape: Any = None
        """The same for `produce`: how its requests look, and how many did not."""
        self.unlike = 0
        self._client_bytes = b""
        self._counted_as: str | None = None

    def receive(self, data: memoryview) -> tuple[int, int]:
        """Handle the requests that are there whole, as long as there is room for more."""
        connection, at, end = self.connection, 0, len(data)
        while at < end and connection.has_room:
            left = end - at
            if left < SIZE.size:
                return at, SIZE.size
            size: int = SIZE.unpack_from(data, at)[0]
            if size > self.door.limits.control_bytes_max or size < HEADER.size:
                if left < KEY_END:
                    self._check_size(size, PRODUCE)  # of the kinds it may be, the one that may be largest
                    return at, KEY_END
                self._check_size(size, int.from_bytes(data[at + SIZE.size : at + KEY_END], "big"))
            frame_end = at + SIZE.size + size
            if frame_end > end:
                return at, SIZE.size + size
            self._request(data[at + SIZE.size : frame_end])
            if connection.is_closed:
                return end, 0
            at = frame_end
        return at, 0

    def closed(self) -> None:
        """Forget what was kept for this connection."""
        self._count_as(None)
        if self.fetches is not None:
            self.fetches.close()

    def _check_size(self, size: int, key: int) -> None:
        limits = self.door.limits
        if size < HEADER.size:
            raise DecodeError(0, "frame size", f"{HEADER.size} or more", size)
        most = limits.frame_bytes_max if key == PRODUCE else limits.control_bytes_max
        if size > most:
            raise LimitError(0, "frame size", f"{most} at most for a request of kind {key}", size)

    def _request(self, frame: memoryview) -> None:
        key, version, correlation, size = HEADER.unpack_from(frame)
        at = HEADER.size
        if size >= 0:
            at += size
            if frame[HEADER.size : at] != self._client_bytes or self.client_id is None:
                self._know_client(frame, size)
        else:
            self.client_id = None
            self._client_bytes = b""
        route = ROUTES.get(key)
        if route is None:
            raise UnsupportedError(0, "request", "a kind that is served", f"kind {key}")
        api = route.api
        if not api.oldest <= version <= api.newest:
            if key != API_VERSIONS:
                raise UnsupportedError(2, f"version of {api}", f"{api.oldest} to {api.newest}", version)
            version = -1  # which its handler knows how to answer
        context = Context(self, api, version, correlation, self.connection.slot())
        raw = api.raw
        try:
            if version >= api.flexible_from:
                at = skip_tags(frame, at) if frame[at] else at + 1
            if raw:
                route.handle(frame, at, context)
            else:
                request = route.read(api, version)(frame, at)[0]
        except (IndexError, struct.error, DecodeError) as error:
            if not context.slot.is_open:
                context.fail(error)
                return
            raise DecodeError(len(frame), f"{api} {version}", "a whole request", f"{error}") from error
        except Exception as error:  # noqa: BLE001
            context.fail(error)
            return
        if not raw:
            self._handle(route, request, context)

    def _handle(self, route: Route, request: Any, context: Context) -> None:
        try:
            route.handle(request, context)
        except Exception as error:  # noqa: BLE001
            context.fail(error)

    def _know_client(self, frame: memoryview, size: int) -> None:
        at = HEADER.size
        if size > len(frame) - at:
            raise DecodeError(at, "client id", f"{len(frame) - at} bytes at most", size)
        told = frame[at : at + size]
        if told != self._client_bytes:
            try:
                self.client_id = str(told, "utf-8")
            except UnicodeDecodeError as error:
                raise DecodeError(at, "client id", "UTF-8", bytes(told)) from error
            self._client_bytes = bytes(told)
            self._count_as(self.client_id)
        elif self.client_id is None:
            self.client_id = ""

    def _count_as(self, client_id: str | None) -> None:
        """Count the connection under the client's name, and no more under the one it had."""
        stats = self.door.broker.stats
        if self._counted_as is not None:
            stats.disconnected(self._counted_as)
        if client_id is not None:
            stats.connected(client_id)
        self._counted_as = client_id
