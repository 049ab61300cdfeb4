"""Copying from one embedded broker to another, as users do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.errors import ConfigError, FencedError, GapError, UnknownTopicError
from penstock.replicate.consignment import Reason
from tests.replicate.pair import LIMIT_S, Pair, numbers, until

DELIVERIES = ("exactly-once", "at-least-once")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with penstock.embedded() as source, penstock.embedded() as target:
        made = Pair(source.url, target.url)
        yield made
        made.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(numbers)}"


def numbered(first: int, behind: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, behind)]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("repack", ["never", "auto", "always"])
def test_the_copy_is_equal(pair: Pair, topic: str, delivery: str, repack: str) -> None:
    pair.source.client.create_topic(topic, 3)
    pair.source.send(topic, numbered(0, 500), properties={"region": "eu"}, compression="lz4")
    copying = pair.copy_all(topic, name=topic, delivery=delivery, repack=repack)
    assert pair.target.rows(topic) == pair.source.rows(topic)
    total = copying.stats().total
    assert total.messages_copied == 500
    assert (total.entries_unopened > 0) is (repack == "never")
    assert (total.opened[Reason.TINY] > 0) is (repack != "never")
    assert total.entries_copied == total.entries_unopened + total.opened[Reason.TINY]
    assert copying.stats().bytes_waiting == 0


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_second_run_goes_on_where_the_first_ended(pair: Pair, topic: str, delivery: str) -> None:
    pair.source.client.create_topic(topic, 2)
    pair.source.send(topic, numbered(0, 100))
    assert pair.copy_all(topic, name=topic, delivery=delivery).stats().total.messages_copied == 100
    assert pair.copy_all(topic, name=topic, delivery=delivery).stats().total.messages_copied == 0
    pair.source.send(topic, numbered(100, 150))
    assert pair.copy_all(topic, name=topic, delivery=delivery).stats().total.messages_copied == 50
    assert pair.target.rows(topic) == pair.source.rows(topic)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_topic_is_followed(pair: Pair, topic: str, delivery: str) -> None:
    pair.source.client.create_topic(topic, 2)
    with pair.copying(topic, name=topic, delivery=delivery) as copying:
        for first in (0, 100, 200):
            pair.source.send(topic, numbered(first, first + 100))
            until(lambda: len(pair.target.rows(topic)) == first + 100, copying)  # noqa: B023
        until(lambda: copying.stats().delay_ms == 0, copying)
    assert pair.target.rows(topic) == pair.source.rows(topic)


def test_a_second_instance_ends_the_first_for_good(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 2)
    pair.source.send(topic, numbered(0, 100))
    with pair.copying(topic, name=topic) as first:
        until(lambda: first.stats().total.messages_copied == 100, first)
        with pair.copying(topic, name=topic) as second:
            until(lambda: len(second.stats().partitions) == 2, second)
            until(lambda: all(one.committed >= 0 for one in second.stats().partitions.values()), second)
            pair.source.send(topic, numbered(100, 200))
            until(lambda: len(pair.target.rows(topic)) == 200, second)
            with pytest.raises(FencedError, match="another instance took"):
                first.wait(LIMIT_S)
    assert pair.target.rows(topic) == pair.source.rows(topic)


def test_only_what_the_filter_lets_through_is_copied(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    regions = ["eu", "us", "asia"]
    policy = penstock.BatchPolicy(bytes_max=400, same_properties={"region": ["eu", "us"]})
    with pair.source.client.producer(topic, batch=policy) as producer:
        for number in range(300):
            producer.send(b"%d" % number, properties={"region": regions[number // 20 % 3]})
    copying = pair.copy_all(topic, name=topic, filter="region = eu", repack="never")
    copied = pair.target.rows(topic)
    assert copied == [row for row in pair.source.rows(topic) if dict(row[3])["region"] == b"eu"]
    stats = copying.stats()
    assert stats.skipped > 0, "the broker filters"
    assert stats.total.entries_unopened == stats.total.entries_copied
    assert stats.messages_filtered + stats.skipped + stats.total.messages_copied == 300


def test_messages_of_mixed_batches_are_sifted(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    with pair.source.client.producer(topic) as producer:
        for number in range(200):
            producer.send(b"%d" % number, properties={"region": "eu" if number % 3 else "us"})
    copying = pair.copy_all(topic, name=topic, filter="region = eu")
    assert pair.target.rows(topic) == [row for row in pair.source.rows(topic) if dict(row[3])["region"] == b"eu"]
    assert copying.stats().messages_sifted == 67
    assert copying.stats().total.opened[Reason.SIFTED] > 0


def test_nothing_returns_to_where_it_came_from(pair: Pair, topic: str) -> None:
    for end in (pair.source, pair.target):
        end.client.create_topic(topic, 2)
    there, back = pair.copying(topic, name=f"{topic}-there"), pair.copying(topic, name=f"{topic}-back", back=True)
    with there, back:
        pair.source.send(topic, numbered(0, 100))
        pair.target.send(topic, numbered(500, 600))
        everything = [*numbered(0, 100), *numbered(500, 600)]
        for end in (pair.source, pair.target):
            until(lambda: len(end.values(topic)) >= 200, there)  # noqa: B023
        pair.source.send(topic, numbered(100, 110))
        everything = sorted([*everything, *numbered(100, 110)])
        until(lambda: len(pair.target.values(topic)) >= 210, there)
        until(lambda: there.stats().delay_ms == back.stats().delay_ms == 0, back)
        assert pair.source.values(topic) == pair.target.values(topic) == everything
        assert back.stats().total.messages_returned == 110
        assert there.stats().total.messages_returned == 100


def test_a_copy_that_was_made_anew_is_filled_from_the_beginning(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    pair.source.send(topic, numbered(0, 50))
    pair.copy_all(topic, name=topic)
    pair.target.client.delete_topic(topic)
    pair.copy_all(topic, name=topic)
    assert pair.target.rows(topic) == pair.source.rows(topic)


def test_a_source_that_was_made_anew_stops_the_copy_and_says_so(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    pair.source.send(topic, numbered(0, 50))
    pair.copy_all(topic, name=topic)
    pair.source.client.delete_topic(topic)
    pair.source.client.create_topic(topic, 1)
    pair.source.send(topic, numbered(50, 60))
    with pytest.raises(GapError, match="deleted and created again"):
        pair.copy_all(topic, name=topic)
    assert len(pair.target.rows(topic)) == 50
    pair.copy_all(topic, name=topic, on_gap="skip")
    assert pair.target.values(topic) == numbered(0, 60)


def test_topics_are_chosen_by_a_pattern_and_renamed_and_new_ones_are_noticed(pair: Pair, topic: str) -> None:
    for ending in ("a", "b"):
        pair.source.client.create_topic(f"{topic}-{ending}", 1)
        pair.source.send(f"{topic}-{ending}", numbered(0, 10))
    pair.source.client.create_topic(f"other-{topic}", 1)
    rules: dict[str, Any] = {"pattern": f"{topic}-.*", "rename": "{cluster}.{topic}", "cluster": "west"}
    with pair.copying(name=topic, discover_ms=100, **rules) as copying:
        until(lambda: copying.stats().total.messages_copied == 20, copying)
        pair.source.client.create_topic(f"{topic}-c", 2)
        pair.source.send(f"{topic}-c", numbered(0, 30))
        until(lambda: copying.stats().total.messages_copied == 50, copying)
        pair.source.client.grow_topic(f"{topic}-c", 3)
        until(lambda: len(copying.stats().partitions) == 5, copying)
        pair.source.send(f"{topic}-c", numbered(30, 40), partition=2)
        until(lambda: copying.stats().total.messages_copied == 60, copying)
    copies = [name for name in pair.target.client.topics() if name.startswith(f"west.{topic}")]
    assert copies == [f"west.{topic}-{ending}" for ending in "abc"]
    for ending in "abc":
        assert pair.target.rows(f"west.{topic}-{ending}") == pair.source.rows(f"{topic}-{ending}")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_another_number_of_partitions_is_refused_unless_asked_for(pair: Pair, topic: str, delivery: str) -> None:
    pair.source.client.create_topic(topic, 3)
    pair.target.client.create_topic(topic, 2)
    pair.source.send(topic, numbered(0, 300))
    with pytest.raises(ConfigError, match=f"{topic} has 3 partitions.*has 2.*repartition=True"):
        pair.copying(topic, name=topic, delivery=delivery)
    copying = pair.copy_all(topic, name=topic, repartition=True, delivery=delivery)
    assert pair.target.values(topic) == numbered(0, 300)
    assert copying.stats().total.opened[Reason.ROUTED] > 0
    assert {row[0] for row in pair.target.rows(topic)} == {0, 1}
    pair.target.send(topic, numbered(0, 300))  # with the same keys, by the same hash
    places: dict[bytes | None, set[int]] = {}
    for partition, key, *_ in pair.target.rows(topic):
        places.setdefault(key, set()).add(partition)
    assert all(len(found) == 1 for found in places.values())
    assert pair.copy_all(topic, name=topic, repartition=True, delivery=delivery).stats().total.messages_copied == 0


def test_copying_starts_and_ends_within_batches(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    pair.source.send(topic, numbered(0, 100), batch=penstock.BatchPolicy(bytes_max=1 << 20))
    copying = pair.copy_all(topic, name=topic, start=37)
    assert [row[2] for row in pair.target.rows(topic)] == numbered(37, 100)
    assert copying.stats().total.opened[Reason.CUT] == 1


def test_what_cannot_be_copied_is_refused_before_anything_is_read(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    with pytest.raises(UnknownTopicError, match="no such topic"):
        pair.copying("missing", name="x")
    with pytest.raises(ConfigError, match="the same cluster"):
        penstock.copy(pair.source.url, pair.source.url, topic, name="x")
    with pytest.raises(ConfigError, match=r"\^"):
        pair.copying(topic, name="x", filter="region === eu")
    with pytest.raises(ConfigError, match="name: a pipeline is called"):
        pair.copying(topic, name="with space")
    with pytest.raises(ConfigError, match="give a pattern"):
        pair.copying(name="x")
    with pytest.raises(ConfigError, match=r"pattern: .*\n.*\n *\^"):
        pair.copying(name="x", pattern="a(b")
    with pytest.raises(ConfigError, match=r"rename: expected a text with \{topic\}"):
        pair.copying(topic, name="x", rename="fixed")
    with pytest.raises(ConfigError, match=r"give it as cluster="):
        pair.copying(topic, name="x", rename="{cluster}.{topic}")
    with pytest.raises(ConfigError, match="until: expected end"):
        pair.copying(topic, name="x", until="later")
    with pytest.raises(ConfigError, match=r"delivery=.*exactly-once"):
        pair.copying(topic, name="x", delivery="twice")
    assert not [name for name in pair.target.client.topics() if name == topic]


def test_copying_within_one_cluster_under_another_name(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 2)
    pair.source.send(topic, numbered(0, 100))
    with penstock.copy(pair.source.url, pair.source.url, topic, name=topic, rename="{topic}.copy", until="end") as made:
        made.wait(LIMIT_S)
    assert pair.source.rows(f"{topic}.copy") == pair.source.rows(topic)


def test_rates_and_permits_hold_back_and_let_go(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 2)
    pair.source.send(topic, numbered(0, 300))
    limits = {"messages_per_second_max": 2000, "copy_entries_max": 1, "copy_bytes_max": 1, "repack": "never"}
    copying = pair.copy_all(topic, name=topic, **limits)
    assert pair.target.rows(topic) == pair.source.rows(topic)
    assert copying.stats().bytes_waiting == 0


def test_metrics_tell_what_was_done(pair: Pair, topic: str) -> None:
    pair.source.client.create_topic(topic, 1)
    pair.source.send(topic, numbered(0, 100))
    copying = pair.copy_all(topic, name=topic, repack="never", io_delay_ms=1)
    snapshot = copying.metrics.snapshot()
    labels = {"pipeline": topic, "topic": topic}
    assert snapshot.value("penstock_copy_messages_total", **labels, outcome="copied") == 100
    assert snapshot.value("penstock_copy_delay_seconds", **labels) == 0
    assert snapshot.value("penstock_copy_waiting_bytes", **labels) == 0
    gate = {"cluster": pair.target.url, "namespace": "", "topic": topic}
    assert snapshot.value("pulsar_replicator_io_buffer_total_bytes", **gate) == 0
    written: Any = snapshot.value("pulsar_replicator_io_per_buffer_bytes", **gate)
    assert written.count > 0


def test_renamed_copies_are_not_copied_back_under_ever_longer_names(pair: Pair, topic: str) -> None:
    for end, name in ((pair.source, f"{topic}-a"), (pair.target, f"{topic}-b")):
        end.client.create_topic(name, 2)
        end.send(name, numbered(0, 10))
    rules: dict[str, Any] = {"pattern": f".*{topic}-.*", "rename": "{cluster}.{topic}", "discover_ms": 50}
    there = pair.copying(name=topic, cluster="west", target_cluster="east", **rules)
    back = pair.copying(name=topic, cluster="east", target_cluster="west", back=True, **rules)
    with there, back:
        until(lambda: there.stats().total.messages_copied == 10, there)
        until(lambda: back.stats().total.messages_copied == 10, back)
        pair.source.client.create_topic(f"{topic}-later", 1)
        until(lambda: len(there.stats().partitions) == 3, there)
    assert [name for name in pair.source.client.topics() if topic in name] == [
        f"east.{topic}-b",
        f"{topic}-a",
        f"{topic}-later",
    ]
    assert [name for name in pair.target.client.topics() if topic in name] == [
        f"{topic}-b",
        f"west.{topic}-a",
        f"west.{topic}-later",
    ]
