"""Which process this is. What a child inherits by `fork()` must fail clearly or start afresh, and never hang.

Threads do not survive a fork, and descriptors are shared with the parent: a child that polled its parent's epoll would
take the parent's events, and one that waited for its parent's I/O thread would wait for ever. Comparing two integers
is cheaper than asking the kernel for the process id each time.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.errors import PenstockError

_forks: Final[list[int]] = [0]


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Birth:
    """The process in which something was made. Runs on: any thread."""

    __slots__ = ("_forks", "_pid")

    def __init__(self) -> None:
        self._forks = _forks[0]
        self._pid = os.getpid()

    def is_here(self) -> bool:
        """Whether this still is that process."""
        return self._forks == _forks[0]

    def check(self, what: str) -> None:
        """Raise when this is a child of that process."""
        if self._forks != _forks[0]:
            raise PenstockError(
                f"{what} belongs to process {self._pid} and came to process {os.getpid()} by fork(): connect anew here"
            )

    def __repr__(self) -> str:
        return f"<Birth in process {self._pid}{'' if self.is_here() else ', inherited by fork()'}>"
