"""Brokers die, come back, are cut off, move and lag: every request has one outcome, and the cluster is found again."""

from __future__ import annotations

import random

import pytest

from penstock.config import BatchIo
from penstock.errors import Persisted
from penstock.net.asks import Target, Whom
from penstock.net.cluster import ClusterEvent
from penstock.net.pipeline import Lost, Sent
from penstock.wire.protocol import Answered, ClusterView, Endpoint, NodeId, Partition, PartitionView, TopicView

from .memory import Faults, Say, ToyBroker, World

RUNS = 300
TARGETS: list[Target] = [Whom.ANYBODY, Whom.CONTROLLER, Partition("orders", 0), Partition("orders", 1), 1, 2, 3]


class Chaos:
    """Three brokers, of which one at least is well, and a client that goes on asking."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.nodes: dict[NodeId, Endpoint] = {number: Endpoint(f"n{number}", 1) for number in (1, 2, 3)}
        self.epoch = 0
        self.brokers = [ToyBroker(endpoint, self.view()) for endpoint in self.nodes.values()]
        self.world = World(list(self.nodes.values()), self.brokers, request_timeout_ms=2000)
        self.outcomes: dict[int, ClusterEvent] = {}
        self.tokens = 0

    def view(self) -> ClusterView:
        leaders = {number: PartitionView(self.source.choice([1, 2, 3]), self.epoch) for number in (0, 1)}
        return ClusterView(
            "toy-1", dict(self.nodes), {"orders": TopicView(leaders)}, self.source.choice([1, 2, 3, None])
        )

    def disturb(self) -> None:
        broker = self.source.choice(self.brokers[1:])
        match self.source.randrange(7):
            case 0:
                broker.die()
            case 1:
                broker.faults = Faults
                broker.held = None
            case 2:
                cut = self.source.randrange(1, 2000)
                broker.faults = lambda: Faults(cut_after_sent=cut, take_max=self.source.choice([1, 10, 1000]))
            case 3:
                broker.faults = lambda: Faults(silent_until=self.world.now + 1)
            case 4:
                broker.held = broker.held or []
            case 5:
                self.epoch += 1
                self.source.choice(self.brokers).view = self.view()
            case 6:
                self.move(self.source.choice([2, 3]))

    def move(self, node: int) -> None:
        broker = self.brokers[node - 1]
        del self.world.network.brokers[broker.endpoint]
        broker.die()
        self.nodes[node] = broker.endpoint = Endpoint(f"n{node}", broker.endpoint.port + 1)
        broker.faults = Faults
        self.world.network.brokers[broker.endpoint] = broker
        for told in self.brokers:
            told.view = ClusterView("toy-1", dict(self.nodes), told.view.topics, told.view.controller)

    def ask(self) -> None:
        self.tokens += 1
        text = Say(b"%d" % self.tokens)
        if self.source.random() < 0.5:
            self.world.cluster.ask(text, self.tokens, self.source.choice(TARGETS), self.world.now)
            return
        pipeline = self.world.cluster.connection(self.source.choice([1, 2, 3]), self.world.now)
        if pipeline is not None and pipeline.has_room(self.world.now):
            pipeline.submit(text, self.tokens, self.world.now, BatchIo(self.source.choice([0, 30])))
        else:
            self.tokens -= 1

    def note(self) -> None:
        for event in self.world.events:
            if isinstance(event, Answered | Sent | Lost):
                assert event.token not in self.outcomes, f"{event} after {self.outcomes[event.token]}"
                self.outcomes[event.token] = event
        self.world.events.clear()

    def heal(self) -> None:
        self.epoch += 1
        for broker in self.brokers:
            broker.faults, broker.held, broker.view = Faults, None, self.view()
            for stream in broker.streams:
                stream.ended = True

    def run(self) -> None:
        for _ in range(60):
            if self.source.random() < 0.3:
                self.disturb()
            self.ask()
            deadline = self.world.turn()
            if self.source.random() < 0.5 and deadline is not None and deadline > self.world.now:
                self.world.clock.advance(min(deadline - self.world.now, 3.0))
            self.note()
        self.heal()
        self.world.cluster.want("orders", self.world.now)
        self.world.cluster.refresh()
        self.world.run(self.is_over, seconds=20)
        self.check()

    def is_over(self) -> bool:
        """Whether everything has its outcome, and both leaders can be spoken to."""
        self.note()
        if len(self.outcomes) < self.tokens:
            return False
        for number in (0, 1):
            leader = self.world.cluster.leader(Partition("orders", number))
            if leader is None or self.world.cluster.connection(leader, self.world.now) is None:
                return False
        return True

    def check(self) -> None:
        executed = [int(asked.text) for broker in self.brokers for asked in broker.asked if isinstance(asked, Say)]
        assert len(executed) == len(set(executed)), "executed twice"
        for token, event in self.outcomes.items():
            if isinstance(event, Answered):
                assert token in executed
            elif isinstance(event, Lost) and event.error.persisted is Persisted.NO:
                assert token not in executed, f"{event}, but executed"
        assert self.world.memory.used == 0
        self.world.cluster.close(self.world.now)
        assert all(stream.closed for stream in self.world.network.streams)
        assert self.world.poller.watched == {}


@pytest.mark.parametrize("start", range(0, RUNS, 50))
def test_a_cluster_in_trouble_keeps_its_word_and_is_found_again(start: int) -> None:
    for seed in range(start, start + 50):
        try:
            Chaos(seed).run()
        except AssertionError as error:
            raise AssertionError(f"Chaos({seed}).run(): {error}") from error
