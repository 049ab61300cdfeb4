"""Assertions of the modules beside the tests are explained as those of the tests are."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.broker.kill.load", "tests.broker.kill.copying")
