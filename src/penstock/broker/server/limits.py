"""What a server allows its clients: the one table of its limits."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may take; whoever passes a limit harms only itself."""

    connections_max: int = 10_000
    """Connections at a time, of all doors; one more is closed at once."""
    frame_bytes_max: int = 100 * MIB
    """The largest request that carries entries."""
    control_bytes_max: int = 4 * MIB
    """The largest of all other requests."""
    request_memory_max: int = 256 * MIB
    """All requests together that have arrived in part; whoever stands still longest makes room."""
    in_flight_max: int = 256
    """Requests of one connection that are not answered yet; no more are read until some are."""
    out_bytes_max: int = 8 * MIB
    """Answers of one connection that are not sent yet; no more requests are read until some are."""
    requests_per_turn: int = 64
    """Requests of one connection that are handled before others have their turn."""
    receive_bytes: int = 64 * KIB
    """Bytes received from one connection before others have their turn."""
    send_bytes: int = 4 * MIB
    """Bytes sent to one connection before others have their turn."""
    idle_s: float = 600.0
    """A connection on which nothing moved for so long, and that waits for no answer, is closed."""
    backlog: int = 1024
    """Connections that may wait to be accepted."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if self.request_memory_max < self.frame_bytes_max:
            raise ConfigError(f"request_memory_max {self.request_memory_max} is below frame_bytes_max")
