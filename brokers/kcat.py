"""kcat, a client in C: the machine's own, or Debian's packages unpacked into the cache that checkouts share.

Nothing is installed and nobody need be root: `apt-get download` fetches and verifies three packages, `dpkg-deb` unpacks
them, and the program finds the two libraries among them by its environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from brokers.cache import cache_root, file_lock
from brokers.errors import BrokerUnavailableError

PACKAGES = ("kcat", "librdkafka1", "libyajl2")
NAMES = ("kcat", "kafkacat")
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Kcat:
    """A kcat that runs: its command and the environment that it needs."""

    command: str
    environment: Mapping[str, str]


def find() -> Kcat:
    """The kcat on the PATH, else the one in the cache, fetched first where it is not there yet."""
    for name in NAMES:
        if found := shutil.which(name):
            return Kcat(found, dict(os.environ))
    folder = cache_root() / "kcat"
    program = folder / "usr" / "bin" / "kcat"
    if not program.exists():
        _fetch(folder)
    libraries = folder / "usr" / "lib" / str(sysconfig.get_config_var("MULTIARCH"))
    return Kcat(str(program), {**os.environ, "LD_LIBRARY_PATH": str(libraries)})


def _fetch(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.with_suffix(".lock"), lambda: None):
            if not folder.exists():
                _unpack(folder)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        raise BrokerUnavailableError(
            f"no kcat on the PATH, and Debian's packages cannot be had ({str(told).strip()[-200:]}); install kcat"
        ) from error


def _unpack(folder: Path) -> None:
    """Into a folder beside it first, so that a half is never taken for the whole."""
    work = folder.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
    (work / "packages").mkdir(parents=True)
    _run("apt-get", "download", *PACKAGES, folder=work / "packages")
    for package in sorted((work / "packages").glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(work / "root"), folder=work)
    (work / "root").rename(folder)
    shutil.rmtree(work, ignore_errors=True)


def _run(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True)
