"""Which page is under which path.

| path                  | tells                                                                                |
|-----------------------|--------------------------------------------------------------------------------------|
| /                     | these paths                                                                          |
| /health               | 200 as long as the broker's loop turns                                               |
| /ready                | 200 when clients are served and entries can be stored; 503 and why not otherwise     |
| /stats                | the broker, its topics, groups and filters (JSON)                                    |
| /stats/topics/NAME    | one topic with its partitions, producers and readers (JSON); NAME flat or in full    |
| /metrics              | figures for Prometheus                                                               |

Runs on: the loop thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from penstock.broker.prometheus import CONTENT_TYPE
from penstock.broker.server.http import HttpRequest, Page

if TYPE_CHECKING:
    from penstock.broker.reporter import Reporter
    from penstock.broker.topics import Topics

JSON: Final = "application/json"
TOPICS: Final = "/stats/topics/"
INDEX: Final = b"/health\n/ready\n/stats\n/stats/topics/NAME\n/metrics\n"


class Pages:
    """Finds the page for a request."""

    def __init__(self, reporter: Reporter, topics: Topics, unready: Callable[[], str | None]) -> None:
        """`unready` tells why clients cannot be served now; None when they can."""
        self._reporter = reporter
        self._topics = topics
        self._unready = unready

    def __call__(self, request: HttpRequest) -> Page:
        """The page under the request's path."""
        path = request.path.rstrip("/") or "/"
        if path.startswith(TOPICS):
            return self._topic(path.removeprefix(TOPICS))
        match path:
            case "/":
                return Page(INDEX)
            case "/health":
                return Page(b"alive\n")
            case "/ready":
                return self._ready()
            case "/stats":
                return Page(self._reporter.overview(), JSON)
            case "/metrics":
                return Page(self._reporter.metrics(), CONTENT_TYPE)
            case _:
                return _missing(f"there is no page {path}; / lists them")

    def _ready(self) -> Page:
        why = self._unready()
        if why is None:
            return Page(b"ready\n")
        return Page(f"{why}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _topic(self, name: str) -> Page:
        topic = self._topics.find(name)
        if topic is None:
            return _missing(f"there is no topic {name}")
        return Page(self._reporter.topic(topic), JSON)


def _missing(why: str) -> Page:
    return Page(f"{json.dumps({'error': why})}\n".encode(), JSON, HTTPStatus.NOT_FOUND)
