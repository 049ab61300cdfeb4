"""The broker's page says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.testing
from penstock.broker.embedded import EmbeddedBroker
from penstock.broker.embedded_cursor import EmbeddedCursor
from penstock.broker.server import http
from penstock.broker.server.limits import MIB, ServerLimits
from penstock.broker.stats import PARTITION_PRODUCERS_MAX
from penstock.cli.serve import _parser

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "broker.md").read_text()


def test_the_first_example_prints_what_its_comment_says() -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    expected = re.findall(r"print\(.*\) +# (.*)", example)
    ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == expected


def test_every_option_of_serve_is_there() -> None:
    section = PAGE.split("## `penstock serve`", 1)[1].split("\n## ", 1)[0]
    told = set(re.findall(r"`(--[a-z-]+)", section))
    options = {name for action in _parser()._actions for name in action.option_strings if name.startswith("--")}
    assert told == options - {"--help", "--stop-on-eof"}


def test_every_fixture_is_there() -> None:
    section = PAGE.split("## pytest", 1)[1].split("\n## ", 1)[0]
    told = set(re.findall(r"^\| `(penstock_\w+)`", section, re.MULTILINE))
    assert told == {name for name in vars(penstock.testing) if name.startswith("penstock_")}
    assert told == set(re.findall(r"^\| `(penstock_\w+)`", penstock.testing.__doc__ or "", re.MULTILINE))


@pytest.mark.parametrize("face", [EmbeddedBroker, EmbeddedCursor])
def test_every_method_of_an_embedded_broker_and_its_cursors_is_there(face: type) -> None:
    section = PAGE.split("## `penstock.embedded`", 1)[1].split("\n## ", 1)[0]
    methods = {name for name, value in vars(face).items() if callable(value) and not name.startswith("_")}
    assert methods - set(re.findall(r"\.(\w+)\(", section)) == set()


LIMITS = ServerLimits()


@pytest.mark.parametrize(
    "told",
    [
        f"{LIMITS.connections_max:,} of all doors",
        f"{http.CONNECTIONS_MAX} of them for HTTP",
        f"{LIMITS.frame_bytes_max // MIB} MiB with entries, {LIMITS.control_bytes_max // MIB} MiB without",
        f"{LIMITS.request_memory_max // MIB} MiB for all requests",
        f"{LIMITS.in_flight_max} requests and {LIMITS.out_bytes_max // MIB} MiB of answers",
        f"{LIMITS.requests_per_turn} requests, {LIMITS.receive_bytes // 1024} KiB in and",
        f"{LIMITS.send_bytes // MIB} MiB out for one connection",
        f"{LIMITS.idle_s / 60:.0f} minutes without a byte (HTTP: {http.IDLE_S:.0f} s, and {http.HEAD_S:.0f} s",
        f"At most {PARTITION_PRODUCERS_MAX} names",
    ],
)
def test_limits_are_told_as_they_are(told: str) -> None:
    assert told in " ".join(PAGE.split())
