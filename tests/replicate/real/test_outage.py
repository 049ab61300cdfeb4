"""While a source is away, nobody is told that the copy is up to date; afterwards it goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.penstock import PenstockBroker
from tests.replicate.pair import Pair, until
from tests.replicate.real.conftest import paired
from tests.replicate.real.equality import DELIVERIES, check_equal, contents
from tests.replicate.test_copying import numbered


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, PenstockBroker]]:
    options = ["--http-port", "none"]
    with (
        PenstockBroker(options, data=tmp_path / "source") as source,
        PenstockBroker(options, data=tmp_path / "target") as target,
    ):
        yield {"source": source, "target": target}


@pytest.fixture
def pair(brokers: dict[str, PenstockBroker]) -> Iterator[Pair]:
    yield from paired(brokers["source"].url, brokers["target"].url)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_source_that_is_away_is_a_delay(brokers: dict[str, PenstockBroker], pair: Pair, delivery: str) -> None:
    pair.source.client.create_topic("t", 1)
    pair.source.send("t", numbered(0, 50))
    with pair.copying("t", name="t", delivery=delivery, retry_backoff_max_ms=200) as copying:
        until(lambda: copying.stats().total.messages_copied == 50, copying)
        until(lambda: copying.stats().delay_ms == 0, copying)
        brokers["source"].kill()
        until(lambda: copying.stats().delay_ms > 0, copying)
        (standing,) = copying.stats().partitions.values()
        assert standing.trouble
        brokers["source"].restart()
        until(lambda: copying.stats().delay_ms == 0, copying)
        (standing,) = copying.stats().partitions.values()
        assert not standing.trouble
        pair.source.send("t", numbered(50, 80))
        until(lambda: copying.stats().total.messages_copied == 80, copying)
    check_equal(contents(pair.target, "t"), contents(pair.source, "t"))
