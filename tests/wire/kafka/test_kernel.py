"""Which of the twins serves, and that judging a batch loads neither of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.wire.kafka import kernel
from tests.wire.kafka.twins import COMPILED, SEAM, load_twin

SHOW = "from penstock.wire.kafka.kernel import KERNEL, RecordBuffer, gather; print(KERNEL, RecordBuffer.__module__)"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_plain_twin_serves_on_demand() -> None:
    assert run(SHOW, PENSTOCK_KERNEL="plain").stdout.split() == ["plain", "penstock.wire.kafka.batch"]


def test_compiled_twin_serves_where_it_was_built() -> None:
    load_twin(COMPILED)
    for wanted in ("", "compiled"):
        assert run(SHOW, PENSTOCK_KERNEL=wanted).stdout.split() == ["compiled", "penstock.wire.kafka._batch"]


@pytest.mark.parametrize("missing", [COMPILED, SEAM])
def test_without_any_part_of_the_compiled_twin_the_plain_one_serves_unless_the_other_is_wanted(missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; {SHOW}"
    assert run(hide, PENSTOCK_KERNEL="").stdout.split() == ["plain", "penstock.wire.kafka.batch"]
    refused = run(hide, PENSTOCK_KERNEL="compiled")
    assert "ConfigError: PENSTOCK_KERNEL: compiled is wanted, but it was not built" in refused.stderr


def test_unknown_kernel_is_refused() -> None:
    assert "expected plain or compiled, found 'fast'" in run(SHOW, PENSTOCK_KERNEL="fast").stderr


def test_kernel_says_what_it_is() -> None:
    assert kernel.KERNEL in ("plain", "compiled")
    compiled = kernel.RecordBuffer.__module__.endswith("._batch")
    assert (kernel.KERNEL == "compiled") is compiled


@pytest.mark.parametrize("library", ["numpy", "pyarrow"])
def test_judging_a_batch_loads_no_array_library(library: str) -> None:
    code = f"import sys, penstock.wire.kafka.header; print({library!r} in sys.modules)"
    assert run(code).stdout.strip() == "False"
