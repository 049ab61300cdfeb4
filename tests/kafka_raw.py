"""One Produce request on a socket of its own, so that a test decides about every byte of a batch.

    request   length i32 | api key i16 = 0 | version i16 = 8 | correlation i32 | client id string
              | transactional id string | acks i16 | timeout ms i32 | topics i32 = 1, name string
              | partitions i32 = 1, index i32 | records bytes
    response  length i32 | correlation i32 | topics i32 = 1, name string | partitions i32 = 1, index i32
              | error i16 | base offset i64 | log-append time i64 | log start offset i64
              | record errors i32 * (batch index i32, message string) | error message string | more that is not read

A string is its length as i16, -1 for none, and its bytes; bytes have an i32 for it.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple

PRODUCE, VERSION = 0, 8
CORRELATION = 11
ACKS_ALL = -1
LIMIT_S = 30.0
POLL_S = 0.02
# A new topic's leader is known to the controller before it is to the broker: nothing was stored, try again.
NOT_YET = (3, 6)


class Produced(NamedTuple):
    """What the broker answered; error 0 is none."""

    error: int
    base_offset: int
    log_append_time_ms: int
    message: str


def produce(address: tuple[str, int], topic: str, batch: bytes, partition: int = 0) -> Produced:
    """Have one batch stored, by a broker that leads the partition or is about to."""
    deadline = time.monotonic() + LIMIT_S
    with socket.create_connection(address, LIMIT_S) as connection:
        while True:
            connection.sendall(_request(topic, batch, partition))
            (length,) = struct.unpack(">i", _receive(connection, 4))
            produced = _produced(_receive(connection, length))
            if produced.error not in NOT_YET or time.monotonic() > deadline:
                return produced
            time.sleep(POLL_S)


def _request(topic: str, batch: bytes, partition: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhihhhi", PRODUCE, VERSION, CORRELATION, -1, -1, ACKS_ALL, int(LIMIT_S * 1000))
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        data += part
    return data


def _produced(response: bytes) -> Produced:
    correlation, topics, size = struct.unpack_from(">iih", response)
    assert (correlation, topics) == (CORRELATION, 1)
    at = 10 + size
    partitions, _, error, base_offset, log_append_time_ms, _, record_errors = struct.unpack_from(
        ">iihqqqi", response, at
    )
    assert partitions == 1
    at += 38
    messages = []
    for _ in range(record_errors):
        message, at = _string(response, at + 4)
        messages.append(message)
    message, _ = _string(response, at)
    return Produced(error, base_offset, log_append_time_ms, "; ".join(filter(None, [message, *messages])))


def _string(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    end = at + 2 + max(size, 0)
    return data[at + 2 : end].decode(), end
