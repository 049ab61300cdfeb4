"""Segments that official clients and a real broker wrote: we read them as they do, and write them as they do.

What each segment must hold was said by Kafka's own tools when it was captured; see `tests/vectors/README.md`.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.errors import UnsupportedError
from penstock.wire.columns import from_arrow
from penstock.wire.compression import Codec, decompress
from penstock.wire.entry import NO_CLAIM, EntryFlag, EntryHeader, Stamp
from penstock.wire.kafka.header import parse_header, peek, rewrite_header, split, verify
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, LENGTH_END, MAGIC_AT
from tests.vectors.kafka import vector
from tests.vectors.kafka.cases import CODECS
from tests.vectors.kafka.vector import Batch, Vector, load_all
from tests.wire.kafka.entries import read
from tests.wire.kafka.messages import Read
from tests.wire.kafka.readers import READERS, Reader
from tests.wire.kafka.twins import Kit

VECTORS = load_all()
README = vector.HERE.parent / "README.md"
FOLDER_BYTES_MAX = 200_000
FLAGS = {
    "log-append-time": EntryFlag.LOG_TIME,
    "transactional": EntryFlag.TRANSACTIONAL,
    "control": EntryFlag.CONTROL,
    "delete-horizon": EntryFlag.PURGE_DATED,
}
MARKERS = {0: "abort", 1: "commit"}
RENUMBERED = Stamp(producer=7001, epoch=3, sequence=42, transactional=True)

each_vector = pytest.mark.parametrize("captured", VECTORS, ids=[each.name for each in VECTORS])


def entries(captured: Vector) -> list[tuple[memoryview, Batch]]:
    """The batches as we cut them, each with what Kafka says of it."""
    return list(zip(split(captured.segment), captured.batches, strict=True))


def of_messages(captured: Vector) -> Iterator[tuple[memoryview, Batch]]:
    """Those that hold messages of users."""
    return ((entry, batch) for entry, batch in entries(captured) if "control" not in batch.flags)


def in_batch(captured: Vector, batch: Batch, base: int | None = None) -> list[Read]:
    """What must be read from a batch; numbered from `base` on if it is given."""
    shift = 0 if base is None else base - batch.base
    return [
        Read(each.offset + shift, each.time_ms, each.sent.key, each.sent.value, each.sent.headers)
        for each in captured.read
        if batch.base <= each.offset <= batch.last
    ]


def with_senders_time(read_: Read, captured: Vector, batch: Batch) -> Read:
    """What is read from a copy: a log's own times do not go along."""
    if "log-append-time" not in batch.flags:
        return read_
    sent = next(each.sent for each in captured.read if each.offset == batch.base + read_.position)
    assert sent.time_ms is not None
    return read_._replace(time_ms=sent.time_ms)


@each_vector
def test_a_segment_splits_into_its_batches_and_a_cut_one_is_left_out(captured: Vector) -> None:
    sizes = [batch.size for batch in captured.batches]
    assert [len(entry) for entry in split(captured.segment)] == sizes
    assert [len(entry) for entry in split(captured.segment[:-1])] == sizes[:-1]
    assert [len(entry) for entry in split(captured.segment + captured.segment[: sizes[0] - 1])] == sizes


@each_vector
def test_a_batch_is_judged_unopened_as_kafka_judges_it(captured: Vector) -> None:
    for entry, batch in entries(captured):
        assert verify(entry) == parse_header(entry)
        flags = sum(FLAGS[flag] for flag in batch.flags)
        thinned = EntryFlag.THINNED * (batch.messages != batch.last - batch.base + 1)
        header = peek(entry)
        assert header == EntryHeader(
            count=batch.messages,
            size=batch.size,
            codec=Codec(batch.codec),
            first=batch.base,
            last=batch.last,
            min_time_ms=header.min_time_ms,
            max_time_ms=batch.max_time_ms,
            producer=None if batch.producer < 0 else batch.producer,
            epoch=batch.epoch,
            sequence=batch.sequence,
            flags=EntryFlag(flags | thinned),
            claim=NO_CLAIM,
        )
        if header.min_time_ms is not None:
            assert all(header.min_time_ms <= each.time_ms for each in in_batch(captured, batch))


@each_vector
def test_it_decodes_to_what_the_official_consumer_read(captured: Vector, kit: Kit) -> None:
    for entry, batch in of_messages(captured):
        assert read(kit.decode(entry)) == in_batch(captured, batch)


@each_vector
def test_what_was_read_is_what_was_sent(captured: Vector) -> None:
    log_time = any("log-append-time" in batch.flags for batch in captured.batches)
    for each in captured.read:
        assert log_time or each.sent.time_ms in (None, each.time_ms)
    if captured.file != "broker":
        assert [each.sent for each in captured.read] == list(captured.sent)


@each_vector
def test_control_batches_tell_the_outcome_and_are_not_rewritten(captured: Vector, kit: Kit) -> None:
    for entry, batch in entries(captured):
        if "control" in batch.flags:
            (marker,) = read(kit.decode(entry))
            version, kind = struct.unpack(">hh", marker.key or b"")
            assert (version, MARKERS[kind]) == (0, batch.marker)
            with pytest.raises(UnsupportedError, match="control batch"):
                rewrite_header(entry, RENUMBERED)
        else:
            assert batch.marker is None


