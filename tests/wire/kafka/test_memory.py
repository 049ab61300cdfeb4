"""A batch's memory: how much it may take, how much it holds, and when it lets go of it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BatchStateError
from penstock.wire.columns import from_arrow
from penstock.wire.compression import Codec
from penstock.wire.entry import PropertyClaim
from penstock.wire.kafka.batch import RecordBuffer
from penstock.wire.kafka.framing import frame_header
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES
from tests.wire.kafka.conftest import Both
from tests.wire.kafka.entries import read
from tests.wire.kafka.messages import SENT, Sent, expected
from tests.wire.kafka.twins import COMPILED, Kit, Twin, kit_of, load_twin, outcome, state_of

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
LIMITS = st.sampled_from([-1, 0, 61, 100, 200, 5000, 20_000, 1 << 26])
BYTES = 10_000


def address(records_of: RecordBuffer) -> int:
    with records_of.records() as view:
        return int(np.frombuffer(view, np.uint8).ctypes.data)


def filled(kit: Kit, bytes_max: int = 1 << 20) -> Any:
    batch = kit.BatchBuffer(bytes_max)
    batch.extend([b"x" * 100] * (BYTES // 100), event_times_ms=list(range(5, 5 + BYTES // 100)))
    return batch


@given(st.lists(SENT | LIMITS, max_size=12))
def test_twins_take_the_same_whatever_the_limit_becomes(both: Both, steps: list[Sent | int]) -> None:
    plain, compiled = (twin.RecordBuffer(200) for twin in both)
    for step in steps:
        if isinstance(step, int):
            plain.bytes_max = compiled.bytes_max = step
        else:
            assert outcome(plain.append, *step) == outcome(compiled.append, *step)
        assert state_of(plain) == state_of(compiled)
        assert plain.bytes_max == compiled.bytes_max


def test_limit_that_is_raised_lets_more_in_and_one_below_the_size_nothing(twin: Twin) -> None:
    buffer = twin.RecordBuffer(200)
    assert [buffer.append(bytes(50)) for _ in range(4)] == [0, 1, -1, -1]
    buffer.bytes_max = 300
    assert [buffer.append(bytes(50)) for _ in range(3)] == [2, 3, -1]
    buffer.bytes_max = 100
    assert buffer.append(b"") == -1
    assert buffer.bytes_max == 100


@pytest.mark.parametrize("claim", [PropertyClaim(), PropertyClaim({"a": "b"})])
@pytest.mark.parametrize("codec", COMPRESSING)
def test_compressed_batch_holds_its_payload_only_and_tells_what_went_in(
    kit: Kit, codec: Codec, claim: PropertyClaim
) -> None:
    batch, uncompressed = filled(kit), filled(kit)
    assert batch.held == batch.size - BATCH_HEADER_BYTES > BYTES
    batch.seal(codec, claim=claim)
    uncompressed.seal(claim=claim)
    _, payload = batch.stamp()
    assert batch.held == len(payload) < BYTES // 2
    assert uncompressed.held == uncompressed.size - BATCH_HEADER_BYTES
    for name in ("count", "size", "first_time_ms", "min_time_ms", "max_time_ms"):
        assert getattr(batch, name) == getattr(uncompressed, name)
    assert len(batch) == BYTES // 100
    assert read(kit.decode(b"".join(batch.stamp()))) == read(kit.decode(b"".join(uncompressed.stamp())))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_records_of_a_compressed_batch_are_gone_until_it_is_opened_anew(kit: Kit, codec: Codec) -> None:
    batch = filled(kit)
    batch.seal(codec)
    for ask in (batch.records, lambda: batch.insert_header(frame_header("a", b"b"))):
        with pytest.raises(BatchStateError, match="gave its records' memory back"):
            ask()
    batch.clear()
    assert (batch.count, batch.held, batch.size, batch.sealed) == (0, 0, BATCH_HEADER_BYTES, False)
    batch.append(b"again")
    with batch.records() as records:
        assert b"again" in bytes(records)
    batch.seal()
    assert read(kit.decode(b"".join(batch.stamp()))) == expected([Sent(b"again")])


def test_view_that_is_held_keeps_the_records_of_a_compressed_batch(kit: Kit) -> None:
    batch = filled(kit)
    view = batch.records()
    before = bytes(view)
    batch.seal(Codec.ZSTD)
    others = [filled(kit) for _ in range(20)]
    assert bytes(view) == before
    with pytest.raises(BatchStateError):
        batch.records()
    with pytest.raises(BufferError):
        batch.clear()
    view.release()
    batch.clear()
    assert batch.append(b"x") == 0
    assert all(bytes(other.records()) == before for other in others)


def test_dropping_twice_is_dropping_once(twin: Twin) -> None:
    buffer = twin.RecordBuffer()
    buffer.drop_records()
    assert buffer.append(b"x") == 0
    size = buffer.size
    for _ in range(2):
        buffer.drop_records()
        assert (buffer.size, buffer.count) == (size, 1)


@pytest.mark.parametrize("letting_go", ["seal", "clear", "delete"])
def test_memory_of_one_batch_serves_the_next(letting_go: str) -> None:
    kit = kit_of(load_twin(COMPILED))
    gc.collect()
    batch = filled(kit)
    at = address(batch)
    match letting_go:
        case "seal":
            batch.seal(Codec.LZ4)
        case "clear":
            batch.clear()
        case "delete":
            del batch
    assert address(filled(kit)) == at


def test_batch_takes_no_more_than_its_limit_into_memory_that_was_larger() -> None:
    kit = kit_of(load_twin(COMPILED))
    filled(kit).clear()
    batch = kit.BatchBuffer(1000)
    taken = batch.extend([bytes(100)] * 50)
    assert taken < 10
    assert batch.size <= 1000
    assert batch.append(bytes(100)) == -1


@pytest.mark.parametrize("value_bytes", [10, 100_000, 3_000_000])
def test_batches_that_come_and_go_keep_their_own_bytes(kit: Kit, value_bytes: int) -> None:
    batches = [kit.BatchBuffer(1 << 23) for _ in range(20)]
    for turn in range(3):
        for i, batch in enumerate(batches):
            batch.append(bytes([turn * 20 + i]) * value_bytes)
        for i, batch in enumerate(batches):
            assert batch.columns().values.data.tobytes() == bytes([turn * 20 + i]) * value_bytes
            batch.clear()


def test_threads_that_extend_and_seal_at_once_do_not_share_memory(kit: Kit) -> None:
    def work(number: int) -> bool:
        value = bytes([number]) * 50
        columns = from_arrow(pa.array([value] * 400), None, None, 5)
        for _ in range(30):
            batch = kit.BatchBuffer(1 << 20)
            batch.extend(columns)
            batch.seal(Codec.LZ4)
            if batch.columns().values.data.tobytes() != value * 400:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
