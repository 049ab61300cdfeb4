from __future__ import annotations

import pickle
import threading
from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics import Distribution, MetricKind, Registry, Sample


def test_a_counter_grows_and_shows_in_the_snapshot() -> None:
    registry = Registry()
    sent = registry.counter("sent_total", "Messages sent.", ["cluster", "topic"])
    orders = sent.labels(cluster="a", topic="orders")
    orders.add()
    orders.add(41)
    assert registry.snapshot().value("sent_total", cluster="a", topic="orders") == 42
    assert repr(orders) == "Counter(42)"


@pytest.mark.parametrize("amount", [-1, float("nan")])
def test_a_counter_never_falls(amount: float) -> None:
    counter = Registry().counter("sent_total", "Messages sent.").labels()
    with pytest.raises(ValueError, match="only grows"):
        counter.add(amount)
    assert repr(counter) == "Counter(0)"


def test_a_gauge_rises_falls_and_is_set() -> None:
    registry = Registry()
    waiting = registry.gauge("waiting_bytes", "Bytes waiting.").labels()
    waiting.set(10)
    waiting.add(5)
    waiting.add(-12)
    assert registry.snapshot().value("waiting_bytes") == 3
    assert repr(waiting) == "Gauge(3)"


def test_a_histogram_counts_a_value_on_a_bound_below_it() -> None:
    registry = Registry()
    written = registry.histogram("write_bytes", "Bytes per write.", bounds=[10, 100]).labels()
    for value in (0, 10, 11, 100, 101):
        written.observe(value)
    assert registry.snapshot().value("write_bytes") == Distribution((10, 100), (2, 2, 1), 5, 222)
    assert repr(written) == "Histogram(count=5, sum=222)"


def test_a_histogram_refuses_nan() -> None:
    written = Registry().histogram("write_bytes", "Bytes per write.", bounds=[1]).labels()
    with pytest.raises(ValueError, match="no bucket"):
        written.observe(float("nan"))
    assert repr(written) == "Histogram(count=0, sum=0)"


@given(
    st.lists(st.integers(-100, 100), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(-200, 200), max_size=50),
)
def test_every_observation_is_in_exactly_one_bucket(bounds: list[int], values: list[int]) -> None:
    registry = Registry()
    histogram = registry.histogram("h", "Some numbers.", bounds=bounds).labels()
    for value in values:
        histogram.observe(value)
    buckets = Tally(next((at for at, bound in enumerate(bounds) if value <= bound), len(bounds)) for value in values)
    counts = tuple(buckets[at] for at in range(len(bounds) + 1))
    assert registry.snapshot().value("h") == Distribution(tuple(bounds), counts, len(values), sum(values))


def test_children_of_equal_labels_are_the_same() -> None:
    sent = Registry().counter("sent_total", "Messages sent.", ["a", "b"])
    assert sent.labels(a="1", b="2") is sent.labels(b="2", a="1")
    assert sent.labels(a="1", b="2") is not sent.labels(a="2", b="1")


@pytest.mark.parametrize("labels", [{}, {"topic": "t", "color": "red"}, {"color": "red"}])
def test_missing_and_unknown_labels_are_named(labels: dict[str, str]) -> None:
    registry = Registry()
    sent = registry.counter("sent_total", "Messages sent.", ["topic"])
    with pytest.raises(ValueError, match=r"counter sent_total\(topic\) was given the labels") as raised:
        sent.labels(**labels)
    assert str(raised.value).endswith(f"({', '.join(labels)})")
    assert registry.snapshot().families[0].samples == ()


def test_asking_again_gives_the_same_family() -> None:
    registry = Registry()
    assert registry.gauge("g", "A gauge.", ["x"]) is registry.gauge("g", "A gauge.", ["x"])


def test_registering_again_as_something_else_is_an_error() -> None:
    registry = Registry()
    registry.counter("m", "A metric.", ["x"])
    registry.histogram("h", "A histogram.", bounds=[1, 2])
    with pytest.raises(ValueError, match=r"before as counter m\(x\), not as counter m\(x, y\)"):
        registry.counter("m", "A metric.", ["x", "y"])
    with pytest.raises(ValueError, match=r"before as counter m\(x\), not as gauge m\(x\)"):
        registry.gauge("m", "A metric.", ["x"])
    with pytest.raises(ValueError, match=r"with bounds \(1, 2\), not as histogram h\(\) with bounds \(1, 3\)"):
        registry.histogram("h", "A histogram.", bounds=[1, 3])


