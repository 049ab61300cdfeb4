"""Loopback ports that are free to listen on.

They lie below the kernel's range for outgoing connections: a port inside it can be taken by any client while its
broker is killed, and a client that keeps dialling it can even end up connected to itself.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from brokers.errors import BrokerError

LOOPBACK = "127.0.0.1"
PORT_MIN = 15000
OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
OUTGOING_MIN_DEFAULT = 32768


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago; the caller must be ready to lose one to somebody quicker."""
    below = int(OUTGOING_RANGE.read_text().split()[0]) if OUTGOING_RANGE.exists() else OUTGOING_MIN_DEFAULT
    candidates = range(PORT_MIN, below) if below - PORT_MIN > 1000 else range(PORT_MIN, OUTGOING_MIN_DEFAULT)
    chosen: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise BrokerError(f"no {count} free ports on {LOOPBACK}; stop some of the servers on this machine")


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
