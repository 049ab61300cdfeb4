"""A pytest plugin: brokers for tests, a clock that stands still, and faults.

Installed with Penstock and found by pytest on its own.

| fixture            | gives                                                                                        |
|--------------------|----------------------------------------------------------------------------------------------|
| `penstock_broker`  | an embedded broker (`penstock.embedded()`) on a temporary folder                             |
| `penstock_url`     | its URL                                                                                      |
| `penstock_topic`   | a topic's name that no other test of the run uses                                            |
| `penstock_brokers` | `penstock_brokers(fsync="always", partitions_default=4)`: embedded brokers with settings of |
|                    | their own, as many as the test wants, closed at its end                                      |
| `penstock_process` | `penstock serve` as a process of its own, which can be killed with `kill -9`                |
| `penstock_clock`   | a clock that a test moves by hand, for `penstock_brokers(clock=...)` and for anything else    |

`penstock_broker` is made for each test. With `penstock_scope = session` (or package, module, class) in pytest's
settings it is shared; then give topics the names of `penstock_topic`.

Faults: `pause()`, `resume()` and `disconnect()` on an embedded broker; `kill()`, `pause()`, `resume()` and `restart()`
on one that is a process. Must never import the broker before a test asks for one: every run of pytest loads this.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedBroker
    from penstock.broker.process import BrokerProcess
    from penstock.clock import ManualClock

SCOPE: Final = "penstock_scope"
WALL_MS: Final = 1_700_000_000_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """The setting that says for how long an embedded broker is shared."""
    parser.addini(SCOPE, "for how long the fixture penstock_broker is shared", default="function")


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini(SCOPE)


@pytest.fixture(scope=_scope)
def penstock_broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker on a temporary folder."""
    from penstock.broker.embedded import embedded

    with embedded() as broker:
        yield broker


@pytest.fixture(scope=_scope)
def penstock_url(penstock_broker: EmbeddedBroker) -> str:
    """The URL of `penstock_broker`."""
    return penstock_broker.url


@pytest.fixture
def penstock_topic(request: pytest.FixtureRequest) -> str:
    """A topic's name that no other test of the run uses."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in request.node.name)
    return f"{name[:100].strip('-')}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def penstock_brokers() -> Iterator[Callable[..., EmbeddedBroker]]:
    """A way to make embedded brokers, as `penstock.embedded` does, that are closed at the end of the test."""
    from penstock.broker.embedded import embedded

    made: list[EmbeddedBroker] = []

    def make(*arguments: Any, **settings: Any) -> EmbeddedBroker:
        made.append(embedded(*arguments, **settings))
        return made[-1]

    yield make
    for broker in reversed(made):
        broker.close()


@pytest.fixture
def penstock_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker as a process of its own."""
    from penstock.broker.process import BrokerProcess

    with BrokerProcess(tmp_path / "penstock-data") as broker:
        yield broker


@pytest.fixture
def penstock_clock() -> ManualClock:
    """Time that stands still until the test moves it."""
    from penstock.clock import ManualClock

    return ManualClock(wall_ms=WALL_MS)
