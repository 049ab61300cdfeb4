from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from penstock.broker.broker import Broker
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.connection import Connection
from penstock.broker.server.kafka import codec, dispatch
from penstock.broker.server.kafka.apis import BY_KEY, TABLE
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.door import KafkaDoor
from penstock.broker.server.loop import Loop
from penstock.broker.stats import Stats
from tests.broker.server.fakes import FakeHub, MemoryTransport

API_VERSIONS, HEARTBEAT, METADATA, PRODUCE = 18, 12, 3, 0


def request(
    key: int, version: int, body: bytes = b"", correlation: int = 5, client: bytes | None = b"me", tags: bytes = b""
) -> bytes:
    """A request's frame."""
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    frame = struct.pack(">hhi", key, version, correlation) + name + tags + body
    return struct.pack(">i", len(frame)) + frame


def beat(version: int = 4) -> bytes:
    kind = codec.schema_of(BY_KEY[HEARTBEAT], version, "request")
    from tests.broker.server.kafka.samples import kio_bytes

    return kio_bytes(kind(group_id="g", generation_id=1, member_id="m"))


class Talk:
    """A Kafka connection in memory, with a handler for Heartbeat that the test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None = None, handler: Any = None, **limits: int) -> None:
        self.hub = FakeHub(**limits)
        broker = SimpleNamespace(settings=SimpleNamespace(node_id=1), cluster_id="c", stats=Stats())
        self.door = KafkaDoor(cast(Broker, broker), cast(Loop, self.hub))
        self.transport = MemoryTransport()
        self.connection = Connection(self.transport, ("127.0.0.1", 5), self.hub)
        self.connection.session = self.door.session(self.connection)
        if monkeypatch is not None:
            monkeypatch.setattr(dispatch.ROUTES[HEARTBEAT], "handle", handler)

    def say(self, data: bytes) -> None:
        self.transport.arrivals.append(data)
        while self.transport.arrivals and not self.connection.is_closed:
            self.connection.readable()
            self.hub.end_turn()

    @property
    def answers(self) -> list[bytes]:
        data, found = bytes(self.transport.sent), []
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    @property
    def reason(self) -> str:
        ((reason, fault),) = self.hub.reasons
        assert fault
        return reason


def greeted(answer: bytes, version: int) -> Any:
    kind = codec.schema_of(BY_KEY[API_VERSIONS], version, "response")
    return entity_reader(kind)(answer, 4)[0]


@pytest.mark.parametrize("version", range(5))
def test_the_greeting_tells_what_is_served(version: int) -> None:
    talk = Talk()
    named = b"\x05test\x021\x00" if version >= 3 else b""
    talk.say(request(API_VERSIONS, version, named, correlation=77, tags=b"\0" if version >= 3 else b""))
    (answer,) = talk.answers
    assert answer[:4] == struct.pack(">i", 77)
    told = greeted(answer, version)
    assert told.error_code.value == 0
    ranges = {row.api_key: (row.min_version, row.max_version) for row in told.api_keys}
    served = {api.key: (api.oldest, api.newest) for api in TABLE}
    assert ranges == served | {PRODUCE: (0, 13)}
    if version >= 3:
        assert ("transaction.version", 2) in {(row.name, row.max_version_level) for row in told.finalized_features}
        assert ("penstock.filter.version", 1) in {(row.name, row.max_version_level) for row in told.finalized_features}
    if version == 3:
        assert [row.min_version for row in told.supported_features] == [1], "clients refuse 0"
    if version == 4:
        assert ("transaction.version", 0, 2) in {
            (row.name, row.min_version, row.max_version) for row in told.supported_features
        }


def test_a_greeting_in_an_unknown_version_is_answered_in_version_0() -> None:
    talk = Talk()
    talk.say(request(API_VERSIONS, 99, b"anything"))
    told = greeted(talk.answers[0], 0)
    assert told.error_code.value == 35
    assert len(told.api_keys) == len(TABLE)
    assert not talk.connection.is_closed


def test_a_greeting_by_software_without_a_name_is_refused() -> None:
    talk = Talk()
    talk.say(request(API_VERSIONS, 3, b"\x04a b\x021\x00", tags=b"\0"))
    assert greeted(talk.answers[0], 3).error_code.value == 42


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (request(999, 0), "kind 999"),
        (request(METADATA, 99), "version of Metadata"),
        (request(PRODUCE, 2), "version of Produce"),
        (request(HEARTBEAT, -1), "version of Heartbeat"),
        (struct.pack(">i", -1) + bytes(4), "frame size"),
        (struct.pack(">i", 3) + bytes(4), "frame size"),
        (struct.pack(">ih", 5 << 20, METADATA), "4194304 at most for a request of kind 3"),
        (struct.pack(">ih", 101 << 20, PRODUCE), "104857600 at most for a request of kind 0"),
        (struct.pack(">ih", 0x47455420, 0x2F20), "frame size"),  # "GET / "
        (request(HEARTBEAT, 4, beat()[:-2], tags=b"\0"), "a whole request"),
        (struct.pack(">ihhih", 10, HEARTBEAT, 4, 1, 500), "client id"),
        (request(HEARTBEAT, 4, beat(), client=b"\xff", tags=b"\0"), "client id"),
        (request(HEARTBEAT, 4, b"", tags=b""), "a whole request"),
        (request(API_VERSIONS, 3, b"\xff\xff\xff\xff\xff\xff\xff", tags=b"\0"), "ApiVersions 3"),
    ],
)
def test_what_makes_no_sense_closes_the_connection_with_a_reason(frame: bytes, reason: str) -> None:
    talk = Talk()
    talk.say(frame)
    assert talk.connection.is_closed
    assert reason in talk.reason
    assert talk.answers == []
    assert talk.hub.memory.used == 0


def test_a_large_request_that_carries_entries_is_taken_up_to_its_own_limit() -> None:
    talk = Talk()
    talk.say(struct.pack(">ihhih", 50 << 20, PRODUCE, 9, 1, -1))
    assert not talk.connection.is_closed
    assert talk.hub.memory.used < 1 << 16


def test_a_handler_knows_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def handler(asked: Any, context: Context) -> None:
        seen.append((asked.group_id, asked.generation_id, context.client_id, context.host, context.version))
        context.answer(error_code=27)

    talk = Talk(monkeypatch, handler)
    for client in (b"me", b"me", "ü".encode(), b"", None, b"me"):
        talk.say(request(HEARTBEAT, 3, beat(3), client=client))
    assert [each[2] for each in seen] == ["me", "me", "ü", "", None, "me"]
    assert seen[0] == ("g", 1, "me", "127.0.0.1", 3)
    assert talk.answers == [struct.pack(">iih", 5, 0, 27)] * 6


def test_unknown_tags_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch, lambda asked, context: context.answer(error_code=0))
    tagged = beat()[:-1] + b"\x01\x63\x03abc"
    talk.say(request(HEARTBEAT, 4, tagged, tags=b"\x02\x05\x01x\x85\x01\x00"))
    assert talk.answers == [struct.pack(">ibihb", 5, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(Refused(Refusal.UNKNOWN_MEMBER), 25), (Refused(Refusal.STORAGE_FULL), 56), (ZeroDivisionError("oh"), -1)],
)
def test_a_handler_that_fails_is_answered_with_its_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, code: int
) -> None:
    def handler(asked: Any, context: Context) -> None:
        raise error

    talk = Talk(monkeypatch, handler)
    talk.say(request(HEARTBEAT, 4, beat(), tags=b"\0"))
    assert talk.answers == [struct.pack(">ibihb", 5, 0, 0, code, 0)]
    assert not talk.connection.is_closed
    assert ("oh" in caplog.text) == isinstance(error, ZeroDivisionError)


def test_a_handler_that_fails_where_the_answer_has_no_code_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler(asked: Any, context: Context) -> None:
        raise Refused(Refusal.STORAGE_FAILED)

    monkeypatch.setattr(dispatch.ROUTES[METADATA], "handle", handler)
    talk = Talk()
    talk.say(request(METADATA, 4, struct.pack(">ib", 0, 0)))
    assert talk.connection.is_closed
    assert "Metadata" in talk.reason


def test_a_handler_may_answer_later_and_learn_that_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[Context] = []
    talk = Talk(monkeypatch, lambda asked, context: contexts.append(context))
    talk.say(request(HEARTBEAT, 4, beat(), tags=b"\0") * 2)
    contexts[1].answer(error_code=1)
    contexts[0].refuse(Refused(Refusal.REBALANCING))
    talk.hub.end_turn()
    assert [int.from_bytes(answer[9:11], "big") for answer in talk.answers] == [27, 1]
    contexts[0].refuse(Refused(Refusal.REBALANCING))  # answered already
    talk.hub.end_turn()
    assert len(talk.answers) == 2


@given(data=st.binary(max_size=200))
def test_random_bytes_do_no_more_than_close_the_connection(data: bytes) -> None:
    talk = Talk()
    talk.say(struct.pack(">i", len(data)) + data)
    assert talk.hub.memory.used == 0 or not talk.connection.is_closed


@given(
    key=st.sampled_from([api.key for api in TABLE if api.handler.startswith(("greeting", "fetch.", "produce."))]),
    version=st.integers(0, 20),
    body=st.binary(max_size=200),
)
def test_random_bodies_of_handmade_readers_do_no_more_than_close_the_connection(
    key: int, version: int, body: bytes
) -> None:
    talk = Talk()
    talk.say(request(key, version, body, tags=b"\0"))
    assert all(isinstance(reason, str) for reason, _fault in talk.hub.reasons)


def test_its_routes_can_all_be_loaded() -> None:
    missing: list[str] = []
    for route in dispatch.ROUTES.values():
        module, function = route.api.handler.split(".")
        try:
            handler: Callable[..., None] | None = getattr(
                __import__(f"penstock.broker.server.kafka.{module}", fromlist=["x"]), function, None
            )
        except ImportError:
            handler = None
        if handler is None:
            missing.append(route.api.handler)
    assert missing == []


def test_a_connection_is_counted_under_its_client_s_name() -> None:
    talk = Talk()
    stats = talk.door.broker.stats
    for client, counted in (("one", (1, 0)), ("one", (1, 0)), ("two", (0, 1))):
        talk.say(request(API_VERSIONS, 0, b"", client=client.encode()))
        assert (stats.connections("one"), stats.connections("two")) == counted
    talk.connection.close("done")
    assert (stats.connections("one"), stats.connections("two")) == (0, 0)
