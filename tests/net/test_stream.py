from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.errors import ConnectionLostError, TimedOutError
from penstock.net.poller import Poller
from penstock.net.resolver import Address, Resolution
from penstock.net.stream import IOV_MAX, SocketStream, SocketStreams
from penstock.wire.protocol import Endpoint

from ..brokers.sockets import listening as listening_addresses
from .loopback import PATIENCE, connect, free_port, listener, poll_until


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


def open_to(poller: Poller, host: str, port: int, timeout_ms: float = PATIENCE * 1000) -> SocketStream:
    return SocketStreams(timeout_ms, poller.wake).open(Endpoint(host, port), time.monotonic())


def try_addresses(*addresses: tuple[str, int], timeout: float = PATIENCE) -> SocketStream:
    """A stream to a name that has these addresses."""
    answer = [Address(socket.AF_INET, address) for address in addresses]
    return SocketStream(Resolution(Endpoint("broker", 9092), answer), timeout, time.monotonic())


def test_bytes_go_to_and_fro(poller: Poller) -> None:
    with listener() as server:
        stream = open_to(poller, "127.0.0.1", server.getsockname()[1])
        connect(poller, stream)
        peer, _ = server.accept()
        with peer:
            assert stream.send([memoryview(b"ab"), memoryview(b"cd")]) == 4
            assert peer.recv(10) == b"abcd"
            room = memoryview(bytearray(3))
            assert stream.receive_into(room) is None
            peer.sendall(b"xyz!")
            poller.watch(stream, stream.fileno(), read=True, write=False)
            poll_until(poller, lambda: poller.poll(0.5))
            assert (stream.receive_into(room), bytes(room)) == (3, b"xyz")
        assert stream.receive_into(room) == 1
        poll_until(poller, lambda: stream.receive_into(room) == 0)
        poller.unwatch(stream)
        stream.close()
        stream.close()


def test_small_frames_leave_at_once(poller: Poller) -> None:
    with listener() as server:
        stream = open_to(poller, "127.0.0.1", server.getsockname()[1])
        connect(poller, stream)
        assert stream._socket is not None
        assert stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not stream._socket.getblocking()
        poller.unwatch(stream)
        stream.close()


def test_a_full_transport_takes_what_it_can_and_the_rest_later(poller: Poller) -> None:
    with listener() as server:
        stream = open_to(poller, "127.0.0.1", server.getsockname()[1])
        connect(poller, stream)
        peer, _ = server.accept()
        with peer:
            data = os.urandom(1 << 20) * 16
            view, sent = memoryview(data), 0
            while taken := stream.send([view[sent : sent + 1000], view[sent + 1000 :]]):
                sent += taken
            assert 0 < sent < len(data)
            received = bytearray()
            peer.settimeout(PATIENCE)
            poller.watch(stream, stream.fileno(), read=False, write=True)
            while len(received) < len(data):
                sent += stream.send([view[sent:]]) if sent < len(data) else 0
                received += peer.recv(1 << 20)
            assert received == data
        poller.unwatch(stream)
        stream.close()


def test_more_buffers_than_the_system_takes_in_one_call_are_cut(poller: Poller) -> None:
    with listener() as server:
        stream = open_to(poller, "127.0.0.1", server.getsockname()[1])
        connect(poller, stream)
        assert stream.send([memoryview(b"x")] * (IOV_MAX + 100)) == IOV_MAX
        poller.unwatch(stream)
        stream.close()


def test_a_refused_connection_says_what_was_tried(poller: Poller) -> None:
    port = free_port()
    stream = open_to(poller, "127.0.0.1", port)
    with pytest.raises(ConnectionLostError, match=rf"127.0.0.1:{port}: tried 127.0.0.1:{port} \(Connection refused\)"):
        connect(poller, stream)
    poller.unwatch(stream)
    stream.close()


def test_addresses_are_tried_one_after_the_other(poller: Poller) -> None:
    with listener() as server:
        refused = [("127.0.0.1", free_port()) for _ in range(3)]
        stream = try_addresses(*refused, server.getsockname())
        connect(poller, stream)
        peer, _ = server.accept()
        with peer:
            assert stream.send([memoryview(b"x")]) == 1
            assert peer.recv(1) == b"x"
        poller.unwatch(stream)
        stream.close()


