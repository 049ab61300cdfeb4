from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.broker.filters import FilterCounts
from penstock.broker.log.partition import Backlog
from penstock.broker.report import (
    FlowReport,
    LogReport,
    PartitionReport,
    ProducerReport,
    ReaderReport,
    report_topic,
)
from penstock.broker.stats import Counts
from penstock.cli.stats import DEFAULT_URL, fetch, place, show, url_of_folder
from penstock.errors import BrokerError, ConfigError, PenstockError
from tests.cli.test_main import penstock

OUT = FlowReport(Counts(10, 100, 10_000), Counts(10.0, 100.0, 10_000.0))
FLOW = FlowReport(Counts(1234, 1_234_567, 123_456_789), Counts(1.5, 1500.0, 150_000.0))


def partition(number: int, is_open: bool = True) -> PartitionReport:
    log = LogReport(100, 1_000_100, 1_000_100, 1_000_100, 98_000_000) if is_open else None
    producers = (ProducerReport("order service", (number,), 1, FLOW),) if number < 2 else ()
    readers = (ReaderReport("group", "billing [eu]", (number,), Backlog(12, 1200, 99_000), 5),)
    return PartitionReport(number, log, FLOW, OUT, producers, readers, FilterCounts(accepted=3, rejected=1))


def topic(**changes: object) -> dict[str, Any]:
    parts = [partition(0), partition(1), partition(2), partition(3), partition(5, is_open=False)]
    told = report_topic("orders", "property(region = eu)", parts).told()
    return {**told, "each_partition": [part.told() for part in parts], **changes}


def overview(**changes: object) -> dict[str, Any]:
    broker = {
        "version": "1",
        "node_id": 1,
        "cluster_id": "x",
        "data": "/srv/data",
        "fsync": "group",
        "started_ms": 0,
        "uptime_s": 7300.0,
        "connections": 3,
        "topics": 1,
        "partitions": 5,
        "open_partitions": 4,
    }
    group = {
        "name": "billing [eu]",
        "protocol": "classic",
        "kind": "consumer",
        "state": "stable",
        "members": 2,
        "topics": ["orders", "payments"],
        "backlog_messages": 6000,
    }
    filters = [{"filter": "property(region = eu)", **vars_of(FilterCounts(accepted=7, rejected=2))}]
    return {"broker": broker, "topics": [topic()], "groups": [group], "filters": filters, **changes}


def vars_of(counts: FilterCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in FilterCounts.__slots__}


def shown(told: dict[str, Any], width: int = 160) -> list[str]:
    """The lines that a terminal shows, with one blank between words."""
    out = StringIO()
    show(told, Console(file=out, width=width))
    return [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()]


def test_an_overview_is_a_line_and_tables() -> None:
    lines = shown(overview())
    assert lines[0] == ("broker 1 on /srv/data, up 2.0 h, fsync group, 3 connections, 4 of 5 partitions open")
    header, row = lines[1], lines[2]
    assert header == "topic parts messages size in/s in B/s in batch out/s out B/s out batch backlog"
    assert row == "orders 5 4.0M 392 MB 7.5k 750 kB 1.0k 500 50.0 kB 10 6.0k"
    assert "billing [eu] classic stable 2 6.0k orders, payments" in lines
    assert "property(region = eu) 7 2 0 0 0" in lines


def test_a_topic_is_shown_with_partitions_producers_and_readers() -> None:
    lines = shown(topic())
    assert lines[0] == ("topic orders: 4.0M messages, 392 MB in 4 of 5 partitions, entry filters property(region = eu)")
    assert (
        lines[1] == "published 6.2M messages in 6.2k entries (617 MB), delivered 500 messages in 50 entries (50.0 kB)"
    )
    assert "0 100 1000100 98.0 MB 1.5k 150 kB 1.0k 100 10.0 kB 10 1.2k" in lines
    assert "5 - - - 1.5k 150 kB 1.0k 100 10.0 kB 10 1.2k" in lines
    assert "order service 1 3.0k 300 kB 2.5M 1.0k 100 B 0-1" in lines
    assert "billing [eu] group 6.0k 60 495 kB 0-3, 5" in lines
    assert lines[-1] == ("filters accepted 15 entries, rejected 5 (0 messages), rescheduled 0, failed 0 times")


