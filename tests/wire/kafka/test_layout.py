"""The byte table of `layout` is the truth: its rows against the struct, the constants and the header's fields."""

from __future__ import annotations

import re
import struct

from penstock.wire.kafka import layout
from penstock.wire.kafka.faults import Field
from penstock.wire.kafka.header import BatchHeader

DOCUMENT = str(layout.__doc__)
FIELDS = {"batch length": "length", "partition leader epoch": "leader_epoch", "records count": "count"}
ROW = re.compile(r"^ +(\d+) +(\d+) {2}(\S+(?: \S+)*)", re.MULTILINE)
BITS = re.compile(r"0x([0-9a-f]{4}) {2}(\S+(?: \S+)*)")
CODES = {"b": 1, "h": 2, "i": 4, "I": 4, "q": 8}


def rows() -> list[tuple[int, int, str]]:
    return [(int(offset), int(size), name) for offset, size, name in ROW.findall(DOCUMENT)]


def test_rows_follow_each_other_without_a_gap() -> None:
    at = 0
    for offset, size, _ in rows():
        assert offset == at
        at += size
    assert at == layout.BATCH_HEADER_BYTES == layout.BATCH_HEADER.size
    assert re.search(rf"^ +{at} +records ", DOCUMENT, re.MULTILINE)


def test_rows_have_the_sizes_of_the_struct() -> None:
    codes = layout.BATCH_HEADER.format
    assert codes.startswith(">")
    assert [CODES[code] for code in codes[1:]] == [size for _, size, _ in rows()]


def test_rows_have_the_names_of_the_headers_fields() -> None:
    names = [FIELDS.get(name, name.replace(" ", "_")) for _, _, name in rows()]
    assert names == list(BatchHeader._fields)


def test_places_are_those_of_the_table() -> None:
    at = {name: offset for offset, _, name in rows()}
    after = {name: offset + size for offset, size, name in rows()}
    assert after["batch length"] == layout.LENGTH_END
    assert at["magic"] == layout.MAGIC_AT
    assert at["crc"] == layout.CRC_AT
    assert after["crc"] == at["attributes"] == layout.CHECKED_AT


def test_every_row_is_packed_where_it_says() -> None:
    for number, (offset, size, _) in enumerate(rows()):
        fields = [0] * len(BatchHeader._fields)
        fields[number] = 1
        packed = layout.BATCH_HEADER.pack(*fields)
        assert packed == bytes(offset + size - 1) + b"\x01" + bytes(layout.BATCH_HEADER_BYTES - offset - size)
        assert struct.calcsize(layout.BATCH_HEADER.format) == len(packed)


def test_attribute_bits_are_those_of_the_table() -> None:
    bits = {name: int(value, 16) for value, name in BITS.findall(DOCUMENT)}
    assert bits == {
        "codec": layout.CODEC_BITS,
        "log-append time": layout.LOG_APPEND_TIME,
        "transactional": layout.TRANSACTIONAL,
        "control": layout.CONTROL,
        "delete horizon": layout.DELETE_HORIZON,
        "claim": layout.CLAIM,
    }
    assert sum(bits.values()) == layout.KNOWN_BITS


def test_codecs_are_numbered_as_the_table_lists_them() -> None:
    listed = re.search(r"0x0007 {2}codec +(.*)", DOCUMENT)
    assert listed is not None
    assert listed[1].split(", ") == [codec.value for codec in layout.CODECS]
    assert [layout.CODEC_NUMBERS[codec] for codec in layout.CODECS] == [0, 1, 2, 3, 4]


def test_fields_of_a_record_are_those_of_the_table() -> None:
    section = DOCUMENT.split("Record (", 1)[1]
    names = re.findall(r"^ +(?:varint|varlong|byte) +(\S+(?: \S+)*)", section, re.MULTILINE)
    wanted = [field.name.lower().replace("_", " ") for field in Field if field < Field.HEADER_NAME_LENGTH]
    assert names == wanted
