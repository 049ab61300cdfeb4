"""A batch that a log gave, on its way to another: only its header changes, and nothing can be added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BatchStateError, ChecksumError, UnsupportedError
from penstock.wire.columns import to_arrow
from penstock.wire.compression import Codec
from penstock.wire.entry import UNSTAMPED, EntryFlag, PropertyClaim, Stamp
from penstock.wire.kafka.header import peek, rewrite_header, verify
from penstock.wire.kafka.records import decode
from penstock.wire.kafka.stored import StoredBatch
from penstock.wire.kafka.system import KafkaWire
from tests.consume.batches import marker, stored, values
from tests.wire.kafka.entries import read
from tests.wire.kafka.messages import SENT, Sent

STAMP = Stamp(9, 2, 77, transactional=True)
EU = PropertyClaim({"region": "eu"})
ENTRY = stored(100, [Sent(b"v", b"k", {"a": "b"}, 7), Sent(None, time_ms=8)], codec=Codec.LZ4, claim=EU, epoch=4)


def batch_of(entry: bytes, count: int = 2) -> StoredBatch:
    return KafkaWire().stored_batch(memoryview(entry), count)


def sent(batch: StoredBatch, stamp: Stamp = STAMP) -> bytes:
    return b"".join(batch.stamp(stamp))


@given(
    messages=st.lists(SENT, min_size=1, max_size=5),
    first=st.integers(0, 1 << 40),
    codec=st.sampled_from(list(Codec)),
    stamp=st.builds(
        Stamp, st.integers(0, 1 << 40), st.integers(0, 1000), st.integers(0, (1 << 31) - 1), st.booleans()
    ) | st.just(UNSTAMPED),
)  # fmt: skip
def test_stamped_bytes_are_those_of_a_rewritten_header(
    messages: list[Sent], first: int, codec: Codec, stamp: Stamp
) -> None:
    entry = stored(first, messages, codec=codec)
    batch = batch_of(entry, len(messages))
    assert sent(batch, stamp) == b"".join(rewrite_header(entry, stamp))
    verify(sent(batch, stamp))
    assert read(decode(sent(batch, stamp))) == [
        message._replace(position=message.position - first) for message in read(decode(entry))
    ]


def test_it_can_be_stamped_as_often_as_needed_and_its_payload_is_never_copied() -> None:
    batch = batch_of(ENTRY)
    for sequence in (5, 900, 0):
        header, payload = batch.stamp(Stamp(9, 0, sequence))
        found = peek(bytes(header) + bytes(payload))
        assert (found.producer, found.epoch, found.sequence) == (9, 0, sequence)
        assert isinstance(payload, memoryview)
        assert payload.obj is ENTRY
        assert payload.readonly


def test_codec_and_claim_stay_and_what_the_source_added_goes() -> None:
    found = peek(sent(batch_of(stored(5, [Sent(b"v", time_ms=3)], codec=Codec.GZIP, claim=EU, log_time=99), 1)))
    assert (found.codec, found.claim, found.first, found.count) == (Codec.GZIP, EU, 0, 1)
    assert found.flags == EntryFlag.TRANSACTIONAL


def test_its_numbers() -> None:
    batch = batch_of(ENTRY)
    assert (batch.count, batch.size, batch.held, batch.sealed) == (2, len(ENTRY), len(ENTRY) - 61, True)
    assert batch.held == len(batch.stamp()[1])
    assert repr(batch) == f"<StoredBatch of 2 messages, {len(ENTRY)} bytes>"


def test_its_messages_as_columns() -> None:
    columns = batch_of(ENTRY).columns()
    assert columns.positions is None, "it has none where it goes"
    found = to_arrow(columns)
    assert found.value.to_pylist() == [b"v", None]
    assert found.key.to_pylist() == [b"k", None]
    assert found.event_time.cast(pa.int64()).to_pylist() == [7, 8]
    assert found.properties.to_pylist() == [[("a", b"b")], []]


@pytest.mark.parametrize(
    "ask",
    [
        lambda batch: batch.append(b"v"),
        lambda batch: batch.extend([b"v"]),
        lambda batch: batch.seal(),
        lambda batch: batch.clear(),
    ],
)
def test_nothing_can_be_added(ask: Callable[[Any], Any]) -> None:
    batch = batch_of(ENTRY)
    with pytest.raises(BatchStateError, match="the batch was stored by a log: only its header can change"):
        ask(batch)
    assert sent(batch) == b"".join(rewrite_header(ENTRY, STAMP))


def test_a_damaged_payload_stays_detectably_damaged() -> None:
    damaged = bytearray(values(0, 5))
    damaged[-1] ^= 1
    with pytest.raises(ChecksumError):
        verify(sent(batch_of(bytes(damaged), 5)))
    with pytest.raises(ChecksumError):
        batch_of(bytes(damaged), 5).columns()


def test_a_marker_of_the_log_cannot_be_sent() -> None:
    with pytest.raises(UnsupportedError):
        batch_of(marker(0, 5, commit=True), 1).stamp(STAMP)