def test_an_empty_broker_and_an_unused_topic_say_so() -> None:
    assert "no topics yet" in shown(overview(topics=[], groups=[], filters=[]))
    unused = report_topic(
        "orders", None, [PartitionReport(0, None, FlowReport(), FlowReport(), (), (), FilterCounts())]
    )
    lines = shown({**unused.told(), "each_partition": []})
    assert lines[0] == "topic orders: - messages, - in 0 of 1 partitions"
    assert "no producers since the broker started" in lines
    assert "no groups or cursors" in lines


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    out = StringIO()
    show(topic(), Console(file=out, width=60))
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 60


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ([], (DEFAULT_URL, None)),
        (["orders"], (DEFAULT_URL, "orders")),
        (["http://127.0.0.1:1"], ("http://127.0.0.1:1", None)),
        (["http://127.0.0.1:1", "a/b/c"], ("http://127.0.0.1:1", "a/b/c")),
    ],
)
def test_a_broker_and_a_topic_are_named_in_any_way(what: list[str], found: tuple[str, str | None]) -> None:
    assert place(what, None) == found


def test_a_broker_is_found_by_its_folder(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no broker runs on"):
        url_of_folder(tmp_path)
    file = tmp_path / "address.json"
    file.write_text(json.dumps({"kafka": "x", "http": "127.0.0.1:5"}))
    assert place(["orders"], tmp_path) == ("http://127.0.0.1:5", "orders")
    file.write_text(json.dumps({"kafka": "x", "http": None}))
    with pytest.raises(PenstockError, match="has no HTTP port"):
        url_of_folder(tmp_path)
    file.write_text("[]")
    with pytest.raises(PenstockError, match="cannot be read"):
        url_of_folder(tmp_path)


@pytest.mark.parametrize(
    ("what", "data"), [(["http://a:1", "http://b:1"], None), (["a", "b"], None), (["http://a:1"], Path("x"))]
)
def test_more_than_one_broker_or_topic_is_refused(what: list[str], data: Path | None) -> None:
    with pytest.raises(ConfigError, match="at most one broker"):
        place(what, data)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "ftp://x", "http://", "http://127.0.0.1:1/stats", "127.0.0.1"])
def test_what_is_no_url_of_a_broker_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a broker's HTTP port"):
        fetch(url, None)


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers what its server was told to."""

    def do_GET(self) -> None:
        status, body = self.server.pages.get(self.path, (404, b'{"error": "there is no topic"}'))  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """A server's URL, and what it answers."""
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        server.pages = {}  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", server.pages  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_a_broker_is_asked_over_http(pages: tuple[str, dict[str, tuple[int, bytes]]]) -> None:
    url, answers = pages
    answers["/stats"] = (200, json.dumps(overview()).encode())
    answers["/stats/topics/a/b/c%20d"] = (200, json.dumps(topic()).encode())
    assert fetch(url, None)["broker"]["node_id"] == 1
    assert fetch(url, "a/b/c d")["topic"] == "orders"
    with pytest.raises(PenstockError, match="there is no topic"):
        fetch(url, "other")
    answers["/stats"] = (200, b"hello")
    with pytest.raises(BrokerError, match="no broker answers at"):
        fetch(url, None)
    answers["/stats"] = (200, b"[]")
    with pytest.raises(BrokerError, match="is no broker of Penstock"):
        fetch(url, None)


def test_the_command_prints_tables_or_json(pages: tuple[str, dict[str, tuple[int, bytes]]]) -> None:
    url, answers = pages
    answers["/stats"] = (200, json.dumps(overview()).encode())
    assert "392 MB" in penstock("stats", url).stdout
    assert json.loads(penstock("stats", url, "--format", "json").stdout) == overview()


def test_a_broker_that_is_not_there_is_one_line_and_exit_code_1() -> None:
    told = penstock("stats", "http://127.0.0.1:1")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.splitlines() == [
        "penstock: no broker answers at http://127.0.0.1:1: [Errno 111] Connection refused"
    ]