@pytest.mark.parametrize("bounds", [[], [2, 1], [1, 1], [1, float("inf")], [float("-inf"), 1], [float("nan")]])
def test_bounds_must_be_finite_and_rise(bounds: list[float]) -> None:
    registry = Registry()
    with pytest.raises(ValueError, match="finite numbers that rise"):
        registry.histogram("h", "A histogram.", bounds=bounds)
    assert registry.snapshot().families == ()


@pytest.mark.parametrize(
    ("name", "labels"), [("not a name", []), ("m", ["not-a-label"]), ("m", ["x", "x"]), ("größe", [])]
)
def test_names_that_no_exporter_could_write_are_refused(name: str, labels: list[str]) -> None:
    with pytest.raises(ValueError, match=r"letters, digits|names a label twice"):
        Registry().counter(name, "A metric.", labels)


def test_children_of_a_closed_producer_are_removed() -> None:
    registry = Registry()
    sent = registry.counter("sent_total", "Messages sent.", ["topic", "producer"])
    opened = registry.gauge("open_lanes", "Open lanes.", ["producer"])
    topics = registry.gauge("topics", "Topics known.", ["cluster"])
    for topic in ("a", "b"):
        for producer in ("p1", "p2"):
            sent.labels(topic=topic, producer=producer).add()
    held = opened.labels(producer="p1")
    topics.labels(cluster="c").set(2)

    assert registry.remove(producer="p1") == 3
    held.add(7)

    snapshot = registry.snapshot()
    assert snapshot.value("sent_total", topic="a", producer="p1") is None
    assert snapshot.value("sent_total", topic="a", producer="p2") == 1
    assert snapshot.value("open_lanes", producer="p1") is None
    assert snapshot.value("topics", cluster="c") == 2
    assert sent.remove(topic="a") == 1
    with pytest.raises(ValueError, match="has no label color"):
        sent.remove(color="red")


def test_a_removed_child_starts_anew() -> None:
    sent = Registry().counter("sent_total", "Messages sent.", ["topic"])
    sent.labels(topic="a").add(5)
    sent.remove(topic="a")
    assert repr(sent.labels(topic="a")) == "Counter(0)"


def test_a_snapshot_is_sorted_plain_data_that_stays_as_it_was() -> None:
    registry = Registry()
    later = registry.gauge("z", "The last.", ["x"])
    registry.counter("a", "The first.").labels().add(1)
    later.labels(x="2").set(2)
    later.labels(x="1").set(1)
    snapshot = registry.snapshot()
    later.labels(x="1").set(9)

    assert [family.shape.name for family in snapshot.families] == ["a", "z"]
    assert snapshot.families[1].samples == (Sample(("1",), 1), Sample(("2",), 2))
    assert snapshot.families[1].shape.kind is MetricKind.GAUGE
    assert snapshot.families[1].text == "The last."
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert snapshot.value("no_such_family") is None
    with pytest.raises(ValueError, match="was given the labels"):
        snapshot.value("z", y="1")


def test_families_and_registries_tell_their_state() -> None:
    registry = Registry()
    family = registry.histogram("h", "A histogram.", ["x"], bounds=[1])
    family.labels(x="1")
    assert repr(family) == "<histogram h(x) with bounds (1,), 1 children>"
    assert repr(registry) == "<Registry of 1 families>"


def test_threads_lose_no_count() -> None:
    registry = Registry()
    start = threading.Barrier(4)

    def count() -> None:
        start.wait()
        for turn in range(2_000):
            registry.counter("c", "Counted.", ["x"]).labels(x=str(turn % 3)).add(2)
            registry.histogram("h", "Observed.", bounds=[1, 2]).labels().observe(turn % 3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = registry.snapshot()
    counted = [sample.value for sample in snapshot.families[0].samples]
    assert counted == [2 * 4 * 667, 2 * 4 * 667, 2 * 4 * 666]
    assert snapshot.value("h") == Distribution((1, 2), (5336, 2664, 0), 8000, 4 * 1999)
