"""What the copying process holds while gigabytes pass through it."""

from __future__ import annotations

from functools import partial

from bench.peers.measure import Figures
from bench.produce.contest import Found, Measure, contest
from bench.produce.send import scaled
from bench.replicate.course import Course
from bench.replicate.grid import EXACTLY_ONCE, LARGE, OPENED, OPTIONS
from bench.replicate.pair import two_embedded
from bench.replicate.stock import KB64, Stock
from bench.results import Bar, Row, Section
from bench.timing import Ratio

NAME = "replicate.memory"
ROUNDS = 1
COMPARED = """\
The resident memory of the process that copies 10 GB of values of 1 KB, in lz4 batches of 64 KB on the wire and 4
partitions, from one `penstock serve` to another, looked at every 50 ms: the most of the second half of the time beside
the most of its first tenth.
"""
MESSAGES = 10_000_000
BAR = Bar("≤", 1.1)
LATE = Measure("memory", lambda figures: figures.more["late_mb"], lambda size: f"{size:.0f} MB")
EARLY = Measure("memory", lambda figures: figures.more["early_mb"], lambda size: f"{size:.0f} MB")


def run(rounds: int, share: float = 1.0, warmup: tuple[Stock, ...] = ()) -> Section:
    """Batches as they are, and opened."""
    del warmup
    stock = Stock(scaled(MESSAGES, share), LARGE, KB64)
    with two_embedded() as pair, pair.stocked(stock) as topic:
        course = Course(pair, stock, topic, is_verified=True)
        ways = {way: partial(course.ours, is_weighed=True, **OPTIONS[way]) for way in (EXACTLY_ONCE, OPENED)}
        found = contest(ways, rounds)
    size = f"{stock.messages * stock.value_bytes / 1e9:.3g} GB"
    return Section(NAME, COMPARED, [row(f"{size}, {way}", way, found) for way in ways], rounds)


def row(case: str, way: str, found: Found) -> Row:
    """The end beside the beginning."""
    grown = Measure("growth", growth, str)
    ratios = [growth(figures) for figures in found.figures[way]]
    ratio = Ratio(found.median(way, grown), min(ratios), max(ratios))
    return Row(f"{case}, second half", found.shown(way, LATE), "first tenth", found.shown(way, EARLY), ratio, BAR)


def growth(figures: Figures) -> float:
    """How many times the memory of the beginning that of the end is."""
    return LATE.of(figures) / EARLY.of(figures)
