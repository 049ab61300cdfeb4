"""The bytes of a record batch of version 2, and the names for them.

Batch, all numbers big-endian:

    offset  size  field
         0     8  base offset
         8     4  batch length             bytes after this field
        12     4  partition leader epoch   set by the broker, outside the checksum
        16     1  magic                    2
        17     4  crc                      CRC-32C of everything after this field
        21     2  attributes               see below
        23     4  last offset delta
        27     8  base timestamp           ms; of the first record, or the delete horizon
        35     8  max timestamp            ms
        43     8  producer id              -1: none
        51     2  producer epoch
        53     4  base sequence
        57     4  records count
        61        records                  compressed together if the attributes say so

Attributes:

    bits  0x0007  codec                    none, gzip, snappy, lz4, zstd
          0x0008  log-append time
          0x0010  transactional
          0x0020  control
          0x0040  delete horizon
          0x4000  claim                    Penstock's: the first record's first header is a property claim (claim.py)

Record (varints are zigzag, at most 5 bytes for 32 and 10 for 64 bits):

    varint  length                         bytes after this field
    byte    attributes                     unused
    varlong timestamp delta
    varint  offset delta
    varint  key length                     -1: null
    bytes   key
    varint  value length                   -1: null
    bytes   value
    varint  header count
    for each header: varint name length, name (UTF-8), varint value length (-1: null), value
"""

from __future__ import annotations

import struct

from penstock.wire.compression import Codec

UNCHECKED_PART = struct.Struct(">qiibI")  # up to the crc
CHECKED_PART = struct.Struct(">hiqqqhii")  # what follows it
BATCH_HEADER = struct.Struct(UNCHECKED_PART.format + CHECKED_PART.format[1:])
BATCH_HEADER_BYTES = 61
LENGTH_END = 12
MAGIC_AT = 16
CRC_AT = 17
CHECKED_AT = 21
MAGIC = 2

CODEC_BITS = 0x0007
LOG_APPEND_TIME = 0x0008
TRANSACTIONAL = 0x0010
CONTROL = 0x0020
DELETE_HORIZON = 0x0040
CLAIM = 0x4000
KNOWN_BITS = CODEC_BITS | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON | CLAIM

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
CODEC_NUMBERS = {codec: number for number, codec in enumerate(CODECS)}

RECORD_BYTES_MIN = 7
HEADER_BYTES_MIN = 2
# No record, and no batch, may pass what a 32-bit length can say; half of it leaves room for framing.
RECORD_BYTES_MAX = 1 << 30
