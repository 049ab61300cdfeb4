"""What a filter saves that rejects nine batches in ten unopened."""

from __future__ import annotations

from functools import partial

from bench.produce.contest import RATE, contest
from bench.produce.send import scaled
from bench.replicate.course import Course
from bench.replicate.grid import CPU, MESSAGES, SMALL, TARGET_CPU
from bench.replicate.pair import two_embedded
from bench.replicate.stock import KB64, PROPERTY, WANTED, Stock, wanted_messages
from bench.results import Bar, Section

NAME = "replicate.filter"
ROUNDS = 5
COMPARED = """\
8 million messages of 100 B in lz4 batches of 64 KB on the wire and 4 partitions, from one `penstock serve` to another,
exactly once: all of them beside those with `region = us`, which one batch in ten holds. Each message has a region, all
of a batch the same, and the batch says which, so that it is judged unopened. Rates are messages of the source per
second, passed by or copied. The target then held exactly the messages that match, which were compared with the source's
once.
"""
FILTER, NONE = f"{PROPERTY} = {WANTED}", "no filter"
BAR = Bar("≥", 4)


def run(rounds: int, share: float = 1.0, warmup: tuple[Stock, ...] = ()) -> Section:
    """With the filter beside without it."""
    del warmup
    stock = Stock(scaled(MESSAGES[SMALL], share), SMALL, KB64, claims=True)
    with two_embedded() as pair, pair.stocked(stock) as topic:
        course = Course(pair, stock, topic)
        filtering = partial(course.ours, filter=FILTER, wanted=wanted_messages(stock))
        found = contest({FILTER: filtering, NONE: course.ours}, rounds)
    case = f"{stock}: {FILTER}"
    told = [found.row(case, FILTER, NONE, RATE, BAR), found.row(case, FILTER, NONE, CPU)]
    told.append(found.row(case, FILTER, NONE, TARGET_CPU))
    return Section(NAME, COMPARED, told, rounds)
