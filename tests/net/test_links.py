from __future__ import annotations

import pytest

from penstock.errors import ConnectionLostError
from penstock.net.backoff import Backoff
from penstock.net.gate import IoMemory
from penstock.net.links import Link, Links, LinkState, Open, Standing, Use, Wait, choose
from penstock.net.pipeline import Pipeline, PipelineLimits
from penstock.wire.protocol import Endpoint, NodeId

from .memory import Faults, MemoryStream, ToyConnection

A, B = Endpoint("a", 1), Endpoint("b", 2)
ROOM, FULL, OPENING, DOWN = LinkState.ROOM, LinkState.FULL, LinkState.OPENING, LinkState.DOWN


@pytest.mark.parametrize(
    ("standings", "chosen"),
    [
        ([], Wait()),
        ([Standing(1, ROOM, load=3), Standing(2, ROOM, load=1), Standing(3, ROOM, load=1)], Use(2)),
        ([Standing(1, FULL, load=5), Standing(2, ROOM, load=4), Standing(A, DOWN)], Use(2)),
        ([Standing(1, FULL, load=5), Standing(2, DOWN)], Wait()),
        ([Standing(1, OPENING), Standing(2, DOWN)], Wait()),
        ([Standing(1, DOWN), Standing(2, DOWN), Standing(A, DOWN)], Open(1)),
        ([Standing(1, DOWN, failures=1), Standing(2, DOWN, failures=1), Standing(A, DOWN)], Open(A)),
        ([Standing(A, DOWN), Standing(B, DOWN)], Open(A)),
        ([Standing(A, DOWN, 0, 1, 10.5), Standing(B, DOWN)], Open(B)),
        ([Standing(A, DOWN, 0, 1, 9.5), Standing(B, DOWN, 0, 2, 9.0)], Open(A)),
        ([Standing(A, DOWN, 0, 1, 11.0), Standing(B, DOWN, 0, 1, 10.5)], Wait(10.5)),
    ],
)
def test_whom_to_ask_when_anybody_will_do(standings: list[Standing], chosen: Use | Open | Wait) -> None:
    assert choose(standings, now=10.0) == chosen


def make(*seeds: Endpoint) -> Links:
    return Links(seeds, lambda: Backoff(0.1, 1.2, lambda: 0.5))


def connect(links: Links, link: Link) -> Pipeline:
    stream = MemoryStream(link.endpoint, Faults())
    pipeline = Pipeline("x", stream, ToyConnection(), IoMemory(0), memoryview(bytearray(9)), PipelineLimits())
    links.opened(link, pipeline, 0.0)
    return pipeline


def test_a_seed_named_twice_is_one() -> None:
    assert [link.peer for link in make(A, B, A)] == [A, B]


def test_a_seed_that_is_a_broker_hands_its_connection_over() -> None:
    links = make(A, B)
    seed = links.peer(A)
    pipeline = connect(links, seed)
    links.name_nodes({1: B, 2: A})
    node = links.node(2)
    assert node is not None
    assert (node.pipeline, seed.pipeline, links.find(pipeline)) == (pipeline, None, node)


def test_a_broker_that_is_connected_takes_no_second_connection() -> None:
    links = make(A)
    links.name_nodes({1: A})
    node = links.node(1)
    assert node is not None
    own = connect(links, node)
    second = connect(links, links.peer(A))
    links.name_nodes({1: A})
    assert (node.pipeline, links.peer(A).pipeline) == (own, second)


def test_connections_nobody_needs_are_those_to_brokers_that_are_gone_and_to_mere_seeds() -> None:
    links = make(A)
    nodes: dict[NodeId, Endpoint] = {1: B, 2: B}
    seed = connect(links, links.peer(A))
    links.name_nodes(nodes)
    links.peer(A).vetted = True
    assert links.superfluous() == []
    gone, kept = links.node(1), links.node(2)
    assert gone is not None
    assert kept is not None
    pipelines = [connect(links, gone), connect(links, kept)]
    gone.vetted = kept.vetted = True
    assert links.superfluous() == [seed]
    links.name_nodes({2: B})
    assert links.superfluous() == [seed, pipelines[0]]


def test_a_broker_that_is_gone_is_dropped_once_its_connection_is() -> None:
    links = make(A)
    links.name_nodes({1: B, 2: B})
    one = links.node(1)
    assert one is not None
    pipeline = connect(links, one)
    links.name_nodes({})
    assert (links.node(1), links.node(2)) == (one, None)
    assert links.ended(pipeline) is one
    assert links.ended(pipeline) is None
    links.name_nodes({})
    assert links.node(1) is None


def test_trouble_tells_what_was_tried_for_how_long_and_the_last_answer() -> None:
    links = make(A, B)
    assert links.trouble(0.0) == ""
    links.peer(A).failed(ConnectionLostError("a refused"), 1.0)
    assert not links.all_failed()
    links.peer(B).failed(ConnectionLostError("b refused"), 2.0)
    links.peer(A).failed(ConnectionLostError("a refused again"), 3.0)
    assert links.all_failed()
    assert links.trouble(3.5) == "tried a:1, b:2 for 2.5 s; last answer: a refused again"
    links.peer(A).worked()
    links.peer(B).worked()
    assert links.trouble(4.0) == ""


def test_who_waits_for_a_link_is_woken_once() -> None:
    links = make(A)
    link = links.peer(A)
    link.failed(ConnectionLostError("refused"), 1.0)
    link.wanted = True
    assert links.next_deadline() == pytest.approx(1.1)
    links.wake(1.0)
    assert links.next_deadline() == pytest.approx(1.1)
    links.wake(1.2)
    assert links.next_deadline() is None
    assert repr(links) == "<Links to 0 brokers and 1 seeds, 0 open>"
