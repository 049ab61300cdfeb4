"""Builds the wheel into `dist/` and tries it in an empty environment: locked dependencies, the wheel, the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROBE = """
from penstock.wire.compression import Codec
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.records import decode
batch = BatchBuffer()
batch.append(b"water", key=b"pipe")
batch.seal(Codec.LZ4)
assert decode(b"".join(batch.stamp())).value.to_pylist() == [b"water"]
"""


def main() -> int:
    """Build, install, try; a failing step stops it with its output shown."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(ROOT / "dist"), str(ROOT))
    (wheel,) = (ROOT / "dist").glob("*.whl")
    print(f"wheel: built dist/{wheel.name}")
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as folder:
        try_wheel(wheel, Path(folder))
    return 0


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel where nothing else is, and use it."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    run(*pip, "--require-hashes", "--requirement", str(ROOT / "requirements" / "run.txt"))
    run(*pip, "--no-deps", "--no-index", str(wheel))
    run(str(folder / "bin" / "python"), "-c", PROBE, cwd=folder)
    print(f"wheel: {run(str(folder / 'bin' / 'penstock'), '--version', cwd=folder).strip()}")


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run one step; its output is shown when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        sys.exit(f"wheel: '{' '.join(command[:4])} ...' failed")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
