from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.server.limits import ServerLimits
from penstock.broker.server.service import ServerSettings, Service
from penstock.broker.settings import BrokerSettings
from tests.broker.server.kafka.desk import Desk
from tests.broker.server.kafka.live import LiveClient


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.topics.add("orders", 3)
    yield desk
    desk.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Brokers that really run, in threads of this process."""
    with ExitStack() as stack:

        def start(limits: ServerLimits | None = None, filters: Any = None, **settings: Any) -> Service:
            server = ServerSettings(port=0, limits=limits or ServerLimits())
            made = Service(BrokerSettings(tmp_path / "data", **settings), server, filters=filters)
            return stack.enter_context(made)

        yield start


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    return serve()


@pytest.fixture
def client(service: Service) -> Iterator[LiveClient]:
    with LiveClient(service.address) as client:
        yield client
