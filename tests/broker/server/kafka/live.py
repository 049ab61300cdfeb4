"""A client that speaks to a broker that really runs, one request at a time, written and read by kio."""

from __future__ import annotations

import contextlib
import socket
import struct
from types import TracebackType
from typing import Any, Self

from kio.serial import entity_reader

from penstock.broker.server.kafka import codec
from tests.broker.server.kafka.desk import APIS
from tests.broker.server.kafka.samples import fill, kio_bytes

LIMIT_S = 30.0


class LiveClient:
    """One connection."""

    def __init__(self, address: tuple[str, int], client_id: str = "live") -> None:
        self.socket = socket.create_connection(address, LIMIT_S)
        self._client_id = client_id.encode()
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def frame(self, name: str, version: int, **values: Any) -> bytes:
        return self.framed(name, version, kio_bytes(fill(codec.schema_of(APIS[name], version, "request"), values)))

    def framed(self, name: str, version: int, body: bytes) -> bytes:
        api = APIS[name]
        self._correlation += 1
        tags = b"\0" if api.is_flexible(version) else b""
        head = struct.pack(">hhih", api.key, version, self._correlation, len(self._client_id)) + self._client_id + tags
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, name: str, version: int, **values: Any) -> None:
        self.socket.sendall(self.frame(name, version, **values))

    def receive(self, name: str, version: int) -> Any:
        (size,) = struct.unpack(">i", self.take(4))
        data = self.take(size)
        kind = codec.schema_of(APIS[name], version, "response")
        return entity_reader(kind)(data, 5 if kind.__flexible__ and name != "ApiVersions" else 4)[0]

    def ask(self, name: str, version: int, **values: Any) -> Any:
        self.send(name, version, **values)
        return self.receive(name, version)

    def take(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            data += part
        return bytes(data)

    def hear_something(self, wait_s: float = 0.05) -> None:
        """Wait for the first bytes of an answer, or the end of the connection, but not for long."""
        self.socket.settimeout(wait_s)
        with contextlib.suppress(OSError):
            self.socket.recv(1, socket.MSG_PEEK)
        self.socket.settimeout(LIMIT_S)

    def is_closed(self) -> bool:
        """Whether the broker has closed the connection; waits until it has, or says something."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True
