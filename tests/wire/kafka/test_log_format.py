"""Kafka's batch as a format of the log, against what official clients and a real broker wrote."""

from __future__ import annotations

import struct

import pytest

from penstock.errors import ChecksumError, DecodeError
from penstock.wire.entry import NO_CLAIM, EntryFlag
from penstock.wire.kafka.checksum import batch_checksum
from penstock.wire.kafka.header import peek, split
from penstock.wire.kafka.layout import BATCH_HEADER, BATCH_HEADER_BYTES, CHECKED_AT, CRC_AT, MAGIC_AT
from penstock.wire.kafka.log_format import KafkaLogFormat
from tests.vectors.kafka.vector import Batch, Vector, load_all

FORMAT = KafkaLogFormat()
VECTORS = load_all()
BATCHES = [
    (f"{captured.name}/{batch.base}", bytes(entry), batch)
    for captured in VECTORS
    for entry, batch in zip(split(captured.segment), captured.batches, strict=True)
]
MARKERS = [(name, entry, batch) for name, entry, batch in BATCHES if batch.marker is not None]
PLAIN = next(entry for name, entry, _ in BATCHES if name.startswith("confluent-kafka/none/plain"))
EPOCH_AT, BASE_TIME_AT, MAX_TIME_AT = 12, 27, 35

each_batch = pytest.mark.parametrize(("entry", "batch"), [row[1:] for row in BATCHES], ids=[row[0] for row in BATCHES])
each_vector = pytest.mark.parametrize("captured", VECTORS, ids=[each.name for each in VECTORS])
each_marker = pytest.mark.parametrize(("entry", "batch"), [row[1:] for row in MARKERS], ids=[row[0] for row in MARKERS])


@each_vector
def test_measure_walks_a_segment(captured: Vector) -> None:
    at, sizes = 0, []
    while at < len(captured.segment):
        size = FORMAT.measure(captured.segment[at : at + FORMAT.head_bytes])
        assert size is not None
        sizes.append(size)
        at += size
    assert sizes == [batch.size for batch in captured.batches]


def test_measure_needs_the_magic_byte() -> None:
    assert [FORMAT.measure(PLAIN[:size]) for size in range(MAGIC_AT + 1)] == [None] * (MAGIC_AT + 1)
    assert FORMAT.measure(PLAIN[: MAGIC_AT + 1]) == len(PLAIN)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_magic_is_no_entry(magic: int) -> None:
    other = PLAIN[:MAGIC_AT] + bytes([magic]) + PLAIN[MAGIC_AT + 1 :]
    for judge in (FORMAT.measure, FORMAT.glance, FORMAT.check):
        with pytest.raises(DecodeError):
            judge(other)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_batch_shorter_than_its_head_is_no_entry(length: int) -> None:
    with pytest.raises(DecodeError, match="batch length"):
        FORMAT.measure(PLAIN[:8] + struct.pack(">i", length) + PLAIN[12:])


@each_batch
def test_headers_tell_what_kafkas_tools_tell(entry: bytes, batch: Batch) -> None:
    header = FORMAT.check(entry)
    assert (header.first, header.last, header.count, header.size) == batch[:4]
    assert header.codec.name.lower() == batch.codec
    assert (-1 if header.producer is None else header.producer) == batch.producer
    assert (header.epoch, header.sequence, header.max_time_ms) == (batch.epoch, batch.sequence, batch.max_time_ms)
    assert bool(header.flags & EntryFlag.CONTROL) == ("control" in batch.flags)
    assert bool(header.flags & EntryFlag.TRANSACTIONAL) == ("transactional" in batch.flags)
    assert bool(header.flags & EntryFlag.LOG_TIME) == ("log-append-time" in batch.flags)
    assert header == peek(entry)


@each_batch
def test_a_glance_at_the_head_tells_the_same_but_for_the_claim(entry: bytes, batch: Batch) -> None:
    assert FORMAT.glance(entry[: FORMAT.head_bytes]) == FORMAT.check(entry)._replace(claim=NO_CLAIM)
    with pytest.raises(DecodeError):
        FORMAT.glance(entry[: FORMAT.head_bytes - 1])


@pytest.mark.parametrize("entry", [PLAIN, MARKERS[0][1]], ids=["plain", "marker"])
def test_every_byte_flipped_or_missing(entry: bytes) -> None:
    header = FORMAT.check(entry)
    for at in range(len(entry)):
        with pytest.raises(DecodeError):
            FORMAT.check(entry[:at])
        for mask in (0x01, 0x80, 0xFF):
            spoilt = entry[:at] + bytes([entry[at] ^ mask]) + entry[at + 1 :]
            if at < 8 or EPOCH_AT <= at < MAGIC_AT:  # base offset and leader epoch, which a broker writes
                try:
                    found = FORMAT.check(spoilt)
                except DecodeError:
                    continue
                assert (found.first == header.first) == (at >= 8)
            else:
                with pytest.raises(DecodeError):
                    FORMAT.check(spoilt)


