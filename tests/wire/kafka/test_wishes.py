"""What a fetch wishes for, in a tag that only brokers are sent who have said that they heed it."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from penstock.broker.server.kafka.fetch_request import read_fetch
from penstock.errors import DecodeError, RefusedError
from penstock.wire.kafka import schema
from penstock.wire.kafka.primitives import compact_string, uvarint
from penstock.wire.kafka.requests.fetch import EXCHANGE
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.kafka.versions import FETCH
from penstock.wire.kafka.wishes import FILTER_FEATURE, NO_WISH, WISH_TAG, Wish, read_wish, wish_tags
from penstock.wire.property_filter import FILTER_CHARS_MAX
from penstock.wire.protocol import Fetch, Partition, ReadFilter, Ready, SetFilter, Wanted
from tests.wire.kafka.ranges import KAFKA_4_3
from tests.wire.kafka.talk import CLIENT, FRAME_BYTES_MAX, NEWEST, greeted, greeting, receive

WORDS = st.none() | st.text(max_size=200)
TOPIC_ID = UUID(int=7)


def fetch_for(wish: Wish) -> Fetch:
    return Fetch({Partition("t", 0): Wanted(5, 100)}, {"t": TOPIC_ID}, 1000, 1, 500, True, *wish)


def read_back(data: bytes) -> Wish:
    return read_wish(memoryview(data), 0)


@given(wish=st.builds(Wish, WORDS, WORDS))
def test_a_wish_is_read_as_it_was_said(wish: Wish) -> None:
    assert read_back(wish_tags(wish)) == wish


def test_nothing_is_said_where_nothing_is_wished_for() -> None:
    assert wish_tags(NO_WISH) == b"\x00"
    assert wish_tags(Wish(None, "x" * (FILTER_CHARS_MAX + 1))) == b"\x00", "no broker would read a filter of that size"


def test_what_is_too_long_is_passed_over() -> None:
    long = compact_string("g" * (1 << 15)) + compact_string("x" * (FILTER_CHARS_MAX + 1))
    assert read_back(b"\x01" + uvarint(WISH_TAG) + uvarint(len(long)) + long) == NO_WISH


def test_other_tags_are_passed_over() -> None:
    told = wish_tags(Wish("billing", "region = eu"))[1:]
    strange = b"\x00\x03abc" + told + uvarint(WISH_TAG + 1) + b"\x01z"
    assert read_back(b"\x03" + strange) == Wish("billing", "region = eu")


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_wish_that_is_cut_is_refused(cut: int) -> None:
    data = wish_tags(Wish("billing", "region = eu"))
    with pytest.raises((DecodeError, IndexError)):
        read_back(data[: max(len(data) - cut, 0)])


def test_a_wish_does_not_reach_beyond_its_tag() -> None:
    told = wish_tags(Wish("billing", "region = eu"))
    shorter = told.replace(uvarint(len("billing") + 1 + len("region = eu") + 1), b"\x0a", 1)
    with pytest.raises(DecodeError):
        read_back(shorter)


@pytest.mark.parametrize("version", range(FETCH.oldest, FETCH.newest + 1))
def test_a_fetch_tells_what_is_wished_for_where_it_has_tags(version: int) -> None:
    wish = Wish("billing", "region in eu, us")
    body = b"".join(EXCHANGE.encode(fetch_for(wish), version))
    told = read_fetch(memoryview(body), 0, version)
    assert told.wish == (wish if FETCH.is_flexible(version) else NO_WISH)
    plain = b"".join(EXCHANGE.encode(fetch_for(NO_WISH), version))
    assert told._replace(wish=NO_WISH) == read_fetch(memoryview(plain), 0, version)
    kind = schema.module_of(FETCH, version, "request").FetchRequest
    assert entity_reader(kind)(plain, 0)[1] == len(plain)


@pytest.mark.parametrize(("features", "filters"), [({}, False), (NEWEST, False), ({FILTER_FEATURE: 1}, True)])
def test_a_greeting_tells_whether_a_broker_filters(features: dict[str, int], filters: bool) -> None:
    connection = KafkaWire().connection(CLIENT, FRAME_BYTES_MAX)
    connection.greet()
    (event,) = receive(connection, greeting(KAFKA_4_3, features))
    assert isinstance(event, Ready)
    assert event.filters is filters


@pytest.mark.parametrize("request_", [SetFilter("billing", "region = eu"), ReadFilter("billing")])
def test_brokers_that_do_not_filter_are_not_asked_to(request_: SetFilter | ReadFilter) -> None:
    connection = greeted()
    with pytest.raises(RefusedError, match=FILTER_FEATURE):
        connection.send(request_, "token")
    assert connection.unanswered() == []
