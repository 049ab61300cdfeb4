"""Under load to eight partitions, brokers are killed, paused and restarted, leaders move, connections are cut anywhere.

What was acknowledged is read back by confluent-kafka: complete, once, in order, equal in keys, headers and times. What
failed says truthfully whether it was stored.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from brokers.kafka import KafkaCluster
from penstock.errors import ExpiredError, TimedOutError
from tests.produce.real.conftest import Connect
from tests.produce.real.load import Load, judge
from tests.produce.real.proxy import Proxy
from tests.produce.real.reading import LIMIT_S, create, read_all

PARTITIONS = 8
REQUEST_MS = 1500
LONGER_THAN_A_REQUEST_S = 2.5
LONGER_THAN_A_SESSION_S = 6.0  # of a broker with its controller, which is 4 s: others lead then
IMPATIENT = {"request_timeout_ms": REQUEST_MS, "retry_backoff_max_ms": 500}


def leader_of(kafka: KafkaCluster, topic: str, partition: int) -> int:
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(topic, timeout=LIMIT_S)
    number: int = found.topics[topic].partitions[partition].leader
    return number


def elect_preferred(kafka: KafkaCluster, topic: str) -> None:
    """Give each partition back to the broker that should lead it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    admin.elect_leaders(ElectionType.PREFERRED, partitions).result(LIMIT_S)


def all_stored(kafka: KafkaCluster, topic: str, load: Load) -> None:
    """Each message that was sent is there, once and in order."""
    outcomes = load.outcomes()
    found = read_all(kafka.bootstrap, topic, len(outcomes))
    assert judge(outcomes, found) == {"stored": len(outcomes)}


def test_three_nodes_one_killed_and_restarted_one_paused(real_kafka_cluster: KafkaCluster, connect: Connect) -> None:
    kafka = real_kafka_cluster
    topic = create(kafka.bootstrap, PARTITIONS, 3)
    with connect(kafka.url, **IMPATIENT) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            load.wait_for_more(2000)
            killed = leader_of(kafka, topic, 0)
            kafka.kill(killed)
            load.wait_for_more(4000)
            paused = leader_of(kafka, topic, 0)
            kafka.restart(killed)
            elect_preferred(kafka, topic)
            load.wait_for_more(2000)
            kafka.pause(paused)
            time.sleep(LONGER_THAN_A_REQUEST_S)  # the fault itself
            kafka.resume(paused)
            load.wait_for_more(4000)
        all_stored(kafka, topic, load)


def test_one_node_paused_for_longer_than_messages_may_take_tells_the_truth(
    real_kafka: KafkaCluster, connect: Connect
) -> None:
    topic = create(real_kafka.bootstrap, PARTITIONS)
    with connect(real_kafka.url, request_timeout_ms=700, retry_backoff_max_ms=200) as client:
        with Load(client.producer(topic, delivery_timeout_ms=1500), PARTITIONS) as load:
            load.wait_for_more(1000)
            real_kafka.pause(1)
            time.sleep(LONGER_THAN_A_REQUEST_S)
            real_kafka.resume(1)
            load.wait_for_more(1000)
        outcomes = load.outcomes()
    kinds = judge(outcomes, read_all(real_kafka.bootstrap, topic))
    assert kinds["stored"] >= 2000
    assert kinds[TimedOutError.__name__] > 0, "sent while the broker stood still"
    assert kinds[ExpiredError.__name__] > 0, "never sent"
    assert set(kinds) == {"stored", TimedOutError.__name__, ExpiredError.__name__}


def test_connections_cut_after_any_byte_lose_nothing_and_store_nothing_twice(
    proxied_kafka: tuple[KafkaCluster, Proxy], connect: Connect
) -> None:
    kafka, proxy = proxied_kafka
    topic = create(kafka.bootstrap, PARTITIONS)
    chance = random.Random(5)
    with connect(f"kafka://127.0.0.1:{proxy.port}", retry_backoff_ms=10, retry_backoff_max_ms=100) as client:
        with Load(client.producer(topic), PARTITIONS, rate=5000) as load:
            for _ in range(25):
                proxy.cut_after(chance.randrange(30_000), "there")
                load.wait_for_more(300)
                proxy.cut_after(chance.randrange(600), "back")
                load.wait_for_more(300)
        proxy.spare()
        all_stored(kafka, topic, load)
    assert proxy.cuts > 30


