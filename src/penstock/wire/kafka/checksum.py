"""CRC-32C of a batch, made anew for a changed header without reading the payload again.

A CRC is linear: when two byte strings of equal length differ only in their first bytes, their checksums differ by the
checksum of that difference, carried over the zero bytes that follow. Carrying over n zero bytes is a multiplication in
GF(2)[x] modulo the polynomial; with a table for each power of two it takes a few look-ups for each set bit of n. Two
things follow. A header is rewritten at a cost that hardly depends on the size of the batch. And a payload that was
damaged before stays detectably damaged: the new checksum is as wrong as the old one was, where a fresh one would bless
the damage.
"""

from __future__ import annotations

from functools import cache

from crc32c import crc32c

from penstock.wire.entry import Buffer

POLYNOMIAL = 0x82F63B78  # reflected
SMALL_BYTES = 65_536  # up to here, reading a payload twice costs less than the look-ups

Table = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def batch_checksum(head: Buffer, payload: Buffer | None = None) -> int:
    """The checksum over the checked part of a header and the payload after it; None: they are one buffer."""
    return crc32c(head) if payload is None else crc32c(payload, crc32c(head))


def patched_checksum(crc: int, old_head: Buffer, new_head: Buffer, payload: Buffer) -> int:
    """The checksum after `old_head` became `new_head`, both followed by the same payload."""
    if len(payload) <= SMALL_BYTES:
        return crc ^ batch_checksum(old_head, payload) ^ batch_checksum(new_head, payload)
    return crc ^ carried(crc32c(old_head) ^ crc32c(new_head), len(payload))


def carried(difference: int, following: int) -> int:
    """The difference of two checksums, carried over as many bytes that are the same in both."""
    bit = 0
    while following and difference:
        if following & 1:
            difference = _carry(_zero_bytes(bit), difference)
        following >>= 1
        bit += 1
    return difference


@cache
def _zero_bytes(bit: int) -> Table:
    """Look-up tables that carry a checksum over 2**bit zero bytes."""
    if bit == 0:
        columns = [_over_zero_byte(1 << i) for i in range(32)]
    else:
        half = _zero_bytes(bit - 1)
        columns = [_carry(half, _carry(half, 1 << i)) for i in range(32)]
    first, second, third, fourth = (tuple(_sums(columns[i : i + 8])) for i in (0, 8, 16, 24))
    return first, second, third, fourth


def _carry(table: Table, crc: int) -> int:
    return table[0][crc & 0xFF] ^ table[1][(crc >> 8) & 0xFF] ^ table[2][(crc >> 16) & 0xFF] ^ table[3][crc >> 24]


def _over_zero_byte(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


def _sums(columns: list[int]) -> list[int]:
    """For each byte value the exclusive or of the columns whose bits are set in it."""
    sums = [0]
    for column in columns:
        sums += [column ^ below for below in sums]
    return sums
