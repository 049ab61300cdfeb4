"""Addresses of host names without blocking the loop.

The system's resolver can only be asked blockingly, so each look-up runs in a short-lived daemon thread of its own that
wakes the loop when it is done. At most one thread asks for one host at a time, however often it is asked for, and at
most `THREADS_MAX` ask at all. Numeric addresses need no thread.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.net.fork import Birth
from penstock.wire.protocol import Endpoint

ADDRESSES_MAX: Final = 8
THREADS_MAX: Final = 16


class Address(NamedTuple):
    """What a socket connects to."""

    family: int
    where: tuple[Any, ...]

    def __str__(self) -> str:
        return str(Endpoint(str(self.where[0]), int(self.where[1])))


LookUpAddresses: TypeAlias = Callable[[Endpoint, int], list[Address]]


def system_addresses(endpoint: Endpoint, flags: int) -> list[Address]:
    """The system's answer; blocks unless the flags say that the host is numeric. Raises OSError or ValueError."""
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(Address(family, where) for family, _, _, _, where in found))[:ADDRESSES_MAX]


class Resolution:
    """One question to the resolver: `answer` is None until it came.

    Runs on: written once, by the thread that asks; read on the I/O thread.
    """

    __slots__ = ("answer", "endpoint")

    def __init__(self, endpoint: Endpoint, answer: list[Address] | Exception | None = None) -> None:
        self.endpoint = endpoint
        self.answer: list[Address] | Exception | None = answer

    def __repr__(self) -> str:
        return f"<Resolution of {self.endpoint}: {'pending' if self.answer is None else self.answer}>"


class Resolver:
    """Asks the system for addresses. Runs on: the I/O thread, and a short-lived daemon thread per pending question."""

    def __init__(self, wake: Callable[[], None], look_up: LookUpAddresses = system_addresses) -> None:
        self._wake = wake
        self._look_up = look_up
        self._birth = Birth()
        self._pending: dict[Endpoint, Resolution] = {}

    def resolve(self, endpoint: Endpoint) -> Resolution:
        """Begin to ask, or join who asks already; the answer is in the resolution when the loop was woken."""
        try:
            return Resolution(endpoint, self._look_up(endpoint, socket.AI_NUMERICHOST))
        except (OSError, ValueError):
            pass  # a name, or nonsense, about which the thread will hear the same
        if not self._birth.is_here():
            self._birth = Birth()
            self._pending.clear()  # their threads stayed in the parent
        self._pending = {asked: question for asked, question in self._pending.items() if question.answer is None}
        pending = self._pending.get(endpoint)
        if pending is not None:
            return pending
        if len(self._pending) >= THREADS_MAX:
            return Resolution(endpoint, OSError(f"{THREADS_MAX} host names are being resolved already"))
        question = self._pending[endpoint] = Resolution(endpoint)
        threading.Thread(target=self._ask, args=(question,), name=f"penstock-resolve-{endpoint}", daemon=True).start()
        return question

    def _ask(self, question: Resolution) -> None:
        try:
            question.answer = self._look_up(question.endpoint, 0)
        except (OSError, ValueError) as error:
            question.answer = error
        self._wake()

    def __repr__(self) -> str:
        return f"<Resolver, {sum(question.answer is None for question in self._pending.values())} pending>"
