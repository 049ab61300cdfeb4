from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.net.fork import Birth
from penstock.net.poller import Poller, ReadyIo, _SocketBell

PATIENCE = 20.0


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_what_is_ready_is_told_by_its_key(poller: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    poller.watch("near", near.fileno(), read=True, write=False)
    assert poller.poll(0) == []
    far.send(b"x")
    assert poller.poll(PATIENCE) == [ReadyIo("near", readable=True, writable=False)]
    poller.watch("near", near.fileno(), read=True, write=True)
    assert poller.poll(PATIENCE) == [ReadyIo("near", readable=True, writable=True)]
    poller.watch("near", near.fileno(), read=False, write=True)
    assert poller.poll(PATIENCE) == [ReadyIo("near", readable=False, writable=True)]
    poller.watch("near", near.fileno(), read=False, write=False)
    assert poller.poll(0) == []
    poller.unwatch("near")


def test_a_key_can_move_to_another_descriptor(poller: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    poller.watch("key", near.fileno(), read=False, write=True)
    poller.watch("key", far.fileno(), read=True, write=False)
    assert poller.poll(0) == []
    near.send(b"x")
    assert poller.poll(PATIENCE) == [ReadyIo("key", readable=True, writable=False)]
    poller.watch("key", -1, read=True, write=True)
    assert poller.poll(0) == []


def test_a_descriptor_number_that_was_closed_serves_its_next_owner(poller: Poller) -> None:
    first, far = socket.socketpair()
    number = first.fileno()
    poller.watch("first", number, read=False, write=True)
    first.close()
    second = socket.socket(fileno=os.dup2(far.fileno(), number))
    poller.watch("second", number, read=False, write=True)
    poller.unwatch("first")
    assert {ready.key for ready in poller.poll(PATIENCE)} <= {"second"}
    poller.unwatch("second")
    second.close()
    far.close()


def test_closing_before_unwatching_does_no_harm(poller: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    poller.watch("near", near.fileno(), read=False, write=True)
    near.close()
    poller.unwatch("near")
    poller.unwatch("near")
    assert poller.poll(0) == []


def test_a_sleeping_poller_is_woken_from_another_thread(poller: Poller) -> None:
    start = time.monotonic()
    thread = threading.Thread(target=poller.wake)
    thread.start()
    assert poller.poll(PATIENCE) == []
    thread.join()
    assert time.monotonic() - start < PATIENCE
    assert poller.poll(0) == []


def test_a_wake_up_before_sleeping_is_not_lost(poller: Poller) -> None:
    poller.wake()
    start = time.monotonic()
    assert poller.poll(PATIENCE) == []
    assert time.monotonic() - start < PATIENCE / 2


def test_waking_somebody_who_is_awake_does_not_ring(poller: Poller, monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[int] = []
    monkeypatch.setattr(poller._bell, "ring", lambda: rings.append(1))
    for _ in range(1000):
        poller.wake()
    assert rings == []
    poller.poll(PATIENCE)
    poller._asleep = True
    poller.wake()
    poller.wake()
    assert rings == [1]


def test_no_work_is_missed_by_a_loop_that_is_woken_by_many_threads(poller: Poller) -> None:
    work: list[int] = []
    each, threads = 2000, 4

    def give() -> None:
        for number in range(each):
            work.append(number)
            poller.wake()

    givers = [threading.Thread(target=give) for _ in range(threads)]
    for giver in givers:
        giver.start()
    taken, over = 0, time.monotonic() + PATIENCE
    while taken < each * threads:
        assert time.monotonic() < over, f"asleep with {len(work)} to do"
        poller.poll(PATIENCE)
        while work:
            work.pop()
            taken += 1
    for giver in givers:
        giver.join()


def test_a_negative_timeout_does_not_wait(poller: Poller) -> None:
    assert poller.poll(-float("inf")) == []


def test_a_pair_of_sockets_wakes_where_there_is_no_eventfd() -> None:
    bell = _SocketBell()
    selector = selectors.DefaultSelector()
    selector.register(bell.descriptor, selectors.EVENT_READ)
    for _ in range(100_000):
        bell.ring()
    assert selector.select(0)
    while selector.select(0):
        bell.quiet()
    bell.ring()
    assert selector.select(PATIENCE)
    selector.close()
    bell.close()


def test_a_closed_poller_can_be_woken_and_closed_again() -> None:
    poller = Poller()
    poller._asleep = True
    poller.close()
    poller.wake()
    poller.close()
    poller.unwatch("never watched")
    assert repr(poller) == "<Poller of 0 descriptors, closed>"


def test_it_tells_its_state(poller: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    poller.watch("near", pair[0].fileno(), read=True, write=False)
    assert repr(poller) == "<Poller of 1 descriptors, awake>"


def in_child(check: Callable[[], object]) -> str:
    """What this says in a child of `fork()`, which must end soon."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = str(check())
        except (Exception, SystemExit) as error:  # noqa: BLE001
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode()[:4000])
        os._exit(0)
    os.close(write)
    heard = b""
    while part := os.read(read, 4096):
        heard += part
    os.close(read)
    os.waitpid(child, 0)
    return heard.decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_is_told_and_never_hangs(poller: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    poller.watch("near", near.fileno(), read=True, write=False)
    poller._lock.acquire()  # as by a thread that stays in the parent
    for use in (
        lambda: poller.poll(None),
        poller.wake,
        lambda: poller.watch("far", far.fileno(), read=True, write=True),
    ):
        told = in_child(use)
        assert told.startswith(f"PenstockError: this poller belongs to process {os.getpid()} and came to process ")
        assert told.endswith("connect anew here")
    assert in_child(lambda: poller.unwatch("near")) == "None"
    assert in_child(poller.close) == "None"
    poller._lock.release()
    far.send(b"x")
    assert poller.poll(PATIENCE) == [ReadyIo("near", readable=True, writable=False)], "the child disturbed its parent"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_can_start_afresh() -> None:
    def fresh() -> str:
        poller = Poller()
        poller.wake()
        return f"{poller.poll(PATIENCE)}"

    assert in_child(fresh) == "[]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_birth_knows_where_it_was() -> None:
    birth = Birth()
    birth.check("this")
    assert birth.is_here()
    assert repr(birth) == f"<Birth in process {os.getpid()}>"
    assert in_child(lambda: (birth.is_here(), "inherited" in repr(birth))) == "(False, True)"
