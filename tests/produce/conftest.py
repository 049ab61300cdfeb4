"""What most tests of the producer's core begin with."""

from __future__ import annotations

import pytest

from tests.produce.kits import TWINS, Kit, load_kit


@pytest.fixture(params=TWINS)
def kit(request: pytest.FixtureRequest) -> Kit:
    """The core on each of the kernel's twins."""
    return load_kit(request.param)
