"""Worlds that tests of a cluster begin with."""

from __future__ import annotations

from collections.abc import Callable

from penstock.wire.protocol import (
    ClusterView,
    Endpoint,
    NodeId,
    PartitionView,
    TopicView,
)

from .memory import Faults, ToyBroker, World, cluster_view

SEED, SECOND_SEED = Endpoint("seed", 1), Endpoint("seed", 2)
ONE, TWO, THREE = Endpoint("one", 1), Endpoint("two", 2), Endpoint("three", 3)
NODES: dict[NodeId, Endpoint] = {1: ONE, 2: TWO}
ORDERS = TopicView({0: PartitionView(1, 0), 1: PartitionView(2, 0)})
VIEW = cluster_view(NODES, orders=ORDERS)
refused: Callable[[], Faults] = lambda: Faults(refuse=True)  # noqa: E731


def make_world(view: ClusterView = VIEW, seed: Endpoint = ONE) -> World:
    """Two brokers, the first of which is the seed unless said otherwise."""
    return World([seed], [ToyBroker(endpoint, view) for endpoint in dict.fromkeys((seed, ONE, TWO))])


def show(world: World, view: ClusterView) -> None:
    for broker in world.network.brokers.values():
        broker.view = view


def broker(world: World, endpoint: Endpoint) -> ToyBroker:
    return world.network.brokers[endpoint]


def learn(world: World, topic: str = "orders") -> World:
    world.cluster.want(topic, world.now)
    world.run(lambda: world.cluster.partitions(topic))
    return world
