from __future__ import annotations

import contextlib
import gzip
import random
import zlib
from collections.abc import Callable
from functools import lru_cache

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, DecodeError
from penstock.wire.compression import LEVELS, Codec, check_level, compress, decompress, decompress_start, lz4, zstd

MB = 1 << 20
LIMIT = 8 * MB
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
SIZES = [0, 1, 32767, 32768, 65536, 4 * MB + 1]


@lru_cache
def text(size: int) -> bytes:
    """Words that repeat, like the records of a real batch."""
    chance = random.Random(7)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(500)]
    return b" ".join(chance.choices(words, k=size // 3 + 1))[:size]


SHAPES: dict[str, Callable[[int], bytes]] = {"text": text, "noise": random.Random(8).randbytes, "zeros": bytes}


def payloads() -> st.SearchStrategy[bytes]:
    words = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8)
    repeated = st.tuples(words, st.lists(st.integers(0, 7), max_size=400)).map(
        lambda drawn: b"".join(drawn[0][index % len(drawn[0])] for index in drawn[1])
    )
    runs = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 3000)), max_size=6).map(
        lambda drawn: b"".join(bytes([byte]) * count for byte, count in drawn)
    )
    return st.binary(max_size=300) | repeated | runs


EVERY_LEVEL = [(codec, level) for codec, levels in LEVELS.items() for level in range(levels.min, levels.max + 1)]


def test_codecs_are_parsed_by_the_names_users_write() -> None:
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [Codec.parse(name).value for name in names] == names


@pytest.mark.parametrize("name", ["", "LZ4", "brotli"])
def test_an_unknown_codec_is_refused_with_the_known_ones_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"compression: expected one of none, gzip, snappy, lz4, zstd, found"):
        Codec.parse(name)


@pytest.mark.parametrize("codec", Codec)
def test_the_default_level_is_allowed_for_every_codec(codec: Codec) -> None:
    check_level(codec, None)
    if codec in LEVELS:
        check_level(codec, LEVELS[codec].default)


