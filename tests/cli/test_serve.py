from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.cli.test_main import penstock as run

LIMIT_S = 60.0


class Serving:
    """`penstock serve` in a process of its own, whose output is read."""

    def __init__(self, *options: str, **environment: str) -> None:
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "serve", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}
        )
        self._said = b""

    def wait_for(self, pattern: str) -> str:
        """What it prints that matches."""
        assert self.process.stdout is not None
        while (found := re.search(pattern, self._said.decode())) is None:
            assert select.select([self.process.stdout], [], [], LIMIT_S)[0], "it says nothing"
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            assert more, f"it ended: {self.end()}"
            self._said += more
        return found[0]

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Send a signal, and what became of it: exit code and what it said of errors."""
        if number is not None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors.decode()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving("--data", str(tmp_path / "data"), "--port", "0", "--ready-file", str(tmp_path / "ready"))
    yield made
    made.process.kill()
    made.process.communicate()


def test_it_tells_where_it_listens_and_serves_until_it_is_told_to_stop(serving: Serving, tmp_path: Path) -> None:
    url = serving.wait_for(r"kafka://127\.0\.0\.1:\d+")
    said = serving.wait_for(r"data .*, fsync group\n")
    assert str(tmp_path / "data") in said
    http = serving.wait_for(r"http://127\.0\.0\.1:\d+")
    with penstock.connect(url) as client:
        client.create_topic("orders", 2)
    with urllib.request.urlopen(f"{http}/stats", timeout=LIMIT_S) as answer:
        assert [topic["topic"] for topic in json.loads(answer.read())["topics"]] == ["orders"]
    assert "orders" in run("stats", "--data", str(tmp_path / "data")).stdout
    ready = json.loads((tmp_path / "ready").read_text())
    assert ready == {
        "pid": serving.process.pid,
        "kafka": url.removeprefix("kafka://"),
        "http": http.removeprefix("http://"),
    }
    assert serving.end(signal.SIGTERM) == (0, "")
    assert not (tmp_path / "ready").exists()
    assert not (tmp_path / "data" / "address.json").exists()


def test_ctrl_c_stops_it_cleanly(serving: Serving) -> None:
    serving.wait_for("fsync")
    assert serving.end(signal.SIGINT) == (0, "")


def test_it_stops_while_clients_are_connected_and_wait(serving: Serving) -> None:
    port = int(serving.wait_for(r"kafka://127\.0\.0\.1:\d+").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        assert serving.end(signal.SIGTERM) == (0, "")
        assert client.recv(1) == b""


def test_a_folder_is_served_by_one_broker(serving: Serving, tmp_path: Path) -> None:
    serving.wait_for("fsync")
    told = run("serve", "--data", str(tmp_path / "data"), "--port", "0")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.splitlines() == [f"penstock: {tmp_path / 'data'} is in use by another process"]


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = run("serve", "--data", str(tmp_path), "--port", port)
        assert (told.returncode, told.stderr) == (1, f"penstock: port {port} of 127.0.0.1 is in use\n")
        told = run("serve", "--data", str(tmp_path), "--port", "0", "--http-port", port)
        assert (told.returncode, told.stderr) == (1, f"penstock: port {port} of 127.0.0.1 is in use\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--fsync", "never"), "fsync takes always, group or system; not 'never'"),
        (("--set", "fsnyc=group"), "there is no setting 'fsnyc'; the nearest is fsync"),
        (("--set", "retention_ms"), "expected name=value, found 'retention_ms'"),
        (("--set", "entry_filters=mien"), "there is no entry filter 'mien'; known are property"),
        (("--host", "192.0.2.1"), "192.0.2.1 is no address of this machine"),
        (("--host", "no such host"), "'no such host' is no address"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = run("serve", "--data", str(tmp_path), "--port", "0", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"penstock: {told}\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", "70000"), "argument --port: expected a port from 0 to 65535, found '70000'"),
        (("--http-port", "x"), "argument --http-port: expected a port from 0 to 65535, found 'x'"),
        (("--advertised", "here"), "argument --advertised: expected host:port, found 'here'"),
        (("--log-level", "loud"), "argument --log-level: invalid choice: 'loud'"),
        (("--dta", "x"), "unrecognized arguments: --dta x"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = run("serve", "--data", str(tmp_path), *options)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"penstock serve: {told}")
    assert line.endswith("; --help lists the options")


def test_it_needs_a_folder_and_tells_what_it_takes() -> None:
    assert run("serve").stderr == (
        "penstock serve: the following arguments are required: --data; --help lists the options\n"
    )
    told = run("serve", "--help")
    assert told.returncode == 0
    assert "--data DIR" in told.stdout
    assert "serve" in run("--help").stdout


def test_a_broker_does_not_carry_what_reads_other_command_lines(tmp_path: Path) -> None:
    code = """
import sys
from penstock.broker.server.service import Service
from penstock.cli.main import main
Service.serve = lambda service, ready: None
sys.argv = ["penstock", "serve", "--data", sys.argv[1]]
main()
print([name for name in ("typer", "rich", "pydantic", "numpy", "pyarrow", "prometheus_client") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for folder in (file, Path("/sys/penstock"), Path("/proc/penstock")):
        done = run("serve", "--data", str(folder), "--port", "0")
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1
        assert str(folder) in done.stderr
    assert run("serve", "--data", "", "--port", "0").stderr == (
        "penstock: a data folder is needed, other than the present one\n"
    )


def test_it_can_do_without_http_and_take_settings(tmp_path: Path) -> None:
    options = ("--http-port", "none", "--fsync", "system", "--set", "partitions_default=3", "--advertised", "there:77")
    serving = Serving("--data", str(tmp_path), "--port", "0", *options)
    try:
        url = serving.wait_for(r"kafka://127\.0\.0\.1:\d+")
        serving.wait_for("fsync system")
        serving.wait_for("no HTTP")
        with penstock.connect(url) as client:
            assert set(client.metadata().nodes.values()) == {("there", 77)}
        assert serving.end(signal.SIGTERM) == (0, "")
    finally:
        serving.process.kill()
        serving.process.communicate()
