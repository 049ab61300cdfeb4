"""Builds `empty_call.pyx` into `build/`, as the product's kernel is built, and loads it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("empty_call.pyx")
BUILT = ROOT / "build" / "bench"

SETUP = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup

source, built = sys.argv[1:]
extension = Extension("empty_call", [source], extra_compile_args=["-O3"])
setup(
    name="empty-call",
    packages=[],
    ext_modules=cythonize([extension], build_dir=built, language_level=3, quiet=True),
    script_args=["--quiet", "build_ext", "--build-lib", built, "--build-temp", built],
)
"""


def load() -> Any:
    """The class whose `append` is empty; it is compiled when it was not yet, or its source is newer."""
    library = next(BUILT.glob("empty_call.*.so"), None)
    if library is None or library.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILT.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", SETUP, str(SOURCE), str(BUILT)]
        done = subprocess.run(command, cwd=BUILT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench: the empty method could not be compiled\n{done.stdout}{done.stderr}")
        library = next(BUILT.glob("empty_call.*.so"))
    spec = importlib.util.spec_from_file_location("empty_call", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EmptyBuffer
