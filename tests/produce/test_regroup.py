"""Messages that were framed together and go on apart: every one arrives once, as it was, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MessageError, PenstockError
from penstock.produce.batch import Batch
from penstock.produce.regroup import Arrivals, framed_size, halves, regroup, without
from penstock.produce.router import by_murmur2
from penstock.wire.columns import BufferColumns, to_arrow
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, PropertyClaim
from penstock.wire.kafka.buffer import BatchBuffer

Message = tuple[bytes | None, bytes | None, dict[str, Any] | None, int]

messages = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=8),
        st.none() | st.dictionaries(st.text(max_size=5), st.none() | st.binary(max_size=10), max_size=3),
        st.integers(0, 1 << 41),
    ),
    min_size=1,
    max_size=20,
)
claims = st.sampled_from([NO_CLAIM, PropertyClaim({"region": "eu"}, {})])
codecs = st.sampled_from([Codec.NONE, Codec.LZ4])


def columns_of(sent: list[Message], claim: PropertyClaim = NO_CLAIM, codec: Codec = Codec.NONE) -> BufferColumns:
    """As a batch gives them back, sealed with a claim in front of its first message."""
    buffer = BatchBuffer(1 << 20)
    for value, key, properties, time_ms in sent:
        buffer.append(value, key, properties, time_ms)
    buffer.seal(codec, None, claim)
    return buffer.columns()


def rows_of(columns: BufferColumns) -> list[tuple[Any, ...]]:
    shown = to_arrow(columns)
    arrays = (shown.value, shown.key, shown.properties, shown.event_time.cast("int64"))
    return list(zip(*(array.to_pylist() for array in arrays), strict=True))


def expected(sent: list[Message]) -> list[tuple[Any, ...]]:
    return [(value, key, list((properties or {}).items()), time_ms) for value, key, properties, time_ms in sent]


def check_regrouped(sent: list[Message], columns: BufferColumns, arrivals: Arrivals) -> list[Batch]:
    sizes: list[int] = []

    def new(place: int, size: int) -> Batch:
        sizes.append(size)
        return Batch(BatchBuffer(size + 128), 0.0, 1.0, "t", place)

    parts, moved = regroup(columns, arrivals, new)
    rows = [rows_of(part.buffer.columns()) for part in parts]
    assert [part.count for part in parts] == [len(found) for found in rows]
    for index, row in enumerate(expected(sent)):
        found = moved.find(index)
        if isinstance(found, PenstockError):
            assert found is arrivals.errors[index]
        else:
            part, place = found
            assert part.partition == arrivals.places[index]
            assert rows[parts.index(part)][place] == row  # type: ignore[arg-type]
    for part, found_rows in zip(parts, rows, strict=True):
        own = [row for index, row in enumerate(expected(sent)) if arrivals.places[index] == part.partition]
        assert found_rows == own, "the order is kept"
    return parts


@given(messages, claims, codecs, st.data())
def test_any_places_can_be_gone_to(
    sent: list[Message], claim: PropertyClaim, codec: Codec, data: st.DataObject
) -> None:
    columns = columns_of(sent, claim, codec)
    assert rows_of(columns) == expected(sent), "a batch gives back what went in"
    places = data.draw(st.lists(st.integers(-1, 4), min_size=len(sent), max_size=len(sent)))
    errors: dict[int, PenstockError] = {index: MessageError("no") for index, at in enumerate(places) if at < 0}
    check_regrouped(sent, columns, Arrivals(np.array(places, np.int32), errors))


@given(messages, claims)
def test_halves_are_as_equal_as_can_be(sent: list[Message], claim: PropertyClaim) -> None:
    arrivals = halves(len(sent))
    parts = check_regrouped(sent, columns_of(sent, claim), arrivals)
    counts = [part.count for part in parts]
    assert sum(counts) == len(sent)
    assert max(counts) - min(counts) <= 1


@given(messages, claims, st.data())
def test_those_to_blame_are_left_out(sent: list[Message], claim: PropertyClaim, data: st.DataObject) -> None:
    blamed = data.draw(st.sets(st.integers(0, len(sent) - 1)))
    errors: dict[int, PenstockError] = {index: MessageError(str(index)) for index in blamed}
    parts = check_regrouped(sent, columns_of(sent, claim), without(len(sent), errors))
    assert sum(part.count for part in parts) == len(sent) - len(blamed)


@given(messages, claims, st.integers(1, 7), st.integers(0, 6))
def test_keys_go_where_they_belong_and_the_others_together(
    sent: list[Message], claim: PropertyClaim, partitions: int, without_key: int
) -> None:
    columns = columns_of(sent, claim)
    arrivals = Arrivals.of(columns, partitions, by_murmur2, without_key, lambda *_: 0)
    assert arrivals.places.tolist() == [
        without_key if key is None else by_murmur2(key, partitions) for _, key, _, _ in sent
    ]
    check_regrouped(sent, columns, arrivals)


@given(messages)
def test_a_router_sees_each_message_as_it_was_sent(sent: list[Message]) -> None:
    shown: list[Any] = []

    def ask(value: bytes | None, key: bytes | None, properties: Any) -> int:
        shown.append((value, key, properties))
        return 0

    Arrivals.of(columns_of(sent), 3, by_murmur2, None, ask)
    assert shown == [(value, key, properties or {}) for value, key, properties, _ in sent]


@given(messages, claims, st.data())
def test_the_room_that_is_asked_for_is_enough(sent: list[Message], claim: PropertyClaim, data: st.DataObject) -> None:
    columns = columns_of(sent, claim)
    indexes = data.draw(st.lists(st.integers(0, len(sent) - 1), min_size=1, unique=True))
    buffer = BatchBuffer(1 << 20)
    for index in indexes:
        value, key, properties, time_ms = sent[index]
        buffer.append(value, key, properties, time_ms)
    assert buffer.size <= framed_size(columns, indexes) + 128
