"""Pages over HTTP, of a running broker."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.broker import prometheus, reporter
from penstock.broker.embedded import EmbeddedBroker
from penstock.broker.server.http import HttpRequest
from penstock.broker.server.pages import Pages
from penstock.errors import StorageFailedError
from tests.broker.batches import batch
from tests.kafka_raw import produce

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with penstock.embedded(http_port=0) as made:
        made.create_topic("orders", 3)
        made.create_topic("acme/shop/payments")
        for partition, count in ((0, 10), (0, 20), (2, 5)):
            assert produce(made.address.kafka, "orders", batch(count), partition).error == 0
        yield made


def get(broker: EmbeddedBroker, path: str) -> tuple[int, str, bytes]:
    """Status, type and body."""
    try:
        with urllib.request.urlopen(f"{broker.http_url}{path}", timeout=LIMIT_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def told(broker: EmbeddedBroker, path: str) -> Any:
    status, kind, body = get(broker, path)
    assert (status, kind) == (200, "application/json")
    return json.loads(body)


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/stats", "/stats/", "/stats?x", "/metrics"])
def test_every_page_is_there(broker: EmbeddedBroker, path: str) -> None:
    status, _, body = get(broker, path)
    assert status == 200
    assert body


def test_the_first_page_lists_the_others(broker: EmbeddedBroker) -> None:
    for path in get(broker, "/")[2].decode().split():
        assert get(broker, path.replace("NAME", "orders"))[0] == 200


def test_an_overview_tells_of_the_broker_and_all_topics(broker: EmbeddedBroker) -> None:
    overview = told(broker, "/stats")
    assert overview["broker"]["topics"] == 2
    assert overview["broker"]["partitions"] == 4
    assert [(topic["topic"], topic["messages"]) for topic in overview["topics"]] == [
        ("acme/shop/payments", 0),
        ("orders", 35),
    ]


def test_a_topic_is_told_with_each_partition(broker: EmbeddedBroker) -> None:
    topic = told(broker, "/stats/topics/orders")
    assert (topic["published"]["entries"], topic["published"]["messages"]) == (3, 35)
    assert [(part["partition"], part["start"], part["end"]) for part in topic["each_partition"]] == [
        (0, 0, 30),
        (1, 0, 0),
        (2, 0, 5),
    ]
    assert sum(part["bytes"] for part in topic["each_partition"]) == topic["bytes"] == topic["published"]["bytes"]


@pytest.mark.parametrize("path", ["acme/shop/payments", "acme%2Fshop%2Fpayments"])
def test_topics_of_other_namespaces_are_told_by_their_full_name(broker: EmbeddedBroker, path: str) -> None:
    assert told(broker, f"/stats/topics/{path}")["topic"] == "acme/shop/payments"


@pytest.mark.parametrize("path", ["/stats/topics/no", "/stats/topics/a%22b%00", "/stats/topics", "/nowhere"])
def test_what_is_not_there_is_told(broker: EmbeddedBroker, path: str) -> None:
    status, kind, body = get(broker, path)
    assert (status, kind) == (404, "application/json")
    assert "there is no" in json.loads(body)["error"]


def test_metrics_are_what_prometheus_reads(broker: EmbeddedBroker) -> None:
    status, kind, body = get(broker, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert samples["penstock_topic_published_messages_total", "orders"] == 35
    assert samples["penstock_topic_stored_messages", "orders"] == 35
    assert samples[("penstock_topics",)] == 2


def test_pieces_make_one_text_whatever_their_size(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "PARTITIONS_PER_PIECE", 1)
    monkeypatch.setattr(prometheus, "TOPICS_PER_PIECE", 1)
    assert len(told(broker, "/stats")["topics"]) == 2
    assert len(told(broker, "/stats/topics/orders")["each_partition"]) == 3
    assert b'penstock_topic_partitions{topic="orders"} 3.0' in get(broker, "/metrics")[2]


def test_an_overview_opens_few_partitions_and_metrics_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "OPENED_MAX", 2)
    with penstock.embedded(http_port=0) as broker:
        broker.create_topic("many", 5)
        get(broker, "/metrics")
        assert broker.stats()["broker"]["open_partitions"] == 0
        assert [topic["open_partitions"] for topic in broker.stats()["topics"]] == [4]
        assert [part["is_open"] for part in broker.stats("many")["each_partition"]] == [True] * 5


def test_a_broker_that_can_make_nothing_durable_any_more_is_not_ready() -> None:
    with penstock.embedded(http_port=0) as broker:
        committer = broker._runner.on_loop(lambda inner: inner.committer)
        committer.broken = StorageFailedError("the commit thread has failed")
        assert get(broker, "/ready")[::2] == (503, b"the commit thread has failed\n")
        assert get(broker, "/health")[0] == 200
        committer.broken = None


def test_a_broker_that_cannot_serve_says_why() -> None:
    pages = Pages(None, None, lambda: "the disk is gone")  # type: ignore[arg-type]
    page = pages(HttpRequest("GET", "/ready"))
    assert (page.status.value, page.body) == (503, b"the disk is gone\n")
    assert pages(HttpRequest("GET", "/health")).status.value == 200
