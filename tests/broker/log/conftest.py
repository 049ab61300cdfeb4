"""What all tests of the log have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.log.kit import Kit


@pytest.fixture(autouse=True)
def no_kit_is_left() -> Iterator[None]:
    """Close the kits that a test has made: each has a pipe."""
    yield
    for kit in list(Kit.made):
        kit.close()
