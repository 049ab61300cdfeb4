"""The grid of sizes on a pair of clusters: who copies what, how many messages each is given, and what must be reached.

Rates are per second and CPU is per message, so slow contestants are given fewer messages of the same topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.peers.measure import Figures
from bench.produce.contest import RATE, Contestant, Found, Measure, contest
from bench.produce.send import scaled
from bench.replicate.course import Course
from bench.replicate.pair import Pair
from bench.replicate.stock import KB1, KB16, KB64, MB, Stock
from bench.results import Bar, Row

EXACTLY_ONCE, AT_LEAST_ONCE, OPENED = "exactly once", "at least once", "opened"
OFTEN, SELDOM, UNOPENED = "exactly once, commits every 100 ms", "exactly once, commits every 1 s", "never repacked"
ONE_BY_ONE, MIRROR = "one by one", "Python mirror"
TUNED, DEFAULT = "MirrorMaker 2, tuned", "MirrorMaker 2, default"
OPTIONS: dict[str, dict[str, Any]] = {
    EXACTLY_ONCE: {},
    AT_LEAST_ONCE: {"delivery": "at-least-once"},
    OPENED: {"repack": "always"},
    OFTEN: {"commit_interval_ms": 100},
    SELDOM: {"commit_interval_ms": 1000},
    UNOPENED: {"repack": "never"},
}
SMALL, LARGE = 100, 1000
MESSAGES = {SMALL: 8_000_000, LARGE: 1_000_000}
FEWER = {(SMALL, KB1): 2_000_000, (LARGE, KB1): 200_000}
"""Batches of 1 KB hold a few messages, or one: filling a topic with as many would take minutes."""
SLOW = {
    SMALL: {ONE_BY_ONE: 8_000, MIRROR: 1_500_000, TUNED: 3_000_000, DEFAULT: 3_000_000},
    LARGE: {ONE_BY_ONE: 8_000, MIRROR: 400_000, TUNED: 600_000, DEFAULT: 600_000},
}
MIRROR_MAKER_MIN = {SMALL: 200_000, LARGE: 50_000}
"""With fewer messages MirrorMaker has copied all before they can be counted: then it is left out."""


@dataclass(frozen=True, slots=True)
class Bars:
    """What must be reached with batches of one size."""

    maker_rate: Bar | None = None
    maker_cpu: Bar | None = None
    mirror: Bar | None = None
    one_by_one: Bar | None = None
    at_least_once: Bar | None = None


WHOLE = Bars(Bar("≥", 10), Bar("≤", 0.02), Bar("≥", 6), Bar("≥", 10), Bar("≥", 0.8))
BARS = {MB: WHOLE, KB64: WHOLE, KB16: Bars(Bar("≥", 5)), KB1: Bars(Bar("≥", 2))}
"""They hold for messages of 100 B."""


def copying_cpu(figures: Figures) -> float:
    """CPU seconds per million messages of the process that copies, whatever it is."""
    costs = figures.cpu_s_per_million
    return costs["mirror-maker"] if "mirror-maker" in costs else costs["client"]


CPU = Measure("CPU", copying_cpu, lambda cost: f"{cost:.3g} s/M")
START = Measure("start", lambda figures: figures.more["start_s"], lambda seconds: f"{seconds:.2f} s")
TARGET_CPU = Measure(
    "target's CPU", lambda figures: figures.cpu_s_per_million["target"], lambda cost: f"{cost:.2f} s/M"
)


def stock_of(value_bytes: int, batch_bytes: int, share: float) -> Stock:
    """What the source holds for one point of the grid."""
    messages = FEWER.get((value_bytes, batch_bytes), MESSAGES[value_bytes])
    return Stock(scaled(messages, share), value_bytes, batch_bytes)


def rows_of(pair: Pair, stock: Stock, rounds: int, share: float, *, makers: bool) -> list[Row]:
    """One point of the grid: everybody in turn, and those without a bar once."""
    with pair.stocked(stock) as topic:
        course = Course(pair, stock, topic)
        told = compared(stock, contest(everybody(course, share, makers=makers), rounds))
        return told + once(course, share, makers=makers)


def everybody(course: Course, share: float, *, makers: bool) -> Mapping[str, Contestant]:
    """Ours, and the peers beside whom there are bars."""
    ours = [EXACTLY_ONCE, AT_LEAST_ONCE, OPENED]
    if is_focus(course.stock):
        ours += [OFTEN, SELDOM]
    contestants: dict[str, Contestant] = {way: partial(course.ours, **OPTIONS[way]) for way in ours}
    contestants[ONE_BY_ONE] = partial(course.one_by_one, given(course.stock, ONE_BY_ONE, share))
    contestants[MIRROR] = partial(course.mirror, given(course.stock, MIRROR, share))
    if makers and (messages := given(course.stock, TUNED, share)):
        contestants[TUNED] = partial(course.mirror_maker, messages, tuned=True)
    return contestants


def is_focus(stock: Stock) -> bool:
    """Whether this is where the prototype was measured most: here commits of several paces are compared."""
    return (stock.value_bytes, stock.batch_bytes) == (SMALL, KB64)


def given(stock: Stock, peer: str, share: float) -> int:
    """How many messages a slow contestant copies; none where a look is too short for it."""
    messages = min(stock.messages, scaled(SLOW[stock.value_bytes][peer], share))
    if peer not in (TUNED, DEFAULT):
        return messages
    least = MIRROR_MAKER_MIN[stock.value_bytes]
    return min(stock.messages, max(messages, least)) if stock.messages >= least else 0


def compared(stock: Stock, found: Found) -> list[Row]:
    """Each of our ways beside the others."""
    bars = BARS[stock.batch_bytes] if stock.value_bytes == SMALL else Bars()
    rows = []
    for way in (EXACTLY_ONCE, AT_LEAST_ONCE):
        case = f"{stock}: {way}"
        if TUNED in found.figures:
            rows.append(found.row(case, way, TUNED, RATE, bars.maker_rate))
            rows.append(found.row(case, way, TUNED, CPU, bars.maker_cpu))
        rows.append(found.row(case, way, MIRROR, RATE, bars.mirror))
        rows.append(found.row(case, way, MIRROR, CPU))
        rows.append(found.row(case, way, ONE_BY_ONE, RATE, bars.one_by_one))
    paces = [way for way in (EXACTLY_ONCE, OFTEN, SELDOM) if way in found.figures]
    rows += [found.row(f"{stock}: {way}", way, AT_LEAST_ONCE, RATE, bars.at_least_once) for way in paces]
    rows.append(found.row(f"{stock}: {OPENED}", OPENED, EXACTLY_ONCE, RATE))
    rows.append(found.row(f"{stock}: {OPENED}", OPENED, EXACTLY_ONCE, CPU))
    rows.append(target_row(stock, found))
    if is_focus(stock):
        rows.append(Row(f"{stock}: {EXACTLY_ONCE}, {START.name}", found.shown(EXACTLY_ONCE, START)))
    return rows


def target_row(stock: Stock, found: Found) -> Row:
    """What the target paid; ticks of its clock are too coarse for a ratio of short runs."""
    other = TUNED if TUNED in found.figures else MIRROR
    ours, theirs = (found.shown(name, TARGET_CPU) for name in (EXACTLY_ONCE, other))
    return Row(f"{stock}: {EXACTLY_ONCE}, {TARGET_CPU.name}", ours, other, theirs)


def once(course: Course, share: float, *, makers: bool) -> list[Row]:
    """What takes long and has no bar: MirrorMaker at its defaults, and tiny batches that stay as they are."""
    others: dict[str, Contestant] = {}
    if makers and course.stock.batch_bytes == KB64 and (messages := given(course.stock, DEFAULT, share)):
        others[DEFAULT] = partial(course.mirror_maker, messages, tuned=False)
    if course.stock.batch_bytes == KB1:
        others[UNOPENED] = partial(course.ours, **OPTIONS[UNOPENED])
    if not others:
        return []
    found = contest({EXACTLY_ONCE: course.ours, **others}, 1)
    case = f"{course.stock}: {EXACTLY_ONCE}"
    return [found.row(case, EXACTLY_ONCE, other, measure) for other in others for measure in (RATE, CPU)]
