"""Resolves the dependencies of `pyproject.toml` into `requirements/*.txt`: hashes, no index URLs, all platforms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Made by `make lock` from {sources}; do not edit.\n"
# name of the lock: what goes in. Later locks take the versions of the first.
LOCKS: dict[str, list[str]] = {
    "dev": ["pyproject.toml", "--extra", "dev", "--extra", "bench"],
    "run": ["pyproject.toml", "requirements/build.in"],
    "spark": ["pyproject.toml", "--extra", "spark"],
    "java": ["requirements/java.in"],
    "spark-connector": ["requirements/spark-connector.in"],
}
APART = ("dev", "java", "spark-connector")  # not bound to the versions of the first


def main() -> int:
    """Write every lock, the largest first, the others constrained by it."""
    for name, inputs in LOCKS.items():
        target = ROOT / "requirements" / f"{name}.txt"
        constraint = [] if name in APART else ["--constraint", "requirements/dev.txt"]
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", *inputs, *constraint),
            *("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-header"),
            *("--no-annotate", "--upgrade", "--output-file", str(target)),
        ]
        subprocess.run(command, check=True, cwd=ROOT)
        sources = ", ".join(argument for argument in inputs if not argument.startswith("--"))
        target.write_text(HEADER.format(sources=sources) + target.read_text())
        print(f"lock: requirements/{name}.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
