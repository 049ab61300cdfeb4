from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def build(folder: Path, compiler: str) -> list[str]:
    """Build the kernel with this compiler; the names of what came out."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "out"],
        cwd=folder,
        env={**os.environ, "CC": compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [path.name for path in folder.glob("out/**/*.so")]


def test_without_a_compiler_the_build_goes_on_without_the_kernel(tmp_path: Path) -> None:
    assert build(tmp_path, "/nowhere/cc") == []


def test_with_a_compiler_that_fails_the_build_goes_on_without_the_kernel(tmp_path: Path) -> None:
    assert build(tmp_path, shutil.which("false") or "/bin/false") == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_with_a_compiler_the_kernel_is_built(tmp_path: Path) -> None:
    built = {name.partition(".")[0] for name in build(tmp_path, "cc")}
    assert built == {path.stem for path in ROOT.glob("src/**/*.pyx")}
