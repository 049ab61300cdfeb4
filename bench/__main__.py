"""Runs benchmarks, prints what they found, and writes it to `bench/RESULTS.md`.

python -m bench                    all of them
python -m bench micro.append       this one
python -m bench micro              all whose names begin so
python -m bench replicate --rounds 1 --share 0.1    a quick look with a tenth of the messages, for those that count any
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from bench import results

# Each module has `run(rounds) -> Section` under the section's name, and may say by `ROUNDS` how many it needs.
BENCHMARKS = {
    "broker.consume": "bench.broker.consume",
    "broker.durable": "bench.broker.durable",
    "broker.flat": "bench.broker.flat",
    "broker.produce": "bench.broker.produce",
    "broker.requests": "bench.broker.requests",
    "broker.start": "bench.broker.start",
    "micro.append": "bench.micro.append",
    "micro.decode": "bench.micro.decode",
    "micro.encode": "bench.micro.encode",
    "micro.header": "bench.micro.header",
    "produce.asyncio": "bench.produce.awaited",
    "produce.gate": "bench.produce.gate",
    "produce.latency": "bench.produce.latency",
    "produce.send": "bench.produce.send",
    "replicate.embedded": "bench.replicate.embedded",
    "replicate.filter": "bench.replicate.filtered",
    "replicate.kafka": "bench.replicate.kafka",
    "replicate.memory": "bench.replicate.memory",
}
ROUNDS = 25


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; return an exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks and write bench/RESULTS.md.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}, or how such names begin")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless told here or by the benchmark")
    parser.add_argument("--share", type=float, help="of the messages, for a quick look: what it finds is only printed")
    chosen = parser.parse_args(arguments)
    quick = {} if chosen.share is None else {"share": chosen.share}
    missed = []
    for name in select(chosen.names):
        module = importlib.import_module(BENCHMARKS[name])
        section = module.run(chosen.rounds or getattr(module, "ROUNDS", ROUNDS), **quick)
        if not quick:
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
