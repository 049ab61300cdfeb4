"""Bytes from strangers: whatever they are, an answer or a `DecodeError`, never more memory than the limit allows."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ChecksumError, DecodeError, LimitError, UnsupportedError
from penstock.wire.compression import Codec, compress, decompress, decompress_start, lz4

MB = 1 << 20
LIMIT = MB
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
Decoder = Callable[[Codec, bytes, int], bytes | memoryview]
ZSTD_MAGIC = "28b52ffd"
LZ4_PLAIN = "04224d18604082"
DATA = b"".join(b"%d bottles of beer on the wall, %d bottles of beer. " % (n, n) for n in range(12)) + bytes(40)


def zstd_stream(data: bytes) -> bytes:
    stream = cramjam.zstd.Compressor(level=3)
    stream.compress(data)
    return bytes(stream.finish())


def with_content_size(data: bytes, size: int) -> bytes:
    """An lz4 frame of one stored block that announces `size`."""
    descriptor = b"\x68\x40" + size.to_bytes(8, "little")
    header = lz4.MAGIC + descriptor + bytes([lz4._header_checksum(descriptor)])
    return header + (len(data) | 1 << 31).to_bytes(4, "little") + data + bytes(4)


BLOBS = {
    "gzip": (Codec.GZIP, compress(Codec.GZIP, DATA)),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, DATA)),
    "snappy raw": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA))),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, DATA)),
    "lz4 linked with checksums": (Codec.LZ4, bytes(cramjam.lz4.compress(DATA))),
    "lz4 with content size": (Codec.LZ4, with_content_size(DATA[:100], 100)),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, DATA)),
    "zstd stream": (Codec.ZSTD, zstd_stream(DATA)),
}
CHECKED = ["gzip", "lz4 linked with checksums"]
ENDLESS = ["snappy"]


def start(codec: Codec, blob: bytes, limit: int) -> bytes:
    return decompress_start(codec, blob, 200, limit)


def attempt(decoder: Decoder, codec: Codec, blob: bytes) -> bytes | DecodeError:
    try:
        return bytes(decoder(codec, blob, LIMIT))
    except DecodeError as error:
        return error


def outcome(codec: Codec, blob: bytes) -> bytes | None:
    """What comes of `blob`: bytes within the limit, or None for a `DecodeError`; any other error is a failure."""
    opened, started = attempt(decompress, codec, blob), attempt(start, codec, blob)
    for result in (opened, started):
        if isinstance(result, DecodeError):
            assert 0 <= result.offset <= len(blob), result
        else:
            assert len(result) <= LIMIT
    if isinstance(opened, DecodeError):
        return None
    assert isinstance(started, bytes)
    assert opened.startswith(started)
    return opened


@pytest.mark.parametrize("name", BLOBS)
def test_a_cut_blob_is_refused_at_every_length(name: str) -> None:
    codec, blob = BLOBS[name]
    whole = outcome(codec, blob)
    assert whole
    for length in range(len(blob)):
        opened = outcome(codec, blob[:length])
        assert opened is None or (name in ENDLESS and whole.startswith(opened)), length


@pytest.mark.parametrize("name", BLOBS)
def test_a_flipped_byte_gives_bytes_or_a_decode_error(name: str) -> None:
    codec, blob = BLOBS[name]
    for at in range(len(blob)):
        for mask in (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF):
            flipped = bytearray(blob)
            flipped[at] ^= mask
            opened = outcome(codec, bytes(flipped))
            assert name not in CHECKED or opened in (None, DATA), (at, mask)


@pytest.mark.parametrize("name", BLOBS)
def test_trailing_garbage_is_refused(name: str) -> None:
    codec, blob = BLOBS[name]
    for garbage in (b"\x01", b"\xff" * 30):
        with pytest.raises(DecodeError):
            decompress(codec, blob + garbage, LIMIT)


@pytest.mark.parametrize("decoder", [decompress, start])
@pytest.mark.parametrize("codec", COMPRESSING)
def test_nothing_is_not_a_compressed_payload(codec: Codec, decoder: Decoder) -> None:
    with pytest.raises(DecodeError) as caught:
        decoder(codec, b"", LIMIT)
    assert caught.value.offset == 0


@given(codec=st.sampled_from(COMPRESSING), blob=st.binary(max_size=60))
def test_random_bytes_give_bytes_or_a_decode_error(codec: Codec, blob: bytes) -> None:
    outcome(codec, blob)


@given(
    name=st.sampled_from(sorted(BLOBS)),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.binary(max_size=5)), max_size=4),
)
def test_edited_blobs_give_bytes_or_a_decode_error(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    codec, blob = BLOBS[name]
    for at, removed, inserted in edits:
        at %= len(blob) + 1
        blob = blob[:at] + inserted + blob[at + removed :]
    outcome(codec, blob)


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_above_the_limit_is_refused(codec: Codec) -> None:
    for data in (bytes(200_000), random.Random(3).randbytes(200_000)):
        compressed = compress(codec, data)
        assert decompress(codec, compressed, 200_000) == data
        for limit in (199_999, 1000, 0):
            with pytest.raises(LimitError, match=f"expected at most {limit} bytes"):
                decompress(codec, compressed, limit)


@pytest.mark.parametrize("name", sorted(BLOBS.keys() - {"snappy raw"}))
def test_the_limit_holds_for_the_sum_of_all_frames(name: str) -> None:
    codec, blob = BLOBS[name]
    size = len(decompress(codec, blob, LIMIT))
    assert len(decompress(codec, blob * 3, 3 * size)) == 3 * size
    with pytest.raises(LimitError):
        decompress(codec, blob * 3, 3 * size - 1)


def test_the_limit_holds_for_a_zstd_block_opened_alone() -> None:
    with pytest.raises(LimitError):
        decompress_start(Codec.ZSTD, compress(Codec.ZSTD, DATA * 10), 10, len(DATA))


BOMB_BYTES = 64 * MB
PEAK_SCRIPT = """
import json, pathlib, re, sys
from penstock.errors import LimitError
from penstock.wire.compression import Codec, compress, decompress

