"""Prepares `.venv` for one of the Makefile's verbs; a second call finds its stamp and returns at once.

Owns: the virtual environment, the locked packages in it, the compiled kernel, and a Java where the machine has none.
Never: anything outside the checkout but pip's own cache. Standard library only, since nothing is installed yet.

    python3 -m tools.setup run     what the product needs                  (make demo)
    python3 -m tools.setup dev     that, the tests' tools and the peers    (make test, check, bench, stress)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import java

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PYTHON_MIN = (3, 11)
PROFILES = ("run", "dev")  # each holds all of the one before


class SetupError(Exception):
    """Set-up cannot go on; the text says what is missing and what to do."""


def main(arguments: list[str]) -> int:
    """Prepare the named profile and return an exit status."""
    if len(arguments) != 1 or arguments[0] not in PROFILES:
        print(f"usage: python3 -m tools.setup {'|'.join(PROFILES)}", file=sys.stderr)
        return 2
    try:
        prepare(arguments[0])
    except (SetupError, java.JavaError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(profile: str) -> None:
    """Do what the profile lacks: environment, locked packages, kernel, Java."""
    if sys.version_info < PYTHON_MIN:
        raise SetupError(
            f"Python {'.'.join(map(str, PYTHON_MIN))} or newer is needed, this is {sys.version.split()[0]}"
        )
    packages = [Stamp(f"packages-{name}", [ROOT / "requirements" / f"{name}.txt"]) for name in PROFILES]
    kernel = Stamp("kernel", [ROOT / "setup.py", ROOT / "pyproject.toml", *sorted(ROOT.glob("src/**/*.p[yx][xd]"))])
    if not PYTHON.exists():
        create_environment()
    if not any(stamp.fresh() for stamp in packages[PROFILES.index(profile) :]):
        say(f"installing the locked packages of requirements/{profile}.txt")
        pip("install", "--require-hashes", "--requirement", str(ROOT / "requirements" / f"{profile}.txt"))
        packages[PROFILES.index(profile)].write()
    if not kernel.fresh():
        how = "compiling its kernel" if compiler() else "no C compiler found: with its plain-Python kernel"
        say(f"installing penstock, {how}")
        pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        kernel.write()
    if java.find(VENV) is None:
        say("no Java of version 17 or newer found: installing one into .venv")
        pip("install", "--require-hashes", "--requirement", str(ROOT / "requirements" / "java.txt"))
        java.wrap(VENV)


class Stamp:
    """A file in `.venv` that remembers the digest of what a step was made from."""

    def __init__(self, name: str, sources: list[Path]) -> None:
        self._path = VENV / f".stamp-{name}"
        digest = hashlib.sha256(f"{sys.version_info[:2]} {compiler()}".encode())
        for source in sources:
            digest.update(source.read_bytes())
        self._digest = digest.hexdigest()

    def fresh(self) -> bool:
        """Whether the step was done with just these sources."""
        return self._path.exists() and self._path.read_text() == self._digest

    def write(self) -> None:
        """Note that the step is done."""
        self._path.write_text(self._digest)


def create_environment() -> None:
    """Make `.venv` with pip in it."""
    say("creating .venv")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SetupError(
            f"'{sys.executable} -m venv' failed; on Debian and Ubuntu install python3-venv, then call make again\n"
            f"{made.stdout}{made.stderr}"
        )


def pip(*arguments: str) -> None:
    """Run the environment's pip, quietly; its output is shown only when it fails."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SetupError(
            f"'pip {arguments[0]}' failed (its output is above); is the package registry reachable, is there disk room?"
        )


def compiler() -> str | None:
    """The C compiler that building the kernel would use, if there is one."""
    return shutil.which(os.environ.get("CC", "cc").split()[0]) or shutil.which("gcc")


def say(text: str) -> None:
    """Tell the person who waits what is going on."""
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
