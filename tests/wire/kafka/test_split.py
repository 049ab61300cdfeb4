"""The messages of a batch as columns again, some of them taken, and written into another batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.columns import BufferColumns, from_arrow, take
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, PropertyClaim
from tests.wire.kafka.entries import read
from tests.wire.kafka.messages import SENT, Read, Sent, expected, map_column
from tests.wire.kafka.twins import Kit

ROOMY = 1 << 26
CLAIMS = st.sampled_from([NO_CLAIM, PropertyClaim({"a": "b"})])
OWN_CLAIM = {"penstock.claim": '{"same":{"a":"b"}}', "b": None}


def columns_of(messages: list[Sent]) -> BufferColumns:
    return from_arrow(
        pa.array([sent.value for sent in messages], pa.binary()),
        pa.array([sent.key for sent in messages], pa.binary()),
        map_column([sent.properties for sent in messages]),
        [sent.time_ms for sent in messages],
    )


def seen_in(kit: Kit, columns: BufferColumns) -> list[Read]:
    """The messages of columns, by way of a batch and its bytes; times and all."""
    if not len(columns):
        return []
    batch = kit.BatchBuffer(ROOMY)
    assert batch.extend(columns) == len(columns)
    batch.seal()
    return read(kit.decode(b"".join(batch.stamp())))


@pytest.mark.parametrize("codec", [None, *Codec])
@given(messages=st.lists(SENT, min_size=1, max_size=6), claim=CLAIMS, data=st.data())
@settings(max_examples=30)
def test_messages_taken_out_of_a_batch_are_those_that_went_in(
    kit: Kit, codec: Codec | None, messages: list[Sent], claim: PropertyClaim, data: st.DataObject
) -> None:
    batch = kit.BatchBuffer(ROOMY)
    assert batch.extend(columns_of(messages)) == len(messages)
    if codec is not None:
        batch.seal(codec, claim=claim)
    columns = batch.columns()
    assert columns.positions is None
    assert seen_in(kit, columns) == expected(messages)
    for indexes in (data.draw(st.permutations(range(len(messages)))), data.draw(subsets(len(messages)))):
        chosen = np.array(indexes, np.int64)
        assert seen_in(kit, take(columns, chosen)) == expected([messages[i] for i in indexes])


def subsets(count: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(0, count - 1)).map(sorted)


def test_open_batch_shows_its_messages_and_takes_more(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    assert len(batch.columns()) == 0
    messages = [Sent(b"", b"k", {"a": None}, 5), Sent(None, None, None, 3)]
    for i, sent in enumerate(messages):
        assert batch.append(*sent) == i
        assert seen_in(kit, batch.columns()) == expected(messages[: i + 1])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("claim", [NO_CLAIM, PropertyClaim({"x": "y"})])
def test_only_the_claim_of_the_batch_is_left_out(kit: Kit, codec: Codec, claim: PropertyClaim) -> None:
    messages = [Sent(b"v", None, OWN_CLAIM), Sent(b"w", None, OWN_CLAIM)]
    batch = kit.BatchBuffer()
    for sent in messages:
        batch.append(*sent)
    batch.seal(codec, claim=claim)
    assert seen_in(kit, batch.columns()) == expected(messages)


def test_columns_outlive_their_batch(kit: Kit) -> None:
    batch = kit.BatchBuffer()
    batch.append(b"value", b"key", {"a": "b"}, 7)
    columns = batch.columns()
    batch.clear()
    batch.append(b"other")
    assert seen_in(kit, columns) == expected([Sent(b"value", b"key", {"a": "b"}, 7)])


def test_batch_is_split_in_halves(kit: Kit) -> None:
    messages = [Sent(b"%d" % i, None if i % 3 else b"k", {"i": str(i)} if i % 2 else None, i) for i in range(101)]
    batch = kit.BatchBuffer()
    for sent in messages:
        batch.append(*sent)
    batch.seal(Codec.LZ4, claim=PropertyClaim({"a": None}))
    columns = batch.columns()
    halves: list[Any] = [seen_in(kit, take(columns, half)) for half in np.array_split(np.arange(101), 2)]
    assert halves == [expected(messages[:51]), expected(messages[51:])]
