"""Types of the compiled seam."""

from typing import Any

from penstock.message import Properties

class MessageBuffer: ...

def append_bytes(
    buffer: MessageBuffer | Any, value: bytes | None, key: bytes | None, properties: Properties | None, time_ms: int
) -> int: ...
