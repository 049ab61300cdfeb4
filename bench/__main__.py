"""Runs benchmarks, prints what they found, and writes it to `bench/RESULTS.md`.

python -m bench                    all of them
python -m bench micro.append       this one
python -m bench micro              all whose names begin so
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from bench import results

# Each module has `run(rounds) -> Section` under the section's name.
BENCHMARKS = {
    "micro.append": "bench.micro.append",
    "micro.decode": "bench.micro.decode",
    "micro.encode": "bench.micro.encode",
    "micro.header": "bench.micro.header",
}
ROUNDS = 25


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; return an exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks and write bench/RESULTS.md.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}, or how such names begin")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"{ROUNDS} unless told")
    chosen = parser.parse_args(arguments)
    missed = []
    for name in select(chosen.names):
        section = importlib.import_module(BENCHMARKS[name]).run(chosen.rounds)
        results.write(section)
        print(results.render(section), flush=True)
        missed += [f"{name}, {row.case}" for row in section.missed()]
    print(f"Missed: {'; '.join(missed)}." if missed else "All bars are met.")
    return 0


def select(wanted: Sequence[str]) -> list[str]:
    """The benchmarks that these names mean; all when there are none."""
    for word in wanted:
        if not any(_means(word, name) for name in BENCHMARKS):
            raise SystemExit(f"bench: there is no {word!r}; known are {', '.join(BENCHMARKS)}")
    return [name for name in BENCHMARKS if not wanted or any(_means(word, name) for word in wanted)]


def _means(word: str, name: str) -> bool:
    return name == word or name.startswith(f"{word}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
