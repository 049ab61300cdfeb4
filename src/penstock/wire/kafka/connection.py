"""A connection's side of Kafka's protocol: frames, headers, correlation ids, and the greeting.

Request frame, and the answer's:

    int32   size                           bytes after this field
    int16   request's key
    int16   its version
    int32   correlation id                 comes back with the answer
    string  client id                      plain also where the body is compact
    tags                                   where the body is compact
    ...     body

    int32   size
    int32   correlation id
    tags                                   where the body is compact, but never in the greeting's answer
    ...     body

A broker answers in the order in which it was asked, so whatever else comes is an error. Bytes after a body's last field
are ignored, as Kafka's own clients do: there are brokers that send some (librdkafka's mock cluster). The greeting is
ApiVersions: a broker that does not know the version asked for says so in version 0, and is asked again in version 0.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import DecodeError, RefusedError, UnsupportedError
from penstock.wire.entry import Buffer
from penstock.wire.kafka import schema
from penstock.wire.kafka.codes import NONE, ROWS, UNSUPPORTED_VERSION
from penstock.wire.kafka.frames import SIZE_BYTES, FrameReader
from penstock.wire.kafka.primitives import INT16, INT32, NO_TAGS, plain_string, skip_tags
from penstock.wire.kafka.requests import exchange_of
from penstock.wire.kafka.requests.exchange import Exchange, elements
from penstock.wire.kafka.requests.produce import expects_answer
from penstock.wire.kafka.versions import API_VERSIONS, Api, Versions
from penstock.wire.kafka.wishes import FILTER_FEATURE, FILTER_LEVEL
from penstock.wire.protocol import Answered, Event, Ready, Reply, Request

CORRELATION_MAX = (1 << 31) - 1
SOFTWARE_NAME = "penstock"

_HEAD = struct.Struct(">ihhi")


class _Asked(NamedTuple):
    """A request that waits for its answer; the greeting has no exchange."""

    correlation: int
    version: int
    exchange: Exchange | None = None
    request: Request[Any] | None = None
    token: object = None


class KafkaConnection:
    """The `WireConnection` of Kafka. Runs on: the I/O thread."""

    def __init__(self, client_id: str, frame_bytes_max: int, software_version: str = "unknown") -> None:
        self._client_id = plain_string(client_id)
        self._software_version = software_version
        self._frames = FrameReader(frame_bytes_max)
        self._correlation = 0
        self._asked: deque[_Asked] = deque()
        self._versions: Versions | None = None
        self._failure: DecodeError | None = None

    def __repr__(self) -> str:
        state = "failed" if self._failure else "ready" if self._versions else "greeting" if self._asked else "new"
        return f"<KafkaConnection {state}, {len(self.unanswered())} unanswered, {self._frames!r}>"

    @property
    def versions(self) -> Versions:
        """What was agreed on in the greeting."""
        if self._versions is None:
            raise RuntimeError("nothing can be sent before the greeting is answered")
        return self._versions

    def greet(self) -> Sequence[Buffer]:
        """Ask what the broker speaks."""
        return self._greet(API_VERSIONS.newest)

    def send(self, request: Request[Any], token: object) -> Sequence[Buffer]:
        """The frame of a request, in the highest version that both speak."""
        exchange = exchange_of(request)
        if exchange.needs is not None and exchange.needs not in self.versions.features:
            raise RefusedError(f"{type(request).__name__}: the broker has no {exchange.needs}")
        in_transaction = getattr(request, "transactional_id", None) is not None
        version = self.versions.choose(exchange.api, in_transaction=in_transaction)
        frame = self._frame(exchange.api, version, exchange.encode(request, version))
        if expects_answer(request):
            self._asked.append(_Asked(self._correlation, version, exchange, request, token))
        return frame

    def room(self) -> memoryview | None:
        """Where the rest of a large answer is to be received."""
        return self._frames.room()

    def receive(self, data: memoryview) -> Sequence[Event]:
        """The events that these bytes complete; after a failure, that failure again."""
        if self._failure is not None:
            raise self._failure
        events: list[Event] = []
        answered: list[_Asked] = []
        try:
            for frame in self._frames.feed(data):
                answered.append(self._match(frame))
                events.append(self._event(answered[-1], frame))
        except DecodeError as failure:
            self._failure = failure
            self._asked.extendleft(reversed(answered))
            raise
        return events

    def unanswered(self) -> Sequence[object]:
        """Tokens in the order of their requests."""
        return [asked.token for asked in self._asked if asked.exchange is not None]

    def _frame(self, api: Api, version: int, body: Sequence[Buffer]) -> list[Buffer]:
        self._correlation = self._correlation + 1 if self._correlation < CORRELATION_MAX else 1
        client_id = self._client_id + NO_TAGS if api.is_flexible(version) else self._client_id
        size = _HEAD.size - SIZE_BYTES + len(client_id) + sum(map(len, body))
        head = _HEAD.pack(size, api.key, version, self._correlation) + client_id
        return [head + body[0], *body[1:]]

    def _match(self, frame: memoryview) -> _Asked:
        correlation: int = INT32.unpack_from(frame)[0]
        expected = self._asked[0].correlation if self._asked else None
        if correlation != expected:
            raise DecodeError(0, "correlation id", "no answer" if expected is None else str(expected), correlation)
        return self._asked.popleft()

    def _event(self, asked: _Asked, frame: memoryview) -> Event:
        try:
            return self._greeted(asked, frame) if asked.exchange is None else self._answered(asked, frame)
        except (IndexError, struct.error) as error:
            raise DecodeError(len(frame), "answer", "more bytes", "the end of the frame") from error

    def _answered(self, asked: _Asked, frame: memoryview) -> Event:
        exchange = asked.exchange
        assert exchange is not None
        at = INT32.size
        if exchange.api.is_flexible(asked.version):
            at = skip_tags(frame, at)
        told = exchange.decode(asked.request, asked.version, frame, at)
        return Answered(asked.token, told.answer, told.throttle_ms)

    def _greet(self, version: int) -> list[Buffer]:
        greeting = schema.entity(
            API_VERSIONS,
            version,
            "ApiVersionsRequest",
            client_software_name=SOFTWARE_NAME,
            client_software_version=self._software_version,
        )
        frame = self._frame(API_VERSIONS, version, [schema.encode(API_VERSIONS, version, greeting)])
        self._asked.append(_Asked(self._correlation, version))
        return frame

    def _greeted(self, asked: _Asked, frame: memoryview) -> Event:
        code: int = INT16.unpack_from(frame, INT32.size)[0]
        if code == UNSUPPORTED_VERSION and asked.version > 0:
            return Reply(self._greet(0))
        if code != NONE:
            name = ROWS[code].name if code in ROWS else code
            raise UnsupportedError(INT32.size, "greeting", "what the broker speaks", name)
        answer = schema.decode(API_VERSIONS, asked.version, frame, INT32.size)
        ranges = {row.api_key: (row.min_version, row.max_version) for row in elements(answer.api_keys, "api keys")}
        finalized = elements(getattr(answer, "finalized_features", ()), "finalized features")
        self._versions = Versions(ranges, {feature.name: feature.max_version_level for feature in finalized})
        features = self._versions.features
        return Ready(features, self._versions.enlists, features.get(FILTER_FEATURE, 0) >= FILTER_LEVEL)
