from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.server.service import ServerSettings, Service, Upkeep
from penstock.broker.settings import BrokerSettings
from penstock.errors import ClosedError, ConfigError, FolderInUseError
from tests.broker.batches import batch
from tests.broker.server.kafka.live import LiveClient

LIMIT_S = 60.0
FREE = ServerSettings(port=0)


def made(tmp_path: Path, server: ServerSettings = FREE, **settings: object) -> Service:
    return Service(BrokerSettings(tmp_path / "data", **settings), server)  # type: ignore[arg-type]


def produce(client: LiveClient, topic: str = "orders", count: int = 1) -> int:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(count)}]}]
    told = client.ask("Produce", 9, acks=-1, timeout=1000, topic_data=data)
    part = told.responses[0].partition_responses[0]
    assert part.error_code.value == 0
    return int(part.base_offset)


def test_it_serves_in_a_thread_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    for life in range(3):
        service = made(tmp_path)
        with service, LiveClient(service.address) as client:
            assert service.is_serving
            client.ask("Metadata", 4, topics=[{"name": "orders"}], allow_auto_topic_creation=True)
            assert produce(client, count=5) == 5 * life
        assert not service.is_serving
        with pytest.raises(ClosedError):
            _ = service.broker


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with made(tmp_path), pytest.raises(FolderInUseError):
        made(tmp_path).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            made(tmp_path, ServerSettings(port=port)).start()
    with made(tmp_path):  # the failed start has let go of everything
        pass


def test_it_starts_once(tmp_path: Path) -> None:
    with made(tmp_path) as service, pytest.raises(ClosedError):
        service.start()


def test_stopping_twice_or_before_it_has_started_does_nothing(tmp_path: Path) -> None:
    made(tmp_path).stop()
    service = made(tmp_path)
    with service:
        service.stop()
        service.stop()


@pytest.mark.parametrize("fsync", ["group", "always", "system"])
def test_what_was_taken_before_a_stop_is_answered(tmp_path: Path, fsync: str) -> None:
    service = made(tmp_path, fsync=fsync)
    with service, LiveClient(service.address) as client:
        client.ask("Metadata", 4, topics=[{"name": "orders"}], allow_auto_topic_creation=True)
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(3)}]}]
        frame = client.frame("Produce", 9, acks=-1, timeout=1000, topic_data=data)
        held = threading.Event()

        def hold(_broker: Broker) -> None:
            held.wait(LIMIT_S)

        service.call(hold)
        client.socket.sendall(frame * 5)
        service.loop.call(service.loop.stop)
        held.set()
        for number in range(5):
            told = client.receive("Produce", 9)
            assert told.responses[0].partition_responses[0].base_offset == 3 * number


def test_who_only_waits_is_cut_off_by_a_stop(tmp_path: Path) -> None:
    service = made(tmp_path)
    with service, LiveClient(service.address) as client:
        client.ask("Metadata", 4, topics=[{"name": "orders"}], allow_auto_topic_creation=True)
        wanted = [{"topic": "orders", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10}]}]
        client.send("Fetch", 11, max_wait=60_000, min_bytes=1, max_bytes=100, session_epoch=-1, topics=wanted)
        client.send("ApiVersions", 0)
        service.stop()
        assert client.is_closed()


def test_functions_are_called_with_the_broker_on_its_thread(tmp_path: Path) -> None:
    told: list[object] = []
    heard = threading.Event()

    def look(broker: Broker) -> None:
        told.append((broker.settings.node_id, threading.current_thread().name))
        heard.set()

    service = made(tmp_path, node_id=7)
    with service:
        service.call(look)
        assert heard.wait(LIMIT_S)
    assert told == [(7, "penstock-broker")]
    with pytest.raises(ClosedError):
        service.call(look)


def test_a_failure_of_its_thread_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_broker: Broker) -> None:
        raise ZeroDivisionError("by a caller")

    service = made(tmp_path)
    with service:
        with caplog.at_level(logging.CRITICAL):
            service.call(fail)
            assert service._thread is not None
            service._thread.join(LIMIT_S)
        assert not service.is_serving
    assert "by a caller" in caplog.text
    with made(tmp_path):
        pass


def test_clients_are_told_where_to_find_it(tmp_path: Path) -> None:
    def told(server: ServerSettings) -> tuple[str, int, int]:
        with made(tmp_path, server) as service, LiveClient(("127.0.0.1", service.port)) as client:
            (broker,) = client.ask("Metadata", 4, topics=()).brokers
            return broker.host, broker.port, service.port

    host, port, bound = told(FREE)
    assert (host, port) == ("127.0.0.1", bound)
    host, port, bound = told(ServerSettings(host="0.0.0.0", port=0))
    assert (host, port) == ("127.0.0.1", bound)
    assert told(ServerSettings(port=0, advertised=("broker.example", 19092)))[:2] == ("broker.example", 19092)


@pytest.mark.parametrize("port", [-1, 65536])
def test_ports_that_do_not_exist_are_refused(port: int) -> None:
    with pytest.raises(ConfigError):
        ServerSettings(port=port)
    with pytest.raises(ConfigError):
        ServerSettings(http_port=port)


SERVE = """
import sys
from pathlib import Path
from penstock.broker.server.service import ServerSettings, Service
from penstock.broker.settings import BrokerSettings

service = Service(BrokerSettings(Path(sys.argv[1])), ServerSettings(port=0))
service.serve(lambda service: print(service.port, flush=True))
loaded = {"numpy", "pyarrow", "asyncio", "kio.serial", "hypothesis"} & sys.modules.keys()
print("stopped", *sorted(loaded))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_as_a_process_it_stops_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        with LiveClient(("127.0.0.1", int(process.stdout.readline()))) as client:
            client.ask("Metadata", 4, topics=[{"name": "orders"}], allow_auto_topic_creation=True)
            assert produce(client) == 0
            process.send_signal(number)
            assert process.stdout.readline() == "stopped\n"
        assert process.wait(LIMIT_S) == 0


SIGNAL_ELSEWHERE = """
import signal, sys, threading, time
from pathlib import Path
from penstock.broker.server.service import ServerSettings, Service
from penstock.broker.settings import BrokerSettings

def other():
    started.wait()
    while time.monotonic() - service.loop.now < 0.5:  # until the loop sleeps
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    sys.stdin.readline()

started = threading.Event()
threading.Thread(target=other, daemon=True).start()
service = Service(BrokerSettings(Path(sys.argv[1])), ServerSettings(port=0))
service.serve(lambda service: started.set())
print("stopped")
"""


def test_a_signal_that_the_system_gives_to_another_thread_stops_it_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIGNAL_ELSEWHERE, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"


def test_a_busy_brokers_deadlines_are_looked_at_now_and_then_and_an_idle_ones_once_more() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def commit(self) -> None:
            self.calls.append("commit")

        def turn(self, now: float, now_ms: int) -> float:
            self.calls.append("turn")
            return 500.0

    recorder = Recorder()
    upkeep = Upkeep(recorder)  # type: ignore[arg-type]
    assert upkeep(100.0, 0) == 500.0
    assert upkeep(100.001, 0) == pytest.approx(100.02)
    assert upkeep(100.019, 0) == pytest.approx(100.02)
    assert upkeep(100.021, 0) == 500.0
    assert recorder.calls == ["turn", "commit", "commit", "turn"]
