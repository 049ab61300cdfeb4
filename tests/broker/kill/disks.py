"""Small disks: a file system in memory that can be full, read-only, and given room again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """A file system of its own, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def free(self) -> int:
        """Bytes that can still be written."""
        told = os.statvfs(self.folder)
        return told.f_bavail * told.f_bsize

    def fill(self, leave: int) -> Path:
        """Write a file that leaves so many bytes."""
        ballast = self.folder / "ballast"
        with ballast.open("wb") as file:
            file.write(b"\0" * (self.free - leave))
        return ballast

    def read_only(self) -> None:
        """Let nobody write any more."""
        _run("mount", "-o", "remount,ro", str(self.folder))


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Disk]:
    """A disk of this size; the test is skipped where nobody may mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "penstock-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no small disk: {done.stderr.strip()}; mounting one takes root")
    try:
        yield Disk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True)
