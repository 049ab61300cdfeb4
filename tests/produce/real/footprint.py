"""What this process holds at a moment: memory, threads, descriptors."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Numbers that must not grow."""

    rss_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Footprint:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(resident * PAGE_BYTES, threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))
