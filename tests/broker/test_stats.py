from __future__ import annotations

import pytest

from penstock.broker import stats as module
from penstock.broker.filters import FilterCounts
from penstock.broker.stats import OTHERS, PRUNE_EVERY_S, WINDOW_S, Counts, Flow, Stats


def test_a_flow_adds_up() -> None:
    flow = Flow(0.0)
    flow.add(10, 1000, 1.0)
    flow.add(5, 500, 2.0)
    flow.add(100, 7, 3.0, entries=4)
    assert flow.total == Counts(6, 115, 1507)


def steady(flow: Flow, first_s: int, last_s: int) -> None:
    """Ten messages of 100 bytes in one entry, each second."""
    for second in range(first_s, last_s):
        flow.add(10, 1000, second + 0.5)


@pytest.mark.parametrize("until_s", [2, 7, 9, 10, 15, 20, 29, 30, 60])
def test_a_steady_flow_has_its_rate_at_every_moment(until_s: int) -> None:
    flow = Flow(0.0)
    steady(flow, 0, until_s)
    assert flow.rates(float(until_s)) == pytest.approx((1.0, 10.0, 1000.0))


def test_a_flow_is_never_taken_for_younger_than_a_second() -> None:
    flow = Flow(5.0)
    flow.add(10, 1000, 5.0)
    assert flow.rates(5.0) == (1.0, 10.0, 1000.0)
    assert flow.rates(5.5) == (1.0, 10.0, 1000.0)
    assert flow.rates(7.0) == (0.5, 5.0, 500.0)


def test_what_stands_still_falls_to_zero_within_two_windows() -> None:
    flow = Flow(0.0)
    steady(flow, 0, 20)
    rates = [flow.rates(20.0 + passed).messages for passed in (0.0, 2.5, 5.0, 7.5, 10.0)]
    assert rates == pytest.approx([10.0, 7.5, 5.0, 2.5, 0.0])
    assert flow.rates(1000.0) == (0, 0, 0)
    assert flow.total == Counts(20, 200, 20_000)


def test_a_flow_that_begins_again_does_not_count_the_pause() -> None:
    flow = Flow(0.0)
    steady(flow, 0, 10)
    flow.add(10, 1000, 100.0)
    assert flow.rates(101.0).messages == pytest.approx(10 / WINDOW_S)


def test_a_clock_that_goes_back_begins_rates_anew() -> None:
    flow = Flow(100.0)
    steady(flow, 100, 115)
    flow.add(10, 1000, 50.0)
    assert flow.total.messages == 160
    assert flow.rates(52.0).messages == pytest.approx(5.0)
    flow.add(10, 1000, 52.0)
    assert flow.rates(52.0).messages == pytest.approx(10.0)


def test_asking_changes_nothing() -> None:
    asked, left = Flow(0.0), Flow(0.0)
    for second in range(45):
        asked.add(second, second * 10, float(second))
        left.add(second, second * 10, float(second))
        asked.rates(second + 0.9)
    assert asked.rates(45.0) == left.rates(45.0)


def test_a_partition_counts_by_producer_and_in_all() -> None:
    partition = Stats().partition("orders", 0)
    partition.published("a", 10, 1000, 0.0)
    partition.published("b", 1, 100, 0.0)
    partition.published("a", 5, 500, 1.0)
    assert partition.published_flow is not None
    assert partition.published_flow.total == Counts(3, 16, 1600)
    assert {name: flow.total for name, flow in partition.producers.items()} == {"a": (2, 15, 1500), "b": (1, 1, 100)}
    partition.delivered(2, 16, 1600, 2.0)
    partition.delivered(3, 16, 1600, 2.0)
    assert partition.delivered_flow is not None
    assert partition.delivered_flow.total == Counts(5, 32, 3200)


def test_a_partition_that_nothing_passed_has_no_counters() -> None:
    partition = Stats().partition("orders", 0)
    assert partition.published_flow is None
    assert partition.delivered_flow is None
    assert not partition.has_filtered
    partition.filters.accepted += 1
    assert partition.filters == FilterCounts(accepted=1)
    assert partition.has_filtered


def test_counters_of_a_partition_are_made_once_and_go_with_their_topic() -> None:
    stats = Stats()
    partition = stats.partition("orders", 1)
    partition.published("a", 1, 1, 0.0)
    assert stats.partition("orders", 1) is partition
    assert stats.topic("orders") == {1: partition}
    stats.drop_topic("orders")
    stats.drop_topic("orders")
    assert stats.topic("orders") == {}
    assert stats.partition("orders", 1) is not partition


def test_connections_are_counted_by_client() -> None:
    stats = Stats()
    for client in ("a", "a", "b"):
        stats.connected(client)
    assert (stats.connections("a"), stats.connections("b")) == (2, 1)
    for client in ("a", "b", "b", "never"):
        stats.disconnected(client)
    assert (stats.connections("a"), stats.connections("b"), stats.connections("never")) == (1, 0, 0)


def test_names_that_clients_make_up_are_bounded_in_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITION_PRODUCERS_MAX", 3)
    stats = Stats()
    partition = stats.partition("orders", 0)
    for number in range(10):
        stats.connected(f"client-{number}")
        partition.published(f"client-{number}", 1, 100, 0.0)
    assert {name: flow.messages for name, flow in partition.producers.items()} == {
        "client-0": 1,
        "client-1": 1,
        "client-2": 1,
        OTHERS: 7,
    }
    assert partition.published_flow is not None
    assert partition.published_flow.messages == 10


def test_names_that_clients_make_up_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 4)
    stats = Stats()
    for number in range(10):
        stats.connected(f"client-{number}")
        stats.partition("orders", number % 5).published(f"client-{number}", 1, 100, 0.0)
    names = [name for number in range(5) for name in stats.partition("orders", number).producers]
    assert len([name for name in names if name != OTHERS]) == 4
    assert (
        sum(flow.messages for number in range(5) for flow in stats.partition("orders", number).producers.values()) == 10
    )


def test_names_of_clients_that_are_gone_make_room_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITION_PRODUCERS_MAX", 2)
    stats = Stats()
    partition = stats.partition("orders", 0)
    for name in ("gone", "here", "new"):
        stats.connected(name)
    stats.disconnected("gone")
    for name in ("gone", "here", "new"):
        partition.published(name, 1, 100, 0.0)
    assert set(partition.producers) == {"here", "new"}
    stats.disconnected("here")
    partition.published("newer", 1, 100, PRUNE_EVERY_S - 1)
    assert set(partition.producers) == {"here", "new", OTHERS}
    stats.connected("newer")
    partition.published("newer", 1, 100, PRUNE_EVERY_S)
    assert set(partition.producers) == {"new", "newer", OTHERS}
    partition.published("newest", 1, 100, PRUNE_EVERY_S)
    assert {name: flow.messages for name, flow in partition.producers.items()} == {"new": 1, "newer": 1, OTHERS: 2}
