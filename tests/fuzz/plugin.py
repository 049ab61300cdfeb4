"""A pytest plugin, named with `-p`: the kernel's tests on the build that PENSTOCK_FUZZ_KERNEL names."""

from __future__ import annotations

import os
from pathlib import Path

from tests.fuzz import build

build.load(Path(os.environ["PENSTOCK_FUZZ_KERNEL"]))
