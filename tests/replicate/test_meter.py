"""What is counted of copying: what the table says, no number twice, and no backlog means zero bytes waiting."""

from __future__ import annotations

import re

import pytest

from penstock.metrics import Distribution, Registry
from penstock.net.failures import InvariantError
from penstock.replicate import meter as module
from penstock.replicate.consignment import Reason
from penstock.replicate.meter import CopyMeter, GateMeter

LABELS = {"pipeline": "p", "topic": "t"}
GATE = {"cluster": "c", "namespace": "", "topic": "t"}
SUMS = ("bytes", "batches", "commits", "rewinds", "missing")


def documented() -> dict[str, tuple[str, str]]:
    """Kind and meaning of each metric in the table."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|[^|]*\| ([^|]+) \|$", module.__doc__ or "", re.MULTILINE)
    return {name: (kind, meaning) for name, kind, meaning in rows}


def told(registry: Registry, *entries: dict[str, int], sums: int = 0, delay_ms: float = 0.0, waiting: int = 0) -> None:
    """A topic's meter is told this, one after the other."""
    meter = CopyMeter(registry, "p", "t")
    for counts in entries:
        meter.tell(counts, {"copied": sums}, dict.fromkeys(SUMS, sums), delay_ms, waiting)


def test_the_metrics_are_those_that_are_documented() -> None:
    registry = Registry()
    GateMeter(registry, "c", "", "t")
    told(registry, {"unopened": 1}, sums=1)
    own = {name for name in documented() if name.startswith(("penstock_copy_", "pulsar_"))}
    found = {family.shape.name: family.shape.kind.value for family in registry.snapshot().families}
    assert own == {name for name in found if not name.startswith("penstock_io_")}
    assert {name: documented()[name][0] for name in own} == {name: found[name] for name in own}


def test_every_reason_for_which_entries_are_opened_is_an_outcome() -> None:
    registry = Registry()
    told(registry, {reason.value: number for number, reason in enumerate(Reason, 1)})
    snapshot = registry.snapshot()
    for number, reason in enumerate(Reason, 1):
        assert snapshot.value("penstock_copy_entries_total", **LABELS, outcome=reason.value) == number


def test_sums_are_counted_by_what_is_new() -> None:
    registry = Registry()
    meter = CopyMeter(registry, "p", "t")
    for count in (3, 3, 10):
        entries = {"unopened": count, "filtered": 2 * count}
        meter.tell(entries, {"copied": count}, dict.fromkeys(SUMS, count), 0.0, 0)
    snapshot = registry.snapshot()
    assert snapshot.value("penstock_copy_entries_total", **LABELS, outcome="unopened") == 10
    assert snapshot.value("penstock_copy_entries_total", **LABELS, outcome="filtered") == 20
    assert snapshot.value("penstock_copy_messages_total", **LABELS, outcome="copied") == 10
    for name in SUMS:
        assert snapshot.value(f"penstock_copy_{name}_total", **LABELS) == 10


def test_gauges_are_what_was_told_last() -> None:
    registry = Registry()
    told(registry, {}, delay_ms=2500.0, waiting=77)
    told(registry, {}, delay_ms=1500.0, waiting=66)
    assert registry.snapshot().value("penstock_copy_delay_seconds", **LABELS) == 1.5
    assert registry.snapshot().value("penstock_copy_waiting_bytes", **LABELS) == 66


def test_topics_and_pipelines_are_counted_apart() -> None:
    registry = Registry()
    for pipeline, topic, count in (("p", "t", 1), ("p", "u", 2), ("q", "t", 3)):
        CopyMeter(registry, pipeline, topic).tell({}, {}, {"commits": count}, 0.0, 0)
    snapshot = registry.snapshot()
    assert snapshot.value("penstock_copy_commits_total", pipeline="p", topic="u") == 2
    assert snapshot.value("penstock_copy_commits_total", pipeline="q", topic="t") == 3


def test_the_gate_is_counted_under_both_names() -> None:
    registry = Registry()
    meter = GateMeter(registry, **GATE)
    meter.wait(100)
    meter.wait(50)
    meter.let_go(100)
    meter.wrote(100, 1)
    snapshot = registry.snapshot()
    for name in ("pulsar_replicator_io_buffer_total_bytes", "penstock_io_waiting_bytes"):
        assert snapshot.value(name, **GATE) == 50
    for name in ("pulsar_replicator_io_per_buffer_bytes", "penstock_io_write_bytes"):
        found = snapshot.value(name, **GATE)
        assert isinstance(found, Distribution)
        assert (found.count, found.sum) == (1, 100)
    meter.let_go(50)
    assert registry.snapshot().value("pulsar_replicator_io_buffer_total_bytes", **GATE) == 0
    assert meter.is_idle()


def test_no_backlog_means_zero_bytes_waiting() -> None:
    meter = GateMeter(Registry(), **GATE)
    meter.wait(100)
    with pytest.raises(InvariantError, match="no backlog must mean zero bytes waiting"):
        meter.let_go(99)


def test_a_meter_that_is_removed_is_removed_under_both_names() -> None:
    registry = Registry()
    meter = GateMeter(registry, **GATE)
    meter.wrote(100, 1)
    meter.remove()
    assert [sample for family in registry.snapshot().families for sample in family.samples] == []