@pytest.mark.parametrize(
    "captured", [each for each in VECTORS if each.committed is not None], ids=lambda each: each.name
)
def test_headers_and_markers_tell_which_messages_are_committed(captured: Vector, kit: Kit) -> None:
    """Offsets of open transactions wait, by producer, for the marker that keeps or drops them."""
    committed: list[int] = []
    waiting: dict[object, list[int]] = {}
    for entry in split(captured.segment):
        header = peek(entry)
        messages = read(kit.decode(entry))
        assert header.flags & EntryFlag.TRANSACTIONAL
        if not header.flags & EntryFlag.CONTROL:
            waiting.setdefault(header.producer, []).extend(message.position for message in messages)
        elif MARKERS[struct.unpack(">hh", messages[0].key or b"")[1]] == "commit":
            committed += waiting.pop(header.producer, [])
        else:
            waiting.pop(header.producer, None)
    assert not any(waiting.values())
    assert tuple(sorted(committed)) == captured.committed


@each_vector
def test_a_rewritten_batch_verifies_and_holds_the_same_messages(captured: Vector, kit: Kit) -> None:
    for entry, batch in of_messages(captured):
        header, payload = rewrite_header(entry, RENUMBERED)
        copy = header + bytes(payload)
        verify(copy)
        told = peek(copy)
        assert (told.producer, told.epoch, told.sequence) == RENUMBERED[:3]
        assert (told.count, told.size, told.codec, told.first) == (batch.messages, batch.size, Codec(batch.codec), 0)
        assert told.flags & EntryFlag.TRANSACTIONAL
        assert not told.flags & (EntryFlag.PURGE_DATED | EntryFlag.LOG_TIME)
        assert read(kit.decode(copy)) == [
            with_senders_time(each, captured, batch) for each in in_batch(captured, batch, 0)
        ]


@pytest.mark.parametrize(
    ("reader", "captured"),
    [
        pytest.param(reader, captured, id=f"{reader.name}-reads-{captured.name}")
        for reader in READERS
        for captured in VECTORS
        if all(reader.can_read(Codec(batch.codec)) for batch in captured.batches)
    ],
)
def test_messages_written_anew_are_read_by_official_codecs(reader: Reader, captured: Vector, kit: Kit) -> None:
    for entry, batch in of_messages(captured):
        if batch.messages:
            expected = [each._replace(position=at) for at, each in enumerate(in_batch(captured, batch))]
            assert reader.read(written_anew(kit, entry, Codec(batch.codec), Stamp())) == expected


@each_vector
def test_what_we_write_is_what_they_wrote_byte_by_byte(captured: Vector, kit: Kit) -> None:
    """But for base offset and leader epoch, and for how a codec compresses."""
    for entry, batch in of_messages(captured):
        if batch.messages != batch.last - batch.base + 1 or {"log-append-time", "delete-horizon"} & set(batch.flags):
            continue
        stamp = Stamp(batch.producer, batch.epoch, batch.sequence, "transactional" in batch.flags)
        ours = written_anew(kit, entry, Codec(batch.codec), stamp)
        if batch.codec == "none":
            theirs = bytes(entry)
            assert ours[8:LENGTH_END] + ours[MAGIC_AT:] == theirs[8:LENGTH_END] + theirs[MAGIC_AT:]
        assert opened(ours) == opened(entry)


def written_anew(kit: Kit, entry: memoryview, codec: Codec, stamp: Stamp) -> bytes:
    """The messages of a batch, decoded to Arrow columns and written by our buffer."""
    columns = kit.decode(entry)
    batch = kit.BatchBuffer(1 << 20)
    framed = batch.extend(from_arrow(columns.value, columns.key, columns.properties, columns.event_time))
    assert framed == len(columns)
    batch.seal(codec)
    return b"".join(batch.stamp(stamp))


def opened(entry: bytes | memoryview) -> tuple[object, bytes]:
    """A batch's header without what base offset and compression change, and its records uncompressed."""
    header = parse_header(entry)
    records = decompress(header.codec, entry[BATCH_HEADER_BYTES:], 1 << 20)
    return header._replace(base_offset=0, leader_epoch=0, crc=0, length=0), bytes(records)


def test_no_vector_of_the_readme_is_missing_and_none_is_unnamed() -> None:
    claimed = Counter[tuple[str, str, str]]()
    for case, files, codecs in re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|", README.read_text(), re.MULTILINE):
        all_codecs = CODECS if codecs == "all" else codecs.split(", ")
        claimed.update((file, codec, case) for file in files.split(", ") for codec in all_codecs)
    assert Counter((each.file, each.codec, each.case) for each in VECTORS) == claimed
    assert claimed.most_common(1)[0][1] == 1


def test_every_kind_of_batch_is_among_the_vectors() -> None:
    clients = {each.file for each in VECTORS} - {"broker"}
    assert clients == {"confluent-kafka", "aiokafka", "kafka-python"}
    batches = [batch for each in VECTORS for batch in each.batches]
    assert {batch.codec for batch in batches} == set(CODECS)
    assert {flag for batch in batches for flag in batch.flags} == set(FLAGS)
    assert {batch.marker for batch in batches} == {None, "abort", "commit"}
    assert any(batch.messages == 0 for batch in batches)
    assert any(0 < batch.messages < batch.last - batch.base + 1 for batch in batches)
    assert any(batch.sequence > 0 for batch in batches)


def test_vectors_stay_small() -> None:
    sizes = [path.stat().st_size for path in README.parent.rglob("*") if path.suffix in {".py", ".json", ".md"}]
    assert sum(sizes) < FOLDER_BYTES_MAX
