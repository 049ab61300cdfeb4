"""Asks a Kafka node which nodes it sees: one Metadata request on a socket of its own, without a client.

A KRaft broker lists only nodes that the active controller has registered and unfenced, and serves its port only once
it is unfenced itself. So when every node lists every node, there is a controller and all of them work.

    request   length i32 | api key i16 = 3 | version i16 = 4 | correlation i32 | client id string
              | topics i32 = 0 | create them bool = 0
    response  length i32 | correlation i32 | throttle i32 | count i32
              | count * (id i32, host string, port i32, rack string) | more that is not read

A string is its length as i16, -1 for none, and its bytes.
"""

from __future__ import annotations

import socket
import struct

from brokers.ports import LOOPBACK

METADATA, VERSION = 3, 4
CORRELATION = 7
CLIENT = b"penstock-probe"
RESPONSE_BYTES_MAX = 1 << 20


def nodes_seen(port: int, timeout_s: float = 2.0) -> set[int]:
    """The ids of the nodes that the node on this port lists; empty when it does not answer yet."""
    request = struct.pack(">hhih", METADATA, VERSION, CORRELATION, len(CLIENT)) + CLIENT + struct.pack(">i?", 0, False)
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", _receive(connection, 4))
            if not 12 <= length <= RESPONSE_BYTES_MAX:
                return set()
            return _node_ids(_receive(connection, length))
    except (OSError, struct.error):
        return set()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _node_ids(response: bytes) -> set[int]:
    correlation, _throttle, count = struct.unpack_from(">iii", response)
    if correlation != CORRELATION:
        return set()
    position, found = 12, set()
    for _ in range(count):
        (node,) = struct.unpack_from(">i", response, position)
        found.add(node)
        position = _skip_string(response, position + 4) + 4
        position = _skip_string(response, position)
    return found


def _skip_string(data: bytes, position: int) -> int:
    length: int = struct.unpack_from(">h", data, position)[0]
    return position + 2 + max(length, 0)
