"""What is wrong with a batch that is sent, as far as its header and its checksum tell, in Kafka's words and order.

| records                                             | code                         |
|-----------------------------------------------------|------------------------------|
| none, too few to hold a batch, a batch that is cut  | INVALID_RECORD               |
| a length that no batch can have, magic above 2      | CORRUPT_MESSAGE              |
| magic 0 or 1                                        | INVALID_RECORD               |
| zstd before version 7                               | UNSUPPORTED_COMPRESSION_TYPE |
| more than one batch                                 | INVALID_RECORD               |
| base offset other than 0                            | INVALID_RECORD               |
| a codec that does not exist                         | UNKNOWN_SERVER_ERROR         |
| checksum                                            | CORRUPT_MESSAGE              |
| a producer id without a sequence                    | INVALID_RECORD               |

"""

from __future__ import annotations

import struct
from typing import Final

from penstock.broker.server.kafka.codes import NUMBERS
from penstock.wire.entry import EntryHeader
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CHECKED_AT, CODEC_BITS, LENGTH_END, MAGIC, MAGIC_AT
from penstock.wire.kafka.log_format import KafkaLogFormat

FORMAT: Final = KafkaLogFormat()
ZSTD_FROM: Final = 7
ZSTD: Final = 4
LEGACY_RECORD_BYTES_MIN: Final = 14
INVALID_RECORD: Final = NUMBERS["INVALID_RECORD"]
CORRUPT_MESSAGE: Final = NUMBERS["CORRUPT_MESSAGE"]
UNSUPPORTED_COMPRESSION: Final = NUMBERS["UNSUPPORTED_COMPRESSION_TYPE"]

INT32 = struct.Struct(">i")
FRONT = struct.Struct(">qi4xB")  # base offset, length and magic of a batch
ATTRIBUTES = struct.Struct(">h")


class BatchFaultError(Exception):
    """What is wrong with a batch, as Kafka tells it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def judge(records: memoryview | None, version: int) -> EntryHeader:
    """The header of the one batch that the records are; BatchFaultError or DecodeError otherwise."""
    size = 0 if records is None else len(records)
    if records is None or size < BATCH_HEADER_BYTES or FRONT.unpack_from(records) != (0, size - LENGTH_END, MAGIC):
        raise fault(records, version)
    if version < ZSTD_FROM and ATTRIBUTES.unpack_from(records, CHECKED_AT)[0] & CODEC_BITS == ZSTD:
        raise BatchFaultError(UNSUPPORTED_COMPRESSION, f"zstd can be sent from version {ZSTD_FROM} on")
    header = FORMAT.check(records)
    if header.producer is not None and header.sequence < 0:
        text = f"the sequence number {header.sequence} of a producer with an id is below 0"
        raise BatchFaultError(INVALID_RECORD, text)
    return header


def fault(records: memoryview | None, version: int) -> BatchFaultError:
    """What is wrong with records before their checksum is looked at, in the order in which Kafka looks."""
    size = 0 if records is None else len(records)
    if records is None or size < LENGTH_END:
        return BatchFaultError(INVALID_RECORD, "a partition's records must hold a batch")
    length: int = INT32.unpack_from(records, 8)[0]
    if length < LEGACY_RECORD_BYTES_MIN:
        return BatchFaultError(CORRUPT_MESSAGE, f"no batch is {length} bytes long")
    if size <= MAGIC_AT:
        return BatchFaultError(INVALID_RECORD, "a partition's records must hold a batch")
    magic = records[MAGIC_AT]
    if magic > MAGIC:
        return BatchFaultError(CORRUPT_MESSAGE, f"there is no batch of magic {magic}")
    if length + LENGTH_END > size:
        return BatchFaultError(INVALID_RECORD, f"the batch is {length + LENGTH_END} bytes long, and {size} are there")
    if magic != MAGIC:
        return BatchFaultError(INVALID_RECORD, f"batches must be of magic {MAGIC}, not {magic}")
    if length + LENGTH_END < BATCH_HEADER_BYTES:
        return BatchFaultError(CORRUPT_MESSAGE, f"no batch is {length + LENGTH_END} bytes long")
    if version < ZSTD_FROM and ATTRIBUTES.unpack_from(records, CHECKED_AT)[0] & CODEC_BITS == ZSTD:
        return BatchFaultError(UNSUPPORTED_COMPRESSION, f"zstd can be sent from version {ZSTD_FROM} on")
    if length + LENGTH_END < size:
        return BatchFaultError(INVALID_RECORD, "a partition's records must be exactly one batch")
    return BatchFaultError(INVALID_RECORD, "the base offset of a batch that is sent must be 0")
