"""Compression of batches, for every protocol alike: five codecs, three verbs.

`compress` makes what brokers and other clients read, `decompress` opens what they wrote, and `decompress_start` reads
the first record of a batch without opening the rest. One file per codec holds its byte format.

Compressed bytes come from strangers. Whatever they are, the decoders either return bytes or raise `DecodeError`; they
never allocate more than `bytes_max` plus one block (zstd's library up to `bytes_max` again, for its window), and sizes
that a header announces are checked before anything is allocated for them. Only gzip always carries a checksum: with the
other codecs a flipped bit may go unseen here, so the batch around them must have one of its own.

Each codec does its work in one library call per batch with the interpreter lock released (per block where the format
has blocks and the library no call for all of them). There is no I/O, clock or thread here, and no state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.wire.compression import gzip, lz4, snappy, zstd
from penstock.wire.compression.bounds import check_limit

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["LEVELS", "Codec", "Levels", "check_level", "compress", "decompress", "decompress_start"]


class Codec(enum.Enum):
    """A way to compress; the value is the name that users write."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @classmethod
    def parse(cls, name: str) -> Codec:
        """Return the codec that a user named."""
        for codec in cls:
            if codec.value == name:
                return codec
        allowed = ", ".join(codec.value for codec in cls)
        raise ConfigError(f"compression: expected one of {allowed}, found {name!r}")


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels a codec takes, from the fastest to the one that compresses hardest."""

    min: int
    max: int
    default: int


# Codecs that are not listed have no levels. For zstd, 0 is another word for its default and negative levels are faster
# still; it would take them down to -131072, but from -7 on they hardly compress.
LEVELS = {
    Codec.GZIP: Levels(min=1, max=9, default=gzip.LEVEL_DEFAULT),
    Codec.LZ4: Levels(min=1, max=12, default=lz4.LEVEL_DEFAULT),
    Codec.ZSTD: Levels(min=-7, max=22, default=zstd.LEVEL_DEFAULT),
}


def check_level(codec: Codec, level: int | None) -> None:
    """Raise `ConfigError` unless `codec` takes `level`; None, for the default, is always right."""
    if level is None:
        return
    levels = LEVELS.get(codec)
    if levels is None:
        raise ConfigError(f"compression_level: {codec.value} has no levels, found {level}")
    if not levels.min <= level <= levels.max:
        raise ConfigError(
            f"compression_level: expected {levels.min} to {levels.max} for {codec.value}, found {level}",
        )


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`; `level` has passed `check_level`."""
    view = memoryview(data).cast("B")
    match codec:
        case Codec.NONE:
            return bytes(view)
        case Codec.GZIP:
            return gzip.compress(view, level)
        case Codec.SNAPPY:
            return snappy.compress(view)
        case Codec.LZ4:
            return lz4.compress(view, level)
        case Codec.ZSTD:
            return zstd.compress(view, level)


def decompress(codec: Codec, data: Buffer, bytes_max: int) -> memoryview:
    """Decompress all of `data`, at most `bytes_max` bytes, into a read-only view (of `data` itself if uncompressed).

    Raises `LimitError` for more than `bytes_max` bytes, and `DecodeError` for bytes that are not of this codec.
    """
    view = memoryview(data).cast("B")
    match codec:
        case Codec.NONE:
            check_limit(len(view), bytes_max, 0, "uncompressed data")
            return view.toreadonly()
        case Codec.GZIP:
            return memoryview(gzip.decompress(view, bytes_max))
        case Codec.SNAPPY:
            return memoryview(snappy.decompress(view, bytes_max)).toreadonly()
        case Codec.LZ4:
            return memoryview(lz4.decompress(view, bytes_max)).toreadonly()
        case Codec.ZSTD:
            return memoryview(zstd.decompress(view, bytes_max)).toreadonly()


def decompress_start(codec: Codec, data: Buffer, wanted: int, bytes_max: int) -> bytes:
    """Decompress the first `wanted` bytes of `data`, or fewer if its first block has no more.

    What comes after the first block is not looked at, let alone checked. A few KB of lz4 and snappy are walked in
    Python, for more the first block is opened. Zstd cannot be opened in part, so all of its first block is returned, up
    to 128 KB; if that is above `bytes_max`, it raises `LimitError`.
    """
    view = memoryview(data).cast("B")
    wanted = min(wanted, bytes_max)
    match codec:
        case Codec.NONE:
            return bytes(view[:wanted])
        case Codec.GZIP:
            return gzip.decompress_start(view, wanted)
        case Codec.SNAPPY:
            return snappy.decompress_start(view, wanted, bytes_max)
        case Codec.LZ4:
            return lz4.decompress_start(view, wanted)
        case Codec.ZSTD:
            return zstd.decompress_start(view, wanted, bytes_max)
