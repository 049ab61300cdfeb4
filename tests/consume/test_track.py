"""One partition that is read: the table of its stages is the code's, and what it says is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.consume import shape, stats, track
from penstock.consume.shape import SCHEMA
from penstock.consume.stats import ReaderMeter, ReaderStats
from penstock.consume.track import TRANSITIONS, Stage, Track
from penstock.errors import BusyError
from penstock.metrics import Registry
from penstock.net.backoff import Backoff
from penstock.net.failures import InvariantError
from penstock.wire.protocol import Fetched, Partition, Wanted

ROOT = Path(__file__).resolve().parent.parent.parent
T0 = Partition("t", 0)


def make(position: int = 5, end: int | None = None) -> Track:
    return Track(T0, position, end, Backoff(1.0, 8.0, lambda: 0.5), loose=False)


def given(following: int, epoch: int = 0) -> Fetched:
    return Fetched([memoryview(b"")], 1, following, epoch, epoch, 0, 100, 100, ())


def test_the_table_is_the_code() -> None:
    told: dict[Stage, set[Stage]] = {stage: set() for stage in Stage}
    for sources, targets in re.findall(r"^\| ([A-Z, ]+) \| ([A-Z, ]+) \|", track.__doc__ or "", re.MULTILINE):
        for source in sources.split(", "):
            told[Stage[source]] |= {Stage[target] for target in targets.split(", ")}
    assert told == {stage: set(TRANSITIONS[stage]) for stage in Stage}


def test_entries_move_it_on_up_to_its_end() -> None:
    one = make(end=10)
    assert one.wanted(1000) == Wanted(5, 1000, -1)
    one.landed(given(8, epoch=3))
    assert (one.stage, one.position, one.epoch) == (Stage.READY, 8, 3)
    one.wanted(1000)
    one.landed(given(15))
    assert (one.stage, one.position) == (Stage.DONE, 10)


def test_it_is_done_where_there_is_nothing_to_read() -> None:
    assert make(5, 5).stage is Stage.DONE
    assert make(5, None).stage is Stage.READY


def test_pauses_grow_and_end_with_an_answer() -> None:
    one = make()
    pauses = []
    for _ in range(3):
        one.wanted(1)
        one.pause(BusyError("no"), 100.0)
        pauses.append(one.resume_at - 100.0)
        one.resume()
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[2]
    assert (one.since, str(one.trouble)) == (100.0, "no")
    one.wanted(1)
    one.found_nothing()
    assert (one.since, one.trouble) == (None, None)


def test_what_has_no_place_in_the_table_is_an_error() -> None:
    one = make()
    with pytest.raises(InvariantError, match="at 5, ready> cannot become paused"):
        one.pause(BusyError("no"), 0.0)
    one.wanted(1)
    with pytest.raises(InvariantError, match="cannot become asked"):
        one.wanted(1)


@pytest.mark.parametrize("text", [shape.__doc__, (ROOT / "docs" / "reader.md").read_text()], ids=["module", "page"])
def test_the_columns_are_those_that_are_documented(text: str) -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| ([^|]+) \| [^|]*\|", text, re.MULTILINE)
    told = {name: kind for names, kind in rows for name in re.findall(r"`([a-z_]+)`", names)}
    kinds = {"topic": "dictionary of string", **{field.name: str(field.type) for field in SCHEMA}}
    kinds |= {"topic": "dictionary of string", "event_time": "timestamp[ms, UTC]", "properties": "map<string, binary>"}
    assert {name: told.get(name) for name in SCHEMA.names} == kinds


def test_the_metrics_are_those_that_are_documented() -> None:
    registry = Registry()
    counts = ReaderStats(*range(1, 13))
    ReaderMeter(registry, "c", "t").tell(counts)
    table = dict(re.findall(r"^\| `(penstock_\w+)` \| counter \| ([^|]+) \|$", stats.__doc__ or "", re.MULTILINE))
    snapshot = registry.snapshot()
    assert {family.shape.name for family in snapshot.families} == set(table)
    for family in snapshot.families:
        outcomes = {sample.labels[3] for sample in family.samples if len(sample.labels) > 3}
        assert outcomes == set(re.findall(r"`(\w+)`", table[family.shape.name]))
    assert sum(sample.value for family in snapshot.families for sample in family.samples) == sum(range(1, 13))  # type: ignore[misc]
    assert counts.entries == sum(range(2, 8))