def peak_kb():
    return int(re.search(r"VmPeak:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

codec, blob, limit = Codec.parse(sys.argv[1]), pathlib.Path(sys.argv[2]).read_bytes(), int(sys.argv[3])
decompress(codec, compress(codec, bytes(1000)), 1000)
before = peak_kb()
try:
    answer = len(decompress(codec, blob, limit))
except LimitError:
    answer = "limit"
print(json.dumps([answer, peak_kb() - before]))
"""


def repeated_blocks(count: int) -> str:
    """Zstd blocks of 128 KB that are one repeated byte."""
    return "020010 00" * (count - 1) + "030010 00"


BOMBS = {
    "gzip": (Codec.GZIP, compress(Codec.GZIP, bytes(BOMB_BYTES))),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(BOMB_BYTES))),
    "snappy raw": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(BOMB_BYTES)))),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, bytes(BOMB_BYTES))),
    "lz4 linked": (Codec.LZ4, bytes(cramjam.lz4.compress(bytes(BOMB_BYTES)))),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, bytes(BOMB_BYTES))),
    "zstd stream": (Codec.ZSTD, zstd_stream(bytes(BOMB_BYTES))),
    "zstd window of 128 MB": (Codec.ZSTD, bytes.fromhex(ZSTD_MAGIC + "00 88" + repeated_blocks(512))),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_no_more_memory_than_the_limit_and_a_block(name: str, tmp_path: Path) -> None:
    codec, blob = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(blob)

    def answer_and_peak_kb(limit: int) -> tuple[int | str, int]:
        command = [sys.executable, "-c", PEAK_SCRIPT, codec.value, str(path), str(limit)]
        answer, peak_kb = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return answer, peak_kb

    answer, peak_kb = answer_and_peak_kb(LIMIT)
    assert answer == "limit"
    assert peak_kb < 16 * 1024
    answer, peak_kb = answer_and_peak_kb(BOMB_BYTES)
    assert answer == BOMB_BYTES
    assert peak_kb > 60 * 1024, "the measurement sees allocations"


def test_many_gzip_members_are_not_copied_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = 0

    class CountingInflater:
        def __init__(self, wbits: int) -> None:
            self.inflater = decompressobj(wbits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inflater, name)

        def decompress(self, piece: memoryview, bytes_max: int) -> bytes:
            nonlocal fed
            fed += len(piece)
            return self.inflater.decompress(piece, bytes_max)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", CountingInflater)
    members = compress(Codec.GZIP, b"") * 2000 + compress(Codec.GZIP, b"end")
    assert bytes(decompress(Codec.GZIP, members, LIMIT)) == b"end"
    assert fed < len(members) + 2000 * 600


@pytest.mark.parametrize(
    ("codec", "blob", "kind", "field", "offset"),
    [
        (Codec.LZ4, "04224d19 604082 00000000", DecodeError, "lz4 magic", 0),
        (Codec.LZ4, "502a4d18 00000000", DecodeError, "lz4 magic", 0),
        (Codec.LZ4, "04224d18 a04082 00000000", UnsupportedError, "lz4 FLG", 4),
        (Codec.LZ4, "04224d18 624082 00000000", UnsupportedError, "lz4 FLG", 4),
        (Codec.LZ4, "04224d18 614082 00000000", UnsupportedError, "lz4 FLG", 4),
        (Codec.LZ4, "04224d18 603082 00000000", DecodeError, "lz4 BD", 5),
        (Codec.LZ4, "04224d18 604083 00000000", ChecksumError, "lz4 header checksum", 6),
        (Codec.LZ4, LZ4_PLAIN + "01000100" + "00" * 65537 + "00000000", DecodeError, "lz4 block size", 7),
        (Codec.LZ4, LZ4_PLAIN + "05000080 6162", DecodeError, "lz4 block", 7),
        (Codec.LZ4, LZ4_PLAIN + "01000080 61", DecodeError, "lz4 block size", 12),
        (Codec.LZ4, with_content_size(b"abc", 2).hex(), DecodeError, "lz4 content size", 0),
        (Codec.LZ4, with_content_size(b"abc", 1 << 60).hex(), LimitError, "lz4 content size", 0),
        (Codec.SNAPPY, "82534e4150505900 00000001 00000002", UnsupportedError, "snappy frame version", 12),
        (Codec.SNAPPY, "82534e4150505900 00000001 00000001 ffffffff", DecodeError, "snappy chunk", 20),
        (Codec.SNAPPY, "82534e4150505900 00000001 00000001 00000000", DecodeError, "snappy length", 20),
        (Codec.SNAPPY, "ffffffffff01 00", DecodeError, "snappy length", 0),
        (Codec.SNAPPY, "ffffffff0f 00", LimitError, "snappy length", 0),
        (Codec.ZSTD, "28b52ffe 2000010000", DecodeError, "zstd magic", 0),
        (Codec.ZSTD, ZSTD_MAGIC + "2800010000", DecodeError, "zstd frame descriptor", 4),
        (Codec.ZSTD, ZSTD_MAGIC + "21 07 00 010000", UnsupportedError, "zstd dictionary id", 5),
        (Codec.ZSTD, ZSTD_MAGIC + "e0 0000000000000010 010000", LimitError, "zstd content size", 0),
        (Codec.ZSTD, ZSTD_MAGIC + "a0 00000800 010000", DecodeError, "zstd content size", 0),
        (Codec.ZSTD, ZSTD_MAGIC + "2000 070000", DecodeError, "zstd block type", 6),
        (Codec.ZSTD, ZSTD_MAGIC + "0038 0b0010 00", DecodeError, "zstd block size", 6),
        (Codec.ZSTD, ZSTD_MAGIC + "0038 190000 6162", DecodeError, "zstd block", 6),
        (Codec.ZSTD, ZSTD_MAGIC + "2400 010000 0102", DecodeError, "zstd checksum", 9),
        (Codec.GZIP, "1f8b0900", DecodeError, "gzip member", 0),
    ],
)
def test_errors_tell_where_and_what(codec: Codec, blob: str, kind: type[DecodeError], field: str, offset: int) -> None:
    with pytest.raises(DecodeError) as caught:
        decompress(codec, bytes.fromhex(blob), LIMIT)
    assert (type(caught.value), caught.value.field, caught.value.offset) == (kind, field, offset)


def lz4_block(sequences: str) -> bytes:
    block = bytes.fromhex(sequences)
    return bytes.fromhex(LZ4_PLAIN) + len(block).to_bytes(4, "little") + block + bytes(4)


@pytest.mark.parametrize(
    "blob",
    [
        lz4_block("10"),
        lz4_block("1061 01"),
        lz4_block("1061 0000 00"),
        lz4_block("1061 0200 00"),
        lz4_block("0f 0100"),
        lz4_block("1f61 0100"),
        lz4_block("f0"),
        lz4_block("f0 ff"),
        lz4_block("f0" + "ff" * 60_000),
    ],
)
@pytest.mark.parametrize("decoder", [decompress, start])
def test_lz4_sequences_that_lie_are_refused(blob: bytes, decoder: Decoder) -> None:
    with pytest.raises(DecodeError):
        decoder(Codec.LZ4, blob, LIMIT)


def test_the_start_does_not_read_a_length_to_its_end() -> None:
    endless = lz4_block("1f61 0100" + "ff" * 1000)
    assert start(Codec.LZ4, endless, LIMIT) == b"a" * 200
    with pytest.raises(DecodeError):
        decompress(Codec.LZ4, endless, LIMIT)


@pytest.mark.parametrize(
    "elements",
    ["", "00", "04", "01", "0061 0100", "0061 0102", "0061 0200", "0061 020000", "0061 03000000", "f0", "f4ff", "fc"],
)
@pytest.mark.parametrize("decoder", [decompress, start])
def test_snappy_elements_that_lie_are_refused(elements: str, decoder: Decoder) -> None:
    with pytest.raises(DecodeError):
        decoder(Codec.SNAPPY, bytes.fromhex("20" + elements), LIMIT)


def test_a_match_may_overlap_itself() -> None:
    assert decompress(Codec.LZ4, lz4_block("2f6162 0200 0a 50 3132333435"), LIMIT) == b"ab" * 15 + b"a12345"
    assert decompress_start(Codec.LZ4, lz4_block("2f6162 0200 0a 50 3132333435"), 40, LIMIT) == b"ab" * 15 + b"a12345"


def test_gzip_without_its_trailer_is_refused_but_its_start_is_read() -> None:
    whole = compress(Codec.GZIP, DATA)
    assert decompress_start(Codec.GZIP, whole[:-8], 100, LIMIT) == DATA[:100]
    with pytest.raises(DecodeError):
        decompress(Codec.GZIP, whole[:-8], LIMIT)
    with pytest.raises(DecodeError):
        decompress(Codec.GZIP, whole[:-8] + zlib.crc32(b"other").to_bytes(4, "little") + whole[-4:], LIMIT)
