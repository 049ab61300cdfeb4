"""The replicator's benchmarks: batches of the size that is said, bars met and missed, and a small run of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from bench import __main__ as command
from bench import results
from bench.peers.measure import Figures
from bench.produce.contest import Found
from bench.replicate import embedded, filtered, grid, kafka, memory
from bench.replicate.course import Course
from bench.replicate.grid import AT_LEAST_ONCE, EXACTLY_ONCE, MIRROR, OFTEN, ONE_BY_ONE, OPENED, SELDOM, TUNED
from bench.replicate.jobs import groups
from bench.replicate.pair import Pair, clear, held, two_embedded
from bench.replicate.scales import Scales, beginning_and_end
from bench.replicate.stock import (
    BATCHES,
    KB1,
    KB16,
    KB64,
    MB,
    PARTITIONS,
    PROPERTY,
    WANTED,
    Stock,
    per_batch,
    portions,
    wanted_messages,
    wire_bytes,
)
from bench.results import Row, Section


def figures(rate: float, cpu_s: float, process: str = "client", **more: float) -> Figures:
    """Of a run of a second; the CPU seconds are those of a million messages."""
    used = cpu_s * rate / 1e6
    return Figures("peer", "job", int(rate), 1.0, {process: used, "source": 0.1, "target": used}, more)


def verdicts(rows: list[Row]) -> dict[str, str]:
    return {f"{row.case} / {row.beside}": row.verdict() for row in rows if row.bar}


# What is copied


@pytest.mark.parametrize("value_bytes", [100, 1000])
@pytest.mark.parametrize("batch_bytes", BATCHES)
def test_a_batch_is_as_large_on_the_wire_as_it_is_said_to_be(value_bytes: int, batch_bytes: int) -> None:
    stock = Stock(1, value_bytes, batch_bytes)
    assert wire_bytes(stock, per_batch(stock)) <= batch_bytes < wire_bytes(stock, per_batch(stock) + 1)


def test_portions_are_whole_batches_of_all_partitions_in_turn() -> None:
    stock = Stock(100_000, 100, KB64)
    handed = list(portions(stock))
    assert sum(len(portion.values) for portion in handed) == stock.messages
    assert all(len(portion.values) % per_batch(stock) == 0 for portion in handed[:-1])
    assert [portion.partition for portion in handed[:5]] == [0, 1, 2, 3, 0]


def test_no_two_messages_of_a_partition_are_equal() -> None:
    found = Counter(
        (portion.partition, value, time)
        for portion in portions(Stock(60_000, 100, KB16))
        for value, time in zip(portion.values.to_pylist(), portion.times_ms.to_pylist(), strict=True)
    )
    assert set(found.values()) == {1}


def test_one_portion_in_ten_of_each_partition_has_the_wanted_region() -> None:
    stock = Stock(per_batch(Stock(1, 100, MB)) * 10 * PARTITIONS, 100, MB, claims=True)
    found = Counter(portion.partition for portion in portions(stock) if portion.properties == {PROPERTY: WANTED})
    assert set(found) == set(range(PARTITIONS))
    assert 0.08 < wanted_messages(stock) / stock.messages < 0.15


def test_one_by_one_takes_no_more_than_it_is_given() -> None:
    assert [len(some) for some in groups(iter(range(9_999)), 2_500)] == [1000, 1000, 500]


# Who takes part


class Paper(Course):
    """A course that nobody runs."""

    def __init__(self, stock: Stock) -> None:
        super().__init__(Pair(None, None), stock, "topic")  # type: ignore[arg-type]


@pytest.mark.parametrize("makers", [True, False])
def test_everybody_takes_part_but_mirror_maker_where_it_cannot(makers: bool) -> None:
    names = set(grid.everybody(Paper(grid.stock_of(100, KB16, 1.0)), 1.0, makers=makers))
    assert names == {EXACTLY_ONCE, AT_LEAST_ONCE, OPENED, ONE_BY_ONE, MIRROR} | ({TUNED} if makers else set())


def test_commits_of_several_paces_are_compared_at_one_point_of_the_grid() -> None:
    whole = {(size, batch): Paper(grid.stock_of(size, batch, 1.0)) for size in grid.MESSAGES for batch in BATCHES}
    paced = [
        point for point, course in whole.items() if {OFTEN, SELDOM} & set(grid.everybody(course, 1.0, makers=True))
    ]
    assert paced == [(100, KB64)]


def test_slow_contestants_are_given_fewer_messages_but_no_more_than_there_are() -> None:
    stock = grid.stock_of(100, KB64, 1.0)
    assert grid.given(stock, ONE_BY_ONE, 1.0) < grid.given(stock, MIRROR, 1.0) < grid.given(stock, TUNED, 1.0)
    assert grid.given(stock, TUNED, 1.0) < stock.messages
    small = grid.stock_of(100, KB1, 0.1)
    assert grid.given(small, TUNED, 0.1) == small.messages == grid.MIRROR_MAKER_MIN[100]


def test_mirror_maker_is_left_out_of_a_look_that_is_too_short_for_it() -> None:
    assert TUNED not in grid.everybody(Paper(grid.stock_of(100, KB64, 0.01)), 0.01, makers=True)


# Bars


def found(ours: float, cpu_s: float, at_least_once: float = 1000) -> Found:
    """Ours beside MirrorMaker of 100 messages per second and a second of CPU per million."""
    return Found(
        {
            **{way: [figures(ours, cpu_s, start_s=1.5)] for way in (EXACTLY_ONCE, OPENED, OFTEN, SELDOM)},
            AT_LEAST_ONCE: [figures(at_least_once, cpu_s)],
            ONE_BY_ONE: [figures(100, 5.0)],
            MIRROR: [figures(150, 2.0)],
            TUNED: [figures(100, 1.0, "mirror-maker")],
        }
    )


def test_everything_that_is_to_be_reached_with_large_batches() -> None:
    met = verdicts(grid.compared(Stock(1, 100, KB64), found(1000, 0.02)))
    assert set(met.values()) == {"met"}
    assert len(met) == 11
    missed = verdicts(grid.compared(Stock(1, 100, MB), found(790, 0.021)))
    assert {case for case, verdict in missed.items() if verdict == "MISSED"} == {
        "100 B, 1 MB batches: exactly once, rate / MirrorMaker 2, tuned",
        "100 B, 1 MB batches: exactly once, CPU / MirrorMaker 2, tuned",
        "100 B, 1 MB batches: exactly once, rate / Python mirror",
        "100 B, 1 MB batches: exactly once, rate / one by one",
        "100 B, 1 MB batches: exactly once, rate / at least once",
        "100 B, 1 MB batches: exactly once, commits every 100 ms, rate / at least once",
        "100 B, 1 MB batches: exactly once, commits every 1 s, rate / at least once",
        "100 B, 1 MB batches: at least once, CPU / MirrorMaker 2, tuned",
    }


@pytest.mark.parametrize(
    ("batch_bytes", "rate", "expected"),
    [(KB16, 500, "met"), (KB16, 499, "MISSED"), (KB1, 200, "met"), (KB1, 199, "MISSED")],
)
def test_small_batches_have_bars_of_their_own(batch_bytes: int, rate: float, expected: str) -> None:
    rows = verdicts(grid.compared(Stock(1, 100, batch_bytes), found(rate, 1.0, rate)))
    assert list(rows.values()) == [expected, expected]


def test_large_messages_have_no_bars_and_brokers_without_mirror_maker_no_rows_of_it() -> None:
    without = {name: each for name, each in found(1, 9.0).figures.items() if name != TUNED}
    rows = grid.compared(Stock(1, 1000, KB64), Found(without))
    assert verdicts(rows) == {}
    assert not [row for row in rows if row.beside == TUNED]


def test_cpu_is_that_of_the_process_that_copies() -> None:
    assert grid.CPU.of(figures(1e6, 0.05)) == pytest.approx(0.05)
    assert grid.CPU.of(figures(1e6, 5.0, "mirror-maker")) == pytest.approx(5.0)
    assert grid.CPU.show(0.0512) == "0.0512 s/M"


@pytest.mark.parametrize(("late", "expected"), [(110.0, "met"), (111.0, "MISSED")])
def test_memory_of_the_end_stands_beside_that_of_the_beginning(late: float, expected: str) -> None:
    row = memory.row("1 GB", EXACTLY_ONCE, Found({EXACTLY_ONCE: [figures(1, 1, early_mb=100.0, late_mb=late)]}))
    assert row.cells()[:4] == ("1 GB, second half", f"{late:.0f} MB", "first tenth", "100 MB")
    assert row.verdict() == expected


def test_the_most_of_a_time_counts() -> None:
    rising = [float(weight) for weight in range(1, 101)]
    assert beginning_and_end(rising) == {"early_mb": 10.0, "late_mb": 100.0}
    assert beginning_and_end([90.0, 300.0, 80.0, 85.0]) == {"early_mb": 90.0, "late_mb": 85.0}
    assert beginning_and_end([5.0]) == {"early_mb": 5.0, "late_mb": 5.0}


def test_scales_weigh_at_least_once_and_idle_ones_never() -> None:
    with Scales() as scales, Scales(is_used=False) as idle:
        pass
    assert scales.told()["late_mb"] > 1
    assert idle.told() == {}


def test_what_a_quick_look_finds_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Section] = []
    looks: list[dict[str, Any]] = []

    def run(rounds: int, **given: Any) -> Section:
        looks.append(given)
        return Section(filtered.NAME, "", [], rounds)

    monkeypatch.setattr(results, "write", written.append)
    monkeypatch.setattr(filtered, "run", run)
    command.main(["replicate.filter", "--share", "0.5"])
    command.main(["replicate.filter"])
    assert looks == [{"share": 0.5}, {}]
    assert len(written) == 1


# Small runs


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with two_embedded() as two:
        yield two


@pytest.fixture(scope="module")
def course(pair: Pair) -> Iterator[Course]:
    """A small topic in batches of 16 KB."""
    stock = Stock(5_000, 100, KB16)
    with pair.stocked(stock) as topic:
        yield Course(pair, stock, topic)


def sizes_of_full_batches(course: Course) -> list[int]:
    with (
        penstock.connect(course.pair.source.url, client_id="sizes") as client,
        client.reader(course.topic, end="latest", unit="batch") as reader,
    ):
        return [entry.header.size for entry in reader if entry.header.count == per_batch(course.stock)]


def test_a_topic_is_filled_with_batches_of_one_size(course: Course) -> None:
    sizes = sizes_of_full_batches(course)
    assert len(sizes) >= course.stock.messages // per_batch(course.stock) - PARTITIONS
    assert min(sizes) > KB16 * 0.95
    assert max(sizes) < KB16 * 1.05


def test_batches_are_copied_as_they_are_and_cleared_away(course: Course) -> None:
    copied = course.ours(is_weighed=True)
    assert copied.messages == course.stock.messages
    assert copied.seconds > 0
    assert copied.more["unopened"] == copied.more["batches"] == held(course.pair.source, course.topic).batches
    assert copied.more["early_mb"] > 0
    assert copied.cpu_s.keys() == {"client", "source", "target"}
    with penstock.connect(course.pair.target.url, client_id="left") as client:
        assert client.topics() == []


def test_a_copy_that_does_not_hold_what_is_wanted_is_no_result(course: Course) -> None:
    with pytest.raises(RuntimeError, match="holds 5000 messages instead of 4999"):
        course.ours(wanted=4999, repack="always")
    clear(course.pair.target)


def test_a_copy_that_differs_is_no_result(course: Course, pair: Pair) -> None:
    beside_itself = Course(Pair(pair.source, pair.source), course.stock, course.topic)
    with pytest.raises(RuntimeError, match="differ"):
        beside_itself.verify(pair.small_topic)


def test_peers_copy_a_part_of_the_topic(course: Course) -> None:
    assert course.one_by_one(700).messages == 700
    assert course.mirror(3_000).messages == 3_000


def test_a_filter_copies_what_it_wants_unopened(pair: Pair) -> None:
    stock = Stock(per_batch(Stock(1, 100, MB)) * 10, 100, MB, claims=True)
    with pair.stocked(stock) as topic:
        whole = held(pair.source, topic)
        copied = Course(pair, stock, topic).ours(filter=filtered.FILTER, wanted=wanted_messages(stock))
    assert 0 < copied.more["batches"] < whole.batches
    assert copied.more["opened"] == 0


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("benchmark", [embedded, filtered, memory, kafka])
def test_a_whole_benchmark_runs(benchmark: Any, kafka_parts: None) -> None:
    section = benchmark.run(rounds=1, share=0.03, warmup=())
    assert section.name in command.BENCHMARKS
    assert any(row.bar for row in section.rows)
    assert all(row.ratio for row in section.rows if row.bar)
