"""One Fetch request on a socket of its own: the batches of a partition as the broker stores them, byte for byte.

    request   length i32 | api key i16 = 1 | version i16 = 4 | correlation i32 | client id string
              | replica i32 = -1 | wait ms i32 | bytes min i32 | bytes max i32 | isolation i8
              | topics i32 = 1, name string | partitions i32 = 1, index i32 | offset i64 | bytes max i32
    response  length i32 | correlation i32 | throttle ms i32 | topics i32 = 1, name string
              | partitions i32 = 1, index i32 | error i16 | high watermark i64 | last stable offset i64
              | aborted i32 * (producer i64, offset i64), -1 for none | records bytes

A string is its length as i16, -1 for none, and its bytes; bytes have an i32 for it.
"""

from __future__ import annotations

import socket
import struct

from penstock.wire.kafka.header import split
from tests.kafka_raw import LIMIT_S, _receive

FETCH, VERSION = 1, 4
CORRELATION = 12
BYTES_MAX = 64 << 20


def stored_batches(address: tuple[str, int], topic: str, partition: int = 0) -> list[bytes]:
    """All batches of a partition, from offset 0."""
    with socket.create_connection(address, LIMIT_S) as connection:
        connection.sendall(_request(topic, partition))
        (length,) = struct.unpack(">i", _receive(connection, 4))
        return [bytes(batch) for batch in split(_records(_receive(connection, length)))]


def _request(topic: str, partition: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhih", FETCH, VERSION, CORRELATION, -1)
    body += struct.pack(">iiiib", -1, 500, 1, BYTES_MAX, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, 0, BYTES_MAX)
    return struct.pack(">i", len(body)) + body


def _records(response: bytes) -> bytes:
    correlation, _, topics, size = struct.unpack_from(">iiih", response)
    assert (correlation, topics) == (CORRELATION, 1)
    at = 14 + size
    partitions, _, error, _, _, aborted = struct.unpack_from(">iihqqi", response, at)
    assert (partitions, error) == (1, 0)
    at += 30 + 16 * max(aborted, 0)
    (length,) = struct.unpack_from(">i", response, at)
    return response[at + 4 : at + 4 + max(length, 0)]
