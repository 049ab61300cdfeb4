"""From one real Kafka to another."""

from __future__ import annotations

from bench.replicate.course import Course
from bench.replicate.grid import LARGE, SMALL, rows_of, stock_of
from bench.replicate.pair import Pair, two_kafkas
from bench.replicate.stock import BATCHES, KB64, Stock
from bench.results import Row, Section

NAME = "replicate.kafka"
ROUNDS = 3
COMPARED = """\
A topic of 4 partitions from one real Kafka of one node to another, all on this machine: 8 million messages of 100 B or
1 million of 1 KB, text-like, in lz4 batches that have this size on the wire; in batches of 1 KB there are 2 million and
200,000. Ours copies the whole topic, in a process that has copied a small one before; its clock runs from the first
messages forwarded to the end of `wait`, when all is stored and the positions are committed; its CPU counts from the
call of `copy`, and what it takes from there to the first messages is told as its start. "exactly once" is what it does
by default, in transactions that commit every 500 ms; "at least once" is without them; "opened" is exactly once with
`repack="always"`. Batches of 1 KB are repacked by default; "never repacked" copies each as it is.

"one by one" is our reader and producer with batching and gate off, each message in a request of its own. The Python
mirror is confluent-kafka: `consume` and `produce` for each message, its consumer fetching ahead and not waiting between
fetches, its producer with acks=all, lz4, linger 20 ms and batches of 1 MB; it keeps no positions. MirrorMaker 2 is
tuned to large fetches and lz4 batches of 1 MB, or left at its defaults. These are slower and are given fewer messages
of the same topic: one by one 8,000, the mirror 1.5 million (of 1 KB: 400,000), MirrorMaker 3 million (600,000), of
which the last third counts, when it is warm; starting it does not.

After each run the target's messages are counted, and our first copy of each topic is compared with its source message
by message. CPU is that of the copying process, in seconds per million messages; all share the cores with both brokers,
so a rate tells of these, too. Messages of 1 KB, MirrorMaker at its defaults and "never repacked" were run once.
"""
PACKAGES = ("confluent-kafka",)
WARMUP = (Stock(1_000_000, 100, KB64), Stock(150_000, 1000, KB64))
"""What a new pair copies before anything counts: brokers compile themselves as they run."""


def run(rounds: int, share: float = 1.0, warmup: tuple[Stock, ...] = WARMUP) -> Section:
    """The whole grid; where there are bars, so many rounds."""
    told: list[Row] = []
    with two_kafkas() as pair:
        for stock in warmup:
            warm_up(pair, stock)
        for size, turns in ((SMALL, rounds), (LARGE, 1)):
            for batch_bytes in BATCHES:
                told += rows_of(pair, stock_of(size, batch_bytes, share), turns, share, makers=True)
    return Section(NAME, COMPARED, told, rounds, PACKAGES)


def warm_up(pair: Pair, stock: Stock) -> None:
    """Copy it in several ways."""
    with pair.stocked(stock) as topic:
        course = Course(pair, stock, topic, is_verified=True)
        course.ours()
        course.ours(delivery="at-least-once")
        course.mirror(stock.messages)
