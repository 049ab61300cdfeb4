"""Benchmarks: each compares us with peers in one run on one machine and keeps its own section of `RESULTS.md`.

    timing     contestants run in turn, round after round; medians, and ratios within each round
    results    bars, tables, the sections of `RESULTS.md`
    micro      one process, no broker: framing, reading and rewriting batches
    peers      other clients on real brokers

`python -m bench` runs them all, `python -m bench micro` those whose names begin so.
"""
