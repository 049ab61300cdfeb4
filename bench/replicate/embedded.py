"""From one embedded broker to another."""

from __future__ import annotations

from bench.replicate.grid import LARGE, SMALL, rows_of, stock_of
from bench.replicate.pair import two_embedded
from bench.replicate.stock import BATCHES, Stock
from bench.results import Row, Section

NAME = "replicate.embedded"
ROUNDS = 3
COMPARED = """\
The same as `replicate.kafka`, from one `penstock serve` to another, both leaving syncing to the system. MirrorMaker is
not beside it: it keeps its positions in compacted topics, which the embedded broker does not have. Messages of 1 KB and
"never repacked" were run once.
"""
PACKAGES = ("confluent-kafka",)


def run(rounds: int, share: float = 1.0, warmup: tuple[Stock, ...] = ()) -> Section:
    """The whole grid; where there are bars, so many rounds."""
    del warmup  # it compiles nothing
    told: list[Row] = []
    with two_embedded() as pair:
        for size, turns in ((SMALL, rounds), (LARGE, 1)):
            for batch_bytes in BATCHES:
                told += rows_of(pair, stock_of(size, batch_bytes, share), turns, share, makers=False)
    return Section(NAME, COMPARED, told, rounds, PACKAGES)