@pytest.mark.parametrize("codec", LEVELS)
def test_levels_outside_the_range_are_refused_with_the_range_named(codec: Codec) -> None:
    levels = LEVELS[codec]
    for level in (levels.min - 1, levels.max + 1):
        with pytest.raises(ConfigError, match=f"compression_level: expected {levels.min} to {levels.max} for"):
            check_level(codec, level)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_a_level_for_a_codec_without_levels_is_refused(codec: Codec) -> None:
    with pytest.raises(ConfigError, match=f"compression_level: {codec.value} has no levels"):
        check_level(codec, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("codec", Codec)
def test_what_is_compressed_comes_back(codec: Codec, size: int, shape: str) -> None:
    data = SHAPES[shape](size)
    compressed = compress(codec, data)
    assert decompress(codec, compressed, LIMIT) == data
    assert decompress(codec, compressed, size) == data
    assert len(compressed) <= size + size // 1000 * 2 + 64


@pytest.mark.parametrize(("codec", "level"), EVERY_LEVEL)
def test_every_level_comes_back(codec: Codec, level: int) -> None:
    for shape in SHAPES.values():
        for size in (0, 1, 65537):
            data = shape(size)
            assert decompress(codec, compress(codec, data, level), LIMIT) == data


@pytest.mark.parametrize("codec", Codec)
@given(data=payloads())
def test_any_payload_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", LEVELS)
def test_higher_levels_compress_harder(codec: Codec) -> None:
    data = text(200_000)
    assert len(compress(codec, data, LEVELS[codec].max)) < len(compress(codec, data, LEVELS[codec].min))


@pytest.mark.parametrize("codec", Codec)
def test_any_buffer_is_taken_and_a_read_only_view_returned(codec: Codec) -> None:
    data = text(5000)
    signed = memoryview(bytearray(data)).cast("b")
    compressed = compress(codec, signed)
    assert compressed == compress(codec, data)
    opened = decompress(codec, memoryview(bytearray(compressed)).cast("b"), LIMIT)
    assert opened == data
    assert opened.readonly
    assert decompress_start(codec, memoryview(compressed), 100, LIMIT)[:100] == data[:100]


@pytest.mark.parametrize("codec", COMPRESSING)
def test_frames_in_a_row_are_joined(codec: Codec) -> None:
    parts = [text(70_000), b"", b"short", bytes(300_000)]
    assert decompress(codec, b"".join(compress(codec, part) for part in parts), LIMIT) == b"".join(parts)


def test_the_lz4_frame_is_the_one_that_the_broker_accepts() -> None:
    assert compress(Codec.LZ4, b"") == bytes.fromhex("04224d18607073 00000000")
    assert compress(Codec.LZ4, b"abc") == bytes.fromhex("04224d18607073 03000080") + b"abc" + bytes(4)
    shrunk = compress(Codec.LZ4, bytes(100))
    assert shrunk[:7] + shrunk[-4:] == bytes.fromhex("04224d18607073 00000000")
    assert int.from_bytes(shrunk[7:11], "little") == len(shrunk) - 15 < 100
    assert compress(Codec.LZ4, b"abc", 9) == bytes.fromhex("04224d18604082 03000080") + b"abc" + bytes(4)


def test_lz4_makes_one_block_of_up_to_4_mb_and_of_64_kb_above_level_1() -> None:
    def blocks(data: bytes, level: int) -> int:
        return len(lz4._frame(memoryview(compress(Codec.LZ4, data, level)), 0).blocks)

    assert [blocks(bytes(size), 1) for size in (1, 4 * MB, 4 * MB + 1)] == [1, 1, 2]
    assert [blocks(bytes(size), 2) for size in (1, 65536, 65537)] == [1, 1, 2]


def test_lz4_blocks_that_need_each_other_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def compress_in_two_blocks(data: memoryview, level: int) -> bytes:
        stream = cramjam.lz4.Compressor(level=level)
        stream.compress(bytes(data[:1000]))
        start = bytes(stream.flush())
        stream.compress(bytes(data[1000:]))
        return start + bytes(stream.finish())

    frame = compress_in_two_blocks(memoryview(text(5000)), 9)
    assert len(lz4._frame(memoryview(frame), 0).blocks) == 2
    monkeypatch.setattr(cramjam.lz4, "compress", compress_in_two_blocks)
    assert decompress(Codec.LZ4, compress(Codec.LZ4, text(5000), 9), LIMIT) == text(5000)


@pytest.mark.parametrize(
    ("descriptor", "checksum"),
    [("6040", 0x82), ("6440", 0xA7), ("5440", 0xAE), ("7040", 0xAD), ("6070", 0x73), ("68400300000000000000", 0x87)],
)
def test_lz4_header_checksums_are_those_of_the_reference(descriptor: str, checksum: int) -> None:
    assert lz4._header_checksum(bytes.fromhex(descriptor)) == checksum


def test_the_snappy_frame_is_the_one_of_the_java_client() -> None:
    header = bytes.fromhex("82534e4150505900 00000001 00000001")
    assert compress(Codec.SNAPPY, b"") == header
    assert compress(Codec.SNAPPY, b"abc") == header + bytes.fromhex("00000005 03 08") + b"abc"
    two_chunks = compress(Codec.SNAPPY, text(32769))
    assert two_chunks.endswith(bytes.fromhex("00000003 01 00") + text(32769)[-1:])


def test_the_zstd_frame_carries_its_content_size() -> None:
    assert compress(Codec.ZSTD, b"abc") == bytes.fromhex("28b52ffd 20 03 190000") + b"abc"
    header = zstd._header(memoryview(compress(Codec.ZSTD, text(MB))), 0)
    assert (header.content_size, header.has_checksum) == (MB, False)


def test_the_gzip_member_is_what_gzip_reads() -> None:
    assert gzip.decompress(compress(Codec.GZIP, text(5000))) == text(5000)
    assert decompress(Codec.GZIP, gzip.compress(text(5000)), 5000) == text(5000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_arrow_opens_ours_and_we_open_arrows(codec: Codec, size: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    for shape in SHAPES.values():
        data = shape(size)
        theirs = arrow.Codec(codec.value)
        for level in (None, LEVELS[codec].max // 2):
            assert theirs.decompress(compress(codec, data, level), size).to_pybytes() == data
        assert decompress(codec, theirs.compress(data), LIMIT) == data


@pytest.mark.parametrize("size", SIZES)
def test_arrow_opens_our_snappy_chunks_and_we_open_its_raw_snappy(size: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    theirs = arrow.Codec("snappy")
    data = text(size)
    assert decompress(Codec.SNAPPY, theirs.compress(data), LIMIT) == data
    ours = compress(Codec.SNAPPY, data)
    at = 16
    opened = b""
    while at < len(ours):
        end = at + 4 + int.from_bytes(ours[at : at + 4], "big")
        opened += theirs.decompress(ours[at + 4 : end], min(32768, size - len(opened))).to_pybytes()
        at = end
    assert opened == data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("has_size", [False, True])
@pytest.mark.parametrize("block_code", [4, 5, 6, 7])
def test_lz4_frames_of_every_kind_are_opened(
    size: int, is_linked: bool, has_checksums: bool, has_size: bool, block_code: int
) -> None:
    frame = pytest.importorskip("lz4.frame")
    for shape in SHAPES.values():
        data = shape(size)
        compressed = frame.compress(
            data,
            block_size=block_code,
            block_linked=is_linked,
            content_checksum=has_checksums,
            block_checksum=has_checksums,
            store_size=has_size,
        )
        assert decompress(Codec.LZ4, compressed, size) == data
        assert decompress(Codec.LZ4, compressed * 2, LIMIT * 2) == data * 2
        assert data.startswith(decompress_start(Codec.LZ4, compressed, 200, LIMIT))
        assert frame.decompress(compress(Codec.LZ4, data)) == data


@pytest.mark.parametrize("size", SIZES)
def test_lz4_frames_with_linked_blocks_and_checksums_are_opened(size: int) -> None:
    data = text(size)
    compressed = bytes(cramjam.lz4.compress(data))
    assert decompress(Codec.LZ4, compressed, size) == data
    assert decompress(Codec.LZ4, compress(Codec.LZ4, bytes(100_000)) + compressed, LIMIT) == bytes(100_000) + data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_size", [False, True])
@pytest.mark.parametrize("level", [-5, 3])
def test_zstd_frames_of_every_kind_are_opened(size: int, has_size: bool, level: int) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = text(size)
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=has_size)
    compressed = compressor.compress(data)
    assert decompress(Codec.ZSTD, compressed * 2, 2 * LIMIT) == data * 2
    assert decompress(Codec.ZSTD, compressed, size) == data
    assert zstandard.ZstdDecompressor().decompress(compress(Codec.ZSTD, data, level), max_output_size=1) == data


@pytest.mark.parametrize("size", [1, 32768, 65536, MB])
def test_zstd_streams_whose_window_is_wider_than_the_limit_are_opened(size: int) -> None:
    data = text(size)
    stream = cramjam.zstd.Compressor(level=19)
    stream.compress(data)
    compressed = bytes(stream.finish())
    header = zstd._header(memoryview(compressed), 0)
    assert header.content_size is None
    assert header.window_bytes == 8 * MB
    assert decompress(Codec.ZSTD, compressed, size) == data
    assert decompress(Codec.ZSTD, compressed * 2, LIMIT * 2) == data * 2


def first_block_end(codec: Codec, compressed: bytes) -> int:
    match codec:
        case Codec.LZ4:
            return 7 + 4 + int.from_bytes(compressed[7:11], "little")
        case Codec.SNAPPY:
            return 16 + 4 + int.from_bytes(compressed[16:20], "big")
        case Codec.ZSTD:
            return zstd._block(memoryview(compressed), zstd._header(memoryview(compressed), 0).blocks_at).end
        case _:
            return 16384


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_start_needs_no_more_than_the_first_block(codec: Codec, shape: str) -> None:
    data = SHAPES[shape](600_000)
    compressed = compress(codec, data, None if codec is Codec.SNAPPY else LEVELS[codec].max)
    end = first_block_end(codec, compressed)
    for broken in (compressed[:end], compressed[:end] + b"\xa5" * (len(compressed) - end)):
        for wanted in (1, 160, 5000):
            start = decompress_start(codec, broken, wanted, LIMIT)
            assert len(start) >= wanted
            assert data.startswith(start)


@pytest.mark.parametrize("codec", Codec)
@given(data=payloads(), wanted=st.integers(0, 4000))
def test_the_start_is_a_true_prefix_as_long_as_wanted(codec: Codec, data: bytes, wanted: int) -> None:
    start = decompress_start(codec, compress(codec, data), wanted, LIMIT)
    assert data.startswith(start)
    assert len(start) >= min(wanted, len(data))


@pytest.mark.parametrize(("codec", "block_bytes"), [(Codec.LZ4, 65536), (Codec.SNAPPY, 32768), (Codec.ZSTD, 131072)])
def test_the_start_ends_with_the_first_block(codec: Codec, block_bytes: int) -> None:
    data = text(300_000)
    start = decompress_start(codec, compress(codec, data, None if codec is Codec.SNAPPY else 3), 250_000, LIMIT)
    assert start == data[:block_bytes]


@settings(max_examples=30)
@given(data=payloads(), wanted=st.integers(0, 4000))
def test_the_start_of_raw_snappy_is_read_too(data: bytes, wanted: int) -> None:
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress_start(Codec.SNAPPY, raw, wanted, LIMIT) == data[:wanted]


def test_the_start_of_long_snappy_literals_and_far_matches_is_read() -> None:
    noise = random.Random(9).randbytes(20_000)
    for data in (noise[:300] + text(300), noise + noise[:100] + text(100)):
        raw = bytes(cramjam.snappy.compress_raw(data))
        assert decompress_start(Codec.SNAPPY, raw, len(data), LIMIT) == data
    far_match = bytes.fromhex("0c 08 616263 23 03000000")
    assert decompress(Codec.SNAPPY, far_match, LIMIT) == b"abc" * 4
    assert decompress_start(Codec.SNAPPY, far_match, 12, LIMIT) == b"abc" * 4


@pytest.mark.parametrize("codec", Codec)
def test_the_start_keeps_to_the_limit(codec: Codec) -> None:
    data = bytes(100)
    assert decompress_start(codec, compress(codec, data), 1000, 100) == data
    if codec is not Codec.ZSTD:
        assert decompress_start(codec, compress(codec, data), 1000, 50) == data[:50]


def test_the_start_of_a_gzip_member_may_need_many_pieces() -> None:
    many_empty_blocks = zlib.compressobj(6, zlib.DEFLATED, 31)
    compressed = b"".join(many_empty_blocks.flush(zlib.Z_FULL_FLUSH) for _ in range(1000))
    padding = compressed[:10] + b"\x00\x00\x00\xff\xff" * 1000
    inner = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = inner.compress(b"late") + inner.flush()
    assert decompress_start(Codec.GZIP, padding + body, 4, LIMIT) == b"late"


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY, Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("wanted", [4096, 4097, 30_000, 200_000])
def test_a_long_start_is_a_prefix_too(codec: Codec, wanted: int) -> None:
    data = b"".join(b"line %d of a text that repeats itself\n" % (number % 1000) for number in range(20_000))
    start = decompress_start(codec, compress(codec, data), wanted, 1 << 20)
    assert len(start) >= min(wanted, 32_768)
    assert data.startswith(start)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY])
def test_a_long_start_of_damaged_blocks_is_an_error(codec: Codec) -> None:
    data = compress(codec, bytes(range(256)) * 400)
    for at in range(30, len(data), 97):
        damaged = data[:at] + b"\xff\xff\xff" + data[at + 3 :]
        with contextlib.suppress(DecodeError):
            assert len(decompress_start(codec, damaged, 100_000, 1 << 20)) <= 102_400