def test_wrong_checksum_is_told_as_such() -> None:
    with pytest.raises(ChecksumError):
        FORMAT.check(PLAIN[:-1] + bytes([PLAIN[-1] ^ 1]))


def test_bytes_behind_a_batch_are_not_part_of_it() -> None:
    with pytest.raises(DecodeError, match="batch length"):
        FORMAT.check(PLAIN + b"\0")


@each_batch
def test_placed_batches_are_what_a_broker_keeps(entry: bytes, batch: Batch) -> None:
    """A broker writes base offset and leader epoch, and nothing else."""
    arrived = struct.pack(">q", 0) + entry[8:EPOCH_AT] + struct.pack(">i", -1) + entry[MAGIC_AT:]
    epoch = struct.unpack_from(">i", entry, EPOCH_AT)[0]
    head, rest = FORMAT.place(arrived, batch.base, epoch)
    assert bytes(head) + bytes(rest) == entry
    assert isinstance(rest, memoryview)
    assert rest.obj is arrived
    moved = b"".join(FORMAT.place(arrived, 1 << 40, 7))
    assert FORMAT.check(moved).first == 1 << 40
    assert len(moved) == len(entry)


@each_batch
def test_dating(entry: bytes, batch: Batch) -> None:
    dated = bytes(FORMAT.dated(entry, 123_456))
    header = FORMAT.check(dated)
    assert header.max_time_ms == header.min_time_ms == 123_456
    assert header.flags == FORMAT.check(entry).flags | EntryFlag.LOG_TIME
    assert dated[BATCH_HEADER_BYTES:] == entry[BATCH_HEADER_BYTES:]
    undone = FORMAT.check(bytes(FORMAT.dated(dated, None)))
    assert not undone.flags & EntryFlag.LOG_TIME


@each_marker
def test_markers_are_kafkas_own(entry: bytes, batch: Batch) -> None:
    """Byte for byte, the time and the coordinator's epoch being given."""
    fields = BATCH_HEADER.unpack_from(entry)
    coordinator_epoch = struct.unpack_from(">i", entry, len(entry) - 5)[0]
    made = bytes(FORMAT.marker(batch.marker == "commit", batch.producer, batch.epoch, fields[8], coordinator_epoch))
    placed = b"".join(FORMAT.place(made, batch.base, fields[2]))
    kept = bytearray(entry)
    if "delete-horizon" in batch.flags:  # compaction wrote it in the place of the base time
        kept[CHECKED_AT + 1] &= ~0x40
        kept[BASE_TIME_AT:MAX_TIME_AT] = entry[MAX_TIME_AT : MAX_TIME_AT + 8]
        checked = bytes(kept[CHECKED_AT:BATCH_HEADER_BYTES])
        kept[CRC_AT:CHECKED_AT] = batch_checksum(checked, bytes(kept[BATCH_HEADER_BYTES:])).to_bytes(4, "big")
    assert placed.hex() == kept.hex()


def test_there_are_markers_of_both_kinds() -> None:
    assert {batch.marker for _, _, batch in MARKERS} == {"commit", "abort"}


@each_batch
def test_markers_are_recognised(entry: bytes, batch: Batch) -> None:
    assert FORMAT.marker_of(entry) == {None: None, "commit": True, "abort": False}[batch.marker]


@pytest.mark.parametrize("commit", [True, False])
def test_own_markers_can_be_stored(commit: bool) -> None:
    made = bytes(FORMAT.marker(commit, 77, 5, 1000, 9))
    header = FORMAT.check(made)
    assert (header.producer, header.epoch, header.sequence, header.count) == (77, 5, -1, 1)
    assert header.flags == EntryFlag.CONTROL | EntryFlag.TRANSACTIONAL
    assert FORMAT.marker_of(made) is commit


def test_control_batches_of_other_kinds_mark_nothing() -> None:
    made = bytes(FORMAT.marker(True, 77, 5, 1000))
    kind_at = BATCH_HEADER_BYTES + 8
    assert made[kind_at] == 1
    assert FORMAT.marker_of(made[:kind_at] + b"\x02" + made[kind_at + 1 :]) is None
    for size in range(BATCH_HEADER_BYTES, kind_at):
        assert FORMAT.marker_of(made[:size]) is None
