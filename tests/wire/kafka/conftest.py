"""Fixtures that run a test on each twin of the kernel, or compare the two."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.wire.kafka.twins import COMPILED, PLAIN, Kit, Twin, kit_of, load_twin


class Both(NamedTuple):
    """The reference and the one that is compared with it."""

    plain: Twin
    compiled: Twin


@pytest.fixture(scope="session", params=[PLAIN, COMPILED], ids=["plain", "compiled"])
def twin(request: pytest.FixtureRequest) -> Twin:
    """Each of the twins."""
    return load_twin(request.param)


@pytest.fixture(scope="session")
def both() -> Both:
    """The twins beside each other."""
    return Both(load_twin(PLAIN), load_twin(COMPILED))


@pytest.fixture(scope="session", params=[PLAIN, COMPILED], ids=["plain", "compiled"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Writing and reading of batches on each of the twins."""
    return kit_of(load_twin(request.param))
