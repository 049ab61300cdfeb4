from __future__ import annotations

import socket
import threading

import pytest

from penstock.net import resolver as module
from penstock.net.resolver import ADDRESSES_MAX, Address, Resolver, system_addresses
from penstock.wire.protocol import Endpoint

PATIENCE = 20.0
ANSWER = [Address(socket.AF_INET, ("127.0.0.1", 1))]


class SlowSystem:
    """A resolver that answers names when it is let, and knows no numeric host."""

    def __init__(self) -> None:
        self.asked: list[Endpoint] = []
        self.may_answer = threading.Event()
        self.woken = threading.Semaphore(0)

    def look_up(self, endpoint: Endpoint, flags: int) -> list[Address]:
        if flags:
            raise socket.gaierror("not numeric")
        self.asked.append(endpoint)
        assert self.may_answer.wait(PATIENCE)
        if endpoint.host == "bad":
            raise UnicodeError("no name")
        return ANSWER

    def wake(self) -> None:
        self.woken.release()


def test_numeric_addresses_need_no_thread() -> None:
    system = SlowSystem()
    for host, where in [("127.0.0.1", ("127.0.0.1", 5)), ("::1", ("::1", 5, 0, 0))]:
        resolution = Resolver(system.wake).resolve(Endpoint(host, 5))
        assert isinstance(resolution.answer, list)
        assert resolution.answer[0].where == where
    assert not system.woken.acquire(blocking=False)


def test_a_name_is_asked_for_once_however_often_and_wakes_the_loop() -> None:
    system = SlowSystem()
    resolver = Resolver(system.wake, system.look_up)
    first, again = resolver.resolve(Endpoint("a", 1)), resolver.resolve(Endpoint("a", 1))
    assert first is again
    assert first.answer is None
    assert repr(resolver) == "<Resolver, 1 pending>"
    system.may_answer.set()
    assert system.woken.acquire(timeout=PATIENCE)
    assert first.answer == ANSWER
    assert system.asked == [Endpoint("a", 1)]
    later = resolver.resolve(Endpoint("a", 1))
    assert later is not first
    assert system.woken.acquire(timeout=PATIENCE)


def test_a_name_that_is_none_is_an_answer_too() -> None:
    system = SlowSystem()
    system.may_answer.set()
    resolution = Resolver(system.wake, system.look_up).resolve(Endpoint("bad", 1))
    assert system.woken.acquire(timeout=PATIENCE)
    assert isinstance(resolution.answer, UnicodeError)


def test_the_number_of_threads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "THREADS_MAX", 2)
    system = SlowSystem()
    resolver = Resolver(system.wake, system.look_up)
    pending = [resolver.resolve(Endpoint(name, 1)) for name in "ab"]
    refused = resolver.resolve(Endpoint("c", 1))
    assert "2 host names are being resolved already" in str(refused.answer)
    system.may_answer.set()
    for _ in pending:
        assert system.woken.acquire(timeout=PATIENCE)
    later = resolver.resolve(Endpoint("c", 1))
    assert system.woken.acquire(timeout=PATIENCE)
    assert later.answer == ANSWER


def test_a_host_with_many_addresses_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", 1)) for number in range(50)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: many * 2)
    assert len(system_addresses(Endpoint("many", 1), 0)) == ADDRESSES_MAX


def test_an_address_tells_itself() -> None:
    assert str(Address(socket.AF_INET6, ("::1", 9092, 0, 0))) == "[::1]:9092"
