"""The fuzzer's process: `python -m tests.fuzz.run KERNEL [libFuzzer's options] [corpus]`.

The plain twin is instrumented, and its coverage leads the way; KERNEL is the compiled twin's file, built with a
sanitizer where there is one. An input with a finding is left by libFuzzer in a file, and its hex is on standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

from tests.fuzz import build


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    with atheris.instrument_imports(include=["penstock"], enable_loader_override=False):
        build.load(Path(sys.argv[1]))
        from tests.fuzz.targets import Fuzzed
    fuzzed = Fuzzed()

    def feed(data: bytes) -> None:
        try:
            fuzzed.feed(data)
        except BaseException:
            sys.stderr.write(f"input in hex: {data.hex()}\n")
            raise

    atheris.Setup([sys.argv[0], *sys.argv[2:]], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
