"""The tables of `docs/log-format.md` are the structures of `layout.py`, and files on a disk are what both say."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from uuid import UUID

import pytest

from penstock.broker.log import journal, layout, points, segment
from penstock.broker.log.claims import frame_claim
from penstock.broker.log.layout import LogKey, Point, Row, SegmentHead, Summary
from penstock.wire.entry import PropertyClaim
from penstock.wire.kafka.log_format import KafkaLogFormat
from tests.broker.log.kit import FOLDER, TOPIC, Kit, small
from tests.broker.log.toy_format import TOY

DOCUMENT = Path(__file__).parents[3] / "docs" / "log-format.md"
TYPES = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"}
CHECKSUM = "I"
WHOLE = {
    "SEGMENT_HEAD": layout.SEGMENT_HEAD.format + CHECKSUM,
    "SIDE_HEAD": layout.SIDE_HEAD.format + CHECKSUM,
    "ROW": layout.ROW.format + CHECKSUM,
    "SUMMARY": layout.SUMMARY.format + CHECKSUM,
    "CLAIM": layout.CLAIM.format,
    "BLOCK": layout.BLOCK.format,
    "ITEM": layout.ITEM.format,
    "POINTS_HEAD": layout.POINTS_HEAD.format,
    "POINT": layout.POINT_KEY.format + layout.POINT.format[1:],
    "CLEAN_MARK": layout.CLEAN_MARK.format,
}
SIZES = {
    "SEGMENT_HEAD": layout.SEGMENT_HEAD_BYTES,
    "SIDE_HEAD": layout.SIDE_HEAD_BYTES,
    "ROW": layout.ROW_BYTES,
    "SUMMARY": layout.SUMMARY_BYTES,
    "POINT": layout.POINT_BYTES,
}
MAGIC = {
    "SEGMENT_HEAD": {layout.SEGMENT_MAGIC},
    "SIDE_HEAD": {layout.INDEX_MAGIC, layout.CLAIMS_MAGIC},
    "SUMMARY": {layout.SUMMARY_MAGIC},
    "BLOCK": {layout.BLOCK_MAGIC},
    "POINTS_HEAD": {layout.POINTS_MAGIC},
    "CLEAN_MARK": {layout.CLEAN_MAGIC},
}
KEY = LogKey(TOPIC, 3)


def tables() -> dict[str, tuple[int, list[tuple[int, str, str]]]]:
    """Name of a structure, its size, and the rows of its table: offset, type, meaning."""
    found = {}
    parts = re.split(r"^### `(\w+)`: (\d+) bytes.*\n", DOCUMENT.read_text(), flags=re.MULTILINE)
    for name, size, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", text, flags=re.MULTILINE)
        found[name] = int(size), [(int(at), kind, what) for at, kind, what in rows]
    return found


def fields(pattern: str) -> list[tuple[int, str]]:
    """Offset and type of each field of a structure, zeros included."""
    found, at = [], 0
    assert pattern[0] == "<"
    for count, kind in re.findall(r"(\d*)([a-zA-Z])", pattern[1:]):
        if kind in "sx":
            found.append((at, f"{count or 1} bytes"))
            at += int(count or 1)
            continue
        for _ in range(int(count or 1)):
            found.append((at, TYPES[kind]))
            at += struct.calcsize(f"<{kind}")
    return found


def test_every_structure_has_a_table() -> None:
    assert set(tables()) == set(WHOLE)


@pytest.mark.parametrize("name", WHOLE)
def test_tables_are_the_structures(name: str) -> None:
    size, rows = tables()[name]
    assert [(at, kind) for at, kind, _ in rows] == fields(WHOLE[name])
    assert size == struct.calcsize(WHOLE[name]) == SIZES.get(name, size)


@pytest.mark.parametrize("name", MAGIC)
def test_magic_numbers_are_told(name: str) -> None:
    told = {each.encode() for each in re.findall(r"`([^`]+)`", tables()[name][1][0][2])}
    assert told == MAGIC[name]


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert f"text `{layout.FORMAT_TEXT.decode().strip()}` and a line feed" in text
    assert f"{KafkaLogFormat.number} is Kafka's record batch" in text
    assert f"begins {segment.INDEX_BYTES} bytes or more" in text
    assert f"pages of {layout.BLOCK_ALIGN} bytes" in text
    assert f"{journal.RESERVED_BYTES} bytes at least" in text
    assert f"{layout.SEGMENT_BYTES_MAX} bytes, so an offset" in text
    assert f"{layout.DATA}: bytes of a segment; {layout.START}: a log starts later" in text
    for name in (layout.LOCK, layout.FORMAT, layout.POINTS, layout.CLEAN, *layout.JOURNALS):
        assert f"`{name}`" in text


def test_checksums_cover_what_the_tables_say() -> None:
    rows = {name: {what: at for at, _, what in table} for name, (_, table) in tables().items()}
    for name in ("BLOCK", "POINTS_HEAD"):
        at = next(at for what, at in rows[name].items() if what.startswith("checksum"))
        assert at + 4 == (journal.CHECKED_AT if name == "BLOCK" else points.CHECKED_AT)


# One example of each, written down byte by byte

SEGMENT_EXAMPLE = (
    "50454e532d53454701000100000000000123456789abcdef0123456789abcdef"
    "03000000000000000700000000000000e80300000000000000000000"
)


def test_head_of_a_segment() -> None:
    head = SegmentHead(1, KEY, 7, 1000)
    packed = head.pack()
    assert packed[:60].hex() == SEGMENT_EXAMPLE
    assert SegmentHead.parse(packed) == head
    for at in range(len(packed)):
        assert SegmentHead.parse(flipped(packed, at)) is None
        assert SegmentHead.parse(packed[:at]) is None


def test_head_of_another_version_is_no_head() -> None:
    other = layout.sealed(
        layout.SEGMENT_HEAD.pack(layout.SEGMENT_MAGIC, layout.VERSION + 1, 1, TOPIC.bytes, 3, 7, 1000)
    )
    assert SegmentHead.parse(other) is None


def test_summary() -> None:
    summary = Summary(9, 1000, 7, 640, 2, 32, 0)
    packed = summary.pack()
    assert Summary.parse(packed) == summary
    for at in range(len(packed)):
        assert Summary.parse(flipped(packed, at)) is None
        assert Summary.parse(packed[:at]) is None


def test_row() -> None:
    packed = Row(7, -1, 64, 2, 32).pack()
    assert packed[:28].hex() == "0700000000000000ffffffffffffffff400000000200000020000000"
    assert layout.is_sealed(packed)


def test_claim() -> None:
    record = frame_claim(7, PropertyClaim({"region": "eu"}, {"city": frozenset({"oslo", None})}))
    assert record[4:16].hex() == "0700000000000000" + "38000000"
    assert record[16:] == b'{"same":{"region":"eu"},"listed":{"city":["oslo",null]}}'


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("3.00000000000000000007.log", (3, 7, "log")),
        ("0.00000000000000000000.index", (0, 0, "index")),
        ("12.09223372036854775807.claims", (12, 9223372036854775807, "claims")),
        ("3.00000000000000000007.log.new", None),
        ("3.00000000000000000007.new", None),
        ("x.00000000000000000007.log", None),
        ("3.-7.log", None),
        ("lost+found", None),
    ],
)
def test_names_of_segments(name: str, parsed: tuple[int, int, str] | None) -> None:
    assert layout.parse_segment_name(name) == parsed
    if parsed is not None:
        assert layout.segment_name(*parsed) == name


def test_files_of_a_folder_are_what_the_document_says(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    kit = Kit()
    log = kit.open(3)
    for number in range(40):
        kit.append(log, b"x" * 20, claim=f"n={number}")
    assert kit.commit() is None
    kit.restart()
    disk = kit.crash_disk
    assert sorted(disk.names(FOLDER)) == ["format", "journal.0", "journal.1", "lock", "points", "topics"]
    topic = FOLDER / "topics" / TOPIC.hex
    name = "3.00000000000000000000"
    assert sorted(disk.names(topic)) == [f"{name}.claims", f"{name}.index", f"{name}.log"]

    data = bytes(disk.file(topic / f"{name}.log").data)
    assert SegmentHead.parse(data[:64]) == SegmentHead(TOY.number, KEY, 0, 1000)
    offsets: list[int] = []
    at = 64
    while at < len(data):
        header = TOY.glance(data[at : at + 32])
        assert TOY.check(data[at : at + header.size]).first == len(offsets)
        offsets.append(at)
        at += header.size
    assert len(offsets) == 40

    index = bytes(disk.file(topic / f"{name}.index").data)
    assert index[:32] == layout.side_head(b"PENS-IDX", 3, 0)
    rows = [Row._make(layout.ROW.unpack_from(index, at)) for at in range(32, len(index) - 64, 32)]
    assert rows
    assert all(offsets[row.position] == row.offset and row.entries_before == row.position for row in rows)
    claims = bytes(disk.file(topic / f"{name}.claims").data)
    summary = Summary.parse(index[-64:])
    assert summary is not None
    assert summary[:6] == (40, 1000, 0, len(data), 40, len(claims))
    assert claims[:32] == layout.side_head(b"PENS-CLM", 3, 0)
    assert claims[32:].startswith(frame_claim(0, PropertyClaim({"n": "0"})))


def test_journal_and_points_are_what_the_document_says() -> None:
    kit = Kit()
    log = kit.open(3)
    kit.append(log, b"abc")
    assert kit.commit() is None
    data = bytes(kit.crash_disk.file(FOLDER / "journal.0").data)
    magic, _, version, _, generation, sequence, size, count = layout.BLOCK.unpack_from(data)
    assert (magic, version, sequence, count) == (b"PENS-JNL", 1, 0, 2)
    first = layout.ITEM.unpack_from(data, 40)
    assert first == (layout.DATA, 3, TOPIC.bytes, 0, 0, 64)
    second = layout.ITEM.unpack_from(data, 40 + 44 + 64)
    assert second[:5] == (layout.DATA, 3, TOPIC.bytes, 0, 64)
    assert size == 44 + 64 + 44 + second[5]
    assert not any(data[40 + size : 4096])

    kit.store.close()
    data = bytes(kit.crash_disk.file(FOLDER / "points").data)
    assert layout.POINTS_HEAD.unpack_from(data)[4:] == (generation + 1, 1)
    assert UUID(bytes=data[32:48]) == TOPIC
    assert Point._make(layout.POINT.unpack_from(data, 52)) == Point(1, 0, 1, 0, 64 + second[5], second[5])
    assert bytes(kit.crash_disk.file(FOLDER / "clean").data) == points._mark(data)


def flipped(data: bytes, at: int) -> bytes:
    """With one byte changed."""
    return data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]