def full_listener() -> tuple[socket.socket, list[socket.socket]]:
    """A listener that answers nobody: its queue is full of connections that nobody accepts."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    waiting = []
    for _ in range(4):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(server.getsockname())
        waiting.append(client)
    return server, waiting


def test_an_address_that_does_not_answer_has_its_share_of_the_time_and_no_more(poller: Poller) -> None:
    silent, waiting = full_listener()
    with listener() as server:
        stream = try_addresses(silent.getsockname(), server.getsockname(), timeout=100.0)
        now = time.monotonic()
        assert not stream.is_connected(now)
        share = stream.deadline()
        assert share is not None
        assert 49.0 < share - now <= 50.0
        first = stream.fileno()
        stream.is_connected(share + 0.1)
        assert stream.fileno() != first
        connect(poller, stream)
        assert stream.deadline() is None
        poller.unwatch(stream)
        stream.close()
    for opened in (silent, *waiting):
        opened.close()


def test_when_the_time_is_over_it_is_said_what_was_tried_and_for_how_long() -> None:
    silent, waiting = full_listener()
    port = silent.getsockname()[1]
    stream = try_addresses(silent.getsockname(), timeout=5.0)
    start = stream._started
    assert not stream.is_connected(start)
    with pytest.raises(TimedOutError, match=rf"broker:9092: tried 127.0.0.1:{port} \(no answer\) in 5.0 s"):
        stream.is_connected(start + 5.0)
    stream.close()
    for opened in (silent, *waiting):
        opened.close()


def test_a_port_that_cannot_be_is_an_error_like_others() -> None:
    stream = try_addresses(("127.0.0.1", 70_000))
    with pytest.raises(ConnectionLostError, match="70000"):
        stream.is_connected(time.monotonic())
    stream.close()


def test_a_name_is_resolved_without_blocking_and_wakes_the_loop(poller: Poller) -> None:
    with listener() as server:
        stream = open_to(poller, "localhost", server.getsockname()[1])
        connect(poller, stream)
        poller.unwatch(stream)
        stream.close()


def test_a_name_that_does_not_exist_says_so(poller: Poller) -> None:
    stream = open_to(poller, "no-such-host.invalid", 9092)
    with pytest.raises(ConnectionLostError, match=r"no-such-host.invalid:9092 cannot be resolved: "):
        connect(poller, stream)


def test_a_name_that_is_not_resolved_in_time_is_given_up() -> None:
    stream = SocketStream(Resolution(Endpoint("slow", 1)), 5.0, 0.0)
    assert not stream.is_connected(4.9)
    assert (stream.fileno(), stream.deadline()) == (-1, 5.0)
    with pytest.raises(TimedOutError, match=r"slow:1 was not resolved in 5.0 s"):
        stream.is_connected(5.0)


def test_a_closed_stream_says_so() -> None:
    stream = try_addresses(("127.0.0.1", free_port()))
    stream.close()
    room = memoryview(bytearray(1))
    with pytest.raises(ConnectionLostError, match="closed on this side"):
        stream.is_connected(time.monotonic())
    with pytest.raises(ConnectionLostError, match="closed on this side"):
        stream.send([room])
    with pytest.raises(ConnectionLostError, match="closed on this side"):
        stream.receive_into(room)
    assert repr(stream) == "<SocketStream to broker:9092, closed, descriptor -1>"


def test_a_reset_is_translated_with_its_cause(poller: Poller) -> None:
    with listener() as server:
        stream = open_to(poller, "127.0.0.1", server.getsockname()[1])
        connect(poller, stream)
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.close()
        poller.watch(stream, stream.fileno(), read=True, write=False)
        poll_until(poller, lambda: poller.poll(0.5))
        with pytest.raises(ConnectionLostError, match=r"receiving from 127.0.0.1") as caught:
            stream.receive_into(memoryview(bytearray(1)))
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        poller.unwatch(stream)
        stream.close()


def test_a_broker_that_ends_does_not_end_a_program_that_restored_sigpipe() -> None:
    program = """
import signal, socket, time
from penstock.errors import ConnectionLostError
from penstock.net.poller import Poller
from penstock.net.stream import SocketStreams
from penstock.wire.protocol import Endpoint
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
server = socket.create_server(("127.0.0.1", 0))
stream = SocketStreams(20_000, Poller().wake).open(Endpoint(*server.getsockname()), time.monotonic())
while not stream.is_connected(time.monotonic()): pass
server.accept()[0].close()
try:
    while True: stream.send([memoryview(b"x")])
except ConnectionLostError: print("lost")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("lost\n", 0), done.stderr


def test_ipv6_is_spoken(poller: Poller) -> None:
    try:
        context = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with context as server:
        stream = open_to(poller, "::1", server.getsockname()[1])
        connect(poller, stream)
        poller.unwatch(stream)
        stream.close()


def test_connecting_opens_nothing_that_others_could_reach(poller: Poller) -> None:
    before = listening_addresses(os.getpid())
    with listener() as server:
        stream = open_to(poller, "localhost", server.getsockname()[1])
        connect(poller, stream)
        new = listening_addresses(os.getpid()) - before
        poller.unwatch(stream)
        stream.close()
    assert {host for host, _ in new} <= {"127.0.0.1"}
    assert threading.active_count() < 50
