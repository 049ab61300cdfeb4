from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import aiokafka.partitioner
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, MessageError
from penstock.produce.router import (
    PartialRoundRobin,
    RoundRobin,
    Single,
    Spread,
    Sticky,
    by_crc32,
    by_murmur2,
    check_partition,
    murmur2,
)

NOTHING_QUEUED: dict[int, int] = {}


def draw(spread: Spread, partitions: int, times: int, available: list[int] | None = None) -> list[int]:
    with_leader = list(range(partitions)) if available is None else available
    return [spread.choose(partitions, with_leader, NOTHING_QUEUED) for _ in range(times)]


@given(st.binary(max_size=100))
def test_murmur2_is_the_hash_of_other_clients(key: bytes) -> None:
    assert murmur2(key) == aiokafka.partitioner.murmur2(key) & 0xFFFFFFFF


# Keys and hashes as Kafka's Java client has them in its own tests.
@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_hash_of_the_java_client(key: bytes, hash_: int) -> None:
    assert murmur2(key) == hash_ & 0xFFFFFFFF


@given(st.binary(min_size=1, max_size=50), st.integers(1, 100))
def test_keys_go_where_other_clients_send_them(key: bytes, partitions: int) -> None:
    everywhere = list(range(partitions))
    assert by_murmur2(key, partitions) == aiokafka.partitioner.DefaultPartitioner()(key, everywhere, everywhere)


def test_crc32_goes_where_librdkafka_sends_keys() -> None:
    keys = [b"k%d" % number for number in range(50)]
    sent: dict[bytes | None, int | None] = {}
    producer = Producer({"test.mock.num.brokers": 1, "partitioner": "consistent", "log_level": 0})
    for key in keys:
        producer.produce(
            "t", b"", key=key, on_delivery=lambda error, message: sent.update({message.key(): message.partition()})
        )
    assert producer.flush(30) == 0
    partitions = len(producer.list_topics("t").topics["t"].partitions)
    assert sent == {key: by_crc32(key, partitions) for key in keys}


def test_an_empty_key_is_a_key() -> None:
    assert by_murmur2(b"", 7) == (murmur2(b"") & 0x7FFFFFFF) % 7


def test_sticky_prefers_short_queues() -> None:
    queued = {0: 1_000_000, 2: 500_000}
    spread = Sticky(random.Random(1))
    drawn = Counter(spread.choose(3, [0, 1, 2], queued) for _ in range(3_000))
    assert drawn[1] > drawn[2] > drawn[0]
    assert drawn[0] < 30


@pytest.mark.parametrize(
    "spread", [Sticky(random.Random(1)), RoundRobin(random.Random(1)), Single(None, random.Random(1))]
)
def test_partitions_without_a_leader_are_left_out(spread: Spread) -> None:
    assert set(draw(spread, 10, 100, [2, 5])) <= {2, 5}


@pytest.mark.parametrize("spread", [Sticky(), RoundRobin(), Single(), PartialRoundRobin(3)])
def test_when_no_partition_has_a_leader_one_is_chosen_all_the_same(spread: Spread) -> None:
    assert all(0 <= partition < 10 for partition in draw(spread, 10, 20, []))


def test_round_robin_visits_every_partition_in_turn() -> None:
    drawn = draw(RoundRobin(), 5, 50)
    assert all((after - before) % 5 == 1 for before, after in pairwise(drawn))


def test_round_robin_producers_do_not_start_together() -> None:
    assert len({draw(RoundRobin(random.Random(seed)), 100, 1)[0] for seed in range(20)}) > 10


def test_single_keeps_to_its_partition() -> None:
    assert len(set(draw(Single(), 100, 50))) == 1
    assert set(draw(Single(7), 100, 50)) == {7}


@given(st.integers(1, 20), st.integers(1, 50), st.integers(0, 1000))
def test_partial_round_robin_uses_its_limit_and_evenly(limit: int, partitions: int, seed: int) -> None:
    spread = PartialRoundRobin(limit, random.Random(seed))
    size = min(limit, partitions)
    drawn = Counter(draw(spread, partitions, 10 * size))
    assert len(drawn) == size
    assert set(drawn.values()) == {10}


def test_partial_round_robin_grows_with_new_partitions_up_to_its_limit() -> None:
    spread = PartialRoundRobin(5, random.Random(3))
    draw(spread, 3, 1)
    assert sorted(spread.part) == [0, 1, 2]
    draw(spread, 4, 1)
    assert sorted(spread.part) == [0, 1, 2, 3]
    draw(spread, 100, 1)
    assert len(spread.part) == 5
    before = spread.part
    draw(spread, 200, 10)
    assert spread.part == before


def test_partial_round_robin_never_leaves_a_partition_it_had() -> None:
    spread = PartialRoundRobin(4, random.Random(3))
    seen: tuple[int, ...] = ()
    for partitions in (2, 2, 3, 8, 9):
        draw(spread, partitions, 1)
        assert spread.part[: len(seen)] == seen
        seen = spread.part


@pytest.mark.parametrize(("partition", "text"), [(-1, "0 to 2"), (3, "0 to 2"), ("1", "an int"), (True, "an int")])
def test_a_partition_that_cannot_be_is_named(partition: Any, text: str) -> None:
    with pytest.raises(MessageError, match=f"partition: expected {text}"):
        check_partition(partition, 3)


def test_limits_that_cannot_be_are_named() -> None:
    with pytest.raises(ConfigError, match="limit: expected 1 or more"):
        PartialRoundRobin(0)
    with pytest.raises(ConfigError, match="partition: expected 0 or more"):
        Single(-1)