def test_a_connection_that_falls_silent_is_given_up(
    proxied_kafka: tuple[KafkaCluster, Proxy], connect: Connect
) -> None:
    kafka, proxy = proxied_kafka
    topic = create(kafka.bootstrap, PARTITIONS)
    with connect(f"kafka://127.0.0.1:{proxy.port}", request_timeout_ms=500, retry_backoff_max_ms=100) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            for _ in range(2):
                load.wait_for_more(500)
                proxy.hold()
                time.sleep(1.2)
                proxy.release()
            load.wait_for_more(500)
        all_stored(kafka, topic, load)


# The long ones


def faults(kafka: KafkaCluster, topic: str, chance: random.Random) -> list[Callable[[int], None]]:
    """What can happen to a node."""

    def paused(seconds: float) -> Callable[[int], None]:
        def pause(node: int) -> None:
            kafka.pause(node)
            time.sleep(seconds)
            kafka.resume(node)

        return pause

    def killed(node: int) -> None:
        kafka.kill(node)
        time.sleep(chance.uniform(0, 6))
        kafka.restart(node)

    def restarted(node: int) -> None:
        kafka.shut_down(node)
        kafka.restart(node)

    def led_as_preferred(_: int) -> None:
        elect_preferred(kafka, topic)

    return [paused(LONGER_THAN_A_REQUEST_S), paused(LONGER_THAN_A_SESSION_S), killed, restarted, led_as_preferred]


def batter(kafka: KafkaCluster, load: Load, topic: str, seed: int, rounds: int) -> None:
    """Let every fault happen to nodes drawn by chance, again and again, with time to recover in between."""
    chance = random.Random(seed)
    for number in range(rounds):
        possible = faults(kafka, topic, chance)
        possible[number % len(possible)](chance.choice(list(kafka.nodes)))
        load.wait_for_more(chance.choice([10, 1000, 5000]))


@pytest.mark.stress
@pytest.mark.parametrize("seed", [1, 2])
def test_three_nodes_battered(real_kafka_cluster: KafkaCluster, connect: Connect, seed: int) -> None:
    kafka = real_kafka_cluster
    topic = create(kafka.bootstrap, PARTITIONS, 3)
    with connect(kafka.url, **IMPATIENT) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            batter(kafka, load, topic, seed, 15)
        all_stored(kafka, topic, load)


@pytest.mark.stress
@pytest.mark.parametrize("seed", [3, 4])
def test_three_nodes_battered_while_messages_have_little_time(
    real_kafka_cluster: KafkaCluster, connect: Connect, seed: int
) -> None:
    kafka = real_kafka_cluster
    topic = create(kafka.bootstrap, PARTITIONS, 3)
    policy = penstock.BatchPolicy(count_max=40)
    with connect(kafka.url, request_timeout_ms=700, retry_backoff_max_ms=200) as client:
        with Load(client.producer(topic, delivery_timeout_ms=1200, batch=policy), PARTITIONS) as load:
            batter(kafka, load, topic, seed, 15)
        outcomes = load.outcomes()
    judge(outcomes, read_all(kafka.bootstrap, topic))


@pytest.mark.stress
def test_one_node_killed_again_and_again(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, PARTITIONS)
    with connect(real_kafka.url, **IMPATIENT) as client:
        with Load(client.producer(topic), PARTITIONS) as load:
            for _ in range(4):
                load.wait_for_more(2000)
                real_kafka.restart(1)
            load.wait_for_more(2000)
        all_stored(real_kafka, topic, load)


@pytest.mark.stress
@pytest.mark.parametrize("seed", [1, 2])
def test_hundreds_of_cuts(proxied_kafka: tuple[KafkaCluster, Proxy], connect: Connect, seed: int) -> None:
    kafka, proxy = proxied_kafka
    topic = create(kafka.bootstrap, PARTITIONS)
    chance = random.Random(seed)
    with connect(f"kafka://127.0.0.1:{proxy.port}", retry_backoff_ms=5, retry_backoff_max_ms=50) as client:
        with Load(client.producer(topic), PARTITIONS, rate=5000) as load:
            for _ in range(400):
                direction, most = chance.choice([("there", 30_000), ("back", 600)])
                proxy.cut_after(chance.randrange(most), direction)
                load.wait_for_more(chance.choice([1, 300]))
        proxy.spare()
        all_stored(kafka, topic, load)
