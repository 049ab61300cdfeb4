"""What tests of readers begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.broker.embedded import EmbeddedBroker
from tests.consume.faces import face as face


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker that the tests of a file share."""
    with penstock.embedded() as made:
        yield made
